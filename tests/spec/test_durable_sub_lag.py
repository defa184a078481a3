"""Where a subscription is: the truth table of lag, floor, next and head, as the wire shows them.

On the wire a position is an inclusive seq counted from 1: `floor` is the last settled one, `head`
the last entry, `next` the next to be delivered.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess
from tests.support.socket.topics import (
    TOPIC,
    Consumer,
    count_of,
    create,
    enter,
    expect,
    leave,
    publish_all,
    seqs,
    sub_info,
)

OF_WORK = {"topic": TOPIC, "subscription": "work"}


async def at_rest(stage: InProcess, publisher: Peer, start: str) -> Consumer:
    """A subscription that reads nothing for now."""
    consumer = await enter(stage, "b", start=start)
    await expect(publisher, "hub:sub_pause", OF_WORK, "hub:sub_info_response")
    return consumer


async def position(peer: Peer) -> tuple[int, int, int, int]:
    info = await sub_info(peer)
    return info["head"], info["floor"], info["next"], info["lag"]


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
    stage: InProcess, before: int, start: str, after: int, expected: tuple[int, int, int, int]
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(before))
    await at_rest(stage, publisher, start)

    await publish_all(publisher, range(after))

    assert await position(publisher) == expected


async def test_rd_4_new_at_earliest_is_behind_by_everything(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(3))

    joined = (await enter(stage, "b")).joined

    assert (joined["head"], joined["next"], joined["lag"]) == (3, 1, 3)


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
async def test_rd_4_floor_is_contiguous_and_lag_counts_what_is_unsettled(
    stage: InProcess, count: int, acked: Sequence[int], floor: int, lag: int, above: int
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")
    await publish_all(publisher, range(count))
    await consumer.take(count)

    for seq in acked:
        await consumer.ack(seq)

    info = await consumer.info()
    assert (info["head"], info["next"]) == (count, count + 1)
    assert (info["floor"], info["lag"]) == (floor, lag)
    assert info["inFlight"] == lag
    assert count_of(info, "settledAboveFloor") == above


async def test_rd_s1_floor_only_moves_forward_and_only_by_settling(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=4)
    await publish_all(publisher, range(12))
    floors: list[int] = []

    for batch in ([3, 2], [1, 4], [8, 7, 6], [5], [12, 9], [11, 10]):
        while (info := await consumer.info())["inFlight"] < min(4, info["lag"]):
            pass
        floors.append((await consumer.ack(*batch))["floor"])
        assert info["floor"] <= info["next"] - 1 <= info["head"]

    assert floors == [0, 4, 4, 8, 9, 12]


async def test_rd_d5_acks_in_reverse_and_then_silence_stall_nothing(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=3)
    await publish_all(publisher, range(9))

    for first in (1, 4, 7):
        assert seqs(await consumer.take(3)) == [first, first + 1, first + 2]
        for seq in (first + 2, first + 1, first):
            await consumer.ack(seq)

    assert await position(publisher) == (9, 9, 10, 0)
    await consumer.quiet()


async def test_rd_4_latest_on_an_old_topic_is_not_behind_and_gets_what_follows(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(100))
    consumer = await enter(stage, "b", start="latest")

    await consumer.quiet()
    await publish_all(publisher, ["new"])

    heard = await consumer.next()
    assert (heard.seq, heard.payload) == (101, "new")
    assert (await consumer.ack(101))["floor"] == 101


async def test_rd_4_position_of_a_subscription_left_alone_stays(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")
    await publish_all(publisher, range(6))
    await consumer.take(6)
    await consumer.ack(1, 2, 5)
    await leave(consumer)

    await publish_all(publisher, range(2))

    info = await sub_info(publisher)
    assert (info["head"], info["floor"], info["lag"], info["inFlight"]) == (8, 2, 5, 0)
    assert count_of(info, "settledAboveFloor") == 1
