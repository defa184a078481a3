"""Answers that come later, at a front door whose socket is turned by hand."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import pytest

from signalhub.server.port.door import Door
from signalhub.server.port.http import HttpRequest, Later, Response, Routes
from signalhub.server.port.listener import READ_BYTES, Gatekeeper, Listener
from signalhub.settings.model import Settings
from signalhub.wire.frames import CloseCode
from tests.support.memory.doors import Nobody, Wire


class Desk:
    """One door, and a clerk who answers `/later/{}` when told to and everything else at once."""

    def __init__(self) -> None:
        self.pending: dict[str, Later] = {}
        routes = Routes()
        routes.add("/later/{}", self.take, "GET", "POST")
        routes.add("/now", self.answer)
        routes.add("/early", self.answer_early)
        routes.add("/broken/{}", self.fail, "GET")
        self.listener = Listener(Settings(), routes, cast(Gatekeeper, Nobody()))
        self.wire = Wire()
        self.door = Door(self.listener)
        self.door.connection_made(cast(asyncio.Transport, self.wire))

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

    def receive(self, data: bytes) -> None:
        """Bytes of the client, as the loop hands them over."""
        assert self.wire.is_reading
        while data:
            piece, data = data[:READ_BYTES], data[READ_BYTES:]
            self.door.get_buffer(-1)[: len(piece)] = piece
            self.door.buffer_updated(len(piece))

    def ask(self, *paths: str, method: str = "GET") -> None:
        """Requests in one packet."""
        self.receive(b"".join(f"{method} {p} HTTP/1.1\r\nHost: h\r\n\r\n".encode() for p in paths))

    def bodies(self) -> list[bytes]:
        """What the client was answered."""
        return [part.split(b"\r\n\r\n", 1)[1] for part in self.wire.sent.split(b"HTTP/1.1 ")[1:]]


async def turns() -> None:
    """Let the loop do what it was asked to do soon."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_answer_is_written_when_it_is_there() -> None:
    desk = Desk()
    desk.ask("/later/a")
    assert desk.wire.sent == b""

    desk.respond("a")

    assert desk.bodies() == [b"a"]


async def test_answer_may_be_there_before_the_handler_returns() -> None:
    desk = Desk()
    desk.ask("/early", "/early", "/now")

    assert desk.bodies() == [b"early", b"early", b"now"]


async def test_reading_is_not_paused_for_clients_that_ask_one_thing_at_a_time() -> None:
    desk = Desk()
    for _ in range(3):
        desk.ask("/later/a")
        desk.respond("a")

    assert desk.bodies() == [b"a"] * 3
    assert desk.wire.pauses == 0


async def test_requests_behind_it_wait_and_are_answered_in_order() -> None:
    desk = Desk()
    desk.ask("/later/a", "/now", "/later/b", "/early")
    desk.respond("a")
    await turns()
    assert desk.bodies() == [b"a", b"now"]

    desk.respond("b")
    await turns()

    assert desk.bodies() == [b"a", b"now", b"b", b"early"]


async def test_client_that_sends_on_is_read_once_and_then_only_after_the_answer() -> None:
    desk = Desk()
    desk.ask("/later/a")
    desk.ask("/now")
    assert not desk.wire.is_reading

    desk.respond("a")
    assert desk.wire.is_reading
    await turns()

    assert desk.bodies() == [b"a", b"now"]
    assert desk.wire.pauses == 1


async def test_next_request_is_not_begun_by_whoever_answers_the_one_before() -> None:
    desk = Desk()
    desk.ask("/later/a", "/later/b")
    desk.respond("a")
    assert "b" not in desk.pending

    await turns()

    assert "b" in desk.pending


async def test_client_that_half_closes_gets_its_answers_and_the_end() -> None:
    desk = Desk()
    desk.ask("/later/a", "/later/b")
    assert desk.door.eof_received()

    desk.respond("a")
    await turns()
    assert not desk.wire.is_over
    desk.respond("b")
    await turns()

    assert desk.bodies() == [b"a", b"b"]
    assert desk.wire.is_over


