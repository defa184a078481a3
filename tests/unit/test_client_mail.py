"""Messages from mailboxes: settled by those who acknowledge, simply received by the others."""

from __future__ import annotations

import asyncio

from signalhub import Client, Message
from signalhub.testing import Peer
from tests.support.memory.client import ALICE, conversation


async def _caught_up(peer: Peer, client: Client) -> None:
    """Wait until the client has read everything the hub said."""
    pinging = asyncio.ensure_future(client.ping())
    peer.answer(await peer.receive("hub:heartbeat"), "hub:heartbeat_ack")
    await pinging


async def test_a_client_that_acknowledges_settles_its_mail() -> None:
    async with conversation(acknowledge=True) as (_, peer, client):
        for seq in (1, 2):
            peer.mail(ALICE, seq, f"mail {seq}")
        messages = client.messages()
        first, second = await anext(messages), await anext(messages)

        await first.ack()
        ack = await peer.receive("hub:ack")
        await second.nack(reason="later")
        nack = await peer.receive("hub:nack")

        assert first.delivery is not None
        assert (first.delivery.stream, first.topic) == (ALICE, None)
        assert ack["payload"] == {"stream": ALICE, "epoch": "m1", "seq": 1}
        assert nack["payload"] == {"stream": ALICE, "epoch": "m1", "seq": 2, "reason": "later"}


async def test_handlers_of_a_client_that_acknowledges_settle_by_how_they_end() -> None:
    async with conversation(acknowledge=True) as (_, peer, client):

        @client.on("task")
        def work(message: Message) -> None:
            if message.payload == "hard":
                raise ValueError("too hard")

        peer.mail(ALICE, 1, "easy")
        ack = await peer.receive("hub:ack")
        peer.mail(ALICE, 2, "hard")
        nack = await peer.receive("hub:nack")
        peer.send("task", "hard", sender="@(demo/boss)")
        peer.mail(ALICE, 3, "easy")
        next_ack = await peer.receive("hub:ack")

        assert ack["payload"]["seq"] == 1
        assert nack["payload"]["reason"] == "ValueError: too hard"
        assert next_ack["payload"]["seq"] == 3


async def test_mail_not_handed_out_before_a_loss_is_forgotten_if_it_comes_again() -> None:
    async with conversation(acknowledge=True) as (hub, peer, client):
        peer.mail(ALICE, 1, "first copy")
        peer.send("note", "a tell", sender="@(demo/boss)")
        await _caught_up(peer, client)
        peer.abort()

        peer = await hub.accept()
        await peer.welcome()
        peer.mail(ALICE, 1, "second copy", attempt=2)

        messages = client.messages()
        assert [(await anext(messages)).payload for _ in range(2)] == ["a tell", "second copy"]


async def test_mail_to_a_client_that_does_not_acknowledge_has_nothing_to_settle() -> None:
    async with conversation() as (hub, peer, client):
        peer.mail(ALICE, 1, "once")
        await _caught_up(peer, client)
        peer.abort()
        peer = await hub.accept()
        await peer.welcome()

        message = await anext(client.messages())

        assert message.payload == "once"
        assert not message.is_settleable


async def test_a_capability_narrows_a_broadcast_through_its_metadata() -> None:
    async with conversation() as (_, peer, client):
        broadcast = asyncio.ensure_future(client.broadcast("hi", 1, capability="chat"))
        message = await peer.receive("hub:broadcast")
        peer.answer(message, "hub:broadcast_ack", {})
        await broadcast

    assert message["metadata"] == {"targetCapability": "chat"}
    assert message["payload"] == {"type": "hi", "data": 1, "excludeSelf": False}
