"""Durable topics: made, listed, deleted, made again; who may make one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, code_of, run_stage
from tests.support.socket.tokens import AUTH, CREATE, session_of
from tests.support.socket.topics import (
    TOPIC,
    create,
    enter,
    expect,
    head_of,
    publish,
    publish_all,
    refusal,
    stored,
    sub_info,
    subscribe,
    subscription,
)

DEFINITIONS: list[dict[str, Any]] = [
    {},
    {"poison": "drop"},
    {"poison": "dead_letter", "deadLetter": "lost"},
    {"retention": {"ageSeconds": 60}},
    {"retention": {"ageSeconds": 60, "bytes": 1_000_000}, "poison": "block"},
]


async def test_wire_new_topic_has_an_epoch_and_an_empty_head(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    created = await create(peer)

    assert created["head"] == 0


@pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
async def test_wire_creating_a_topic_again_is_a_no_op(
    stage: InProcess, definition: dict[str, Any]
) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    first = await create(peer, **definition)
    await publish(peer, "kept")

    again = await create(other, **definition)

    assert again["epoch"] == first["epoch"]
    assert again["head"] == 1
    assert await stored(peer) == ["kept"]


@pytest.mark.parametrize("other", DEFINITIONS[1:], ids=str)
async def test_wire_other_definition_of_a_topic_is_a_conflict_and_changes_nothing(
    stage: InProcess, other: dict[str, Any]
) -> None:
    peer = await stage.join("@(local/a)")
    first = await create(peer)
    await publish(peer, 1)

    code = await refusal(peer, "hub:topic_create", {"topic": TOPIC, "durable": True} | other)

    assert code == "topic_conflict"
    assert (await create(peer))["epoch"] == first["epoch"]
    assert (await publish(peer, 2))["seq"] == 2


async def test_wire_topic_info_tells_epoch_and_head(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    epoch = (await create(peer))["epoch"]
    await publish_all(peer, range(3))

    info = await expect(peer, "hub:topic_info", {"topic": TOPIC}, "hub:topic_info_response")

    assert info["topic"] == TOPIC
    assert info["epoch"] == epoch
    assert info["head"] == 3


async def names(peer: Peer, **payload: Any) -> list[str]:
    listed = await expect(peer, "hub:list_topics", payload, "hub:topic_list")
    return [one["topic"] for one in listed["topics"]]


async def test_wire_list_topics_pages_through_what_a_pattern_fits(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    for topic in ("orders/eu", "orders/us", "prices/eu", "orders/asia"):
        await create(peer, topic)
    await peer.ask("hub:subscribe", {"topic": "orders/plain"})

    assert sorted(await names(peer)) == ["orders/asia", "orders/eu", "orders/us", "prices/eu"]
    assert sorted(await names(peer, pattern="orders/*")) == [
        "orders/asia",
        "orders/eu",
        "orders/us",
    ]
    assert await names(peer, pattern="prices") == []
    pages = [await names(peer, pattern="orders/*", limit=2, offset=at) for at in (0, 2, 4)]
    assert [len(page) for page in pages] == [2, 1, 0]
    assert sorted(pages[0] + pages[1]) == ["orders/asia", "orders/eu", "orders/us"]


async def test_wire_deleted_topic_is_unknown_with_all_its_subscriptions(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    consumer = await enter(stage, "b")
    await publish(peer, 1)
    await consumer.next()

    deleted = await expect(peer, "hub:topic_delete", {"topic": TOPIC}, "hub:topic_deleted")

    assert deleted["topic"] == TOPIC
    of_sub = {"topic": TOPIC, "subscription": "work"}
    assert await refusal(peer, "hub:topic_info", {"topic": TOPIC}) == "unknown_topic"
    assert await refusal(peer, "hub:topic_delete", {"topic": TOPIC}) == "unknown_topic"
    assert await refusal(peer, "hub:replay", {"topic": TOPIC, "fromSeq": 1}) == "unknown_topic"
    assert await refusal(peer, "hub:subscribe", subscription()) == "unknown_topic"
    assert await refusal(peer, "hub:sub_info", of_sub) in (
        "unknown_topic",
        "unknown_subscription",
    )
    assert await names(peer) == []


async def test_wire_topic_made_again_begins_a_new_epoch_at_seq_1(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    old = (await create(peer))["epoch"]
    await enter(stage, "b")
    await publish_all(peer, range(3))
    await expect(peer, "hub:topic_delete", {"topic": TOPIC}, "hub:topic_deleted")

    new = await create(peer)

    assert new["epoch"] != old
    assert new["head"] == 0
    published = await publish(peer, "first")
    assert (published["epoch"], published["seq"]) == (new["epoch"], 1)
    assert await stored(peer) == ["first"]
    consumer = await enter(stage, "c")
    assert consumer.joined["epoch"] == new["epoch"]
    assert (await consumer.next()).payload == "first"


async def test_wire_position_of_another_epoch_is_answered_with_the_current_one(
    stage: InProcess,
) -> None:
    peer = await stage.join("@(local/a)")
    old = (await create(peer))["epoch"]
    await expect(peer, "hub:topic_delete", {"topic": TOPIC}, "hub:topic_deleted")
    new = (await create(peer))["epoch"]
    await publish(peer, 1)
    consumer = await enter(stage, "b")
    await consumer.next()
    settle = {"subscriptionId": consumer.id, "epoch": old, "seq": 1}

    replies = [
        await consumer.peer.ask("hub:ack", settle),
        await consumer.peer.ask("hub:nack", settle),
        await consumer.peer.ask("hub:extend", settle | {"ms": 1000}),
        await consumer.peer.ask("hub:term", settle),
        await consumer.peer.ask("hub:replay", {"topic": TOPIC, "epoch": old, "fromSeq": 1}),
        await peer.ask(
            "hub:subscribe", subscription(name="other", resume={"epoch": old, "seq": 1})
        ),
    ]

    for reply in replies:
        assert code_of(reply) == "wrong_epoch"
        assert reply["payload"]["details"]["current"] == new
    info = await consumer.info()
    assert (info["floor"], info["inFlight"], info["lag"]) == (0, 1, 1)
    assert (await consumer.settle("hub:ack", epoch=new, seq=1))["accepted"] == 1


async def test_wire_consumer_of_a_deleted_topic_lives_on_and_may_join_the_new_one(
    stage: InProcess,
) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    consumer = await enter(stage, "b")
    await publish(peer, "old")
    await consumer.take_and_ack(1)

    await expect(peer, "hub:topic_delete", {"topic": TOPIC}, "hub:topic_deleted")
    await create(peer)
    await publish(peer, "new")
    heard = await consumer.peer.ask("hub:subscribe", subscription())

    assert heard["type"] == "hub:subscribed", heard
    while (message := await consumer.peer.receive())["type"] != "note":
        assert message["type"] == "hub:unsubscribed", message
    assert message["payload"] == "new"
    assert message["metadata"]["delivery"]["epoch"] == heard["payload"]["epoch"]


ABOUT_A_TOPIC: list[tuple[str, dict[str, Any]]] = [
    ("hub:topic_info", {}),
    ("hub:topic_delete", {}),
    ("hub:replay", {"fromSeq": 1}),
    ("hub:subscribe", subscription()),
    ("hub:seek", {"subscription": "work", "to": "earliest"}),
    ("hub:redrive", {"all": True}),
]


@pytest.mark.parametrize("is_plain", [False, True], ids=["no topic", "plain topic"])
async def test_wire_unknown_topic_is_refused_and_not_made(stage: InProcess, is_plain: bool) -> None:
    peer = await stage.join("@(local/a)")
    if is_plain:
        await peer.ask("hub:subscribe", {"topic": TOPIC})

    for type, payload in ABOUT_A_TOPIC:
        reply = await peer.ask(type, payload | {"topic": TOPIC})

        assert code_of(reply) == "unknown_topic", type
        assert reply["payload"]["retryable"] is False
    assert await names(peer) == []


async def test_r24_durable_publish_makes_its_topic_with_defaults(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    published = await publish(peer, "first")

    assert published["seq"] == 1
    created = await create(peer)
    assert created["epoch"] == published["epoch"]
    assert created["head"] == 1


async def test_r24_without_auto_create_a_durable_publish_needs_its_topic() -> None:
    async with run_stage(topics={"auto_create": False}) as stage:
        peer = await stage.join("@(local/a)")
        message = {"topic": TOPIC, "type": "note", "durable": True}

        assert await refusal(peer, "hub:publish", message, id="kept") == "unknown_topic"
        assert await names(peer) == []
        await create(peer)
        # A refusal is not remembered: the same id may be tried again.
        published = await publish(peer, members={"id": "kept"})
        assert published["seq"] == 1
        assert "duplicate" not in published


async def test_r24_subscribing_never_makes_a_topic_and_plain_topics_stay_plain(
    stage: InProcess,
) -> None:
    peer = await stage.join("@(local/a)")

    assert await refusal(peer, "hub:subscribe", subscription()) == "unknown_topic"
    await expect(peer, "hub:subscribe", {"topic": TOPIC}, "hub:subscribed")
    published = await expect(peer, "hub:publish", {"topic": TOPIC, "type": "note"}, "hub:published")

    assert published == {"topic": TOPIC, "subscriberCount": 1}
    assert (await peer.receive("note"))["metadata"].keys() == {"topic", "publication", "via"}
    assert await names(peer) == []


async def test_wire_topic_may_become_durable_while_it_is_heard(stage: InProcess) -> None:
    peer, listener = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    await expect(peer, "hub:publish", {"topic": TOPIC, "type": "note"}, "hub:published")
    assert "delivery" not in (await listener.receive("note"))["metadata"]

    await create(peer)
    await expect(peer, "hub:publish", {"topic": TOPIC, "type": "note"}, "hub:published")

    assert (await listener.receive("note"))["metadata"]["delivery"]["seq"] == 1
    assert await head_of(peer) == 1


async def test_r24_with_authentication_making_topics_is_a_permission() -> None:
    async with run_stage(auth=AUTH) as stage:
        writer = await session_of(stage, "writer", publish=["*"], subscribe=["*"])
        owner = await session_of(stage, "owner", **{"publish": ["*"], CREATE: ["orders*"]})
        message = {"topic": TOPIC, "type": "note", "durable": True}
        made = {"topic": TOPIC, "durable": True}

        assert await refusal(writer, "hub:publish", message) == "unauthorized"
        assert await refusal(writer, "hub:topic_create", made) == "unauthorized"
        elsewhere = message | {"topic": "prices"}
        assert await refusal(owner, "hub:publish", elsewhere) == "unauthorized"

        assert (await publish(owner, 1))["seq"] == 1
        assert (await publish(writer, 2))["seq"] == 2


OF_WORK = {"topic": TOPIC, "subscription": "work"}
NEEDS_PERMISSION: list[tuple[str, dict[str, Any]]] = [
    ("hub:topic_create", {"topic": "new", "durable": True}),
    ("hub:topic_delete", {"topic": TOPIC}),
    ("hub:topic_info", {"topic": TOPIC}),
    ("hub:publish", {"topic": TOPIC, "type": "note", "durable": True}),
    ("hub:publish", {"topic": TOPIC, "type": "note"}),
    ("hub:subscribe", subscription(name="other")),
    ("hub:replay", {"topic": TOPIC, "fromSeq": 1}),
    ("hub:seek", OF_WORK | {"to": "latest"}),
    ("hub:sub_info", OF_WORK),
    ("hub:sub_pause", OF_WORK),
    ("hub:sub_resume", OF_WORK),
    ("hub:sub_delete", OF_WORK),
    ("hub:redrive", {"topic": f"{TOPIC}.dlq", "all": True}),
]


async def test_5_token_that_permits_nothing_permits_nothing_durable() -> None:
    async with run_stage(auth=AUTH) as stage:
        everything = {"publish": ["*"], "subscribe": ["*"], CREATE: ["*"]}
        owner = await session_of(stage, "owner", **everything)
        await create(owner, poison="dead_letter")
        consumer = await subscribe(owner)
        await publish(owner, 1)
        await consumer.term((await consumer.next()).seq)
        stranger = await session_of(stage, "stranger")

        for type, payload in NEEDS_PERMISSION:
            assert await refusal(stranger, type, payload) == "unauthorized", type

        info = await sub_info(owner)
        assert (info["paused"], info["floor"], info["head"]) == (False, 1, 1)
