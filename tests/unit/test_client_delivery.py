"""What becomes of a client's requests: repeats, pauses, limits, losses, waiting."""

from __future__ import annotations

import pytest

from signalhub.client.protocol.effects import Answered, Failed, Warned
from signalhub.client.protocol.pending import RECENT_BYTES_MAX, RECENT_MAX
from signalhub.client.protocol.protocol import WAITING_MAX
from signalhub.client.requests import Discover
from signalhub.wire.errors import OutcomeUnknown, Refused, Unavailable
from tests.support.memory.client import Scene


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.connect()
    return scene


def test_a_tell_is_done_when_it_is_written(scene: Scene) -> None:
    request = scene.tell({"n": 1})

    told = scene.sent_one("hub:send")
    assert told["pattern"] == "tell"
    assert told["payload"] == {"to": "@(demo/bob)", "type": "note", "data": {"n": 1}}
    assert scene.is_done(request)


def test_an_ask_is_repeated_with_its_id_after_a_growing_pause(scene: Scene) -> None:
    request = scene.ask(timeout_s=30, attempts=3)
    first = scene.sent_one("hub:send")

    scene.pass_time(30.9)
    assert scene.sent() == []
    scene.pass_time(0.1)
    second = scene.sent_one("hub:send")
    scene.pass_time(31.9)
    assert scene.sent() == []
    scene.pass_time(0.1)
    third = scene.sent_one("hub:send")

    assert first == second == third
    assert first["id"] == request.id


def test_an_ask_never_answered_is_an_unknown_outcome_after_its_last_attempt(scene: Scene) -> None:
    request = scene.ask(timeout_s=30, attempts=3)

    scene.pass_time(92.9)
    assert not scene.of(Failed)
    scene.pass_time(0.2)

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


def test_an_ask_is_repeated_with_its_id_on_the_next_connection(scene: Scene) -> None:
    request = scene.ask("x")
    first = scene.sent_one("hub:send")
    scene.lose()
    scene.pass_time(3)

    scene.connect()

    assert scene.sent_one("hub:send") == first
    scene.hear("hub:delivery_ack", {"messageId": first["id"]}, first)
    assert scene.is_done(request)


def test_an_ask_whose_connection_never_returns_is_unknown_if_it_was_sent(scene: Scene) -> None:
    sent = scene.ask(timeout_s=5, attempts=1)
    scene.lose()
    unsent = scene.ask(timeout_s=5, attempts=1)

    scene.pass_time(6)

    assert isinstance(scene.error_of(sent), OutcomeUnknown)
    assert isinstance(scene.error_of(unsent), Unavailable)


def test_a_publish_cut_off_before_its_answer_is_unknown_and_not_repeated(scene: Scene) -> None:
    request = scene.publish("x")
    scene.sent()

    scene.lose("cable pulled")
    assert isinstance(scene.error_of(request), OutcomeUnknown)
    assert "cable pulled" in str(scene.error_of(request))
    scene.connect()

    assert scene.sent() == []


def test_tells_made_while_disconnected_leave_in_order_after_reconnecting(scene: Scene) -> None:
    scene.lose()
    requests = [scene.tell(n) for n in range(5)]
    assert not any(scene.is_done(request) for request in requests)

    scene.connect()

    assert scene.sent_data() == [0, 1, 2, 3, 4]
    assert all(scene.is_done(request) for request in requests)


def test_tells_and_asks_to_one_recipient_keep_their_order_across_a_loss(scene: Scene) -> None:
    scene.ask("ask 1")
    scene.sent()
    scene.lose()
    scene.tell("tell 2")
    scene.ask("ask 3")

    scene.connect()

    assert scene.sent_data() == ["ask 1", "tell 2", "ask 3"]


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


def test_the_line_of_those_who_wait_for_a_connection_is_bounded(scene: Scene) -> None:
    scene.lose()
    for n in range(WAITING_MAX):
        scene.tell(n)

    with pytest.raises(Unavailable, match=str(WAITING_MAX)):
        scene.tell("one too many")

    scene.connect()
    assert scene.sent_data() == list(range(WAITING_MAX))


def test_room_in_the_line_returns_when_the_waiting_give_up(scene: Scene) -> None:
    scene.lose()
    for round_ in range(3):
        for n in range(WAITING_MAX):
            scene.tell((round_, n))
        scene.pass_time(61)

    assert len(scene.of(Failed)) == 3 * WAITING_MAX


