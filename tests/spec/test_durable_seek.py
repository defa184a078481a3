"""Moving a subscription, and reading a topic without one."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import Envelope, Peer
from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.topics import (
    HASTY,
    TOPIC,
    Consumer,
    Facts,
    create,
    enter,
    expect,
    leave,
    pass_time,
    publish,
    publish_all,
    refusal,
    replay,
    seqs,
    sub_info,
    subscribe,
)

OF_WORK = {"topic": TOPIC, "subscription": "work"}


async def seek(peer: Peer, to: Any, **payload: Any) -> Facts:
    sought = await expect(peer, "hub:seek", OF_WORK | {"to": to} | payload, "hub:sought")
    assert sought.keys() >= {"epoch", "next", "willReplay", "willSkip"}
    return sought


async def consumed(stage: InProcess, count: int, **options: Any) -> tuple[Peer, Consumer]:
    """A subscription that has settled everything."""
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", **options)
    await publish_all(publisher, range(1, count + 1))
    await consumer.take_and_ack(count)
    return publisher, consumer


BACKWARDS: dict[str, tuple[Any, int]] = {
    "earliest": ("earliest", 1),
    "seq": ({"seq": 7}, 7),
    "last entry": ({"seq": 10}, 10),
    "last 4": ({"last": 4}, 7),
    "last of more": ({"last": 99}, 1),
    "latest": ("latest", 11),
}


@pytest.mark.parametrize("to", BACKWARDS)
async def test_wire_seek_back_replays_what_was_settled(stage: InProcess, to: str) -> None:
    publisher, consumer = await consumed(stage, 10)
    given, first = BACKWARDS[to]

    sought = await seek(publisher, given)

    assert sought["epoch"] == consumer.joined["epoch"]
    assert sought["next"] == first
    assert (sought["willReplay"], sought["willSkip"]) == (11 - first, 0)
    heard = await consumer.take_and_ack(11 - first)
    assert seqs(heard) == [one.payload for one in heard] == list(range(first, 11))
    info = await consumer.info()
    assert (info["floor"], info["lag"]) == (10, 0)
    await consumer.quiet()


@pytest.mark.parametrize(
    ("to", "first"), [("latest", 11), ({"seq": 8}, 8), ({"last": 1}, 10), ({"seq": 1}, 1)]
)
async def test_wire_seek_forward_skips_what_was_not_settled(
    stage: InProcess, to: Any, first: int
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await leave(await enter(stage, "b"))
    await publish_all(publisher, range(1, 11))

    sought = await seek(publisher, to)

    assert (sought["next"], sought["willReplay"], sought["willSkip"]) == (first, 0, first - 1)
    info = await sub_info(publisher)
    assert (info["floor"], info["next"], info["lag"]) == (first - 1, first, 11 - first)
    consumer = await enter(stage, "c")
    await publish(publisher, 11)
    assert seqs(await consumer.take_and_ack(12 - first)) == list(range(first, 12))


async def test_wire_seek_to_a_time_finds_the_first_entry_not_before_it() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b")
        times = []
        for number in range(1, 6):
            await pass_time(clock, publisher, 1)
            times.append(clock.now_ms())
            await publish(publisher, number)
        await consumer.take_and_ack(5)

        for moment, first in (
            (times[2], 3),
            (times[2] - 1, 3),
            (times[2] + 1, 4),
            (0, 1),
            (times[4] + 1, 6),
        ):
            sought = await seek(publisher, {"time": moment}, dryRun=True)
            assert (sought["next"], sought["willReplay"]) == (first, 6 - first)
        await seek(publisher, {"time": times[3]})

        assert [one.payload for one in await consumer.take(2)] == [4, 5]


async def test_wire_dry_run_tells_and_changes_nothing(stage: InProcess) -> None:
    publisher, consumer = await consumed(stage, 10)
    await leave(consumer)
    await publish_all(publisher, range(11, 16))
    before = await sub_info(publisher)

    backwards = await seek(publisher, {"seq": 3}, dryRun=True)
    forwards = await seek(publisher, "latest", dryRun=True)

    assert (backwards["next"], backwards["willReplay"], backwards["willSkip"]) == (3, 8, 0)
    assert (forwards["next"], forwards["willReplay"], forwards["willSkip"]) == (16, 0, 5)
    after = await sub_info(publisher)
    for fact in ("floor", "next", "lag", "head", "inFlight"):
        assert after[fact] == before[fact]
    back = await subscribe(consumer.peer)
    assert seqs(await back.take(5)) == [11, 12, 13, 14, 15]


async def test_rd_12_seek_drops_the_window_and_old_acks_are_ignored(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=5)
    await publish_all(publisher, range(1, 11))
    old = await consumer.take(5)

    await seek(publisher, {"seq": 3})
    new = await consumer.take(5)
    ignored = [await consumer.settle("hub:ack", seq=one.seq, id=one.id) for one in old]

    assert seqs(new) == [3, 4, 5, 6, 7]
    assert not {one.id for one in old} & {one.id for one in new}
    assert [one["accepted"] for one in ignored] == [0] * 5
    info = await consumer.info()
    assert (info["floor"], info["inFlight"], info["lag"]) == (2, 5, 8)
    accepted = [await consumer.settle("hub:ack", seq=one.seq, id=one.id) for one in new]
    assert [one["floor"] for one in accepted] == [3, 4, 5, 6, 7]


async def test_rd_12_seek_forgets_failures_and_retries_of_before(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="drop")
    consumer = await enter(stage, "b", maxDeliveries=2)
    await publish(publisher, 1)
    await consumer.next()
    await consumer.nack(1)
    assert (await consumer.info())["waitingRetry"] == 1

    await seek(publisher, "earliest")

    assert (await consumer.next()).seq == 1
    assert (await consumer.info())["waitingRetry"] == 0
    await consumer.nack(1)
    # The second failure of all would have been the last; the first after the seek is not.
    info = await consumer.info()
    assert (info["waitingRetry"], info["floor"]) == (1, 0)


async def test_wire_seek_of_one_subscription_leaves_the_others_where_they_are(
    stage: InProcess,
) -> None:
    publisher, consumer = await consumed(stage, 5)
    other = await enter(stage, "c", name="other")
    await other.take_and_ack(5)

    await seek(publisher, "earliest")

    assert seqs(await consumer.take(5)) == [1, 2, 3, 4, 5]
    await other.quiet()
    assert (await other.info())["floor"] == 5


async def test_wire_seek_of_a_paused_subscription_waits_for_its_resumption(
    stage: InProcess,
) -> None:
    publisher, consumer = await consumed(stage, 5)
    await expect(publisher, "hub:sub_pause", OF_WORK, "hub:sub_info_response")

    await seek(publisher, {"last": 2})

    info = await consumer.info()
    assert (info["paused"], info["next"], info["lag"]) == (True, 4, 2)
    await consumer.quiet()
    await expect(publisher, "hub:sub_resume", OF_WORK, "hub:sub_info_response")
    assert seqs(await consumer.take_and_ack(2)) == [4, 5]


@pytest.mark.parametrize("mode", ["shared", "failover", "key-shared"])
async def test_wire_seek_works_for_every_mode(stage: InProcess, mode: str) -> None:
    publisher, consumer = await consumed(stage, 6, mode=mode)

    await seek(publisher, {"seq": 4})

    assert seqs(await consumer.take_and_ack(3)) == [4, 5, 6]
    assert (await consumer.info())["lag"] == 0


async def test_wire_position_behind_the_head_is_never_sought(stage: InProcess) -> None:
    publisher, consumer = await consumed(stage, 3)

    reply = await publisher.ask("hub:seek", OF_WORK | {"to": {"seq": 1_000}})

    if reply["type"] == "hub:sought":
        assert reply["payload"]["next"] == 4
    else:
        assert reply["type"] == "hub:error"
    await publish(publisher, 4)
    assert (await consumer.next()).seq == 4


async def test_wire_unknown_subscription_cannot_be_sought(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)

    code = await refusal(publisher, "hub:seek", OF_WORK | {"to": "earliest"})

    assert code == "unknown_subscription"


def positions(copies: list[Envelope]) -> list[int]:
    return [copy["metadata"]["delivery"]["seq"] for copy in copies]


@pytest.mark.parametrize(
    ("asked", "found", "complete", "following"),
    [
        ({"fromSeq": 1}, range(1, 11), True, 11),
        ({"fromSeq": 4}, range(4, 11), True, 11),
        ({"fromSeq": 4, "toSeq": 6}, range(4, 7), True, 7),
        ({"fromSeq": 4, "toSeq": 4}, range(4, 5), True, 5),
        ({"fromSeq": 1, "limit": 3}, range(1, 4), False, 4),
        ({"fromSeq": 8, "limit": 3}, range(8, 11), True, 11),
        ({"fromSeq": 2, "toSeq": 9, "limit": 2}, range(2, 4), False, 4),
        ({"fromSeq": 2, "toSeq": 3, "limit": 5}, range(2, 4), True, 4),
    ],
    ids=str,
)
async def test_wire_replay_sends_a_range_in_order_and_then_its_summary(
    stage: InProcess, asked: dict[str, Any], found: range, complete: bool, following: int
) -> None:
    publisher, reader = await stage.join("@(local/a)"), await stage.join("@(local/c)")
    epoch = (await create(publisher))["epoch"]
    await publish_all(publisher, range(1, 11))

    copies, summary = await replay(reader, **asked)

    assert positions(copies) == [copy["payload"] for copy in copies] == list(found)
    assert {copy["metadata"]["delivery"]["epoch"] for copy in copies} == {epoch}
    assert {copy["to"] for copy in copies} == {"@(local/c)"}
    assert {copy["from"] for copy in copies} == {"@(local/a)"}
    assert summary["count"] == len(found)
    assert summary["complete"] is complete
    assert summary["next"] == following


async def test_wire_replay_of_nothing_is_empty(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    _, empty = await replay(peer)
    await publish_all(peer, range(3))
    _, beyond = await replay(peer, fromSeq=4)

    assert (empty["count"], beyond["count"]) == (0, 0)
    assert (empty["next"], beyond["next"]) == (1, 4)


async def test_wire_replayed_copies_keep_type_key_headers_and_time(stage: InProcess) -> None:
    publisher, reader = await stage.join("@(local/a)"), await stage.join("@(local/c)")
    await create(publisher)
    consumer = await enter(stage, "b")
    await publish(publisher, {"n": 1}, type="order:placed", key="k", headers={"a": "b"})
    live = (await consumer.next()).envelope

    ((copy,), _) = await replay(reader)

    assert (copy["type"], copy["payload"]) == ("order:placed", {"n": 1})
    assert (copy["metadata"]["key"], copy["metadata"]["headers"]) == ("k", {"a": "b"})
    for fact in ("epoch", "seq", "publishedAt"):
        assert copy["metadata"]["delivery"][fact] == live["metadata"]["delivery"][fact]
    assert copy["id"] == live["id"]


async def test_wire_replay_moves_no_subscription(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", **HASTY)
    await publish_all(publisher, range(5))
    await consumer.take(5)
    before = await consumer.info()

    copies, _ = await replay(consumer.peer)

    assert positions(copies) == [1, 2, 3, 4, 5]
    after = await consumer.info()
    for fact in ("floor", "next", "lag", "inFlight"):
        assert after[fact] == before[fact]
    assert (await consumer.ack(1))["accepted"] == 1


async def test_wire_gap_of_a_plain_subscriber_is_closed_by_a_replay(stage: InProcess) -> None:
    publisher, listener = await stage.join("@(local/a)"), await stage.join("@(local/c)")
    await create(publisher)
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    await publish(publisher, 1)
    seen = (await listener.receive("note"))["metadata"]["delivery"]["seq"]
    await listener.ask("hub:unsubscribe", {"topic": TOPIC})
    await publish_all(publisher, [2, 3])
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    await publish(publisher, 4)
    live = (await listener.receive("note"))["metadata"]["delivery"]["seq"]

    missed, summary = await replay(listener, fromSeq=seen + 1, toSeq=live - 1)

    assert [copy["payload"] for copy in missed] == [2, 3]
    assert summary["complete"] is True


async def test_wire_pages_of_a_replay_join_without_gap_or_overlap(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(1, 101))
    found: list[int] = []
    following, complete = 1, False

    for _ in range(20):
        copies, summary = await replay(publisher, fromSeq=following, limit=7)
        found += positions(copies)
        following, complete = summary["next"], summary["complete"]
        if complete:
            break

    assert complete
    assert found == list(range(1, 101))
