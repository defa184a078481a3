"""Settling: ack, nack, extend and term, by every name, with every kind of position."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, code_of
from tests.support.socket.topics import (
    HASTY,
    TOPIC,
    Consumer,
    count_of,
    create,
    enter,
    expect,
    leave,
    publish,
    publish_all,
    reenter,
    refusal,
    seqs,
    subscribe,
)

ANSWERS = {
    "hub:ack": "hub:acked",
    "hub:nack": "hub:nacked",
    "hub:extend": "hub:extended",
    "hub:term": "hub:termed",
}
SETTLES: list[tuple[str, dict[str, Any]]] = [
    ("hub:ack", {}),
    ("hub:nack", {"delayMs": 1_000, "reason": "busy"}),
    ("hub:extend", {"ms": 10_000}),
    ("hub:term", {"reason": "broken"}),
]


async def prepared(stage: InProcess, count: int, **options: Any) -> tuple[Peer, Consumer]:
    """A publisher, and a consumer that holds so many messages."""
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", **options)
    await publish_all(publisher, range(count))
    await consumer.take(count)
    return publisher, consumer


@pytest.mark.parametrize(("how", "what"), SETTLES)
@pytest.mark.parametrize("by_name", [False, True], ids=["by id", "by name"])
async def test_wire_settling_as_ask_is_answered_with_floor_accepted_and_ignored(
    stage: InProcess, how: str, what: dict[str, Any], by_name: bool
) -> None:
    _, consumer = await prepared(stage, 3)
    name = {"topic": TOPIC, "subscription": "work"} if by_name else {"subscriptionId": consumer.id}
    epoch = consumer.joined["epoch"]

    settled = await expect(
        consumer.peer, how, name | what | {"epoch": epoch, "seqs": [1, 2, 99]}, ANSWERS[how]
    )

    assert settled["accepted"] == 2
    assert settled["ignored"] == [99]
    assert settled["floor"] == (2 if how in ("hub:ack", "hub:term") else 0)


@pytest.mark.parametrize(("how", "what"), SETTLES)
async def test_wire_settling_as_tell_is_not_answered(
    stage: InProcess, how: str, what: dict[str, Any]
) -> None:
    _, consumer = await prepared(stage, 1)

    consumer.send(how, seq=1, **what)
    consumer.send(how, seq=99, **what)

    await consumer.quiet()
    info = await consumer.info()
    assert info["floor"] == (1 if how in ("hub:ack", "hub:term") else 0)
    assert info["waitingRetry"] == (1 if how == "hub:nack" else 0)


async def test_wire_epoch_may_be_left_out_and_means_the_current_one(stage: InProcess) -> None:
    _, consumer = await prepared(stage, 2)

    assert (await consumer.settle("hub:ack", seq=1))["floor"] == 1
    current = consumer.joined["epoch"]
    assert (await consumer.settle("hub:ack", epoch=current, seq=2))["floor"] == 2


async def test_wire_position_of_a_foreign_epoch_settles_nothing(stage: InProcess) -> None:
    _, consumer = await prepared(stage, 1)
    position = {"subscriptionId": consumer.id, "epoch": "of another log", "seq": 1}

    for how, what in SETTLES:
        reply = await consumer.peer.ask(how, position | what)

        assert code_of(reply) == "wrong_epoch", how
        assert reply["payload"]["details"]["current"] == consumer.joined["epoch"]
    assert (await consumer.info())["inFlight"] == 1


@pytest.mark.parametrize("mode", ["exclusive", "failover"])
async def test_wire_up_to_settles_everything_in_flight_below(stage: InProcess, mode: str) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", mode=mode, window=5)
    await publish_all(publisher, range(8))
    await consumer.take(5)
    await consumer.ack(2)
    await consumer.next()

    settled = await consumer.settle("hub:ack", upTo=4)

    assert (settled["floor"], settled["accepted"], settled["ignored"]) == (4, 3, [])
    assert seqs(await consumer.take(2)) == [7, 8]
    assert (await consumer.info())["inFlight"] == 4


async def test_wire_up_to_does_not_settle_what_was_never_delivered(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=2)
    await publish_all(publisher, range(5))
    await consumer.take(2)

    settled = await consumer.settle("hub:ack", upTo=5)

    assert settled["floor"] == 2
    assert seqs(await consumer.take(2)) == [3, 4]


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
async def test_wire_up_to_is_refused_where_others_share_the_order(
    stage: InProcess, mode: str
) -> None:
    _, consumer = await prepared(stage, 1, mode=mode)

    for how, what in SETTLES:
        code_of(await consumer.peer.ask(how, {"subscriptionId": consumer.id, "upTo": 1} | what))

    assert (await consumer.info())["inFlight"] == 1


async def test_rd_7_3_ack_for_what_is_not_in_flight_is_ignored(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=2)
    await publish_all(publisher, range(4))
    await consumer.take(2)

    ahead = await consumer.ack(3, 4, 5, 2**40)
    await consumer.ack(1)
    again = await consumer.ack(1)

    assert (ahead["accepted"], ahead["ignored"], ahead["floor"]) == (0, [3, 4, 5, 2**40], 0)
    assert (again["accepted"], again["ignored"], again["floor"]) == (0, [1], 1)
    assert (await consumer.next()).seq == 3


async def test_wire_ack_with_an_id_must_match_an_attempt(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", **HASTY)
    await publish_all(publisher, range(2))
    first, second = await consumer.take(2)

    for wrong in ("nonsense", second.id):
        ignored = await consumer.settle("hub:ack", seq=1, id=wrong)
        assert (ignored["accepted"], ignored["ignored"]) == (0, [1])
    assert (await consumer.settle("hub:ack", seq=1, id=first.id))["accepted"] == 1


async def test_rd_7_3_late_ack_of_an_earlier_attempt_is_accepted(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", **HASTY)
    await publish(publisher, 1)
    first = await consumer.next()
    await consumer.nack(1)
    second = await consumer.next()

    assert first.id != second.id
    assert (await consumer.settle("hub:ack", seq=1, id=first.id))["floor"] == 1
    await consumer.quiet()


async def test_rd_7_3_late_ack_while_waiting_for_a_retry_spares_it(stage: InProcess) -> None:
    _, consumer = await prepared(stage, 1)
    publisher = await stage.join("@(local/c)")
    await publish(publisher, 2)
    late = await consumer.next()
    await consumer.nack(2)

    settled = await consumer.settle("hub:ack", seq=2, id=late.id)

    assert settled["accepted"] == 1
    info = await consumer.info()
    assert (info["waitingRetry"], info["lag"]) == (0, 1)
    assert (await consumer.ack(1))["floor"] == 2


async def test_wire_only_consumers_of_the_subscription_may_settle(stage: InProcess) -> None:
    _, consumer = await prepared(stage, 1)
    stranger = await stage.join("@(local/stranger)")
    elsewhere = await subscribe(stranger, name="other")
    await elsewhere.next()

    for how, what in SETTLES:
        by_name = {"topic": TOPIC, "subscription": "work", "seq": 1} | what
        by_id = {"subscriptionId": consumer.id, "seq": 1} | what

        assert await refusal(stranger, how, by_name) == "not_a_consumer", how
        assert await refusal(stranger, how, by_id) in ("not_a_consumer", "unknown_subscription")
    assert (await consumer.info())["inFlight"] == 1


async def test_wire_unknown_subscription_cannot_be_settled(stage: InProcess) -> None:
    _, consumer = await prepared(stage, 1)

    for how, what in SETTLES:
        unknown = {"topic": TOPIC, "subscription": "nobody's", "seq": 1} | what
        elsewhere = unknown | {"topic": "nowhere"}

        assert await refusal(consumer.peer, how, unknown) == "unknown_subscription", how
        assert await refusal(consumer.peer, how, elsewhere) in (
            "unknown_topic",
            "unknown_subscription",
        )
    assert (await consumer.info())["inFlight"] == 1


async def test_rd_s7_disconnect_after_receipt_settles_nothing_at_any_index(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=10)
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
        settled += 10
        floor = (await consumer.settle("hub:ack", upTo=settled))["floor"]
        assert floor == settled


async def test_rd_s7_consumer_that_got_a_message_many_times_settles_it_once(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish(publisher, "again and again")
    consumer = await enter(stage, "b")
    first = await consumer.next()

    for attempt in range(2, 6):
        consumer.peer.abort()
        consumer = await reenter(stage, "b")
        again = await consumer.next()
        assert again.attempt == attempt
        assert again.envelope["id"] == first.envelope["id"]
        assert again.payload == first.payload

    assert (await consumer.ack(1))["accepted"] == 1
    await leave(consumer)
    back = await subscribe(consumer.peer)
    await back.quiet()


async def test_wire_settling_one_subscription_leaves_the_others_alone(stage: InProcess) -> None:
    publisher, consumer = await prepared(stage, 3)
    other = await enter(stage, "c", name="other")
    await other.take(3)

    await consumer.ack(1, 2, 3)

    info = await other.info()
    assert (info["floor"], info["inFlight"], info["lag"]) == (0, 3, 3)
    assert await other.ack(3) == {"floor": 0, "accepted": 1, "ignored": []}
    assert count_of(await other.info(), "settledAboveFloor") == 1
    assert publisher.is_open
