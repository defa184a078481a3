"""What becomes of a client's requests: repeats, pauses, limits, losses, waiting."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.protocol.effects import Answered, Failed, Warned
from signalhub.client.protocol.frame import FrameWriter, Request
from signalhub.client.protocol.pending import (
    EMPTY_MIN,
    RECENT_BYTES_MAX,
    RECENT_MAX,
    Deadlines,
    Flow,
    Pending,
)
from signalhub.client.protocol.protocol import WAITING_MAX
from signalhub.client.requests import Discover, Tell
from signalhub.client.stream_requests import Ack
from signalhub.clock import Ids
from signalhub.wire.errors import OutcomeUnknown, Refused, Unavailable
from tests.support.memory.client import ALICE, BOB, Scene


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.connect()
    return scene


def make(scene: Scene, kind: str, **options: Any) -> Request:
    """An ask or a durable publish: what is repeated until it is answered."""
    return scene.ask("x", **options) if kind == "ask" else scene.publish(durable=True, **options)


def test_a_tell_is_done_when_it_is_written(scene: Scene) -> None:
    request = scene.tell({"n": 1})

    told = scene.sent_one("hub:send")
    assert told["pattern"] == "tell"
    assert told["payload"] == {"to": BOB, "type": "note", "data": {"n": 1}}
    assert scene.is_done(request)


@pytest.mark.parametrize("kind", ["ask", "publish"])
def test_it_is_repeated_under_its_id_after_pauses_that_grow(scene: Scene, kind: str) -> None:
    request = make(scene, kind, timeout_s=30, attempts=3)
    (first,) = scene.sent()

    for pause_s in (31, 32):
        scene.pass_time(pause_s - 0.1)
        assert scene.sent() == []
        scene.pass_time(0.1)
        assert scene.sent() == [first]
    scene.pass_time(29.9)
    assert not scene.of(Failed)
    scene.pass_time(0.2)

    assert first["id"] == request.id
    assert isinstance(scene.error_of(request), OutcomeUnknown)
    assert "3×" in str(scene.error_of(request))


def test_a_late_answer_to_an_earlier_attempt_ends_the_ask(scene: Scene) -> None:
    request = scene.ask(timeout_s=30, attempts=3)
    first = scene.sent_one("hub:send")
    scene.pass_time(30.5)

    scene.hear("hub:delivery_ack", {"messageId": first["id"]}, first)
    scene.pass_time(100)

    assert scene.is_done(request)
    assert scene.sent_data() == []


def test_a_forgotten_request_is_neither_repeated_nor_answered(scene: Scene) -> None:
    request = scene.ask(timeout_s=1, attempts=3)
    asked = scene.sent_one("hub:send")

    scene.protocol.forget(request.id)
    scene.hear("hub:delivery_ack", {}, asked)
    scene.pass_time(50)

    assert scene.sent() == []
    assert not scene.is_done(request)


@pytest.mark.parametrize(
    ("kind", "answer"), [("ask", "hub:delivery_ack"), ("publish", "hub:published")]
)
def test_it_is_repeated_under_its_id_on_the_next_connection(
    scene: Scene, kind: str, answer: str
) -> None:
    request = make(scene, kind)
    (first,) = scene.sent()
    scene.lose()
    scene.pass_time(3)

    scene.connect()

    assert scene.sent() == [first]
    scene.hear(answer, {"seq": 1}, first)
    assert scene.of(Answered) == [Answered(request.id, {"seq": 1}, 2)]


def test_without_another_connection_it_is_unknown_if_it_was_sent(scene: Scene) -> None:
    sent = scene.ask(timeout_s=5, attempts=1)
    scene.lose()
    unsent = scene.ask(timeout_s=5, attempts=1)

    scene.pass_time(6)

    assert isinstance(scene.error_of(sent), OutcomeUnknown)
    assert isinstance(scene.error_of(unsent), Unavailable)


def test_a_plain_publish_that_is_cut_off_is_unknown_and_not_repeated(scene: Scene) -> None:
    request = scene.publish("x", attempts=3)
    scene.sent()

    scene.lose("cable pulled")
    scene.connect()
    scene.pass_time(60)

    assert isinstance(scene.error_of(request), OutcomeUnknown)
    assert "cable pulled" in str(scene.error_of(request))
    assert scene.sent() == []


def test_one_id_is_on_its_way_once(scene: Scene) -> None:
    scene.publish(1, durable=True, message_id="mine")

    with pytest.raises(ValueError, match="mine is on its way already"):
        scene.publish(2, durable=True, message_id="mine")

    scene.hear("hub:published", {}, scene.sent_one("hub:publish"))
    scene.publish(3, durable=True, message_id="mine")


def test_tells_and_asks_keep_their_order_across_a_loss(scene: Scene) -> None:
    scene.ask("ask 1")
    scene.sent()
    scene.lose()
    tells = [scene.tell(f"tell {n}") for n in range(2, 5)]
    scene.ask("ask 5")
    assert not any(scene.is_done(tell) for tell in tells)

    scene.connect()

    assert scene.sent_data() == ["ask 1", "tell 2", "tell 3", "tell 4", "ask 5"]
    assert all(scene.is_done(tell) for tell in tells)


def test_a_tell_waits_for_a_connection_for_sixty_seconds(scene: Scene) -> None:
    scene.lose()
    request = scene.tell()

    scene.pass_time(59.9)
    assert not scene.of(Failed)
    scene.pass_time(0.2)

    assert isinstance(scene.error_of(request), Unavailable)
    assert "no connection" in str(scene.error_of(request))
    scene.connect()
    assert scene.sent() == []


def test_the_line_of_those_who_wait_is_bounded_and_has_room_again(scene: Scene) -> None:
    scene.lose()
    for _ in range(2):
        for n in range(WAITING_MAX):
            scene.tell(n)
        with pytest.raises(Unavailable, match=str(WAITING_MAX)):
            scene.tell("one too many")
        scene.pass_time(61)
    assert len(scene.of(Failed)) == 2 * WAITING_MAX
    for n in range(WAITING_MAX):
        scene.tell(n)

    scene.connect()

    assert scene.sent_data() == list(range(WAITING_MAX))


@pytest.mark.parametrize("is_restoring", [False, True])
def test_a_pause_holds_traffic_and_nothing_else_until_resume(is_restoring: bool) -> None:
    scene = Scene()
    if is_restoring:
        (register,) = scene.greet()
        scene.hear("hub:pause", {})
        scene.hear("hub:registered", {}, register)
    else:
        scene.connect()
        scene.hear("hub:pause", {"reason": "busy"})

    scene.tell("tell")
    scene.ask("ask")
    scene.publish("publish")
    assert scene.sent() == []
    scene.submit(Discover("*", 10))
    scene.submit(Ack(ALICE, epoch="e", seq=1))
    assert [each["type"] for each in scene.sent()] == ["hub:discover", "hub:ack"]

    scene.hear("hub:resume", {})

    assert [each["type"] for each in scene.sent()] == ["hub:send", "hub:send", "hub:publish"]


def test_a_pause_of_a_target_holds_only_tells_to_it(scene: Scene) -> None:
    scene.hear("hub:pause", {"target": BOB})

    scene.tell("to bob")
    scene.tell("to eve", to="@(demo/eve)")
    scene.ask("ask bob")
    assert scene.sent_data() == ["to eve", "ask bob"]
    scene.hear("hub:resume", {"target": "@(demo/eve)"})
    assert scene.sent_data() == []
    scene.hear("hub:resume", {"target": BOB})
    assert scene.sent_data() == ["to bob"]

    scene.hear("hub:pause", {"target": BOB})
    request = scene.tell()
    scene.pass_time(60.1)
    assert "paused" in str(scene.error_of(request))


def test_a_new_connection_forgets_pauses(scene: Scene) -> None:
    scene.hear("hub:pause", {})
    scene.hear("hub:pause", {"target": BOB})
    scene.tell("x")
    scene.lose()

    scene.connect()

    assert scene.sent_data() == ["x"]


def test_nothing_is_written_while_the_link_is_congested(scene: Scene) -> None:
    scene.effects += scene.protocol.congested(True, scene.now)
    scene.tell("x")
    assert scene.sent() == []

    scene.effects += scene.protocol.congested(False, scene.now)

    assert scene.sent_data() == ["x"]


def test_it_keeps_to_the_advertised_rate_with_headroom() -> None:
    scene = Scene()
    scene.connect(capabilities={"messageRate": 100, "messageBurst": 100})
    for n in range(300):
        scene.tell(n)

    at_once = len(scene.sent())
    scene.pass_time(1.0)
    after_a_second = len(scene.sent())

    assert 85 <= at_once <= 90
    assert 90 <= after_a_second <= 96
    scene.pass_time(3.0)
    assert at_once + after_a_second + len(scene.sent()) == 300
    assert not scene.of(Failed)


def test_standing_in_line_at_the_hubs_rate_is_not_waiting() -> None:
    scene = Scene()
    scene.connect(capabilities={"messageRate": 1, "messageBurst": 1})
    for n in range(100):
        scene.tell(n)

    scene.pass_time(120)

    assert not scene.of(Failed)
    assert scene.sent_data() == list(range(100))


@pytest.mark.parametrize(
    ("details", "wait_s"),
    [
        ({"retryAfterMs": 250, "retryAfter": 1}, 0.25),
        ({"retryAfter": 2}, 2.0),
        ({}, 1.0),
        ({"retryAfter": "soon"}, 1.0),
    ],
)
def test_a_rate_limited_tell_is_sent_again_after_the_wait_the_hub_asks_for(
    scene: Scene, details: dict[str, object], wait_s: float
) -> None:
    request = scene.tell("x")
    told = scene.sent_one("hub:send")

    scene.refuse(told, "rate_limited", details=details)
    scene.pass_time(wait_s - 0.001)
    assert scene.sent() == []
    scene.pass_time(0.002)

    assert scene.sent_one("hub:send") == told
    assert scene.of(Answered) == [Answered(request.id, None, 1)]
    assert not scene.of(Warned)


def test_the_dedicated_refusal_for_a_rate_counts_milliseconds(scene: Scene) -> None:
    scene.tell("x")
    told = scene.sent_one("hub:send")

    scene.hear("hub:rate_limited", {"retryAfter": 250}, told)
    scene.pass_time(0.249)
    assert scene.sent() == []
    scene.pass_time(0.002)

    assert scene.sent_one("hub:send") == told


def test_rate_limited_tells_keep_their_order_before_later_ones(scene: Scene) -> None:
    for n in range(4):
        scene.tell(n)
    told = scene.sent()

    scene.limit(told[1])
    scene.limit(told[2])
    scene.tell(4)
    scene.limit(told[3])
    scene.pass_time(0.2)

    assert scene.sent_data() == [1, 2, 3, 4]


def test_a_rate_limited_request_is_repeated_within_its_time(scene: Scene) -> None:
    request = scene.ask("x", timeout_s=1, attempts=1)
    asked = scene.sent_one("hub:send")

    scene.limit(asked)
    scene.pass_time(0.2)
    assert scene.sent_one("hub:send") == asked
    scene.limit(asked, retry_after_ms=60_000)
    scene.pass_time(2)

    assert isinstance(scene.error_of(request), Refused)


def test_restoring_waits_out_the_rate_limit_too() -> None:
    scene = Scene()
    (register,) = scene.greet()

    scene.limit(register)
    scene.pass_time(0.2)

    assert scene.sent_one("hub:register") == register


@pytest.mark.parametrize("code", ["actor_reconnecting", "queue_full", "storage_full"])
def test_a_refusal_that_may_pass_is_waited_out_within_the_time_there_is(
    scene: Scene, code: str
) -> None:
    request = scene.ask("x", timeout_s=7, attempts=1)
    asked = scene.sent_one("hub:send")

    for wait_s in (1, 2, 3):
        scene.refuse(asked, code, retryable=True)
        scene.pass_time(wait_s - 0.01)
        assert scene.sent() == []
        scene.pass_time(0.02)
        assert scene.sent_one("hub:send") == asked
        assert not scene.of(Failed)
    scene.refuse(asked, code, retryable=True)

    error = scene.error_of(request)
    assert isinstance(error, Refused)
    assert (error.code, error.retryable) == (code, True)


def test_a_wait_the_hub_asks_for_outlasts_the_deadline_of_the_attempt(scene: Scene) -> None:
    scene.ask("x", timeout_s=30, attempts=2)
    asked = scene.sent_one("hub:send")
    scene.pass_time(29)

    scene.refuse(asked, "actor_reconnecting", details={"retryAfterMs": 3000})
    scene.pass_time(2.9)
    assert scene.sent() == []
    scene.pass_time(0.2)

    assert scene.sent_one("hub:send") == asked


def test_a_wait_longer_than_there_is_time_is_refused_at_once(scene: Scene) -> None:
    request = scene.ask("x", timeout_s=2, attempts=1)

    scene.refuse(scene.sent_one("hub:send"), "queue_full", details={"retryAfterMs": 60_000})

    assert isinstance(scene.error_of(request), Refused)


def test_a_refused_tell_is_reported_without_its_payload(scene: Scene) -> None:
    scene.tell("the secret")

    scene.refuse(scene.sent_one("hub:send"), "unauthorized")

    (warned,) = scene.of(Warned)
    assert warned.facts["code"] == "unauthorized"
    assert "the secret" not in str(warned)


@pytest.mark.parametrize(
    ("count", "size"), [(RECENT_MAX, 1), (RECENT_BYTES_MAX // 500_000 + 1, 500_000)]
)
def test_only_the_last_tells_are_remembered_for_the_rate_limit(
    scene: Scene, count: int, size: int
) -> None:
    scene.tell("first")
    first = scene.sent_one("hub:send")
    for _ in range(count):
        scene.tell("x" * size)
    last = scene.sent()[-1]

    scene.limit(first, retry_after_ms=1)
    scene.pass_time(1)
    assert scene.sent() == []
    assert len(scene.of(Warned)) == 1
    scene.limit(last, retry_after_ms=1)
    scene.pass_time(1)

    assert scene.sent() == [last]


@pytest.mark.parametrize("is_back", [True, False])
def test_a_tell_waiting_to_be_repeated_survives_a_loss_or_is_reported_lost(
    scene: Scene, is_back: bool
) -> None:
    scene.tell("x")
    scene.limit(scene.sent_one("hub:send"))
    scene.lose()

    if is_back:
        scene.connect()
        assert scene.sent_data() == ["x"]
    else:
        scene.pass_time(61)
        (warned,) = scene.of(Warned)
        assert "lost" in warned.sentence


frames = FrameWriter(ALICE, Ids())


def pending(order: int) -> Pending:
    return Pending(frames.request(Tell(BOB, "note", order), 0), order, 0.0)


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
    deadlines = Deadlines()
    for order in range(1_000):
        each = pending(order)
        deadlines.set(each, 100.0 + order)
        deadlines.clear(each)

    assert len(deadlines._heap) < 200
    assert list(deadlines.due(1e9)) == []
