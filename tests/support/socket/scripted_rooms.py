"""A hub for rooms and inboxes whose answers are written by the test."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from hashlib import sha1
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from signalhub.server.port.http import HttpRequest, RequestReader
from signalhub.wire.base64url import encoded
from signalhub.wire.frames import close_frame, text_header

PATIENCE_S = 10.0

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_READ_BYTES = 2**16


class Exchange:
    """One HTTP request, to be answered by the test."""

    def __init__(
        self,
        request: HttpRequest,
        connection: int,
        writer: asyncio.StreamWriter,
        gone: asyncio.Event,
    ) -> None:
        self.request = request
        self.connection = connection  # Counts the connections; kept ones have the same.
        self._writer = writer
        self._gone = gone

    @property
    def body(self) -> Any:
        return json.loads(self.request.body)

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        self.say(http_answer(status, body, **headers))

    def page(self, *seqs: int, oldest: int | None = None, **members: Any) -> None:
        """Answer with these messages, named and worded after their positions."""
        messages = [
            {"seq": seq, "messageId": f"m{seq}", "ciphertext": encoded(b"c%d" % seq)}
            for seq in seqs
        ]
        next_seq = seqs[-1] + 1 if seqs else self.from_seq
        first = oldest or (seqs[0] if seqs else None)
        headers = {} if first is None else {"X_Inbox_Oldest_Seq": str(first)}
        self.answer(200, {"messages": messages, "nextSeq": next_seq, **members}, **headers)

    @property
    def from_seq(self) -> int:
        return int(self.request.query.split("fromSeq=")[1].split("&")[0])

    def say(self, data: bytes) -> None:
        """Answer with these bytes."""
        self._writer.write(data)

    def finish(self) -> None:
        """Close after sending what was written."""
        self._writer.close()

    def hang_up(self) -> None:
        self._writer.transport.abort()

    async def wait_gone(self) -> None:
        """Wait until the client has ended the connection."""
        async with asyncio.timeout(PATIENCE_S):
            await self._gone.wait()


class RoomPeer:
    """The hub's end of one socket."""

    def __init__(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        self.headers = request.headers
        self.path = request.path
        self.gone = asyncio.Event()
        self._writer = writer
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(self, action: str) -> dict[str, Any]:
        """The member's next frame, which must be this one."""
        async with asyncio.timeout(PATIENCE_S):
            frame = await self._heard.get()
        assert frame["action"] == action, frame
        return frame

    def say(self, action: str, **members: Any) -> None:
        text = json.dumps({"action": action, **members}).encode()
        self._writer.write(text_header(len(text)) + text)

    def live(self, seq: int) -> None:
        self.say(
            "message",
            seq=seq,
            messageId=f"m{seq}",
            ciphertext=encoded(b"c%d" % seq),
            type="mls_app",
            pseudonymId="p2",
        )

    def close(self, code: int) -> None:
        self._writer.write(close_frame(code, "going away"))

    def abort(self) -> None:
        self._writer.transport.abort()

    def hear(self, buffer: bytearray) -> None:
        """Take the whole frames out of the buffer; all of a member's frames are masked."""
        while len(buffer) >= 6:
            size, at = buffer[1] & 0x7F, 2
            if size >= 126:
                at = 4 if size == 126 else 10
                size = int.from_bytes(buffer[2:at], "big")
            if len(buffer) < at + 4 + size:
                return
            key = buffer[at : at + 4]
            body = bytes(byte ^ key[n % 4] for n, byte in enumerate(buffer[at + 4 : at + 4 + size]))
            opcode = buffer[0] & 0x0F
            del buffer[: at + 4 + size]
            if opcode == 1:
                self._heard.put_nowait(json.loads(body))
            elif opcode == 8:
                self._writer.write(close_frame(1000))
                self._writer.close()


class ScriptedRooms:
    """Listens on the loopback; `accept` hands out sockets, `request` HTTP requests, in order.

    While `refusal` is set, a whole HTTP answer, upgrades are refused with it.
    """

    def __init__(self, ssl: SSLContext | None = None) -> None:
        self.port = 0
        self.upgrades = 0
        self.connections = 0
        self.refusal: bytes | None = None
        self.refused = asyncio.Event()
        self.greeting: int | None = None  # A welcome with this position, said with the handshake.
        self._peers: asyncio.Queue[RoomPeer] = asyncio.Queue()
        self._exchanges: asyncio.Queue[Exchange] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ssl = ssl
        self._server: asyncio.Server

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    async def accept(self, last_seq: int | None = 0) -> RoomPeer:
        """The next socket, which is welcomed unless `last_seq` is `None`."""
        async with asyncio.timeout(PATIENCE_S):
            peer = await self._peers.get()
        if last_seq is not None:
            peer.say("welcome", lastSeq=last_seq, oldestBufferedSeq=1)
        return peer

    async def request(self, path: str = "/v1/inbox/messages") -> Exchange:
        """The next request, which must be for this path."""
        async with asyncio.timeout(PATIENCE_S):
            exchange = await self._exchanges.get()
        assert exchange.request.path == path, exchange.request.path
        return exchange

    def has_no_request(self) -> bool:
        return self._exchanges.empty()

    async def stop_listening(self) -> None:
        """Refuse new connections."""
        self._server.close()
        # The listening socket leaves the loop's selector one step later.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._serve(reader, writer, self.connections)
        except OSError:
            pass  # Connections that end abruptly are what this class is for.
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        parser = RequestReader()
        gone = asyncio.Event()
        while data := await reader.read(_READ_BYTES):
            for request in parser.feed(data):
                if "upgrade" in request.headers:
                    self.upgrades += 1
                    rest = bytearray(parser.rest or b"")
                    await self._open(request, reader, writer, rest)
                    return
                self._exchanges.put_nowait(Exchange(request, number, writer, gone))
        gone.set()

    async def _open(
        self,
        request: HttpRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        buffer: bytearray,
    ) -> None:
        if self.refusal is not None:
            writer.write(self.refusal)
            await writer.drain()
            self.refused.set()
            writer.close()
            return
        key = request.headers["sec-websocket-key"].encode()
        token = b64encode(sha1(key + _MAGIC).digest()).decode()
        said = (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {token}\r\n\r\n"
        ).encode()
        if self.greeting is not None:
            welcome = json.dumps({"action": "welcome", "lastSeq": self.greeting}).encode()
            said += text_header(len(welcome)) + welcome
        writer.write(said)
        peer = RoomPeer(request, writer)
        self._peers.put_nowait(peer)
        try:
            while data := await reader.read(_READ_BYTES):
                buffer += data
                peer.hear(buffer)
        finally:
            peer.gone.set()


def http_answer(status: int, body: Any = None, **headers: str) -> bytes:
    """An HTTP answer in JSON; names of headers are written with `_` for `-`."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(content)}\r\n{lines}\r\n"
    return head.encode() + content
