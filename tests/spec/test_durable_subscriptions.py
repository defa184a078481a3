"""Durable subscriptions: making, joining, leaving, taking over, looking at and ending them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Peer, code_of
from tests.support.socket.topics import (
    MODES,
    OF_WORK,
    TOPIC,
    UNLIMITED,
    Facts,
    create,
    enter,
    expect,
    leave,
    publish,
    publish_all,
    reenter,
    refusal,
    seqs,
    shows,
    sub_info,
    subscribe,
    subscription,
    working,
)
from tests.support.stage import RunStage, Stage

NO_CONSUMER = ("not_a_consumer", "unknown_subscription")
JOINED = {
    *("topic", "subscription", "subscriptionId", "mode", "epoch"),
    *("next", "head", "lag", "recovered"),
}


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("mode", MODES)
async def test_wire_one_message_reaches_one_consumer_and_is_settled(
    stage: Stage, mode: str
) -> None:
    publisher, consumer = await working(stage, mode=mode)

    await publish(publisher, "hello")
    heard = await consumer.next()

    assert heard.payload == "hello"
    assert consumer.joined.keys() >= JOINED
    assert consumer.joined["mode"] == mode
    assert consumer.joined["epoch"] == heard.epoch
    assert consumer.joined["recovered"] is True
    assert await consumer.ack(1) == {"floor": 1, "accepted": 1, "ignored": []}
    await consumer.shows(mode=mode)


STARTS: dict[str, tuple[Any, int]] = {
    "earliest": ("earliest", 1),
    "latest": ("latest", 11),
    "seq": ({"seq": 4}, 4),
    "first seq": ({"seq": 1}, 1),
    "next seq": ({"seq": 11}, 11),
    "last 3": ({"last": 3}, 8),
    "last 10": ({"last": 10}, 1),
    "last of more": ({"last": 99}, 1),
}


@pytest.mark.parametrize("start", STARTS)
async def test_wire_new_subscription_starts_where_it_was_asked_to(stage: Stage, start: str) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(10))
    given, first = STARTS[start]

    consumer = await enter(stage, "b", start=given)

    joined = consumer.joined
    assert (joined["next"], joined["head"], joined["lag"]) == (first, 10, 11 - first)
    await consumer.shows(floor=first - 1, lag=11 - first, head=10)
    await publish_all(publisher, range(2))
    assert seqs(await consumer.take(13 - first)) == list(range(first, 13))


async def test_wire_new_subscription_starts_at_a_time(run_stage: RunStage) -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        times = []
        for number in range(4):
            await stage.pass_time(10)
            times.append(clock.now_ms())
            await publish(publisher, number)

        for moment, first in (
            (0, 1),
            (times[0], 1),
            (times[1] - 1, 2),
            (times[1], 2),
            (times[1] + 1, 3),
            (times[3], 4),
            (times[3] + 1, 5),
            (times[3] + 10**9, 5),
        ):
            consumer = await subscribe(publisher, name=f"at-{moment}", start={"time": moment})
            assert consumer.joined["next"] == first, moment
            for seq in range(first, 5):
                assert (await consumer.next()).seq == seq


async def test_wire_start_counts_only_when_the_subscription_is_new(stage: Stage) -> None:
    _, consumer = await working(stage, 5)
    await consumer.take(5)
    await consumer.ack(1, 2)
    await leave(consumer)

    back = await subscribe(consumer.peer, start="latest")

    assert (back.joined["next"], back.joined["lag"]) == (3, 3)
    assert seqs(await back.take(3)) == [3, 4, 5]


async def test_wire_other_mode_is_a_conflict(stage: Stage) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)

    for mode, other in permutations(MODES, 2):
        name = f"{mode} or {other}"
        await leave(await subscribe(peer, name=name, mode=mode))
        code = await refusal(peer, "hub:subscribe", subscription(name=name, mode=other))

        assert code == "subscription_conflict", name
        await shows(peer, TOPIC, name, mode=mode)


@pytest.mark.parametrize("how", ["unsubscribe", "disconnect", "hang up", "abort"])
async def test_rd_d17_exclusive_subscription_is_busy_until_its_consumer_has_gone(
    stage: Stage, how: str
) -> None:
    _, first = await working(stage, 3, consumer="old name")
    await first.take(3)
    await first.ack(2)
    waiting = await stage.join("@(local/w)")
    reply = await waiting.ask("hub:subscribe", subscription(consumer="new name"))
    assert code_of(reply) == "subscription_busy"
    await shows(waiting, consumers=1)

    match how:
        case "unsubscribe":
            await leave(first)
        case "disconnect":
            await first.peer.ask("hub:disconnect")
        case "hang up":
            first.peer.hang_up()
        case _:
            first.peer.abort()
    second = await reenter(stage, "c", consumer="new name")

    again = await second.take(2)
    assert seqs(again) == [1, 3]
    assert {one.attempt for one in again} == {2}
    assert (await second.ack(1, 3))["floor"] == 3
    await waiting.nothing_more()


async def test_wire_same_consumer_name_takes_over_with_all_that_is_unsettled(
    stage: Stage,
) -> None:
    publisher, old = await working(stage, 20, consumer="worker-1", window=10)
    await old.take(10)
    await old.ack(2, 5)
    assert seqs(await old.take(2)) == [11, 12]

    new = await enter(stage, "c", consumer="worker-1", window=10)

    heard = await new.take(10)
    assert seqs(heard) == [1, 3, 4, 6, 7, 8, 9, 10, 11, 12]
    assert {one.attempt for one in heard} == {2}
    notice = await old.peer.receive("hub:unsubscribed")
    assert (notice["payload"]["reason"], notice["correlationId"]) == ("taken_over", None)
    await publish_all(publisher, range(5))
    await old.peer.nothing_more()
    await shows(publisher, consumers=1)
    settle = {"subscriptionId": old.id, "seq": 1}
    assert await refusal(old.peer, "hub:ack", settle) in NO_CONSUMER
    assert (await new.ack(1))["accepted"] == 1


async def test_wire_takeover_concerns_only_the_consumer_of_that_name(stage: Stage) -> None:
    publisher, first = await working(stage, mode="shared", consumer="one")
    other = await enter(stage, "c", mode="shared", consumer="two")

    await enter(stage, "d", mode="shared", consumer="one")

    assert (await first.peer.receive())["payload"]["reason"] == "taken_over"
    await other.peer.nothing_more()
    await shows(publisher, consumers=2)


@pytest.mark.parametrize("settled", [3, 5], ids=["in the middle", "at the head"])
async def test_wire_resume_at_a_processed_position_misses_nothing(
    stage: Stage, settled: int
) -> None:
    _, first = await working(stage, 5)
    await first.take(5)
    await first.settle("hub:ack", upTo=settled)
    first.peer.abort()

    resume = {"epoch": first.joined["epoch"], "seq": settled}
    back = await reenter(stage, "b", resume=resume)

    assert back.joined["recovered"] is True
    assert "lostFrom" not in back.joined
    assert (back.joined["next"], back.joined["lag"]) == (settled + 1, 5 - settled)
    assert seqs(await back.take(5 - settled)) == list(range(settled + 1, 6))
    await back.quiet()


async def test_wire_leaving_settles_nothing_and_deletes_nothing(stage: Stage) -> None:
    publisher, consumer = await working(stage, 3)
    await consumer.take(3)

    await leave(consumer)

    await shows(publisher, consumers=0, floor=0, lag=3)
    settle = {"subscriptionId": consumer.id, "seq": 1}
    assert await refusal(consumer.peer, "hub:ack", settle) in NO_CONSUMER
    await publish_all(publisher, range(4))
    # The lag is visible without any consumer.
    info = await sub_info(publisher)
    assert (info["floor"], info["lag"], info["head"], info["paused"]) == (0, 7, 7, False)
    assert info["lagSeconds"] >= 0


async def test_wire_leaving_by_topic_name_leaves_plain_copies_alone(stage: Stage) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    await peer.ask("hub:subscribe", {"topic": TOPIC})
    await subscribe(peer)

    await expect(peer, "hub:unsubscribe", OF_WORK, "hub:unsubscribed")
    await publish(peer, 1)

    assert "id" not in (await peer.receive("note"))["metadata"]["delivery"]
    await shows(peer, consumers=0)


async def test_wire_lag_in_seconds_is_the_age_of_the_first_unsettled_entry(
    run_stage: RunStage,
) -> None:
    async with run_stage(FakeClock()) as stage:
        publisher, consumer = await working(stage)
        assert (await consumer.info())["lagSeconds"] == 0

        await publish(publisher, 1)
        await stage.pass_time(30)
        await publish(publisher, 2)
        await stage.pass_time(10)

        for seconds in (40, 10, 0):
            assert (await consumer.info())["lagSeconds"] == pytest.approx(seconds, abs=1)
            if seconds:
                await consumer.take_and_ack(1)


async def subscriptions(peer: Peer, **payload: Any) -> list[Facts]:
    reply = await peer.ask("hub:list_subs", payload)
    assert reply["type"] in ("hub:sub_info_response", "hub:sub_list"), reply
    found: list[Facts] = reply["payload"]["subscriptions"]
    return found


@pytest.mark.also_over_sockets
async def test_wire_list_subs_shows_all_or_those_of_a_topic(stage: Stage) -> None:
    peer = await stage.join("@(local/a)")
    for topic in ("orders", "prices"):
        await create(peer, topic)
        for name in ("billing", "audit"):
            await subscribe(peer, topic, name, mode="shared")

    everything = [(one["topic"], one["subscription"]) for one in await subscriptions(peer)]
    of_orders = await subscriptions(peer, topic="orders")

    assert sorted(everything) == [
        (topic, name) for topic in ("orders", "prices") for name in ("audit", "billing")
    ]
    assert sorted(one["subscription"] for one in of_orders) == ["audit", "billing"]
    assert {one["topic"] for one in of_orders} == {"orders"}


@pytest.mark.also_over_sockets
async def test_wire_paused_subscription_waits_and_goes_on_where_it_was(stage: Stage) -> None:
    publisher, consumer = await working(stage, 3, backoffMs=10, backoffCapMs=20)
    await consumer.take(3)
    await consumer.ack(1)

    paused = await expect(publisher, "hub:sub_pause", OF_WORK, "hub:sub_info_response")
    await publish_all(publisher, [4, 5])

    assert paused["paused"] is True
    # What is in flight can be settled meanwhile, and is not sent again.
    assert (await consumer.ack(2))["floor"] == 2
    await consumer.nack(3)
    await consumer.quiet()
    await consumer.shows(lag=3)
    resumed = await expect(publisher, "hub:sub_resume", OF_WORK, "hub:sub_info_response")
    assert resumed["paused"] is False
    heard = await consumer.take_and_ack(3)
    assert sorted((one.payload, one.attempt) for one in heard) == [(3, 2), (4, 1), (5, 1)]


@pytest.mark.also_over_sockets
async def test_wire_deleted_subscription_is_forgotten_and_may_be_made_anew(stage: Stage) -> None:
    publisher, consumer = await working(stage, 3)
    other = await enter(stage, "c", name="other")
    await other.take_and_ack(3)
    await consumer.take_and_ack(3)

    await expect(publisher, "hub:sub_delete", OF_WORK, "hub:sub_info_response")

    for type in ("hub:sub_info", "hub:sub_pause", "hub:sub_resume", "hub:sub_delete", "hub:seek"):
        given = OF_WORK | {"to": "latest"}
        assert await refusal(publisher, type, given) == "unknown_subscription"
    settle = {"subscriptionId": consumer.id, "seq": 1}
    assert await refusal(consumer.peer, "hub:ack", settle) in NO_CONSUMER
    await publish(publisher, 4)
    assert (await other.next()).payload == 4
    again = await enter(stage, "d", mode="shared")
    assert seqs(await again.take(4)) == [1, 2, 3, 4]


async def test_wire_one_session_may_consume_many_subscriptions(run_stage: RunStage) -> None:
    async with run_stage(**UNLIMITED) as stage:
        peer, publisher = await stage.join("@(local/a)"), await stage.join("@(local/b)")
        await create(publisher)
        consumers = [await subscribe(peer, name=f"sub-{number}") for number in range(20)]

        await publish_all(publisher, range(3))
        heard = [(await peer.receive("note"))["metadata"]["delivery"] for _ in range(60)]

        for consumer in consumers:
            own = [one["seq"] for one in heard if one["subscription"] == consumer.name]
            assert own == [1, 2, 3]
            assert (await consumer.settle("hub:ack", upTo=3))["accepted"] == 3
        await peer.nothing_more()
