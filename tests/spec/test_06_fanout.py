"""Sections 6.11–6.14: broadcast, subscribe, publish and unsubscribe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import HUB, Peer
from tests.support.socket.stage import InProcess, code_of, numbered, run_stage


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


async def subscribe(peer: Peer, topic: str, **members: Any) -> str:
    """Subscribe and give back the subscription's id."""
    reply = await peer.ask("hub:subscribe", {"topic": topic}, **members)
    assert reply["type"] == "hub:subscribed", reply
    return str(reply["payload"]["subscriptionId"])


async def publish(peer: Peer, topic: str, data: Any = None) -> int:
    """Publish a note and give back how many heard it."""
    reply = await peer.ask("hub:publish", {"topic": topic, "type": "note", "data": data})
    assert reply["type"] == "hub:published", reply
    return int(reply["payload"]["subscriberCount"])


async def test_6_11_broadcast_reaches_every_address_including_the_senders(
    stage: InProcess,
) -> None:
    sender, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await other.register("@(local/c)")

    reply = await sender.ask("hub:broadcast", {"type": "news", "data": [1]})

    assert (await sender.receive("news"))["to"] == "@(local/a)"
    assert [(await other.receive("news"))["to"] for _ in range(2)] == ["@(local/b)", "@(local/c)"]
    assert reply["type"] == "hub:broadcast_ack"
    assert reply["payload"]["deliveredCount"] == 3
    assert reply["payload"]["failedCount"] == 0
    assert reply["payload"]["queuedCount"] == 0


async def test_6_11_copy_of_a_broadcast_is_as_specified() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        sender, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")
        clock.advance(1)

        message_id = sender.send(
            "hub:broadcast",
            {"type": "news", "data": {"n": 1}, "excludeSelf": True},
            metadata={"custom": "dropped"},
            ttl=5000,
        )
        heard = await other.receive()

        assert heard["from"] == "@(local/a)"
        assert heard["to"] == "@(local/b)"
        assert heard["type"] == "news"
        assert heard["payload"] == {"n": 1}
        assert heard["correlationId"] == message_id
        assert heard["metadata"] == {"broadcast": True, "via": HUB}
        assert heard["ttl"] == 5000
        assert heard["timestamp"] == clock.now_ms()
        await sender.receive("hub:broadcast_ack")
        await sender.nothing_more()


@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_6_11_broadcast_is_acknowledged_for_both_patterns_after_the_copies(
    stage: InProcess, pattern: str
) -> None:
    sender = await stage.join("@(local/a)")

    message_id = sender.send("hub:broadcast", {"type": "news"}, pattern=pattern)

    await sender.receive("news")
    ack = await sender.receive("hub:broadcast_ack")
    assert ack["correlationId"] == ack["payload"]["messageId"] == message_id


async def test_6_11_exclude_self_skips_only_the_address_in_from(stage: InProcess) -> None:
    peer = await stage.connect()
    await peer.register("@(local/a)")
    await peer.register("@(local/b)")

    await peer.ask("hub:broadcast", {"type": "news", "excludeSelf": True}, sender="@(local/a)")

    assert (await peer.receive("news"))["to"] == "@(local/b)"
    await peer.nothing_more()


async def test_6_11_capability_limits_the_recipients(stage: InProcess) -> None:
    sender = await stage.join("@(local/a)")
    painter = await stage.join("@(local/b)", "paint", "draw")
    writer = await stage.join("@(local/c)", "write")

    reply = await sender.ask(
        "hub:broadcast", {"type": "news"}, metadata={"targetCapability": "paint"}
    )

    assert reply["payload"]["deliveredCount"] == 1
    await painter.receive("news")
    await writer.nothing_more()


async def test_6_11_broadcast_alone_does_not_fail(stage: InProcess) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:broadcast", {"type": "news"})

    assert reply["type"] == "hub:broadcast_ack"
    assert reply["payload"]["deliveredCount"] == 0


async def test_6_11_broadcast_has_no_ceiling_and_says_what_is_queued() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, crowd = await stage.connect(), await stage.connect()
        names = list(numbered("crowd", 1_205))
        for name in names:
            await crowd.register(name)

        reply = await sender.ask("hub:broadcast", {"type": "news", "data": 1})

        assert reply["payload"]["deliveredCount"] == 100
        assert reply["payload"]["queuedCount"] == 1_105
        assert reply["payload"]["failedCount"] == 0
        heard = [await crowd.receive("news") for _ in names]
        assert [message["to"] for message in heard] == names


