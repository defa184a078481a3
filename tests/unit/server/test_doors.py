"""Front doors whose sockets are driven by hand: late answers, and clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from typing import cast

import pytest
import uvloop

from signalhub.server.port import listener as listener_module
from signalhub.server.port.door import Door
from signalhub.server.port.http import HttpRequest, Later, Response, Routes
from signalhub.server.port.listener import READ_BYTES, Gatekeeper, Listener
from signalhub.server.sockets.sources import Source
from signalhub.settings.model import LimitsSettings, Settings
from signalhub.wire.frames import CloseCode
from tests.support.memory.doors import Nobody, Wire


class Client:
    """One door, and its transport driven by hand."""

    def __init__(self, listener: Listener, peer: str = "192.0.2.1") -> None:
        self.wire = Wire(peer)
        self.door = Door(listener)
        self.door.connection_made(cast(asyncio.Transport, self.wire))

    def receive(self, data: bytes) -> None:
        """Bytes of the client, as the loop hands them over."""
        assert self.wire.is_reading
        while data:
            piece, data = data[:READ_BYTES], data[READ_BYTES:]
            self.door.get_buffer(-1)[: len(piece)] = piece
            self.door.buffer_updated(len(piece))

    def ask(self, *paths: str, method: str = "GET") -> None:
        """Requests in one packet."""
        self.receive(
            b"".join(f"{method} {p} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for p in paths)
        )

    def bodies(self) -> list[bytes]:
        """What the client was answered."""
        return [part.split(b"\r\n\r\n", 1)[1] for part in self.wire.sent.split(b"HTTP/1.1 ")[1:]]

    def vanish(self) -> None:
        self.wire.abort()
        self.door.connection_lost(None)


class Desk(Client):
    """A door with a clerk who answers `/later/{}` when told to and everything else at once."""

    def __init__(self) -> None:
        self.pending: dict[str, Later] = {}
        routes = Routes()
        routes.add("/later/{}", self.take, "GET", "POST")
        routes.add("/now", self.answer)
        routes.add("/early", self.answer_early)
        routes.add("/broken/{}", self.fail, "GET")
        self.listener = Listener(Settings(), routes, cast(Gatekeeper, Nobody()))
        super().__init__(self.listener)

    def take(self, request: HttpRequest, name: str) -> Later:
        self.pending[name] = Later()
        return self.pending[name]

    def answer(self, request: HttpRequest) -> Response:
        return Response(200, b"now")

    def answer_early(self, request: HttpRequest) -> Later:
        later = Later()
        later.respond(Response(200, b"early"))
        return later

    def fail(self, request: HttpRequest, name: str) -> Response:
        raise LookupError(name)

    def respond(self, name: str, response: Response | None = None) -> None:
        self.pending.pop(name).respond(response or Response(200, name.encode()))


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def turns() -> None:
    """Let the loop do what it was asked to do soon."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_answer_is_written_when_it_is_there(desk: Desk) -> None:
    for _ in range(3):
        before = desk.wire.sent
        desk.ask("/later/a")
        assert desk.wire.sent == before
        desk.respond("a")
    desk.ask("/early", "/early", "/now")

    assert desk.bodies() == [b"a", b"a", b"a", b"early", b"early", b"now"]
    assert desk.wire.pauses == 0, "reading is not paused for a client that asks in turn"


async def test_requests_behind_it_wait_and_are_answered_in_order(desk: Desk) -> None:
    desk.ask("/later/a", "/now", "/later/b", "/early")
    desk.respond("a")
    assert "b" not in desk.pending, "whoever answers a request does not begin the next one"
    await turns()
    assert desk.bodies() == [b"a", b"now"]

    desk.respond("b")
    await turns()

    assert desk.bodies() == [b"a", b"now", b"b", b"early"]


async def test_a_client_that_sends_on_is_read_once_and_then_only_after_the_answer(
    desk: Desk,
) -> None:
    desk.ask("/later/a")
    desk.ask("/now")
    assert not desk.wire.is_reading

    desk.respond("a")
    await turns()

    assert desk.wire.is_reading
    assert desk.bodies() == [b"a", b"now"]
    assert desk.wire.pauses == 1


async def test_a_client_that_pipelines_is_not_read_before_all_its_requests_are_answered(
    desk: Desk,
) -> None:
    desk.ask("/later/a", "/later/b", "/later/c")
    desk.ask("/later/d", "/later/e")
    for name in "abcd":
        assert not desk.wire.is_reading
        desk.respond(name)
        await turns()
    assert not desk.wire.is_reading, "one request has no answer yet"

    desk.respond("e")
    await turns()

    assert desk.wire.is_reading
    assert desk.bodies() == [b"a", b"b", b"c", b"d", b"e"]


