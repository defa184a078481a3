"""A client that can break every rule of the protocol, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import NamedTuple

from signalhub.wire.frames import Opcode
from tests.support.socket.frames import FrameReader, masked_frame

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\n"
    b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + KEY + b"\r\n\r\n"
)
# Autobahn's choice too: a prime, so that pieces never line up with anything.
LONG_PIECE = 997
BYTEWISE_MAX = 2048

frame = masked_frame

Heard = tuple[str, bytes | int | None]


class Case(NamedTuple):
    """What to send, and exactly what must come back before the connection ends."""

    name: str
    sent: bytes
    heard: list[Heard]
    # Where one read brings a broken frame too, picows closes before it hands over the frame in
    # front of it, so that frame goes without an answer. See docs/decisions/0002-websocket-layer.md.
    heard_in_one_piece: list[Heard] | None = None

    def __str__(self) -> str:
        return self.name


def text(payload: bytes) -> Heard:
    return "text", payload


def pong(payload: bytes = b"") -> Heard:
    return "pong", payload


def closed(code: int | None) -> Heard:
    return "close", code


def fragments(*parts: bytes, opcode: int = Opcode.TEXT) -> bytes:
    """One message in as many frames as there are parts."""
    last = len(parts) - 1
    return b"".join(
        frame(opcode if index == 0 else Opcode.CONTINUATION, part, fin=index == last)
        for index, part in enumerate(parts)
    )


def close(code: int | None = 1000, reason: bytes = b"") -> bytes:
    payload = b"" if code is None else code.to_bytes(2, "big") + reason
    return frame(Opcode.CLOSE, payload)


async def check(case: Case, port: int, in_one_piece: bool) -> None:
    """Run a case. One that does not end by itself is ended with a normal close."""
    expected = case.heard
    if in_one_piece and case.heard_in_one_piece is not None:
        expected = case.heard_in_one_piece
    sent = case.sent
    if not expected or expected[-1][0] != "close":
        sent += close(1000)
        expected = [*expected, closed(1000)]

    heard = await converse(port, sent, in_one_piece)

    assert heard == expected


async def converse(port: int, sent: bytes, in_one_piece: bool) -> list[Heard]:
    """Connect, send, and return every frame until the hub closes the connection.

    Sockets, not streams: a stream forgets what it has read when a later write fails.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, UPGRADE)
        head = await loop.sock_recv(client, 65_536)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert head.endswith(b"Sec-WebSocket-Accept: " + ACCEPT + b"\r\n\r\n")
        received, _ = await asyncio.gather(_receive(client), _send(client, sent, in_one_piece))
    return list(_frames(received))


async def _receive(client: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    received = bytearray()
    # A reset ends a connection like a close does, once everything in front of it was read.
    with contextlib.suppress(ConnectionError):
        while data := await loop.sock_recv(client, 65_536):
            received += data
    return bytes(received)


async def _send(client: socket.socket, sent: bytes, in_one_piece: bool) -> None:
    loop = asyncio.get_running_loop()
    size = len(sent) if in_one_piece else 1 if len(sent) <= BYTEWISE_MAX else LONG_PIECE
    # A hub that hangs up on a violation need not take the rest.
    with contextlib.suppress(ConnectionError):
        for start in range(0, len(sent), size):
            await loop.sock_sendall(client, sent[start : start + size])
            await asyncio.sleep(0)


def _frames(received: bytes) -> Iterator[Heard]:
    reader = FrameReader()
    for opcode, payload in reader.feed(received):
        if opcode == Opcode.CLOSE:
            payload[2:].decode()
            yield closed(int.from_bytes(payload[:2], "big") if payload else None)
        else:
            yield Opcode(opcode).name.lower(), payload
    assert reader.is_empty, "the last frame was cut short"
