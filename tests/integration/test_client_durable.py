"""The Python client's durable messaging against the real hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import uvloop

import signalhub
from signalhub import Client, Consumer, Message, Reconnect
from signalhub.client import Delivery, SubscriptionInfo
from signalhub.client.client import Connecting
from signalhub.testing import ChaosProxy, run_hub, spawn_hub

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
QUICK = Reconnect(first_jitter_s=0.02, base_s=0.02)
PATIENCE_S = 20.0


def connect(url: str, address: str, **options: Any) -> Connecting:
    return signalhub.connect(url, address, **({"reconnect": QUICK} | options))


async def take(source: Any, count: int) -> list[Message]:
    """The next messages of a consumer or of `messages()`."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(source) for _ in range(count)]


async def take_and_ack(consumer: Consumer, count: int) -> list[Any]:
    """The payloads of the next messages, each acknowledged."""
    payloads = []
    for _ in range(count):
        (message,) = await take(consumer, 1)
        await message.ack()
        payloads.append(message.payload)
    return payloads


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


async def test_a_durable_actor_finds_what_it_missed_in_order() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        async with connect(hub.url, BOB, durable=True) as bob:
            assert (await alice.ask(BOB, "task", "there")).is_delivered
            assert [one.payload for one in await take(bob.messages(), 1)] == ["there"]

        receipts = [await alice.ask(BOB, "task", n) for n in range(5)]

        assert {receipt.status for receipt in receipts} == {"queued"}
        assert len({receipt.epoch for receipt in receipts}) == 1
        seqs = [receipt.seq or 0 for receipt in receipts]
        assert seqs == list(range(seqs[0], seqs[0] + 5))
        assert {receipt.durability for receipt in receipts} == {alice.durability}
        async with connect(hub.url, BOB) as bob:
            messages = await take(bob.messages(), 5)
            assert [message.payload for message in messages] == list(range(5))
            assert [delivery(message).seq for message in messages] == seqs
            assert delivery(messages[0]).stream == BOB


async def test_registering_says_how_much_waits_and_can_drop_it() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        async with connect(hub.url, BOB, durable=True):
            pass
        for n in range(3):
            await alice.ask(BOB, "task", n)

        registration = await alice.register(BOB)
        assert (registration.durable, registration.waiting) == (True, 3)
        assert len(await take(alice.messages(), 3)) == 3

        dropped = await alice.register(BOB, durable=False)
        assert not dropped.durable
        await alice.unregister(BOB)
        with pytest.raises(signalhub.UnknownActor):
            await alice.ask(BOB, "task", 4)


async def test_a_full_mailbox_is_a_refusal_that_may_pass() -> None:
    async with run_hub(mailbox={"limit": 2}) as hub, connect(hub.url, ALICE) as alice:
        async with connect(hub.url, BOB, durable=True):
            pass
        for n in range(2):
            await alice.ask(BOB, "task", n)

        with pytest.raises(signalhub.Refused) as caught:
            await alice.ask(BOB, "task", 2, timeout_s=0.2, attempts=1)

        assert (caught.value.code, caught.value.retryable) == ("queue_full", True)
        assert caught.value.details["limit"] == 2


async def test_an_ask_with_an_id_of_its_own_is_stored_once() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        async with connect(hub.url, BOB, durable=True):
            pass

        first = await alice.ask(BOB, "task", 1, message_id="invoice-7")
        again = await alice.ask(BOB, "task", 1, message_id="invoice-7")

        assert (first.duplicate, again.duplicate) == (False, True)
        assert (again.epoch, again.seq) == (first.epoch, first.seq)
        async with connect(hub.url, BOB) as bob:
            await alice.ask(BOB, "task", 2)
            assert [one.payload for one in await take(bob.messages(), 2)] == [1, 2]


async def test_a_client_that_acknowledges_gets_again_what_it_did_not() -> None:
    retrying = {"backoff_ms": 10, "backoff_cap_ms": 20}
    async with (
        run_hub(mailbox=retrying) as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB, durable=True, acknowledge=True) as bob,
    ):
        for n in range(3):
            await alice.ask(BOB, "task", n)
        messages = bob.messages()
        first, second, third = await take(messages, 3)

        await first.ack()
        await second.nack(reason="busy")
        settled = await third.ack(wait=True)
        (again,) = await take(messages, 1)

        assert settled is not None
        assert settled.accepted == 1
        assert (again.payload, delivery(again).attempt, delivery(again).redelivered) == (1, 2, True)
        await again.ack()
        await bob.close()
        async with connect(hub.url, BOB, durable=True, acknowledge=True) as bob:
            await alice.ask(BOB, "task", "last")
            assert [one.payload for one in await take(bob.messages(), 1)] == ["last"]


