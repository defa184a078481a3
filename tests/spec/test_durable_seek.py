"""Moving a subscription, and reading a topic without one."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Envelope, Peer
from tests.support.socket.topics import (
    MODES,
    OF_WORK,
    TOPIC,
    Consumer,
    Facts,
    create,
    enter,
    expect,
    leave,
    publish,
    publish_all,
    refusal,
    replay,
    seqs,
    shows,
    sub_info,
    subscribe,
    working,
)
from tests.support.stage import RunStage, Stage


async def seek(peer: Peer, to: Any, **payload: Any) -> Facts:
    sought = await expect(peer, "hub:seek", OF_WORK | {"to": to} | payload, "hub:sought")
    assert sought.keys() >= {"epoch", "next", "willReplay", "willSkip"}
    return sought


async def consumed(stage: Stage, count: int, **options: Any) -> tuple[Peer, Consumer]:
    """A subscription that has settled everything."""
    publisher, consumer = await working(stage, count, **options)
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
async def test_wire_seek_back_replays_what_was_settled(stage: Stage, to: str) -> None:
    publisher, consumer = await consumed(stage, 10)
    other = await enter(stage, "c", name="other")
    await other.take_and_ack(10)
    given, first = BACKWARDS[to]

    sought = await seek(publisher, given)

    assert (sought["epoch"], sought["next"]) == (consumer.joined["epoch"], first)
    assert (sought["willReplay"], sought["willSkip"]) == (11 - first, 0)
    heard = await consumer.take_and_ack(11 - first)
    assert seqs(heard) == [one.payload for one in heard] == list(range(first, 11))
    await consumer.shows(floor=10, lag=0)
    # The others stay where they are.
    await other.quiet()
    await other.shows(floor=10)


@pytest.mark.also_over_sockets
@pytest.mark.parametrize(
    ("to", "first"), [("latest", 11), ({"seq": 8}, 8), ({"last": 1}, 10), ({"seq": 1}, 1)]
)
async def test_wire_seek_forward_skips_what_was_not_settled(
    stage: Stage, to: Any, first: int
) -> None:
    publisher, consumer = await working(stage)
    await leave(consumer)
    await publish_all(publisher, range(1, 11))

    sought = await seek(publisher, to)

    assert (sought["next"], sought["willReplay"], sought["willSkip"]) == (first, 0, first - 1)
    await shows(publisher, floor=first - 1, next=first, lag=11 - first)
    back = await enter(stage, "c")
    await publish(publisher, 11)
    assert seqs(await back.take_and_ack(12 - first)) == list(range(first, 12))


async def test_wire_seek_to_a_time_finds_the_first_entry_not_before_it(
    run_stage: RunStage,
) -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        publisher, consumer = await working(stage)
        times = []
        for number in range(1, 6):
            await stage.pass_time(1)
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


async def test_wire_dry_run_tells_and_changes_nothing(stage: Stage) -> None:
    publisher, consumer = await consumed(stage, 10)
    await leave(consumer)
    await publish_all(publisher, range(11, 16))
    before = await sub_info(publisher)

    backwards = await seek(publisher, {"seq": 3}, dryRun=True)
    forwards = await seek(publisher, "latest", dryRun=True)

    assert (backwards["next"], backwards["willReplay"], backwards["willSkip"]) == (3, 8, 0)
    assert (forwards["next"], forwards["willReplay"], forwards["willSkip"]) == (16, 0, 5)
    facts = ("floor", "next", "lag", "head", "inFlight")
    await shows(publisher, **{fact: before[fact] for fact in facts})
    back = await subscribe(consumer.peer)
    assert seqs(await back.take(5)) == [11, 12, 13, 14, 15]


async def test_rd_12_seek_drops_the_window_and_old_acks_are_ignored(stage: Stage) -> None:
    publisher, consumer = await working(stage, 10, window=5)
    old = await consumer.take(5)

    await seek(publisher, {"seq": 3})
    new = await consumer.take(5)
    ignored = [await consumer.settle("hub:ack", seq=one.seq, id=one.id) for one in old]

    assert seqs(new) == [3, 4, 5, 6, 7]
    assert not {one.id for one in old} & {one.id for one in new}
    assert [one["accepted"] for one in ignored] == [0] * 5
    await consumer.shows(floor=2, inFlight=5, lag=8)
    accepted = [await consumer.settle("hub:ack", seq=one.seq, id=one.id) for one in new]
    assert [one["floor"] for one in accepted] == [3, 4, 5, 6, 7]


async def test_rd_12_seek_forgets_failures_and_retries_of_before(stage: Stage) -> None:
    publisher, consumer = await working(stage, 1, definition={"poison": "drop"}, maxDeliveries=2)
    await consumer.next()
    await consumer.nack(1)
    await consumer.shows(waitingRetry=1)

    await seek(publisher, "earliest")

    assert (await consumer.next()).seq == 1
    await consumer.shows(waitingRetry=0)
    await consumer.nack(1)
    # The second failure of all would have been the last; the first after the seek is not.
    await consumer.shows(waitingRetry=1, floor=0)


@pytest.mark.parametrize("mode", MODES)
async def test_wire_seek_of_a_paused_subscription_waits_for_its_resumption(
    stage: Stage, mode: str
) -> None:
    publisher, consumer = await consumed(stage, 5, mode=mode)
    await expect(publisher, "hub:sub_pause", OF_WORK, "hub:sub_info_response")

    await seek(publisher, {"last": 2})

    await consumer.shows(paused=True, next=4, lag=2)
    await consumer.quiet()
    await expect(publisher, "hub:sub_resume", OF_WORK, "hub:sub_info_response")
    assert seqs(await consumer.take_and_ack(2)) == [4, 5]
    await consumer.shows(lag=0)


async def test_wire_position_behind_the_head_is_never_sought(stage: Stage) -> None:
    publisher, consumer = await consumed(stage, 3)

    reply = await publisher.ask("hub:seek", OF_WORK | {"to": {"seq": 1_000}})

    assert reply["type"] == "hub:error" or reply["payload"]["next"] == 4
    await publish(publisher, 4)
    assert (await consumer.next()).seq == 4
    unknown = OF_WORK | {"subscription": "unknown", "to": "earliest"}
    assert await refusal(publisher, "hub:seek", unknown) == "unknown_subscription"


# Replays.


def positions(copies: list[Envelope]) -> list[int]:
    return [copy["metadata"]["delivery"]["seq"] for copy in copies]


@pytest.mark.also_over_sockets
async def test_wire_replay_sends_a_range_in_order_and_then_its_summary(stage: Stage) -> None:
    publisher, reader = await stage.join("@(local/a)"), await stage.join("@(local/c)")
    epoch = (await create(publisher))["epoch"]
    _, empty = await replay(publisher)
    assert (empty["count"], empty["next"]) == (0, 1)
    await publish_all(publisher, range(1, 11))

    asked: list[tuple[dict[str, Any], range, bool, int]] = [
        ({"fromSeq": 1}, range(1, 11), True, 11),
        ({"fromSeq": 4}, range(4, 11), True, 11),
        ({"fromSeq": 11}, range(0), True, 11),
        ({"fromSeq": 4, "toSeq": 6}, range(4, 7), True, 7),
        ({"fromSeq": 4, "toSeq": 4}, range(4, 5), True, 5),
        ({"fromSeq": 1, "limit": 3}, range(1, 4), False, 4),
        ({"fromSeq": 8, "limit": 3}, range(8, 11), True, 11),
        ({"fromSeq": 2, "toSeq": 9, "limit": 2}, range(2, 4), False, 4),
        ({"fromSeq": 2, "toSeq": 3, "limit": 5}, range(2, 4), True, 4),
    ]
    for given, found, complete, following in asked:
        copies, summary = await replay(reader, **given)

        assert positions(copies) == [copy["payload"] for copy in copies] == list(found)
        for copy in copies:
            assert copy["metadata"]["delivery"]["epoch"] == epoch
            assert (copy["to"], copy["from"]) == ("@(local/c)", "@(local/a)")
        facts = (summary["count"], summary["complete"], summary["next"])
        assert facts == (len(found), complete, following), given


async def test_wire_replay_keeps_type_key_headers_and_time_and_moves_no_subscription(
    stage: Stage,
) -> None:
    publisher, consumer = await working(stage)
    await publish(publisher, {"n": 1}, type="order:placed", key="k", headers={"a": "b"})
    live = (await consumer.next()).envelope
    before = await consumer.info()

    ((copy,), _) = await replay(consumer.peer)

    assert (copy["type"], copy["payload"]) == ("order:placed", {"n": 1})
    assert (copy["metadata"]["key"], copy["metadata"]["headers"]) == ("k", {"a": "b"})
    for fact in ("epoch", "seq", "publishedAt"):
        assert copy["metadata"]["delivery"][fact] == live["metadata"]["delivery"][fact]
    assert copy["id"] == live["id"]
    await consumer.shows(**{fact: before[fact] for fact in ("floor", "next", "lag", "inFlight")})
    assert (await consumer.ack(1))["accepted"] == 1


async def test_wire_gap_of_a_plain_subscriber_is_closed_by_a_replay(stage: Stage) -> None:
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


async def test_wire_pages_of_a_replay_join_without_gap_or_overlap(stage: Stage) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(1, 101))
    found: list[int] = []
    summary: Facts = {"next": 1, "complete": False}

    for _ in range(20):
        copies, summary = await replay(publisher, fromSeq=summary["next"], limit=7)
        found += positions(copies)
        if summary["complete"]:
            break

    assert summary["complete"]
    assert found == list(range(1, 101))
