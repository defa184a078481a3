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
from signalhub.client.settle import Settlers
from signalhub.clock import Ids
from signalhub.wire.errors import Unavailable

ALICE = "@(demo/alice)"
KEY = SeatKey("orders", "billing")


class Wire:
    """The way to a hub that is there when the test says so."""

    def __init__(self) -> None:
        self.is_ready = True
        self.is_over = False
        self.frames = FrameWriter(ALICE, Ids())
        self.posted: list[dict[str, Any]] = []

    def request(self, payload: Payload[Any], **options: Unpack[RequestOptions]) -> Request:
        return self.frames.request(payload, 0, **options)

    def post(self, request: Request) -> None:
        self.posted.append(json.loads(request.frame))

    async def call(self, request: Request) -> Answered | None:
        self.post(request)
        return Answered(request.id, {"floor": 7, "accepted": 1, "ignored": []}, 1)

    def seqs(self) -> list[Any]:
        """The positions that were acknowledged, message by message."""
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
    return settlers.bound(
        Message(
            id=f"m-{seq}",
            sender="@(demo/shop)",
            to=ALICE,
            type="order",
            payload=seq,
            metadata={},
            timestamp=0,
            topic="orders",
            delivery=Delivery(epoch=epoch, seq=seq, subscription="billing"),
        )
    )


async def test_acks_are_sent_at_the_end_of_the_turn(settlers: Settlers, wire: Wire) -> None:
    for seq in (1, 2, 3):
        await order(settlers, seq).ack()
    assert wire.posted == []

    await asyncio.sleep(0)
    await order(settlers, 4).ack()
    await asyncio.sleep(0)

    assert wire.seqs() == [[1, 2, 3], 4]


async def test_an_ack_repeated_in_one_turn_is_sent_once(settlers: Settlers, wire: Wire) -> None:
    message = order(settlers, 1)
    await message.ack()
    await message.ack()
    await asyncio.sleep(0)

    assert wire.seqs() == [1]


async def test_acks_of_different_epochs_do_not_travel_together(
    settlers: Settlers, wire: Wire
) -> None:
    for seq, epoch in ((8, "e"), (9, "e"), (1, "f")):
        await order(settlers, seq, epoch).ack()
    await asyncio.sleep(0)

    assert wire.seqs() == [[8, 9], 1]
    assert [frame["payload"]["epoch"] for frame in wire.posted] == ["e", "f"]


async def test_acks_wait_for_a_connection_however_long_that_takes(
    settlers: Settlers, wire: Wire
) -> None:
    wire.is_ready = False
    await order(settlers, 1).ack()
    await asyncio.sleep(0)
    await order(settlers, 2).ack()
    await asyncio.sleep(0)
    assert wire.posted == []

    wire.is_ready = True
    settlers.flush()
    settlers.flush()

    assert wire.seqs() == [[1, 2]]


async def test_a_consumer_that_leaves_has_sent_its_acks(settlers: Settlers, wire: Wire) -> None:
    message, late = order(settlers, 1), order(settlers, 2)
    await message.ack()

    settlers.remove(KEY)

    assert wire.seqs() == [1]
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

    assert not first.is_open
    assert second.is_open
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


async def test_a_settlement_to_wait_for_returns_the_hubs_word(
    settlers: Settlers, wire: Wire
) -> None:
    settled = await order(settlers, 1).term(reason="bad", wait=True)

    assert settled is not None
    assert (settled.floor, settled.accepted) == (7, 1)
    assert wire.posted[0]["pattern"] == "ask"


@pytest.mark.parametrize("acknowledges", [True, False])
async def test_mail_is_settled_only_by_clients_that_acknowledge(
    wire: Wire, acknowledges: bool
) -> None:
    settlers = Settlers(wire, acknowledges=acknowledges)
    mail = settlers.bound(
        Message(
            id="m",
            sender="@(demo/boss)",
            to=ALICE,
            type="task",
            payload=1,
            metadata={},
            timestamp=0,
            delivery=Delivery(epoch="m", seq=1, stream=ALICE),
        )
    )

    assert mail.is_settleable is acknowledges
    if acknowledges:
        await mail.ack()
        settlers.flush()
        assert wire.posted[0]["payload"] == {"stream": ALICE, "epoch": "m", "seq": 1}
