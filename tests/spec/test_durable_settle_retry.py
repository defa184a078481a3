"""Failure: nack, deadlines, back-off, and what becomes of a message nobody can process."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.topics import (
    HASTY,
    NAME,
    TOPIC,
    Consumer,
    create,
    dead_letters,
    enter,
    expect,
    leave,
    publish,
    publish_all,
    reenter,
    refusal,
    seqs,
    subscribe,
    until,
)

# Jitter may shorten a pause by a fifth.
JITTERED = 0.79


async def fail(consumer: Consumer, seq: int, times: int) -> None:
    """Nack every attempt at one message, the first of which has arrived already."""
    for attempt in range(1, times + 1):
        await consumer.nack(seq, reason=f"failure {attempt}")
        if attempt < times:
            again = await consumer.next()
            assert (again.seq, again.attempt) == (seq, attempt + 1)


@pytest.mark.parametrize("mode", ["exclusive", "shared", "failover", "key-shared"])
async def test_rd_23_nacked_message_comes_again(stage: InProcess, mode: str) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", mode=mode, **HASTY)
    await publish(publisher, "hard")
    first = await consumer.next()

    settled = await consumer.nack(1)
    again = await consumer.next()

    assert settled == {"floor": 0, "accepted": 1, "ignored": []}
    assert (again.seq, again.attempt, again.payload) == (1, 2, "hard")
    assert again.envelope["id"] == first.envelope["id"]
    assert (await consumer.ack(1))["floor"] == 1
    await consumer.quiet()


async def test_rd_s6_message_that_waits_for_its_retry_keeps_its_place_in_the_window(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=2)
    await publish_all(publisher, range(3))
    await consumer.take(2)

    await consumer.nack(1)

    await consumer.quiet()
    info = await consumer.info()
    assert (info["waitingRetry"], info["inFlight"], info["lag"]) == (1, 1, 3)
    assert (info["floor"], info["next"]) == (0, 3)


async def test_rd_7_5_back_off_doubles_up_to_its_cap(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", backoffMs=40, backoffCapMs=100, maxDeliveries=10)
    await publish(publisher, 1)
    await consumer.next()

    for pause_ms in (40, 80, 100, 100):
        began = time.monotonic()
        await consumer.nack(1)
        await consumer.next()
        assert (time.monotonic() - began) * 1000 >= pause_ms * JITTERED


async def test_wire_nack_may_ask_for_a_longer_pause_than_the_policy(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", backoffMs=10, backoffCapMs=10_000)
    await publish_all(publisher, range(2))
    await consumer.take(2)
    began = time.monotonic()

    await consumer.nack(1, delayMs=800)
    await consumer.nack(2, delayMs=0)
    heard = await consumer.take(2)

    assert seqs(heard) == [2, 1]
    assert time.monotonic() - began >= 0.8 * JITTERED


async def test_wire_nack_may_not_ask_for_a_shorter_pause_than_the_policy(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", backoffMs=200, backoffCapMs=10_000)
    await publish(publisher, 1)
    await consumer.next()
    began = time.monotonic()

    await consumer.nack(1, delayMs=0)
    await consumer.next()

    assert time.monotonic() - began >= 0.2 * JITTERED


async def test_rd_7_5_cap_holds_for_the_pause_a_nack_asks_for(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", backoffMs=10, backoffCapMs=50)
    await publish(publisher, 1)
    await consumer.next()

    await consumer.nack(1, delayMs=3_600_000)

    assert (await consumer.next()).attempt == 2


async def test_rd_7_3_others_go_on_while_one_waits_for_its_retry(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=3)
    await publish_all(publisher, range(10))
    await consumer.take(3)
    await consumer.nack(1)

    await consumer.ack(2, 3)

    assert seqs(await consumer.take_and_ack(7)) == [4, 5, 6, 7, 8, 9, 10]
    info = await consumer.info()
    assert (info["floor"], info["waitingRetry"], info["lag"]) == (0, 1, 1)


@pytest.mark.parametrize("mode", ["exclusive", "shared", "failover", "key-shared"])
async def test_rd_23_unanswered_message_comes_again_after_its_deadline(
    stage: InProcess, mode: str
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    options = HASTY | {"ackTimeoutMs": 100}
    consumer = await enter(stage, "b", mode=mode, **options)
    await publish(publisher, 1)
    await consumer.next()
    began = time.monotonic()

    again = await consumer.next()

    assert (again.seq, again.attempt) == (1, 2)
    assert time.monotonic() - began >= 0.09
    # By its id, because on a busy machine the next deadline may have passed already.
    assert (await consumer.settle("hub:ack", seq=1, id=again.id))["accepted"] == 1


async def test_rd_8_deadlines_are_exact_without_the_watchdog() -> None:
    async with run_stage(dispatch={"heartbeat_ms": 0}) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b", ackTimeoutMs=50, backoffMs=10, backoffCapMs=20)
        await publish(publisher, 1)

        assert [(await consumer.next()).attempt for _ in range(3)] == [1, 2, 3]
        await consumer.nack(1)
        assert (await consumer.next()).attempt == 4


async def test_wire_extended_deadline_is_waited_for(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(
        stage, "b", ackTimeoutMs=500, backoffMs=10, backoffCapMs=20, maxDeliveries=100
    )
    await publish_all(publisher, range(2))
    await consumer.take(2)

    extended = await consumer.settle("hub:extend", seq=1, ms=60_000)

    assert extended == {"floor": 0, "accepted": 1, "ignored": []}
    # The other one tells the time: it comes again and again before the first does.
    heard = await consumer.take(2)
    assert [(one.seq, one.attempt) for one in heard] == [(2, 2), (2, 3)]
    assert (await consumer.ack(1))["accepted"] == 1


async def test_wire_extend_may_bring_a_deadline_nearer(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", **HASTY)
    await publish(publisher, 1)
    await consumer.next()

    await consumer.settle("hub:extend", seq=1, ms=50)

    assert (await consumer.next()).attempt == 2


async def test_rd_6_retry_of_a_shared_message_prefers_another_consumer(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    first = await enter(stage, "b", mode="shared", **HASTY)
    await publish(publisher, 1)
    await first.next()
    second = await enter(stage, "c", mode="shared", **HASTY)

    await first.nack(1)

    again = await second.next()
    assert (again.seq, again.attempt) == (1, 2)
    assert (await second.ack(1))["floor"] == 1
    await first.peer.nothing_more()


async def test_r22_six_failures_are_the_default_limit(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="drop")
    consumer = await enter(stage, "b", **HASTY)
    await publish_all(publisher, range(2))
    await consumer.take(2)
    await consumer.ack(2)

    await fail(consumer, 1, 6)

    await until(publisher, floor=2)
    await consumer.quiet()


@pytest.mark.parametrize("mode", ["exclusive", "shared", "failover"])
async def test_r22_block_is_the_default_and_stops_reading(stage: InProcess, mode: str) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", mode=mode, maxDeliveries=2, **HASTY)
    await publish_all(publisher, range(2))
    await consumer.take(2)

    await fail(consumer, 1, 2)
    await publish_all(publisher, range(3))
    # Retries and acks of what is under way go on.
    await consumer.nack(2)
    assert (await consumer.next()).seq == 2
    await consumer.ack(2)

    await consumer.quiet()
    info = await consumer.info()
    assert (info["floor"], info["lag"], info["next"]) == (0, 4, 3)
    assert info["deadLettered"] == 0


async def test_r22_blocked_subscription_goes_on_behind_the_poison_after_a_seek(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=1, maxDeliveries=1, **HASTY)
    await publish_all(publisher, range(3))
    await consumer.next()
    await fail(consumer, 1, 1)
    await consumer.quiet()

    seek = {"topic": TOPIC, "subscription": NAME, "to": {"seq": 2}}
    await expect(publisher, "hub:seek", seek, "hub:sought")

    assert seqs(await consumer.take_and_ack(2)) == [2, 3]


async def test_r22_blocked_subscription_does_not_block_others(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    blocked = await enter(stage, "b", window=1, maxDeliveries=1, **HASTY)
    other = await enter(stage, "c", name="other")
    await publish_all(publisher, range(3))
    await blocked.next()

    await fail(blocked, 1, 1)

    await publish_all(publisher, range(3))
    assert seqs(await other.take_and_ack(6)) == [1, 2, 3, 4, 5, 6]
    await blocked.quiet()


@pytest.mark.parametrize("mode", ["exclusive", "shared", "failover"])
async def test_r22_drop_settles_the_poison_and_goes_on(stage: InProcess, mode: str) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="drop")
    consumer = await enter(stage, "b", mode=mode, maxDeliveries=2, **HASTY)
    await publish(publisher, "poison")
    await consumer.next()

    await fail(consumer, 1, 2)

    await publish_all(publisher, range(2))
    assert seqs(await consumer.take_and_ack(2)) == [2, 3]
    info = await consumer.info()
    assert (info["floor"], info["lag"], info["deadLettered"]) == (3, 0, 0)
    assert await refusal(publisher, "hub:topic_info", {"topic": f"{TOPIC}.dlq"}) == (
        "unknown_topic"
    )


async def test_r22_deadlines_exhaust_a_message_like_nacks(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="dead_letter")
    consumer = await enter(
        stage, "b", ackTimeoutMs=100, backoffMs=10, backoffCapMs=20, maxDeliveries=2
    )
    await publish(publisher, "poison")

    assert [(one.seq, one.attempt) for one in await consumer.take(2)] == [(1, 1), (1, 2)]
    await until(publisher, deadLettered=1)
    await publish(publisher, "good")
    assert (await consumer.next()).seq == 2
    await consumer.ack(2)
    (letter,) = await dead_letters(publisher)
    assert letter["metadata"]["deadLetter"]["attempts"] == 2
    assert letter["metadata"]["deadLetter"]["reason"]


@pytest.mark.parametrize(
    ("of_topic", "of_subscription"), [("block", "drop"), ("dead_letter", "drop")]
)
async def test_r22_subscription_may_override_the_policy_of_its_topic(
    stage: InProcess, of_topic: str, of_subscription: str
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison=of_topic)
    consumer = await enter(stage, "b", poison=of_subscription, window=1, maxDeliveries=1, **HASTY)
    await publish_all(publisher, range(2))
    await consumer.next()

    await fail(consumer, 1, 1)

    assert (await consumer.next()).seq == 2
    assert (await consumer.info())["deadLettered"] == 0


@pytest.mark.parametrize("poison", ["block", "drop"])
async def test_r22_term_settles_even_where_there_are_no_dead_letters(
    stage: InProcess, poison: str
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison=poison)
    consumer = await enter(stage, "b", window=1)
    await publish_all(publisher, range(2))
    await consumer.next()

    settled = await consumer.term(1, reason="not for us")

    assert (settled["accepted"], settled["floor"]) == (1, 1)
    assert (await consumer.next()).seq == 2
    assert (await consumer.info())["deadLettered"] == 0


@pytest.mark.parametrize("how", ["abort", "leave", "take over"])
async def test_rd_d13_reconnecting_does_not_use_up_the_failures(stage: InProcess, how: str) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher, poison="drop")
    options: dict[str, Any] = HASTY | {"maxDeliveries": 2, "consumer": "worker"}
    await publish(publisher, "healthy")
    consumer = await enter(stage, "b", **options)
    assert (await consumer.next()).attempt == 1

    for attempt in range(2, 12):
        match how:
            case "abort":
                consumer.peer.abort()
                consumer = await reenter(stage, "b", **options)
            case "leave":
                await leave(consumer)
                consumer = await subscribe(consumer.peer, **options)
            case _:
                consumer = await enter(stage, f"b-{attempt}", **options)
        assert (await consumer.next()).attempt == attempt

    # One real failure of two: it has to come once more.
    await consumer.nack(1)
    assert (await consumer.next()).attempt == 12
    assert (await consumer.ack(1))["floor"] == 1


async def test_rd_d12_messages_of_a_gone_consumer_do_not_wait_for_their_deadline(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    first = await enter(stage, "b", mode="shared", consumer="first")
    await publish_all(publisher, range(3))
    await first.take(3)
    second = await enter(stage, "c", mode="shared", consumer="second")

    first.peer.abort()

    again = await second.take(3)
    assert sorted(seqs(again)) == [1, 2, 3]
    assert {one.attempt for one in again} == {2}
