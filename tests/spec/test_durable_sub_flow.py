"""How much is under way to a consumer: window, credit, strictness, rate, and acks on its behalf."""

from __future__ import annotations

import time

import pytest

from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.topics import (
    HASTY,
    TOPIC,
    UNLIMITED,
    Consumer,
    create,
    enter,
    leave,
    publish,
    publish_all,
    seqs,
    sub_info,
    subscribe,
    until,
)

KILOBYTE = "x" * 1_000


async def test_rd_s6_full_window_stops_reading_and_drops_nothing(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=3)
    await publish_all(publisher, range(10))

    assert seqs(await consumer.take(3)) == [1, 2, 3]
    await consumer.quiet()
    info = await consumer.info()
    assert (info["inFlight"], info["next"], info["lag"]) == (3, 4, 10)
    for seq in range(1, 8):
        await consumer.ack(seq)
        assert (await consumer.next()).seq == seq + 3
    await consumer.quiet()


async def test_rd_s6_window_slots_are_freed_by_any_settled_message(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=3)
    await publish_all(publisher, range(6))
    await consumer.take(3)

    await consumer.ack(3)
    assert (await consumer.next()).seq == 4
    await consumer.ack(2, 4)

    assert seqs(await consumer.take(2)) == [5, 6]
    info = await consumer.info()
    assert (info["floor"], info["inFlight"], info["lag"]) == (0, 3, 3)


async def test_rd_s6_window_of_the_settings_is_the_default() -> None:
    async with run_stage(dispatch={"window": 5}, **UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b")
        await publish_all(publisher, range(20))

        assert seqs(await consumer.take(5)) == [1, 2, 3, 4, 5]
        await consumer.quiet()
        assert (await consumer.info())["inFlight"] == 5


async def test_r13_window_of_a_consumer_is_256_unless_it_asks_otherwise() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b")
        await publish_all(publisher, range(300))

        assert seqs(await consumer.take(256)) == list(range(1, 257))
        await consumer.quiet()
        await consumer.settle("hub:ack", upTo=256)
        assert seqs(await consumer.take(44)) == list(range(257, 301))


async def test_rd_d14_other_window_holds_from_the_next_joining_on(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=1)
    await publish_all(publisher, range(10))
    await consumer.take(1)
    await leave(consumer)

    back = await subscribe(consumer.peer, window=4)

    assert seqs(await back.take(4)) == [1, 2, 3, 4]
    await back.quiet()


async def set_credit(consumer: Consumer, **credit: int) -> None:
    consumer.peer.send("hub:credit", {"subscriptionId": consumer.id} | credit)
    await consumer.peer.ask("hub:heartbeat")


async def test_wire_credit_sets_how_many_messages_may_be_in_flight(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")
    await set_credit(consumer, messages=2)
    await publish_all(publisher, range(20))

    assert seqs(await consumer.take(2)) == [1, 2]
    await consumer.quiet()
    await consumer.ack(1)
    assert (await consumer.next()).seq == 3
    # Credit is set and not added: the same again changes nothing.
    await set_credit(consumer, messages=2)
    await consumer.quiet()
    await set_credit(consumer, messages=4)
    assert seqs(await consumer.take(2)) == [4, 5]
    await consumer.quiet()


async def test_wire_no_credit_stops_and_loses_nothing(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")
    await set_credit(consumer, messages=0)
    await publish_all(publisher, range(5))

    await consumer.quiet()
    info = await consumer.info()
    assert (info["lag"], info["inFlight"], info["next"]) == (5, 0, 1)
    await set_credit(consumer, messages=10)

    assert seqs(await consumer.take_and_ack(5)) == [1, 2, 3, 4, 5]


async def test_wire_less_credit_than_is_in_flight_waits_until_it_is_settled(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=5)
    await publish_all(publisher, range(10))
    await consumer.take(5)

    await set_credit(consumer, messages=1)
    await consumer.ack(1, 2, 3, 4)
    await consumer.quiet()
    await consumer.ack(5)

    assert (await consumer.next()).seq == 6
    await consumer.quiet()


async def test_wire_credit_counts_bytes_too(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")
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


async def test_wire_message_without_credit_goes_to_a_consumer_that_has_some(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    poor = await enter(stage, "b", mode="shared", consumer="poor")
    rich = await enter(stage, "c", mode="shared", consumer="rich")
    await set_credit(poor, messages=0)

    await publish_all(publisher, range(6))

    assert seqs(await rich.take_and_ack(6)) == [1, 2, 3, 4, 5, 6]
    await poor.quiet()


@pytest.mark.parametrize("mode", ["exclusive", "failover"])
async def test_wire_strict_sends_nothing_new_while_an_earlier_one_is_unsettled(
    stage: InProcess, mode: str
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", mode=mode, strict=True, window=10, **HASTY)
    await publish_all(publisher, range(4))

    assert (await consumer.next()).seq == 1
    await consumer.quiet()
    await consumer.nack(1)
    again = await consumer.next()
    assert (again.seq, again.attempt) == (1, 2)
    await consumer.ack(1)
    assert (await consumer.next()).seq == 2
    await consumer.ack(2)

    heard = await consumer.take_and_ack(2)
    assert [(one.seq, one.attempt) for one in heard] == [(3, 1), (4, 1)]


async def test_wire_auto_ack_settles_with_the_delivery(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", autoAck=True, window=2)

    await publish_all(publisher, range(50))
    heard = await consumer.take(50)

    assert seqs(heard) == list(range(1, 51))
    info = await until(publisher, floor=50)
    assert (info["lag"], info["inFlight"]) == (0, 0)
    await leave(consumer)
    back = await subscribe(consumer.peer, autoAck=True)
    await back.quiet()


async def test_rd_d3_rate_limit_parks_and_never_discards(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", ratePerSecond=5)
    began = time.monotonic()

    await publish_all(publisher, range(50))
    heard = await consumer.take_and_ack(50)

    assert seqs(heard) == list(range(1, 51))
    assert {one.attempt for one in heard} == {1}
    # At most one second's worth may go at once; the others take their time.
    assert time.monotonic() - began >= (50 - 2 * 5) / 5
    info = await consumer.info()
    assert (info["floor"], info["lag"]) == (50, 0)


async def test_rd_d12_rate_limit_costs_a_key_shared_message_one_token(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", mode="key-shared", ratePerSecond=50)

    await publish_all(publisher, range(60), key={number: f"k-{number % 3}" for number in range(60)})
    heard = await consumer.take_and_ack(60)

    assert sorted(seqs(heard)) == list(range(1, 61))
    for key in ("k-0", "k-1", "k-2"):
        of_key = [one.seq for one in heard if one.key == key]
        assert of_key == sorted(of_key)


async def test_rd_s12_slow_subscription_does_not_hold_up_a_fast_one() -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        slow = await enter(stage, "b", name="slow", window=1)
        fast = await enter(stage, "c", name="fast")

        await publish_all(publisher, range(500))
        await slow.next()

        assert seqs(await fast.take_and_ack(500)) == list(range(1, 501))
        info = await sub_info(publisher, TOPIC, "slow")
        assert (info["lag"], info["inFlight"]) == (500, 1)


async def test_wire_many_messages_to_one_consumer_keep_their_size(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", window=2)

    for size in (1, 10_000, 500_000, 900_000):
        await publish(publisher, "x" * size)

    for size in (1, 10_000, 500_000, 900_000):
        heard = await consumer.next()
        assert len(heard.payload) == size
        consumer.send("hub:ack", seq=heard.seq)
