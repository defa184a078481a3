"""Consumers of durable subscriptions against a hub that follows a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import signalhub
from signalhub import Client, Consumer, Message
from signalhub.client.answers import Lost
from signalhub.client.settle import TOGETHER_MAX
from signalhub.testing import Peer, ScriptedHub
from tests.support.memory.client import ALICE, conversation

PLACE = {"topic": "orders", "subscription": "billing"}


async def _consume(client: Client, peer: Peer, **options: Any) -> Consumer:
    joining = asyncio.ensure_future(_join(client, **options))
    await peer.seat(subscriptionId="s-1", next=3, head=9, lag=7)
    return await joining


async def _join(client: Client, **options: Any) -> Consumer:
    return await client.consume("orders", "billing", **options)


async def _back(hub: ScriptedHub, **facts: Any) -> tuple[Peer, dict[str, Any]]:
    """The client's next connection, and how it took its seat again."""
    peer = await hub.accept()
    await peer.welcome()
    return peer, (await peer.seat(**facts))["payload"]


async def _take(consumer: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(5):
        return [await anext(consumer) for _ in range(count)]


def _settled(message: dict[str, Any]) -> dict[str, Any]:
    """A settlement without the names of what it is about."""
    assert PLACE.items() <= message["payload"].items()
    return {name: fact for name, fact in message["payload"].items() if name not in PLACE}


async def test_a_consumer_knows_where_its_subscription_is() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer, consumer="worker-1")

        assert (consumer.topic, consumer.subscription) == ("orders", "billing")
        assert (consumer.name, consumer.subscription_id) == ("worker-1", "s-1")
        assert (consumer.epoch, consumer.next, consumer.head, consumer.lag) == ("e1", 3, 9, 7)
        assert consumer.recovered
        assert consumer.lost is None
        assert "worker-1" in repr(consumer)


async def test_consumers_have_names_of_their_own() -> None:
    async with conversation() as (_, peer, client):
        first = await _consume(client, peer)
        closing = asyncio.ensure_future(first.close())
        peer.answer(await peer.receive("hub:unsubscribe"), "hub:unsubscribed", PLACE)
        await closing
        second = await _consume(client, peer)

        assert first.name.startswith("demo/alice-")
        assert first.name != second.name


async def test_messages_come_in_order_with_what_their_publisher_gave_them() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        for seq in (3, 4):
            peer.deliver(seq, {"n": seq}, key="k", headers={"trace": "t"})

        first, second = await _take(consumer, 2)

        assert [first.payload, second.payload] == [{"n": 3}, {"n": 4}]
        assert (first.topic, first.key, first.headers) == ("orders", "k", {"trace": "t"})
        assert first.delivery is not None
        assert (first.delivery.seq, first.delivery.id) == (3, "1.3.1")
        assert first.is_settleable


async def test_messages_of_a_consumer_are_not_those_of_the_client() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        peer.deliver(1, "for the consumer")
        peer.send("order", "for the client", sender="@(demo/shop)")

        assert (await anext(client.messages())).payload == "for the client"
        assert (await anext(consumer)).payload == "for the consumer"


async def test_acks_of_one_turn_travel_together() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        for seq in range(1, 6):
            peer.deliver(seq)
        messages = await _take(consumer, 5)

        for message in messages[:3]:
            await message.ack()
        together = await peer.receive("hub:ack")
        await messages[3].ack()
        alone = await peer.receive("hub:ack")

        assert (together["pattern"], alone["pattern"]) == ("tell", "tell")
        assert _settled(together) == {
            "epoch": "e1",
            "seqs": [1, 2, 3],
            "ids": ["1.1.1", "1.2.1", "1.3.1"],
        }
        assert _settled(alone) == {"epoch": "e1", "seq": 4, "id": "1.4.1"}


