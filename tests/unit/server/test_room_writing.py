"""Sockets of rooms on the write path: one write per tick, slow ones closed, others undisturbed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from signalhub.core.limits.quotas import Resource
from signalhub.core.rooms.access import Requester
from signalhub.server import runner as runner_module
from signalhub.server.rooms.socket import BAD_FRAMES_MAX
from signalhub.settings.model import OutboundSettings
from signalhub.wire.frames import CloseCode, text_header
from tests.support.memory.room_sockets import RoomStage, Visitor

QUEUE = 8


def stage_with(queue: int = QUEUE, **settings: Any) -> RoomStage:
    return RoomStage(rooms={"socket_queue": queue}, **settings)


pytestmark = pytest.mark.usefixtures("picows_reads")


@pytest.fixture
def stage() -> Iterator[RoomStage]:
    with stage_with() as stage:
        yield stage


@pytest.fixture
def a(stage: RoomStage) -> Visitor:
    return stage.visit("a")


@pytest.fixture
def b(stage: RoomStage, a: Visitor) -> Visitor:
    return stage.visit("b")


def fill(stage: RoomStage, sender: Visitor, count: int, first: int = 1) -> None:
    """Send messages one by one, so that each is committed and announced before the next."""
    for number in range(first, first + count):
        sender.send(f"m{number}")
        stage.loop.run_dry()


def test_frames_of_a_tick_are_written_together(stage: RoomStage, a: Visitor, b: Visitor) -> None:
    before = len(b.socket.taken.data)
    for number in range(5):
        a.send(f"m{number}")
    stage.loop.run_dry()

    assert b.heard() == [1, 2, 3, 4, 5]
    first, last = before, len(b.socket.taken.data) - 1
    assert b.socket.taken.moment_of(first) == b.socket.taken.moment_of(last)


def test_what_a_socket_makes_counts_for_whoever_opened_it(stage: RoomStage) -> None:
    guest = stage.visit("guest", requester=Requester("192.0.2.1"))
    guest.send("m1")
    stage.loop.run_dry()

    # The room, and its inbox.
    assert dict(stage.hub.quotas.sources(Resource.ROOMS)) == {"192.0.2.1": 2}


def test_the_header_of_a_frame_is_made_once_however_many_hear_it(
    stage: RoomStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(length: int) -> bytes:
        made.append(length)
        return text_header(length)

    visitors = [stage.visit(f"p{number}") for number in range(5)]
    monkeypatch.setattr(runner_module, "text_header", counted)
    fill(stage, visitors[0], 1)

    assert len(made) == 1
    assert all(visitor.heard() == [1] for visitor in visitors)


def test_large_rooms_take_turns_and_hear_everything_in_order() -> None:
    with stage_with(broadcast_batch=2, fanout_batch=3) as stage:
        visitors = [stage.visit(f"p{number}") for number in range(11)]
        for number in range(4):
            visitors[number].send(f"m{number}")
        stage.loop.run_dry()

        assert all(visitor.heard() == [1, 2, 3, 4] for visitor in visitors)
        assert not stage.writer._bulk


def test_a_blocked_socket_gets_what_waited_in_order(
    stage: RoomStage, a: Visitor, b: Visitor
) -> None:
    b.stall(10)
    fill(stage, a, QUEUE)
    assert b.heard() == []
    assert stage.writer.depth() > 0

    b.read()
    stage.loop.run_dry()
    fill(stage, a, 2, first=QUEUE + 1)

    assert b.heard() == list(range(1, QUEUE + 3))
    assert b.room_socket.outbound is None
    assert not b.connection.is_closing


def test_a_socket_with_too_many_frames_waiting_is_closed_and_leaves(
    stage: RoomStage, a: Visitor, b: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    actor, other = stage.join("@(a/one)"), stage.join("@(a/two)")
    slow = stage.visit("slow")
    slow.stall()
    # The first is left to the transport, the next ones wait.
    fill(stage, a, 1 + QUEUE)
    assert stage.present == 3
    fill(stage, a, 1, first=2 + QUEUE)

    assert stage.present == 2
    assert stage.tally.rooms.slow_closed == 1
    fill(stage, a, 3, first=3 + QUEUE)
    actor.tell("@(a/two)", "still here")
    stage.loop.run_dry()
    assert a.heard() == b.heard() == list(range(1, QUEUE + 6))
    assert len(a.told("ack")) == QUEUE + 5
    assert other.heard() == ["still here"]
    slow.read()
    assert slow.close_code == CloseCode.TRY_AGAIN_LATER
    assert slow.heard() == [1]
    assert [record.getMessage() for record in caplog.records] == ["a slow consumer was closed"]


def test_a_socket_with_too_many_bytes_waiting_is_closed() -> None:
    with stage_with(queue=1_000, outbound=OutboundSettings(bytes_max=2_000)) as stage:
        a, slow = stage.visit("a"), stage.visit("slow")
        slow.stall()
        fill(stage, a, 30)

        assert slow.connection.is_closing
        assert len(a.heard()) == 30


def test_the_bounds_of_rooms_are_not_those_of_actors() -> None:
    with stage_with(outbound=OutboundSettings(messages_max=10_000)) as stage:
        assert stage.terms.bounds.messages_max == QUEUE
        assert stage.runner.bounds.messages_max == 10_000


def test_a_socket_that_takes_nothing_for_too_long_is_closed(
    stage: RoomStage, a: Visitor, b: Visitor
) -> None:
    b.stall()
    fill(stage, a, 2)
    stage.pass_time(9)
    assert stage.present == 2
    stage.pass_time(2)

    assert stage.present == 1
    b.read()
    assert b.close_code == CloseCode.TRY_AGAIN_LATER


def test_a_slow_sender_is_closed_by_its_own_acks() -> None:
    with RoomStage(rooms={"socket_queue": QUEUE, "echo_to_sender": False}) as stage:
        slow, b = stage.visit("slow"), stage.visit("b")
        slow.stall()
        fill(stage, slow, QUEUE + 2)

        assert slow.connection.is_closing
        assert stage.present == 1
        # What was accepted is in the room all the same.
        assert b.heard() == list(range(1, QUEUE + 3))


def test_lost_frames_of_rooms_are_no_lost_tells(stage: RoomStage, a: Visitor, b: Visitor) -> None:
    c = stage.visit("c")
    b.stall()
    fill(stage, a, 3)
    b.reset()
    a.send("last")
    stage.loop.turn()
    c.reset()
    stage.loop.run_dry()

    assert stage.tally.dropped_tells == 0
    assert a.heard() == [1, 2, 3, 4]


@pytest.mark.parametrize("way", ["say_close", "hang_up", "reset"])
def test_who_leaves_in_whatever_way_is_out_of_the_room(
    stage: RoomStage, a: Visitor, b: Visitor, way: str
) -> None:
    getattr(b, way)()
    stage.loop.run_dry()
    assert stage.present == 1
    assert b.connection not in stage.runner.connections
    getattr(a, way)()
    stage.loop.run_dry()
    assert not stage.hub.rooms.directory.rooms, "nothing is left of a room that was never used"


def test_error_frames_say_which_message_they_are_about(stage: RoomStage, a: Visitor) -> None:
    a.send("m1", "")
    a.send("x" * 128, "*")
    a.send("y" * 129)
    a.say({"action": "send", "messageId": 7})
    for members in (
        {"roomId": "other"},
        {"tenantId": "t"},
        {"roomId": "general", "tenantId": "t"},
        {"pseudonymId": "b"},
    ):
        a.send("not-mine", **members)
    stage.loop.run_dry()

    errors = a.told("error")
    assert {frame["errorCode"] for frame in errors} == {"BAD_ENVELOPE"}
    named = ["m1", "x" * 128, None, None, *["not-mine"] * 4]
    assert [frame.get("messageId") for frame in errors] == named
    assert a.heard() == []


def test_a_frame_may_name_its_own_room_whole_or_in_parts(stage: RoomStage) -> None:
    a = stage.visit("a", "t:r")
    a.send("m1", roomId="t:r", pseudonymId="a")
    a.send("m2", roomId="r", tenantId="t")
    stage.loop.run_dry()

    assert a.heard() == [1, 2]


def test_bad_frames_in_a_row_close_the_socket_and_good_ones_begin_anew() -> None:
    with stage_with(queue=1_000) as stage:
        a = stage.visit("a")
        for good in ({"action": "ping"}, {"action": "pong"}, None):
            for _ in range(BAD_FRAMES_MAX - 1):
                a.say(b"nonsense")
            if good is None:
                a.send("m1")
            else:
                a.say(good)
        stage.loop.run_dry()
        assert not a.connection.is_closing

        for _ in range(BAD_FRAMES_MAX):
            a.send("m2", "")
        stage.loop.run_dry()

        assert a.close_code == CloseCode.POLICY_VIOLATION
        assert len(a.told("error")) == 4 * BAD_FRAMES_MAX - 3


def test_too_large_a_ciphertext_is_neither_a_good_frame_nor_a_malformed_one() -> None:
    with stage_with(queue=1_000) as stage:
        a = stage.visit("a")
        for _ in range(2 * BAD_FRAMES_MAX):
            a.send("m1", "A" * 90_000)
        stage.loop.run_dry()

        assert {frame["errorCode"] for frame in a.told("error")} == {"TOO_LARGE"}
        assert not a.connection.is_closing


@pytest.mark.parametrize(
    "frame",
    [
        *(b"", b"[]", b"null", b"7", b'"send"', b"{", b"{}", b'{"action":null}'),
        *(b'{"action":["send"]}', b'{"action":"leave"}', b'{"action":"send"}x'),
        b'{"action":"send","ciphertext":"\\ud800"}',
        b'{"action":"ping","t":}',
        b"[" * 50_000,
    ],
)
def test_a_frame_nobody_understands_is_an_error_and_not_a_fault(
    stage: RoomStage, a: Visitor, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    a.say(frame)
    stage.loop.run_dry()

    assert [error["errorCode"] for error in a.told("error")] == ["BAD_FRAME"]
    assert not caplog.records


@pytest.mark.parametrize(
    "t",
    [
        *(b"1", b"1.0", b"-0", b"1e400", b"123456789012345678901234567890"),
        *(b"null", b'""', b'{"a":[null]}'),
    ],
)
def test_a_pong_repeats_what_the_ping_carried_to_the_letter(
    stage: RoomStage, a: Visitor, t: bytes
) -> None:
    a.say(b'{"action":"ping","t": ' + t + b" }")
    stage.loop.run_dry()

    assert a.socket.taken.data.endswith(b'{"action":"pong","t":' + t + b"}")


def test_a_fault_of_the_core_is_answered_on_the_socket_which_lives(
    stage: RoomStage, a: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: object, now: int) -> None:
        raise RuntimeError(request)

    monkeypatch.setattr(stage.hub.rooms, "send", broken)
    a.send("the-message")
    monkeypatch.undo()
    a.send("m2")
    stage.loop.run_dry()

    (error,) = a.told("error")
    assert (error["errorCode"], error["messageId"]) == ("INTERNAL_ERROR", "the-message")
    assert a.heard() == [1]
    assert len(caplog.records) == 1
    assert "the-message" not in caplog.text
