"""Durable subscriptions, replays and publishes through losses and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.answers import Lost
from signalhub.client.delivery import Delivery
from signalhub.client.protocol.effects import (
    Answered,
    Arrived,
    ConsumerEnded,
    Failed,
    Ready,
    Stop,
    Warned,
)
from signalhub.client.protocol.protocol import LinkPhase
from signalhub.client.requests import Register
from signalhub.client.stream_requests import Leave, ReadTopic
from signalhub.wire.errors import OutcomeUnknown, Refused, Unsubscribed
from tests.support.memory.client import ALICE, Scene


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.connect()
    return scene


def restored(scene: Scene) -> dict[str, Any]:
    """Reconnect up to the `hub:subscribe` of the one seat."""
    scene.lose()
    scene.welcome(scene.open())
    register, subscribe = scene.sent()
    assert register["type"] == "hub:register"
    scene.hear("hub:registered", {"actorAddress": ALICE}, register)
    assert subscribe["type"] == "hub:subscribe"
    return subscribe


def test_a_granted_seat_knows_what_the_hub_said(scene: Scene) -> None:
    seat = scene.consume(
        subscriptionId="s-7", next=4, head=9, lag=6, recovered=False, lostFrom=1, lostTo=3
    )

    assert (seat.subscription_id, seat.epoch, seat.next) == ("s-7", "e1", 4)
    assert (seat.head, seat.lag) == (9, 6)
    assert not seat.recovered
    assert seat.lost == Lost(1, 3)


@pytest.mark.parametrize("facts", [{}, {"next": "x", "head": None, "lag": True, "lostTo": "9"}])
def test_facts_of_the_wrong_shape_count_as_missing(scene: Scene, facts: dict[str, Any]) -> None:
    seat = scene.consume(**facts)

    assert (seat.next, seat.head, seat.lag) == (0, 0, 0)
    assert seat.recovered
    assert seat.lost is None


def test_messages_that_are_gone_are_a_warning(scene: Scene) -> None:
    scene.consume(recovered=False, lostFrom=1, lostTo=3)

    (warned,) = scene.of(Warned)
    assert "gone" in warned.sentence
    assert warned.facts == {"topic": "orders", "subscription": "billing", "lost": Lost(1, 3)}


def test_a_seat_is_taken_again_after_registrations_and_plain_subscriptions(scene: Scene) -> None:
    scene.consume()
    scene.subscribe("news")
    scene.lose()

    scene.welcome(scene.open())

    places = [each["payload"].get("subscription") for each in scene.sent()]
    assert places == [None, None, "billing"]


def test_a_seat_that_has_seen_nothing_asks_as_before(scene: Scene) -> None:
    scene.consume()

    asked = restored(scene)["payload"]

    assert asked == {
        "topic": "orders",
        "subscription": "billing",
        "mode": "exclusive",
        "from": "earliest",
    }


def test_a_seat_goes_on_after_what_was_processed_whole(scene: Scene) -> None:
    seat = scene.consume()
    for seq in (5, 6, 7):
        seat.progress.arrived(Delivery(epoch="e1", seq=seq))
    seat.progress.settled(Delivery(epoch="e1", seq=5))
    seat.progress.settled(Delivery(epoch="e1", seq=7))

    asked = restored(scene)["payload"]

    assert asked["resume"] == {"epoch": "e1", "seq": 5}
    assert asked["from"] == {"seq": 6}


def test_there_is_nothing_to_resume_before_the_first_is_processed(scene: Scene) -> None:
    seat = scene.consume()
    seat.progress.arrived(Delivery(epoch="e1", seq=1))

    asked = restored(scene)["payload"]

    assert "resume" not in asked
    assert asked["from"] == {"seq": 1}


def test_a_seat_taken_again_in_another_epoch_forgets_the_old_positions(scene: Scene) -> None:
    seat = scene.consume()
    seat.progress.arrived(Delivery(epoch="e1", seq=8))

    scene.hear("hub:subscribed", {"epoch": "e2"}, restored(scene))

    assert seat.epoch == "e2"
    assert seat.progress.position is None


def test_traffic_waits_until_the_seat_is_taken_again(scene: Scene) -> None:
    scene.consume()
    subscribe = restored(scene)
    scene.tell("x")
    assert scene.sent() == []

    scene.hear("hub:subscribed", {"epoch": "e1"}, subscribe)

    assert len(scene.of(Ready)) == 2
    assert scene.sent_data() == ["x"]


@pytest.mark.parametrize("code", ["subscription_busy", "wrong_epoch", "unknown_topic"])
def test_a_seat_that_cannot_be_taken_again_ends_alone(scene: Scene, code: str) -> None:
    scene.consume()

    scene.refuse(restored(scene), code)

    (ended,) = scene.of(ConsumerEnded)
    assert ended.key == ("orders", "billing")
    assert isinstance(ended.error, Refused)
    assert ended.error.code == code
    assert scene.protocol.phase is LinkPhase.READY
    assert not scene.of(Stop)
    scene.lose()
    scene.welcome(scene.open())
    scene.sent_one("hub:register")


def test_a_seat_never_granted_is_not_taken_again(scene: Scene) -> None:
    scene.consume("orders", "billing")
    other = scene.consume("orders", "audit")
    other.is_taken = False

    assert restored(scene)["payload"]["subscription"] == "billing"


def test_a_seat_taken_over_ends_and_is_not_taken_again(scene: Scene) -> None:
    scene.consume(subscriptionId="s-7")

    place = {"topic": "orders", "subscription": "billing"}
    scene.hear("hub:unsubscribed", place | {"reason": "taken_over"})

    (ended,) = scene.of(ConsumerEnded)
    assert isinstance(ended.error, Unsubscribed)
    assert ended.error.code == "taken_over"
    assert "same name" in str(ended.error)
    scene.lose()
    scene.welcome(scene.open())
    scene.sent_one("hub:register")


def test_the_hub_may_name_a_seat_by_its_id_alone(scene: Scene) -> None:
    scene.consume("orders", "audit", subscriptionId="s-6")
    scene.consume("orders", "billing", subscriptionId="s-7")

    scene.hear("hub:unsubscribed", {"subscriptionId": "s-7", "reason": "topic_deleted"})

    (ended,) = scene.of(ConsumerEnded)
    assert ended.key == ("orders", "billing")
    assert ended.error.code == "topic_deleted"


@pytest.mark.parametrize(
    "facts",
    [{}, {"topic": "orders"}, {"topic": "orders", "subscription": "x"}, {"subscriptionId": ""}],
)
def test_the_end_of_a_seat_that_is_not_ours_is_ignored(scene: Scene, facts: dict[str, Any]) -> None:
    scene.consume()

    scene.hear("hub:unsubscribed", facts | {"reason": "taken_over"})

    assert not scene.of(ConsumerEnded)


def test_leaving_a_seat_is_answered_and_ends_nothing_else(scene: Scene) -> None:
    seat = scene.consume()
    request = scene.submit(Leave(*seat.key), sender=ALICE)

    place = {"topic": "orders", "subscription": "billing"}
    scene.hear("hub:unsubscribed", place, scene.sent_one("hub:unsubscribe"))

    assert scene.is_done(request)
    assert not scene.of(ConsumerEnded)


def test_a_mailbox_is_asked_for_again_with_every_connection(scene: Scene) -> None:
    scene.membership.registered(Register(ALICE, [], {}, durable=True))
    scene.membership.registered(Register(ALICE, ["chat"], {}))
    scene.lose()

    scene.welcome(scene.open())

    assert scene.sent_one("hub:register")["payload"]["durable"] is True


def test_a_mailbox_is_dropped_once_and_not_with_every_connection(scene: Scene) -> None:
    scene.membership.registered(Register(ALICE, [], {}, durable=True))
    scene.membership.registered(Register(ALICE, [], {}, durable=False))
    scene.lose()

    scene.welcome(scene.open())

    assert "durable" not in scene.sent_one("hub:register")["payload"]


def test_a_durable_publish_is_repeated_under_its_id_on_the_next_connection(scene: Scene) -> None:
    request = scene.publish("x", durable=True)
    first = scene.sent_one("hub:publish")
    scene.lose()
    scene.connect()

    again = scene.sent_one("hub:publish")
    scene.hear("hub:published", {"seq": 1}, again)

    assert again == first
    assert scene.of(Answered) == [Answered(request.id, {"seq": 1}, 2)]


def test_a_durable_publish_is_repeated_after_its_timeout(scene: Scene) -> None:
    request = scene.publish("x", durable=True, timeout_s=5, attempts=2)
    first = scene.sent_one("hub:publish")

    scene.pass_time(6.1)
    assert scene.sent_one("hub:publish") == first
    scene.pass_time(6)

    assert isinstance(scene.error_of(request), OutcomeUnknown)


@pytest.mark.parametrize("code", ["storage_full", "queue_full", "actor_reconnecting"])
def test_what_the_hub_will_take_later_is_sent_again_within_the_time_there_is(
    scene: Scene, code: str
) -> None:
    request = scene.ask("x", timeout_s=5, attempts=2)
    for _ in range(3):
        scene.refuse(scene.sent_one("hub:send"), code, retryable=True)
        assert not scene.of(Failed)
        scene.pass_time(3)

    scene.refuse(scene.sent_one("hub:send"), code, retryable=True)

    error = scene.error_of(request)
    assert isinstance(error, Refused)
    assert (error.code, error.retryable) == (code, True)


def test_a_log_that_failed_leaves_the_outcome_unknown(scene: Scene) -> None:
    request = scene.publish("x", durable=True)

    scene.refuse(scene.sent_one("hub:publish"), "storage_failed")

    assert isinstance(scene.error_of(request), OutcomeUnknown)


def test_one_id_is_on_its_way_once(scene: Scene) -> None:
    scene.publish(1, durable=True, message_id="mine")

    with pytest.raises(ValueError, match="mine is on its way already"):
        scene.publish(2, durable=True, message_id="mine")

    published = scene.sent_one("hub:publish")
    scene.hear("hub:published", {}, published)
    scene.publish(3, durable=True, message_id="mine")


def replayed(scene: Scene, seq: int, topic: str = "orders") -> None:
    delivery = {"epoch": "e1", "seq": seq}
    scene.hear("order", seq, metadata={"topic": topic, "replay": True, "delivery": delivery})


def test_a_replay_is_answered_with_its_messages(scene: Scene) -> None:
    request = scene.submit(ReadTopic("orders", 1, limit=10))
    asked = scene.sent_one("hub:replay")

    replayed(scene, 1)
    replayed(scene, 1, topic="others")
    replayed(scene, 2)
    scene.hear("hub:replayed", {"count": 2}, asked)

    (answered,) = scene.of(Answered)
    assert answered.id == request.id
    assert [one.payload for one in answered.messages] == [1, 2]
    assert answered.messages[0].topic == "orders"
    assert not scene.of(Arrived)


def test_a_replay_cut_short_is_asked_for_again_and_holds_nothing_twice(scene: Scene) -> None:
    scene.submit(ReadTopic("orders", 1, limit=10))
    scene.sent()
    replayed(scene, 1)
    scene.lose()
    scene.connect()

    replayed(scene, 1)
    replayed(scene, 2)
    scene.hear("hub:replayed", {"count": 2}, scene.sent_one("hub:replay"))

    (answered,) = scene.of(Answered)
    assert [one.payload for one in answered.messages] == [1, 2]


def test_replayed_messages_nobody_waits_for_are_ignored(scene: Scene) -> None:
    request = scene.submit(ReadTopic("orders", 1, limit=10))
    scene.protocol.forget(request.id)

    replayed(scene, 1)

    assert not scene.of(Arrived)


def test_the_hub_says_how_safe_its_receipts_are() -> None:
    scene = Scene()
    assert scene.protocol.welcome.durability is None

    scene.connect(capabilities={"durable": True, "durability": "fsync"})

    assert scene.protocol.welcome.durability == "fsync"
