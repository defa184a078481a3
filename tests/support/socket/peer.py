"""A client of the wire protocol with no manners of its own: it says exactly what a test says.

It shares no code with the hub or the SDK. Whatever the hub sends is checked on arrival: text frames
of one complete envelope each, eleven members of the right types, nothing that is not strict JSON.
Reading can be stopped, which is how a slow consumer is made.
"""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypedDict, cast

from tests.support.socket import frames
from tests.support.socket.frames import Frame, FrameReader

HUB = "@(cloudflare/signal-hub)"
PATIENCE_S = 10.0

_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
_ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
_NUMBER = (int, float)

Envelope = TypedDict(
    "Envelope",
    {
        "id": str,
        "from": str,
        "to": str,
        "type": str,
        "payload": Any,
        "pattern": str,
        "correlationId": str | None,
        "timestamp": int,
        "metadata": dict[str, Any],
        "ttl": float | None,
        "signature": str | None,
    },
)


class Response(NamedTuple):
    """An HTTP answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Rejected(Exception):
    """The upgrade was answered with something else than 101."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.status} {response.body!r}")
        self.response = response


class Closed(Exception):
    """The hub closed the socket; `code` is `None` when it did so without a close frame."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


class Peer(asyncio.Protocol):
    """One socket. `sender` is the `from` of what it sends unless a test says otherwise."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.sender = f"@(local/client-{uuid.uuid4()})"
        self.answers_close = True
        self.texts: list[str] = []
        self.close_code: int | None = None
        self.close_reason = ""
        self._now_ms = now_ms
        self._transport: asyncio.Transport
        self._head = bytearray()
        self._reader: FrameReader | None = None
        self._inbox: deque[Frame] = deque()
        self._set_aside: deque[Envelope] = deque()
        self._is_over = False
        self._news = asyncio.Event()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            self._head += data
        else:
            self._take(data)
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._news.set()

    def _take(self, data: bytes) -> None:
        assert self._reader is not None
        for frame in self._reader.feed(data):
            if frame.opcode == frames.CLOSE:
                self._take_close(frame.payload)
            elif frame.opcode == frames.PING:
                self.write(frames.masked_frame(frames.PONG, frame.payload))
            else:
                self._inbox.append(frame)

    def _take_close(self, payload: bytes) -> None:
        if payload:
            self.close_code = int.from_bytes(payload[:2], "big")
            self.close_reason = payload[2:].decode()
        if self.answers_close:
            self.write(frames.masked_frame(frames.CLOSE, payload))
            self._transport.close()

    # The handshake.

    async def upgrade(self, path: str = "/ws", headers: Mapping[str, str] | None = None) -> None:
        """Become a WebSocket, or raise `Rejected`."""
        self.write(upgrade_request(path, headers))
        response = await self.response()
        if response.status != 101:
            raise Rejected(response)
        assert response.headers["sec-websocket-accept"] == _ACCEPT
        assert "sec-websocket-protocol" not in response.headers
        assert "sec-websocket-extensions" not in response.headers
        self._reader = FrameReader()
        self._take(response.body)

    async def response(self) -> Response:
        """The HTTP answer; after an upgrade its body is the first bytes of the WebSocket."""
        await self._until(lambda: b"\r\n\r\n" in self._head or self._is_over)
        head, found, rest = bytes(self._head).partition(b"\r\n\r\n")
        if not found:
            raise Closed(None)
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        size = len(head) + 4 + int(headers.get("content-length", "0"))
        await self._until(lambda: len(self._head) >= size or self._is_over)
        if (status := int(first.split(" ")[1])) != 101:
            rest = bytes(self._head[len(head) + 4 : size])
        return Response(status, headers, rest)

    # Sending.

    def write(self, data: bytes) -> None:
        """Bytes as they are; what is written after the end is lost, as on any network."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def send_text(self, text: str | bytes) -> None:
        """One text frame."""
        payload = text.encode() if isinstance(text, str) else text
        self.write(frames.masked_frame(frames.TEXT, payload))

    def envelope(self, type: str, payload: Any = None, /, **members: Any) -> dict[str, Any]:
        """A complete envelope; `members` replaces single ones, `...` leaves one out."""
        complete = {
            "id": str(uuid.uuid4()),
            "from": self.sender,
            "to": HUB,
            "type": type,
            "payload": payload,
            "pattern": "tell",
            "correlationId": None,
            "timestamp": self._now_ms(),
            "metadata": {},
            "ttl": None,
            "signature": None,
        }
        if "sender" in members:
            members["from"] = members.pop("sender")
        complete |= members
        return {name: value for name, value in complete.items() if value is not ...}

    def send(self, type: str, payload: Any = None, /, **members: Any) -> str:
        """Send one envelope, `tell` unless said otherwise; its id."""
        message = self.envelope(type, payload, **members)
        self.send_text(json.dumps(message))
        return cast(str, message.get("id"))

    async def ask(self, type: str, payload: Any = None, /, **members: Any) -> Envelope:
        """Send with pattern `ask` and wait for the reply."""
        return await self.reply_to(self.send(type, payload, **{"pattern": "ask"} | members))

    async def connect(self, **metadata: Any) -> Envelope:
        """`hub:connect` as the TypeScript clients say it; the reply."""
        given = {"protocolVersion": "0.1.0", "capabilities": ["send", "receive"]} | metadata
        return await self.ask("hub:connect", metadata=given, ttl=5000)

    async def register(self, address: str, *capabilities: str, **payload: Any) -> Envelope:
        """Register an address and speak as it from now on; the reply."""
        payload = {"actorAddress": address, "capabilities": list(capabilities)} | payload
        reply = await self.ask("hub:register", payload, sender=address)
        if reply["type"] == "hub:registered":
            self.sender = address
        return reply

    def tell(self, to: str, type: str, data: Any = None, /, **members: Any) -> str:
        """`hub:send` as a tell; its id."""
        return self.send("hub:send", {"to": to, "type": type, "data": data}, **members)

    async def ask_actor(self, to: str, type: str, data: Any = None, /, **members: Any) -> Envelope:
        """`hub:send` as an ask; the hub's answer."""
        return await self.ask("hub:send", {"to": to, "type": type, "data": data}, **members)

    # Receiving.

    async def receive_text(self) -> str:
        """The next text frame as it is, or `Closed`."""
        await self._until(lambda: bool(self._inbox) or self._is_over)
        if not self._inbox:
            raise Closed(self.close_code)
        frame = self._inbox.popleft()
        assert frame.opcode == frames.TEXT, f"the hub sent opcode {frame.opcode:#x}"
        return frame.payload.decode()

    async def receive_frame(self) -> Frame:
        """The next frame of any kind but ping and close."""
        await self._until(lambda: bool(self._inbox) or self._is_over)
        if not self._inbox:
            raise Closed(self.close_code)
        return self._inbox.popleft()

    async def receive(self, type: str | None = None) -> Envelope:
        """The next envelope, which must be of `type` if one is given."""
        if self._set_aside:
            message = self._set_aside.popleft()
        else:
            message = read_envelope(await self.receive_text())
        assert type is None or message["type"] == type, f"expected {type}, got {message}"
        return message

    def set_aside(self, messages: Iterable[Envelope]) -> None:
        """Let these be the next that `receive` gives."""
        self._set_aside.extendleft(reversed(list(messages)))

    async def reply_to(self, message_id: str) -> Envelope:
        """The hub's reply to a request; what comes before it is kept for `receive`."""
        earlier: list[Envelope] = []
        while True:
            message = await self.receive()
            if message["correlationId"] == message_id and message["from"] == HUB:
                self.set_aside(earlier)
                return message
            earlier.append(message)

    async def nothing_more(self) -> None:
        """Nothing has arrived: the answer to a heartbeat is the next thing there is."""
        message_id = self.send("hub:heartbeat", {"timestamp": 1})
        message = await self.receive()
        assert message["correlationId"] == message_id, f"unexpected: {message}"

    async def until_closed(self) -> int | None:
        """Wait for the end of the socket, whatever arrives before it; the close code."""
        await self._until(lambda: self._is_over)
        return self.close_code

    async def close_frame(self) -> int | None:
        """Wait for the hub's close frame, or the end of the socket without one."""
        await self._until(lambda: self.close_code is not None or self._is_over)
        return self.close_code

    @property
    def is_open(self) -> bool:
        return not self._is_over

    @property
    def is_upgraded(self) -> bool:
        return self._reader is not None

    def pause(self) -> None:
        """Stop reading: what the hub writes fills the kernel's buffers and then the hub's queue."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    # Leaving.

    def close(self, code: int = 1000) -> None:
        """Say a close frame."""
        self.write(frames.masked_frame(frames.CLOSE, frames.close_payload(code)))

    def hang_up(self) -> None:
        """Close the socket without a word, sending what was written."""
        self._transport.close()

    def abort(self) -> None:
        """Drop the socket."""
        self._transport.abort()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self._news.clear()
                await self._news.wait()


async def dial(
    port: int, now_ms: Callable[[], int], host: str = "127.0.0.1", receive_bytes: int = 0
) -> Peer:
    """A TCP connection to the hub; a small receive buffer makes a slow reader slow sooner."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    connection = socket.socket(family)
    connection.setblocking(False)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        await loop.sock_connect(connection, (host, port))
        _, peer = await loop.create_connection(lambda: Peer(now_ms), sock=connection)
    except BaseException:
        connection.close()
        raise
    return peer


def upgrade_request(path: str = "/ws", headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes that ask for a WebSocket."""
    given = {
        "Host": "hub",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": _KEY,
    } | dict(headers or {})
    return request("GET", path, given)


def request(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The bytes of a request without a body."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def read_envelope(text: str) -> Envelope:
    """What the hub sent, after checking that it is a whole envelope."""
    message = json.loads(text, parse_constant=_refuse_constant)
    assert isinstance(message, dict), message
    assert set(message) == set(Envelope.__annotations__), sorted(message)
    for name in ("id", "from", "to", "type"):
        assert isinstance(message[name], str), (name, message)
    uuid.UUID(message["id"])
    assert message["pattern"] == "tell", message
    assert message["correlationId"] is None or isinstance(message["correlationId"], str), message
    assert type(message["timestamp"]) is int, message
    assert isinstance(message["metadata"], dict), message
    assert message["ttl"] is None or isinstance(message["ttl"], _NUMBER), message
    assert message["signature"] is None, message
    return cast(Envelope, message)


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"the hub sent {name}, which is not JSON")
