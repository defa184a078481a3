"""Entries and time: those that expire, those that wait for their hour, those retention took."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.socket import stage as sockets
from tests.support.socket.stage import LOOK_AGAIN_S
from tests.support.socket.topics import (
    OF_WORK,
    TOPIC,
    UNLIMITED,
    create,
    enter,
    expect,
    leave,
    publish,
    publish_all,
    reenter,
    seqs,
    shows,
    subscribe,
    until,
    working,
)
from tests.support.stage import Stage

SOON_MS = 500
FAR_MS = 3_600_000
RETENTION_PATIENCE_S = 30.0
CHUNK = "x" * 8_000


@pytest.mark.also_over_sockets
async def test_r12_entry_that_expired_while_nobody_consumed_is_passed_over(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    await leave(consumer)
    for data, ttl in (("lasting", None), ("fleeting", 100), ("longer", 60_000)):
        await publish(publisher, data, members={"ttl": ttl})

    await stage.pass_time(0.2)
    await publish(publisher, "new", members={"ttl": 10_000})
    back = await subscribe(consumer.peer)
    heard = await back.take(3)

    assert [one.payload for one in heard] == ["lasting", "longer", "new"]
    assert seqs(heard) == [1, 3, 4]
    assert (await back.ack(1, 3, 4))["floor"] == 4
    await back.shows(lag=0, deadLettered=0)
    await back.quiet()


async def test_r12_entry_that_expires_behind_a_full_window_is_passed_over(stage: Stage) -> None:
    publisher, consumer = await working(stage, window=1)
    for data, ttl in (("first", None), ("fleeting", 100), ("last", None)):
        await publish(publisher, data, members={"ttl": ttl})
    assert (await consumer.next()).payload == "first"

    await stage.pass_time(0.2)
    await consumer.ack(1)

    assert (await consumer.next()).payload == "last"
    assert (await consumer.ack(3))["floor"] == 3


async def test_r12_repeat_of_an_entry_that_has_expired_meanwhile_does_not_come(
    stage: Stage,
) -> None:
    publisher, consumer = await working(stage)
    await publish(publisher, "fleeting", members={"ttl": 100})
    await publish(publisher, "lasting")
    await consumer.take(2)
    await leave(consumer)

    await stage.pass_time(0.2)
    back = await subscribe(consumer.peer)

    again = await back.next()
    assert (again.payload, again.attempt) == ("lasting", 2)
    assert (await back.ack(2))["floor"] == 2


@pytest.mark.also_over_sockets
async def test_r23_delayed_entry_is_overtaken_and_comes_at_its_time(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    listener = await stage.join("@(local/d)")
    await listener.ask("hub:subscribe", {"topic": TOPIC})
    due = stage.clock.now_ms() + SOON_MS

    await publish(publisher, "later", deliverAt=due)
    await publish(publisher, "now")
    late = await enter(stage, "c", name="late")

    for one in (consumer, late):
        assert (await one.next()).payload == "now"
        # What is not due is not settled by what is.
        await one.settle("hub:ack", upTo=2)
    for one in (consumer, late):
        heard = await one.next()
        assert (heard.payload, heard.seq, heard.attempt) == ("later", 1, 1)
        assert stage.clock.now_ms() >= due
        assert (await one.ack(1))["accepted"] == 1
        await one.shows(floor=2)
    # It is for subscriptions and not for who only listens.
    assert (await listener.receive("note"))["payload"] == "now"
    await listener.nothing_more()


async def test_r23_delayed_entries_are_outside_window_floor_and_lag(stage: Stage) -> None:
    publisher, consumer = await working(stage, window=2)
    later = stage.clock.now_ms() + FAR_MS

    for _ in range(5):
        await publish(publisher, "later", deliverAt=later)
    await publish_all(publisher, ["now", "now"])

    assert seqs(await consumer.take(2)) == [6, 7]
    await consumer.shows(lag=2, inFlight=2, waitingRetry=0)
    settled = await consumer.settle("hub:ack", upTo=7)
    assert (settled["accepted"], settled["floor"]) == (2, 7)
    await consumer.shows(floor=7, lag=0, head=7)


async def test_r23_delayed_entries_come_in_order_of_their_times(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    base = stage.clock.now_ms() + SOON_MS
    delays = (120, 0, 60)

    for delay in delays:
        await publish(publisher, delay, deliverAt=base + delay)

    for wanted in sorted(delays):
        assert (await consumer.next()).payload == wanted
        assert stage.clock.now_ms() >= base + wanted


@pytest.mark.parametrize("ago_ms", [0, 1, FAR_MS, 1_700_000_000_000])
async def test_r23_time_in_the_past_means_at_once(stage: Stage, ago_ms: int) -> None:
    publisher, consumer = await working(stage)

    await publish(publisher, "now", deliverAt=max(0, stage.clock.now_ms() - ago_ms))

    assert (await consumer.next()).payload == "now"
    assert (await consumer.ack(1))["floor"] == 1


async def test_r23_nobody_gets_what_becomes_due_until_a_consumer_comes(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    await leave(consumer)
    await publish(publisher, "later", deliverAt=stage.clock.now_ms() + 50)

    # Once it is due it counts as behind like any other.
    await until(publisher, lag=1)
    back = await subscribe(consumer.peer)

    assert (await back.next()).payload == "later"
    assert (await back.ack(1))["floor"] == 1


async def test_r23_delayed_entry_may_expire_before_its_time(stage: Stage) -> None:
    publisher, consumer = await working(stage)
    now = stage.clock.now_ms()

    await publish(publisher, "never", deliverAt=now + SOON_MS, members={"ttl": 400})
    await publish(publisher, "later", deliverAt=now + SOON_MS + 50)

    assert (await consumer.next()).payload == "later"
    assert (await consumer.ack(2))["floor"] == 2


# Retention is of a log in files.


async def until_cut(stage: sockets.Stage, above: int) -> None:
    """Publish until retention has taken more than the first `above` entries."""
    peer = await stage.join("@(local/probe)")
    await leave(await subscribe(peer, name="probe", start="latest"))
    await publish_all(peer, [CHUNK] * 60)
    look = OF_WORK | {"subscription": "probe", "to": "earliest", "dryRun": True}
    async with asyncio.timeout(RETENTION_PATIENCE_S):
        while (await expect(peer, "hub:seek", look, "hub:sought"))["next"] <= above + 1:
            await publish(peer, CHUNK)
            await asyncio.sleep(LOOK_AGAIN_S)


# Whose retention it is → what the topic and what the log is told.
RETENTION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of the topic": ({"retention": {"bytes": 100_000}}, {}),
    "of the log": ({}, {"retention_bytes": 262_144, "keep_unsettled": False}),
}


@pytest.mark.parametrize("whose", RETENTION)
async def test_r25_what_retention_took_is_reported_and_the_rest_arrives(whose: str) -> None:
    definition, log = RETENTION[whose]
    async with sockets.run_stage(log={"segment_bytes": 65_536} | log, **UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        epoch = (await create(publisher, **definition))["epoch"]
        consumer = await enter(stage, "b", window=10)
        await publish_all(publisher, [CHUNK] * 10)
        await consumer.take(10)
        await consumer.ack(1, 2, 3)
        await leave(consumer)

        await until_cut(stage, 10)
        resume = {"epoch": epoch, "seq": 3}
        back = await reenter(stage, "b", window=10, resume=resume)

        assert back.joined["recovered"] is False
        assert back.joined["lostFrom"] == 4
        first = back.joined["lostTo"] + 1
        assert first > 10
        assert back.joined["next"] == first
        info = await back.info()
        assert info["floor"] == first - 1
        assert info["lag"] == info["head"] - info["floor"]
        await publish_all(publisher, ["after", "after"])
        heard = await back.take_and_ack(info["head"] + 2 - info["floor"])
        assert seqs(heard) == list(range(first, info["head"] + 3))
        await back.shows(lag=0)

        # The earliest is the oldest entry that can be read.
        new = await enter(stage, "c", name="new", window=5)
        oldest = new.joined["next"]
        assert oldest >= first
        assert (new.joined["lostFrom"], new.joined["lostTo"]) == (1, oldest - 1)
        assert (await new.next()).seq == oldest
        seek = OF_WORK | {"to": {"seq": 1}, "dryRun": True}
        assert (await expect(publisher, "hub:seek", seek, "hub:sought"))["next"] >= oldest


async def test_rd_l6_retention_waits_for_the_slowest_subscription() -> None:
    log = {"segment_bytes": 65_536, "retention_bytes": 131_072}
    async with sockets.run_stage(log=log, **UNLIMITED) as stage:
        publisher, consumer = await working(stage, window=10)
        await leave(consumer)

        await publish_all(publisher, [CHUNK] * 100)
        back = await subscribe(consumer.peer, window=10)

        assert back.joined["recovered"] is True
        assert seqs(await back.take_and_ack(100)) == list(range(1, 101))
        await shows(publisher, lag=0)
