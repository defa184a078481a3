"""How much a consumer gets at once, and where that leaves its subscription.

On the wire a position is an inclusive seq counted from 1: `floor` is the last settled one, `head`
the last entry, `next` the next to be delivered.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.socket.topics import (
    HASTY,
    OF_WORK,
    UNLIMITED,
    Consumer,
    create,
    enter,
    expect,
    leave,
    publish_all,
    seqs,
    shows,
    subscribe,
    until,
    working,
)
from tests.support.stage import RunStage, Stage

KILOBYTE = "x" * 1_000


@pytest.mark.parametrize(
    ("before", "start", "after", "expected"),
    [
        (0, "earliest", 0, (0, 0, 1, 0)),
        (0, "latest", 0, (0, 0, 1, 0)),
        (0, "earliest", 3, (3, 0, 1, 3)),
        (0, "latest", 3, (3, 0, 1, 3)),
        (100, "latest", 0, (100, 100, 101, 0)),
        (100, "latest", 1, (101, 100, 101, 1)),
    ],
)
async def test_rd_4_nothing_read_yet(
    stage: Stage, before: int, start: str, after: int, expected: tuple[int, ...]
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(before))
    await enter(stage, "b", start=start)
    await expect(publisher, "hub:sub_pause", OF_WORK, "hub:sub_info_response")

    await publish_all(publisher, range(after))

    facts = dict(zip(("head", "floor", "next", "lag"), expected, strict=True))
    await shows(publisher, **facts)


@pytest.mark.parametrize(
    ("count", "acked", "floor", "lag", "above"),
    [
        (1, [1], 1, 0, 0),
        (5, [1], 1, 4, 0),
        (5, [1, 2, 3, 4, 5], 5, 0, 0),
        (10, [1, 2, 3, 4, 5, 6], 6, 4, 0),
        (5, [5], 0, 4, 1),
        (5, [2, 4], 0, 3, 2),
        (5, [4, 2, 1], 2, 2, 1),
        (5, [5, 4, 3, 2, 1], 5, 0, 0),
        (5, [1, 1, 1], 1, 4, 0),
    ],
)
async def test_rd_s1_floor_is_contiguous_and_lag_counts_what_is_unsettled(
    stage: Stage, count: int, acked: Sequence[int], floor: int, lag: int, above: int
) -> None:
    publisher, consumer = await working(stage, count)
    await consumer.take(count)

    before = 0
    for seq in acked:
        after = (await consumer.ack(seq))["floor"]
        assert before <= after
        before = after

    await consumer.shows(head=count, next=count + 1, floor=floor, lag=lag)
    await consumer.shows(inFlight=lag, settledAboveFloor=above)
    # Left alone it stays, and what is published then counts.
    await leave(consumer)
    await publish_all(publisher, range(2))
    await shows(publisher, head=count + 2, floor=floor, lag=lag + 2, settledAboveFloor=above)


# The window.


@pytest.mark.also_over_sockets
async def test_rd_s6_full_window_stops_reading_and_drops_nothing(stage: Stage) -> None:
    _, consumer = await working(stage, 10, window=3)

    assert seqs(await consumer.take(3)) == [1, 2, 3]
    await consumer.quiet()
    await consumer.shows(inFlight=3, next=4, lag=10)
    # Any settled message makes room, not only the first.
    for seq, following in ((3, 4), (1, 5), (5, 6), (2, 7), (4, 8), (6, 9), (7, 10)):
        await consumer.ack(seq)
        assert (await consumer.next()).seq == following
    await consumer.quiet()


@pytest.mark.parametrize("window", [None, 5], ids=["256", "of the settings"])
async def test_r13_window_of_a_consumer_is_256_unless_somebody_says_otherwise(
    run_stage: RunStage, window: int | None
) -> None:
    dispatch = {} if window is None else {"window": window}
    async with run_stage(dispatch=dispatch, **UNLIMITED) as stage:
        _, consumer = await working(stage, 300)
        size = window or 256

        assert seqs(await consumer.take(size)) == list(range(1, size + 1))
        await consumer.quiet()
        await consumer.settle("hub:ack", upTo=size)
        more = min(size, 300 - size)
        assert seqs(await consumer.take(more)) == list(range(size + 1, size + more + 1))
        await leave(consumer)

        # Another window holds from the next joining on.
        back = await subscribe(consumer.peer, window=4)
        assert seqs(await back.take(4)) == list(range(size + 1, size + 5))
        await back.quiet()


async def set_credit(consumer: Consumer, **credit: int) -> None:
    consumer.peer.send("hub:credit", {"subscriptionId": consumer.id} | credit)
    await consumer.peer.ask("hub:heartbeat")


@pytest.mark.also_over_sockets
async def test_wire_credit_sets_how_many_messages_may_be_in_flight(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    await set_credit(consumer, messages=0)
    await publish_all(publisher, range(20))

    await consumer.quiet()
    await consumer.shows(lag=20, inFlight=0, next=1)
    await set_credit(consumer, messages=2)
    assert seqs(await consumer.take(2)) == [1, 2]
    await consumer.quiet()
    await consumer.ack(1)
    assert (await consumer.next()).seq == 3
    # Credit is set and not added: the same again changes nothing.
    await set_credit(consumer, messages=2)
    await consumer.quiet()
    await set_credit(consumer, messages=4)
    assert seqs(await consumer.take(2)) == [4, 5]
    # Less than is in flight waits until that is settled.
    await set_credit(consumer, messages=1)
    await consumer.ack(2, 3, 4)
    await consumer.quiet()
    await consumer.ack(5)
    assert (await consumer.next()).seq == 6
    await consumer.quiet()


async def test_wire_credit_counts_bytes_too(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    await set_credit(consumer, bytes=5_000)
    await publish_all(publisher, [KILOBYTE] * 20)

    taken = [await consumer.next()]
    while len(taken) < (await consumer.info())["inFlight"]:
        taken.append(await consumer.next())
    await consumer.quiet()

    assert 2 <= len(taken) <= 5
    await consumer.ack(*seqs(taken))
    assert (await consumer.next()).seq == len(taken) + 1
    await set_credit(consumer, bytes=1_000_000)
    rest = await consumer.take(19 - len(taken))
    assert seqs(rest) == list(range(len(taken) + 2, 21))


@pytest.mark.parametrize("mode", ["exclusive", "failover"])
async def test_wire_strict_sends_nothing_new_while_an_earlier_one_is_unsettled(
    stage: Stage, mode: str
) -> None:
    _, consumer = await working(stage, 4, mode=mode, strict=True, window=10, **HASTY)

    assert (await consumer.next()).seq == 1
    await consumer.quiet()
    await consumer.nack(1)
    again = await consumer.next()
    assert (again.seq, again.attempt) == (1, 2)
    await consumer.ack(1)

    heard = await consumer.take_and_ack(3)
    assert [(one.seq, one.attempt) for one in heard] == [(2, 1), (3, 1), (4, 1)]


async def test_wire_auto_ack_settles_with_the_delivery(stage: Stage) -> None:
    publisher, consumer = await working(stage, autoAck=True, window=2)

    await publish_all(publisher, range(50))

    assert seqs(await consumer.take(50)) == list(range(1, 51))
    info = await until(publisher, floor=50)
    assert (info["lag"], info["inFlight"]) == (0, 0)
    await leave(consumer)
    back = await subscribe(consumer.peer, autoAck=True)
    await back.quiet()


async def test_rd_d3_rate_limit_parks_and_never_discards(stage: Stage) -> None:
    publisher, consumer = await working(stage, ratePerSecond=5)
    began = stage.clock.now_ms()

    await publish_all(publisher, range(50))
    heard = await consumer.take_and_ack(50)

    assert seqs(heard) == list(range(1, 51))
    assert {one.attempt for one in heard} == {1}
    # At most one second's worth may go at once; the others take their time.
    assert stage.clock.now_ms() - began >= (50 - 2 * 5) / 5 * 1000
    await consumer.shows(floor=50, lag=0)


async def test_rd_d12_rate_limit_costs_a_key_shared_message_one_token(stage: Stage) -> None:
    publisher, consumer = await working(stage, mode="key-shared", ratePerSecond=50)
    began = stage.clock.now_ms()

    await publish_all(publisher, range(60), key={number: f"k-{number % 3}" for number in range(60)})
    heard = await consumer.take_and_ack(60)

    assert sorted(seqs(heard)) == list(range(1, 61))
    for key in ("k-0", "k-1", "k-2"):
        of_key = [one.seq for one in heard if one.key == key]
        assert of_key == sorted(of_key)
    assert stage.clock.now_ms() - began < 2_000
