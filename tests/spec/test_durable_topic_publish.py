"""Publishing to a durable topic: the receipt, the copies, once for each id."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, code_of, run_stage
from tests.support.socket.topics import (
    TOPIC,
    UNLIMITED,
    create,
    enter,
    expect,
    head_of,
    pass_time,
    publish,
    publish_all,
    refusal,
    seqs,
    stored,
)

BLOBS: list[Any] = [
    None,
    True,
    0,
    -1.5e-7,
    9_007_199_254_740_991,
    "",
    '🦉 \u2028 \\ " \u0000 \ud7ff',
    [],
    {},
    [[[[]]]],
    {"a": {"b": [1, None, "c"]}},
    {"": "empty key", "delivery": {"seq": 99}},
    "x" * 70_000,
    *range(7),
]


@pytest.mark.parametrize(
    ("sync", "durability"), [("always", "fsync"), ("interval", "interval"), ("os", "os")]
)
async def test_wire_receipt_names_epoch_dense_seq_and_durability(
    sync: str, durability: str
) -> None:
    async with run_stage(log={"sync": sync}) as stage:
        peer = await stage.join("@(local/a)")
        epoch = (await create(peer))["epoch"]

        receipts = [await publish(peer, number) for number in range(5)]

        assert [receipt["seq"] for receipt in receipts] == [1, 2, 3, 4, 5]
        assert {receipt["epoch"] for receipt in receipts} == {epoch}
        assert {receipt["durability"] for receipt in receipts} == {durability}
        assert not any("duplicate" in receipt for receipt in receipts)


async def test_wire_session_is_told_that_the_hub_is_durable(stage: InProcess) -> None:
    peer = await stage.dial()

    capabilities = (await peer.connect())["payload"]["capabilities"]

    assert capabilities["durable"] is True
    assert capabilities["durability"] == "fsync"


@pytest.mark.parametrize("pattern", ["tell", "ask"])
@pytest.mark.parametrize("durable", [{}, {"durable": True}], ids=["silent", "explicit"])
async def test_wire_whoever_publishes_to_a_durable_topic_publishes_durably(
    stage: InProcess, pattern: str, durable: dict[str, bool]
) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    message = {"topic": TOPIC, "type": "note", "data": 1} | durable

    published = await expect(peer, "hub:publish", message, "hub:published", pattern=pattern)

    assert published["seq"] == 1
    assert await stored(peer) == [1]


async def test_wire_copy_is_the_message_with_topic_and_position(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    epoch = (await create(publisher))["epoch"]
    consumer = await enter(stage, "b")
    before = stage.clock.now_ms()

    await publish(
        publisher,
        {"n": 1},
        type="order:placed",
        members={"ttl": 60_000, "metadata": {"custom": "dropped"}},
    )
    heard = (await consumer.next()).envelope

    assert heard["from"] == "@(local/a)"
    assert heard["to"] == "@(local/b)"
    assert heard["type"] == "order:placed"
    assert heard["payload"] == {"n": 1}
    assert heard["ttl"] == 60_000
    assert heard["metadata"]["topic"] == TOPIC
    assert "custom" not in heard["metadata"]
    assert "key" not in heard["metadata"]
    assert "headers" not in heard["metadata"]
    assert "deadLetter" not in heard["metadata"]
    delivery = heard["metadata"]["delivery"]
    assert (delivery["subscription"], delivery["epoch"], delivery["seq"]) == ("work", epoch, 1)
    assert (delivery["attempt"], delivery["redelivered"]) == (1, False)
    assert before <= delivery["publishedAt"] <= stage.clock.now_ms()


async def test_wire_key_and_headers_travel_with_the_message(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer, listener = await enter(stage, "b"), await stage.join("@(local/c)")
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    headers = {"traceparent": "00-1-2-3", "empty": "", "🦉": "\n"}

    await publish(publisher, 1, key="customer-7", headers=headers)

    for heard in ((await consumer.next()).envelope, await listener.receive("note")):
        assert heard["metadata"]["key"] == "customer-7"
        assert heard["metadata"]["headers"] == headers


async def test_wire_payloads_arrive_as_they_were_sent(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")

    await publish_all(publisher, BLOBS)
    heard = await consumer.take_and_ack(len(BLOBS))

    assert [json.dumps(one.payload) for one in heard] == [json.dumps(blob) for blob in BLOBS]
    assert seqs(heard) == list(range(1, len(BLOBS) + 1))


async def test_wire_plain_subscriber_hears_live_copies_with_nothing_to_settle(
    stage: InProcess,
) -> None:
    publisher, listener = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    epoch = (await create(publisher))["epoch"]
    await publish(publisher, "missed")
    reply = await listener.ask("hub:subscribe", {"topic": TOPIC})
    consumer = await enter(stage, "c", start="latest")

    await publish(publisher, "heard")
    heard = await listener.receive("note")

    assert heard["payload"] == "heard"
    assert heard["correlationId"] is None
    assert heard["metadata"]["topic"] == TOPIC
    delivery = heard["metadata"]["delivery"]
    assert delivery.keys() >= {"epoch", "seq", "publishedAt"}
    assert (delivery["epoch"], delivery["seq"]) == (epoch, 2)
    assert not delivery.keys() & {"id", "attempt", "subscription"}
    settle = {"subscriptionId": reply["payload"]["subscriptionId"], "seq": 2}
    assert await refusal(listener, "hub:ack", settle) in (
        "not_a_consumer",
        "unknown_subscription",
    )
    assert (await consumer.next()).payload == "heard"
    assert (await consumer.info())["inFlight"] == 1


async def test_wire_wildcards_hear_durable_topics_too(stage: InProcess) -> None:
    publisher, listener = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await create(publisher, "orders/eu")
    await listener.ask("hub:subscribe", {"topic": "orders/+"})

    published = await publish(publisher, 1, "orders/eu")

    heard = await listener.receive("note")
    assert heard["metadata"]["topic"] == "orders/eu"
    assert heard["metadata"]["delivery"]["seq"] == published["seq"] == 1


async def test_wire_live_copies_of_a_durable_topic_come_in_order_of_seq(stage: InProcess) -> None:
    publishers = [await stage.join(f"@(local/p-{number})") for number in range(4)]
    listeners = [await stage.join(f"@(local/l-{number})") for number in range(3)]
    await create(publishers[0])
    for listener in listeners:
        await listener.ask("hub:subscribe", {"topic": TOPIC})

    await asyncio.gather(*(publish_all(one, range(25)) for one in publishers))

    for listener in listeners:
        heard = [await listener.receive("note") for _ in range(100)]
        found = [one["metadata"]["delivery"]["seq"] for one in heard]
        assert found == list(range(1, 101))


async def test_r6_same_id_is_published_once_and_answered_alike(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")

    first = await publish(publisher, "once", members={"id": "same"})
    await publish(publisher, "between")
    again = [await publish(publisher, "once", members={"id": "same"}) for _ in range(3)]

    for receipt in again:
        assert receipt["duplicate"] is True
        assert (receipt["epoch"], receipt["seq"]) == (first["epoch"], first["seq"])
    assert await stored(publisher) == ["once", "between"]
    assert [one.payload for one in await consumer.take_and_ack(2)] == ["once", "between"]
    await consumer.quiet()


async def test_r6_copies_of_one_publish_in_one_breath_are_one(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    message = {"topic": TOPIC, "type": "note", "data": "once", "durable": True}

    for _ in range(10):
        publisher.send("hub:publish", message, id="same", pattern="ask")
    receipts = [(await publisher.receive("hub:published"))["payload"]]
    marker = publisher.send("hub:heartbeat")
    # One id, one answer at least; more of them say the same.
    while (reply := await publisher.receive())["correlationId"] != marker:
        receipts.append(reply["payload"])

    assert {receipt["seq"] for receipt in receipts} == {1}
    assert sum("duplicate" not in receipt for receipt in receipts) == 1
    assert await head_of(publisher) == 1


async def test_r6_duplicate_is_known_from_another_session_of_the_sender_only(
    stage: InProcess,
) -> None:
    first, other = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await create(first)
    await publish(first, members={"id": "same"})

    assert "duplicate" not in await publish(other, members={"id": "same"})
    again = await stage.connect("@(local/a)")
    receipt = await publish(again, members={"id": "same"})

    assert (receipt["seq"], receipt["duplicate"]) == (1, True)
    assert await head_of(other) == 2


async def test_r6_duplicate_is_found_before_its_time_to_live_is_looked_at() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.join("@(local/a)")
        await create(peer)
        sent = {"id": "same", "timestamp": clock.now_ms(), "ttl": 1_000}
        first = await publish(peer, 1, members=sent)

        await pass_time(clock, peer, 2)
        again = await publish(peer, 1, members=sent)

        assert (again["seq"], again["duplicate"]) == (first["seq"], True)


async def test_r6_id_is_free_again_when_the_window_has_passed() -> None:
    clock = FakeClock()
    async with run_stage(clock, dedup={"window_s": 60}) as stage:
        peer = await stage.join("@(local/a)")
        await create(peer)
        await publish(peer, 1, members={"id": "same"})

        await pass_time(clock, peer, 59)
        assert (await publish(peer, 1, members={"id": "same"}))["duplicate"] is True
        await pass_time(clock, peer, 62)
        later = await publish(peer, 1, members={"id": "same"})

        assert later["seq"] == 2
        assert "duplicate" not in later


async def test_r12_publish_that_came_too_late_is_refused_and_may_be_sent_anew() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer = await stage.join("@(local/a)")
        await create(peer)
        message = {"topic": TOPIC, "type": "note", "durable": True}
        await pass_time(clock, peer, 10)
        late = {"id": "same", "timestamp": clock.now_ms() - 5_000, "ttl": 1_000}

        assert await refusal(peer, "hub:publish", message, **late) == "message_expired"
        assert await head_of(peer) == 0
        receipt = await publish(peer, members={"id": "same", "timestamp": clock.now_ms()})

        assert receipt["seq"] == 1
        assert "duplicate" not in receipt


async def test_rd_l1_concurrent_producers_share_one_dense_order() -> None:
    async with run_stage(**UNLIMITED) as stage:
        producers = [await stage.join(f"@(local/p-{number})") for number in range(6)]
        await create(producers[0])
        consumers = [await enter(stage, f"c-{number}", name=f"sub-{number}") for number in range(2)]

        async def produce(peer: Peer, number: int) -> list[int]:
            return await publish_all(peer, [[number, turn] for turn in range(100)])

        given = await asyncio.gather(
            *(produce(peer, number) for number, peer in enumerate(producers))
        )

        assert sorted(seq for one in given for seq in one) == list(range(1, 601))
        assert all(one == sorted(one) for one in given)
        order = await stored(producers[0])
        for number in range(6):
            assert [turn for owner, turn in order if owner == number] == list(range(100))
        for consumer in consumers:
            heard = await consumer.take_and_ack(600)
            assert [one.payload for one in heard] == order


async def test_wire_large_message_is_refused_with_its_size_and_nothing_is_stored(
    stage: InProcess,
) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    message = {"topic": TOPIC, "type": "note", "data": "x" * 2**20, "durable": True}

    reply = await peer.ask("hub:publish", message)

    assert code_of(reply) == "message_too_large"
    assert (await publish(peer, "x" * 900_000))["seq"] == 1


async def test_wire_copies_of_one_publish_share_an_id_and_repeats_keep_it(
    stage: InProcess,
) -> None:
    publisher, listener = await stage.join("@(local/a)"), await stage.join("@(local/d)")
    await create(publisher)
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    consumers = [
        await enter(stage, name, name=name, backoffMs=10, backoffCapMs=20) for name in ("b", "c")
    ]
    await publish(publisher, 1)

    first = [await consumer.next() for consumer in consumers]
    await consumers[0].nack(1)
    again = await consumers[0].next()

    live = await listener.receive("note")
    assert {one.envelope["id"] for one in (*first, again)} == {live["id"]}
    assert again.id != first[0].id
    assert again.attempt == 2
