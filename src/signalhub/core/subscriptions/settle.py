"""Requests of consumers: ack, nack, extend, term and credit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from signalhub.core import refusals, requests
from signalhub.core.effects import Effect
from signalhub.core.sessions.session import Session
from signalhub.core.subscriptions import progress, send
from signalhub.core.subscriptions.consumers import EXCLUSIVE, FAILOVER, Consumer
from signalhub.core.subscriptions.join import check_may_consume
from signalhub.core.subscriptions.window import EXHAUSTED, READY, SENT, WAITING, Flight
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Outcome
from signalhub.wire.envelope import ASK, Envelope
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.messages.runs import AckRun
    from signalhub.core.patterns.pattern import PatternConsumer
    from signalhub.core.replies import Handler, Replies, RunHandler
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.core.subscriptions.join import Subscriptions
    from signalhub.core.subscriptions.subscription import Subscription

REASON_CHARS_MAX = 1_024

_decode_settle = msgspec.json.Decoder(requests.SettleRequest).decode


class Settler:
    """Handles the requests of consumers."""

    def __init__(
        self,
        streams: Streams,
        subscriptions: Subscriptions,
        dispatcher: Dispatcher,
        replies: Replies,
    ) -> None:
        self._streams = streams
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._replies = replies

    def handlers(self) -> dict[str, Handler]:
        return {
            "hub:ack": self.ack,
            "hub:nack": self.nack,
            "hub:extend": self.extend,
            "hub:term": self.term,
            "hub:credit": self.credit,
        }

    def run_handlers(self) -> dict[str, RunHandler]:
        """Those of runs, by the type of their messages."""
        return {"hub:ack": self.ack_run}

    def ack_run(self, session: Session, run: AckRun, now: int) -> list[Effect] | None:
        """Settle messages, as `ack` does with each; `None` if one may be refused."""
        try:
            consumer = self._settler(session, run)
        except Refusal:
            return None
        subscription, name = consumer.subscription, consumer.name
        if run.epoch is not None and run.epoch != subscription.stream.epoch:
            return None
        session.last_seen_ms = now
        self._dispatcher.wake(subscription)
        if not run.is_first(send.delivery_prefix(subscription).encode()):
            for seq, attempt in run.pairs():
                _ack_one(consumer, seq, attempt)
            return []
        for first, last in run.rows():
            seq = first
            while seq <= last:
                # An id of a first attempt fits any later one as well.
                seq += subscription.ack_first(seq, last, name) or _ack_one(consumer, seq, None)
        return []

    def ack(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:ack`: settle."""
        try:
            request = _decode_settle(message.payload)
        except requests.UNFIT as error:
            raise requests.unfit(error) from None
        given = self._given(session, message, request)
        if given.is_first():
            return self._answer(given, "hub:acked", now)
        for flight in given.flights(OPEN):
            given.subscription.settle(flight, Outcome.ACKED, given.consumer.name)
        return self._answer(given, "hub:acked", now)

    def nack(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:nack`: count a failure and redeliver later; a copy of a later attempt stays."""
        request = requests.parse(requests.SettleRequest, message.payload)
        given = self._given(session, message, request)
        for flight in given.flights((SENT,), is_latest=True):
            given.subscription.stats.nacked += 1
            reason = (request.reason or "nack")[:REASON_CHARS_MAX]
            given.subscription.fail(flight, reason, now, max(0, request.delay_ms or 0))
        return self._answer(given, "hub:nacked", now)

    def extend(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:extend`: move the deadline of an attempt; fails if somebody else has the message."""
        request = requests.parse(requests.SettleRequest, message.payload)
        if request.ms is None or request.ms <= 0:
            raise refusals.structural("payload.ms must say for how long, in milliseconds above 0")
        given = self._given(session, message, request)
        for flight in given.flights((SENT,), is_latest=True, is_own=True):
            given.subscription.window.set_deadline(flight, int(now + request.ms))
        return self._answer(given, "hub:extended", now)

    def term(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:term`: never redeliver; dead-letter the message if the policy says so."""
        request = requests.parse(requests.SettleRequest, message.payload)
        given = self._given(session, message, request)
        for flight in given.flights(OPEN):
            given.subscription.terminate(flight, (request.reason or "")[:REASON_CHARS_MAX], now)
        return self._answer(given, "hub:termed", now)

    def credit(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:credit`: set how much may be in flight to this consumer."""
        request = requests.parse(requests.CreditRequest, message.payload)
        consumer = _consumer(session, request.subscription_id)
        if request.messages is None and request.bytes is None:
            raise refusals.structural("the payload needs messages or bytes")
        consumer.grant(request.messages, request.bytes)
        consumer.wake(self._dispatcher)
        if message.pattern != ASK:
            return []
        payload = {
            "subscriptionId": consumer.id,
            "messages": consumer.window,
            "bytes": consumer.bytes_max,
        }
        return [self._replies.reply(session, message, "hub:credited", wire.encode(payload), now)]

    def _given(
        self, session: Session, message: Envelope, request: requests.SettleRequest
    ) -> _Given:
        return _Given(session, message, request, self._settler(session, request))

    def _answer(self, given: _Given, type: str, now: int) -> list[Effect]:
        """Answer an ask once its settlements are on disk."""
        subscription = given.subscription
        self._dispatcher.wake(subscription)
        if given.message.pattern != ASK:
            return []
        facts: dict[str, object] = {
            "floor": 0,
            "accepted": given.accepted,
            "ignored": given.ignored,
        }
        answer = self._replies.answer(given.session, given.message, type, facts)
        if not given.accepted:
            if not given.is_burying and not progress.has_unwritten(subscription):
                facts["floor"] = subscription.position.floor
                return answer.committed(0, now)
            # Earlier settlements are being written; answer after them.
            subscription.write_cursor_soon()
        subscription.waiters.append((answer, facts))
        return []

    def _settler(self, session: Session, request: _Reference) -> Consumer:
        """The consumer that a settling request refers to."""
        if request.subscription_id is not None:
            return _one_consumer(session, request.subscription_id, request.topic)
        if request.stream is not None:
            mailbox = self._streams.mailboxes.get(request.stream)
            for consumer in mailbox.subscription.consumers if mailbox is not None else ():
                if consumer.session is session:
                    return consumer
            raise refusals.not_a_consumer(request.stream)
        if request.topic is None or request.subscription is None:
            raise refusals.structural(
                "the payload needs subscriptionId, or topic and subscription, or stream"
            )
        subscription = self._named(session, request.topic, request.subscription)
        if subscription.pattern is not None:
            subscription.pattern.attach(subscription)
        for consumer in subscription.consumers.all:
            if consumer.session is session:
                return consumer
        raise refusals.not_a_consumer(f"{request.subscription} on {request.topic}")

    def _named(self, session: Session, topic: str, name: str) -> Subscription:
        known = self._streams.topics.get(topic)
        found = None if known is None else known.subscriptions.get(name)
        owner = "" if found is None else found.definition.owner
        check_may_consume(session, topic, name, owner)
        return self._subscriptions.named(topic, name)


class _Reference(Protocol):
    """What a settling request refers to."""

    @property
    def subscription_id(self) -> str | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def subscription(self) -> str | None: ...
    @property
    def stream(self) -> str | None: ...


# A late ack counts if the message waits for redelivery.
OPEN: Final = (SENT, WAITING, READY, EXHAUSTED)


def find(
    subscription: Subscription,
    seq: int,
    phases: tuple[object, ...],
    attempt: str | None = None,
    *,
    is_latest: bool = False,
) -> Flight | None:
    """The message at a position, if it is in one of these phases and was sent in this attempt."""
    flight = subscription.window.flights.get(seq)
    if (
        flight is not None
        and flight.phase in phases
        and flight.deliveries > 0
        and not flight.is_burying
        and (
            attempt is None
            or send.is_attempt(subscription, seq, flight.deliveries, attempt, is_latest=is_latest)
        )
    ):
        return flight
    return None


def _ack_one(consumer: Consumer, seq: int, attempt: str | None) -> int:
    """Acknowledge the message at a position, if it can be; return 1."""
    subscription = consumer.subscription
    flight = find(subscription, seq, OPEN, attempt)
    if flight is None:
        subscription.stats.ignored += 1
    else:
        subscription.settle(flight, Outcome.ACKED, consumer.name)
    return 1


def _fits(attempt: int, flight: Flight, is_latest: bool) -> bool:
    latest = flight.deliveries
    return attempt == latest if is_latest else 1 <= attempt <= latest


def _consumer(session: Session, consumer_id: str) -> Consumer | PatternConsumer:
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        raise refusals.not_a_consumer(consumer_id)
    return consumer


def _one_consumer(session: Session, consumer_id: str, topic: str | None) -> Consumer:
    """The consumer of one stream; of a pattern, the topic tells which."""
    consumer = _consumer(session, consumer_id)
    if isinstance(consumer, Consumer):
        return consumer
    if topic is None:
        raise refusals.structural("payload.topic must say which topic of the pattern is meant")
    part = consumer.pattern.members.get(topic)
    if part is not None:
        consumer.pattern.attach(part)
    share = None if part is None else consumer.shares.get(part)
    if share is None:
        raise refusals.not_a_consumer(f"{consumer_id} on {topic}")
    return share


class _Given:
    """The messages a settling request names, and the result."""

    def __init__(
        self,
        session: Session,
        message: Envelope,
        request: requests.SettleRequest,
        consumer: Consumer,
    ) -> None:
        self.session = session
        self.message = message
        self._request = request
        self.consumer = consumer
        self.subscription = self.consumer.subscription
        stream = self.subscription.stream
        if request.epoch is not None and request.epoch != stream.epoch:
            raise refusals.wrong_epoch(stream.name, request.epoch, stream.epoch)
        self.accepted = 0
        self.ignored: list[int] = []
        self.is_burying = False

    def is_first(self) -> bool:
        """Acknowledge a single message if it is the oldest of a series; is it?"""
        request, subscription = self._request, self.subscription
        seq = request.seq
        series = subscription.window.series
        if (
            seq is None
            or not series
            or series[0].first != seq
            or request.seqs is not None
            or request.up_to is not None
            or (request.attempt is not None and request.attempt != 1)
            or (request.id is not None and not send.is_attempt(subscription, seq, 1, request.id))
        ):
            return False
        self.accepted = subscription.ack_first(seq, seq, self.consumer.name)
        return True

    def flights(
        self, phases: tuple[object, ...], *, is_latest: bool = False, is_own: bool = False
    ) -> list[Flight]:
        """The named messages that are in one of these phases; others are counted as ignored.

        A named attempt must be the latest one if `is_latest` is set, and with `is_own` the message
        must be with this consumer, or if none is named with one of this session.
        """
        found: list[Flight] = []
        number = self._request.attempt
        for seq, attempt in self._seqs():
            flight = find(self.subscription, seq, phases, attempt, is_latest=is_latest)
            if (
                flight is not None
                and (not is_own or self._is_own(flight))
                and (number is None or _fits(number, flight, is_latest))
            ):
                found.append(flight)
            else:
                self.ignored.append(seq)
                other = self.subscription.window.flights.get(seq)
                self.is_burying |= other is not None and other.is_burying
        self.accepted = len(found)
        self.subscription.stats.ignored += len(self.ignored)
        return found

    def _is_own(self, flight: Flight) -> bool:
        holder = flight.consumer
        if holder is None or self._request.subscription_id is not None:
            return holder is self.consumer
        return holder.session is self.session

    def _seqs(self) -> list[tuple[int, str | None]]:
        """The named positions, each with the id of the attempt, if given."""
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
                raise refusals.structural("payload.ids needs one id for each of payload.seqs")
            return list(dict(zip(request.seqs, ids, strict=True)).items())
        assert request.up_to is not None
        if subscription.definition.mode not in (EXCLUSIVE, FAILOVER):
            raise refusals.structural("payload.upTo is for the modes exclusive and failover")
        parked = subscription.position.parked
        flights = subscription.window.flights
        up_to = sorted(seq for seq in flights if seq <= request.up_to and seq not in parked)
        return [(seq, request.id) for seq in up_to]
