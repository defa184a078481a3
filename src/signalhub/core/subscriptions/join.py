"""Durable subscriptions: create, join and leave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import fields

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, FindTime, Note
from signalhub.core.limits.quotas import Holder, Quotas, Resource, holder_of
from signalhub.core.operations import operated
from signalhub.core.patterns.pattern import PatternConsumer
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.catalog import check_may_bury
from signalhub.core.streams.streams import Topic
from signalhub.core.subscriptions import progress
from signalhub.core.subscriptions.consumers import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Consumer
from signalhub.core.subscriptions.subscription import DROP_OLDEST, REFUSE, Subscription
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Kind, SubscriptionDefinitionBody
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal
from signalhub.wire.names import has_wildcard, is_topic

if TYPE_CHECKING:
    from signalhub.clock import Ids
    from signalhub.core.log_state import LogState
    from signalhub.core.patterns.index import PatternIndex
    from signalhub.core.replies import Replies
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.settings.model import Settings

NAME_CHARS_MAX = 256
# How many subscriptions are checked at once, so that no tick takes long.
_CHECKED_MAX = 2_000
MODES = (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)


class Subscriptions:
    """Manages durable subscriptions and their consumers."""

    def __init__(
        self,
        streams: Streams,
        dispatcher: Dispatcher,
        quotas: Quotas,
        storage: LogState,
        replies: Replies,
        ids: Ids,
        settings: Settings,
        patterns: PatternIndex,
    ) -> None:
        self.streams = streams
        self.dispatcher = dispatcher
        self.quotas = quotas
        self.storage = storage
        self.replies = replies
        self.ids = ids
        self.settings = settings
        self.patterns = patterns
        # Those that the current search for abandoned subscriptions has not reached.
        self._unchecked: list[Subscription] = []

    def subscribe(
        self,
        session: Session,
        message: Envelope,
        request: requests.SubscribeRequest,
        address: str,
        now: int,
    ) -> list[Effect]:
        """`hub:subscribe` with a subscription name: create it if it is new, and join it."""
        name = request.subscription
        assert name is not None
        if session.allowance is not EVERYTHING:
            known = self.streams.topics.get(request.topic)
            made = None if known is None else known.subscriptions.get(name)
            owner = "" if made is None else made.definition.owner
            check_may_consume(session, request.topic, name, owner)
        topic = self.streams.find(request.topic)
        for member, text in (("subscription", name), ("consumer", request.consumer)):
            if text is None:
                continue
            if not text or len(text) > NAME_CHARS_MAX or not text.isprintable():
                raise refusals.structural(
                    f"payload.{member} must have 1 to {NAME_CHARS_MAX} printable characters"
                )
        if request.mode is not None and request.mode not in MODES:
            raise refusals.structural(f"payload.mode must be one of {', '.join(MODES)}")
        _check_start(request.start)
        _check_resume(topic, request)
        check_options(session, topic.name, request)
        joining = ConsumerJoin(self, session, message, request, address, topic)
        found = topic.subscriptions.get(name)
        self.check_name(topic.name, name, found)
        if found is not None and found.is_deleting:
            raise refusals.unknown_subscription(topic.name, name)
        if found is not None:
            if found.making is not None:
                # It is being written to the log; answer after its creator.
                return joining.wait(found, found.making)
            return joining.rejoin(found, now)
        check_may_join(session, self.settings.subscriptions_max)
        self.storage.check()
        if request.resume is not None:
            return joining.make(_within(topic, int(request.resume.seq)), now)
        return find_start(topic, request.start, joining.make, joining.unread, now)

    def check_name(self, topic: str, name: str, found: Subscription | None) -> None:
        """Refuse a name that belongs to a pattern."""
        owner = self.patterns.owner_of(topic, name)
        if found is not None and found.definition.pattern:
            raise refusals.part_of_pattern(topic, name, found.definition.pattern)
        if found is None and owner is not None:
            raise refusals.part_of_pattern(topic, name, owner.text)

    def make(
        self, topic: Topic, definition: SubscriptionDefinitionBody, holder: Holder, now: int
    ) -> tuple[Subscription, Append]:
        """Create a subscription; it is permanent once its entry is on disk."""
        heartbeat_ms = self.settings.dispatch.heartbeat_ms
        made = Subscription(topic, definition, heartbeat_ms, now)
        self.streams.add_subscription(topic, made, holder)
        entry = topic.entry(Kind.SUBSCRIPTION_CREATED, definition, now)
        made.making = Append(entry, partial(self._made, made), partial(self._not_made, made))
        return made, made.making

    def _made(self, subscription: Subscription, offset: int, now: int) -> list[Effect]:
        subscription.making = None
        subscription.touch()
        return []

    def _not_made(self, subscription: Subscription, refusal: Refusal, now: int) -> list[Effect]:
        subscription.making = None
        subscription.touch()
        return self.remove(subscription, "refused", now)

    def add(self, consumer: Consumer, now: int) -> None:
        """Add a consumer."""
        consumer.session.joined(consumer)
        consumer.subscription.joined(consumer)
        self.dispatcher.watch(consumer.subscription, now)

    def defaults(self, name: str, mode: str, floor: int) -> SubscriptionDefinitionBody:
        settings = self.settings.dispatch
        return SubscriptionDefinitionBody(
            name,
            mode,
            settings.window,
            False,
            settings.ack_timeout_ms,
            settings.max_deliveries,
            settings.backoff_ms,
            settings.backoff_cap_ms,
            None,
            False,
            start=floor,
            idle_expiry_ms=int(settings.idle_expiry_s * 1000),
        )

    def redefine(
        self, subscription: Subscription, definition: SubscriptionDefinitionBody, now: int
    ) -> Append:
        """Change the options at once; undone if the log rejects the entry."""
        self.storage.check()
        old = subscription.definition
        subscription.redefine(definition, now)
        self.dispatcher.watch(subscription, now)
        entry = subscription.stream.entry(Kind.SUBSCRIPTION_CREATED, definition, now)

        def done(offset: int, later: int) -> list[Effect]:
            subscription.stored(definition)
            return []

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            subscription.redefine(old, later)
            return []

        return Append(entry, done, undo)

    def leave(
        self, consumer: Consumer | PatternConsumer, reason: str, now: int, *, is_told: bool = True
    ) -> list[Effect]:
        """Remove a consumer; its unsettled messages are delivered again."""
        session = consumer.session
        session.left(consumer)
        if isinstance(consumer, PatternConsumer):
            consumer.pattern.left(consumer, now)
        for part in consumer.parts():
            part.subscription.left(part, now, self.settings.dispatch.failover_ms)
            self.dispatcher.wake(part.subscription)
        consumer.ended()
        if not is_told or session.state is not SessionState.CONNECTED:
            return []
        payload = consumer.place | {
            "subscriptionId": consumer.id,
            "unsubscribedAt": self.replies.wall.shown(now),
            "reason": reason,
        }
        return [self.replies.notice(session, "hub:unsubscribed", wire.encode(payload), now)]

    def named(
        self, topic: str | None, name: str | None, *, with_deleted: bool = False
    ) -> Subscription:
        """The subscription; raises `Refusal` if it does not exist, or if it is being deleted."""
        if topic is None or name is None:
            raise refusals.structural("the payload needs topic and subscription")
        found = self.streams.find(topic).subscriptions.get(name)
        if found is None or (found.is_deleting and not with_deleted):
            raise refusals.unknown_subscription(topic, name)
        return found

    def delete(self, subscription: Subscription, now: int) -> Append:
        """Delete a subscription; its consumers are told once that is on disk."""

        def done(offset: int, later: int) -> list[Effect]:
            # The collector does not look into an append: a circle through it would stay for ever.
            subscription.deleting = None
            return self.remove(subscription, "deleted", later)

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            subscription.deleting = None
            return []

        body = msgspec.structs.replace(subscription.definition)
        entry = subscription.stream.entry(Kind.SUBSCRIPTION_DELETED, body, now)
        subscription.deleting = Append(entry, done, undo)
        return subscription.deleting

    def expire(self, now: int) -> list[Effect]:
        """Delete subscriptions that nobody has consumed for too long, a few of them per call."""
        if self.storage.fault is not None:
            return []
        if not self._unchecked:
            self._unchecked = self.streams.subscriptions()
        effects: list[Effect] = []
        for _ in range(min(_CHECKED_MAX, len(self._unchecked))):
            one = self._unchecked.pop()
            if not one.is_abandoned(now) or one.making or one.is_deleting or one.is_deleted:
                continue
            facts: dict[str, object] = {
                "topic": one.stream.name,
                "subscription": one.name,
                "unsettled": one.lag,
            }
            effects.append(Note("a subscription without consumers expired", facts))
            effects.append(self.delete(one, now))
        return effects

    def remove(self, subscription: Subscription, reason: str, now: int) -> list[Effect]:
        """Remove a subscription and tell its consumers."""
        effects: list[Effect] = []
        for consumer in list(subscription.consumers):
            if consumer.group is not None:
                # It goes on with the other parts.
                subscription.left(consumer, now)
            else:
                effects += self.leave(consumer, reason, now)
        if subscription.pattern is not None:
            subscription.pattern.forget(subscription)
        stream = subscription.stream
        if isinstance(stream, Topic):
            self.streams.forget_subscription(stream, subscription.name)
        gone = refusals.unknown_subscription(stream.name, subscription.name)
        return [*effects, *self.end(subscription, gone, now)]

    def end(self, subscription: Subscription, gone: Refusal, now: int) -> list[Effect]:
        """No pass runs for it any more: refuse the settlements that wait for one."""
        waiters, subscription.waiters = subscription.waiters, []
        self.dispatcher.remove(subscription)
        return progress.refuse_all(waiters, gone, now)


def _check_start(start: requests.Start | None) -> None:
    if start is None or start in ("earliest", "latest"):
        return
    if isinstance(start, str):
        raise refusals.structural(
            "a position is `earliest`, `latest` or an object with seq, time or last"
        )
    given = [one for one in (start.seq, start.time, start.last) if one is not None]
    if len(given) != 1:
        raise refusals.structural("a position needs exactly one of seq, time and last")


def _check_resume(topic: Topic, request: requests.SubscribeRequest) -> None:
    resume = request.resume
    if resume is None:
        return
    if resume.epoch is not None and resume.epoch != topic.epoch:
        raise refusals.wrong_epoch(topic.name, resume.epoch, topic.epoch)
    if resume.seq > topic.head:
        raise refusals.structural(
            f"payload.resume.seq is {resume.seq}, but the topic's head is {topic.head}"
        )


def _within(topic: Topic, floor: int) -> int:
    return max(topic.first - 1, min(floor, topic.head))


class ConsumerJoin:
    """A request to consume, until it is answered."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        session: Session,
        message: Envelope,
        request: requests.SubscribeRequest,
        address: str,
        topic: Topic,
    ) -> None:
        self._subscriptions = subscriptions
        self._session = session
        self._message = message
        self._request = request
        self._address = address
        self._topic = topic
        # The floor requested for a new subscription, if it was given as a position.
        self._wanted = _wanted(request)

    def make(self, floor: int, now: int) -> list[Effect]:
        """Create the subscription after its start was found, unless it exists by now."""
        if self._session.state is not SessionState.CONNECTED:
            return []
        try:
            return self._make(floor, now)
        except Refusal as refusal:
            return self.refuse(refusal, now)

    def _make(self, floor: int, now: int) -> list[Effect]:
        """Create and join; answered once the entry is on disk."""
        subscriptions, topic = self._subscriptions, self._topic
        streams, settings = subscriptions.streams, subscriptions.settings.dispatch
        if streams.topics.get(topic.name) is not topic or topic.is_deleting:
            raise refusals.unknown_topic(topic.name)
        name = self._request.subscription
        assert name is not None
        found = topic.subscriptions.get(name)
        subscriptions.check_name(topic.name, name, found)
        if found is not None and found.making is not None:
            return self.wait(found, found.making)
        if found is not None:
            return self.rejoin(found, now)
        if streams.count_subscriptions() >= settings.limit:
            raise refusals.too_many_subscriptions(settings.limit)
        holder = holder_of(self._session)
        subscriptions.quotas.check(Resource.SUBSCRIPTIONS, holder)
        defaults = subscriptions.defaults(name, self._request.mode or EXCLUSIVE, floor)
        definition = changed(defaults, self._request)
        definition.owner = self._session.allowance.subject
        made, append = subscriptions.make(topic, definition, holder, now)
        return [append, *self.wait(made, append)]

    def wait(self, subscription: Subscription, making: Append) -> list[Effect]:
        """Join once the subscription is on disk."""
        making.follow(partial(self._made, subscription), self.refuse)
        return []

    def unread(self, now: int) -> list[Effect]:
        """The start could not be found."""
        return self.refuse(refusals.storage_unreadable(), now)

    def rejoin(self, subscription: Subscription, now: int) -> list[Effect]:
        """Join an existing subscription; its start is ignored, `resume` is not."""
        resume = self._request.resume
        self._wanted = None if resume is None else int(resume.seq)
        return self.join(subscription, now)

    def join(self, subscription: Subscription, now: int) -> list[Effect]:
        """Add this session as a consumer."""
        subscriptions, request, session = self._subscriptions, self._request, self._session
        definition = subscription.definition
        owner = definition.owner
        check_may_consume(session, self._topic.name, subscription.name, owner)
        if request.mode is not None and request.mode != definition.mode:
            raise refusals.subscription_conflict(subscription.name, definition.mode)
        name = request.consumer or self._address
        effects: list[Effect] = []
        is_managed = not session.allowance.consumes(self._topic.name, subscription.name, owner)
        held = subscription.consumers.named(name)
        if held is None or held.session is not session:
            check_may_join(session, subscriptions.settings.subscriptions_max)
        others = [one for one in subscription.consumers if one is not held]
        if definition.mode == EXCLUSIVE and others:
            raise refusals.subscription_busy(subscription.name, others[0].name)
        if held is not None:
            is_managed |= self._is_others(held, owner)
        # The window belongs to the consumer, all other options to the subscription.
        update = msgspec.structs.replace(changed(definition, request), window=definition.window)
        kept: list[str] = []
        if update != definition and not session.allowance.may_manage(self._topic.name, owner):
            if owner:
                raise refusals.unauthorized("manage", self._topic.name)
            # Nobody owns those of earlier versions, whose consumers come back as they were: they
            # are served, and told which of their options do not hold.
            kept = differing(definition, update)
            update = definition
        if update != definition and not session.allowance.owns(owner):
            is_managed |= bool(owner) or session.allowance is not EVERYTHING
        if is_managed:
            # What cannot be recorded is not done.
            subscriptions.storage.check()
            over = f"{self._topic.name}/{subscription.name}"
            effects += operated(session, self._message.type, "manage", over, now)
        if update != definition:
            effects.append(subscriptions.redefine(subscription, update, now))
        if held is not None:
            is_told = held.session is not session
            effects += subscriptions.leave(held, "taken_over", now, is_told=is_told)
        consumer = Consumer(
            "sub-" + subscriptions.ids.next().decode(),
            name,
            session,
            self._address,
            subscription,
            window=request.window or update.window,
            bytes_max=subscriptions.settings.dispatch.window_bytes,
            auto_ack=update.auto_ack,
        )
        subscriptions.add(consumer, now)
        welcome = self._welcome(subscription, consumer)
        payload = wire.encode(welcome | {"kept": kept} if kept else welcome)
        reply = subscriptions.replies.reply(session, self._message, "hub:subscribed", payload, now)
        return [*effects, reply]

    def _is_others(self, held: Consumer, owner: str) -> bool:
        """Is it a consumer of another identity? Taking its place needs `manage`."""
        allowance = self._session.allowance
        if allowance is EVERYTHING or held.session.allowance.subject == allowance.subject:
            return False
        if not allowance.may_manage(self._topic.name, owner):
            raise refusals.unauthorized("manage", self._topic.name)
        return not allowance.owns(owner)

    def _welcome(self, subscription: Subscription, consumer: Consumer) -> dict[str, object]:
        topic = self._topic
        floor = subscription.position.floor
        payload: dict[str, object] = {
            "topic": topic.name,
            "subscription": subscription.name,
            "subscriptionId": consumer.id,
            "mode": subscription.definition.mode,
            "epoch": topic.epoch,
            "next": subscription.next_to_send,
            "head": topic.head,
            "lag": subscription.lag,
            "recovered": True,
            "idleExpiryMs": subscription.definition.idle_expiry_ms,
        }
        processed = floor if self._wanted is None else self._wanted
        if processed + 1 < topic.first:
            payload |= {
                "recovered": False,
                "lostFrom": processed + 1,
                "lostTo": topic.first - 1,
            }
        return payload

    def _made(self, subscription: Subscription, offset: int, now: int) -> list[Effect]:
        """The entry of a new subscription is on disk."""
        if self._session.state is not SessionState.CONNECTED:
            return []
        try:
            if subscription.is_deleted or subscription.is_deleting:
                raise refusals.unknown_subscription(self._topic.name, subscription.name)
            return self.join(subscription, now)
        except Refusal as refusal:
            return self.refuse(refusal, now)

    def refuse(self, refusal: Refusal, now: int) -> list[Effect]:
        if self._session.state is not SessionState.CONNECTED:
            return []
        return [self._subscriptions.replies.refuse(self._session, self._message, refusal, now)]


