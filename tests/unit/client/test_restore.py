"""Durable subscriptions, mailboxes and replays through losses and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.client.answers import Lost
from signalhub.client.delivery import Delivery
from signalhub.client.protocol.effects import Answered, Arrived, ConsumerEnded, Ready, Stop, Warned
from signalhub.client.protocol.protocol import LinkPhase
from signalhub.client.requests import Register
from signalhub.client.stream_requests import Leave, ReadTopic
from signalhub.wire.errors import Refused, Unsubscribed
from tests.support.memory.client import ALICE, Scene

BILLING = {"topic": "orders", "subscription": "billing"}
PLAIN = BILLING | {"mode": "exclusive", "from": "earliest"}


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.connect()
    return scene


def rejoining(scene: Scene) -> dict[str, Any]:
    """Reconnect up to the `hub:subscribe` of the one consumer."""
    scene.lose()
    register, subscribe = scene.greet()
    scene.hear("hub:registered", {"actorAddress": ALICE}, register)
    assert subscribe["type"] == "hub:subscribe"
    return subscribe


def is_forgotten(scene: Scene) -> bool:
    """Does the next connection restore the registration alone?"""
    scene.lose()
    return [each["type"] for each in scene.greet()] == ["hub:register"]


def test_a_consumer_knows_what_the_hub_said_and_a_loss_is_a_warning(scene: Scene) -> None:
    seat = scene.consume(
        subscriptionId="s-7", next=4, head=9, lag=6, recovered=False, lostFrom=1, lostTo=3
    )
    broken = scene.consume("orders", "audit", next="x", head=None, lag=True, lostTo="9")

    assert (seat.subscription_id, seat.epoch, seat.next) == ("s-7", "e1", 4)
    assert (seat.head, seat.lag, seat.recovered, seat.lost) == (9, 6, False, Lost(1, 3))
    assert (broken.next, broken.head, broken.lag) == (0, 0, 0)
    assert (broken.subscription_id, broken.recovered, broken.lost) == ("", True, None)
    (warned,) = scene.of(Warned)
    assert warned.facts == BILLING | {"lost": Lost(1, 3)}


def test_options_that_were_not_taken_are_a_warning_and_the_client_settles_accordingly(
    scene: Scene,
) -> None:
    seat = scene.consume()
    seat.terms["autoAck"] = True
    assert seat.is_auto_acked

    seat.taken({"kept": ["autoAck", "maxDeliveries"]})

    assert not seat.is_auto_acked
    (warned,) = [one for one in seat.taken({"kept": ["autoAck"]}) if isinstance(one, Warned)]
    assert warned.facts == BILLING | {"options": ["autoAck"]}
    assert seat.taken({}) == []
    assert seat.is_auto_acked


def test_consumers_join_again_last_and_traffic_waits_for_them(scene: Scene) -> None:
    scene.consume()
    scene.subscribe("news")
    scene.consume("orders", "never granted").is_taken = False
    scene.lose()
    scene.tell("x")

    register, news, join = scene.greet()

    assert (news["payload"], join["payload"]) == ({"topic": "news"}, PLAIN)
    scene.hear("hub:registered", {}, register)
    scene.hear("hub:subscribed", {}, news)
    assert scene.sent() == []
    scene.hear("hub:subscribed", {"epoch": "e1"}, join)
    assert len(scene.of(Ready)) == 2
    scene.wrote("x")


@pytest.mark.parametrize(
    ("arrived", "settled", "members"),
    [
        ((5, 6, 7), (5, 7), {"from": {"seq": 6}, "resume": {"epoch": "e1", "seq": 5}}),
        ((1,), (), {"from": {"seq": 1}}),
        ((), (), {}),
    ],
)
def test_a_consumer_goes_on_after_what_was_processed(
    scene: Scene, arrived: tuple[int, ...], settled: tuple[int, ...], members: dict[str, Any]
) -> None:
    progress = scene.consume().progress
    for seq in arrived:
        progress.arrived(Delivery(epoch="e1", seq=seq), f"m-{seq}")
    for seq in settled:
        progress.settled(Delivery(epoch="e1", seq=seq))

    join = rejoining(scene)
    assert join["payload"] == PLAIN | members
    scene.hear("hub:subscribed", {"epoch": "e2"}, join)
    assert progress.position is None, "positions of another epoch mean nothing"


@pytest.mark.parametrize("code", ["subscription_busy", "wrong_epoch", "unknown_topic"])
def test_a_consumer_that_may_not_join_again_ends_alone(scene: Scene, code: str) -> None:
    scene.consume()

    scene.refuse(rejoining(scene), code)

    (ended,) = scene.of(ConsumerEnded)
    assert isinstance(ended.error, Refused)
    assert (ended.key, ended.error.code) == (("orders", "billing"), code)
    assert scene.protocol.phase is LinkPhase.READY
    assert not scene.of(Stop)
    assert is_forgotten(scene)


@pytest.mark.parametrize(
    ("facts", "code", "text"),
    [
        (BILLING | {"reason": "taken_over"}, "taken_over", "same name"),
        ({"subscriptionId": "s-7", "reason": "topic_deleted"}, "topic_deleted", "ended"),
        (BILLING, "no_reason_given", "ended"),
    ],
)
def test_a_consumer_that_the_hub_ends_does_not_join_again(
    scene: Scene, facts: dict[str, Any], code: str, text: str
) -> None:
    left = scene.consume("orders", "audit", subscriptionId="s-6")
    scene.consume(subscriptionId="s-7")
    leaving = scene.submit(Leave(*left.key), sender=ALICE)
    scene.membership.left(left)
    scene.hear("hub:unsubscribed", {}, scene.sent_one("hub:unsubscribe"))
    not_ours: tuple[dict[str, Any], ...] = (
        {},
        {"topic": "orders"},
        {"topic": "orders", "subscription": "x"},
    )
    for unknown in (*not_ours, {"subscriptionId": ""}):
        scene.hear("hub:unsubscribed", unknown | {"reason": "taken_over"})
    assert scene.is_done(leaving)
    assert not scene.of(ConsumerEnded)

    scene.hear("hub:unsubscribed", facts)

    (ended,) = scene.of(ConsumerEnded)
    assert isinstance(ended.error, Unsubscribed)
    assert (ended.key, ended.error.code) == (("orders", "billing"), code)
    assert text in str(ended.error)
    assert is_forgotten(scene)


def test_a_mailbox_is_asked_for_with_every_connection_and_dropped_once(scene: Scene) -> None:
    scene.membership.registered(Register(ALICE, [], {}, durable=True))
    scene.membership.registered(Register(ALICE, ["chat"], {}))
    scene.lose()
    (register,) = scene.greet()
    assert register["payload"]["durable"] is True

    scene.membership.registered(Register(ALICE, [], {}, durable=False))
    scene.lose()
    (register,) = scene.greet()
    assert "durable" not in register["payload"]

    scene.membership.registered(Register(ALICE, [], {}, durable=False), is_done=False)
    for is_dropped in (True, False):
        scene.lose()
        (register,) = scene.greet()
        assert (register["payload"].get("durable") is False) is is_dropped


def replayed(scene: Scene, seq: int, topic: str = "orders") -> None:
    delivery = {"epoch": "e1", "seq": seq}
    scene.hear("order", seq, metadata={"topic": topic, "replay": True, "delivery": delivery})


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_replay_is_answered_with_its_messages_each_once(scene: Scene, is_cut: bool) -> None:
    request = scene.submit(ReadTopic("orders", 1, limit=10))
    if is_cut:
        replayed(scene, 1)
        scene.lose()
        scene.sent()
        scene.connect()
    asked = scene.sent_one("hub:replay")

    replayed(scene, 1)
    replayed(scene, 1, topic="others")
    replayed(scene, 2)
    scene.hear("hub:replayed", {"count": 2}, asked)
    replayed(scene, 3)

    (answered,) = scene.of(Answered)
    assert answered.id == request.id
    assert [(one.payload, one.topic) for one in answered.messages] == [(1, "orders"), (2, "orders")]
    assert not scene.of(Arrived)