def test_global_pause_holds_all_traffic_until_resume(scene: Scene) -> None:
    scene.hear("hub:pause", {"reason": "busy"})
    scene.tell("tell")
    scene.ask("ask")
    scene.publish("publish")
    assert scene.sent() == []

    scene.hear("hub:resume", {})

    assert [each["type"] for each in scene.sent()] == ["hub:send", "hub:send", "hub:publish"]


def test_a_pause_that_comes_while_restoring_holds_the_traffic_all_the_same() -> None:
    scene = Scene()
    scene.welcome(scene.open())
    register = scene.sent_one("hub:register")
    scene.hear("hub:pause", {})
    scene.hear("hub:registered", {}, register)

    scene.tell("x")
    assert scene.sent() == []
    scene.hear("hub:resume", {})

    assert scene.sent_data() == ["x"]


def test_global_pause_lets_control_requests_pass(scene: Scene) -> None:
    scene.hear("hub:pause", {})

    scene.submit(Discover("*", 10))

    scene.sent_one("hub:discover")


def test_pause_of_a_target_holds_only_tells_to_it(scene: Scene) -> None:
    scene.hear("hub:pause", {"target": "@(demo/bob)"})

    scene.tell("to bob")
    scene.tell("to eve", to="@(demo/eve)")
    scene.ask("ask bob")
    assert scene.sent_data() == ["to eve", "ask bob"]
    scene.hear("hub:resume", {"target": "@(demo/eve)"})
    assert scene.sent_data() == []
    scene.hear("hub:resume", {"target": "@(demo/bob)"})

    assert scene.sent_data() == ["to bob"]


def test_a_tell_held_for_sixty_seconds_is_unavailable(scene: Scene) -> None:
    scene.hear("hub:pause", {"target": "@(demo/bob)"})
    request = scene.tell()

    scene.pass_time(60.1)

    assert "paused" in str(scene.error_of(request))


def test_a_new_connection_knows_no_old_pauses(scene: Scene) -> None:
    scene.hear("hub:pause", {})
    scene.hear("hub:pause", {"target": "@(demo/bob)"})
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


def test_a_rate_limited_tell_is_sent_again_after_the_wait_the_hub_asks_for(scene: Scene) -> None:
    request = scene.tell("x")
    told = scene.sent_one("hub:send")

    scene.refuse(told, "rate_limited", details={"retryAfterMs": 250, "retryAfter": 1})
    scene.pass_time(0.249)
    assert scene.sent() == []
    scene.pass_time(0.002)

    assert scene.sent_one("hub:send") == told
    assert scene.of(Answered) == [Answered(request.id, None, 1)]
    assert not scene.of(Warned)


@pytest.mark.parametrize(
    ("details", "wait_s"), [({"retryAfter": 2}, 2.0), ({}, 1.0), ({"retryAfter": "soon"}, 1.0)]
)
def test_the_wait_is_read_in_seconds_or_guessed(
    scene: Scene, details: dict[str, object], wait_s: float
) -> None:
    scene.tell("x")
    scene.refuse(scene.sent_one("hub:send"), "rate_limited", details=details)

    scene.pass_time(wait_s - 0.01)
    assert scene.sent() == []
    scene.pass_time(0.02)

    assert scene.sent_data() == ["x"]


def test_rate_limited_tells_keep_their_order_before_later_ones(scene: Scene) -> None:
    for n in range(4):
        scene.tell(n)
    told = scene.sent()

    scene.refuse(told[1], "rate_limited", details={"retryAfterMs": 100})
    scene.refuse(told[2], "rate_limited", details={"retryAfterMs": 100})
    scene.tell(4)
    scene.refuse(told[3], "rate_limited", details={"retryAfterMs": 100})
    scene.pass_time(0.2)

    assert scene.sent_data() == [1, 2, 3, 4]


def test_a_rate_limited_ask_is_repeated_within_its_time(scene: Scene) -> None:
    request = scene.ask("x", timeout_s=1, attempts=1)
    asked = scene.sent_one("hub:send")

    scene.refuse(asked, "rate_limited", details={"retryAfterMs": 100})
    scene.pass_time(0.2)

    assert scene.sent_one("hub:send") == asked
    scene.hear("hub:delivery_ack", {"messageId": asked["id"]}, asked)
    assert scene.is_done(request)


