"""The Python client's durable messaging against the real hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

import signalhub
from signalhub import Client, Consumer, Message
from signalhub.client import Delivery, SubscriptionInfo
from signalhub.testing import ChaosProxy, run_hub
from tests.support.socket.clients import ALICE, BOB, PATIENCE_S, connect, payloads, take


async def processed(consumer: Consumer, count: int) -> list[Any]:
    """The payloads of the next messages, each acknowledged."""
    found = []
    for _ in range(count):
        (message,) = await take(consumer, 1)
        await message.ack()
        found.append(message.payload)
    return found


async def publish_all(client: Client, topic: str, count: int) -> None:
    """Publish numbers in order; a hub with a message rate might see them in another."""
    await asyncio.gather(*(client.publish(topic, "n", n, durable=True) for n in range(count)))


async def until(client: Client, name: str, holds: Callable[[SubscriptionInfo], bool]) -> None:
    """Wait until something holds of a subscription to `orders`."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds(await client.subscription("orders", name)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def delivery(message: Message) -> Delivery:
    assert message.delivery is not None
    return message.delivery


async def test_a_mailbox_keeps_what_comes_meanwhile_once_and_up_to_its_limit() -> None:
    async with run_hub(mailbox={"limit": 4}) as hub, connect(hub.url, ALICE) as alice:
        async with connect(hub.url, BOB, durable=True) as bob:
            assert (await alice.ask(BOB, "task", "there")).is_delivered
            assert await payloads(bob, 1) == ["there"]

        receipts = [await alice.ask(BOB, "task", n, message_id=f"task-{n}") for n in range(4)]
        again = await alice.ask(BOB, "task", 0, message_id="task-0")
        with pytest.raises(signalhub.Refused) as caught:
            await alice.ask(BOB, "task", 4, timeout_s=0.2, attempts=1)

        assert (caught.value.code, caught.value.retryable) == ("queue_full", True)
        assert caught.value.details["limit"] == 4
        assert {(one.status, one.epoch, one.durability, one.duplicate) for one in receipts} == {
            ("queued", again.epoch, alice.durability, False)
        }
        seqs = [receipt.seq or 0 for receipt in receipts]
        assert seqs == list(range(seqs[0], seqs[0] + 4))
        assert (again.duplicate, again.seq) == (True, seqs[0])
        registration = await alice.register(BOB)
        assert (registration.durable, registration.waiting) == (True, 4)
        messages = await take(alice, 4)
        assert [(one.payload, delivery(one).seq) for one in messages] == list(enumerate(seqs))
        assert delivery(messages[0]).stream == BOB
        assert not (await alice.register(BOB, durable=False)).durable
        await alice.unregister(BOB)
        with pytest.raises(signalhub.UnknownActor):
            await alice.ask(BOB, "task", 5)


async def test_topics_are_made_published_to_shown_changed_and_deleted() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        made = await alice.create_topic("orders", retention_s=3600, poison="dead_letter")
        same = await alice.create_topic("orders", retention_s=3600, poison="dead_letter")
        await alice.create_topic("prices")
        assert (made.name, made.head, same.epoch) == ("orders", 0, made.epoch)
        with pytest.raises(signalhub.Refused, match="topic_conflict"):
            await alice.create_topic("orders", poison="drop")

        first = await alice.publish("orders", "order", 1, durable=True, message_id="order-1")
        await alice.subscribe("orders")
        live = await alice.publish("orders", "order", 2)
        again = await alice.publish("orders", "order", 1, durable=True, message_id="order-1")
        assert (first.seq, first.epoch, first.durability) == (1, made.epoch, alice.durability)
        assert (again.seq, again.epoch, again.duplicate) == (1, first.epoch, True)
        (message,) = await take(alice, 1)
        assert (message.payload, message.topic, live.subscribers) == (2, "orders", 1)
        assert (delivery(message).seq, message.is_settleable) == (2, False)

        info = await alice.topic("orders")
        assert info.retention is not None
        assert (info.head, info.retention.age_s, info.poison) == (2, 3600, "dead_letter")
        assert [topic.name for topic in await alice.topics()] == ["orders", "prices"]
        assert [topic.name for topic in await alice.topics("p*")] == ["prices"]
        assert (await alice.update_topic("orders", poison="drop")).poison == "drop"
        orders = await alice.consume("orders", "billing")
        await alice.delete_topic("orders")
        with pytest.raises(signalhub.Unsubscribed):
            await orders.wait_closed()
        for looking in (alice.topic("orders"), alice.consume("orders", "billing")):
            with pytest.raises(signalhub.Refused, match="unknown_topic"):
                await looking


async def test_a_consumer_gets_everything_from_the_beginning_in_order() -> None:
    async with (
        run_hub(message_rate=0) as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB) as bob,
    ):
        await publish_all(alice, "orders", 600)

        async with bob.consume("orders", "billing") as orders:
            assert (orders.next, orders.head, orders.lag) == (1, 600, 600)
            assert await processed(orders, 600) == list(range(600))
            await orders.credit(messages=0)
            await alice.publish("orders", "n", "more", key="k", headers={"a": "b"})
            assert (await bob.subscription("orders", "billing")).in_flight == 0
            await orders.credit(messages=5)
            (more,) = await take(orders, 1)
            assert (more.payload, more.key, more.headers) == ("more", "k", {"a": "b"})
            await more.ack(wait=True)
            info = await bob.subscription("orders", "billing")
            assert (info.floor, info.lag, info.in_flight) == (601, 0, 0)
            assert [consumer.name for consumer in info.consumers] == [orders.name]

        async with bob.consume("orders", "billing") as orders:
            assert (orders.next, orders.lag) == (602, 0)
        async with bob.consume("orders", "tail", auto_ack=True) as tail:
            messages = await take(tail, 601)
            assert not any(message.is_settleable for message in messages)
            await until(bob, "tail", lambda info: info.lag == 0)


