"""Consumers say what became of their messages: ack, nack, extend, term; and how many they want."""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub.core import refusals, requests
from signalhub.core.effects import Effect
from signalhub.core.messages import publish
from signalhub.core.sessions.session import Session
from signalhub.core.subscriptions import join, progress, send
from signalhub.core.subscriptions.consumers import EXCLUSIVE, FAILOVER, Consumer
from signalhub.core.subscriptions.window import EXHAUSTED, READY, SENT, WAITING, Flight
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Outcome
from signalhub.wire.envelope import ASK, Envelope

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

REASON_CHARS_MAX = 1_024


def ack(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:ack`: settled. An ack that comes late, while it waits to be sent again, counts."""
    given = _Given(hub, session, message, requests.parse(requests.Settle, message.payload))
    for flight in given.flights((SENT, WAITING, READY, EXHAUSTED)):
        given.subscription.settle(flight, Outcome.ACKED, given.consumer.name)
    return given.answer("hub:acked", now)


def nack(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:nack`: try again later; counts as a failure."""
    request = requests.parse(requests.Settle, message.payload)
    given = _Given(hub, session, message, request)
    for flight in given.flights((SENT,)):
        given.subscription.stats.nacked += 1
        reason = (request.reason or "nack")[:REASON_CHARS_MAX]
        given.subscription.fail(flight, reason, now, max(0, request.delay_ms or 0))
    return given.answer("hub:nacked", now)


def extend(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:extend`: it takes longer."""
    request = requests.parse(requests.Settle, message.payload)
    if request.ms is None or request.ms <= 0:
        raise refusals.structural("payload.ms must say for how long, in milliseconds above 0")
    given = _Given(hub, session, message, request)
    for flight in given.flights((SENT,)):
        given.subscription.window.set_deadline(flight, int(now + request.ms))
    return given.answer("hub:extended", now)


def term(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:term`: never again; the dead letters get it, if there are any."""
    request = requests.parse(requests.Settle, message.payload)
    given = _Given(hub, session, message, request)
    for flight in given.flights((SENT, WAITING, READY, EXHAUSTED)):
        given.subscription.terminate(flight, (request.reason or "")[:REASON_CHARS_MAX], now)
    return given.answer("hub:termed", now)


def credit(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:credit`: how much may be in flight to this consumer from now on."""
    request = requests.parse(requests.Credit, message.payload)
    consumer = _consumer(session, request.subscription_id)
    if request.messages is None and request.bytes is None:
        raise refusals.structural("the payload needs messages or bytes")
    if request.messages is not None:
        consumer.window = int(request.messages)
    if request.bytes is not None:
        consumer.bytes_max = int(request.bytes)
    hub.dispatcher.wake(consumer.subscription)
    if message.pattern != ASK:
        return []
    payload = {
        "subscriptionId": consumer.id,
        "messages": consumer.window,
        "bytes": consumer.bytes_max,
    }
    return [hub.replies.reply(session, message, "hub:credited", wire.encode(payload), now)]


def _consumer(session: Session, consumer_id: str) -> Consumer:
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        raise refusals.not_a_consumer(consumer_id)
    return consumer


class _Given:
    """What a settling request names, and what it came to."""

    def __init__(
        self, hub: Hub, session: Session, message: Envelope, request: requests.Settle
    ) -> None:
        self._hub = hub
        self._session = session
        self._message = message
        self._request = request
        self.consumer = _settler(hub, session, request)
        self.subscription = self.consumer.subscription
        stream = self.subscription.stream
        if request.epoch is not None and request.epoch != stream.epoch:
            raise refusals.wrong_epoch(stream.name, request.epoch, stream.epoch)
        self._accepted = 0
        self._ignored: list[int] = []
        self._is_burying = False

    def flights(self, phases: tuple[object, ...]) -> list[Flight]:
        """The messages meant that are in one of these phases; the others are ignored, counted."""
        found: list[Flight] = []
        for seq, attempt in self._seqs():
            flight = self.subscription.window.flights.get(seq)
            if (
                flight is not None
                and flight.phase in phases
                and flight.deliveries > 0
                and not flight.is_burying
                and (attempt is None or send.is_attempt(self.subscription, flight, attempt))
            ):
                found.append(flight)
            else:
                self._ignored.append(seq)
                self._is_burying |= flight is not None and flight.is_burying
        self._accepted = len(found)
        self.subscription.stats.ignored += len(self._ignored)
        return found

    def _seqs(self) -> list[tuple[int, str | None]]:
        """The positions named, each with the attempt that is meant, if that is said."""
        request, subscription = self._request, self.subscription
        named = [one for one in (request.seq, request.seqs, request.up_to) if one is not None]
        if len(named) != 1:
            raise refusals.structural("the payload needs exactly one of seq, seqs and upTo")
        if request.seq is not None:
            return [(request.seq, request.id)]
        if request.seqs is not None:
            ids = request.ids
            if ids is None:
                return [(seq, request.id) for seq in dict.fromkeys(request.seqs)]
            if len(ids) != len(request.seqs):
                raise refusals.structural("payload.ids needs one name for each of payload.seqs")
            return list(dict(zip(request.seqs, ids, strict=True)).items())
        assert request.up_to is not None
        if subscription.definition.mode not in (EXCLUSIVE, FAILOVER):
            raise refusals.structural("payload.upTo is for the modes exclusive and failover")
        parked = subscription.position.parked
        flights = subscription.window.flights
        up_to = sorted(seq for seq in flights if seq <= request.up_to and seq not in parked)
        return [(seq, request.id) for seq in up_to]

    def answer(self, type: str, now: int) -> list[Effect]:
        """An ask is answered when what it did is on disk."""
        subscription = self.subscription
        self._hub.dispatcher.wake(subscription)
        if self._message.pattern != ASK:
            return []
        answer = progress.SettledAnswer(
            self._hub.replies, self._session, self._message, type, self._accepted, self._ignored
        )
        if not self._accepted:
            if not self._is_burying and not progress.has_unwritten(subscription):
                answer.stand_at(subscription.position.floor)
                return answer.committed(0, now)
            # What was settled before is on its way to the log: the answer follows it.
            subscription.write_cursor_soon()
        subscription.waiters.append(answer)
        return []


def _settler(hub: Hub, session: Session, request: requests.Settle) -> Consumer:
    """The consumer in whose name a session settles."""
    if request.subscription_id is not None:
        return _consumer(session, request.subscription_id)
    if request.stream is not None:
        mailbox = hub.streams.mailboxes.get(request.stream)
        for consumer in mailbox.subscription.consumers if mailbox is not None else ():
            if consumer.session is session:
                return consumer
        raise refusals.not_a_consumer(request.stream)
    if request.topic is None or request.subscription is None:
        raise refusals.structural(
            "the payload needs subscriptionId, or topic and subscription, or stream"
        )
    publish.check_may_read(session, request.topic)
    subscription = join.find(hub, request.topic, request.subscription)
    for consumer in subscription.consumers:
        if consumer.session is session:
            return consumer
    raise refusals.not_a_consumer(f"{request.subscription} on {request.topic}")
