"""Pattern subscriptions with the Python client, real hubs, lost connections and kills."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from signalhub import Message
from signalhub.testing import ChaosProxy, run_hub, spawn_hub
from tests.support.socket.clients import ALICE, BOB, PATIENCE_S, connect, take

ORDERS = "orders/#"


def place(message: Message) -> tuple[str, int]:
    assert message.topic is not None
    assert message.delivery is not None
    return message.topic, message.delivery.seq


async def test_one_consumer_takes_all_topics_and_message_topic_tells_which() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as me, connect(hub.url, BOB) as bob:
        await bob.publish("orders/eu", "n", 1, durable=True)
        async with me.consume(ORDERS, "billing", backoff_s=0.01) as orders:
            await bob.publish("orders/us", "n", 2, durable=True)
            messages = await take(orders, 2)
            assert {one.topic: one.payload for one in messages} == {"orders/eu": 1, "orders/us": 2}
            first, second = messages
            await first.ack(wait=True)
            await second.extend(30)
            await second.nack(reason="not today", wait=True)
            (again,) = await take(orders, 1)
            assert (place(again), again.delivery and again.delivery.attempt) == (place(second), 2)
            await again.term(wait=True)
            for number in range(3):
                await bob.publish("orders/eu", "n", number, durable=True)
            seen = await take(orders, 3)
            settled = await orders.ack_up_to(3, topic="orders/eu", wait=True)
            assert settled is not None
            assert (settled.accepted, [one.is_open for one in seen]) == (2, [False, False, True])
            with pytest.raises(ValueError, match="topic="):
                await orders.ack_up_to(4)
            info = await me.subscription(ORDERS, "billing")
            assert (info.topics, info.lag, info.is_pattern) == (2, 1, True)
            rows = [(one.topic, one.pattern) for one in await me.subscriptions(ORDERS)]
            assert rows == [("orders/eu", ORDERS), ("orders/us", ORDERS)]
            (row,) = await me.subscriptions(patterns=True)
            assert (row.topic, row.name) == (ORDERS, "billing")
        await bob.pause(ORDERS, "billing")
        assert (await bob.resume(ORDERS, "billing")).paused is False
        assert (await bob.update_subscription(ORDERS, "billing", window=3)).window == 3
        sought = await bob.seek(ORDERS, "billing", "earliest")
        assert (sought.topics, sought.will_replay) == (2, 4)
        await bob.delete_subscription(ORDERS, "billing")
        assert list(await bob.subscriptions()) == []


async def test_a_handler_settles_and_what_it_refuses_comes_again() -> None:
    seen: list[tuple[str, int]] = []

    def handle(message: Message) -> None:
        seen.append(place(message))
        if len(seen) == 1:
            raise RuntimeError("once")

    async with (
        run_hub() as hub,
        connect(hub.url, ALICE) as me,
        me.consume(ORDERS, "billing", handler=handle, backoff_s=0.01),
    ):
        for topic in ("orders/a", "orders/b"):
            await me.publish(topic, "n", 1, durable=True)
        async with asyncio.timeout(PATIENCE_S):
            while (await me.subscription(ORDERS, "billing")).lag or len(seen) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert sorted(seen) == [("orders/a", 1), ("orders/a", 1), ("orders/b", 1)]


async def test_it_comes_back_after_lost_connections_and_misses_nothing() -> None:
    topics = [f"orders/{number}" for number in range(5)]
    async with (
        run_hub() as hub,
        ChaosProxy(hub.port) as proxy,
        connect(hub.url, BOB) as bob,
        connect(proxy.url, ALICE) as me,
        me.consume(ORDERS, "billing", window=16) as orders,
    ):
        got: dict[str, list[int]] = defaultdict(list)
        for turn in range(3):
            for topic in topics:
                for _ in range(2):
                    await bob.publish(topic, "n", turn, durable=True)
            while sum(map(len, got.values())) < 10 * (turn + 1):
                (message,) = await take(orders, 1)
                topic, seq = place(message)
                await message.ack(wait=True)
                got[topic].append(seq)
            proxy.cut()
        for topic in topics:
            assert got[topic] == [1, 2, 3, 4, 5, 6]


async def test_a_deleted_pattern_is_made_again_where_its_consumer_was_on_every_topic() -> None:
    async with (
        run_hub() as hub,
        connect(hub.url, BOB) as bob,
        ChaosProxy(hub.port) as proxy,
        connect(proxy.url, ALICE) as me,
    ):
        for topic in ("orders/a", "orders/b"):
            for number in range(3):
                await bob.publish(topic, "n", number, durable=True)
        async with me.consume(ORDERS, "billing") as orders:
            for message in await take(orders, 6):
                await message.ack(wait=True)
            await proxy.refuse()
            proxy.cut()
            while (await bob.subscription(ORDERS, "billing")).consumers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await bob.delete_subscription(ORDERS, "billing")
            await bob.publish("orders/a", "n", 3, durable=True)
            await bob.publish("orders/c", "n", 0, durable=True)
            await proxy.accept()

            found = [place(message) for message in await take(orders, 2)]

        assert sorted(found) == [("orders/a", 4), ("orders/c", 1)]
        assert (await bob.subscription(ORDERS, "billing")).lag == 2


async def test_kills_lose_nothing_on_any_topic_and_keep_its_order() -> None:
    topics = [f"orders/{number}" for number in range(8)]
    per_topic = 20
    async with spawn_hub(message_rate=0) as hub:
        async with (
            connect(hub.url, BOB) as bob,
            connect(hub.url, ALICE) as me,
            me.consume(ORDERS, "billing", window=32) as orders,
        ):
            acked: dict[str, list[int]] = defaultdict(list)

            async def publish() -> None:
                for number in range(per_topic):
                    for topic in topics:
                        await bob.publish(topic, "n", number, durable=True)

            async def work() -> None:
                done: dict[str, set[int]] = defaultdict(set)
                while sum(map(len, done.values())) < per_topic * len(topics):
                    message = await anext(orders)
                    topic, seq = place(message)
                    if seq not in done[topic]:
                        acked[topic].append(message.payload)
                    done[topic].add(seq)
                    await message.ack()

            async def kill() -> None:
                for _ in range(2):
                    await asyncio.sleep(0.1)
                    await hub.restart()

            async with asyncio.timeout(4 * PATIENCE_S), asyncio.TaskGroup() as group:
                group.create_task(publish())
                group.create_task(work())
                group.create_task(kill())
        for topic in topics:
            assert acked[topic] == list(range(per_topic)), topic