async def test_very_many_acks_travel_in_parts() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        for seq in range(1, TOGETHER_MAX + 3):
            peer.deliver(seq)
        for message in await _take(consumer, TOGETHER_MAX + 2):
            await message.ack()

        parts = [_settled(await peer.receive("hub:ack"))["seqs"] for _ in range(2)]

        assert parts == [list(range(1, TOGETHER_MAX + 1)), [TOGETHER_MAX + 1, TOGETHER_MAX + 2]]


async def test_an_ack_to_wait_for_returns_what_the_hub_made_of_it() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        peer.deliver(1)
        (message,) = await _take(consumer, 1)

        acking = asyncio.ensure_future(message.ack(wait=True))
        ack = await peer.receive("hub:ack")
        assert not acking.done()
        peer.answer(ack, "hub:acked", {"floor": 1, "accepted": 0, "ignored": [1]})

        settled = await acking
        assert ack["pattern"] == "ask"
        assert settled is not None
        assert (settled.floor, settled.accepted, settled.ignored) == (1, 0, (1,))


async def test_nack_extend_and_term_say_what_is_to_happen() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        for seq in (1, 2, 3):
            peer.deliver(seq)
        first, second, third = await _take(consumer, 3)

        await first.nack(delay_s=1.5, reason="busy")
        await second.extend(60)
        await third.term(reason="nonsense")

        nack = await peer.receive("hub:nack")
        extend = await peer.receive("hub:extend")
        term = await peer.receive("hub:term")
        assert _settled(nack) == {
            "epoch": "e1",
            "seq": 1,
            "id": "1.1.1",
            "delayMs": 1500,
            "reason": "busy",
        }
        assert _settled(extend) == {"epoch": "e1", "seq": 2, "id": "1.2.1", "ms": 60000}
        assert _settled(term) == {"epoch": "e1", "seq": 3, "id": "1.3.1", "reason": "nonsense"}


async def test_everything_up_to_a_position_can_be_acknowledged_at_once() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        for seq in (1, 2, 3):
            peer.deliver(seq)
        await _take(consumer, 1)

        await consumer.ack_up_to(2)

        assert _settled(await peer.receive("hub:ack")) == {"epoch": "e1", "upTo": 2}
        assert [one.delivery.seq for one in await _take(consumer, 1) if one.delivery] == [3]


async def test_credit_is_set_for_the_present_seat() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)

        await consumer.credit(messages=0, bytes=4096)

        credit = await peer.receive("hub:credit")
        assert credit["payload"] == {"subscriptionId": "s-1", "messages": 0, "bytes": 4096}


async def test_a_handler_acknowledges_by_returning() -> None:
    handled: list[Any] = []

    async def handle(message: Message) -> None:
        handled.append(message.payload)
        if message.payload == "bad":
            raise signalhub.Reject("no good")

    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer, handler=handle)
        peer.deliver(1, "good")
        ack = await peer.receive("hub:ack")
        peer.deliver(2, "bad")
        term = await peer.receive("hub:term")

        assert handled == ["good", "bad"]
        assert (_settled(ack)["seq"], _settled(term)["reason"]) == (1, "no good")
        with pytest.raises(RuntimeError, match="go to its handler"):
            await anext(consumer)


async def test_after_a_loss_it_goes_on_after_what_was_processed() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await _consume(client, peer, consumer="worker-1", window=5)
        for seq in (1, 2, 3, 4):
            peer.deliver(seq)
        first, second = await _take(consumer, 2)
        await first.ack()
        await peer.receive("hub:ack")

        peer.abort()
        peer, asked = await _back(hub, next=2, head=9, lag=8)
        assert not second.is_open
        peer.deliver(2, "again", attempt=2)

        assert asked["resume"] == {"epoch": "e1", "seq": 1}
        assert (asked["consumer"], asked["window"]) == ("worker-1", 5)
        (again,) = await _take(consumer, 1)
        assert (again.payload, consumer.head) == ("again", 9)
        assert again.delivery is not None
        assert (again.delivery.seq, again.delivery.redelivered) == (2, True)
        assert not first.is_open
        assert second.is_open