def begun(size: int) -> bytes:
    """A request whose body has one more byte."""
    head = f"POST /now HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size + 1}\r\n\r\n"
    return head.encode() + b"x" * size


async def test_whoever_has_sent_a_body_for_longest_makes_room_for_others(desk: Desk) -> None:
    desk.listener.unfinished.bytes_max = 100_000
    first, second, *others = (Client(desk.listener) for _ in range(6))
    first.receive(begun(40_000))
    second.receive(begun(40_000))
    first.receive(b"x")
    assert first.bodies() == [b"now"], "it is not slow"

    for one in others:
        one.receive(begun(30_000))

    assert [one.wire.is_over for one in (first, second, *others)] == [
        *(False, True, True),
        *(False, False, False),
    ]
    others[-1].receive(b"x")
    assert others[-1].bodies() == [b"now"]
    for one in (first, *others):
        one.vanish()
    assert desk.listener.unfinished.bytes == 0


@pytest.mark.parametrize("is_late", [False, True], ids=["before the answer", "after it"])
async def test_a_client_that_half_closes_gets_its_answers_and_the_end(
    desk: Desk, is_late: bool
) -> None:
    desk.ask("/later/a", "/later/b")
    if is_late:
        desk.respond("a")
    assert desk.door.eof_received()
    if not is_late:
        desk.respond("a")
    await turns()
    assert not desk.wire.is_over
    desk.respond("b")
    await turns()

    assert desk.bodies() == [b"a", b"b"]
    assert desk.wire.is_over