async def test_handlers_settle_mail_by_how_they_end() -> None:
    retrying = {"backoff_ms": 10, "backoff_cap_ms": 20}
    tried: list[Any] = []
    done = asyncio.Event()
    async with (
        run_hub(mailbox=retrying) as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB, durable=True, acknowledge=True) as bob,
    ):

        @bob.on("task")
        async def work(message: Message) -> None:
            tried.append((message.payload, delivery(message).attempt))
            if message.payload == "hard" and delivery(message).attempt < 3:
                raise ValueError("not yet")
            if message.payload == "last":
                done.set()

        for task in ("easy", "hard"):
            await alice.ask(BOB, "task", task)
        async with asyncio.timeout(PATIENCE_S):
            while ("hard", 3) not in tried:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await alice.ask(BOB, "task", "last")
            await done.wait()

        assert tried == [("easy", 1), ("hard", 1), ("hard", 2), ("hard", 3), ("last", 1)]


async def test_a_durable_publish_has_a_position_and_is_stored_once() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        first = await alice.publish("orders", "order", 1, durable=True, message_id="order-1")
        second = await alice.publish("orders", "order", 2, durable=True)
        again = await alice.publish("orders", "order", 1, durable=True, message_id="order-1")

        assert (first.topic, first.seq, second.seq) == ("orders", 1, 2)
        assert first.durability == alice.durability
        assert (again.seq, again.epoch, again.duplicate) == (1, first.epoch, True)
        assert (await alice.topic("orders")).head == 2


async def test_topics_are_made_shown_changed_and_deleted() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        made = await alice.create_topic("orders", retention_s=3600, poison="dead_letter")
        same = await alice.create_topic("orders", retention_s=3600, poison="dead_letter")
        await alice.create_topic("prices")

        assert (made.name, made.head, same.epoch) == ("orders", 0, made.epoch)
        with pytest.raises(signalhub.Refused, match="topic_conflict"):
            await alice.create_topic("orders", poison="drop")
        info = await alice.topic("orders")
        assert info.retention is not None
        assert (info.retention.age_s, info.poison) == (3600, "dead_letter")
        assert [topic.name for topic in await alice.topics()] == ["orders", "prices"]
        assert [topic.name for topic in await alice.topics("p*")] == ["prices"]
        assert (await alice.update_topic("orders", poison="drop")).poison == "drop"

        await alice.delete_topic("orders")
        with pytest.raises(signalhub.Refused, match="unknown_topic"):
            await alice.topic("orders")


async def test_a_consumer_gets_everything_from_the_beginning_in_order() -> None:
    async with (
        run_hub(message_rate=0) as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB) as bob,
    ):
        await publish_all(alice, "orders", 600)

        async with bob.consume("orders", "billing") as orders:
            assert (orders.next, orders.head, orders.lag) == (1, 600, 600)
            assert await take_and_ack(orders, 600) == list(range(600))
            await alice.publish("orders", "n", "more", key="k", headers={"a": "b"})
            (more,) = await take(orders, 1)
            assert (more.payload, more.key, more.headers) == ("more", "k", {"a": "b"})
            await more.ack(wait=True)
            info = await bob.subscription("orders", "billing")
            assert (info.floor, info.lag, info.in_flight, len(info.consumers)) == (601, 0, 0, 1)
            assert info.consumers[0].name == orders.name

        async with bob.consume("orders", "billing") as orders:
            assert (orders.next, orders.lag) == (602, 0)


async def test_where_a_new_subscription_begins_can_be_chosen() -> None:
    async with run_hub(message_rate=0) as hub, connect(hub.url, ALICE) as alice:
        await publish_all(alice, "orders", 3)
        await asyncio.sleep(0.01)
        between = datetime.now(UTC)
        await asyncio.sleep(0.01)
        for n in range(3, 6):
            await alice.publish("orders", "n", n)
        starts: dict[str, Any] = {
            "all": "earliest",
            "third": 3,
            "recent": {"last": 2},
            "later": between,
            "new": "latest",
        }
        nexts = {}
        for name, start in starts.items():
            async with alice.consume("orders", name, start=start) as consumer:
                nexts[name] = consumer.next

        assert nexts == {"all": 1, "third": 3, "recent": 5, "later": 4, "new": 7}
        listed = await alice.subscriptions("orders")
        assert sorted(one.name for one in listed) == sorted(starts)


