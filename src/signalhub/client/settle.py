"""Settling messages: acknowledgements and other verdicts on their way to the hub.

Acknowledgements made in one iteration of the event loop are sent together, one message for each
stream. Those made without a connection wait for the next one, where the hub accepts them for the
copies that it redelivers.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby
from typing import Any, Protocol, Unpack

import msgspec

from signalhub.client.delivery import Delivery, Progress, Settled
from signalhub.client.message import Message
from signalhub.client.protocol.effects import Answered
from signalhub.client.protocol.frame import Payload, Request, RequestOptions
from signalhub.client.protocol.restore import Seat
from signalhub.client.stream_requests import Ack, Extend, Nack, SettlementRequest, Source, Verdict
from signalhub.wire.errors import Unavailable

# Every hub accepts this many in one message.
TOGETHER_MAX = 1_000

log = logging.getLogger("signalhub.client")


class Outlet(Protocol):
    """How requests reach the hub."""

    @property
    def is_ready(self) -> bool:
        """Whether there is a connection now."""

    @property
    def is_over(self) -> bool:
        """Whether the client has ended for good."""

    def request(self, payload: Payload[Any], **options: Unpack[RequestOptions]) -> Request:
        """Create a request."""

    def post(self, request: Request) -> None:
        """Send a request that needs no answer."""

    async def call(self, request: Request) -> Answered | None:
        """Send a request and wait for the answer."""


class DeliverySettler:
    """Settles the messages of one stream: a mailbox or a durable subscription."""

    def __init__(
        self,
        source: Source,
        progress: Progress,
        outlet: Outlet,
        *,
        is_automatic: bool = False,
    ) -> None:
        self.source = source
        self.is_automatic = is_automatic
        self.is_closed = False
        self._progress = progress
        self._outlet = outlet
        self._acks: dict[tuple[str, int], Delivery] = {}

    def __repr__(self) -> str:
        return f"<Settler of {' '.join(filter(None, self.source))}>"

    def bound(self, message: Message, delivery: Delivery) -> Message:
        """Return an arrived message with the means to settle it."""
        self._progress.arrived(delivery)
        if self.is_automatic:
            self._progress.settled(delivery)
            return message
        return msgspec.structs.replace(message, _settler=self)

    def is_open(self, delivery: Delivery) -> bool:
        return self._progress.is_open(delivery)

    async def settle(
        self, verdict: Verdict, delivery: Delivery, facts: dict[str, Any], *, wait: bool
    ) -> Settled | None:
        self._check_open(verdict)
        if verdict is Nack:
            self._progress.returned(delivery)
        elif verdict is not Extend:
            self._progress.settled(delivery)
        if verdict is Ack and not wait:
            self._gather(delivery)
            return None
        return await self._send(verdict.of(self.source, [delivery], **facts), wait=wait)

    async def ack_up_to(self, epoch: str, seq: int, *, wait: bool) -> Settled | None:
        """Acknowledge everything up to a position."""
        self._check_open(Ack)
        self._progress.settled_up_to(epoch, seq)
        return await self._send(Ack(*self.source, epoch=epoch or None, up_to=seq), wait=wait)

    def flush(self) -> None:
        """Send the collected acknowledgements."""
        if not self._acks or not self._outlet.is_ready:
            return
        acks, self._acks = self._acks, {}
        for _, same_epoch in groupby(acks.values(), lambda one: one.epoch):
            deliveries = list(same_epoch)
            for at in range(0, len(deliveries), TOGETHER_MAX):
                together = deliveries[at : at + TOGETHER_MAX]
                ack = Ack.of(self.source, together)
                self._outlet.post(self._outlet.request(ack, wait=False))

    def lost(self) -> None:
        """Handle the loss of the connection."""
        self._progress.lost()

    def _check_open(self, verdict: Verdict) -> None:
        if self.is_closed or self._outlet.is_over:
            raise Unavailable(f"{verdict.TYPE} was not sent: the consumer is closed")

    async def _send(self, settlement: SettlementRequest, *, wait: bool) -> Settled | None:
        """Send a settlement; return the hub's answer if `wait` is set."""
        request = self._outlet.request(settlement, wait=wait)
        if not wait:
            self._outlet.post(request)
            return None
        answered = await self._outlet.call(request)
        assert answered is not None
        return settlement.read(answered.payload, answered.attempts)

    def _gather(self, delivery: Delivery) -> None:
        if not self._acks:
            asyncio.get_running_loop().call_soon(self.flush)
        self._acks[delivery.epoch, delivery.seq] = delivery


class Settlers:
    """The settlers of one client, by stream."""

    def __init__(self, outlet: Outlet, *, acknowledges: bool) -> None:
        self._outlet = outlet
        self._acknowledges = acknowledges
        self._mailboxes: dict[str, DeliverySettler] = {}
        self._seats: dict[tuple[str, str], DeliverySettler] = {}

    def bound(self, message: Message) -> Message:
        """Return the message with its settler, if it must be settled."""
        delivery = message.delivery
        settler = None if delivery is None else self._settler(message.topic or "", delivery)
        if delivery is None or settler is None:
            return message
        return settler.bound(message, delivery)

    def add(self, seat: Seat) -> DeliverySettler:
        """Add the settler of a consumer that has joined."""
        source = Source(topic=seat.key.topic, subscription=seat.key.subscription)
        settler = DeliverySettler(
            source, seat.progress, self._outlet, is_automatic=seat.is_auto_acked
        )
        self._seats[seat.key] = settler
        return settler

    def remove(self, key: tuple[str, str]) -> None:
        """Remove the settler of a consumer that leaves, after sending its acknowledgements."""
        settler = self._seats.pop(key, None)
        if settler is not None:
            settler.flush()
            settler.is_closed = True

    def flush(self) -> None:
        """Send all collected acknowledgements."""
        for settler in (*self._mailboxes.values(), *self._seats.values()):
            settler.flush()

    def lost(self) -> None:
        """Handle the loss of the connection: unsettled messages go back to the hub."""
        for settler in (*self._mailboxes.values(), *self._seats.values()):
            settler.lost()

    def _settler(self, topic: str, delivery: Delivery) -> DeliverySettler | None:
        if delivery.subscription is not None:
            return self._seats.get((topic, delivery.subscription))
        if delivery.stream is None or not self._acknowledges:
            return None
        settler = self._mailboxes.get(delivery.stream)
        if settler is None:
            settler = DeliverySettler(Source(delivery.stream), Progress(), self._outlet)
            self._mailboxes[delivery.stream] = settler
        return settler
