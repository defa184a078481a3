"""Clients that do not read their answers: only so many may, and the longest unread goes first."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from signalhub.server.port import listener as listener_module
from signalhub.server.port.door import Door
from signalhub.server.port.http import HttpRequest, Response, Routes
from signalhub.server.port.listener import Gatekeeper, Listener, listen
from signalhub.settings.model import Settings
from tests.support.memory.doors import Nobody, Wire

BIG = b"x" * (16 * 2**20)
ASK_BIG = b"GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
ASK_SMALL = b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n"
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two may be choked."""
    monkeypatch.setattr(listener_module, "CHOKED_MAX", 2)


def routes() -> Routes:
    def big(request: HttpRequest) -> Response:
        return Response(200, BIG)

    def small(request: HttpRequest) -> Response:
        return Response(200, b"small")

    made = Routes()
    made.add("/big", big)
    made.add("/small", small)
    return made


class Client:
    """One door, and its transport turned by hand."""

    def __init__(self, listener: Listener) -> None:
        self.wire = Wire()
        self.door = Door(listener)
        self.door.connection_made(cast(asyncio.Transport, self.wire))

    def choke(self) -> None:
        """More waits for it than the transport likes."""
        self.door.pause_writing()

    def read_on(self) -> None:
        self.door.resume_writing()

    def vanish(self) -> None:
        self.wire.is_over = True
        self.door.connection_lost(None)

    def ask(self) -> bytes:
        """What it has been sent after one more request."""
        self.door.get_buffer(-1)[: len(ASK_SMALL)] = ASK_SMALL
        self.door.buffer_updated(len(ASK_SMALL))
        return self.wire.sent


class Street:
    """A listener and its clients."""

    def __init__(self, count: int) -> None:
        self.listener = Listener(Settings(), routes(), cast(Gatekeeper, Nobody()))
        self.clients = [Client(self.listener) for _ in range(count)]

    @property
    def dropped(self) -> list[int]:
        """Whose connection was given up."""
        return [at for at, client in enumerate(self.clients) if client.wire.is_aborted]


async def test_as_many_as_may_be_are_left_alone() -> None:
    street = Street(3)
    for client in street.clients[:2]:
        client.choke()

    assert street.dropped == []
    assert street.clients[2].ask().endswith(b"small")


async def test_beyond_that_the_longest_unread_is_dropped_and_counted() -> None:
    street = Street(5)
    for client in street.clients[:4]:
        client.choke()

    assert street.dropped == [0, 1]
    assert street.listener.refusals["slow"] == 2
    assert street.clients[4].ask().endswith(b"small")


async def test_a_client_that_reads_on_is_not_counted_any_more_and_is_served() -> None:
    street = Street(4)
    first, second, third, fourth = street.clients
    first.choke()
    second.choke()
    first.read_on()
    third.choke()
    assert street.dropped == []
    assert first.ask().endswith(b"small")

    first.choke()
    assert street.dropped == [1]
    fourth.choke()
    assert street.dropped == [1, 2]


async def test_a_client_that_is_gone_is_not_counted_any_more() -> None:
    street = Street(4)
    for client in street.clients[:2]:
        client.choke()
        client.vanish()
    for client in street.clients[2:]:
        client.choke()

    assert street.dropped == []
    assert street.listener.refusals["slow"] == 0


# Real sockets.


@asynccontextmanager
async def running() -> AsyncIterator[Listener]:
    settings = Settings(host="127.0.0.1", port=0, hello_s=600.0)
    listener = await listen(settings, routes(), cast(Gatekeeper, Nobody()))
    try:
        yield listener
    finally:
        await listener.close()


async def dial(listener: Listener) -> socket.socket:
    """A client with little room for what it does not read."""
    line = socket.socket(socket.AF_INET)
    line.setblocking(False)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", listener.port))
    return line


async def ask_and_not_read(listener: Listener, choked: asyncio.Queue[None]) -> socket.socket:
    """A client whose answer is known to be stuck."""
    line = await dial(listener)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.get_running_loop().sock_sendall(line, ASK_BIG)
        await choked.get()
    return line


async def read_all(line: socket.socket) -> bytes | None:
    """Everything up to the end; `None` if the connection broke."""
    loop = asyncio.get_running_loop()
    found = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        try:
            while piece := await loop.sock_recv(line, 2**20):
                found += piece
        except ConnectionError:
            return None
    return bytes(found)


async def test_of_clients_that_do_not_read_the_last_ones_still_get_all_of_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choked: asyncio.Queue[None] = asyncio.Queue()
    pause_writing = Door.pause_writing

    def noticed(door: Door) -> None:
        pause_writing(door)
        choked.put_nowait(None)

    monkeypatch.setattr(Door, "pause_writing", noticed)
    async with running() as listener:
        lines = [await ask_and_not_read(listener, choked) for _ in range(3)]
        try:
            answers = await asyncio.gather(*map(read_all, lines))
        finally:
            for line in lines:
                line.close()

        assert answers[0] is None or len(answers[0]) < len(BIG)
        for answer in answers[1:]:
            assert answer is not None
            assert answer.endswith(BIG)
        assert listener.refusals["slow"] == 1
