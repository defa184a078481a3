"""Consumers of durable subscriptions and mailboxes, against a hub that follows a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import signalhub
from signalhub import Client, Consumer, Message
from signalhub.client.answers import Lost
from signalhub.client.settle import TOGETHER_MAX
from signalhub.testing import Peer, ScriptedHub
from tests.support.memory.client import (
    ALICE,
    BOB,
    caught_up,
    conversation,
    exchange,
    reconnected,
)

PLACE = {"topic": "orders", "subscription": "billing"}
LEFT = ("hub:unsubscribe", "hub:unsubscribed", PLACE)


async def joined(client: Client, peer: Peer, **options: Any) -> Consumer:
    joining = asyncio.ensure_future(client.consume("orders", "billing", **options))
    await peer.seat(subscriptionId="s-1", next=3, head=9, lag=7)
    return await joining


async def rejoined(hub: ScriptedHub, **facts: Any) -> tuple[Peer, dict[str, Any]]:
    """The client's next connection, and how it joined the subscription again."""
    peer = await reconnected(hub)
    return peer, (await peer.seat(**facts))["payload"]


async def take(consumer: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(5):
        return [await anext(consumer) for _ in range(count)]


def seqs(messages: list[Message]) -> list[int]:
    return [message.delivery.seq for message in messages if message.delivery is not None]


async def settlement(peer: Peer, type: str) -> dict[str, Any]:
    """The next settlement without the names of what it is about."""
    message = await peer.receive(type)
    assert PLACE.items() <= message["payload"].items()
    assert message["pattern"] == "tell"
    return {name: fact for name, fact in message["payload"].items() if name not in PLACE}


async def test_a_consumer_knows_its_subscription_and_has_a_name_of_its_own() -> None:
    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer, consumer="worker-1")

        assert (consumer.topic, consumer.subscription) == ("orders", "billing")
        assert (consumer.name, consumer.subscription_id) == ("worker-1", "s-1")
        assert (consumer.epoch, consumer.next, consumer.head, consumer.lag) == ("e1", 3, 9, 7)
        assert (consumer.recovered, consumer.lost) == (True, None)
        assert "worker-1" in repr(consumer)
        with pytest.raises(ValueError, match="already"):
            await client.consume("orders", "billing")
        names = set()
        for _ in range(2):
            await exchange(consumer.close(), peer, *LEFT)
            consumer = await joined(client, peer)
            names.add(consumer.name)
        assert len(names) == 2
        assert all(name.startswith("demo/alice-") for name in names)


async def test_settlements_say_what_is_to_happen() -> None:
    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer)
        for seq in range(1, 7):
            peer.deliver(seq)
        first, second, third, fourth = await take(consumer, 4)
        names = [{"epoch": "e1", "seq": seq, "id": f"1.{seq}.1"} for seq in range(1, 5)]

        await first.nack(delay_s=1.5, reason="busy")
        assert await settlement(peer, "hub:nack") == names[0] | {"delayMs": 1500, "reason": "busy"}
        await second.extend(60, wait=False)
        expected = names[1] | {"attempt": 1, "ms": 60000}
        assert await settlement(peer, "hub:extend") == expected
        await third.term(reason="nonsense")
        assert await settlement(peer, "hub:term") == names[2] | {"reason": "nonsense"}
        answer = ("hub:acked", {"floor": 1, "accepted": 1, "ignored": []})
        ack, settled = await exchange(fourth.ack(wait=True), peer, "hub:ack", *answer)
        assert (ack["pattern"], ack["payload"]) == ("ask", PLACE | names[3])
        assert settled is not None
        assert (settled.floor, settled.accepted, settled.ignored) == (1, 1, ())
        assert [one.is_open for one in (first, second, third, fourth)] == [
            False,
            True,
            False,
            False,
        ]
        await consumer.ack_up_to(5)
        assert await settlement(peer, "hub:ack") == {"epoch": "e1", "upTo": 5}
        assert seqs(await take(consumer, 1)) == [6]
        await consumer.credit(messages=0, bytes=4096)
        credit = await peer.receive("hub:credit")
        assert credit["payload"] == {"subscriptionId": "s-1", "messages": 0, "bytes": 4096}


@pytest.mark.parametrize(
    ("acked", "sent"),
    [
        ([(1, "e1"), (1, "e1")], [("e1", 1)]),
        ([(1, "e1"), (2, "e1"), (1, "f1")], [("e1", [1, 2]), ("f1", 1)]),
        (
            [(seq, "e1") for seq in range(1, TOGETHER_MAX + 3)],
            [("e1", [*range(1, TOGETHER_MAX + 1)]), ("e1", [TOGETHER_MAX + 1, TOGETHER_MAX + 2])],
        ),
    ],
    ids=["one repeated", "of two epochs", "very many"],
)
async def test_acks_of_one_tick_travel_together(
    acked: list[tuple[int, str]], sent: list[tuple[str, Any]]
) -> None:
    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer)
        messages = []
        for seq, epoch in acked:
            peer.deliver(seq, epoch=epoch)
            messages += await take(consumer, 1)
        for message in messages:
            await message.ack()

        for expected in sent:
            ack = await settlement(peer, "hub:ack")
            assert (ack["epoch"], ack.get("seqs") or ack["seq"]) == expected


async def test_a_handler_acknowledges_by_returning() -> None:
    async def handle(message: Message) -> None:
        if message.payload == "bad":
            raise signalhub.Reject("no good")

    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer, handler=handle)
        peer.deliver(1, "good")
        assert (await settlement(peer, "hub:ack"))["seq"] == 1
        peer.deliver(2, "bad")
        assert (await settlement(peer, "hub:term"))["reason"] == "no good"
        with pytest.raises(RuntimeError, match="go to its handler"):
            await anext(consumer)


