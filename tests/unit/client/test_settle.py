"""Settlements on their way to the hub: gathered, held back without a connection, kept in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Unpack

import pytest

from signalhub.client.delivery import Delivery
from signalhub.client.message import Message
from signalhub.client.protocol.effects import Answered
from signalhub.client.protocol.frame import FrameWriter, Payload, Request, RequestOptions
from signalhub.client.protocol.restore import Seat, SeatKey
from signalhub.client.settle import TOGETHER_MAX, Settlers
from signalhub.clock import Ids
from signalhub.wire.errors import Unavailable
from tests.support.memory.client import ALICE, caught_up, conversation, reconnected

KEY = SeatKey("orders", "billing")


class Wire:
    """The way to a hub that is there when the test says so."""

    def __init__(self) -> None:
        self.is_ready = True
        self.is_over = False
        self.posted: list[dict[str, Any]] = []

    def request(self, payload: Payload[Any], **options: Unpack[RequestOptions]) -> Request:
        return FrameWriter(ALICE, Ids()).request(payload, 0, **options)

    def post(self, request: Request) -> None:
        self.posted.append(json.loads(request.frame))

    async def call(self, request: Request) -> Answered | None:
        self.post(request)
        return Answered(request.id, {"floor": 7, "accepted": 0, "ignored": [1]}, 1)

    def acked(self) -> list[Any]:
        """The positions that were acknowledged, frame by frame."""
        payloads = (frame["payload"] for frame in self.posted if frame["type"] == "hub:ack")
        return [payload.get("seqs") or payload["seq"] for payload in payloads]


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def seat() -> Seat:
    return Seat(KEY, {"consumer": "c"}, ALICE)


@pytest.fixture
def settlers(wire: Wire, seat: Seat) -> Settlers:
    settlers = Settlers(wire, acknowledges=True)
    settlers.add(seat)
    return settlers


def order(settlers: Settlers, seq: int, epoch: str = "e") -> Message:
    """A message of the subscription that has just arrived."""
    names = {"id": f"m-{seq}", "sender": "@(demo/shop)", "to": ALICE, "type": "order"}
    delivery = Delivery(epoch=epoch, seq=seq, subscription="billing")
    arrived = Message(
        payload=seq, metadata={}, timestamp=0, topic="orders", delivery=delivery, **names
    )
    return settlers.bound(arrived)


async def test_acks_of_one_turn_travel_together_by_epoch_and_in_parts(
    settlers: Settlers, wire: Wire
) -> None:
    repeated = order(settlers, 1)
    for message in (repeated, repeated, order(settlers, 2), order(settlers, 3)):
        await message.ack()
    assert wire.posted == []
    await asyncio.sleep(0)
    assert wire.acked() == [[1, 2, 3]]

    for seq, epoch in ((8, "e"), (9, "e"), (1, "f")):
        await order(settlers, seq, epoch).ack()
    await asyncio.sleep(0)
    assert wire.acked()[1:] == [[8, 9], 1]
    assert [frame["payload"]["epoch"] for frame in wire.posted] == ["e", "e", "f"]

    for seq in range(2, TOGETHER_MAX + 4):
        await order(settlers, seq, "f").ack()
    await asyncio.sleep(0)
    last = TOGETHER_MAX + 2
    assert wire.acked()[3:] == [list(range(2, last)), [last, last + 1]]


async def test_acks_wait_for_a_connection_however_long_that_takes(
    settlers: Settlers, wire: Wire
) -> None:
    wire.is_ready = False
    for seq in (1, 2):
        await order(settlers, seq).ack()
        await asyncio.sleep(0)
    assert wire.posted == []

    wire.is_ready = True
    settlers.flush()
    settlers.flush()

    assert wire.acked() == [[1, 2]]


async def test_a_consumer_that_leaves_has_sent_its_acks_and_settles_nothing_more(
    settlers: Settlers, wire: Wire
) -> None:
    message, late = order(settlers, 1), order(settlers, 2)
    await message.ack()

    settlers.remove(KEY)

    assert wire.acked() == [1]
    with pytest.raises(Unavailable, match="closed"):
        await late.ack()


async def test_nothing_can_be_settled_when_the_client_is_over(
    settlers: Settlers, wire: Wire
) -> None:
    message = order(settlers, 1)
    wire.is_over = True

    with pytest.raises(Unavailable, match="closed"):
        await message.ack()


async def test_what_is_to_come_again_is_closed_and_holds_the_position(
    settlers: Settlers, seat: Seat
) -> None:
    first, second = order(settlers, 1), order(settlers, 2)

    await first.nack()
    await second.extend(10)

    assert (first.is_open, second.is_open) == (False, True)
    await second.term()
    assert not second.is_open
    assert seat.progress.position == 0


async def test_a_loss_closes_what_was_not_settled(settlers: Settlers, seat: Seat) -> None:
    first, second = order(settlers, 1), order(settlers, 2)
    await first.ack()

    settlers.lost()

    assert not second.is_open
    assert seat.progress.position == 1
    await second.ack()
    assert seat.progress.position == 2


async def test_a_settlement_to_wait_for_returns_what_the_hub_made_of_it(
    settlers: Settlers, wire: Wire
) -> None:
    settled = await order(settlers, 1).term(reason="bad", wait=True)

    assert settled is not None
    assert (settled.floor, settled.accepted, settled.ignored) == (7, 0, (1,))
    assert wire.posted[0]["pattern"] == "ask"


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
        peer.send("task", "hard", sender="@(demo/boss)")
        peer.mail(ALICE, 3, "easy")
        assert (await peer.receive("hub:ack"))["payload"]["seq"] == 3, "a tell is not settled"


@pytest.mark.parametrize("acknowledges", [True, False])
async def test_after_a_loss_mail_comes_again_to_those_who_acknowledge(acknowledges: bool) -> None:
    async with conversation(acknowledge=acknowledges) as (hub, peer, client):
        peer.mail(ALICE, 1, "first copy")
        peer.send("note", "a tell", sender="@(demo/boss)")
        await caught_up(peer, client)
        peer.abort()
        peer = await reconnected(hub)
        peer.mail(ALICE, 1, "second copy", attempt=2)

        messages = client.messages()
        received = [await anext(messages) for _ in range(2)]

    copy = "second copy" if acknowledges else "first copy"
    assert {message.payload for message in received} == {copy, "a tell"}
    settleable = [message.payload for message in received if message.is_settleable]
    assert settleable == ["second copy"] * acknowledges