async def test_half_close_between_an_answer_and_the_next_request_loses_nothing() -> None:
    desk = Desk()
    desk.ask("/later/a", "/now")
    desk.respond("a")
    assert desk.door.eof_received()
    await turns()

    assert desk.bodies() == [b"a", b"now"]
    assert desk.wire.is_over


async def test_idle_client_that_half_closes_is_let_go() -> None:
    desk = Desk()
    desk.ask("/now")

    assert not desk.door.eof_received()


async def test_client_that_is_gone_is_not_answered_and_nobody_minds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.ask("/later/a", "/later/b")
    desk.wire.abort()
    desk.door.connection_lost(None)

    desk.respond("a")
    await turns()

    assert desk.wire.sent == b""
    assert "b" not in desk.pending
    assert not caplog.records


async def test_client_that_goes_before_the_next_request_is_begun_asks_nothing_more() -> None:
    desk = Desk()
    desk.ask("/later/a", "/later/b")
    desk.respond("a")
    desk.wire.abort()
    await turns()

    assert "b" not in desk.pending


async def test_busy_door_has_no_deadline() -> None:
    desk = Desk()
    desk.ask("/later/a")
    desk.door.late()
    desk.respond("a")

    assert desk.bodies() == [b"a"]
    assert not desk.wire.is_over


async def test_busy_door_closes_behind_its_answer() -> None:
    desk = Desk()
    desk.ask("/later/a", "/now")
    desk.door.close(CloseCode.GOING_AWAY, "server_shutdown")
    assert not desk.wire.is_over

    desk.respond("a")
    await turns()

    assert desk.bodies() == [b"a"]
    assert b"Connection: close" in desk.wire.sent
    assert desk.wire.is_over


async def test_busy_door_of_a_half_closed_client_closes_behind_its_answer() -> None:
    desk = Desk()
    desk.ask("/later/a")
    assert desk.door.eof_received()
    desk.door.close(CloseCode.GOING_AWAY, "server_shutdown")
    desk.respond("a")

    assert desk.bodies() == [b"a"]
    assert desk.wire.is_over


async def test_choked_client_is_not_read_from_though_its_answer_came() -> None:
    desk = Desk()
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


async def test_nonsense_behind_a_pending_request_is_refused_after_its_answer() -> None:
    desk = Desk()
    desk.ask("/later/a")
    desk.receive(b"nonsense\r\n\r\n")
    desk.respond("a")
    await turns()

    assert desk.wire.sent.count(b"HTTP/1.1 400") == 1
    assert desk.bodies()[0] == b"a"
    assert desk.wire.is_over


async def test_client_that_waits_to_send_a_body_is_asked_for_it_after_the_answer() -> None:
    desk = Desk()
    desk.ask("/later/a")
    desk.receive(
        b"POST /later/b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    desk.respond("a")
    await turns()
    assert desk.wire.sent.endswith(b"100 Continue\r\n\r\n")

    desk.receive(b"ok")

    assert "b" in desk.pending


async def test_answer_to_head_keeps_the_length_and_loses_the_body() -> None:
    desk = Desk()
    desk.ask("/later/a", method="HEAD")
    desk.respond("a", Response(200, b"hello"))

    assert b"Content-Length: 5" in desk.wire.sent
    assert desk.bodies() == [b""]


async def test_method_a_route_does_not_list_never_reaches_its_handler() -> None:
    desk = Desk()
    desk.ask("/later/a", method="PUT")

    assert desk.wire.sent.startswith(b"HTTP/1.1 405 ")
    assert b"Allow: GET, POST, HEAD\r\n" in desk.wire.sent
    assert not desk.pending


async def test_failing_route_is_logged_by_its_pattern_and_without_what_was_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.ask("/broken/somebody")

    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.__dict__["route"] == "/broken/{}"
    assert "LookupError" in caplog.text
    assert "somebody" not in caplog.text + str(record.__dict__)


async def test_route_with_methods_fails_in_json_and_another_in_plain_text() -> None:
    desk = Desk()
    desk.ask("/broken/x")
    assert b'"errorCode":"INTERNAL_ERROR"' in desk.wire.sent

    desk.ask("/later/a")
    desk.respond("a", Response(200, headers={"X": "a\nb"}))

    assert desk.bodies()[1] == desk.bodies()[0]