async def test_what_was_not_handed_out_before_a_loss_is_forgotten() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await _consume(client, peer)
        for seq in (1, 2, 3):
            peer.deliver(seq, f"first {seq}")
        await _take(consumer, 1)

        peer.abort()
        peer, _ = await _back(hub)
        for seq in (1, 2, 3):
            peer.deliver(seq, f"second {seq}", attempt=2)

        received = [message.payload for message in await _take(consumer, 3)]
        assert received == ["second 1", "second 2", "second 3"]


async def test_acks_made_while_away_are_sent_on_return_and_their_copies_skipped() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await _consume(client, peer)
        for seq in (1, 2):
            peer.deliver(seq)
        (first,) = await _take(consumer, 1)
        peer.abort()
        await peer.gone.wait()
        peer = await hub.accept()
        assert not client.is_connected

        await first.ack()
        await peer.welcome()
        asked = (await peer.seat())["payload"]
        for seq in (1, 2):
            peer.deliver(seq, attempt=2)

        ack = _settled(await peer.receive("hub:ack"))
        assert asked["resume"] == {"epoch": "e1", "seq": 1}
        assert (ack["seq"], ack["id"]) == (1, "1.1.1")
        (message,) = await _take(consumer, 1)
        if message.delivery is not None and message.delivery.seq == 1:
            # The copy overtook the ack, as it may.
            (message,) = await _take(consumer, 1)
        assert message.delivery is not None
        assert message.delivery.seq == 2


async def test_a_copy_is_not_handed_out_when_the_first_was_settled_meanwhile() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await _consume(client, peer)
        peer.deliver(1)
        (first,) = await _take(consumer, 1)
        peer.abort()
        peer, _ = await _back(hub)
        for seq in (1, 2):
            peer.deliver(seq, attempt=2)
        peer.send("marker", sender="@(demo/shop)")
        await anext(client.messages())

        await first.ack()

        (message,) = await _take(consumer, 1)
        assert message.delivery is not None
        assert message.delivery.seq == 2


async def test_what_was_lost_for_good_is_reported() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await _consume(client, peer)

        peer.abort()
        await _back(hub, recovered=False, lostFrom=3, lostTo=5)
        await client.tell(ALICE, "note")

        assert not consumer.recovered
        assert consumer.lost == Lost(3, 5)


async def test_a_consumer_taken_over_raises_and_its_client_lives_on() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        peer.deliver(1)
        (message,) = await _take(consumer, 1)
        peer.deliver(2)
        peer.send("hub:unsubscribed", PLACE | {"reason": "taken_over"})

        with pytest.raises(signalhub.Unsubscribed, match="another session") as caught:
            await consumer.wait_closed()
        with pytest.raises(signalhub.Unsubscribed):
            await anext(consumer)
        with pytest.raises(signalhub.Unavailable, match="closed"):
            await message.ack()

        assert caught.value.code == "taken_over"
        assert consumer.is_closed
        assert client.is_connected
        await consumer.close()
        assert peer.has_heard_nothing()


async def test_a_consumer_that_may_not_come_back_raises_and_its_client_lives_on() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await _consume(client, peer)
        peer.abort()
        peer = await hub.accept()
        await peer.welcome()
        peer.refuse(await peer.receive("hub:subscribe"), "subscription_busy")

        with pytest.raises(signalhub.Refused, match="subscription_busy"):
            await anext(consumer)

        await client.tell(ALICE, "note")
        await peer.receive("hub:send")


async def test_a_refused_consumer_leaves_nothing_behind() -> None:
    async with conversation() as (_, peer, client):
        joining = asyncio.ensure_future(_join(client))
        peer.refuse(await peer.receive("hub:subscribe"), "unknown_topic")
        with pytest.raises(signalhub.Refused, match="unknown_topic"):
            await joining

        await _consume(client, peer)
        assert peer.has_heard_nothing()


