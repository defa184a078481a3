"""Consumers of durable subscriptions, and replays, against a hub that follows a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import signalhub
from signalhub import Client, Consumer, Message
from signalhub.client.answers import Lost
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
UNSUBSCRIBED = ("hub:unsubscribe", "hub:unsubscribed", PLACE)


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
            await exchange(consumer.close(), peer, *UNSUBSCRIBED)
            consumer = await joined(client, peer)
            names.add(consumer.name)
        assert len(names) == 2
        assert all(name.startswith("demo/alice-") for name in names)


async def test_its_messages_come_in_order_and_are_not_those_of_the_client() -> None:
    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer)
        for seq in (3, 4):
            peer.deliver(seq, {"n": seq}, key="k", headers={"trace": "t"})
        peer.send("order", "for the client", sender=BOB)

        first, second = await take(consumer, 2)

        assert (await anext(client.messages())).payload == "for the client"
        assert [first.payload, second.payload] == [{"n": 3}, {"n": 4}]
        assert (first.topic, first.key, first.headers) == ("orders", "k", {"trace": "t"})
        assert first.is_settleable


async def test_settlements_say_what_is_to_happen() -> None:
    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer)
        for seq in range(1, 9):
            peer.deliver(seq)
        messages = await take(consumer, 6)

        await messages[0].ack()
        await messages[1].ack()
        assert await settlement(peer, "hub:ack") == {
            "epoch": "e1", "seqs": [1, 2], "ids": ["1.1.1", "1.2.1"],
        }  # fmt: skip
        await messages[2].nack(delay_s=1.5, reason="busy")
        third = {"epoch": "e1", "seq": 3, "id": "1.3.1"}
        assert await settlement(peer, "hub:nack") == third | {"delayMs": 1500, "reason": "busy"}
        await messages[3].extend(60)
        fourth = {"epoch": "e1", "seq": 4, "id": "1.4.1"}
        assert await settlement(peer, "hub:extend") == fourth | {"ms": 60000}
        await messages[4].term(reason="nonsense")
        fifth = {"epoch": "e1", "seq": 5, "id": "1.5.1"}
        assert await settlement(peer, "hub:term") == fifth | {"reason": "nonsense"}
        facts = {"floor": 1, "accepted": 0, "ignored": [6]}
        _, settled = await exchange(messages[5].ack(wait=True), peer, "hub:ack", "hub:acked", facts)
        assert settled is not None
        assert (settled.floor, settled.accepted, settled.ignored) == (1, 0, (6,))
        await consumer.ack_up_to(7)
        assert await settlement(peer, "hub:ack") == {"epoch": "e1", "upTo": 7}
        assert seqs(await take(consumer, 1)) == [8]
        await consumer.credit(messages=0, bytes=4096)
        credit = await peer.receive("hub:credit")
        assert credit["payload"] == {"subscriptionId": "s-1", "messages": 0, "bytes": 4096}


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
        first, second = await take(consumer, 2)
        await first.ack()
        await peer.receive("hub:ack")

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


async def test_what_is_settled_while_away_or_through_an_old_copy_does_not_come_again() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await joined(client, peer)
        for seq in (1, 2, 3):
            peer.deliver(seq)
        first, second = await take(consumer, 2)
        peer.abort()
        await peer.gone.wait()
        peer = await hub.accept()
        assert not client.is_connected

        await first.ack()
        await peer.welcome()
        asked = (await peer.seat())["payload"]
        ack = await settlement(peer, "hub:ack")
        for seq in (2, 3):
            peer.deliver(seq, attempt=2)
        await caught_up(peer, client)
        await second.ack()

        assert asked["resume"] == {"epoch": "e1", "seq": 1}
        assert (ack["seq"], ack["id"]) == (1, "1.1.1")
        assert seqs(await take(consumer, 1)) == [3]


async def test_what_the_hub_settles_itself_is_kept_through_a_loss() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await joined(client, peer, auto_ack=True)
        for seq in (1, 2):
            peer.deliver(seq)
        (first,) = await take(consumer, 1)
        peer.abort()

        _, asked = await rejoined(hub)

        assert not first.is_settleable
        assert asked["resume"] == {"epoch": "e1", "seq": 2}
        assert seqs(await take(consumer, 1)) == [2]


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


async def test_a_consumer_that_may_not_join_again_raises_and_its_client_goes_on() -> None:
    async with conversation() as (hub, peer, client):
        consumer = await joined(client, peer)
        peer.abort()
        peer = await reconnected(hub)
        peer.refuse(await peer.receive("hub:subscribe"), "subscription_busy")

        with pytest.raises(signalhub.Refused, match="subscription_busy"):
            await anext(consumer)

        await client.tell(ALICE, "note")
        await peer.receive("hub:send")


async def test_a_refused_consumer_leaves_nothing_behind() -> None:
    async with conversation() as (_, peer, client):
        joining = asyncio.ensure_future(client.consume("orders", "billing"))
        peer.refuse(await peer.receive("hub:subscribe"), "unknown_topic")
        with pytest.raises(signalhub.Refused, match="unknown_topic"):
            await joining

        await joined(client, peer)
        assert peer.has_heard_nothing()


@pytest.mark.parametrize("is_joined", [False, True])
async def test_who_left_or_stopped_waiting_does_not_join_again(is_joined: bool) -> None:
    async with conversation() as (hub, peer, client):
        if is_joined:
            consumer = await joined(client, peer)
            leaving = asyncio.ensure_future(consumer.close())
        else:
            leaving = asyncio.ensure_future(client.consume("orders", "billing").__aenter__())
            await peer.receive("hub:subscribe")
            leaving.cancel()

        assert (await peer.receive("hub:unsubscribe"))["payload"] == PLACE
        peer.abort()
        await asyncio.gather(leaving, return_exceptions=True)
        peer = await reconnected(hub)
        await client.tell(ALICE, "note")
        await peer.receive("hub:send")


async def test_leaving_sends_the_acks_first() -> None:
    async with conversation() as (_, peer, client):

        async def read_one() -> None:
            async with client.consume("orders", "billing") as consumer:
                await (await anext(consumer)).ack()

        reading = asyncio.ensure_future(read_one())
        await peer.seat()
        peer.deliver(1)
        assert (await settlement(peer, "hub:ack"))["seq"] == 1
        await exchange(reading, peer, *UNSUBSCRIBED)

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


@pytest.mark.parametrize("code", ["not_a_consumer", "unknown_subscription", "unauthorized"])
async def test_leaving_what_is_gone_already_is_not_an_error(code: str) -> None:
    async with conversation() as (_, peer, client):
        consumer = await joined(client, peer)

        closing = asyncio.ensure_future(consumer.close())
        peer.refuse(await peer.receive("hub:unsubscribe"), code)
        if code == "unauthorized":
            with pytest.raises(signalhub.Refused, match=code):
                await closing
        else:
            await closing
        successor = await joined(client, peer)
        await consumer.close()
        peer.deliver(1, "still here")

        assert consumer.is_closed
        assert (await anext(successor)).payload == "still here"


@pytest.mark.parametrize(
    "options", [{"mode": "all"}, {"start": "now"}, {"window": 0}, {"consumer": "x" * 300}]
)
async def test_an_invalid_option_is_refused_at_once(options: dict[str, Any]) -> None:
    async with conversation() as (_, peer, client):
        with pytest.raises(ValueError, match=r"."):
            client.consume("orders", "billing", **options)
        with pytest.raises(ValueError, match="subscription"):
            client.consume("orders", "")
        assert peer.has_heard_nothing()


def answer_page(
    peer: Peer, request: dict[str, Any], positions: list[int], facts: dict[str, Any]
) -> None:
    """Answer a request for a page of a replay."""
    for seq in positions:
        delivery = {"epoch": "e1", "seq": seq, "publishedAt": 1}
        metadata = {"topic": "orders", "replay": True, "delivery": delivery}
        peer.send("order", seq, sender="@(demo/shop)", metadata=metadata)
    peer.answer(request, "hub:replayed", {"count": len(positions)} | facts)


@pytest.mark.parametrize(
    ("span", "answers", "asked", "end"),
    [
        (
            {"from_seq": 3, "to_seq": 8},
            [([3, 4], {"complete": False, "next": 5}), ([5, 8], {"complete": True, "next": 9})],
            [{"fromSeq": 3, "toSeq": 8, "limit": 500}, {"fromSeq": 5, "toSeq": 8, "limit": 500}],
            (True, 9, None),
        ),
        (
            {"limit": 2},
            [([1, 2], {"complete": False})],
            [{"fromSeq": 1, "limit": 2}],
            (False, 3, None),
        ),
        (
            {"to_seq": 4},
            [([], {"complete": False, "next": 5, "lostFrom": 1, "lostTo": 4}), ([], {"next": 5})],
            [{"fromSeq": 1, "toSeq": 4, "limit": 500}, {"fromSeq": 5, "toSeq": 4, "limit": 500}],
            (False, 5, Lost(1, 4)),
        ),
        (
            {"from_seq": 5},
            [([], {"complete": False, "next": 5})],
            [{"fromSeq": 5, "limit": 500}],
            (False, 5, None),
        ),
    ],
    ids=["to its end", "to its limit", "of what is lost", "that does not get on"],
)
async def test_a_replay_is_read_page_by_page(
    span: dict[str, int],
    answers: list[tuple[list[int], dict[str, Any]]],
    asked: list[dict[str, int]],
    end: tuple[bool, int, Lost | None],
) -> None:
    async with conversation() as (_, peer, client):
        replay = client.replay("orders", **span)

        async def read() -> list[int]:
            return [message.payload async for message in replay]

        reading = asyncio.ensure_future(read())
        for expected, (positions, facts) in zip(asked, answers, strict=True):
            request = await peer.receive("hub:replay")
            assert request["payload"] == {"topic": "orders"} | expected
            answer_page(peer, request, positions, facts)

        received = await reading
        assert received == [seq for positions, _ in answers for seq in positions]
        assert (replay.complete, replay.next, replay.lost) == end
        assert replay.count == len(received)


async def test_replays_wait_for_each_other_even_for_one_that_was_given_up() -> None:
    async with conversation() as (_, peer, client):
        given_up = asyncio.ensure_future(anext(client.replay("orders", 1, 1)))
        request = await peer.receive("hub:replay")
        given_up.cancel()
        reading = asyncio.gather(*(anext(client.replay("orders", seq, seq)) for seq in (2, 3)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert peer.has_heard_nothing()
        answer_page(peer, request, [1], {"next": 2})
        for seq in (2, 3):
            answer_page(peer, await peer.receive("hub:replay"), [seq], {"next": seq + 1})

        assert [message.payload for message in await reading] == [2, 3]


@pytest.mark.parametrize(
    ("from_seq", "to_seq", "limit"), [(0, None, None), (3, 2, None), (1, 9, 0)]
)
async def test_a_replay_of_an_invalid_range_is_refused_at_once(
    from_seq: int, to_seq: int | None, limit: int | None
) -> None:
    async with conversation() as (_, peer, client):
        with pytest.raises(ValueError, match="replay"):
            client.replay("orders", from_seq, to_seq, limit=limit)
        assert peer.has_heard_nothing()
