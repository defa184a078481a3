"""Messages between actors: send, broadcast, publish and subscribe.

Order of the checks: sender, permission, duplicate, expiry, fences, target. Only accepted messages
are remembered for de-duplication, so a refused message may be sent again with the same id. Asks
continue in `ask.py`, durable topics in `publish.py`, durable subscriptions in
`subscriptions/join.py`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Deliver, DeliverRun, Effect, FanOut
from signalhub.core.messages import publish as publishing
from signalhub.core.messages.ask import FanReceipt, wait_behind
from signalhub.core.messages.audience import Audience
from signalhub.core.messages.dedup import KnownAck, fingerprint
from signalhub.core.operations import operated
from signalhub.core.placement import check_batch
from signalhub.core.sessions.registry import Recipient
from signalhub.core.sessions.session import Session, SessionState
from signalhub.wire import entry
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Entry, Kind, encode_body
from signalhub.wire.envelope import ASK, Envelope
from signalhub.wire.errors import Refusal
from signalhub.wire.frames import text_frames
from signalhub.wire.names import (
    ADDRESS_CHARS_MAX,
    HUB_TYPE_PREFIX,
    TOPIC_CHARS_MAX,
    WILDCARD_LEVELS_MAX,
    has_wildcard,
    is_reserved,
    is_subscribable,
    is_topic,
)

if TYPE_CHECKING:
    from signalhub.clock import Ids
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.ask import Asks, Pending
    from signalhub.core.messages.audience import Topics
    from signalhub.core.messages.dedup import Dedup
    from signalhub.core.messages.publish import Publisher
    from signalhub.core.messages.runs import AskRun, PublishRun, TellRun
    from signalhub.core.patterns.join import PatternJoins
    from signalhub.core.patterns.pattern import PatternConsumer
    from signalhub.core.placement import Placement
    from signalhub.core.replies import Handler, Replies, RunHandler
    from signalhub.core.sessions.registry import Registry
    from signalhub.core.streams.catalog import Catalog
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.consumers import Consumer
    from signalhub.core.subscriptions.join import Subscriptions
    from signalhub.counters import Tally
    from signalhub.settings.model import Settings

# The type of an operator's commands to a host of durable actors.
CONTROL: Final = "actors:control"
# Commands that only show something. They need the permission, and leave no record.
_LOOKS: Final = frozenset(
    ("stats", "actors", "actor", "calls", "call", "finished", "alarms", "dead", "letter")
)
# What hosts send to each other, and believe.
_BATCH: Final = "actors:batch"
_MOVE: Final = "actors:move"
_MARK: Final = "actors:mark"
_OF_HOSTS: Final = frozenset({_BATCH, _MOVE, _MARK})
# Of publishes of several sessions that become one run; far less than a batch of the log may have.
_TOGETHER_BYTES_MAX: Final = 2**17


class Router:
    """Forwards messages, or passes them on to where they are stored."""

    def __init__(
        self,
        registry: Registry,
        topics: Topics,
        streams: Streams,
        dedup: Dedup,
        pending: Pending,
        asks: Asks,
        publisher: Publisher,
        catalog: Catalog,
        subscriptions: Subscriptions,
        patterns: PatternJoins,
        placement: Placement,
        storage: LogState,
        replies: Replies,
        ids: Ids,
        settings: Settings,
        tally: Tally,
    ) -> None:
        self._registry = registry
        self._topics = topics
        self._streams = streams
        self._dedup = dedup
        self._pending = pending
        self._asks = asks
        self._publisher = publisher
        self._catalog = catalog
        self._subscriptions = subscriptions
        self._patterns = patterns
        self._placement = placement
        self._storage = storage
        self._replies = replies
        self._wall = replies.wall
        self._next_id = ids.next
        self._many_ids = ids.many
        self._settings = settings
        self._tally = tally

    def handlers(self) -> dict[str, Handler]:
        return {
            "hub:send": self.send,
            "hub:broadcast": self.broadcast,
            "hub:publish": self.publish,
            "hub:subscribe": self.subscribe,
            "hub:unsubscribe": self.unsubscribe,
        }

    def send(
        self,
        session: Session,
        message: Envelope,
        now: int,
        command: requests.SendRequest | None = None,
    ) -> list[Effect]:
        """Forward one message to one actor, or a `command` that is recorded."""
        try:
            request = command or _decode_send(message.payload)
        except requests.UNFIT as error:
            raise requests.unfit(error) from None
        type = request.type
        if type.startswith(HUB_TYPE_PREFIX):
            raise _hub_type()
        target = request.to or message.to
        if session.allowance is not EVERYTHING:
            _check_sender(session, message.sender)
            if not self._may_send(session, message.sender, target, type):
                raise refusals.unauthorized("send", target)
            if type in _OF_HOSTS:
                self._check_host(session, type, request.data, target, now)
        if message.sender != session.claimed:
            _claim(session, message.sender)
        if type == CONTROL and command is None:
            return self._command(session, message, request, target, now)
        is_ask = message.pattern == ASK
        key = b""
        if is_ask:
            key = fingerprint(message.sender, message.id)
            answered = self._answer_again(session, message, key, now)
            if answered is not None:
                return answered
        expires_at = self._deadline(session, message) if message.ttl else None
        if expires_at is not None and expires_at < now:
            return self._expired(message, is_ask)
        if request.fences:
            self._storage.check_known()
            self._placement.check_fences(session, request.fences)
        if is_ask:
            return self._asks.accept(session, message, request, target, key, expires_at, now)
        registration = self._registry.find(target, now)
        if registration is None:
            if len(target) > ADDRESS_CHARS_MAX:
                raise refusals.structural(
                    f"payload.to is longer than {ADDRESS_CHARS_MAX} characters"
                )
            return self._missed()

        address_json, metadata = registration.address_json, message.metadata
        frame = wire.forwarded(
            self._next_id(),
            message,
            session.claimed_json,
            address_json,
            type,
            request.data,
            now + self._wall.ahead_ms,
            metadata,
        )
        deliver = Deliver(registration.session, frame, session, target, expires_at, None)
        if session.unsynced and (ask := session.waits_for(target)) is not None:
            return wait_behind(ask, deliver)
        return [deliver]

    def _may_send(self, session: Session, sender: str, target: str, type: str) -> bool:
        if session.allowance.may_send(target):
            return True
        # Who is asked may answer. A command from an address of the hub's own needs `control` only.
        own = session.internal_address
        is_command = type == CONTROL and own is not None and is_reserved(own)
        return is_command or self._registry.is_awaited(target, sender)

    def run_handlers(self) -> dict[str, RunHandler]:
        """Those of runs, by what they are."""
        return {
            "hub:send": self.send_run,
            "ask": self.ask_run,
            "hub:publish": self.publish_run,
        }

    def send_run(self, session: Session, run: TellRun, now: int) -> list[Effect] | None:
        """Forward tells to one actor, as `send` does with each; `None` if one may need more."""
        sender, target, count = run.sender, run.to, run.count
        if session.unsynced or session.barrier is not None:
            return None
        if session.allowance is not EVERYTHING and not (
            session.speaks_as(sender) and session.allowance.may_send(target)
        ):
            return None
        is_new = sender != session.claimed
        if is_new and is_reserved(sender):
            return None
        deadline = run.deadline
        # By the hub's own time the first of them expires then or later.
        if deadline is not None and deadline - self._wall.ahead_ms < now:
            return None
        bucket = session.bucket
        if bucket.rate_s and (count > bucket.burst or bucket.take_many(count, now)):
            return None
        session.last_seen_ms = now
        if is_new:
            session.claim(sender)
        registration = self._registry.find(target, now)
        if registration is None:
            self._tally.unknown_targets += count
            return []
        frames = run.copies(
            self._many_ids(count),
            session.claimed_json,
            registration.address_json,
            now + self._wall.ahead_ms,
        )
        return [DeliverRun(registration.session, frames, session, target, run)]

    def ask_run(self, session: Session, run: AskRun, now: int) -> list[Effect] | None:
        """Write an ask to the log, as `send` does; `None` if it may need more."""
        sender = run.sender
        if session.allowance is not EVERYTHING and not (
            session.speaks_as(sender) and session.allowance.may_send(run.to)
        ):
            return None
        is_new = sender != session.claimed
        if is_new and is_reserved(sender):
            return None
        expires_at = run.deadline
        if expires_at is not None:
            expires_at += session.own_ahead_ms(self._wall)
            if expires_at < now:
                return None
        effects = self._asks.accept_run(session, run, expires_at, now)
        if effects is not None:
            session.last_seen_ms = now
            if is_new:
                session.claim(sender)
        return effects

    def publish_run(self, session: Session, run: PublishRun, now: int) -> list[Effect] | None:
        """Publish to a durable topic, as `publish` does; `None` if one message may need more."""
        taken, effects = self.publish_runs([session], [run], now)
        return effects if taken else None

    def publish_runs(
        self, sessions: list[Session], runs: list[PublishRun], now: int
    ) -> tuple[int, list[Effect]]:
        """Publish to a durable topic, as `publish` does with each message.

        Returns of how many runs, the first ones; the next one has another topic or may need more.
        """
        name = runs[0].topic
        topic = self._streams.topics.get(name)
        if topic is None or topic.is_deleting or self._storage.gap is not None:
            return 0, []
        count = size = 0
        is_new = False
        for session, run in zip(sessions, runs, strict=True):
            size += run.size
            if count and (run.topic != name or size > _TOGETHER_BYTES_MAX):
                break
            sender = run.sender
            if session.state is not SessionState.CONNECTED:
                break
            if session.allowance is not EVERYTHING and not (
                session.speaks_as(sender) and session.allowance.may_publish(name)
            ):
                break
            if sender != session.claimed:
                if count or is_reserved(sender):
                    break
                is_new = True
            deadline = run.deadline
            if deadline is not None and session.own_time(deadline, self._wall) < now:
                break
            count += 1
            if is_new:
                break
        if count < len(runs):
            if not count:
                return 0, []
            sessions, runs = sessions[:count], runs[:count]
        count, effects = self._publisher.publish_runs(sessions, runs, topic, now)
        if is_new and count:
            sessions[0].claim(runs[0].sender)
        for session in sessions[:count]:
            session.last_seen_ms = now
        return count, effects

    def singly(self, effect: DeliverRun) -> list[Deliver]:
        """The same tells, each for itself."""
        sender, wall = effect.sender, self._wall
        return [
            Deliver(
                effect.session,
                frame,
                sender,
                effect.address,
                None if deadline is None else sender.own_time(deadline, wall),
                None,
            )
            for frame, deadline in zip(
                text_frames(effect.frames), effect.run.deadlines(), strict=True
            )
        ]

    def _command(
        self,
        session: Session,
        message: Envelope,
        request: requests.SendRequest,
        target: str,
        now: int,
    ) -> list[Effect]:
        """Forward a command to a host, which gets one that may change something only on record."""
        verbs, name = self._check_control(session, target, request.data, now)
        if not session.allowance.may_read(target):
            request = msgspec.structs.replace(request, data=_without_contents(request.data))
        if name in _LOOKS:
            return self.send(session, message, now, request)
        self._storage.check()
        what = f"{CONTROL} {name}".rstrip()
        records = [one for verb in verbs for one in operated(session, what, verb, target, now)]
        if message.pattern == ASK:
            # It waits for the log anyway, in the same batch. A repeat does not get there.
            forwarded = self.send(session, message, now, request)
            is_accepted = any(isinstance(one, Append) for one in forwarded)
            return [*records, *forwarded] if is_accepted else forwarded
        expires_at = self._deadline(session, message)
        is_late = expires_at is not None and expires_at < now
        if is_late or self._registry.find(target, now) is None:
            return self.send(session, message, now, request)
        if request.fences:
            self._placement.check_fences(session, request.fences)

        def recorded(offset: int, later: int) -> list[Effect]:
            try:
                return self.send(session, message, later, request)
            except Refusal as refusal:
                return unrecorded(refusal, later)

        def unrecorded(refusal: Refusal, later: int) -> list[Effect]:
            if session.is_over:
                return []
            return [self._replies.refuse(session, message, refusal, later)]

        records[-1].follow(recorded, unrecorded)
        return [*records]

    def _check_host(
        self, session: Session, type: str, data: msgspec.Raw, target: str, now: int
    ) -> None:
        """Refuse what hosts believe, unless it comes from one, about a kind that it may have."""
        if not session.allowance.is_host:
            raise refusals.only_hosts(type)
        if type == _MARK:
            if target not in session.registrations:
                raise refusals.structural(f"{_MARK} is what a host sends to itself")
            return
        try:
            if type == _MOVE:
                part = _decode_part(data)
            else:
                messages = _decode_batch(data).messages
        except requests.UNFIT as error:
            raise requests.unfit(error, "payload.data") from None
        if type == _MOVE:
            self._placement.check_part(session, part.actor, target, is_arrival=not part.count)
        elif len(messages) > _BATCHED_MAX:
            # Reading it took long.
            session.bucket.owe(len(messages) // _BATCHED_PER_TOKEN, now)
            raise refusals.structural(f"a batch has at most {_BATCHED_MAX} messages")
        else:
            check_batch(session, ((one.sender, one.to) for one in messages))

    def _check_control(
        self, session: Session, host: str, data: msgspec.Raw, now: int
    ) -> tuple[tuple[str, ...], str]:
        """Refuse a command to a host before the host sees it; the permissions it uses, its name."""
        allowance = session.allowance
        if not allowance.may_control(host):
            raise refusals.unauthorized("control", host)
        try:
            command = _decode_command(data)
        except requests.UNFIT as error:
            if allowance is EVERYTHING:
                return ("control",), ""
            raise requests.unfit(error, "payload.data") from None
        if command.name == "purge" and not allowance.may_delete(host):
            raise refusals.unauthorized("delete", host)
        if command.name == "move" and allowance is not EVERYTHING:
            arguments = command.arguments
            self._placement.check_target(session, arguments.actor, arguments.to, now)
        verbs = ("control", "delete") if command.name == "purge" else ("control",)
        return verbs, command.name

    def _expired(self, message: Envelope, is_ask: bool) -> list[Effect]:
        if not is_ask:
            self._tally.expired_tells += 1
            return []
        self._tally.expired_asks += 1
        raise refusals.expired(message.ttl or 0)

    def _missed(self) -> list[Effect]:
        self._tally.unknown_targets += 1
        return []

    def _answer_again(
        self, session: Session, message: Envelope, key: bytes, now: int
    ) -> list[Effect] | None:
        """Repeat the ack of a message accepted before; no answer yet if that one is in progress."""
        pending = self._pending.get(key)
        if pending is not None:
            self._tally.duplicates += 1
            if isinstance(pending, publishing.RunReceipt):
                askers = pending.askers_of(key)
            else:
                askers = pending.askers
            if session not in askers or message.type == "hub:publish":
                askers.append(session)
            return []
        ack = self._dedup.find_by(key, now)
        if ack is None:
            return None
        self._tally.duplicates += 1
        if ack.extra:
            return [self._replies.reply(session, message, "hub:broadcast_ack", ack.extra, now)]
        if message.type == "hub:publish":
            return [self._publisher.published_before(session, message, ack, now)]
        return [self._asks.delivery_ack(session, message, ack, now, is_duplicate=True)]

    def broadcast(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """Send a copy to every live address, or to those with a capability."""
        request = requests.parse(requests.BroadcastRequest, message.payload)
        if request.type.startswith(HUB_TYPE_PREFIX):
            raise _hub_type()
        if request.type == CONTROL and session.allowance is EVERYTHING:
            # With authentication it is refused below, by what the token permits.
            raise refusals.structural(f"{CONTROL} goes to one host at a time: use hub:send")
        capability = None
        if wire.is_object(message.metadata):
            given = requests.parse(requests.BroadcastMetadata, message.metadata, "metadata")
            capability = given.target_capability
        if session.allowance is not EVERYTHING:
            _check_sender(session, message.sender)
            if not session.allowance.may_broadcast(capability):
                raise refusals.unauthorized("broadcast", f"to {capability or 'everybody'}")
            if request.type == CONTROL:
                raise refusals.unauthorized("control", "all hosts at once")
            if request.type in _OF_HOSTS:
                raise refusals.only_hosts(request.type)
        if message.sender != session.claimed:
            _claim(session, message.sender)
        is_ask = message.pattern == ASK
        key = b""
        if is_ask:
            key = fingerprint(message.sender, message.id)
            answered = self._answer_again(session, message, key, now)
            if answered is not None:
                return answered
        expires_at = self._deadline(session, message)
        if expires_at is not None and expires_at < now:
            return self._expired(message, is_ask)

        recipients: list[Recipient] = list(self._registry.live(capability, now))
        if request.exclude_self:
            recipients = [one for one in recipients if one.address != message.sender]
        self._tally.broadcasts += 1
        head, tail = wire.copies(
            message_id=self._next_id(),
            sender=message.sender,
            type=request.type,
            data=request.data,
            now_ms=self._wall.shown(now),
            correlation_id=message.id,
            metadata=wire.BROADCAST_METADATA,
            ttl=message.ttl,
        )
        receipt = FanReceipt(session, message, None, now, expires_at)
        if is_ask:
            receipt.askers, receipt.key = [session], key
            self._pending[key] = receipt
        chunk = self._settings.broadcast_batch
        return self._in_order(session, FanOut(Audience(recipients), head, tail, chunk, receipt))

    def publish(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """Send a copy to every address subscribed to the topic, including the publisher's own."""
        try:
            request = _decode_publish(message.payload)
        except requests.UNFIT as error:
            raise requests.unfit(error) from None
        if request.type.startswith(HUB_TYPE_PREFIX):
            raise _hub_type()
        topic = request.topic
        durable = self._streams.topics.get(topic)
        if durable is None:
            _check_topic(topic)
            if has_wildcard(topic):
                raise refusals.structural("payload.topic must not hold the wildcards `+` or `#`")
        if session.allowance is not EVERYTHING:
            _check_sender(session, message.sender)
            if not session.allowance.may_publish(topic):
                raise refusals.unauthorized("publish", topic)
        if message.sender != session.claimed:
            _claim(session, message.sender)
        if durable is not None and durable.is_deleting:
            raise refusals.unknown_topic(topic)
        is_durable = durable is not None or bool(request.durable)
        key = b""
        if is_durable:
            key = fingerprint(message.sender, message.id)
            answered = self._answer_again(session, message, key, now)
            if answered is not None:
                return answered
        expires_at = self._deadline(session, message)
        if expires_at is not None and expires_at < now:
            return self._expired(message, message.pattern == ASK)
        if is_durable:
            made: list[Effect] = []
            if durable is None:
                self._storage.check()
                publishing.check(request)
                durable, opening = self._catalog.auto_create(session, topic, now)
                made.append(opening)
            return made + self._publisher.publish(
                session, message, request, durable, key, expires_at, now
            )

        if request.headers != wire.NULL:
            publishing.headers_of(request.headers)
        if request.deliver_at is not None:
            raise refusals.structural("payload.deliverAt needs a durable topic, or durable: true")
        self._tally.published += 1
        head, tail = wire.copies(
            message_id=self._next_id(),
            sender=message.sender,
            type=request.type,
            data=request.data,
            now_ms=self._wall.shown(now),
            correlation_id=message.id,
            metadata=wire.publication_metadata(topic),
            ttl=message.ttl,
        )
        receipt = FanReceipt(session, message, topic, now, expires_at)
        audience, pauses = self._topics.charged(session, topic, now)
        chunk = self._settings.fanout_batch
        return pauses + self._in_order(session, FanOut(audience, head, tail, chunk, receipt))

    def _deadline(self, session: Session, message: Envelope) -> float | None:
        """When the message expires, by the sender's clock as far as the hub knows it."""
        ttl = message.ttl
        return session.own_time(message.timestamp + ttl, self._wall) if ttl else None

    def _in_order(self, session: Session, fan: FanOut) -> list[Effect]:
        """Delay a fan-out until earlier asks of this session to its recipients are on disk."""
        if not session.unsynced:
            return [fan]
        ask = self._asks.before_any(session, fan.audience)
        if ask is None:
            return [fan]
        session.fan_waits_for(ask)
        return wait_behind(ask, fan)

    def fanned_out(self, receipt: FanReceipt, queued: int, failed: int, now: int) -> list[Effect]:
        """The copies are queued; tell the sender how many, after its own copy."""
        session, message = receipt.session, receipt.message
        if message is None:
            return []
        topic = receipt.durable
        if topic is not None:
            answer = receipt.answer
            return self._publisher.answers(topic, receipt.askers, message, answer, queued, now)
        assert session is not None
        if receipt.topic is not None:
            payload = wire.encode({"topic": receipt.topic, "subscriberCount": queued})
            return [self._replies.reply(session, message, "hub:published", payload, now)]
        at_once = min(queued, self._settings.broadcast_batch)
        self._tally.broadcast_copies += queued
        self._tally.broadcast_failed += failed
        payload = wire.encode(
            {
                "messageId": message.id,
                "deliveredCount": at_once,
                "queuedCount": queued - at_once,
                "failedCount": failed,
            }
        )
        if message.pattern != ASK:
            return [self._replies.reply(session, message, "hub:broadcast_ack", payload, now)]
        receipt.answer = payload
        body = encode_body(entry.BroadcastBody(message.id, message.sender, payload))
        then = partial(self._broadcast_noted, receipt, message)
        return [Append(Entry(Kind.BROADCAST, "", 0, 0, now, body), then, then)]

    def _broadcast_noted(
        self, receipt: FanReceipt, message: Envelope, outcome: int | Refusal, now: int
    ) -> list[Effect]:
        """Answer a broadcast; its copies were sent even if the log rejected its entry."""
        self._pending.pop(receipt.key, None)
        self._dedup.remember_by(receipt.key, now, KnownAck(at_ms=now, extra=receipt.answer))
        return [
            self._replies.reply(asker, message, "hub:broadcast_ack", receipt.answer, now)
            for asker in receipt.askers
            if asker.state is SessionState.CONNECTED
        ]

    def subscribe(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """Subscribe to a topic, or to all topics that match a wildcard."""
        request = requests.parse(requests.SubscribeRequest, message.payload)
        if request.pattern is not None:
            if session.allowance is not EVERYTHING:
                _check_sender(session, message.sender)
            self._storage.check_known()
            address = _subscribing_address(session, message.sender)
            return self._patterns.subscribe(session, message, request, address, now)
        topic = request.topic
        _check_topic(topic)
        if not is_subscribable(topic):
            raise refusals.structural("the wildcard `#` must be the last level of payload.topic")
        if topic.count("/") >= WILDCARD_LEVELS_MAX and has_wildcard(topic):
            raise refusals.too_many_levels(WILDCARD_LEVELS_MAX)
        if session.allowance is not EVERYTHING:
            _check_sender(session, message.sender)
            # Joining a named subscription is checked with its owner, as `consume`.
            is_named = request.subscription is not None
            if not is_named and not session.allowance.may_subscribe(topic):
                raise refusals.unauthorized("subscribe", topic)
        address = _subscribing_address(session, message.sender)
        if request.subscription is not None:
            self._storage.check_known()
            return self._subscriptions.subscribe(session, message, request, address, now)
        limit = self._settings.subscriptions_max
        is_new = not self._topics.is_subscribed(session, address, topic)
        if is_new and session.count_subscriptions() >= limit:
            raise refusals.too_many("subscriptions", limit)
        if is_new:
            self._topics.check(session)
        subscription_id = "sub-" + self._next_id().decode()
        self._topics.subscribe(session, address, topic, subscription_id)
        payload = wire.encode({"topic": topic, "subscriptionId": subscription_id})
        return [self._replies.reply(session, message, "hub:subscribed", payload, now)]

    def unsubscribe(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """Unsubscribe from a topic, by name or subscription id; unknown ones are ignored."""
        request = requests.parse(requests.UnsubscribeRequest, message.payload)
        if not (request.topic or request.pattern or request.subscription_id):
            raise refusals.structural("the payload needs topic, pattern or subscriptionId")
        consumer = _own_consumer(session, request)
        payload: dict[str, object] = {"unsubscribedAt": self._wall.shown(now)}
        if consumer is not None:
            self._subscriptions.leave(consumer, "left", now, is_told=False)
            payload |= consumer.place
        else:
            payload["topic"] = self._drop(session, message.sender, request)
        if message.pattern != ASK:
            return []
        return [
            self._replies.reply(session, message, "hub:unsubscribed", wire.encode(payload), now)
        ]

    def _drop(self, session: Session, sender: str, request: requests.UnsubscribeRequest) -> str:
        subscribers = list((session.subscriptions or {}).values())
        if not request.topic:
            for one in subscribers:
                for topic, issued in one.topics.items():
                    if request.subscription_id in issued:
                        self._topics.unsubscribe(session, one.address, topic)
                        return topic
        topic = request.topic or request.pattern or request.subscription_id or ""
        if not self._topics.unsubscribe(session, _subscribing_address(session, sender), topic):
            for one in subscribers:
                self._topics.unsubscribe(session, one.address, topic)
        return topic


class _MoveArguments(msgspec.Struct, frozen=True):
    """The arguments of a host's command that the hub looks at."""

    actor: str = ""
    to: str = ""


class _Command(msgspec.Struct, frozen=True):
    name: str = ""
    arguments: _MoveArguments = _MoveArguments()


class _Part(msgspec.Struct, frozen=True):
    """The members of a part of a moving actor that the hub looks at; an arrival has no count."""

    actor: str
    count: int = 0


class _Ends(msgspec.Struct, frozen=True, rename={"sender": "from"}, gc=False):
    """The actors of one message between actors; what comes from outside has no sender."""

    to: str
    sender: str = ""


class _Batch(msgspec.Struct, frozen=True):
    """The members of a batch of messages between actors that the hub looks at."""

    messages: list[_Ends]


# Messages in one batch; hosts send at most as many.
_BATCHED_MAX: Final = 1_000
# Messages that too large a batch may have for one token of the rate.
_BATCHED_PER_TOKEN: Final = 10

_decode_batch = msgspec.json.Decoder(_Batch).decode
_decode_part = msgspec.json.Decoder(_Part).decode
_decode_command = msgspec.json.Decoder(_Command).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_send = msgspec.json.Decoder(requests.SendRequest).decode
_decode_publish = msgspec.json.Decoder(requests.PublishRequest).decode


def _without_contents(command: msgspec.Raw) -> msgspec.Raw:
    """Tell the host to show no contents, whatever the operator wrote."""
    return msgspec.Raw(wire.encode(_decode_members(command) | {"contents": False}))


def _hub_type() -> Refusal:
    return refusals.structural("payload.type must not begin with `hub:`, which is the hub's own")


def _check_sender(session: Session, sender: str) -> None:
    if not session.speaks_as(sender):
        raise refusals.not_your_address(sender)


def _claim(session: Session, sender: str) -> None:
    """Nobody speaks as the hub, or as nobody; otherwise the session may, or has been checked."""
    if is_reserved(sender) and sender != session.internal_address:
        raise refusals.not_your_address(sender)
    session.claim(sender)


def _check_topic(topic: str) -> None:
    if not is_topic(topic):
        raise refusals.structural(f"payload.topic must have 1 to {TOPIC_CHARS_MAX} characters")


def _subscribing_address(session: Session, sender: str) -> str:
    """`from` if this session registered it, otherwise the session's own address."""
    return sender if sender in session.registrations else session.address


def _own_consumer(
    session: Session, request: requests.UnsubscribeRequest
) -> Consumer | PatternConsumer | None:
    """The consumer that the request names, if it names one."""
    consumer = session.consumers.get(request.subscription_id or "")
    if consumer is not None or request.subscription is None:
        return consumer
    wanted = {"topic": request.pattern or request.topic, "subscription": request.subscription}
    for one in session.consumers.values():
        if wanted.items() <= one.place.items():
            return one
    return None
