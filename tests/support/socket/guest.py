"""A socket in a room: it says exactly what a test says and checks whatever it is told.

It reads only when a test asks it to, so a guest that is left alone is a slow one, and what the hub
sends in the meantime is held for later.
"""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import urlsafe_b64encode
from collections import deque
from itertools import count
from typing import Any

from tests.support.socket import frames
from tests.support.socket.frames import Frame, FrameReader
from tests.support.socket.http import PATIENCE_S, Answer, Headers, pairs, read_answer, read_json
from tests.support.socket.http import request_bytes as web_request
from tests.support.socket.peer import Closed

PROTOCOL = "tunnl3d.v1"
CHUNK = 2**16

_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
_ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
_UPGRADE = [
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", _KEY),
]

# What each frame carries beside `action`: what it must, and what it may.
_SHAPES: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "welcome": ({"lastSeq": int, "oldestBufferedSeq": int}, {"nextSeq": int}),
    "ack": ({"messageId": str, "seq": int}, {"duplicate": bool}),
    "message": (
        {"seq": int, "messageId": str, "ciphertext": str, "type": str},
        {"pseudonymId": str},
    ),
    "error": ({"error": str, "errorCode": str}, {"messageId": str, "retryAfterMs": int}),
    "pong": ({}, {"t": object}),
}

Told = dict[str, Any]


class TurnedAway(Exception):
    """The upgrade was answered with something else than 101."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status} {answer.body!r}")
        self.answer = answer


class Guest:
    """One WebSocket, from its welcome on."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: str | None
    ) -> None:
        self.protocol = protocol
        self.welcome: Told = {}
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._held: deque[Told] = deque()
        self._unread: deque[Frame] = deque()
        self._last_seq = 0
        self._pings = count(1)

    # Speaking.

    def write(self, data: bytes) -> None:
        """Bytes as they are; what is written after the end is lost, as on any network."""
        if not self._writer.transport.is_closing():
            self._writer.write(data)

    def say(self, frame: Any) -> None:
        """One text frame: a value as JSON, or text as it is."""
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self.write(frames.masked_frame(frames.TEXT, text.encode()))

    def send(self, message_id: str | None, ciphertext: str | None = None, **members: Any) -> None:
        """A `send` frame, without waiting for its ack."""
        self.say(send_frame(message_id, ciphertext, **members))

    async def submit(
        self, message_id: str | None, ciphertext: str | None = None, **members: Any
    ) -> Told:
        """Send and wait for the ack or error; the messages before it are kept for `receive`."""
        self.send(message_id, ciphertext, **members)
        return await self.reply()

    async def accepted(self, message_id: str, ciphertext: str | None = None, **members: Any) -> int:
        """Send what must be accepted as new; its position."""
        ack = await self.submit(message_id, ciphertext, **members)
        assert ack == {"action": "ack", "messageId": message_id, "seq": ack.get("seq")}, ack
        return int(ack["seq"])

    # Hearing.

    async def receive(self, action: str | None = None) -> Told:
        """The next frame, which must be of this action if one is given."""
        told = self._held.popleft() if self._held else await self._next()
        assert action is None or told["action"] == action, f"expected {action}, got {told}"
        return told

    async def reply(self) -> Told:
        """The next ack or error."""
        earlier: list[Told] = []
        while (told := await self.receive())["action"] not in ("ack", "error"):
            earlier.append(told)
        self._held.extendleft(reversed(earlier))
        return told

    async def messages(self, number: int) -> list[Told]:
        """The next frames, which must all be messages."""
        return [await self.receive("message") for _ in range(number)]

    async def error(self) -> Told:
        """The next frame, which must be an error."""
        return await self.receive("error")

    async def nothing_more(self) -> None:
        """Nothing has been said: the answer to a ping is the next thing there is."""
        ping = f"ping {next(self._pings)}"
        self.say({"action": "ping", "t": ping})
        told = await self.receive()
        assert told == {"action": "pong", "t": ping}, f"unexpected: {told}"

    async def until_closed(self) -> int | None:
        """Read to the end, whatever comes; the close code, or `None` if there was none."""
        try:
            while True:
                await self.receive()
        except Closed as closed:
            return closed.code

    async def next_frame(self) -> Frame:
        """The next frame of whatever kind; `Closed` at the end."""
        while not self._unread:
            async with asyncio.timeout(PATIENCE_S):
                try:
                    data = await self._reader.read(CHUNK)
                except ConnectionError:
                    data = b""
            if not data:
                raise Closed(None)
            self._unread.extend(self._frames.feed(data))
        return self._unread.popleft()

    async def _next(self) -> Told:
        frame = await self.next_frame()
        if frame.opcode == frames.CLOSE:
            code = int.from_bytes(frame.payload[:2], "big") if frame.payload else None
            self.write(frames.masked_frame(frames.CLOSE, frame.payload))
            self._writer.close()
            raise Closed(code)
        if frame.opcode == frames.PING:
            self.write(frames.masked_frame(frames.PONG, frame.payload))
            return await self._next()
        assert frame.opcode == frames.TEXT, f"the hub sent opcode {frame.opcode:#x}"
        return self._checked(read_json(frame.payload.decode()))

    def _checked(self, told: Told) -> Told:
        """A frame with nothing missing and nothing besides; messages in ascending order."""
        required, optional = _SHAPES[told["action"]]
        members = {name: value for name, value in told.items() if name != "action"}
        assert set(required) <= set(members) <= set(required) | set(optional), told
        for name, value in members.items():
            expected = (required | optional)[name]
            assert expected is object or type(value) is expected, told
        assert members.get("duplicate", True) is True, told
        if told["action"] == "message":
            assert told["seq"] > self._last_seq, f"{told['seq']} came after {self._last_seq}"
            self._last_seq = told["seq"]
        return told

    # Leaving.

    async def leave(self) -> None:
        """Close politely; the hub has answered when this returns."""
        self.write(frames.masked_frame(frames.CLOSE, frames.close_payload(1000)))
        await self.until_closed()

    def abort(self) -> None:
        """Drop the socket."""
        self._writer.transport.abort()


