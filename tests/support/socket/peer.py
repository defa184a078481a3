"""A client of the wire protocol on a socket of its own.

Reading can be stopped, which is how a slow consumer is made.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, cast

from tests.support import peer as peers
from tests.support.peer import HUB, PATIENCE_S, Closed, Envelope, read_envelope
from tests.support.socket import frames
from tests.support.socket.frames import Frame, FrameReader

__all__ = [
    "HUB",
    "PATIENCE_S",
    "Closed",
    "Envelope",
    "Peer",
    "Rejected",
    "Response",
    "dial",
    "read_envelope",
    "request",
    "upgrade_request",
]

_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
_ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


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


class Peer(peers.Peer, asyncio.Protocol):
    """One socket."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.answers_close = True
        # The sub-protocol that the hub selected.
        self.protocol: str | None = None
        self._transport: asyncio.Transport
        self._head = bytearray()
        self._reader: FrameReader | None = None
        self._inbox: deque[Frame] = deque()
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
        self.protocol = response.headers.get("sec-websocket-protocol")
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

    async def until_closed(self) -> int | None:
        """Wait for the end of the socket, whatever arrives before it; the close code."""
        await self._until(lambda: self._is_over)
        return self.close_code

    async def close_frame(self) -> int | None:
        """Wait for the hub's close frame, or the end of the socket without one."""
        await self._until(lambda: self.close_code is not None or self._is_over)
        return self.close_code

    async def polls(self) -> AsyncIterator[None]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                yield

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
        """Close the socket without a close frame, after sending what was written."""
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
    port: int,
    now_ms: Callable[[], int],
    host: str = "127.0.0.1",
    receive_bytes: int = 0,
    source: str | None = None,
) -> Peer:
    """A TCP connection to the hub, from another loopback address if `source` is given.

    A small receive buffer makes a slow reader slow sooner.
    """
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    connection = socket.socket(family)
    connection.setblocking(False)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        if source is not None:
            connection.bind((source, 0))
        await loop.sock_connect(connection, (host, port))
        _, peer = await loop.create_connection(lambda: Peer(now_ms), sock=connection)
    except BaseException:
        connection.close()
        raise
    return peer


def upgrade_request(path: str = "/ws", headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes that ask for a WebSocket."""
    given = {
        "Host": "localhost",
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
