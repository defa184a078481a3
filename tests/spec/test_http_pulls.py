"""Pulling by HTTP: a consumer without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from signalhub.server.messages import pulls
from signalhub.testing import FakeClock
from tests.support.socket.message_house import (
    BASE,
    BILLING,
    ORDERS,
    House,
    house,
    refusal,
    staff,
)


@pytest.fixture
async def home() -> AsyncIterator[House]:
    async with house() as one:
        yield one


@pytest.fixture
async def workers(home: House) -> AsyncIterator[list[House]]:
    async with staff(home) as every:
        yield every


async def test_messages_are_pulled_and_acknowledged(home: House) -> None:
    await home.fill(3)
    first = await home.pull(max=2)
    assert [(one["seq"], one["data"], one["attempt"]) for one in first] == [(1, 0, 1), (2, 1, 1)]
    acked = await home.settle("ack", seqs=[1, 2])
    assert acked == {"floor": 2, "accepted": 2, "ignored": []}
    assert [one["seq"] for one in await home.pull()] == [3]
    assert await home.pull() == []


async def test_nothing_is_sent_that_nobody_asked_for(home: House) -> None:
    await home.fill(5)
    alice = await home.stage.join("@(demo/alice)")
    name = {"topic": "orders", "subscription": "billing"}

    async def in_flight() -> int:
        count: int = (await alice.ask("hub:sub_info", name))["payload"]["inFlight"]
        return count

    await home.pull(max=1)
    assert await in_flight() == 1
    await home.settle("ack", seq=1)
    assert await in_flight() == 0
    # The same for a consumer that comes later.
    for caller in [*home.stage.hub.app.callers._callers.values()]:
        caller.end()
    await home.pull(max=1)
    assert await in_flight() == 1


async def test_a_pull_waits_for_the_first_message(home: House) -> None:
    await home.fill(1)
    await home.pull()
    await home.settle("ack", seq=1)
    waiting = asyncio.create_task(home.pull(waitMs=20_000))
    other = House(home.stage)
    await home.until_pulled_from()
    await other.publish("next")
    assert [one["data"] for one in await waiting] == ["next"]
    other.web.close()


async def test_pulls_of_one_token_wait_at_the_same_time_and_share_the_messages(
    home: House, workers: list[House]
) -> None:
    await home.publish("first")
    assert len(await home.pull()) == 1
    waiting = [asyncio.create_task(one.pull(max=1, waitMs=20_000)) for one in workers]
    await home.until_pulled_from(2)
    # Neither waits for the other, nor do those who do not wait.
    assert await home.pull() == []
    for data in ("one", "two"):
        await home.publish(data)
    taken = [message for one in waiting for message in await one]
    assert sorted(one["data"] for one in taken) == ["one", "two"]
    for one in taken:
        extended = await home.settle("extend", seq=one["seq"], ms=60_000, id=one["deliveryId"])
        assert extended["accepted"] == 1
    assert (await home.settle("ack", seqs=[1, 2, 3]))["floor"] == 3


async def test_only_so_many_pulls_of_one_token_wait(
    home: House, workers: list[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "PULLS_MAX", 2)
    await home.fill(1)
    await home.pull()
    waiting = [asyncio.create_task(one.pull(max=1, waitMs=20_000)) for one in workers]
    await home.until_pulled_from(2)
    answer = await home.post(f"{BILLING}/pull", {"waitMs": 20_000})
    assert refusal(answer) == (429, "limit_exceeded")
    assert answer.header("Retry-After") == "1"
    for number in range(2):
        await home.publish(number)
    assert [len(await one) for one in waiting] == [1, 1]
    assert await home.pull() == []


@pytest.mark.parametrize("mode", ["exclusive", "failover"])
async def test_where_only_one_consumer_gets_messages_pulls_take_turns(
    home: House, workers: list[House], mode: str
) -> None:
    await home.fill(1)
    await home.pull(mode=mode)
    first = asyncio.create_task(workers[0].pull(waitMs=20_000))
    await home.until_pulled_from()
    for wait_ms in (0, 20):
        answer = await home.post(f"{BILLING}/pull", {"waitMs": wait_ms})
        assert refusal(answer) == (409, "subscription_busy")
    second = asyncio.create_task(workers[1].pull(waitMs=20_000))
    await home.publish("one")
    assert [one["data"] for one in await first] == ["one"]
    await home.until_pulled_from()
    await home.publish("two")
    assert [one["data"] for one in await second] == ["two"]


async def test_consumers_of_pulls_that_are_over_are_used_again_and_leave() -> None:
    clock = FakeClock()
    async with house(clock) as home, staff(home) as workers:
        await home.fill(1)
        await home.pull()
        consumers = home.consumers
        for _ in range(2):
            waiting = [asyncio.create_task(one.pull(max=1, waitMs=20_000)) for one in workers]
            await home.until_pulled_from(2)
            for number in range(2):
                await home.publish(number)
            seqs = [message["seq"] for one in waiting for message in await one]
            await home.settle("ack", seqs=seqs)
            assert len(consumers.all) == 2
        await home.settle("ack", seq=1)
        clock.advance(61)
        await home.pull()
        assert len(consumers.all) == 1


async def test_no_key_waits_for_the_consumer_of_a_pull_that_is_over(
    home: House, workers: list[House]
) -> None:
    await home.publish(key="k-0")
    assert len(await home.pull(mode="key-shared")) == 1
    await home.settle("ack", seq=1)
    waiting = [asyncio.create_task(one.pull(waitMs=20_000)) for one in workers]
    await home.until_pulled_from(2)
    for number in range(16):
        await home.publish(key=f"k-{number}")
    taken = [message["seq"] for one in waiting for message in await one]
    while taken:
        await home.settle("ack", seqs=taken)
        taken = [message["seq"] for message in await home.pull()]
    for number in range(16):
        await home.publish(key=f"k-{number}")
    assert len(await home.pull()) == 16


async def test_a_pull_gets_no_more_than_it_asked_for_whatever_is_settled_meanwhile(
    home: House, workers: list[House]
) -> None:
    await home.fill(4)
    assert len(await home.pull()) == 4
    waiting = asyncio.create_task(workers[0].pull(max=1, waitMs=20_000))
    await home.until_pulled_from()
    await home.settle("ack", seqs=[1, 2, 3, 4])
    batch = [{"topic": "orders", "type": "order", "durable": True}] * 5
    await home.post("publish/batch", batch)
    assert [one["seq"] for one in await waiting] == [5]


async def test_what_waits_for_another_attempt_keeps_nothing_else_waiting(home: House) -> None:
    await home.fill(3)
    await home.pull(max=1)
    await home.settle("nack", seq=1, delayMs=60_000)
    assert [one["seq"] for one in await home.pull(max=1)] == [2]


async def test_a_pull_whose_place_is_taken_at_once_is_refused(home: House) -> None:
    await home.fill(1)
    alice = await home.stage.join("@(demo/alice)")
    (caller,) = home.stage.hub.app.callers._callers.values()
    name = f"http-{caller.session.id[-12:]}"
    with home.stage.held_disk():
        pulled = asyncio.create_task(home.post(f"{BILLING}/pull", {"waitMs": 20_000}))
        while "billing" not in home.stage.hub.app.hub.streams.topics["orders"].subscriptions:
            await home.stage.health()
        # Answered in the same step as the pull's own.
        place = {"topic": "orders", "subscription": "billing", "consumer": name}
        alice.send("hub:subscribe", place)
        await alice.ask("hub:discover", {"pattern": "*"})
    assert refusal(await pulled) == (409, "not_a_consumer")


async def test_what_is_not_acknowledged_comes_again_after_the_timeout() -> None:
    clock = FakeClock()
    dispatch = {"ack_timeout_ms": 1_000, "backoff_ms": 1}
    async with house(clock, dispatch=dispatch) as home:
        await home.fill(2)
        assert len(await home.pull()) == 2
        await home.settle("ack", seq=1)
        assert await home.pull() == []
        # First the timeout, then the pause after it.
        for _ in range(2):
            await home.stage.pass_time(2)
        (again,) = await home.pull(waitMs=5_000)
        assert (again["seq"], again["attempt"], again["redelivered"]) == (2, 2, True)


async def test_a_nack_brings_it_again_and_a_term_ends_it(home: House) -> None:
    await home.fill(2)
    first, second = await home.pull()
    nacked = await home.settle("nack", seq=first["seq"], attempt=1, delayMs=0, reason="busy")
    assert nacked["accepted"] == 1
    termed = await home.settle("term", seq=second["seq"], reason="broken")
    assert termed["accepted"] == 1
    (again,) = await home.pull(waitMs=10_000)
    assert (again["seq"], again["attempt"]) == (1, 2)
    extended = await home.settle("extend", seq=1, ms=60_000, id=again["deliveryId"])
    assert extended["accepted"] == 1
    assert (await home.settle("extend", seq=2, ms=60_000))["ignored"] == [2]


async def test_a_window_bounds_what_is_unsettled(home: House) -> None:
    await home.fill(3)
    assert len(await home.pull(window=2)) == 2
    assert await home.pull(window=2) == []
    await home.settle("ack", seq=1)
    assert len(await home.pull(window=2)) == 1


async def test_who_pulls_shares_a_subscription_with_sockets() -> None:
    async with house() as home:
        await home.fill(1)
        await home.pull()
        alice = await home.stage.join("@(demo/alice)")
        name = {"topic": "orders", "subscription": "billing"}
        welcome = (await alice.ask("hub:subscribe", name))["payload"]
        assert welcome["mode"] == "shared"
        answer = await home.post(f"{BILLING}/pull", {"mode": "exclusive"})
        assert answer.status == 200
        other = f"{ORDERS}/subscriptions/other"
        await alice.ask("hub:subscribe", name | {"subscription": "other"})
        answer = await home.post(f"{other}/pull", {})
        assert refusal(answer) == (409, "subscription_busy")


async def test_a_subscription_and_its_unsettled_messages_survive_a_restart() -> None:
    async with house() as home:
        await home.fill(2)
        await home.pull()
        await home.settle("ack", seq=1)
        home.web.close()
        await home.stage.stop()
        await home.stage.start()
        assert (await home.settle("ack", seq=1))["floor"] == 1
        (again,) = await home.pull(waitMs=5_000)
        assert again["seq"] == 2
        assert (await home.settle("ack", seq=2))["floor"] == 2


async def test_what_ends_a_subscription_ends_the_pull(home: House) -> None:
    await home.fill(1)
    await home.pull()
    await home.settle("ack", seq=1)
    waiting = asyncio.create_task(home.post(f"{BILLING}/pull", {"waitMs": 20_000}))
    alice = await home.stage.join("@(demo/alice)")
    await home.until_pulled_from()
    await alice.ask("hub:sub_delete", {"topic": "orders", "subscription": "billing"})
    assert refusal(await waiting) == (409, "not_a_consumer")


async def test_who_disconnects_while_waiting_takes_nothing(home: House) -> None:
    await home.fill(1)
    await home.pull()
    await home.settle("ack", seq=1)
    other = House(home.stage)
    waiting = asyncio.create_task(other.post(f"{BILLING}/pull", {"waitMs": 20_000}))
    await home.until_pulled_from()
    waiting.cancel()
    other.web.close()
    # Long before it would have ended by itself.
    async with asyncio.timeout(10):
        while home.consumers.all[0].asked:
            await home.stage.health()
    await home.publish("next")
    (message,) = await home.pull(waitMs=5_000)
    assert (message["data"], message["attempt"]) == ("next", 1)


async def test_a_stop_ends_a_pull_that_waits(home: House) -> None:
    await home.fill(1)
    await home.pull()
    await home.settle("ack", seq=1)
    waiting = asyncio.create_task(home.post(f"{BILLING}/pull", {"waitMs": 20_000}))
    await home.until_pulled_from()
    app = home.stage.hub.app
    app.runner.run(app.hub.drain)
    assert refusal(await waiting) == (503, "UNAVAILABLE")


async def test_pulling_from_what_does_not_exist_is_refused(home: House) -> None:
    answer = await home.post(f"{BASE}/topics/none/subscriptions/billing/pull", {})
    assert refusal(answer) == (404, "unknown_topic")
    await home.fill(1)
    answer = await home.post(f"{BILLING}/ack", {"seq": 1})
    assert refusal(answer) == (404, "unknown_subscription")
    for body in ({}, {"seq": 1, "seqs": [1]}):
        assert refusal(await home.post(f"{BILLING}/ack", body)) == (400, "BAD_REQUEST")


# What holds for all.