async def knock(
    port: int,
    path: str = "/room",
    headers: Headers = (),
    receive_bytes: int = 0,
    is_welcome: bool = True,
) -> Guest:
    """Upgrade and take the welcome, if there is to be one, or raise `TurnedAway`.

    A small receive buffer makes a guest that does not read slow sooner.
    """
    reader, writer = await _dial(port, receive_bytes)
    try:
        writer.write(web_request("GET", path, [*_UPGRADE, *pairs(headers)]))
        async with asyncio.timeout(PATIENCE_S):
            answer = await read_answer(reader)
        if answer.status != 101:
            raise TurnedAway(answer)
        assert answer.header("Sec-WebSocket-Accept") == _ACCEPT
        assert answer.header("Sec-WebSocket-Extensions") is None
        guest = Guest(reader, writer, answer.header("Sec-WebSocket-Protocol"))
        if is_welcome:
            guest.welcome = await guest.receive("welcome")
    except BaseException:
        writer.transport.abort()
        raise
    return guest


async def _dial(port: int, receive_bytes: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connection = socket.socket(socket.AF_INET)
    connection.setblocking(False)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=connection, limit=receive_bytes or CHUNK)
    except BaseException:
        connection.close()
        raise


def send_frame(message_id: str | None, ciphertext: str | None = None, **members: Any) -> Told:
    """A `send` frame; without an id the hub is to make one."""
    named = {} if message_id is None else {"messageId": message_id}
    sealed_text = sealed(message_id or "anonymous") if ciphertext is None else ciphertext
    return {"action": "send", **named, "ciphertext": sealed_text} | members


def offer(**ids: str) -> dict[str, str]:
    """Ids as a browser gives them: `room`, `pseudonym` and `inbox` as subprotocols."""
    items = [f"{name}.{encoded(value)}" for name, value in ids.items()]
    return {"Sec-WebSocket-Protocol": ", ".join([PROTOCOL, *items])}


def sealed(text: str) -> str:
    """A ciphertext for tests, as the hub gives it out; the hub must not be able to tell."""
    return encoded(f"sealed: {text}")


def encoded(text: str) -> str:
    """Base64url of UTF-8, without padding."""
    return urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