def check_may_join(session: Session, limit: int) -> None:
    """Refuse a session that consumes as much as it may."""
    if session.count_subscriptions() >= limit:
        raise refusals.too_many("subscriptions", limit)


def check_may_consume(session: Session, topic: str, name: str, owner: str) -> None:
    """Refuse to consume a subscription that is somebody else's."""
    allowance = session.allowance
    if allowance is not EVERYTHING and not allowance.may_consume(topic, name, owner):
        raise refusals.unauthorized("consume", f"{topic}/{name}")


def _wanted(request: requests.SubscribeRequest) -> int | None:
    """The floor that a starting point given by position means."""
    if request.resume is not None:
        return int(request.resume.seq)
    start = request.start
    if start is None or start == "earliest":
        return 0
    return int(start.seq) - 1 if isinstance(start, requests.Point) and start.seq else None


def find_start(
    topic: Topic,
    start: requests.Start | None,
    then: Callable[[int, int], list[Effect]],
    unread: Callable[[int], list[Effect]],
    now: int,
) -> list[Effect]:
    """Resolve a starting point to a floor and call `then` with it, or `unread`."""
    if start is None or start == "earliest":
        return then(topic.first - 1, now)
    if start == "latest":
        return then(topic.head, now)
    _check_start(start)
    assert isinstance(start, requests.Point)
    if start.epoch is not None and start.epoch != topic.epoch:
        raise refusals.wrong_epoch(topic.name, start.epoch, topic.epoch)
    if start.seq is not None:
        return then(_within(topic, int(start.seq) - 1), now)
    if start.last is not None:
        return then(_within(topic, topic.head - max(0, int(start.last))), now)
    assert start.time is not None

    def found(seq: int | None, later: int) -> list[Effect]:
        if seq is None:
            return unread(later)
        return then(_within(topic, seq - 1) if seq else topic.head, later)

    return [FindTime(topic.name, topic.id, start.time, found)]


