"""Who gets what: shared, failover and key-shared subscriptions through joins, leaves and poison."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, Stage, run_stage
from tests.support.socket.topics import (
    HASTY,
    TOPIC,
    UNLIMITED,
    Consumer,
    Delivery,
    create,
    dead_letters,
    enter,
    leave,
    publish,
    publish_all,
    seqs,
    sub_info,
    until,
)

KEYS = [f"k-{number}" for number in range(20)]


async def crowd(stage: Stage, count: int, **options: Any) -> tuple[Peer, list[Consumer]]:
    """A publisher and so many consumers of one subscription."""
    publisher = await stage.join("@(local/a)")
    await create(publisher, **options.pop("definition", {}))
    consumers = [await enter(stage, f"c-{number}", **options) for number in range(count)]
    return publisher, consumers


class Listeners:
    """Consumers that acknowledge whatever comes, and what came in the order it did."""

    def __init__(self, consumers: Iterable[Consumer] = ()) -> None:
        self.heard: list[tuple[Consumer, Delivery]] = []
        self._tasks: dict[Consumer, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Consumer) -> None:
        self._tasks[consumer] = asyncio.create_task(self._listen(consumer))

    async def _listen(self, consumer: Consumer) -> None:
        try:
            while True:
                delivery = await consumer.next()
                self.heard.append((consumer, delivery))
                consumer.send("hub:ack", seq=delivery.seq)
                self._news.set()
        finally:
            self._news.set()

    async def remove(self, consumer: Consumer) -> None:
        """Stop listening, without a word to the hub."""
        task = self._tasks.pop(consumer)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def until(self, count: int) -> None:
        """Wait for so many in all, or for what ended the listening."""
        while len(self.heard) < count and not any(one.done() for one in self._tasks.values()):
            self._news.clear()
            await self._news.wait()

    async def stop(self) -> None:
        for consumer in list(self._tasks):
            await self.remove(consumer)


async def gather(consumers: list[Consumer], count: int) -> list[tuple[int, Delivery]]:
    """What all of them get until there are `count`, with the index of who got it."""
    listeners = Listeners(consumers)
    await listeners.until(count)
    await listeners.stop()
    return [(consumers.index(consumer), delivery) for consumer, delivery in listeners.heard]


async def test_rd_23_shared_messages_go_round_and_each_goes_once(stage: InProcess) -> None:
    publisher, consumers = await crowd(stage, 3, mode="shared")

    await publish_all(publisher, range(36))
    heard = await gather(consumers, 36)

    assert sorted(one.seq for _, one in heard) == list(range(1, 37))
    assert {one.attempt for _, one in heard} == {1}
    shares = Counter(index for index, _ in heard)
    assert all(11 <= shares[index] <= 13 for index in range(3)), shares
    await until(publisher, floor=36)


async def test_rd_23_shared_queue_survives_joining_and_leaving(stage: InProcess) -> None:
    publisher, consumers = await crowd(stage, 2, mode="shared")
    await publish_all(publisher, range(15))
    heard = await gather(consumers, 15)

    third = await enter(stage, "c-2", mode="shared")
    await publish_all(publisher, range(15))
    heard += [(index, one) for index, one in await gather([*consumers, third], 15)]
    await leave(consumers[0])
    await publish_all(publisher, range(15))
    heard += [(index + 1, one) for index, one in await gather([consumers[1], third], 15)]

    assert sorted(one.seq for _, one in heard) == list(range(1, 46))
    assert {index for index, _ in heard} == {0, 1, 2}
    await consumers[0].peer.nothing_more()
    await until(publisher, floor=45)


async def test_rd_s7_what_a_gone_shared_consumer_held_goes_to_another(stage: InProcess) -> None:
    publisher, (first, second) = await crowd(stage, 2, mode="shared", window=5)
    await publish_all(publisher, range(10))
    kept, lost = await second.take(5), await first.take(5)

    first.peer.abort()
    await second.ack(*seqs(kept))
    again = await second.take_and_ack(5)

    assert sorted(seqs(again)) == sorted(seqs(lost))
    assert {one.attempt for one in again} == {2}
    await until(publisher, floor=10)


async def test_rd_6_consumer_without_room_is_skipped(stage: InProcess) -> None:
    publisher, (idle, busy) = await crowd(stage, 2, mode="shared", window=2)

    await publish_all(publisher, range(20))
    held = await idle.take(2)
    heard = await busy.take_and_ack(18)

    assert sorted(seqs(held) + seqs(heard)) == list(range(1, 21))
    await idle.quiet()


async def test_rd_s9_failover_serves_the_first_and_lets_the_others_stand_by(
    stage: InProcess,
) -> None:
    publisher, (active, *standing_by) = await crowd(stage, 3, mode="failover")

    await publish_all(publisher, range(20))

    assert seqs(await active.take_and_ack(20)) == list(range(1, 21))
    for consumer in standing_by:
        await consumer.quiet()


async def test_rd_d4_failover_promotes_the_next_which_gets_the_whole_window_first(
    stage: InProcess,
) -> None:
    publisher, (first, second, third) = await crowd(stage, 3, mode="failover", window=5)
    await publish_all(publisher, range(10))
    await first.take(5)
    await first.ack(2, 4)
    assert seqs(await first.take(2)) == [6, 7]

    first.peer.abort()
    heard = await second.take(5)

    assert [(one.seq, one.attempt) for one in heard] == [(1, 2), (3, 2), (5, 2), (6, 2), (7, 2)]
    await second.ack(1, 3, 5, 6, 7)
    assert [(one.seq, one.attempt) for one in await second.take(3)] == [(8, 1), (9, 1), (10, 1)]
    await leave(second)
    assert [(one.seq, one.attempt) for one in await third.take_and_ack(3)] == [
        (8, 2),
        (9, 2),
        (10, 2),
    ]
    await publish(publisher, "new")
    assert (await third.next()).seq == 11
    await second.peer.nothing_more()


async def test_rd_d4_failover_goes_on_when_a_standby_leaves(stage: InProcess) -> None:
    publisher, (active, standby) = await crowd(stage, 2, mode="failover")

    standby.peer.abort()
    await until(publisher, consumers=1)
    await publish_all(publisher, range(3))

    heard = await active.take_and_ack(3)
    assert [(one.seq, one.attempt) for one in heard] == [(1, 1), (2, 1), (3, 1)]


async def test_rd_23_messages_of_a_key_go_to_one_consumer_in_order() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher, consumers = await crowd(stage, 3, mode="key-shared")
        keys = {number: KEYS[number % 20] for number in range(300)}

        await publish_all(publisher, range(300), key=keys)
        heard = await gather(consumers, 300)

        assert sorted(one.seq for _, one in heard) == list(range(1, 301))
        for key in KEYS:
            assert len({index for index, one in heard if one.key == key}) == 1
            of_key = [one.seq for _, one in heard if one.key == key]
            assert of_key == sorted(of_key)
        assert len({index for index, _ in heard}) == 3


async def test_rd_6_key_in_flight_holds_back_its_followers_only(stage: InProcess) -> None:
    publisher, (consumer,) = await crowd(stage, 1, mode="key-shared")
    for key in ("a", "a", "b", "a", "b"):
        await publish(publisher, key, key=key)

    first = await consumer.take(2)
    assert [(one.seq, one.key) for one in first] == [(1, "a"), (3, "b")]
    await consumer.quiet()
    await consumer.ack(3)
    assert (await consumer.next()).seq == 5
    await consumer.ack(1)
    assert (await consumer.next()).seq == 2
    await consumer.ack(2, 5)
    assert (await consumer.next()).seq == 4
    assert (await consumer.ack(4))["floor"] == 5


async def test_rd_d10_message_put_back_stays_in_front_of_its_key(stage: InProcess) -> None:
    publisher, (consumer,) = await crowd(stage, 1, mode="key-shared", **HASTY)
    for number in range(4):
        await publish(publisher, number, key="a")
    settled: list[int] = []

    for fails in (2, 0, 1, 0):
        for _ in range(fails):
            await consumer.nack((await consumer.next()).seq)
        heard = await consumer.next()
        assert heard.attempt == fails + 1
        settled.append(heard.seq)
        await consumer.ack(heard.seq)

    assert settled == [1, 2, 3, 4]


async def test_rd_d8_keys_of_a_gone_consumer_move_with_all_that_is_unsettled(
    stage: InProcess,
) -> None:
    publisher, (first,) = await crowd(stage, 1, mode="key-shared")
    for turn in range(3):
        for key in KEYS[:5]:
            await publish(publisher, turn, key=key)
    await first.take(5)
    second = await enter(stage, "d", mode="key-shared")

    first.peer.abort()
    heard = await second.take_and_ack(15)

    assert sorted(seqs(heard)) == list(range(1, 16))
    for key in KEYS[:5]:
        of_key = [(one.payload, one.attempt) for one in heard if one.key == key]
        assert of_key == [(0, 2), (1, 1), (2, 1)]
    await until(publisher, floor=15)


async def test_rd_6_key_moves_to_a_newcomer_only_when_nothing_of_it_is_unsettled(
    stage: InProcess,
) -> None:
    publisher, (first,) = await crowd(stage, 1, mode="key-shared")
    await publish_all(publisher, KEYS, key={key: key for key in KEYS})
    held = await first.take(20)

    second = await enter(stage, "d", mode="key-shared")
    await publish_all(publisher, KEYS, key={key: key for key in KEYS})

    # All keys are with the first, so that the newcomer has to wait for every one of them.
    await second.quiet()
    await first.ack(*seqs(held))
    heard = await gather([first, second], 20)
    assert sorted(one.seq for _, one in heard) == list(range(21, 41))
    await until(publisher, floor=40)


async def test_rd_6_order_of_keys_survives_joins_and_leaves_under_load() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher, consumers = await crowd(stage, 2, mode="key-shared", window=20)
        listeners = Listeners(consumers)
        keys = {number: KEYS[number * 7 % 20] for number in range(200)}

        for turn in range(5):
            await publish_all(publisher, range(200), key=keys)
            newcomer = await enter(stage, f"n-{turn}", mode="key-shared", window=20)
            listeners.add(newcomer)
            gone, *others = consumers
            await listeners.remove(gone)
            gone.peer.abort()
            consumers = [*others, newcomer]
        await until(publisher, floor=1_000)
        await listeners.stop()

        for key in KEYS:
            of_key = [one.seq for _, one in listeners.heard if one.key == key]
            firsts = list(dict.fromkeys(of_key))
            assert firsts == sorted(firsts)
            assert len(firsts) == 50
            # A repeat is of the last one at most: what follows waits until it is settled.
            assert of_key == sorted(of_key)


@pytest.mark.parametrize("poison", ["drop", "dead_letter"])
async def test_rd_d9_poison_of_a_key_costs_one_message_and_the_others_follow(
    stage: InProcess, poison: str
) -> None:
    publisher, (consumer,) = await crowd(
        stage, 1, mode="key-shared", maxDeliveries=2, definition={"poison": poison}, **HASTY
    )
    for number in range(5):
        await publish(publisher, number, key="a")

    for attempt in (1, 2):
        bad = await consumer.next()
        assert (bad.seq, bad.attempt) == (1, attempt)
        await consumer.nack(1)

    assert seqs(await consumer.take_and_ack(4)) == [2, 3, 4, 5]
    info = await until(publisher, floor=5)
    assert info["lag"] == 0
    if poison == "dead_letter":
        (letter,) = await dead_letters(publisher)
        assert letter["metadata"]["key"] == "a"
        assert letter["metadata"]["deadLetter"]["seq"] == 1


async def test_rd_7_6_block_stalls_the_poisoned_key_only(stage: InProcess) -> None:
    publisher, (consumer,) = await crowd(stage, 1, mode="key-shared", maxDeliveries=1, **HASTY)
    for key in ("bad", "good", "bad", "good", "good"):
        await publish(publisher, key, key=key)
    held = await consumer.take(2)
    assert seqs(held) == [1, 2]

    await consumer.nack(1)
    await consumer.ack(2)

    assert seqs(await consumer.take_and_ack(2)) == [4, 5]
    await consumer.quiet()
    info = await consumer.info()
    assert (info["floor"], info["lag"]) == (0, 2)


async def test_rd_23_key_shared_settled_in_any_order_of_keys_has_a_contiguous_floor(
    stage: InProcess,
) -> None:
    publisher, (consumer,) = await crowd(stage, 1, mode="key-shared")
    await publish_all(publisher, KEYS[:5], key={key: key for key in KEYS})
    await consumer.take(5)

    floors = [(await consumer.ack(seq))["floor"] for seq in (3, 5, 1, 2, 4)]

    assert floors == [0, 0, 1, 3, 5]


async def test_rd_6_messages_without_a_key_of_one_publisher_keep_their_order(
    stage: InProcess,
) -> None:
    publisher, consumers = await crowd(stage, 2, mode="key-shared")

    await publish_all(publisher, range(30))
    heard = await gather(consumers, 30)

    assert [one.payload for _, one in heard] == list(range(30))
    assert len({index for index, _ in heard}) == 1


async def test_rd_s9_no_consumer_gets_a_key_another_holds_whoever_leaves(
    stage: InProcess,
) -> None:
    publisher, consumers = await crowd(stage, 3, mode="key-shared")
    await publish_all(publisher, KEYS, key={key: key for key in KEYS})
    while (await sub_info(publisher))["inFlight"] < 20:
        pass
    holders: dict[str, int] = {}
    for index, consumer in enumerate(consumers):
        marker = consumer.peer.send("hub:heartbeat")
        while (message := await consumer.peer.receive())["correlationId"] != marker:
            holders[message["metadata"]["key"]] = index
    assert sorted(holders) == sorted(KEYS)

    await leave(consumers[0])
    await publish_all(publisher, KEYS, key={key: key for key in KEYS})
    moved = [key for key, index in holders.items() if index == 0]

    got: dict[str, list[int]] = {key: [] for key in KEYS}
    while (await sub_info(publisher))["inFlight"] < 20:
        pass
    for index, consumer in enumerate(consumers[1:], 1):
        marker = consumer.peer.send("hub:heartbeat")
        while (message := await consumer.peer.receive())["correlationId"] != marker:
            key, delivery = message["metadata"]["key"], message["metadata"]["delivery"]
            assert delivery["redelivered"] is True
            got[key].append(index)
    assert {key for key, found in got.items() if found} == set(moved)
    assert all(len(got[key]) == 1 for key in moved)
    assert (await sub_info(publisher, TOPIC))["lag"] == 40