async def test_after_a_loss_it_goes_on_after_what_was_processed() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await joined(client, peer, consumer="worker-1", window=5)
        for seq in (1, 2, 3, 4):
            peer.deliver(seq, "first copy")
        first, second, third = await take(consumer, 3)
        await first.ack()
        await peer.receive("hub:ack")
        await third.nack()
        await peer.receive("hub:nack")

        peer.abort()
        peer, asked = await rejoined(hub, head=12, recovered=False, lostFrom=3, lostTo=5)
        assert not second.is_open
        for seq in (2, 6):
            peer.deliver(seq, "second copy", attempt=2)

        assert asked["resume"] == {"epoch": "e1", "seq": 1}
        assert (asked["consumer"], asked["window"]) == ("worker-1", 5)
        again = await take(consumer, 2)
        assert seqs(again) == [2, 6]
        assert {message.payload for message in again} == {"second copy"}
        assert [first.is_open, second.is_open] == [False, True]
        assert (consumer.head, consumer.recovered, consumer.lost) == (12, False, Lost(3, 5))


@pytest.mark.parametrize("is_redelivered", [False, True])
async def test_a_settlement_that_the_hub_ignores_raises_unless_a_later_copy_takes_it(
    is_redelivered: bool,
) -> None:
    async with conversation() as (hub, peer, client):
        consumer = await joined(client, peer)
        peer.deliver(1)
        (message,) = await take(consumer, 1)
        peer.abort()
        peer, _ = await rejoined(hub)
        settling = asyncio.ensure_future(message.ack(wait=True))
        request = await peer.receive("hub:ack")
        if is_redelivered:
            peer.deliver(1, attempt=2)
            await caught_up(peer, client)
        peer.answer(request, "hub:acked", {"floor": 0, "accepted": 0, "ignored": [1]})
        if is_redelivered:
            request = await peer.receive("hub:ack")
            assert request["payload"]["id"] == "1.1.2"
            peer.answer(request, "hub:acked", {"floor": 1, "accepted": 1, "ignored": []})
            settled = await settling
            assert settled is not None
            assert settled.accepted == 1
        else:
            with pytest.raises(signalhub.StaleDelivery, match="no longer waits") as stale:
                await settling
            assert stale.value.details == {"seq": 1, "attempt": 1, "floor": 0}
            # Nor is the copy that comes later handed out; it is acknowledged as well.
            peer.deliver(1, attempt=2)
            assert (await settlement(peer, "hub:ack"))["id"] == "1.1.2"
        peer.deliver(2)
        assert seqs(await take(consumer, 1)) == [2]


async def test_an_extension_and_a_nack_of_a_stale_copy_raise() -> None:
    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer)
        peer.deliver(1)
        (message,) = await take(consumer, 1)
        ignored = {"floor": 0, "accepted": 0, "ignored": [1]}

        with pytest.raises(signalhub.StaleDelivery, match="hub:extend"):
            await exchange(message.extend(60), peer, "hub:extend", "hub:extended", ignored)
        with pytest.raises(signalhub.StaleDelivery, match="hub:nack"):
            await exchange(message.nack(wait=True), peer, "hub:nack", "hub:nacked", ignored)


async def test_a_consumer_taken_over_raises_and_its_client_goes_on() -> None:
    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer)
        peer.deliver(1)
        (message,) = await take(consumer, 1)
        peer.deliver(2)
        peer.send("hub:unsubscribed", PLACE | {"reason": "taken_over"})

        with pytest.raises(signalhub.Unsubscribed, match="another session"):
            await consumer.wait_closed()
        with pytest.raises(signalhub.Unsubscribed):
            await anext(consumer)
        with pytest.raises(signalhub.Unavailable, match="closed"):
            await message.ack()
        await consumer.close()

        assert (consumer.is_closed, client.is_connected) == (True, True)
        assert peer.has_heard_nothing()


async def test_leaving_sends_the_acks_first() -> None:
    async with conversation() as (_, peer, client):

        async def read_one() -> None:
            async with client.consume("orders", "billing") as consumer:
                async for message in consumer:
                    await message.ack()
                    break

        reading = asyncio.ensure_future(read_one())
        await peer.seat()
        peer.deliver(1)
        assert (await settlement(peer, "hub:ack"))["seq"] == 1
        await exchange(reading, peer, *LEFT)

        consumer = await joined(client, peer)
        peer.deliver(2)
        (message,) = await take(consumer, 1)
        await message.ack()
        await client.close()

        assert (await settlement(peer, "hub:ack"))["seq"] == 2
        await peer.receive("hub:disconnect")
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
        await consumer.wait_closed()
        for settling in (message.ack(), message.nack()):
            with pytest.raises(signalhub.Unavailable, match="closed"):
                await settling


async def test_a_client_that_acknowledges_settles_its_mail() -> None:
    async with conversation(acknowledge=True) as (_, peer, client):

        @client.on("task")
        def work(message: Message) -> None:
            if message.payload == "hard":
                raise ValueError("too hard")

        mail = {"stream": ALICE, "epoch": "m1"}
        peer.mail(ALICE, 1, "easy")
        assert (await peer.receive("hub:ack"))["payload"] == mail | {"seq": 1}
        peer.mail(ALICE, 2, "hard")
        nack = mail | {"seq": 2, "reason": "ValueError: too hard"}
        assert (await peer.receive("hub:nack"))["payload"] == nack
        peer.send("task", "hard", sender=BOB)
        peer.mail(ALICE, 3, "easy")
        assert (await peer.receive("hub:ack"))["payload"]["seq"] == 3, "a tell is not settled"