def test_a_request_refused_for_its_rate_until_its_end_is_refused(scene: Scene) -> None:
    request = scene.ask("x", timeout_s=1, attempts=1)

    scene.refuse(scene.sent_one("hub:send"), "rate_limited", details={"retryAfter": 60})
    scene.pass_time(2)

    assert isinstance(scene.error_of(request), Refused)


def test_restoring_waits_out_the_rate_limit_too() -> None:
    scene = Scene()
    scene.welcome(scene.open())
    register = scene.sent_one("hub:register")

    scene.refuse(register, "rate_limited", details={"retryAfterMs": 100})
    scene.pass_time(0.2)

    assert scene.sent_one("hub:register") == register


@pytest.mark.parametrize("code", ["actor_reconnecting", "queue_full"])
def test_an_ask_waits_out_a_refusal_that_passes(scene: Scene, code: str) -> None:
    request = scene.ask("x", timeout_s=30, attempts=1)
    asked = scene.sent_one("hub:send")

    for wait_s in (1, 2, 3):
        scene.refuse(asked, code, retryable=True)
        scene.pass_time(wait_s - 0.01)
        assert scene.sent() == []
        scene.pass_time(0.02)
        assert scene.sent_one("hub:send") == asked

    scene.hear("hub:delivery_ack", {"messageId": asked["id"]}, asked)
    assert scene.is_done(request)


def test_a_wait_the_hub_asks_for_outlasts_the_deadline_of_the_attempt(scene: Scene) -> None:
    scene.ask("x", timeout_s=30, attempts=2)
    asked = scene.sent_one("hub:send")
    scene.pass_time(29)

    scene.refuse(asked, "actor_reconnecting", details={"retryAfterMs": 3000})
    scene.pass_time(2.9)
    assert scene.sent() == []
    scene.pass_time(0.2)

    assert scene.sent_one("hub:send") == asked


def test_a_refusal_that_does_not_pass_in_time_is_raised(scene: Scene) -> None:
    request = scene.ask("x", timeout_s=2, attempts=1)
    for wait_s in (1.1, 2.1):
        for asked in scene.sent():
            scene.refuse(asked, "actor_reconnecting", retryable=True)
        scene.pass_time(wait_s)

    error = scene.error_of(request)
    assert isinstance(error, Refused)
    assert error.code == "actor_reconnecting"


def test_a_wait_that_does_not_fit_is_refused_at_once(scene: Scene) -> None:
    request = scene.ask("x", timeout_s=2, attempts=1)

    scene.refuse(scene.sent_one("hub:send"), "queue_full", details={"retryAfterMs": 60_000})

    assert isinstance(scene.error_of(request), Refused)


def test_a_refused_tell_is_reported_without_its_payload(scene: Scene) -> None:
    scene.tell("the secret")

    scene.refuse(scene.sent_one("hub:send"), "unauthorized")

    (warned,) = scene.of(Warned)
    assert warned.facts["code"] == "unauthorized"
    assert "the secret" not in str(warned)


def test_only_recent_tells_are_remembered_for_the_rate_limit(scene: Scene) -> None:
    scene.tell("first")
    first = scene.sent_one("hub:send")
    for n in range(RECENT_MAX):
        scene.tell(n)
    scene.sent()

    scene.refuse(first, "rate_limited", details={"retryAfterMs": 1})
    scene.pass_time(1)

    assert scene.sent() == []
    assert len(scene.of(Warned)) == 1


def test_large_tells_are_remembered_only_as_far_as_memory_allows(scene: Scene) -> None:
    scene.tell("first")
    first = scene.sent_one("hub:send")
    for _ in range(RECENT_BYTES_MAX // 500_000 + 1):
        scene.tell("x" * 500_000)
    scene.sent()

    scene.refuse(first, "rate_limited", details={"retryAfterMs": 1})
    scene.pass_time(1)

    assert scene.sent() == []


def test_a_tell_waiting_to_be_repeated_survives_a_loss(scene: Scene) -> None:
    scene.tell("x")
    scene.refuse(scene.sent_one("hub:send"), "rate_limited", details={"retryAfterMs": 100})
    scene.lose()

    scene.connect()

    assert scene.sent_data() == ["x"]


def test_a_tell_that_cannot_be_repeated_is_reported_as_lost(scene: Scene) -> None:
    scene.tell("x")
    scene.refuse(scene.sent_one("hub:send"), "rate_limited", details={"retryAfterMs": 100})
    scene.lose()

    scene.pass_time(61)

    (warned,) = scene.of(Warned)
    assert "lost" in warned.sentence