async def test_6_11_broadcast_to_many_sockets_reaches_all() -> None:
    async with run_stage(connection_rate=0, broadcast_batch=10) as stage:
        peers = [await stage.join(name) for name in numbered("crowd", 35)]

        reply = await peers[0].ask("hub:broadcast", {"type": "news", "data": 1})

        assert reply["payload"]["deliveredCount"] == 10
        assert reply["payload"]["queuedCount"] == 25
        heard = [await peer.receive("news") for peer in peers]
        assert [message["to"] for message in heard] == list(numbered("crowd", 35))


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        [],
        "x",
        {"type": 7},
        {"type": ""},
        {"type": "hub:x"},
        {"type": "x", "excludeSelf": 1},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_6_11_structural_error_of_a_broadcast_is_answered(
    stage: InProcess, payload: object, pattern: str
) -> None:
    sender, other = await stage.connect(), await stage.join("@(local/b)")

    assert code_of(await sender.ask("hub:broadcast", payload, pattern=pattern)) == "internal_error"
    await other.nothing_more()


async def test_6_12_subscribed_names_the_topic_and_a_new_id_each_time(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    first = await peer.ask("hub:subscribe", {"topic": "news", "durable": False})
    second = await peer.ask("hub:subscribe", {"topic": "news"})

    assert first["type"] == second["type"] == "hub:subscribed"
    assert first["payload"]["topic"] == "news"
    assert first["payload"]["subscriptionId"].startswith("sub-")
    assert first["payload"]["subscriptionId"] != second["payload"]["subscriptionId"]


async def test_6_12_subscribing_again_is_idempotent(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await subscribe(peer, "news")
    await subscribe(peer, "news")

    assert await publish(peer, "news") == 1


async def test_6_12_subscription_before_registration_is_kept_and_delivers(
    stage: InProcess,
) -> None:
    peer, publisher = await stage.connect("@(local/early)"), await stage.connect()
    await subscribe(peer, "news")

    assert await publish(publisher, "news", 1) == 1
    assert (await peer.receive("note"))["to"] == "@(local/early)"
    await peer.register("@(local/late)")
    assert await publish(publisher, "news", 2) == 1
    assert (await peer.receive("note"))["payload"] == 2


@pytest.mark.parametrize("topic", ["n", "News", "a/b/c", "with space", "ünï/¢ode", "x" * 256, "*"])
async def test_6_12_any_text_up_to_256_characters_is_a_topic(stage: InProcess, topic: str) -> None:
    peer = await stage.join("@(local/a)")
    await subscribe(peer, topic)

    assert await publish(peer, topic, 1) == 1
    assert (await peer.receive("note"))["metadata"]["topic"] == topic


@pytest.mark.parametrize(
    "payload", [None, {}, [], {"topic": ""}, {"topic": 7}, {"topic": None}, {"topic": "x" * 257}]
)
async def test_6_12_subscription_without_a_usable_topic_is_refused(
    stage: InProcess, payload: object
) -> None:
    peer = await stage.connect()

    assert code_of(await peer.ask("hub:subscribe", payload)) == "internal_error"


async def test_6_13_publication_reaches_exactly_the_subscribers_publisher_included(
    stage: InProcess,
) -> None:
    publisher, hears = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    other, none = await stage.join("@(local/c)"), await stage.join("@(local/d)")
    await subscribe(publisher, "news")
    await subscribe(hears, "news")
    await subscribe(other, "News")

    assert await publish(publisher, "news", 1) == 2

    assert (await publisher.receive("note"))["to"] == "@(local/a)"
    assert (await hears.receive("note"))["to"] == "@(local/b)"
    await other.nothing_more()
    await none.nothing_more()


async def test_6_13_copy_of_a_publication_is_as_specified() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        publisher, hears = await stage.join("@(local/a)"), await stage.join("@(local/b)")
        await subscribe(hears, "prices")
        clock.advance(1)

        message_id = publisher.send(
            "hub:publish",
            {"topic": "prices", "type": "price:new", "data": {"v": 12}},
            metadata={"custom": "dropped"},
            ttl=5000,
        )
        heard = await hears.receive()

    assert heard["from"] == "@(local/a)"
    assert heard["to"] == "@(local/b)"
    assert heard["type"] == "price:new"
    assert heard["payload"] == {"v": 12}
    assert heard["correlationId"] == message_id
    assert heard["metadata"] == {"topic": "prices", "publication": True, "via": HUB}
    assert heard["ttl"] == 5000
    assert heard["timestamp"] == clock.now_ms()


@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_6_13_publication_is_answered_for_both_patterns_after_the_copies(
    stage: InProcess, pattern: str
) -> None:
    peer = await stage.join("@(local/a)")
    await subscribe(peer, "news")

    message_id = peer.send("hub:publish", {"topic": "news", "type": "note"}, pattern=pattern)

    await peer.receive("note")
    reply = await peer.receive("hub:published")
    assert reply["correlationId"] == message_id
    assert reply["payload"] == {"topic": "news", "subscriberCount": 1}


async def test_6_13_publication_before_the_subscription_is_never_seen(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    assert await publish(peer, "news", "before") == 0

    await subscribe(peer, "news")
    assert await publish(peer, "news", "after") == 1

    assert (await peer.receive("note"))["payload"] == "after"
    await peer.nothing_more()


async def test_6_13_publication_to_nobody_counts_zero(stage: InProcess) -> None:
    assert await publish(await stage.connect(), "silence") == 0


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        [],
        {"topic": "news"},
        {"type": "note"},
        {"topic": "", "type": "note"},
        {"topic": 7, "type": "note"},
        {"topic": "x" * 257, "type": "note"},
        {"topic": "news", "type": ""},
        {"topic": "news", "type": 7},
        {"topic": "news", "type": "hub:disconnect"},
    ],
    ids=lambda payload: json.dumps(payload)[:40],
)
@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_6_13_structural_error_of_a_publication_is_answered(
    stage: InProcess, payload: object, pattern: str
) -> None:
    peer, hears = await stage.connect(), await stage.join("@(local/b)")
    await subscribe(hears, "news")

    assert code_of(await peer.ask("hub:publish", payload, pattern=pattern)) == "internal_error"
    await hears.nothing_more()


@pytest.mark.parametrize("by", ["topic", "issued id", "topic as id"])
async def test_6_14_unsubscribing_works_in_all_three_ways_and_takes_one_topic_only(
    stage: InProcess, by: str
) -> None:
    peer = await stage.join("@(local/a)")
    subscription_id = await subscribe(peer, "news")
    await subscribe(peer, "other")
    payload = {
        "topic": {"topic": "news"},
        "issued id": {"subscriptionId": subscription_id},
        "topic as id": {"subscriptionId": "news"},
    }[by]

    peer.send("hub:unsubscribe", payload)

    await peer.nothing_more()
    assert await publish(peer, "news") == 0
    assert await publish(peer, "other") == 1


async def test_6_14_topic_wins_over_the_id(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await subscribe(peer, "news")
    other_id = await subscribe(peer, "other")

    peer.send("hub:unsubscribe", {"topic": "news", "subscriptionId": other_id})

    assert await publish(peer, "news") == 0
    assert await publish(peer, "other") == 1


async def test_6_14_every_id_issued_for_a_topic_ends_its_subscription(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    first_id = await subscribe(peer, "news")
    await subscribe(peer, "news")

    peer.send("hub:unsubscribe", {"subscriptionId": first_id})

    assert await publish(peer, "news") == 0


async def test_6_14_id_finds_the_subscription_whatever_the_sender(stage: InProcess) -> None:
    peer = await stage.connect()
    await peer.register("@(local/a)")
    subscription_id = await subscribe(peer, "news", sender="@(local/a)")
    await peer.register("@(local/b)")

    peer.send("hub:unsubscribe", {"subscriptionId": subscription_id}, sender="@(local/b)")

    assert await publish(peer, "news") == 0


async def test_6_14_id_of_another_session_does_nothing(stage: InProcess) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    subscription_id = await subscribe(peer, "news")

    other.send("hub:unsubscribe", {"subscriptionId": subscription_id})
    other.send("hub:unsubscribe", {"topic": "news"})

    await other.nothing_more()
    assert await publish(other, "news") == 1


@pytest.mark.parametrize("payload", [{"topic": "never"}, {"subscriptionId": "sub-never"}])
async def test_6_14_unknown_topic_is_a_silent_no_op(stage: InProcess, payload: object) -> None:
    peer = await stage.join("@(local/a)")

    peer.send("hub:unsubscribe", payload)

    await peer.nothing_more()


async def test_6_14_unsubscribing_is_confirmed_for_an_ask() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.join("@(local/a)")
        subscription_id = await subscribe(peer, "news")

        reply = await peer.ask("hub:unsubscribe", {"subscriptionId": subscription_id})

    assert reply["type"] == "hub:unsubscribed"
    assert reply["payload"] == {"topic": "news", "unsubscribedAt": clock.now_ms()}


@pytest.mark.parametrize("payload", [None, {}, [], {"topic": ""}, {"topic": 7}])
async def test_6_14_unsubscribing_from_nothing_is_refused(
    stage: InProcess, payload: object
) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:unsubscribe", payload, pattern="tell")

    assert code_of(reply) == "internal_error"