async def test_a_nack_brings_a_message_again_and_a_term_makes_a_dead_letter() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        await alice.create_topic("orders", poison="dead_letter")
        async with alice.consume("orders", "billing", backoff_s=0.01) as orders:
            for n in ("again", "never"):
                await alice.publish("orders", n, n)
            first, second = await take(orders, 2)

            await first.nack(reason="busy")
            await second.term(reason="nonsense", wait=True)
            (again,) = await take(orders, 1)

            assert (again.payload, delivery(again).attempt) == ("again", 2)
            await again.ack(wait=True)
            async with alice.consume("orders.dlq", "look") as letters:
                (letter,) = await take(letters, 1)
                assert letter.payload == "never"
                assert letter.dead_letter is not None
                origin = (letter.dead_letter.topic, letter.dead_letter.reason)
                assert origin == ("orders", "nonsense")
                await letter.ack(wait=True)
            assert await alice.redrive("orders.dlq") == 1
            assert await processed(orders, 1) == ["never"]
            assert await alice.purge("orders.dlq") == 0


async def test_a_cut_connection_loses_nothing_and_marks_what_may_be_a_repeat() -> None:
    async with (
        run_hub(message_rate=0) as hub,
        ChaosProxy(hub.port) as proxy,
        connect(hub.url, ALICE) as alice,
        connect(proxy.url, BOB) as bob,
    ):
        await alice.create_topic("orders")
        seen: dict[int, int] = {}
        unmarked: list[int] = []
        async with bob.consume("orders", "billing", window=32) as orders:
            publishing = asyncio.create_task(publish_all(alice, "orders", 500))
            while len(seen) < 500:
                (message,) = await take(orders, 1)
                seq = delivery(message).seq
                if seq in seen and not delivery(message).redelivered:
                    unmarked.append(seq)
                seen[seq] = seen.get(seq, 0) + 1
                await message.ack()
                if sum(seen.values()) % 100 == 50:
                    proxy.cut()
            await publishing
            assert orders.recovered

        assert sorted(seen) == list(range(1, 501))
        assert unmarked == []


async def test_a_subscription_is_paused_moved_and_looked_at() -> None:
    async with run_hub(message_rate=0) as hub, connect(hub.url, ALICE) as alice:
        await publish_all(alice, "orders", 10)
        async with alice.consume("orders", "billing") as orders:
            before = await take(orders, 10)
            assert (await alice.pause("orders", "billing")).paused
            await alice.publish("orders", "n", 10)
            assert not (await alice.resume("orders", "billing")).paused
            assert await payloads(orders, 1) == [10]
            await orders.ack_up_to(11, wait=True)

            planned = await alice.seek("orders", "billing", 4, dry_run=True)
            assert (planned.next, planned.will_replay, planned.will_skip) == (4, 8, 0)
            assert (await alice.subscription("orders", "billing")).floor == 11
            assert await alice.seek("orders", "billing", 4) == planned
            await until(alice, "billing", lambda info: info.in_flight == 8)
            for message in before:
                await message.ack()
            # Acks from before the seek settle nothing after it.
            assert await processed(orders, 8) == list(range(3, 11))
            await until(alice, "billing", lambda info: info.floor == 11)

        await alice.delete_subscription("orders", "billing")
        with pytest.raises(signalhub.Refused, match="unknown_subscription"):
            await alice.subscription("orders", "billing")


async def test_a_range_can_be_read_again_beside_all_subscriptions() -> None:
    async with run_hub(message_rate=0) as hub, connect(hub.url, ALICE) as alice:
        await publish_all(alice, "orders", 1200)

        everything = alice.replay("orders")
        assert [message.payload async for message in everything] == list(range(1200))
        assert (everything.complete, everything.next, everything.lost) == (True, 1201, None)
        some = alice.replay("orders", 10, 20)
        assert [delivery(message).seq async for message in some] == list(range(10, 21))
        few = alice.replay("orders", 5, limit=3)
        messages = [message async for message in few]
        assert [message.payload for message in messages] == [4, 5, 6]
        assert (few.complete, few.next) == (False, 8)
        assert (messages[0].is_replay, messages[0].is_settleable) == (True, False)


async def test_a_topic_made_anew_while_away_ends_the_consumer_instead_of_guessing() -> None:
    async with (
        run_hub(message_rate=0) as hub,
        ChaosProxy(hub.port) as proxy,
        connect(hub.url, ALICE) as alice,
        connect(proxy.url, BOB) as bob,
    ):
        await publish_all(alice, "orders", 3)
        orders = await bob.consume("orders", "billing")
        await processed(orders, 3)

        await proxy.refuse()
        proxy.cut()
        await alice.delete_topic("orders")
        await alice.create_topic("orders")
        await proxy.accept()

        with pytest.raises(signalhub.Refused, match="wrong_epoch"):
            await orders.wait_closed()
        assert (await bob.ask(ALICE, "note", 1)).is_delivered


@pytest.mark.parametrize(
    "scenario",
    [
        test_a_consumer_gets_everything_from_the_beginning_in_order,
        test_a_cut_connection_loses_nothing_and_marks_what_may_be_a_repeat,
    ],
)
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())