async def test_a_caller_who_stops_waiting_leaves_the_subscription() -> None:
    async with conversation() as (hub, peer, client):
        joining = asyncio.ensure_future(_join(client))
        await peer.receive("hub:subscribe")
        joining.cancel()

        gone = await peer.receive("hub:unsubscribe")

        assert gone["payload"] == PLACE
        peer.abort()
        peer = await hub.accept()
        await peer.welcome()
        await client.tell(ALICE, "note")
        await peer.receive("hub:send")


async def test_leaving_sends_the_acks_first() -> None:
    async with conversation() as (_, peer, client):
        opening = client.consume("orders", "billing")

        async def read_one() -> None:
            async with opening as consumer:
                async for message in consumer:
                    await message.ack()
                    break

        reading = asyncio.ensure_future(read_one())
        await peer.seat()
        peer.deliver(1)

        assert _settled(await peer.receive("hub:ack"))["seq"] == 1
        peer.answer(await peer.receive("hub:unsubscribe"), "hub:unsubscribed", PLACE)
        await reading


async def test_closing_the_client_sends_the_acks_first() -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)
        peer.deliver(1)
        (message,) = await _take(consumer, 1)

        await message.ack()
        await client.close()

        assert _settled(await peer.receive("hub:ack"))["seq"] == 1
        await peer.receive("hub:disconnect")
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
        await consumer.wait_closed()
        for settling in (message.ack(), message.nack()):
            with pytest.raises(signalhub.Unavailable, match="closed"):
                await settling


@pytest.mark.parametrize("code", ["not_a_consumer", "unknown_subscription"])
async def test_leaving_what_is_gone_already_is_no_error(code: str) -> None:
    async with conversation() as (_, peer, client):
        consumer = await _consume(client, peer)

        closing = asyncio.ensure_future(consumer.close())
        peer.refuse(await peer.receive("hub:unsubscribe"), code)
        await closing
        await consumer.close()

        assert consumer.is_closed


async def test_a_closed_consumer_does_not_come_back() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await _consume(client, peer)
        closing = asyncio.ensure_future(consumer.close())
        await peer.receive("hub:unsubscribe")
        peer.abort()
        await closing

        peer = await hub.accept()
        await peer.welcome()
        await client.tell(ALICE, "note")

        await peer.receive("hub:send")


async def test_closing_an_old_consumer_again_leaves_its_successor_alone() -> None:
    async with conversation() as (_, peer, client):
        first = await _consume(client, peer)
        closing = asyncio.ensure_future(first.close())
        peer.answer(await peer.receive("hub:unsubscribe"), "hub:unsubscribed", PLACE)
        await closing
        second = await _consume(client, peer)

        await first.close()
        peer.deliver(1, "still here")

        assert (await anext(second)).payload == "still here"


async def test_what_the_hub_settles_itself_is_kept_through_a_loss() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await _consume(client, peer, auto_ack=True)
        for seq in (1, 2):
            peer.deliver(seq)
        (first,) = await _take(consumer, 1)
        peer.abort()

        peer, asked = await _back(hub)

        assert not first.is_settleable
        assert asked["resume"] == {"epoch": "e1", "seq": 2}
        (second,) = await _take(consumer, 1)
        assert second.delivery is not None
        assert second.delivery.seq == 2


@pytest.mark.parametrize(
    "options", [{"mode": "all"}, {"start": "now"}, {"window": 0}, {"consumer": "x" * 300}]
)
async def test_a_consumer_that_makes_no_sense_is_refused_at_once(options: dict[str, Any]) -> None:
    async with conversation() as (_, peer, client):
        with pytest.raises(ValueError, match=r"."):
            client.consume("orders", "billing", **options)
        with pytest.raises(ValueError, match="subscription"):
            client.consume("orders", "")
        assert peer.has_heard_nothing()


async def test_one_client_consumes_a_subscription_once() -> None:
    async with conversation() as (_, peer, client):
        await _consume(client, peer)

        with pytest.raises(ValueError, match="already"):
            await client.consume("orders", "billing")

        assert peer.has_heard_nothing()