async def test_shared_consumers_get_every_message_once_between_them() -> None:
    async with (
        run_hub(message_rate=0) as hub,
        connect(hub.url, ALICE) as alice,
        connect(hub.url, BOB) as bob,
    ):
        await alice.create_topic("work")
        received: dict[str, list[Any]] = {ALICE: [], BOB: []}
        done = asyncio.Event()

        def collect(message: Message) -> None:
            received[message.to].append(message.payload)
            if sum(map(len, received.values())) == 200:
                done.set()

        async with (
            alice.consume("work", "pool", mode="shared", handler=collect),
            bob.consume("work", "pool", mode="shared", handler=collect),
        ):
            await publish_all(alice, "work", 200)
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()

        assert sorted(received[ALICE] + received[BOB]) == list(range(200))
        assert min(map(len, received.values())) > 20


async def test_an_exclusive_subscription_is_busy_or_taken_over_under_the_same_name() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice, connect(hub.url, BOB) as bob:
        await alice.create_topic("orders")
        older = await alice.consume("orders", "billing", consumer="worker")

        with pytest.raises(signalhub.Refused, match="subscription_busy"):
            await bob.consume("orders", "billing")
        with pytest.raises(signalhub.Refused, match="subscription_conflict"):
            await bob.consume("orders", "billing", mode="shared", consumer="worker")
        newer = await bob.consume("orders", "billing", consumer="worker")

        with pytest.raises(signalhub.Unsubscribed, match="taken_over"):
            await anext(older)
        await alice.publish("orders", "n", 1)
        assert await take_and_ack(newer, 1) == [1]
        assert alice.is_connected


async def test_a_nack_brings_a_message_again_and_a_term_never() -> None:
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
                assert (letter.dead_letter.topic, letter.dead_letter.reason) == (
                    "orders",
                    "nonsense",
                )
                await letter.ack(wait=True)

            assert await alice.redrive("orders.dlq") == 1
            (redriven,) = await take(orders, 1)
            assert redriven.payload == "never"
            assert await alice.purge("orders.dlq") == 0


async def test_a_handler_that_fails_for_ever_makes_a_dead_letter() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        await alice.create_topic("orders", poison="dead_letter")

        def fail(message: Message) -> None:
            raise KeyError("customer")

        async with alice.consume(
            "orders", "billing", handler=fail, max_deliveries=3, backoff_s=0.01
        ):
            await alice.publish("orders", "n", 1)
            await until(alice, "billing", lambda info: info.dead_lettered == 1)

        (letter,) = [message async for message in alice.replay("orders.dlq")]
        assert letter.dead_letter is not None
        assert letter.dead_letter.reason == "KeyError: 'customer'"
        assert letter.dead_letter.attempts == 3


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
            async with asyncio.timeout(PATIENCE_S):
                while len(seen) < 500:
                    message = await anext(orders)
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
        assert (await bob.subscription("orders", "billing")).mode == "exclusive"


async def test_what_was_published_is_there_after_the_hub_was_killed() -> None:
    async with spawn_hub() as hub, connect(hub.url, ALICE) as alice:
        await alice.create_topic("orders")
        orders = await alice.consume("orders", "billing")
        published = [await alice.publish("orders", "n", n, durable=True) for n in range(20)]
        assert await take_and_ack(orders, 5) == list(range(5))
        (held,) = await take(orders, 1)

        publishing = asyncio.create_task(alice.publish("orders", "n", 20, durable=True))
        await hub.restart()

        last = await publishing
        assert (last.epoch, last.seq) == (published[0].epoch, 21)
        rest: list[Message] = []
        while not rest or rest[-1].payload != 20:
            rest += await take(orders, 1)
        assert sorted({message.payload for message in rest} | set(range(6))) == list(range(21))
        again = [message for message in rest if message.payload == held.payload]
        assert again
        assert all(delivery(message).redelivered for message in again)


async def test_a_subscription_is_paused_moved_and_looked_at() -> None:
    async with run_hub(message_rate=0) as hub, connect(hub.url, ALICE) as alice:
        await publish_all(alice, "orders", 10)
        async with alice.consume("orders", "billing") as orders:
            await take_and_ack(orders, 10)
            assert (await alice.pause("orders", "billing")).paused
            await alice.publish("orders", "n", 10)
            assert not (await alice.resume("orders", "billing")).paused
            assert await take_and_ack(orders, 1) == [10]
            await orders.ack_up_to(11, wait=True)

            planned = await alice.seek("orders", "billing", 4, dry_run=True)
            assert (planned.next, planned.will_replay, planned.will_skip) == (4, 8, 0)
            assert (await alice.subscription("orders", "billing")).floor == 11
            moved = await alice.seek("orders", "billing", 4)
            assert moved == planned
            assert await take_and_ack(orders, 8) == list(range(3, 11))

        await alice.delete_subscription("orders", "billing")
        with pytest.raises(signalhub.Refused, match="unknown_subscription"):
            await alice.subscription("orders", "billing")


