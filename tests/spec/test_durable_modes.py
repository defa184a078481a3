"""Who gets what: shared, failover and key-shared subscriptions through joins, leaves and poison."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.peer import Peer
from tests.support.socket.topics import (
    HASTY,
    UNLIMITED,
    Consumer,
    Delivery,
    dead_letters,
    delivery_of,
    enter,
    leave,
    publish,
    publish_all,
    seqs,
    shows,
    until,
    working,
)
from tests.support.stage import RunStage, Stage

KEYS = [f"k-{number}" for number in range(20)]
EACH = {key: key for key in KEYS}


async def crowd(stage: Stage, count: int, **options: Any) -> tuple[Peer, list[Consumer]]:
    """A publisher and that many consumers of one subscription."""
    publisher, first = await working(stage, **options)
    options.pop("definition", None)
    return publisher, [first, *[await enter(stage, f"c-{n}", **options) for n in range(1, count)]]


async def heard_by(consumer: Consumer) -> list[Delivery]:
    """What has come to a consumer by now."""
    marker = consumer.peer.send("hub:heartbeat")
    heard = []
    while (message := await consumer.peer.receive())["correlationId"] != marker:
        heard.append(delivery_of(message))
    return heard


async def gather(consumers: list[Consumer], count: int) -> list[tuple[Consumer, Delivery]]:
    """What all of them get and acknowledge until there are `count`, with who got it."""
    heard: list[tuple[Consumer, Delivery]] = []
    async for _ in consumers[0].peer.polls():
        for consumer in consumers:
            for delivery in await heard_by(consumer):
                heard.append((consumer, delivery))
                consumer.send("hub:ack", seq=delivery.seq)
        if len(heard) >= count:
            break
    return heard


def positions(heard: list[tuple[Consumer, Delivery]]) -> list[int]:
    return sorted(one.seq for _, one in heard)


@pytest.mark.also_over_sockets
async def test_rd_23_shared_messages_go_round_through_joining_and_leaving(stage: Stage) -> None:
    publisher, consumers = await crowd(stage, 3, mode="shared")

    await publish_all(publisher, range(36))
    heard = await gather(consumers, 36)
    shares = Counter(consumer.id for consumer, _ in heard)
    assert len(shares) == 3
    assert all(11 <= share <= 13 for share in shares.values()), shares
    consumers.append(await enter(stage, "d", mode="shared"))
    await publish_all(publisher, range(16))
    heard += await gather(consumers, 16)
    await leave(consumers[0])
    await publish_all(publisher, range(15))
    heard += await gather(consumers[1:], 15)

    assert positions(heard) == list(range(1, 68))
    assert {one.attempt for _, one in heard} == {1}
    assert {consumer for consumer, _ in heard} == {*consumers}
    await consumers[0].peer.nothing_more()
    await until(publisher, floor=67)


async def test_rd_s7_what_a_gone_shared_consumer_held_goes_to_another_at_once(stage: Stage) -> None:
    publisher, (first, second) = await crowd(stage, 2, mode="shared", window=5)
    await publish_all(publisher, range(20))
    lost = await first.take(5)
    # Who has no room is passed over.
    assert len(await second.take_and_ack(15)) == 15
    await first.quiet()

    first.peer.abort()
    again = await second.take_and_ack(5)

    assert sorted(seqs(again)) == sorted(seqs(lost))
    assert {one.attempt for one in again} == {2}
    await until(publisher, floor=20)


@pytest.mark.also_over_sockets
async def test_rd_d4_failover_promotes_the_next_which_gets_the_whole_window_first(
    stage: Stage,
) -> None:
    publisher, (first, second, third) = await crowd(stage, 3, mode="failover", window=5)
    await publish_all(publisher, range(10))
    await first.take(5)
    await first.ack(2, 4)
    assert seqs(await first.take(2)) == [6, 7]
    for standing_by in (second, third):
        await standing_by.quiet()

    first.peer.abort()
    heard = await second.take(5)

    assert [(one.seq, one.attempt) for one in heard] == [(1, 2), (3, 2), (5, 2), (6, 2), (7, 2)]
    await second.ack(1, 3, 5, 6, 7)
    assert [(one.seq, one.attempt) for one in await second.take(3)] == [(8, 1), (9, 1), (10, 1)]
    await leave(second)
    heard = await third.take_and_ack(3)
    assert [(one.seq, one.attempt) for one in heard] == [(8, 2), (9, 2), (10, 2)]
    await publish(publisher, "new")
    assert (await third.next()).seq == 11
    await second.peer.nothing_more()


async def test_rd_d4_failover_goes_on_when_a_standby_leaves(stage: Stage) -> None:
    publisher, (active, standby) = await crowd(stage, 2, mode="failover")

    standby.peer.abort()
    await until(publisher, consumers=1)
    await publish_all(publisher, range(3))

    heard = await active.take_and_ack(3)
    assert [(one.seq, one.attempt) for one in heard] == [(1, 1), (2, 1), (3, 1)]


# Keys.


async def test_rd_23_messages_of_a_key_go_to_one_consumer_in_order(run_stage: RunStage) -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher, consumers = await crowd(stage, 3, mode="key-shared")
        keys = {number: KEYS[number % 20] for number in range(300)}

        await publish_all(publisher, range(300), key=keys)
        heard = await gather(consumers, 300)

        assert positions(heard) == list(range(1, 301))
        for key in KEYS:
            assert len({consumer for consumer, one in heard if one.key == key}) == 1
            of_key = [one.seq for _, one in heard if one.key == key]
            assert of_key == sorted(of_key)
        assert {consumer for consumer, _ in heard} == {*consumers}


async def test_rd_6_messages_without_a_key_of_one_publisher_keep_their_order(stage: Stage) -> None:
    publisher, consumers = await crowd(stage, 2, mode="key-shared")

    await publish_all(publisher, range(30))
    heard = await gather(consumers, 30)

    assert [one.payload for _, one in heard] == list(range(30))
    assert len({consumer for consumer, _ in heard}) == 1


async def test_rd_6_key_in_flight_holds_back_its_followers_only(stage: Stage) -> None:
    publisher, (consumer,) = await crowd(stage, 1, mode="key-shared")
    for key in ("a", "a", "b", "a", "b"):
        await publish(publisher, key, key=key)

    first = await consumer.take(2)
    assert [(one.seq, one.key) for one in first] == [(1, "a"), (3, "b")]
    await consumer.quiet()
    for acked, following, floor in (([3], 5, 0), ([1], 2, 1), ([2, 5], 4, 3)):
        assert (await consumer.ack(*acked))["floor"] == floor
        assert (await consumer.next()).seq == following
    assert (await consumer.ack(4))["floor"] == 5


async def test_rd_d10_message_put_back_stays_in_front_of_its_key(stage: Stage) -> None:
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


async def test_rd_d8_keys_of_a_gone_consumer_move_with_all_that_is_unsettled(stage: Stage) -> None:
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
    stage: Stage,
) -> None:
    publisher, (first,) = await crowd(stage, 1, mode="key-shared")
    await publish_all(publisher, KEYS, key=EACH)
    held = await first.take(20)

    second = await enter(stage, "d", mode="key-shared")
    await publish_all(publisher, KEYS, key=EACH)

    # All keys are with the first, so that the newcomer has to wait for every one of them.
    await second.quiet()
    await first.ack(*seqs(held))
    heard = await gather([first, second], 20)
    assert positions(heard) == list(range(21, 41))
    await until(publisher, floor=40)


@pytest.mark.also_over_sockets
async def test_rd_6_order_of_keys_survives_joins_and_leaves_under_load(
    run_stage: RunStage,
) -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher, consumers = await crowd(stage, 2, mode="key-shared", window=20)
        keys = {number: KEYS[number * 7 % 20] for number in range(200)}
        heard: list[tuple[Consumer, Delivery]] = []

        for turn in range(5):
            await publish_all(publisher, range(200), key=keys)
            consumers.append(await enter(stage, f"n-{turn}", mode="key-shared", window=20))
            heard += await gather(consumers, 50)
            gone = consumers.pop(0)
            heard += [(gone, one) for one in await heard_by(gone)]
            gone.peer.abort()
        while len({one.seq for _, one in heard}) < 1_000:
            heard += await gather(consumers, 1)
        await until(publisher, floor=1_000)

        for key in KEYS:
            # A repeat is of the last one at most: what follows waits until it is settled.
            of_key = [one.seq for _, one in heard if one.key == key]
            assert of_key == sorted(of_key)
            assert len({*of_key}) == 50


async def test_rd_s9_no_consumer_gets_a_key_another_holds_whoever_leaves(stage: Stage) -> None:
    publisher, consumers = await crowd(stage, 3, mode="key-shared")
    await publish_all(publisher, KEYS, key=EACH)
    await until(publisher, inFlight=20)
    holders = {one.key: consumer for consumer in consumers for one in await heard_by(consumer)}
    assert holders.keys() == {*KEYS}

    await leave(consumers[0])
    await publish_all(publisher, KEYS, key=EACH)
    await until(publisher, inFlight=20)

    moved = [one for consumer in consumers[1:] for one in await heard_by(consumer)]
    assert {one.attempt for one in moved} == {2}
    of_the_first = Counter(key for key, holder in holders.items() if holder is consumers[0])
    assert Counter(one.key for one in moved) == of_the_first
    await shows(publisher, lag=40)


@pytest.mark.parametrize("poison", ["drop", "dead_letter"])
async def test_rd_d9_poison_of_a_key_costs_one_message_and_the_others_follow(
    stage: Stage, poison: str
) -> None:
    options: dict[str, Any] = HASTY | {"mode": "key-shared", "maxDeliveries": 2}
    publisher, (consumer,) = await crowd(stage, 1, definition={"poison": poison}, **options)
    for number in range(5):
        await publish(publisher, number, key="a")

    for attempt in (1, 2):
        bad = await consumer.next()
        assert (bad.seq, bad.attempt) == (1, attempt)
        await consumer.nack(1)

    assert seqs(await consumer.take_and_ack(4)) == [2, 3, 4, 5]
    await until(publisher, floor=5, lag=0)
    if poison == "dead_letter":
        (letter,) = await dead_letters(publisher)
        assert letter["metadata"]["key"] == "a"
        assert letter["metadata"]["deadLetter"]["seq"] == 1


async def test_rd_7_6_block_stalls_the_poisoned_key_only(stage: Stage) -> None:
    publisher, (consumer,) = await crowd(stage, 1, mode="key-shared", maxDeliveries=1, **HASTY)
    for key in ("bad", "good", "bad", "good", "good"):
        await publish(publisher, key, key=key)
    assert seqs(await consumer.take(2)) == [1, 2]

    await consumer.nack(1)
    await consumer.ack(2)

    assert seqs(await consumer.take_and_ack(2)) == [4, 5]
    await consumer.quiet()
    await consumer.shows(floor=0, lag=2)
    assert (await consumer.info())["blocked"] is False
