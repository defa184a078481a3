"""What becomes of a client's requests: repeats, pauses, limits, losses, waiting.

Most of it is told as stories; their steps are the methods of `Scene`.
"""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.protocol.effects import Failed, Reported
from signalhub.client.protocol.events import DeliveryHeldUp, MessageRefused
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
from signalhub.client.requests import Discover, Register, Tell
from signalhub.client.stream_requests import Ack
from signalhub.clock import Ids
from signalhub.wire.errors import Unavailable
from tests.support.memory.client import ALICE, BOB, Scene

EVE = "@(demo/eve)"
STORIES = {
    "a tell is done when it is written": "tell x; wrote x; done x",
    "an ask is repeated after pauses that grow, and unknown in the end": """
        ask x 30 3; wrote x; time 30.9; wrote; time 0.1; wrote x
        time 31.9; wrote; time 0.1; wrote x; time 29.9; failed 0; time 0.2
        fails x OutcomeUnknown 3×
    """,
    "so is a durable publish": """
        durable x 5 2; wrote x; time 5.9; wrote; time 0.1; wrote x; time 5
        fails x OutcomeUnknown 2×
    """,
    "a late answer to an earlier attempt ends the ask": """
        ask x 30 3; wrote x; time 30.5; answer x; done x; time 100; wrote
    """,
    "a forgotten request is neither repeated nor answered": """
        ask x 1 3; wrote x; forget x; answer x; time 50; wrote; done
    """,
    "an ask is repeated on the next connection": """
        ask x; wrote x; lose; time 3; connect; wrote x; answer x; done x
    """,
    "a durable publish is repeated on the next connection": """
        durable x; wrote x; lose; connect; wrote x; answer x; done x
    """,
    "without another connection a request is unknown if it was sent": """
        ask sent 5 1; wrote sent; lose; ask unsent 5 1
        time 6; fails sent OutcomeUnknown; fails unsent Unavailable
    """,
    "a plain publish that is cut off is unknown and not repeated": """
        publish x; wrote x; lose pulled; fails x OutcomeUnknown pulled; connect; time 60; wrote
    """,
    "tells and asks keep their order across a loss": """
        ask 1; wrote 1; lose; tell 2; tell 3; ask 4; done; connect; wrote 1 2 3 4; done 2 3
    """,
    "a tell waits for a connection for sixty seconds": """
        lose; tell x; time 59.9; failed 0; time 0.2; fails x Unavailable connection; connect; wrote
    """,
    "a pause of a target holds only tells to it": f"""
        pause {BOB}; tell a; tell b {EVE}; ask c; wrote b c; resume {EVE}; wrote
        resume {BOB}; wrote a
    """,
    "a tell that is paused for sixty seconds is unavailable": f"""
        pause {BOB}; tell x; time 60.1; fails x Unavailable paused
    """,
    "a new connection forgets pauses": f"""
        pause; pause {BOB}; tell x; wrote; lose; connect; wrote x
    """,
    "nothing is written while the link is congested": "congest; tell x; wrote; clear; wrote x",
    "rate-limited tells keep their order before later ones": """
        tell 0; tell 1; tell 2; tell 3; wrote 0 1 2 3; refuse 1 rate_limited 100
        refuse 2 rate_limited 100; tell 4; refuse 3 rate_limited 100; time 0.2; wrote 1 2 3 4
    """,
    "a rate-limited ask is repeated within its time and refused after it": """
        ask x 1 1; wrote x; refuse x rate_limited 100; time 0.2; wrote x
        refuse x rate_limited 60000; time 2; fails x Refused rate_limited
    """,
    "a rate-limited tell survives a loss": """
        tell x; wrote x; refuse x rate_limited 100; lose; connect; wrote x; done x
    """,
    "a rate-limited tell that cannot be sent again is reported lost": """
        tell x; wrote x; refuse x rate_limited 100; lose; time 61; warned refused; failed 0
    """,
    **{
        f"a refusal as {code} is waited out within the time there is": f"""
            ask x 7 1; wrote x; refuse x {code}; time 0.99; wrote; time 0.02; wrote x
            refuse x {code}; time 1.99; wrote; time 0.02; wrote x
            refuse x {code}; time 2.99; wrote; time 0.02; wrote x
            failed 0; refuse x {code}; fails x Refused {code}
        """
        for code in ("actor_reconnecting", "queue_full", "storage_full")
    },
    "a wait the hub asks for outlasts the deadline of the attempt": """
        ask x 30 2; wrote x; time 29; refuse x actor_reconnecting 3000
        time 2.9; wrote; time 0.2; wrote x
    """,
    "a wait longer than there is time is refused at once": """
        ask x 2 1; wrote x; refuse x queue_full 60000; fails x Refused queue_full
    """,
}


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.connect()
    return scene


