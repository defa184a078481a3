"""Durable topics: made, listed, deleted, made again; what publishing to them promises."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Peer, code_of
from tests.support.socket.mailboxes import ask, join_durable, keep_away
from tests.support.socket.tokens import AUTH, CREATE, session_of
from tests.support.socket.topics import (
    DLQ,
    OF_WORK,
    TOPIC,
    UNLIMITED,
    create,
    enter,
    expect,
    head_of,
    publish,
    publish_all,
    refusal,
    seqs,
    shows,
    stored,
    subscribe,
    subscription,
    working,
)
from tests.support.stage import RunStage, Stage

DEFINITIONS: list[dict[str, Any]] = [
    {},
    {"poison": "drop"},
    {"poison": "dead_letter", "deadLetter": "lost"},
    {"retention": {"ageSeconds": 60}},
    {"retention": {"ageSeconds": 60, "bytes": 1_000_000}, "poison": "block"},
]
NOTE: dict[str, Any] = {"topic": TOPIC, "type": "note", "durable": True}


async def names(peer: Peer, **payload: Any) -> list[str]:
    listed = await expect(peer, "hub:list_topics", payload, "hub:topic_list")
    return [one["topic"] for one in listed["topics"]]


async def delete(peer: Peer) -> None:
    deleted = await expect(peer, "hub:topic_delete", {"topic": TOPIC}, "hub:topic_deleted")
    assert deleted["topic"] == TOPIC


@pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
async def test_wire_creating_a_topic_again_is_a_no_op(
    stage: Stage, definition: dict[str, Any]
) -> None:
    peer, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    first = await create(peer, **definition)
    assert first["head"] == 0
    await publish(peer, "kept")

    again = await create(other, **definition)

    assert (again["epoch"], again["head"]) == (first["epoch"], 1)
    assert await stored(peer) == ["kept"]


@pytest.mark.parametrize("other", DEFINITIONS[1:], ids=str)
async def test_wire_other_definition_of_a_topic_is_a_conflict_and_changes_nothing(
    stage: Stage, other: dict[str, Any]
) -> None:
    peer = await stage.join("@(local/a)")
    first = await create(peer)
    await publish(peer, 1)

    code = await refusal(peer, "hub:topic_create", {"topic": TOPIC, "durable": True} | other)

    assert code == "topic_conflict"
    assert (await create(peer))["epoch"] == first["epoch"]
    assert (await publish(peer, 2))["seq"] == 2


@pytest.mark.also_over_sockets
async def test_wire_topics_are_listed_and_described(stage: Stage) -> None:
    peer = await stage.join("@(local/a)")
    for topic in ("orders/eu", "orders/us", "prices/eu", "orders/asia"):
        created = await create(peer, topic)
    await publish_all(peer, range(3), topic)
    await peer.ask("hub:subscribe", {"topic": "orders/plain"})

    info = await expect(peer, "hub:topic_info", {"topic": topic}, "hub:topic_info_response")
    assert (info["topic"], info["epoch"], info["head"]) == (topic, created["epoch"], 3)
    orders = ["orders/asia", "orders/eu", "orders/us"]
    assert sorted(await names(peer)) == [*orders, "prices/eu"]
    assert sorted(await names(peer, pattern="orders/*")) == orders
    assert await names(peer, pattern="prices") == []
    pages = [await names(peer, pattern="orders/*", limit=2, offset=at) for at in (0, 2, 4)]
    assert [len(page) for page in pages] == [2, 1, 0]
    assert sorted(pages[0] + pages[1]) == orders


@pytest.mark.also_over_sockets
async def test_wire_deleted_topic_is_unknown_and_made_again_begins_a_new_epoch(
    stage: Stage,
) -> None:
    peer, consumer = await working(stage, 3)
    old = consumer.joined["epoch"]
    await consumer.take_and_ack(3)

    await delete(peer)

    for type, payload in [
        ("hub:topic_info", {"topic": TOPIC}),
        ("hub:topic_delete", {"topic": TOPIC}),
        ("hub:replay", {"topic": TOPIC, "fromSeq": 1}),
        ("hub:subscribe", subscription()),
    ]:
        assert await refusal(peer, type, payload) == "unknown_topic"
    assert await refusal(peer, "hub:sub_info", OF_WORK) in ("unknown_topic", "unknown_subscription")
    assert await names(peer) == []
    new = await create(peer)
    assert new["epoch"] != old
    published = await publish(peer, "first")
    assert (published["epoch"], published["seq"]) == (new["epoch"], 1)
    assert await stored(peer) == ["first"]
    # Its consumer was told, and may join the new one on the same session.
    joined = await consumer.peer.ask("hub:subscribe", subscription())
    assert joined["payload"]["epoch"] == new["epoch"]
    await consumer.peer.receive("hub:unsubscribed")
    assert (await consumer.peer.receive("note"))["metadata"]["delivery"]["epoch"] == new["epoch"]


async def test_wire_position_of_another_epoch_is_answered_with_the_current_one(
    stage: Stage,
) -> None:
    peer = await stage.join("@(local/a)")
    old = (await create(peer))["epoch"]
    await delete(peer)
    new = (await create(peer))["epoch"]
    await publish(peer, 1)
    consumer = await enter(stage, "b")
    await consumer.next()
    settle = {"subscriptionId": consumer.id, "epoch": old, "seq": 1, "ms": 1_000}

    replies = [
        *[await consumer.peer.ask(f"hub:{how}", settle) for how in ("ack", "nack", "term")],
        await consumer.peer.ask("hub:extend", settle),
        await consumer.peer.ask("hub:replay", {"topic": TOPIC, "epoch": old, "fromSeq": 1}),
        await peer.ask(
            "hub:subscribe", subscription(name="other", resume={"epoch": old, "seq": 1})
        ),
    ]

    for reply in replies:
        assert code_of(reply) == "wrong_epoch"
        assert reply["payload"]["details"]["current"] == new
    await consumer.shows(floor=0, inFlight=1, lag=1)
    assert (await consumer.settle("hub:ack", epoch=new, seq=1))["accepted"] == 1


@pytest.mark.parametrize("is_plain", [False, True], ids=["no topic", "plain topic"])
async def test_r24_unknown_topic_is_refused_and_not_made(stage: Stage, is_plain: bool) -> None:
    peer = await stage.join("@(local/a)")
    if is_plain:
        await expect(peer, "hub:subscribe", {"topic": TOPIC}, "hub:subscribed")

    for type, payload in [
        ("hub:topic_info", {}),
        ("hub:topic_delete", {}),
        ("hub:replay", {"fromSeq": 1}),
        ("hub:subscribe", subscription()),
        ("hub:seek", OF_WORK | {"to": "earliest"}),
        ("hub:redrive", {"all": True}),
    ]:
        reply = await peer.ask(type, payload | {"topic": TOPIC})
        assert code_of(reply) == "unknown_topic", type
        assert reply["payload"]["retryable"] is False

    published = await expect(peer, "hub:publish", {"topic": TOPIC, "type": "note"}, "hub:published")
    assert published == {"topic": TOPIC, "subscriberCount": int(is_plain)}
    if is_plain:
        assert (await peer.receive("note"))["metadata"].keys() == {"topic", "publication", "via"}
    assert await names(peer) == []


async def test_r24_durable_publish_makes_its_topic_with_defaults(stage: Stage) -> None:
    peer = await stage.join("@(local/a)")

    published = await publish(peer, "first")

    created = await create(peer)
    assert (created["epoch"], created["head"]) == (published["epoch"], 1)


async def test_r24_without_auto_create_a_durable_publish_needs_its_topic(
    run_stage: RunStage,
) -> None:
    async with run_stage(topics={"auto_create": False}) as stage:
        peer = await stage.join("@(local/a)")

        assert await refusal(peer, "hub:publish", NOTE, id="kept") == "unknown_topic"
        assert await names(peer) == []
        await create(peer)
        # A refusal is not remembered: the same id may be tried again.
        published = await publish(peer, members={"id": "kept"})
        assert (published["seq"], "duplicate" in published) == (1, False)


async def test_wire_topic_may_become_durable_while_it_is_heard(stage: Stage) -> None:
    peer, listener = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    await expect(peer, "hub:publish", {"topic": TOPIC, "type": "note"}, "hub:published")
    assert "delivery" not in (await listener.receive("note"))["metadata"]

    await create(peer)
    await expect(peer, "hub:publish", {"topic": TOPIC, "type": "note"}, "hub:published")

    assert (await listener.receive("note"))["metadata"]["delivery"]["seq"] == 1
    assert await head_of(peer) == 1


# Permissions.


async def test_r24_with_authentication_making_topics_is_a_permission(run_stage: RunStage) -> None:
    async with run_stage(auth=AUTH) as stage:
        writer = await session_of(stage, "writer", publish=["*"], subscribe=["*"])
        owner = await session_of(stage, "owner", **{"publish": ["*"], CREATE: ["orders*"]})
        made = {"topic": TOPIC, "durable": True}

        assert await refusal(writer, "hub:publish", NOTE) == "unauthorized"
        assert await refusal(writer, "hub:topic_create", made) == "unauthorized"
        elsewhere = NOTE | {"topic": "prices"}
        assert await refusal(owner, "hub:publish", elsewhere) == "unauthorized"

        assert (await publish(owner, 1))["seq"] == 1
        assert (await publish(writer, 2))["seq"] == 2


NEEDS_PERMISSION: list[tuple[str, dict[str, Any]]] = [
    ("hub:topic_create", {"topic": "new", "durable": True}),
    ("hub:topic_delete", {"topic": TOPIC}),
    ("hub:topic_info", {"topic": TOPIC}),
    ("hub:publish", NOTE),
    ("hub:publish", {"topic": TOPIC, "type": "note"}),
    ("hub:subscribe", subscription(name="other")),
    ("hub:replay", {"topic": TOPIC, "fromSeq": 1}),
    ("hub:seek", OF_WORK | {"to": "latest"}),
    ("hub:ack", OF_WORK | {"seq": 1}),
    ("hub:sub_info", OF_WORK),
    ("hub:sub_pause", OF_WORK),
    ("hub:sub_resume", OF_WORK),
    ("hub:sub_delete", OF_WORK),
    ("hub:list_subs", {"topic": TOPIC}),
    ("hub:redrive", {"topic": DLQ, "all": True}),
    ("hub:purge", {"topic": TOPIC, "all": True}),
]


async def test_5_token_that_permits_nothing_permits_nothing_durable_and_tells_nothing(
    run_stage: RunStage,
) -> None:
    async with run_stage(auth=AUTH) as stage:
        everything = {"publish": ["*"], "subscribe": ["*"], CREATE: ["*"]}
        owner = await session_of(stage, "owner", **everything)
        await create(owner, poison="dead_letter")
        consumer = await subscribe(owner)
        await publish(owner, 1)
        await consumer.term((await consumer.next()).seq)
        stranger = await session_of(stage, "stranger", subscribe=["prices"])

        for type, payload in NEEDS_PERMISSION:
            for topic in (payload["topic"], "no-such-topic"):
                given = payload | {"topic": topic}
                assert await refusal(stranger, type, given) == "unauthorized", type

        await shows(owner, paused=False, floor=1, head=1)


# Publishing.


@pytest.mark.parametrize(
    ("sync", "durability"), [("always", "fsync"), ("interval", "interval"), ("os", "os")]
)
async def test_wire_hub_and_receipts_say_how_durable_it_is(
    run_stage: RunStage, sync: str, durability: str
) -> None:
    async with run_stage(log={"sync": sync}) as stage:
        peer = await stage.dial()
        capabilities = (await peer.connect())["payload"]["capabilities"]
        assert (capabilities["durable"], capabilities["durability"]) == (True, durability)
        assert capabilities["supportsBackpressure"] is True
        assert capabilities["supportedContentTypes"] == ["application/json"]
        epoch = (await create(peer))["epoch"]

        receipts = [await publish(peer, number) for number in range(5)]

        for seq, receipt in enumerate(receipts, 1):
            assert (receipt["epoch"], receipt["seq"]) == (epoch, seq)
            assert receipt["durability"] == durability
            assert "duplicate" not in receipt
        await join_durable(stage, "@(local/here)")
        await keep_away(stage, "@(local/away)")
        acks = [await ask(peer, f"@(local/{name})") for name in ("here", "away")]
        assert [ack["status"] for ack in acks] == ["delivered", "queued"]
        assert [ack["durability"] for ack in acks] == [durability] * 2


@pytest.mark.parametrize("pattern", ["tell", "ask"])
@pytest.mark.parametrize("durable", [{}, {"durable": True}], ids=["silent", "explicit"])
async def test_wire_whoever_publishes_to_a_durable_topic_publishes_durably(
    stage: Stage, pattern: str, durable: dict[str, bool]
) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    message = {"topic": TOPIC, "type": "note", "data": 1} | durable

    published = await expect(peer, "hub:publish", message, "hub:published", pattern=pattern)

    assert published["seq"] == 1
    assert await stored(peer) == [1]


@pytest.mark.also_over_sockets
async def test_wire_copy_is_the_message_with_topic_and_position(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    before = stage.clock.now_ms()

    members = {"ttl": 60_000, "metadata": {"custom": "dropped"}}
    await publish(publisher, {"n": 1}, type="order:placed", members=members)
    heard = (await consumer.next()).envelope

    assert (heard["from"], heard["to"]) == ("@(local/a)", "@(local/b)")
    assert (heard["type"], heard["payload"], heard["ttl"]) == ("order:placed", {"n": 1}, 60_000)
    assert heard["metadata"].keys() == {"topic", "publication", "via", "delivery"}
    delivery = heard["metadata"]["delivery"]
    assert (delivery["subscription"], delivery["seq"]) == ("work", 1)
    assert delivery["epoch"] == consumer.joined["epoch"]
    assert (delivery["attempt"], delivery["redelivered"]) == (1, False)
    # The hub reads its clock once per turn, which may have begun a little earlier.
    assert before - 1_000 <= delivery["publishedAt"] <= stage.clock.now_ms()


async def test_wire_key_and_headers_travel_with_the_message(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    listener = await stage.join("@(local/c)")
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    headers = {"traceparent": "00-1-2-3", "empty": "", "🦉": "\n"}

    await publish(publisher, 1, key="customer-7", headers=headers)

    for heard in ((await consumer.next()).envelope, await listener.receive("note")):
        assert heard["metadata"]["key"] == "customer-7"
        assert heard["metadata"]["headers"] == headers


async def test_wire_payloads_arrive_as_they_were_sent(stage: Stage) -> None:
    blobs: list[Any] = [
        *(None, True, 0, -1.5e-7, 9_007_199_254_740_991, ""),
        '🦉 \u2028 \\ " \u0000 \ud7ff',
        *([], {}, [[[[]]]], {"a": {"b": [1, None, "c"]}}),
        {"": "empty key", "delivery": {"seq": 99}},
        *("x" * size for size in (1, 70_000, 500_000, 900_000)),
    ]
    publisher, consumer = await working(stage, window=2)

    await publish_all(publisher, blobs)
    heard = await consumer.take_and_ack(len(blobs))

    assert [json.dumps(one.payload) for one in heard] == [json.dumps(blob) for blob in blobs]
    too_large = NOTE | {"data": "x" * 2**20}
    assert await refusal(publisher, "hub:publish", too_large) == "message_too_large"
    assert await head_of(publisher) == len(blobs)


@pytest.mark.parametrize("pattern", [TOPIC, "+", "#"])
async def test_wire_plain_subscriber_hears_live_copies_with_nothing_to_settle(
    stage: Stage, pattern: str
) -> None:
    publisher, listener = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    epoch = (await create(publisher))["epoch"]
    await publish(publisher, "missed")
    reply = await listener.ask("hub:subscribe", {"topic": pattern})

    await publish(publisher, "heard")
    heard = await listener.receive("note")

    assert (heard["payload"], heard["correlationId"]) == ("heard", None)
    assert heard["metadata"]["topic"] == TOPIC
    delivery = heard["metadata"]["delivery"]
    assert (delivery["epoch"], delivery["seq"]) == (epoch, 2)
    assert "publishedAt" in delivery
    assert not delivery.keys() & {"id", "attempt", "subscription"}
    settle = {"subscriptionId": reply["payload"]["subscriptionId"], "seq": 2}
    assert await refusal(listener, "hub:ack", settle) in ("not_a_consumer", "unknown_subscription")


async def test_wire_copies_of_one_publish_share_an_id_and_repeats_keep_it(stage: Stage) -> None:
    publisher, first = await working(stage, backoffMs=10, backoffCapMs=20)
    second, listener = await enter(stage, "c", name="c"), await stage.join("@(local/d)")
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    await publish(publisher, 1)

    copies = [await first.next(), await second.next()]
    await first.nack(1)
    again = await first.next()

    live = await listener.receive("note")
    assert {one.envelope["id"] for one in (*copies, again)} == {live["id"]}
    assert again.id != copies[0].id
    assert again.attempt == 2


@pytest.mark.also_over_sockets
async def test_rd_l1_concurrent_producers_share_one_dense_order(run_stage: RunStage) -> None:
    async with run_stage(**UNLIMITED) as stage:
        producers = [await stage.join(f"@(local/p-{number})") for number in range(4)]
        await create(producers[0])
        consumers = [await enter(stage, f"c-{number}", name=f"sub-{number}") for number in range(2)]
        listener = await stage.join("@(local/l)")
        await listener.ask("hub:subscribe", {"topic": TOPIC})

        given = await asyncio.gather(
            *(
                publish_all(peer, [[number, turn] for turn in range(50)])
                for number, peer in enumerate(producers)
            )
        )

        assert sorted(seq for one in given for seq in one) == list(range(1, 201))
        assert all(one == sorted(one) for one in given)
        order = await stored(producers[0])
        for number in range(4):
            assert [turn for owner, turn in order if owner == number] == list(range(50))
        for consumer in consumers:
            assert [one.payload for one in await consumer.take_and_ack(200)] == order
        assert [(await listener.receive("note"))["payload"] for _ in range(200)] == order


# Ids.


async def test_r6_same_id_of_a_sender_is_published_once_and_answered_alike(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    other = await stage.join("@(local/c)")

    first = await publish(publisher, "once", members={"id": "same"})
    await publish(other, "of another", members={"id": "same"})
    back = await stage.connect("@(local/a)")
    for peer in (publisher, back):
        again = await publish(peer, "once", members={"id": "same"})
        assert again["duplicate"] is True
        assert (again["epoch"], again["seq"]) == (first["epoch"], first["seq"])

    assert await stored(publisher) == ["once", "of another"]
    assert seqs(await consumer.take_and_ack(2)) == [1, 2]
    await consumer.quiet()


async def test_r6_copies_of_one_publish_in_one_breath_are_one(stage: Stage) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)

    with stage.held_disk() as disk:
        disk.hold()
        for _ in range(10):
            publisher.send("hub:publish", NOTE, id="same", pattern="ask")
        await disk.wait()
        disk.release()
        receipts = [(await publisher.receive("hub:published"))["payload"]]
    marker = publisher.send("hub:heartbeat")
    # One id, one answer at least; more of them say the same.
    while (reply := await publisher.receive())["correlationId"] != marker:
        receipts.append(reply["payload"])

    assert {receipt["seq"] for receipt in receipts} == {1}
    assert sum("duplicate" not in receipt for receipt in receipts) == 1
    assert await head_of(publisher) == 1


async def test_r6_id_is_known_for_its_window_and_looked_up_before_the_time_to_live(
    run_stage: RunStage,
) -> None:
    clock = FakeClock()
    async with run_stage(clock, dedup={"window_s": 60}) as stage:
        peer = await stage.join("@(local/a)")
        await create(peer)
        sent = {"id": "same", "timestamp": clock.now_ms(), "ttl": 1_000}
        await publish(peer, 1, members=sent)

        await stage.pass_time(59)
        assert (await publish(peer, 1, members=sent))["duplicate"] is True
        await stage.pass_time(62)
        later = await publish(peer, 1, members={"id": "same"})

        assert (later["seq"], "duplicate" in later) == (2, False)


async def test_r12_publish_that_came_too_late_is_refused_and_may_be_sent_anew(
    stage: Stage,
) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    late = {"id": "same", "timestamp": stage.clock.now_ms() - 5_000, "ttl": 1_000}

    assert await refusal(peer, "hub:publish", NOTE, **late) == "message_expired"
    receipt = await publish(peer, members={"id": "same"})

    assert (receipt["seq"], "duplicate" in receipt) == (1, False)
