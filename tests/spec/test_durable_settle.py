"""Settling: ack, nack, extend and term; deadlines, back-off, and messages nobody can process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.peer import code_of
from tests.support.socket.topics import (
    DLQ,
    HASTY,
    MODES,
    OF_WORK,
    SETTLED,
    TOPIC,
    Consumer,
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
    working,
)
from tests.support.stage import RunStage, Stage

SETTLES: list[tuple[str, dict[str, Any]]] = [
    ("hub:ack", {}),
    ("hub:nack", {"delayMs": 1_000, "reason": "busy"}),
    ("hub:extend", {"ms": 10_000}),
    ("hub:term", {"reason": "broken"}),
]
# Jitter may shorten a pause by a fifth.


@pytest.mark.also_over_sockets
@pytest.mark.parametrize(("how", "what"), SETTLES)
async def test_wire_settling_as_ask_is_answered_with_floor_accepted_and_ignored(
    stage: Stage, how: str, what: dict[str, Any]
) -> None:
    _, consumer = await working(stage, 4)
    await consumer.take(4)
    epoch = consumer.joined["epoch"]
    is_settled = how in ("hub:ack", "hub:term")

    for name, seq in (({"subscriptionId": consumer.id}, 1), (OF_WORK, 3)):
        payload = name | what | {"epoch": epoch, "seqs": [seq, seq + 1, 99]}
        settled = await expect(consumer.peer, how, payload, SETTLED[how])
        assert (settled["accepted"], settled["ignored"]) == (2, [99])
        assert settled["floor"] == (seq + 1 if is_settled else 0)


@pytest.mark.parametrize(("how", "what"), SETTLES)
async def test_wire_settling_as_tell_is_not_answered(
    stage: Stage, how: str, what: dict[str, Any]
) -> None:
    _, consumer = await working(stage, 1)
    await consumer.next()

    consumer.send(how, seq=1, **what)
    consumer.send(how, seq=99, **what)

    await consumer.quiet()
    floor, waiting = int(how in ("hub:ack", "hub:term")), int(how == "hub:nack")
    await consumer.shows(floor=floor, waitingRetry=waiting)


async def test_wire_settle_that_does_not_fit_settles_nothing(stage: Stage) -> None:
    _, consumer = await working(stage, 1)
    await consumer.next()
    stranger = await stage.join("@(local/stranger)")
    await (await subscribe(stranger, name="other")).next()

    for how, what in SETTLES:
        by_id = {"subscriptionId": consumer.id, "seq": 1} | what
        by_name = OF_WORK | {"seq": 1} | what
        assert await refusal(stranger, how, by_name) == "not_a_consumer"
        assert await refusal(stranger, how, by_id) in ("not_a_consumer", "unknown_subscription")
        unknown = by_name | {"subscription": "nobody's"}
        assert await refusal(consumer.peer, how, unknown) == "unknown_subscription"
    await consumer.shows(inFlight=1)


@pytest.mark.parametrize("mode", ["exclusive", "failover"])
async def test_wire_up_to_settles_everything_in_flight_below(stage: Stage, mode: str) -> None:
    _, consumer = await working(stage, 10, mode=mode, window=5)
    await consumer.take(5)
    await consumer.ack(2)
    await consumer.next()

    settled = await consumer.settle("hub:ack", upTo=4)

    assert (settled["floor"], settled["accepted"], settled["ignored"]) == (4, 3, [])
    assert seqs(await consumer.take(3)) == [7, 8, 9]
    # What was never delivered is not settled.
    assert (await consumer.settle("hub:ack", upTo=10))["floor"] == 9
    assert (await consumer.next()).seq == 10


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
async def test_wire_up_to_is_refused_where_others_share_the_order(stage: Stage, mode: str) -> None:
    _, consumer = await working(stage, 1, mode=mode)
    await consumer.next()

    for how, what in SETTLES:
        code_of(await consumer.peer.ask(how, {"subscriptionId": consumer.id, "upTo": 1} | what))

    await consumer.shows(inFlight=1)


async def test_rd_7_3_ack_for_what_is_not_in_flight_is_ignored(stage: Stage) -> None:
    _, consumer = await working(stage, 4, window=2)
    await consumer.take(2)

    ahead = await consumer.ack(3, 4, 5, 2**40)
    await consumer.ack(1)
    again = await consumer.ack(1)

    assert (ahead["accepted"], ahead["ignored"], ahead["floor"]) == (0, [3, 4, 5, 2**40], 0)
    assert (again["accepted"], again["ignored"], again["floor"]) == (0, [1], 1)
    assert (await consumer.next()).seq == 3


async def test_rd_7_3_ack_with_an_id_must_match_an_attempt_however_early(stage: Stage) -> None:
    _, consumer = await working(stage, 3, **HASTY)
    first, second, third = await consumer.take(3)

    for wrong in ("nonsense", second.id):
        ignored = await consumer.settle("hub:ack", seq=1, id=wrong)
        assert (ignored["accepted"], ignored["ignored"]) == (0, [1])
    await consumer.nack(1)
    again = await consumer.next()
    assert again.id != first.id
    assert (await consumer.settle("hub:ack", seq=1, id=first.id))["floor"] == 1
    # Also while it waits for its retry, which is spared then.
    await consumer.nack(3, delayMs=60_000)
    assert (await consumer.settle("hub:ack", seq=3, id=third.id))["accepted"] == 1
    await consumer.shows(waitingRetry=0, lag=1)
    await consumer.quiet()


async def test_wire_settling_one_subscription_leaves_the_others_alone(stage: Stage) -> None:
    _, consumer = await working(stage, 3)
    other = await enter(stage, "c", name="other")
    await consumer.take(3)
    await other.take(3)

    await consumer.ack(1, 2, 3)

    await other.shows(floor=0, inFlight=3, lag=3)
    assert await other.ack(3) == {"floor": 0, "accepted": 1, "ignored": []}
    await other.shows(settledAboveFloor=1)


# Disconnects.


async def test_rd_s7_disconnect_after_receipt_settles_nothing_at_any_index(stage: Stage) -> None:
    publisher, consumer = await working(stage, window=10)
    settled = 0

    for index in range(11):
        await publish_all(publisher, range(10))
        heard = await consumer.take(10)
        assert seqs(heard) == list(range(settled + 1, settled + 11))
        assert {one.attempt for one in heard} == {1}
        if index:
            await consumer.settle("hub:ack", upTo=settled + index)
        consumer.peer.abort()
        consumer = await reenter(stage, "b", window=10)
        again = await consumer.take(10 - index)
        assert seqs(again) == list(range(settled + index + 1, settled + 11))
        assert {one.attempt for one in again} <= {2}
        assert [one.envelope["id"] for one in again] == [
            one.envelope["id"] for one in heard[index:]
        ]
        settled += 10
        assert (await consumer.settle("hub:ack", upTo=settled))["floor"] == settled
    await consumer.quiet()


@pytest.mark.parametrize("how", ["abort", "leave", "take over"])
async def test_rd_d13_reconnecting_does_not_use_up_the_failures(stage: Stage, how: str) -> None:
    options: dict[str, Any] = HASTY | {"maxDeliveries": 2, "consumer": "worker"}
    _, consumer = await working(stage, 1, definition={"poison": "drop"}, **options)
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


# Failures.


async def fail(consumer: Consumer, seq: int, times: int) -> None:
    """Nack every attempt at one message, the first of which has arrived already."""
    for attempt in range(1, times + 1):
        await consumer.nack(seq, reason=f"failure {attempt}")
        if attempt < times:
            again = await consumer.next()
            assert (again.seq, again.attempt) == (seq, attempt + 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("why", ["nack", "silence"])
async def test_rd_23_failed_message_comes_again(stage: Stage, mode: str, why: str) -> None:
    options = HASTY | {"ackTimeoutMs": 60_000 if why == "nack" else 200}
    _, consumer = await working(stage, 1, mode=mode, **options)
    first, began = await consumer.next(), stage.clock.now_ms()

    if why == "nack":
        assert await consumer.nack(1) == {"floor": 0, "accepted": 1, "ignored": []}
    again = await consumer.next()

    assert (again.seq, again.attempt, again.payload) == (1, 2, 1)
    assert again.envelope["id"] == first.envelope["id"]
    assert stage.clock.now_ms() - began >= (0 if why == "nack" else 190)
    # By its id, because on a busy machine the next deadline may have passed already.
    assert (await consumer.settle("hub:ack", seq=1, id=again.id))["floor"] == 1


async def test_rd_s6_message_that_waits_for_its_retry_keeps_its_place_in_the_window(
    stage: Stage,
) -> None:
    _, consumer = await working(stage, 10, window=2)
    await consumer.take(2)

    await consumer.nack(1)

    await consumer.quiet()
    await consumer.shows(waitingRetry=1, inFlight=1, lag=10, floor=0, next=3)
    # The others go on in what is left of it.
    await consumer.ack(2)
    assert seqs(await consumer.take_and_ack(8)) == [3, 4, 5, 6, 7, 8, 9, 10]
    await consumer.shows(floor=0, waitingRetry=1, lag=1)


async def test_rd_8_deadlines_are_exact_without_the_watchdog(run_stage: RunStage) -> None:
    async with run_stage(dispatch={"heartbeat_ms": 0}) as stage:
        _, consumer = await working(stage, 1, ackTimeoutMs=50, backoffMs=10, backoffCapMs=20)

        assert [(await consumer.next()).attempt for _ in range(3)] == [1, 2, 3]
        await consumer.nack(1)
        assert (await consumer.next()).attempt == 4


async def test_wire_extended_deadline_is_waited_for(stage: Stage) -> None:
    options = HASTY | {"ackTimeoutMs": 500, "maxDeliveries": 100}
    _, consumer = await working(stage, 2, **options)
    await consumer.take(2)

    extended = await consumer.settle("hub:extend", seq=1, ms=60_000)

    assert extended == {"floor": 0, "accepted": 1, "ignored": []}
    # The other one tells the time: it comes again and again before the first does.
    heard = await consumer.take(2)
    assert [(one.seq, one.attempt) for one in heard] == [(2, 2), (2, 3)]
    # A deadline may be brought nearer, too.
    await consumer.settle("hub:extend", seq=2, ms=60_000)
    await consumer.settle("hub:extend", seq=1, ms=50)
    assert (await consumer.next()).seq == 1


async def test_rd_6_retry_of_a_shared_message_prefers_another_consumer(stage: Stage) -> None:
    _, first = await working(stage, 1, mode="shared", **HASTY)
    await first.next()
    second = await enter(stage, "c", mode="shared", **HASTY)

    await first.nack(1)

    again = await second.next()
    assert (again.seq, again.attempt) == (1, 2)
    assert (await second.ack(1))["floor"] == 1
    await first.peer.nothing_more()


@pytest.mark.also_over_sockets
async def test_a_copy_that_somebody_else_has_by_now_is_told_as_stale(stage: Stage) -> None:
    """A consumer that was frozen reads its first copy, unmarked, after its deadline."""
    options: dict[str, Any] = HASTY | {"mode": "shared", "ackTimeoutMs": 300}
    _, frozen = await working(stage, 1, **options)
    first = await frozen.next()
    other = await enter(stage, "c", **options)
    second = await other.next()
    assert (first.attempt, second.attempt) == (1, 2)
    await other.settle("hub:extend", seq=1, id=second.id, ms=60_000)

    ignored = {"floor": 0, "accepted": 0, "ignored": [1]}
    for name in ({"id": first.id}, {"attempt": 1}, {"attempt": 2}, {}):
        assert await frozen.settle("hub:extend", seq=1, ms=60_000, **name) == ignored
    for name in ({"id": first.id}, {"attempt": 1}):
        assert await frozen.settle("hub:nack", seq=1, **name) == ignored
    accepted = {"floor": 0, "accepted": 1, "ignored": []}
    for name in ({"id": second.id}, {"attempt": 2}, {}):
        assert await other.settle("hub:extend", seq=1, ms=60_000, **name) == accepted
    await other.quiet()
    # A late ack still counts: the message was processed.
    assert (await frozen.settle("hub:ack", seq=1, id=first.id))["accepted"] == 1
    assert await other.settle("hub:extend", seq=1, id=second.id, ms=60_000) == ignored | {
        "floor": 1
    }


# Poison.


async def test_r22_six_failures_are_the_default_limit(stage: Stage) -> None:
    publisher, consumer = await working(stage, 2, definition={"poison": "drop"}, **HASTY)
    await consumer.take(2)
    await consumer.ack(2)

    await fail(consumer, 1, 6)

    await until(publisher, floor=2)
    await consumer.quiet()


@pytest.mark.parametrize("mode", ["exclusive", "shared", "failover"])
async def test_r22_block_is_the_default_and_stops_reading(stage: Stage, mode: str) -> None:
    publisher, consumer = await working(stage, 2, mode=mode, maxDeliveries=2, **HASTY)
    other = await enter(stage, "c", name="other")
    await consumer.take(2)

    await fail(consumer, 1, 2)
    await publish_all(publisher, range(3, 6))
    # Retries and acks of what is under way go on, and so do other subscriptions.
    await consumer.nack(2)
    assert (await consumer.next()).seq == 2
    await consumer.ack(2)
    assert seqs(await other.take_and_ack(5)) == [1, 2, 3, 4, 5]

    await consumer.quiet()
    await consumer.shows(floor=0, lag=4, next=3, deadLettered=0)
    assert (await consumer.info())["blocked"] is True
    # It goes on behind the poison after a seek.
    await expect(publisher, "hub:seek", OF_WORK | {"to": {"seq": 3}}, "hub:sought")
    assert seqs(await consumer.take_and_ack(3)) == [3, 4, 5]


@pytest.mark.parametrize("mode", ["exclusive", "shared", "failover"])
async def test_r22_drop_settles_the_poison_and_goes_on(stage: Stage, mode: str) -> None:
    publisher, consumer = await working(
        stage, 1, definition={"poison": "drop"}, mode=mode, maxDeliveries=2, **HASTY
    )
    await consumer.next()

    await fail(consumer, 1, 2)

    await publish_all(publisher, range(2))
    assert seqs(await consumer.take_and_ack(2)) == [2, 3]
    await consumer.shows(floor=3, lag=0, deadLettered=0)
    assert await refusal(publisher, "hub:topic_info", {"topic": DLQ}) == "unknown_topic"


async def test_r22_deadlines_exhaust_a_message_like_nacks(stage: Stage) -> None:
    publisher, consumer = await working(
        stage,
        1,
        definition={"poison": "dead_letter"},
        **HASTY | {"ackTimeoutMs": 100, "maxDeliveries": 2, "consumer": "silent"},
    )

    assert [(one.seq, one.attempt) for one in await consumer.take(2)] == [(1, 1), (1, 2)]
    await until(publisher, deadLettered=1)
    await publish(publisher, "good")
    assert (await consumer.next()).seq == 2
    await consumer.ack(2)
    (letter,) = await dead_letters(publisher)
    story = letter["metadata"]["deadLetter"]
    assert (story["attempts"], story["consumers"]) == (2, ["silent"])
    assert story["reason"]


@pytest.mark.parametrize("of_topic", ["block", "dead_letter"])
async def test_r22_subscription_may_override_the_policy_of_its_topic(
    stage: Stage, of_topic: str
) -> None:
    options: dict[str, Any] = HASTY | {"poison": "drop", "window": 1, "maxDeliveries": 1}
    _, consumer = await working(stage, 2, definition={"poison": of_topic}, **options)
    await consumer.next()

    await fail(consumer, 1, 1)

    assert (await consumer.next()).seq == 2
    await consumer.shows(deadLettered=0)


@pytest.mark.parametrize("poison", ["block", "drop"])
async def test_r22_term_settles_even_where_there_are_no_dead_letters(
    stage: Stage, poison: str
) -> None:
    _, consumer = await working(stage, 2, definition={"poison": poison}, window=1)
    await consumer.next()

    settled = await consumer.term(1, reason="not for us")

    assert (settled["accepted"], settled["floor"]) == (1, 1)
    assert (await consumer.next()).seq == 2
    await consumer.shows(deadLettered=0)


async def test_r22_another_policy_applies_at_once_to_what_is_blocked(stage: Stage) -> None:
    publisher, consumer = await working(stage, 1, maxDeliveries=1, **HASTY)
    await consumer.next()
    await fail(consumer, 1, 1)
    await consumer.shows(lag=1)

    payload = {"topic": TOPIC, "subscription": "work", "poison": "drop"}
    await expect(publisher, "hub:sub_update", payload, "hub:sub_info_response")

    await until(publisher, lag=0)
