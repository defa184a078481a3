"""Settling messages: acknowledgements and other verdicts on their way to the hub.

Acknowledgements made in one iteration of the event loop are sent together, one message for each
stream. Those made without a connection wait for the next one, where the hub accepts them for the
copies that it redelivers.

What the program has settled is remembered: a copy that the hub redelivers, because it did not learn
of the settlement or has lost it, is not handed out again, but gets the same verdict.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby
from typing import Any, Protocol, Unpack

import msgspec

from signalhub.client.delivery import Delivery, Progress, Settled, reader_of
from signalhub.client.message import Message
from signalhub.client.protocol.effects import Answered
from signalhub.client.protocol.frame import Payload, Request, RequestOptions
from signalhub.client.protocol.restore import Seat
from signalhub.client.stream_requests import Ack, Nack, SettlementRequest, Source, Term, Verdict
from signalhub.wire.errors import StaleDelivery, Unavailable

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


# More than any window holds; without a window, nothing can be redelivered.
REMEMBERED_MAX = 16_384


class Judged:
    """A message that the program has acknowledged or terminated."""

    __slots__ = ("delivery", "facts", "message_id", "verdict", "waiting")

    def __init__(
        self, verdict: Verdict, message_id: str, delivery: Delivery, facts: dict[str, Any]
    ) -> None:
        self.verdict = verdict
        self.message_id = message_id
        self.delivery = delivery  # The latest copy.
        self.facts = facts
        self.waiting = 0  # Calls that wait for the hub's answer, and settle later copies.

    def is_repeated_by(self, message_id: str, delivery: Delivery) -> bool:
        """Return whether a copy is of the same message, and was not sent because of a seek."""
        return (
            message_id == self.message_id
            and delivery.epoch == self.delivery.epoch
            and _generation(delivery) == _generation(self.delivery)
        )


def _generation(delivery: Delivery) -> str:
    """The part of an attempt's id that only a seek changes; empty for mailboxes."""
    return (delivery.id or "").rpartition(".")[0]


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
        self._judged: dict[int, Judged] = {}  # By position, the newest last.

    def __repr__(self) -> str:
        return f"<Settler of {' '.join(filter(None, self.source))}>"

    def bound(self, message: Message, delivery: Delivery) -> Message | None:
        """Return an arrived message with the means to settle it; `None` if that was done before."""
        self._progress.arrived(delivery, message.id)
        if self.is_automatic:
            self._progress.settled(delivery)
            return message
        judged = self._judged.get(delivery.seq)
        if judged is not None:
            if judged.is_repeated_by(message.id, delivery):
                self._progress.settled(delivery)
                judged.delivery = delivery
                if not judged.waiting:
                    self._settle_again(judged)
                return None
            del self._judged[delivery.seq]
        return msgspec.structs.replace(message, _settler=self)

    def every(self) -> list[DeliverySettler]:
        """Itself; the one of a pattern has several."""
        return [self]

    def is_open(self, delivery: Delivery) -> bool:
        return self._progress.is_open(delivery)

    def accept(self, message_id: str, delivery: Delivery) -> None:
        """Acknowledge a message that the program does not get."""
        self._progress.settled(delivery)
        self._remember(Judged(Ack, message_id, delivery, {}))
        self._gather(delivery)

    async def settle(
        self,
        verdict: Verdict,
        message_id: str,
        delivery: Delivery,
        facts: dict[str, Any],
        *,
        wait: bool,
    ) -> Settled | None:
        self._check_open(verdict)
        if verdict is Ack or verdict is Term:
            self._progress.settled(delivery)
            judged = Judged(verdict, message_id, delivery, facts)
            self._remember(judged)
            if wait:
                return await self._settle_in_time(judged)
            if verdict is Ack:
                self._gather(delivery)
                return None
        elif verdict is Nack:
            self._progress.returned(delivery)
            self._judged.pop(delivery.seq, None)
        settled = await self._send(verdict.of(self.source, [delivery], **facts), wait=wait)
        if settled is not None and not settled.accepted:
            raise _stale(verdict, delivery, settled)
        return settled

    async def ack_up_to(self, epoch: str, seq: int, *, wait: bool) -> Settled | None:
        """Acknowledge everything up to a position."""
        self._check_open(Ack)
        for delivery, message_id in self._progress.settled_up_to(epoch, seq):
            self._remember(Judged(Ack, message_id, delivery, {}))
        ack = Ack(*self.source, epoch=epoch or None, up_to=seq)
        settled = await self._send(ack, wait=wait)
        if settled is not None and not settled.accepted and settled.floor < seq:
            raise StaleDelivery(Ack.TYPE, details={"seq": seq, "floor": settled.floor})
        return settled

    async def _settle_in_time(self, judged: Judged) -> Settled:
        """Settle, and wait for the hub; if a later copy arrives meanwhile, settle that one."""
        judged.waiting += 1
        try:
            while True:
                named = judged.delivery
                request = judged.verdict.of(self.source, [named], **judged.facts)
                settled = await self._send(request, wait=True)
                assert settled is not None
                if settled.accepted:
                    return settled
                if named is judged.delivery:
                    raise _stale(judged.verdict, named, settled)
        finally:
            judged.waiting -= 1
            if named is not judged.delivery and not judged.waiting:
                self._settle_again(judged)

    def _settle_again(self, judged: Judged) -> None:
        """Give a later copy the verdict of the earlier one; nobody waits for it."""
        if judged.verdict is Ack:
            self._gather(judged.delivery)
        else:
            request = judged.verdict.of(self.source, [judged.delivery], **judged.facts)
            self._outlet.post(self._outlet.request(request, wait=False))

    def _remember(self, judged: Judged) -> None:
        seq = judged.delivery.seq
        self._judged.pop(seq, None)
        self._judged[seq] = judged
        if len(self._judged) > REMEMBERED_MAX:
            del self._judged[next(iter(self._judged))]

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