def _check_letters(session: Session, topic: str, given: requests.SubscriptionOptions) -> None:
    """Refuse a dead-letter topic that the session could not publish to itself."""
    name = given.dead_letter
    if name is None:
        return
    if not is_topic(name) or has_wildcard(name) or not name.isprintable() or name == topic:
        raise refusals.structural("payload.deadLetter must be the plain name of another topic")
    check_may_bury(session, name)


def changed(
    definition: SubscriptionDefinitionBody, given: requests.SubscriptionOptions
) -> SubscriptionDefinitionBody:
    """The definition with the given options, validated."""
    if given.strict and definition.mode not in (EXCLUSIVE, FAILOVER):
        raise refusals.structural("payload.strict is for the modes exclusive and failover")
    chosen = {
        name: value
        for name, value in (
            ("window", given.window),
            ("strict", given.strict),
            ("ack_timeout_ms", given.ack_timeout_ms),
            ("max_deliveries", given.max_deliveries),
            ("backoff_ms", given.backoff_ms),
            ("backoff_cap_ms", given.backoff_cap_ms),
            ("heartbeat_ms", given.heartbeat_ms),
            ("auto_ack", given.auto_ack),
            ("poison", given.poison),
            ("dead_letter", given.dead_letter),
            ("rate_s", given.rate_per_second),
            ("idle_expiry_ms", given.idle_expiry_ms),
            ("backlog_max", given.backlog_max),
            ("backlog_policy", given.backlog_policy),
        )
        if value is not None
    }
    if given.backlog_max is not None:
        # A limit needs a policy, and without one there is nothing to apply it to.
        policy = given.backlog_policy or definition.backlog_policy or DROP_OLDEST
        chosen["backlog_policy"] = policy if given.backlog_max else ""
    elif given.backlog_policy is not None and not definition.backlog_max:
        raise refusals.structural("payload.backlogPolicy needs payload.backlogMax")
    return msgspec.structs.replace(definition, **chosen)


def differing(one: SubscriptionDefinitionBody, other: SubscriptionDefinitionBody) -> list[str]:
    """The options that two definitions differ in, as requests name them."""
    names = {one.name: one.encode_name for one in fields(requests.SubscriptionOptions)}
    names["rate_s"] = names.pop("rate_per_second")
    return [wire for name, wire in names.items() if getattr(one, name) != getattr(other, name)]


def check_options(session: Session, topic: str, given: requests.SubscriptionOptions) -> None:
    """Refuse options that would give a subscriber more than it may do itself."""
    _check_letters(session, topic, given)
    if given.backlog_policy == REFUSE and not session.allowance.may_create(topic):
        # It can stop everybody from publishing.
        raise refusals.unauthorized("create", topic)