async def test_an_idle_client_that_half_closes_is_let_go(desk: Desk) -> None:
    desk.ask("/now")

    assert not desk.door.eof_received()


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_client_that_is_gone_asks_and_hears_nothing_more(
    desk: Desk, is_answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    desk.ask("/later/a", "/later/b")
    if is_answered:
        desk.respond("a")
        desk.wire.abort()
    else:
        desk.vanish()
        desk.respond("a")
    await turns()

    assert desk.bodies() == ([b"a"] if is_answered else [])
    assert "b" not in desk.pending
    assert not caplog.records


@pytest.mark.parametrize("is_half_closed", [False, True])
async def test_a_busy_door_has_no_deadline_and_closes_behind_its_answer(
    desk: Desk, is_half_closed: bool
) -> None:
    desk.ask("/later/a", "/now")
    desk.door.late()
    assert not is_half_closed or desk.door.eof_received()
    desk.door.close(CloseCode.GOING_AWAY, "server_shutdown")
    assert not desk.wire.is_over

    desk.respond("a")
    await turns()

    assert desk.bodies() == [b"a"]
    assert b"Connection: close" in desk.wire.sent
    assert desk.wire.is_over


async def test_a_choked_client_is_not_read_from_though_its_answer_came(desk: Desk) -> None:
    desk.ask("/later/a")
    desk.ask("/now")
    desk.door.pause_writing()
    desk.respond("a")
    await turns()
    assert not desk.wire.is_reading
    assert desk.bodies() == [b"a"]

    desk.door.resume_writing()

    assert desk.wire.is_reading
    assert desk.bodies() == [b"a", b"now"]


async def test_nonsense_behind_a_pending_request_is_refused_after_its_answer(desk: Desk) -> None:
    desk.ask("/later/a")
    desk.receive(b"nonsense\r\n\r\n")
    desk.respond("a")
    await turns()

    assert desk.wire.sent.count(b"HTTP/1.1 400") == 1
    assert desk.bodies()[0] == b"a"
    assert desk.wire.is_over


async def test_a_client_that_waits_to_send_a_body_is_asked_for_it_after_the_answer(
    desk: Desk,
) -> None:
    desk.ask("/later/a")
    desk.receive(
        b"POST /later/b HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    desk.respond("a")
    await turns()
    assert desk.wire.sent.endswith(b"100 Continue\r\n\r\n")

    desk.receive(b"ok")

    assert "b" in desk.pending


async def test_methods_are_answered_as_the_route_lists_them(desk: Desk) -> None:
    desk.ask("/later/a", method="HEAD")
    desk.respond("a", Response(200, b"hello"))
    assert b"Content-Length: 5" in desk.wire.sent
    assert desk.bodies() == [b""]

    desk.ask("/later/a", method="PUT")
    assert b"HTTP/1.1 405 " in desk.wire.sent
    assert b"Allow: GET, POST, HEAD\r\n" in desk.wire.sent
    assert not desk.pending


async def test_a_failing_route_is_logged_by_its_pattern_and_without_what_was_asked(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.ask("/broken/somebody")

    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.__dict__["route"] == "/broken/{}"
    assert "LookupError" in caplog.text
    assert "somebody" not in caplog.text + str(record.__dict__)
    assert b'"errorCode":"INTERNAL_ERROR"' in desk.wire.sent
    desk.ask("/later/a")
    desk.respond("a", Response(200, headers={"X": "a\nb"}))
    assert desk.bodies()[1] == desk.bodies()[0]


class Street:
    """A listener that tolerates two choked clients, and its clients."""

    def __init__(self, count: int) -> None:
        self.listener = Desk().listener
        self.clients = [Client(self.listener) for _ in range(count)]

    @property
    def dropped(self) -> list[int]:
        """Whose connection was given up."""
        return [at for at, client in enumerate(self.clients) if client.wire.is_aborted]

    def choke(self, *numbers: int) -> None:
        """More waits for them than their transports like."""
        for number in numbers:
            self.clients[number].door.pause_writing()

    def served(self, number: int) -> bool:
        self.clients[number].ask("/now")
        return self.clients[number].wire.sent.endswith(b"now")


@pytest.fixture
async def street(monkeypatch: pytest.MonkeyPatch) -> Street:
    monkeypatch.setattr(listener_module, "CHOKED_MAX", 2)
    return Street(5)


async def test_of_too_many_choked_clients_the_longest_unread_are_dropped(street: Street) -> None:
    street.choke(0, 1)
    assert street.dropped == []
    street.choke(2, 3)

    assert street.dropped == [0, 1]
    assert street.listener.refusals["slow"] == 2
    assert street.served(4)


async def test_a_client_that_reads_on_is_not_counted_any_more_and_is_served(street: Street) -> None:
    street.choke(0, 1)
    street.clients[0].door.resume_writing()
    street.choke(2)
    assert street.dropped == []
    assert street.served(0)

    street.choke(0)
    assert street.dropped == [1]
    street.choke(3)
    assert street.dropped == [1, 2]


async def test_a_client_that_is_gone_is_not_counted_any_more(street: Street) -> None:
    for number in (0, 1):
        street.choke(number)
        street.clients[number].wire.is_over = True
        street.clients[number].door.connection_lost(None)
    street.choke(2, 3)

    assert street.dropped == []
    assert street.listener.refusals["slow"] == 0


# Where they come from.


@pytest.mark.parametrize("proxy", ["192.0.2.1", "2001:db8::1"])
async def test_connections_of_a_trusted_proxy_are_not_those_of_one_client(proxy: str) -> None:
    settings = Settings(trusted_proxies=(proxy,), limits=LimitsSettings(sockets_per_source=1))
    listener = Listener(settings, Routes(), cast(Gatekeeper, Nobody()))

    clients = [Client(listener, proxy) for _ in range(3)]

    assert not any(client.wire.is_aborted for client in clients)


def test_connections_that_wait_are_accepted_one_per_turn_of_the_loop() -> None:
    """The event loop of the hub does that. One that accepts all at once would delay others."""
    waiting = 100

    async def scenario() -> Counter[int]:
        loop = asyncio.get_running_loop()
        listener = Listener(Settings(), Routes(), cast(Gatekeeper, Nobody()))
        await listener.bind("127.0.0.1", 0)
        arrived = listener.arrived
        accepted: Counter[int] = Counter()
        turn = 0
        is_over = asyncio.Event()

        def count(door: Door) -> Source:
            accepted[turn] += 1
            return arrived(door)

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            if len(listener.waiting) < waiting and turn < 1_000 * waiting:
                loop.call_soon(next_turn)
            else:
                is_over.set()

        listener.arrived = count  # type: ignore[method-assign]
        with contextlib.ExitStack() as clients:
            for _ in range(waiting):
                client = clients.enter_context(
                    socket.create_connection(("127.0.0.1", listener.port))
                )
                client.setblocking(False)
            loop.call_soon(next_turn)
            await is_over.wait()
            for door in listener.doors:
                door.turn_away()
            await listener.close()
        return accepted

    accepted = uvloop.run(scenario())

    assert accepted.total() == waiting
    assert max(accepted.values()) <= 2