@pytest.mark.parametrize("name", STORIES)
def test_a_request(scene: Scene, name: str) -> None:
    scene.play(STORIES[name])


def test_a_tell_says_to_whom_and_a_refusal_of_it_is_reported_without_its_payload(
    scene: Scene,
) -> None:
    scene.tell("the secret")
    told = scene.sent_one("hub:send")
    scene.refuse(told, "unauthorized")

    assert told["pattern"] == "tell"
    assert told["payload"] == {"to": BOB, "type": "note", "data": "the secret"}
    (reported,) = scene.of(Reported)
    assert isinstance(reported.event, MessageRefused)
    assert reported.event.code == "unauthorized"
    assert "the secret" not in str(reported)


@pytest.mark.parametrize("story", ["", "refuse x rate_limited 100; time 0.2"])
def test_a_tell_that_the_log_failed_is_reported_in_the_hub_s_words(
    scene: Scene, story: str
) -> None:
    scene.play(f"tell x; wrote x; {story}" if story else "tell x; wrote x")
    scene.refuse("x", "storage_failed", resolution="Try later.")

    (reported,) = scene.of(Reported)
    assert isinstance(reported.event, MessageRefused)
    assert BOB in reported.event.subject
    assert (reported.event.code, reported.event.detail, reported.event.resolution) == (
        "storage_failed",
        "because of storage_failed",
        "Try later.",
    )


@pytest.mark.parametrize("where", [{"topic": "orders", "subscription": "billing"}, {}])
def test_damage_that_holds_up_a_delivery_is_reported_with_its_place(
    scene: Scene, where: dict[str, str]
) -> None:
    refusal = {"code": "storage_failed", "message": "It waits.", "resolution": "Stay."}
    scene.hear("hub:error", refusal | {"details": {"seq": 7, "segment": "1.log", **where}})

    (reported,) = scene.of(Reported)
    assert reported.event == DeliveryHeldUp(
        code="storage_failed", seq=7, detail="It waits.", resolution="Stay.", **where
    )


def test_one_id_is_on_its_way_once(scene: Scene) -> None:
    scene.publish(1, durable=True, message_id="mine")

    with pytest.raises(ValueError, match="mine is already pending"):
        scene.publish(2, durable=True, message_id="mine")

    scene.play("wrote 1; answer 1")
    scene.publish(3, durable=True, message_id="mine")


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


@pytest.mark.parametrize("is_restoring", [False, True])
def test_a_pause_holds_traffic_and_nothing_else_until_resume(is_restoring: bool) -> None:
    scene = Scene()
    if is_restoring:
        (register,) = scene.greet()
        scene.pause()
        scene.hear("hub:registered", {}, register)
    else:
        scene.play("connect; pause")

    scene.play("tell a; ask b; publish c")
    assert scene.sent() == []
    scene.submit(Discover("*", 10))
    scene.submit(Ack(ALICE, epoch="e", seq=1))
    assert [each["type"] for each in scene.sent()] == ["hub:discover", "hub:ack"]

    scene.play("resume; wrote a b c")