async def test_acks_from_before_a_seek_settle_nothing_after_it() -> None:
    async with run_hub(message_rate=0) as hub, connect(hub.url, ALICE) as alice:
        await publish_all(alice, "orders", 10)
        async with alice.consume("orders", "billing") as orders:
            before = await take(orders, 10)
            await alice.seek("orders", "billing", "earliest")
            await until(alice, "billing", lambda info: info.in_flight == 10)

            for message in before:
                await message.ack()

            assert await take_and_ack(orders, 10) == list(range(10))
            await until(alice, "billing", lambda info: info.floor == 10)


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
        assert messages[0].is_replay
        assert not messages[0].is_settleable


async def test_messages_can_be_for_later_or_not_for_long() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        await alice.create_topic("orders")
        async with alice.consume("orders", "billing") as orders:
            later = datetime.now(UTC) + timedelta(milliseconds=300)
            await alice.publish("orders", "n", "later", deliver_at=later)
            await alice.publish("orders", "n", "now")

            assert await take_and_ack(orders, 2) == ["now", "later"]
            assert time.time() >= later.timestamp()

        await alice.publish("orders", "n", "short", ttl_ms=1)
        await asyncio.sleep(0.02)
        await alice.publish("orders", "n", "last")
        async with alice.consume("orders", "billing") as orders:
            assert await take_and_ack(orders, 1) == ["last"]


async def test_credit_halts_a_consumer_and_lets_it_go_on() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        await alice.create_topic("orders")
        async with alice.consume("orders", "billing") as orders:
            await orders.credit(messages=0)
            await alice.publish("orders", "n", 1)
            assert (await alice.subscription("orders", "billing")).in_flight == 0

            await orders.credit(messages=5)

            assert await take_and_ack(orders, 1) == [1]


async def test_what_the_hub_acknowledges_itself_needs_nothing() -> None:
    async with run_hub(message_rate=0) as hub, connect(hub.url, ALICE) as alice:
        await publish_all(alice, "orders", 600)
        async with alice.consume("orders", "tail", auto_ack=True) as orders:
            messages = await take(orders, 600)
            assert [message.payload for message in messages] == list(range(600))
            assert not any(message.is_settleable for message in messages)
            await until(alice, "tail", lambda info: info.lag == 0)


async def test_deleting_a_topic_ends_its_consumers() -> None:
    async with run_hub() as hub, connect(hub.url, ALICE) as alice:
        await alice.create_topic("orders")
        orders = await alice.consume("orders", "billing")

        await alice.delete_topic("orders")

        with pytest.raises(signalhub.Unsubscribed):
            await orders.wait_closed()
        with pytest.raises(signalhub.Refused, match="unknown_topic"):
            await alice.consume("orders", "billing")


async def test_a_topic_made_anew_while_away_ends_the_consumer_instead_of_guessing() -> None:
    async with (
        run_hub(message_rate=0) as hub,
        ChaosProxy(hub.port) as proxy,
        connect(hub.url, ALICE) as alice,
        connect(proxy.url, BOB) as bob,
    ):
        await publish_all(alice, "orders", 3)
        orders = await bob.consume("orders", "billing")
        await take_and_ack(orders, 3)

        await proxy.refuse()
        proxy.cut()
        await alice.delete_topic("orders")
        await alice.create_topic("orders")
        await proxy.accept()

        with pytest.raises(signalhub.Refused, match="wrong_epoch"):
            await orders.wait_closed()
        assert (await bob.ask(ALICE, "note", 1)).is_delivered


async def test_a_plain_subscription_to_a_durable_topic_hears_what_is_published_now() -> None:
    async with run_hub(message_rate=0) as hub, connect(hub.url, ALICE) as alice:
        await publish_all(alice, "orders", 2)
        await alice.subscribe("orders")

        published = await alice.publish("orders", "n", "live")
        (message,) = await take(alice.messages(), 1)

        assert (message.payload, message.topic) == ("live", "orders")
        assert (delivery(message).seq, delivery(message).epoch) == (3, published.epoch)
        assert published.subscribers == 1
        assert not message.is_settleable


@pytest.mark.parametrize(
    "scenario",
    [
        test_a_consumer_gets_everything_from_the_beginning_in_order,
        test_a_cut_connection_loses_nothing_and_marks_what_may_be_a_repeat,
        test_a_client_that_acknowledges_gets_again_what_it_did_not,
        test_a_range_can_be_read_again_beside_all_subscriptions,
    ],
)
def test_the_same_holds_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())
