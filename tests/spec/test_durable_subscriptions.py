"""Durable subscriptions: making, joining, leaving, taking over, looking at and ending them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, code_of, run_stage
from tests.support.socket.topics import (
    TOPIC,
    UNLIMITED,
    Facts,
    count_of,
    create,
    enter,
    expect,
    leave,
    pass_time,
    publish,
    publish_all,
    reenter,
    refusal,
    seqs,
    sub_info,
    subscribe,
    subscription,
    until,
)

MODES = ["exclusive", "shared", "failover", "key-shared"]
OF_WORK = {"topic": TOPIC, "subscription": "work"}


@pytest.mark.parametrize("mode", MODES)
async def test_wire_one_message_reaches_one_consumer_and_is_settled(
    stage: InProcess, mode: str
) -> None:
    publisher = await stage.join("@(local/a)")
    epoch = (await create(publisher))["epoch"]
    consumer = await enter(stage, "b", mode=mode)

    await publish(publisher, "hello")
    heard = await consumer.next()

    assert heard.payload == "hello"
    assert consumer.joined.keys() >= {
        "topic",
        "subscription",
        "subscriptionId",
        "mode",
        "epoch",
        "next",
        "head",
        "lag",
        "recovered",
    }
    assert consumer.joined["mode"] == mode
    assert consumer.joined["epoch"] == heard.epoch == epoch
    assert consumer.joined["recovered"] is True
    assert await consumer.ack(1) == {"floor": 1, "accepted": 1, "ignored": []}
    assert (await consumer.info())["mode"] == mode


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
async def test_wire_new_subscription_starts_where_it_was_asked_to(
    stage: InProcess, start: str
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(10))
    given, first = STARTS[start]

    consumer = await enter(stage, "b", start=given)

    assert (consumer.joined["next"], consumer.joined["head"]) == (first, 10)
    assert consumer.joined["lag"] == 11 - first
    await publish_all(publisher, range(2))
    assert seqs(await consumer.take(13 - first)) == list(range(first, 13))


async def test_wire_new_subscription_starts_at_a_time() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        times = []
        for number in range(4):
            await pass_time(clock, publisher, 10)
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


async def test_wire_start_counts_only_when_the_subscription_is_new(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(5))
    consumer = await enter(stage, "b")
    await consumer.take(5)
    await consumer.ack(1, 2)
    await leave(consumer)

    back = await subscribe(consumer.peer, start="latest")

    assert (back.joined["next"], back.joined["lag"]) == (3, 3)
    assert seqs(await back.take(3)) == [3, 4, 5]


async def test_wire_subscription_names_belong_to_their_topic(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    for topic in ("orders", "prices"):
        await create(peer, topic)
    await publish(peer, 1, "orders")

    first, second = await subscribe(peer, "orders"), await subscribe(peer, "prices")
    await first.take_and_ack(1)

    assert first.id != second.id
    assert (await first.info())["floor"] == 1
    assert (await second.info())["floor"] == 0


async def test_wire_other_mode_is_a_conflict(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)

    for mode, other in permutations(MODES, 2):
        name = f"{mode} or {other}"
        await leave(await subscribe(peer, name=name, mode=mode))
        code = await refusal(peer, "hub:subscribe", subscription(name=name, mode=other))

        assert code == "subscription_conflict", name
        assert (await sub_info(peer, name=name))["mode"] == mode


async def test_wire_exclusive_subscription_is_busy_while_its_consumer_lives(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    first = await enter(stage, "b")
    second = await stage.join("@(local/c)")

    reply = await second.ask("hub:subscribe", subscription(consumer="somebody else"))

    assert code_of(reply) == "subscription_busy"
    await publish(publisher, 1)
    assert (await first.next()).payload == 1
    await second.nothing_more()
    assert count_of(await sub_info(second), "consumers") == 1


@pytest.mark.parametrize("how", ["unsubscribe", "disconnect", "hang up", "abort"])
async def test_rd_d17_exclusive_subscription_is_free_when_its_consumer_has_gone(
    stage: InProcess, how: str
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(3))
    first = await enter(stage, "b", consumer="old name")
    await first.take(3)
    await first.ack(2)

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


async def test_wire_same_consumer_name_takes_over_with_all_that_is_unsettled(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await publish_all(publisher, range(20))
    old = await enter(stage, "b", consumer="worker-1", window=10)
    await old.take(10)
    await old.ack(2, 5)
    assert seqs(await old.take(2)) == [11, 12]

    new = await enter(stage, "c", consumer="worker-1", window=10)

    heard = await new.take(10)
    assert seqs(heard) == [1, 3, 4, 6, 7, 8, 9, 10, 11, 12]
    assert {one.attempt for one in heard} == {2}
    notice = await old.peer.receive()
    assert notice["type"] == "hub:unsubscribed"
    assert notice["payload"]["reason"] == "taken_over"
    assert notice["correlationId"] is None
    await publish_all(publisher, range(5))
    await old.peer.nothing_more()
    assert count_of(await sub_info(publisher), "consumers") == 1
    settle = {"subscriptionId": old.id, "seq": 1}
    assert await refusal(old.peer, "hub:ack", settle) in ("not_a_consumer", "unknown_subscription")
    assert (await new.ack(1))["accepted"] == 1


async def test_wire_takeover_concerns_only_the_consumer_of_that_name(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    first = await enter(stage, "b", mode="shared", consumer="one")
    other = await enter(stage, "c", mode="shared", consumer="two")

    await enter(stage, "d", mode="shared", consumer="one")

    assert (await first.peer.receive())["payload"]["reason"] == "taken_over"
    await other.peer.nothing_more()
    assert count_of(await sub_info(publisher), "consumers") == 2


async def test_wire_resume_at_a_processed_position_misses_nothing(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    epoch = (await create(publisher))["epoch"]
    await publish_all(publisher, range(5))
    first = await enter(stage, "b")
    await first.take(5)
    await first.ack(1, 2, 3)
    first.peer.abort()

    back = await reenter(stage, "b", resume={"epoch": epoch, "seq": 3})

    assert back.joined["recovered"] is True
    assert back.joined["next"] == 4
    assert "lostFrom" not in back.joined
    assert seqs(await back.take(2)) == [4, 5]


async def test_wire_resume_at_the_head_has_nothing_to_recover(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    epoch = (await create(peer))["epoch"]
    await publish_all(peer, range(3))
    consumer = await enter(stage, "b")
    await consumer.take_and_ack(3)
    await leave(consumer)

    back = await subscribe(consumer.peer, resume={"epoch": epoch, "seq": 3})

    assert back.joined["recovered"] is True
    assert (back.joined["next"], back.joined["lag"]) == (4, 0)
    await back.quiet()


async def test_wire_leaving_settles_nothing_and_deletes_nothing(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")
    await publish_all(publisher, range(3))
    await consumer.take(3)

    await leave(consumer)

    info = await sub_info(publisher)
    assert (count_of(info, "consumers"), info["floor"], info["lag"]) == (0, 0, 3)
    settle = {"subscriptionId": consumer.id, "seq": 1}
    assert await refusal(consumer.peer, "hub:ack", settle) in (
        "not_a_consumer",
        "unknown_subscription",
    )
    assert (await sub_info(publisher))["floor"] == 0


async def test_wire_leaving_by_topic_name_leaves_plain_copies_alone(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    await create(peer)
    await peer.ask("hub:subscribe", {"topic": TOPIC})
    await subscribe(peer)

    await expect(peer, "hub:unsubscribe", OF_WORK, "hub:unsubscribed")
    await publish(peer, 1)

    assert "id" not in (await peer.receive("note"))["metadata"]["delivery"]
    assert count_of(await sub_info(peer), "consumers") == 0


async def test_rd_d15_lag_is_visible_without_any_consumer(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    await leave(await enter(stage, "b"))

    await publish_all(publisher, range(7))

    info = await sub_info(publisher)
    assert (info["lag"], info["head"], count_of(info, "consumers")) == (7, 7, 0)
    assert info["lagSeconds"] >= 0
    assert info["paused"] is False


async def test_wire_lag_in_seconds_is_the_age_of_the_first_unsettled_entry() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumer = await enter(stage, "b")
        assert (await consumer.info())["lagSeconds"] == 0

        await publish(publisher, 1)
        await pass_time(clock, publisher, 30)
        await publish(publisher, 2)
        await pass_time(clock, publisher, 10)

        assert (await consumer.info())["lagSeconds"] == pytest.approx(40, abs=1)
        await consumer.take_and_ack(1)
        assert (await consumer.info())["lagSeconds"] == pytest.approx(10, abs=1)
        await consumer.take_and_ack(1)
        assert (await consumer.info())["lagSeconds"] == 0


async def subscriptions(peer: Peer, **payload: Any) -> list[Facts]:
    reply = await peer.ask("hub:list_subs", payload)
    assert reply["type"] in ("hub:sub_info_response", "hub:sub_list"), reply
    found: list[Facts] = reply["payload"]["subscriptions"]
    return found


async def test_wire_list_subs_shows_all_or_those_of_a_topic(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")
    for topic in ("orders", "prices"):
        await create(peer, topic)
        for name in ("billing", "audit"):
            await subscribe(peer, topic, name, mode="shared")

    everything = await subscriptions(peer)
    of_orders = await subscriptions(peer, topic="orders")

    assert sorted((one["topic"], one["subscription"]) for one in everything) == [
        ("orders", "audit"),
        ("orders", "billing"),
        ("prices", "audit"),
        ("prices", "billing"),
    ]
    assert sorted(one["subscription"] for one in of_orders) == ["audit", "billing"]
    assert {one["topic"] for one in of_orders} == {"orders"}


async def test_wire_paused_subscription_waits_and_goes_on_where_it_was(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")
    await publish(publisher, 1)
    await consumer.take_and_ack(1)

    paused = await expect(publisher, "hub:sub_pause", OF_WORK, "hub:sub_info_response")
    await publish_all(publisher, [2, 3])

    assert paused["paused"] is True
    await consumer.quiet()
    info = await consumer.info()
    assert (info["next"], info["lag"], info["inFlight"]) == (2, 2, 0)
    resumed = await expect(publisher, "hub:sub_resume", OF_WORK, "hub:sub_info_response")
    assert resumed["paused"] is False
    assert [one.payload for one in await consumer.take_and_ack(2)] == [2, 3]


async def test_wire_what_is_in_flight_can_be_settled_during_a_pause(stage: InProcess) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b", backoffMs=10, backoffCapMs=20)
    await publish_all(publisher, range(2))
    await consumer.take(2)

    await expect(publisher, "hub:sub_pause", OF_WORK, "hub:sub_info_response")

    assert (await consumer.ack(1))["floor"] == 1
    await consumer.nack(2)
    await consumer.quiet()
    await expect(publisher, "hub:sub_resume", OF_WORK, "hub:sub_info_response")
    again = await consumer.next()
    assert (again.seq, again.attempt) == (2, 2)


async def test_wire_deleted_subscription_is_forgotten_and_may_be_made_anew(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer = await enter(stage, "b")
    await publish_all(publisher, range(3))
    await consumer.take_and_ack(3)
    await leave(consumer)

    await expect(publisher, "hub:sub_delete", OF_WORK, "hub:sub_info_response")

    for type in ("hub:sub_info", "hub:sub_pause", "hub:sub_resume", "hub:sub_delete"):
        assert await refusal(publisher, type, OF_WORK) == "unknown_subscription"
    assert await refusal(publisher, "hub:seek", OF_WORK | {"to": "latest"}) == (
        "unknown_subscription"
    )
    again = await subscribe(consumer.peer, mode="shared")
    assert seqs(await again.take(3)) == [1, 2, 3]


async def test_wire_deleting_a_subscription_stops_its_consumers_and_nobody_else(
    stage: InProcess,
) -> None:
    publisher = await stage.join("@(local/a)")
    await create(publisher)
    consumer, other = await enter(stage, "b"), await enter(stage, "c", name="other")

    await expect(publisher, "hub:sub_delete", OF_WORK, "hub:sub_info_response")
    await publish(publisher, 1)

    assert (await other.next()).payload == 1
    settle = {"subscriptionId": consumer.id, "seq": 1}
    code = await refusal(consumer.peer, "hub:ack", settle)
    assert code in ("unknown_subscription", "not_a_consumer")


async def test_wire_one_session_may_consume_many_subscriptions() -> None:
    async with run_stage(**UNLIMITED) as stage:
        peer, publisher = await stage.join("@(local/a)"), await stage.join("@(local/b)")
        await create(publisher)
        consumers = [await subscribe(peer, name=f"sub-{number}") for number in range(20)]

        await publish_all(publisher, range(3))
        heard = [await peer.receive("note") for _ in range(60)]

        for consumer in consumers:
            found = [one["metadata"]["delivery"] for one in heard]
            own = [one["seq"] for one in found if one["subscription"] == consumer.name]
            assert own == [1, 2, 3]
            assert (await consumer.settle("hub:ack", upTo=3))["accepted"] == 3
        await peer.nothing_more()


async def test_wire_session_that_ends_is_no_consumer_any_more(stage: InProcess) -> None:
    watcher = await stage.join("@(local/a)")
    await create(watcher)
    consumers = [await enter(stage, name, mode="shared") for name in ("b", "c")]
    assert count_of(await sub_info(watcher), "consumers") == 2

    consumers[0].peer.abort()
    await until(watcher, consumers=1)
    await consumers[1].peer.ask("hub:disconnect")

    await until(watcher, consumers=0)
