"""Dispatch under pressure: races, bursts, lost wakes, dead sockets, frozen readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.socket.stage import SMALL_BUFFER, InProcess, run_stage
from tests.support.socket.topics import (
    NAME,
    TOPIC,
    UNLIMITED,
    Consumer,
    create,
    delivery_of,
    enter,
    leave,
    publish,
    publish_all,
    reenter,
    seqs,
    sub_info,
    subscribe,
    subscription,
    until,
)

BURST = 10_000
RACES = 200
CHUNK = "x" * 8_000


async def take_in_batches(consumer: Consumer, count: int, batch: int) -> list[int]:
    """Settle `batch` at a time, as a consumer of its full window does."""
    found: list[int] = []
    while len(found) < count:
        taken = seqs(await consumer.take(min(batch, count - len(found))))
        consumer.send("hub:ack", upTo=taken[-1])
        found += taken
    return found


async def test_rd_9_1_subscription_made_during_publishing_gets_all_from_its_start_on() -> None:
    async with run_stage(subscriptions_max=RACES + 10, **UNLIMITED) as stage:
        publisher, peer = await stage.join("@(local/a)"), await stage.join("@(local/b)")
        await create(publisher)
        message = {"topic": TOPIC, "type": "note", "durable": True}

        for turn in range(RACES):
            name = f"sub-{turn}"
            for _ in range(turn % 4):
                publisher.send("hub:publish", message, pattern="ask")
            asked = peer.send("hub:subscribe", subscription(name=name, start="latest"))
            for _ in range(3):
                publisher.send("hub:publish", message, pattern="ask")
            receipts = [await publisher.receive("hub:published") for _ in range(turn % 4 + 3)]
            head = receipts[-1]["payload"]["seq"]

            reply = await peer.reply_to(asked)
            assert reply["type"] == "hub:subscribed", reply
            consumer = Consumer(peer, TOPIC, name, reply["payload"])
            wanted = list(range(consumer.joined["next"], head + 1))
            assert seqs(await consumer.take(len(wanted))) == wanted
            await leave(consumer)
        await peer.nothing_more()


@pytest.mark.parametrize("heartbeat_ms", [0, 500], ids=["no watchdog", "watchdog"])
async def test_rd_9_2_burst_is_delivered_once_and_in_order_through_a_small_window(
    heartbeat_ms: int,
) -> None:
    async with run_stage(dispatch={"heartbeat_ms": heartbeat_ms}, **UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b", window=10)

        _, heard = await asyncio.gather(
            publish_all(publisher, range(1_000)), consumer.take_and_ack(1_000)
        )

        assert [one.payload for one in heard] == list(range(1_000))
        assert seqs(heard) == list(range(1, 1_001))
        assert {one.attempt for one in heard} == {1}
        assert (await consumer.info())["lag"] == 0
        await consumer.peer.nothing_more()


async def test_rd_d6_burst_far_beyond_window_and_caches_loses_nothing() -> None:
    async with run_stage(log={"sync": "os"}, **UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b", start="latest", window=10)

        # The consumer acknowledges nothing until everything is published.
        await publish_all(publisher, range(BURST))
        info = await sub_info(publisher)
        assert (info["lag"], info["inFlight"]) == (BURST, 10)

        assert await take_in_batches(consumer, BURST, 10) == list(range(1, BURST + 1))
        await until(publisher, floor=BURST, lag=0)


async def test_rd_23_more_than_256_behind_a_full_window_are_all_delivered() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b")
        await publish_all(publisher, range(1_000))

        assert (await consumer.info())["inFlight"] == 256
        found = await take_in_batches(consumer, 1_000, 100)

        assert found == list(range(1, 1_001))


async def test_rd_9_4_without_any_wake_the_watchdog_delivers_everything() -> None:
    dispatch = {"wakes": False, "heartbeat_ms": 20}
    async with run_stage(dispatch=dispatch, log={"sync": "os"}, **UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b", window=1_000)

        _, found = await asyncio.gather(
            publish_all(publisher, range(BURST)), take_in_batches(consumer, BURST, 100)
        )

        assert found == list(range(1, BURST + 1))


WAKING: dict[str, dict[str, Any]] = {
    "both": {},
    "wakes only": {"heartbeat_ms": 0},
    "watchdog only": {"wakes": False, "heartbeat_ms": 20},
}


@pytest.mark.parametrize("how", WAKING)
@pytest.mark.parametrize("mode", ["exclusive", "shared", "failover", "key-shared"])
async def test_rd_24_wakes_or_watchdog_or_both_deliver_the_same(how: str, mode: str) -> None:
    async with run_stage(dispatch=WAKING[how], **UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b", mode=mode, window=50)
        keys = {number: f"k-{number % 7}" for number in range(300)}

        _, heard = await asyncio.gather(
            publish_all(publisher, range(300), key=keys), consumer.take_and_ack(300)
        )

        assert sorted(seqs(heard)) == list(range(1, 301))
        assert {one.attempt for one in heard} == {1}
        for key in set(keys.values()):
            of_key = [one.seq for one in heard if one.key == key]
            assert of_key == sorted(of_key)
        assert (await consumer.info())["floor"] == 300


async def test_wire_subscription_may_have_a_watchdog_of_its_own() -> None:
    async with run_stage(dispatch={"wakes": False, "heartbeat_ms": 3_600_000}) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b", heartbeatMs=20)

        for number in range(3):
            await publish(publisher, number)
            assert (await consumer.next()).payload == number


async def test_rd_23_fan_out_gives_every_subscription_everything() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumers = [await enter(stage, f"c-{n}", name=f"sub-{n}") for n in range(3)]

        await publish_all(publisher, range(24))

        for consumer in consumers:
            heard = await consumer.take_and_ack(24)
            assert [one.payload for one in heard] == list(range(24))
            assert (await consumer.info())["lag"] == 0


async def test_rd_23_subscriptions_that_come_and_go_miss_nothing() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        steady = await enter(stage, "b", name="steady")
        coming = await enter(stage, "c", name="coming")

        await publish_all(publisher, range(15))
        assert seqs(await coming.take_and_ack(15)) == list(range(1, 16))
        coming.peer.abort()
        await publish_all(publisher, range(15, 30))
        late = await enter(stage, "d", name="late", start="latest")
        back = await reenter(stage, "c", name="coming")
        await publish_all(publisher, range(30, 45))

        assert [one.payload for one in await steady.take_and_ack(45)] == list(range(45))
        assert [one.payload for one in await back.take_and_ack(30)] == list(range(15, 45))
        assert [one.payload for one in await late.take_and_ack(15)] == list(range(30, 45))


async def test_rd_d7_frozen_consumer_stops_neither_publishers_nor_other_subscriptions() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        frozen = await stage.join("@(local/frozen)", receive_bytes=SMALL_BUFFER)
        asleep = await subscribe(frozen, name="asleep", window=1_000)
        awake = await enter(stage, "b", name="awake")
        frozen.pause()

        # Four megabytes: far more than the kernel keeps for a reader that does not read.
        _, heard = await asyncio.gather(
            publish_all(publisher, [CHUNK] * 500), awake.take_and_ack(500)
        )
        assert seqs(heard) == list(range(1, 501))
        info = await sub_info(publisher, TOPIC, "asleep")
        assert (info["lag"], info["floor"]) == (500, 0)

        frozen.resume()
        assert sorted(seqs(await asleep.take_and_ack(500))) == list(range(1, 501))
        assert (await sub_info(publisher, TOPIC, "asleep"))["lag"] == 0


async def test_rd_d7_frozen_consumer_of_a_shared_subscription_leaves_the_rest_to_others() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        frozen = await stage.join("@(local/frozen)", receive_bytes=SMALL_BUFFER)
        await subscribe(frozen, mode="shared", window=5)
        awake = await enter(stage, "b", mode="shared", window=5)
        frozen.pause()

        await publish_all(publisher, range(100))

        heard = await awake.take_and_ack(95)
        info = await sub_info(publisher)
        assert (info["inFlight"], info["lag"]) == (5, 5)
        frozen.abort()
        again = await awake.take_and_ack(5)
        assert sorted(seqs(heard) + seqs(again)) == list(range(1, 101))
        assert {one.attempt for one in again} == {2}


async def test_rd_9_5_disconnect_during_a_burst_skips_nothing() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        publishing = asyncio.create_task(publish_all(publisher, range(600)))
        settled: set[int] = set()

        for turn in range(20):
            consumer = await reenter(stage, "b", window=40)
            heard = await consumer.take(30)
            floor = (await consumer.settle("hub:ack", upTo=heard[turn].seq))["floor"]
            assert seqs(heard) == list(range(heard[0].seq, heard[0].seq + 30))
            assert heard[0].seq == len(settled) + 1
            settled |= set(range(1, floor + 1))
            consumer.peer.abort()

        await publishing
        consumer = await reenter(stage, "b", window=40)
        rest = await consumer.take_and_ack(600 - len(settled))
        assert seqs(rest) == list(range(len(settled) + 1, 601))


async def test_rd_s11_settling_and_questions_are_served_while_nothing_can_be_sent(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=1)
    await publish_all(publisher, range(50))
    await consumer.next()

    for _ in range(20):
        assert (await consumer.info())["inFlight"] == 1
        assert (await consumer.ack(40))["ignored"] == [40]

    await consumer.ack(1)
    assert (await consumer.next()).seq == 2


async def test_rd_d1_caught_up_subscription_serves_without_traffic_after_a_planned_restart() -> (
    None
):
    async with run_stage() as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b")
        await publish_all(publisher, range(10))
        await consumer.take_and_ack(10)

        await stage.hub.stop()
        await stage.hub.start()

        watcher = await stage.join("@(local/w)")
        info = await sub_info(watcher)
        assert (info["floor"], info["lag"], info["head"], info["next"]) == (10, 0, 10, 11)
        back = await enter(stage, "b")
        await back.quiet()
        assert (await back.ack(5))["ignored"] == [5]
        back.peer.abort()
        await until(watcher, consumers=0)
        await publish(watcher, "new")
        again = await enter(stage, "c")
        assert seqs(await again.take_and_ack(1)) == [11]


async def test_rd_s4_random_order_of_settling_leaves_every_message_in_one_state() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(
            stage, "b", window=16, backoffMs=1, backoffCapMs=2, maxDeliveries=1_000
        )
        await publish_all(publisher, range(200))
        acked: set[int] = set()

        # A fixed shuffle: each message is nacked 0 to 3 times before it is settled.
        while len(acked) < 200:
            heard = delivery_of(await consumer.peer.receive())
            assert heard.seq not in acked
            if heard.attempt > heard.seq * 7 % 4:
                consumer.send("hub:ack", seq=heard.seq)
                acked.add(heard.seq)
            else:
                consumer.send("hub:nack", seq=heard.seq)

        info = await until(publisher, TOPIC, NAME, floor=200)
        assert (info["lag"], info["inFlight"], info["waitingRetry"]) == (0, 0, 0)
        await consumer.quiet()
