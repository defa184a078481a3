"""Sections 6.11–6.14 and 11: broadcast, publish, and how long a subscription lasts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import HUB, Peer, code_of
from tests.support.stage import RunStage, Stage, numbered


async def subscribe(peer: Peer, topic: str, **members: Any) -> str:
    """Subscribe; the id of the subscription."""
    reply = await peer.ask("hub:subscribe", {"topic": topic}, **members)
    assert reply["type"] == "hub:subscribed", reply
    return str(reply["payload"]["subscriptionId"])


async def publish(peer: Peer, topic: str, data: Any = None) -> int:
    """Publish a note; how many copies there were."""
    reply = await peer.ask("hub:publish", {"topic": topic, "type": "note", "data": data})
    assert reply["type"] == "hub:published", reply
    return int(reply["payload"]["subscriberCount"])


@pytest.mark.also_over_sockets
@pytest.mark.parametrize(
    ("type", "topic", "metadata"),
    [
        ("hub:broadcast", None, {"broadcast": True, "via": HUB}),
        ("hub:publish", 'p/"eu"', {"topic": 'p/"eu"', "publication": True, "via": HUB}),
    ],
)
async def test_6_11_6_13_copy_is_as_specified(
    timed: Stage, clock: FakeClock, type: str, topic: str, metadata: dict[str, Any]
) -> None:
    sender, other = await timed.join("@(local/a)"), await timed.join("@(local/b)")
    await subscribe(other, 'p/"eu"')
    clock.advance(1)

    message_id = sender.send(
        type,
        {"topic": topic, "type": "price:new", "data": {"v": 12}, "excludeSelf": True},
        metadata={"custom": "dropped", "traceId": "t"},
        ttl=5000,
    )

    heard = dict(await other.receive())
    assert heard.pop("id") != message_id
    assert heard == {
        "from": "@(local/a)",
        "to": "@(local/b)",
        "type": "price:new",
        "payload": {"v": 12},
        "pattern": "tell",
        "correlationId": message_id,
        "timestamp": clock.now_ms(),
        "metadata": metadata,
        "ttl": 5000,
        "signature": None,
    }


@pytest.mark.also_over_sockets
async def test_6_11_broadcast_reaches_every_address_and_the_ack_comes_last(stage: Stage) -> None:
    sender, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await other.register("@(local/c)")
    unregistered = await stage.connect()

    for pattern in ("tell", "ask"):
        message_id = sender.send("hub:broadcast", {"type": "news"}, pattern=pattern)
        assert (await sender.receive("news"))["to"] == "@(local/a)"
        ack = await sender.receive("hub:broadcast_ack")
        assert ack["correlationId"] == message_id
        assert ack["payload"] == {
            "messageId": message_id,
            "deliveredCount": 3,
            "queuedCount": 0,
            "failedCount": 0,
        }
        assert [(await other.receive("news"))["to"] for _ in range(2)] == [
            *("@(local/b)", "@(local/c)")
        ]
    await unregistered.nothing_more()
    # Only the address in `from` is left out.
    payload = {"type": "news", "excludeSelf": True}
    await other.ask("hub:broadcast", payload, sender="@(local/c)")
    assert (await other.receive("news"))["to"] == "@(local/b)"
    await other.nothing_more()


@pytest.mark.parametrize(
    ("capability", "count"), [("draw", 2), ("plan", 1), ("x", 0), ("", 3), (None, 3)]
)
async def test_6_11_capability_limits_the_recipients_and_nobody_is_no_failure(
    stage: Stage, capability: str | None, count: int
) -> None:
    await stage.join("@(a/1)", "draw")
    await stage.join("@(a/2)", "plan", "draw")
    await stage.join("@(a/3)")
    metadata = {"targetCapability": capability, "other": 1}

    ack = await (await stage.connect()).ask("hub:broadcast", {"type": "news"}, metadata=metadata)

    assert ack["type"] == "hub:broadcast_ack"
    assert ack["payload"]["deliveredCount"] == count


async def test_6_11_broadcast_has_no_ceiling_and_says_what_is_queued(timed: Stage) -> None:
    sender, crowd = await timed.connect(), await timed.connect()
    names = list(numbered("crowd", 305))
    for name in names:
        await crowd.register(name)

    reply = await sender.ask("hub:broadcast", {"type": "news", "data": 1})

    assert reply["payload"] == {
        "messageId": reply["correlationId"],
        "deliveredCount": 100,
        "queuedCount": 205,
        "failedCount": 0,
    }
    assert [(await crowd.receive("news"))["to"] for _ in names] == names


NOT_AN_OBJECT: list[Any] = [None, [], "text", 7]
BAD: dict[str, list[Any]] = {
    "hub:broadcast": [
        *NOT_AN_OBJECT,
        {},
        *({"type": type} for type in (7, "", "hub:x", "x" * 1000)),
        {"type": "x", "excludeSelf": 1},
    ],
    "hub:publish": [
        *NOT_AN_OBJECT,
        {},
        {"type": "note"},
        *({"topic": topic, "type": "x"} for topic in ("", 7, "x" * 257, "news/+", "#", "+/x")),
        {"topic": "news"},
        *({"topic": "news", "type": type} for type in ("", 7, "hub:disconnect", "x" * 1000)),
    ],
    "hub:subscribe": [
        *NOT_AN_OBJECT,
        {},
        *({"topic": topic} for topic in ("", 7, None, "x" * 257, "news/#/de", "#/x")),
    ],
    "hub:unsubscribe": [*NOT_AN_OBJECT, {}, {"topic": ""}, {"topic": 7}],
}


@pytest.mark.parametrize("type", BAD)
async def test_6_11_6_14_structural_errors_are_answered_and_reach_nobody(
    timed: Stage, type: str
) -> None:
    sender, other = await timed.connect(), await timed.join("@(local/b)")
    await subscribe(other, "news")

    for payload in BAD[type]:
        for pattern in ("tell", "ask"):
            reply = await sender.ask(type, payload, pattern=pattern)
            assert code_of(reply) == "internal_error", payload
    aimed = {"metadata": {"targetCapability": 5}}
    assert code_of(await sender.ask("hub:broadcast", {"type": "x"}, **aimed)) == "internal_error"
    await other.nothing_more()


async def test_6_12_subscribing_again_gives_another_id_and_no_second_copy(stage: Stage) -> None:
    peer = await stage.join("@(local/a)")

    first = await peer.ask("hub:subscribe", {"topic": "news", "durable": False})
    second = await peer.ask("hub:subscribe", {"topic": "news"}, pattern="tell")

    assert first["type"] == second["type"] == "hub:subscribed"
    assert first["payload"]["topic"] == "news"
    assert first["payload"]["subscriptionId"].startswith("sub-")
    assert first["payload"]["subscriptionId"] != second["payload"]["subscriptionId"]
    assert await publish(peer, "news", 1) == 1


async def test_6_12_any_text_up_to_256_characters_is_a_topic_and_matches_exactly(
    timed: Stage,
) -> None:
    peer = await timed.join("@(local/a)")
    names = ["n", "News", "a/b/c", "with space", "ünï/¢ode", "x" * 256, "*"]
    # Wildcard characters inside a level are ordinary.
    names += ["c++", "c++/c#", "a+b/c", "issue #7", "#hash"]
    for topic in [*names, "news"]:
        await subscribe(peer, topic)

    for topic in [*names, "news"]:
        assert await publish(peer, topic, topic) == 1
        assert (await peer.receive("note"))["metadata"]["topic"] == topic
    for other in ("N", "news ", "new", "news/", "/news", "news/eu", "ｎews"):
        assert await publish(peer, other) == 0, other


@pytest.mark.also_over_sockets
async def test_6_13_publication_reaches_exactly_the_subscribers_and_the_answer_comes_last(
    stage: Stage,
) -> None:
    publisher, hears = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    other, none = await stage.join("@(local/c)"), await stage.join("@(local/d)")
    assert await publish(publisher, "news", "early") == 0
    for peer in (publisher, hears):
        await subscribe(peer, "news")
    await subscribe(other, "News")

    for pattern in ("tell", "ask"):
        payload = {"topic": "news", "type": "note"}
        message_id = publisher.send("hub:publish", payload, pattern=pattern)
        assert (await publisher.receive("note"))["to"] == "@(local/a)"
        reply = await publisher.receive("hub:published")
        assert reply["correlationId"] == message_id
        assert reply["payload"] == {"topic": "news", "subscriberCount": 2}
        assert (await hears.receive("note"))["to"] == "@(local/b)"
    await other.nothing_more()
    await none.nothing_more()


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("by", ["topic", "issued id", "earlier id", "topic as id", "both"])
async def test_6_14_unsubscribing_works_in_every_way_and_takes_one_topic_only(
    timed: Stage, clock: FakeClock, by: str
) -> None:
    peer = await timed.connect()
    await peer.register("@(local/a)")
    earlier = await subscribe(peer, "news")
    issued = await subscribe(peer, "news")
    other = await subscribe(peer, "other")
    await peer.register("@(local/b)")
    payload = {
        "topic": {"topic": "news"},
        "issued id": {"subscriptionId": issued},
        "earlier id": {"subscriptionId": earlier},
        "topic as id": {"subscriptionId": "news"},
        # The topic wins over the id.
        "both": {"topic": "news", "subscriptionId": other},
    }[by]

    # An id finds the subscription whatever the sender.
    sender = "@(local/b)" if by == "issued id" else "@(local/a)"
    reply = await peer.ask("hub:unsubscribe", payload, sender=sender)
    peer.send("hub:unsubscribe", payload, sender=sender)

    assert reply["type"] == "hub:unsubscribed"
    assert reply["payload"] == {"topic": "news", "unsubscribedAt": clock.now_ms()}
    await peer.nothing_more()
    assert await publish(peer, "news") == 0
    assert await publish(peer, "other") == 1


async def test_6_14_unknown_topics_and_those_of_others_are_a_silent_no_op(stage: Stage) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    subscription_id = await subscribe(peer, "news")

    for payload in (
        {"subscriptionId": subscription_id},
        {"topic": "news"},
        {"topic": "never"},
        {"subscriptionId": "sub-never"},
    ):
        for sender in ("@(local/a)", "@(local/b)"):
            other.send("hub:unsubscribe", payload, sender=sender)

    await other.nothing_more()
    assert await publish(other, "news") == 1


@pytest.mark.also_over_sockets
async def test_11_publications_of_one_publisher_keep_their_order_for_everybody(
    run_stage: RunStage,
) -> None:
    async with run_stage(message_rate=0, fanout_batch=3) as stage:
        publisher = await stage.connect()
        crowd = [await stage.join(address) for address in numbered("crowd", 10)]
        for peer in crowd:
            await subscribe(peer, "news")

        for number in range(50):
            publisher.send("hub:publish", {"topic": "news", "type": "note", "data": number})
            publisher.tell("@(crowd/3)", "note", number)

        for peer in crowd:
            wanted = [number for number in range(50) for _ in range(2 if peer is crowd[3] else 1)]
            assert [(await peer.receive("note"))["payload"] for _ in wanted] == wanted


@pytest.mark.parametrize(
    ("wildcard", "fits", "does_not_fit"),
    [
        ("news/+", ["news/eu", "news/"], ["news", "news/eu/de", "other/eu"]),
        ("+/eu", ["news/eu", "/eu"], ["eu", "news/us"]),
        ("news/#", ["news", "news/eu", "news/eu/de"], ["newsroom", "other"]),
        ("#", ["news", "a/b/c"], []),
        ("+/+/de", ["news/eu/de"], ["news/de", "a/b/c/de"]),
    ],
)
async def test_11_wildcards_match_by_level(
    stage: Stage, wildcard: str, fits: list[str], does_not_fit: list[str]
) -> None:
    peer = await stage.join("@(local/a)")
    await subscribe(peer, wildcard)

    counts = {topic: await publish(peer, topic) for topic in fits + does_not_fit}

    assert counts == dict.fromkeys(fits, 1) | dict.fromkeys(does_not_fit, 0)


@pytest.mark.also_over_sockets
async def test_r16_overlapping_wildcards_give_one_copy_per_address(stage: Stage) -> None:
    peer = await stage.connect()
    for address in ("@(local/a)", "@(local/b)"):
        await peer.register(address)
        for topic in ("news/eu", "news/+", "news/#", "#", "+/eu"):
            await subscribe(peer, topic)

    assert await publish(peer, "news/eu") == 2

    assert [(await peer.receive("note"))["to"] for _ in range(2)] == ["@(local/a)", "@(local/b)"]
    await peer.nothing_more()


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("type", ["hub:publish", "hub:broadcast"])
async def test_r1_all_copies_of_one_fan_out_share_one_id(stage: Stage, type: str) -> None:
    names = [*numbered("n", 5), "@(another/address-of-different-length)"]
    sender, peers = await stage.connect(), [await stage.join(name) for name in names]
    for peer in peers:
        await subscribe(peer, "news")

    ids = []
    for _ in range(2):
        await sender.ask(type, {"topic": "news", "type": "x", "data": {"n": [1]}})
        copies = [await peer.receive_text() for peer in peers]
        ids += list({json.loads(copy)["id"] for copy in copies})
        # Without the recipient they are the same bytes.
        assert len({copy.replace(json.dumps(json.loads(copy)["to"]), "") for copy in copies}) == 1

    assert len(ids) == len(set(ids)) == 2
