"""The bounds of what a client keeps; `tests/vectors/client/requests.json` has what it does."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.protocol.effects import Reported
from signalhub.client.protocol.frame import FrameWriter
from signalhub.client.protocol.pending import (
    EMPTY_MIN,
    RECENT_BYTES_MAX,
    RECENT_MAX,
    Deadlines,
    Flow,
    Pending,
    Unread,
)
from signalhub.client.protocol.protocol import WAITING_MAX
from signalhub.client.requests import Register, Tell
from signalhub.clock import Ids
from signalhub.wire.errors import Unavailable
from tests.support.memory.client import ALICE, BOB, Scene


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.connect()
    return scene


def test_the_line_of_those_who_wait_is_bounded_and_has_room_again(scene: Scene) -> None:
    scene.lose()
    for _ in range(2):
        for n in range(WAITING_MAX):
            scene.tell(n)
        with pytest.raises(Unavailable, match=str(WAITING_MAX)):
            scene.tell("one too many")
        scene.time(61)
    scene.failed(2 * WAITING_MAX)
    for n in range(WAITING_MAX):
        scene.tell(n)

    scene.connect()
    scene.read(False)

    scene.wrote(*range(WAITING_MAX))


def test_requests_that_were_to_be_restored_do_not_wait_after_a_loss() -> None:
    scene = Scene()
    scene.membership.registered(Register(BOB, [], {}))
    assert len(scene.greet(capabilities={"messageRate": 1, "messageBurst": 1})) == 1
    scene.lose()

    for n in range(WAITING_MAX):
        scene.tell(n)
    with pytest.raises(Unavailable, match=str(WAITING_MAX)):
        scene.tell("one too many")


@pytest.mark.parametrize(
    ("count", "size"), [(RECENT_MAX, 1), (RECENT_BYTES_MAX // 500_000 + 1, 500_000)]
)
def test_only_the_last_tells_are_remembered_for_the_rate_limit(
    scene: Scene, count: int, size: int
) -> None:
    scene.read(False)
    scene.tell("first")
    for _ in range(count):
        scene.tell("x" * size)
    first, *_, last = (each for each in scene.sent() if each["type"] == "hub:send")

    scene.refuse(first, "rate_limited", 1)
    scene.time(1)
    assert scene.sent() == []
    assert len(scene.of(Reported)) == 1
    scene.refuse(last, "rate_limited", 1)
    scene.time(1)

    assert scene.sent() == [last]


BIG = Unread.BYTES_MAX // 4


@pytest.mark.parametrize(("size", "most"), [(1, Unread.MESSAGES_MAX), (BIG, 3)])
def test_only_so_many_tells_are_on_their_way_as_a_hub_has_room_for_after_a_pause(
    scene: Scene, size: int, most: int
) -> None:
    for number in range(3 * most):
        scene.tell(f"{number:x<{size}}")
    types, beats = typed(scene.sent())
    assert types.count("hub:send") == most
    before = types.index("hub:heartbeat")
    assert before <= most // 2

    scene.hear("hub:heartbeat_ack", {}, beats[0])

    types, _ = typed(scene.sent())
    assert types.count("hub:send") == before
    scene.hear("hub:heartbeat_ack", {}, beats[0])
    assert scene.sent() == [], "only the first answer counts"


def test_an_answer_stands_for_all_heartbeats_before_it(scene: Scene) -> None:
    for _ in range(3 * Unread.MESSAGES_MAX):
        scene.tell()
    _, beats = typed(scene.sent())
    assert len(beats) == Unread.MARKS

    scene.hear("hub:heartbeat_ack", {}, beats[-1])

    types, _ = typed(scene.sent())
    assert types.count("hub:send") == Unread.MESSAGES_MAX
    scene.hear("hub:heartbeat_ack", {}, beats[0])
    assert scene.sent() == []


def typed(sent: list[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """The types of messages, and the heartbeats among them."""
    types = [each["type"] for each in sent]
    return types, [each for each in sent if each["type"] == "hub:heartbeat"]


def test_a_large_tell_does_not_follow_others_until_they_were_read(scene: Scene) -> None:
    half = "x" * (Unread.BYTES_MAX // 2)
    scene.tell("y" + half)
    scene.tell("z" + half)
    first, beat = scene.sent()

    scene.hear("hub:heartbeat_ack", {}, beat)

    second, beat = scene.sent()
    assert [each["payload"]["data"][0] for each in (first, second)] == ["y", "z"]
    assert beat["type"] == "hub:heartbeat"


def pending(order: int) -> Pending:
    request = FrameWriter(ALICE, Ids()).request(Tell(BOB, "note", order), 0)
    return Pending(request, order, 0.0)


@pytest.mark.parametrize("is_paused", [False, True])
def test_withdrawn_requests_are_let_go_during_a_long_stall(is_paused: bool) -> None:
    flow = Flow(0.0)
    if is_paused:
        flow.greeted(0, 0, 0.0)
        flow.opened()
        flow.pause(BOB, 0.0)
    for order in range(500):
        each = pending(order)
        flow.add(each)
        assert flow.take(0.0) is None
        flow.withdraw(each)

    lines = [flow._traffic, *flow._parked.values()]
    assert sum(len(line) for line in lines) <= EMPTY_MIN + 1
    assert flow.waiting == 0


def test_an_empty_place_is_skipped_and_a_hold_ends_when_it_said() -> None:
    flow = Flow(0.0)
    first, second = pending(1), pending(2)
    flow.add(first)
    flow.add(second)
    flow.withdraw(first)
    flow.greeted(0, 0, 0.0)
    flow.opened()
    flow.hold(5.0)

    assert flow.take(4.99) is None
    assert flow.wake_at_s(1.0) == 5.0
    assert flow.take(5.0) is second
    assert flow.take(5.0) is None


def test_deadlines_of_requests_that_are_done_are_let_go() -> None:
    deadlines = Deadlines[Pending]()
    for order in range(1_000):
        each = pending(order)
        deadlines.set(each, 100.0 + order)
        deadlines.clear(each)

    assert len(deadlines._heap) < 200
    assert list(deadlines.due(1e9)) == []