def test_it_keeps_to_the_advertised_rate_with_headroom() -> None:
    scene = Scene()
    scene.connect(capabilities={"messageRate": 100, "messageBurst": 100})
    for n in range(250):
        scene.tell(n)

    at_once = typed(scene.sent())[0].count("hub:send")
    scene.time(1.0)
    after_a_second = typed(scene.sent())[0].count("hub:send")

    assert 85 <= at_once <= 90
    assert 90 <= after_a_second <= 96
    scene.time(3.0)
    assert at_once + after_a_second + typed(scene.sent())[0].count("hub:send") == 250
    assert not scene.of(Failed)


def test_standing_in_line_at_the_hubs_rate_is_not_waiting() -> None:
    scene = Scene()
    scene.connect(capabilities={"messageRate": 1, "messageBurst": 1})
    for n in range(100):
        scene.tell(n)

    scene.time(120)

    scene.failed(0)
    scene.wrote(*range(100))


@pytest.mark.parametrize(
    ("type", "payload", "wait_s"),
    [
        ("hub:error", {"details": {"retryAfterMs": 250, "retryAfter": 1}}, 0.25),
        ("hub:error", {"details": {"retryAfter": 2}}, 2.0),
        ("hub:error", {"details": {}}, 1.0),
        ("hub:error", {"details": {"retryAfter": "soon"}}, 1.0),
        ("hub:rate_limited", {"retryAfter": 250}, 0.25),
    ],
)
def test_a_rate_limited_tell_is_sent_again_after_the_wait_the_hub_asks_for(
    scene: Scene, type: str, payload: dict[str, object], wait_s: float
) -> None:
    scene.tell("x")
    told = scene.sent_one("hub:send")

    scene.hear(type, {"code": "rate_limited"} | payload, told)
    scene.time(wait_s - 0.001)
    assert scene.sent() == []
    scene.time(0.002)

    assert scene.sent_one("hub:send") == told
    scene.done("x")
    assert not scene.of(Reported)


def test_restoring_waits_out_the_rate_limit_too() -> None:
    scene = Scene()
    (register,) = scene.greet()

    scene.refuse(register, "rate_limited", 100)
    scene.time(0.2)

    assert scene.sent_one("hub:register") == register


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


def test_a_pause_that_comes_before_the_answer_to_the_heartbeat_holds_the_rest(scene: Scene) -> None:
    for _ in range(2 * Unread.MESSAGES_MAX):
        scene.tell()
    _, beats = typed(scene.sent())

    scene.pause(BOB)
    scene.hear("hub:heartbeat_ack", {}, beats[0])

    assert "hub:send" not in [each["type"] for each in scene.sent()]


def test_a_hub_that_refuses_a_heartbeat_has_read_what_came_before(scene: Scene) -> None:
    for _ in range(2 * Unread.MESSAGES_MAX):
        scene.tell()
    _, beats = typed(scene.sent())

    scene.refuse(beats[0], "internal_error")

    assert "hub:send" in [each["type"] for each in scene.sent()]


def test_who_does_not_read_and_so_hears_no_answers_can_send_all_the_same(scene: Scene) -> None:
    """Otherwise a handler could wait for an answer that is read only when the handler has ended."""
    count = 2 * Unread.MESSAGES_MAX
    for _ in range(count):
        scene.tell()
    written = len(scene.sent())

    scene.read(False)

    assert written + len(scene.sent()) == count + Unread.MARKS
    scene.read(True)
    scene.tell()
    assert scene.sent() == []


def test_nothing_is_on_its_way_over_a_new_connection(scene: Scene) -> None:
    for _ in range(2 * Unread.MESSAGES_MAX - 1):
        scene.tell()
    scene.sent()

    scene.lose()
    scene.connect()

    types, beats = typed(scene.sent())
    assert types.count("hub:send") == Unread.MESSAGES_MAX - 1
    assert len(beats) == Unread.MARKS - 1


def test_a_new_connection_is_read_again_and_only_so_many_tells_are_on_their_way(
    scene: Scene,
) -> None:
    scene.read(False)
    scene.lose()
    scene.connect()
    scene.sent()

    for _ in range(2 * Unread.MESSAGES_MAX):
        scene.tell()

    types = [each["type"] for each in scene.sent()]
    assert types.count("hub:send") == Unread.MESSAGES_MAX


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