def _stale(verdict: Verdict, delivery: Delivery, settled: Settled) -> StaleDelivery:
    facts = {"seq": delivery.seq, "attempt": delivery.attempt, "floor": settled.floor}
    return StaleDelivery(verdict.TYPE, details=facts)


class PatternSettler:
    """Settles the messages of a pattern, those of each topic apart."""

    def __init__(self, seat: Seat, outlet: Outlet) -> None:
        self._seat = seat
        self._outlet = outlet
        self._topics: dict[str, DeliverySettler] = {}

    def of(self, topic: str) -> DeliverySettler:
        """The settler of one topic."""
        progress = self._seat.progress_of(topic)
        settler = self._topics.get(topic)
        if settler is None:
            settler = self._topics[topic] = DeliverySettler(
                Source(topic=topic, subscription=self._seat.key.subscription),
                progress,
                self._outlet,
                is_automatic=self._seat.is_auto_acked,
            )
        return settler

    def every(self) -> list[DeliverySettler]:
        """Those of all topics that had messages."""
        return list(self._topics.values())


class Settlers:
    """The settlers of one client, by stream."""

    def __init__(self, outlet: Outlet, *, acknowledges: bool) -> None:
        self._outlet = outlet
        self._acknowledges = acknowledges
        self._mailboxes: dict[str, DeliverySettler] = {}
        self._seats: dict[tuple[str, str], DeliverySettler | PatternSettler] = {}

    def bound(self, message: Message) -> Message | None:
        """Return the message with its settler, if it must be settled; `None` if it was before."""
        delivery = message.delivery
        settler = None if delivery is None else self._settler(message.topic or "", delivery)
        if delivery is None or settler is None:
            return message
        return settler.bound(message, delivery)

    def accept(self, message: Message) -> None:
        """Acknowledge a message that the program does not get, if it must be settled."""
        delivery = message.delivery
        settler = None if delivery is None else self._settler(message.topic or "", delivery)
        if delivery is None or settler is None:
            return
        bound = settler.bound(message, delivery)
        if bound is not None and bound.is_settleable:
            settler.accept(message.id, delivery)

    def add(self, seat: Seat) -> DeliverySettler | PatternSettler:
        """Add the settler of a consumer that has joined."""
        if seat.key.is_pattern:
            pattern = self._seats[seat.key] = PatternSettler(seat, self._outlet)
            return pattern
        source = Source(topic=seat.key.topic, subscription=seat.key.subscription)
        settler = DeliverySettler(
            source, seat.progress, self._outlet, is_automatic=seat.is_auto_acked
        )
        self._seats[seat.key] = settler
        return settler

    def remove(self, key: tuple[str, str]) -> None:
        """Remove the settler of a consumer that leaves, after sending its acknowledgements."""
        found = self._seats.pop(key, None)
        for settler in () if found is None else found.every():
            settler.flush()
            settler.is_closed = True

    def flush(self) -> None:
        """Send all collected acknowledgements."""
        for settler in self._every():
            settler.flush()

    def lost(self) -> None:
        """Handle the loss of the connection: unsettled messages go back to the hub."""
        for settler in self._every():
            settler.lost()

    def _every(self) -> list[DeliverySettler]:
        of_seats = [one for seat in self._seats.values() for one in seat.every()]
        return [*self._mailboxes.values(), *of_seats]

    def _settler(self, topic: str, delivery: Delivery) -> DeliverySettler | None:
        if delivery.subscription is not None:
            found = reader_of(self._seats, topic, delivery.subscription)
            return found.of(topic) if isinstance(found, PatternSettler) else found
        if delivery.stream is None or not self._acknowledges:
            return None
        settler = self._mailboxes.get(delivery.stream)
        if settler is None:
            settler = DeliverySettler(Source(delivery.stream), Progress(), self._outlet)
            self._mailboxes[delivery.stream] = settler
        return settler
