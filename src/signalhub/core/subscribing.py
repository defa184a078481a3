"""Durable subscriptions: making and joining them, leaving, looking at them, moving them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from signalhub import envelope as wire
from signalhub.core import journal, publishing, refusals, requests
from signalhub.core.consumers import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Consumer
from signalhub.core.effects import Append, Effect, Fetch, FindTime, Reply
from signalhub.core.flight import SENT, WAITING
from signalhub.core.publishing import Then
from signalhub.core.session import Session, State
from signalhub.core.streams import Mailbox, Topic
from signalhub.core.subscription import Subscription
from signalhub.entry import Body, Cursor, Kind, Stored, SubscriptionDefinition
from signalhub.envelope import Envelope
from signalhub.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

PAGE_MAX = 100
NAME_CHARS_MAX = 256
MODES = (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)


def subscribe(
    hub: Hub,
    session: Session,
    message: Envelope,
    request: requests.Subscribe,
    address: str,
    now: int,
) -> list[Effect]:
    """`hub:subscribe` with a subscription's name: make it if it is new, and join it."""
    topic = publishing.find(hub, request.topic)
    name = request.subscription
    assert name is not None
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
    joining = _Joining(hub, session, message, request, address, topic)
    found = topic.subscriptions.get(name)
    if found is not None:
        return joining.rejoin(found, now)
    count = sum(len(one.topics) for one in (session.subscriptions or {}).values())
    if count + len(session.consumers) >= hub.settings.subscriptions_max:
        raise refusals.too_many("subscriptions", hub.settings.subscriptions_max)
    hub.check_storage()
    if request.resume is not None:
        return joining.make(_within(topic, int(request.resume.seq)), now)
    return find_start(hub, topic, request.start, joining.make, now)


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


def _check_resume(topic: Topic, request: requests.Subscribe) -> None:
    resume = request.resume
    if resume is not None and resume.epoch is not None and resume.epoch != topic.epoch:
        raise refusals.wrong_epoch(topic.name, resume.epoch, topic.epoch)


def _within(topic: Topic, floor: int) -> int:
    return max(topic.first - 1, min(floor, topic.head))


def find_start(
    hub: Hub,
    topic: Topic,
    start: requests.Start | None,
    then: Callable[[int, int], list[Effect]],
    now: int,
) -> list[Effect]:
    """Resolve a starting point to a floor, and go on with it."""
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

    def found(seq: int, later: int) -> list[Effect]:
        return then(_within(topic, seq - 1) if seq else topic.head, later)

    return [FindTime(topic.name, topic.id, start.time, found)]


class _Joining:
    """A request to consume, until the consumer is there."""

    def __init__(
        self,
        hub: Hub,
        session: Session,
        message: Envelope,
        request: requests.Subscribe,
        address: str,
        topic: Topic,
    ) -> None:
        self._hub = hub
        self._session = session
        self._message = message
        self._request = request
        self._address = address
        self._topic = topic
        # The floor a new subscription wanted, if it said so by position.
        self._wanted = _wanted(request)

    def make(self, floor: int, now: int) -> list[Effect]:
        """A new subscription; it exists for good once its entry is on disk."""
        hub, topic = self._hub, self._topic
        name = self._request.subscription
        assert name is not None
        found = topic.subscriptions.get(name)
        if found is not None:
            return self.rejoin(found, now)
        if hub.count_subscriptions() >= hub.settings.dispatch.limit:
            raise refusals.too_many("subscriptions", hub.settings.dispatch.limit)
        mode = self._request.mode or EXCLUSIVE
        defaults = _defaults(hub, name, mode, floor)
        definition = changed(defaults, self._request)
        subscription = Subscription(topic, definition, hub.settings.dispatch.heartbeat_ms, now)
        topic.subscriptions[name] = subscription
        entry = journal.entry(Kind.SUBSCRIPTION_CREATED, topic, definition, now)
        return [Append(entry, Made(subscription, self))]

    def rejoin(self, subscription: Subscription, now: int) -> list[Effect]:
        """It is not new: where it started does not count, only what the consumer has."""
        resume = self._request.resume
        self._wanted = None if resume is None else int(resume.seq)
        return self.join(subscription, now)

    def join(self, subscription: Subscription, now: int) -> list[Effect]:
        """Become a consumer of it."""
        hub, request, session = self._hub, self._request, self._session
        definition = subscription.definition
        if request.mode is not None and request.mode != definition.mode:
            raise refusals.subscription_conflict(subscription.name, definition.mode)
        name = request.consumer or self._address
        effects: list[Effect] = []
        held = subscription.consumers.named(name)
        others = [one for one in subscription.consumers if one is not held]
        if definition.mode == EXCLUSIVE and others:
            raise refusals.subscription_busy(subscription.name, others[0].name)
        update = changed(definition, request)
        if update != definition:
            effects += _redefine(hub, subscription, update, now)
        if held is not None:
            effects += leave(hub, held, "taken_over", now, is_told=held.session is not session)
        settings = hub.settings.dispatch
        consumer = Consumer(
            "sub-" + hub.ids.next().decode(),
            name,
            session,
            self._address,
            subscription,
            window=update.window,
            bytes_max=settings.window_bytes,
            auto_ack=update.auto_ack,
        )
        subscription.joined(consumer)
        session.consumers[consumer.id] = consumer
        hub.dispatcher.watch(subscription, now)
        payload = self._welcome(subscription, consumer)
        reply = hub.reply(session, self._message, "hub:subscribed", wire.encode(payload), now)
        return [*effects, reply]

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
        }
        processed = floor if self._wanted is None else self._wanted
        if processed + 1 < topic.first:
            payload |= {
                "recovered": False,
                "lostFrom": processed + 1,
                "lostTo": topic.first - 1,
            }
        return payload

    def made(self, subscription: Subscription, now: int) -> list[Effect]:
        """The entry of a new subscription is on disk."""
        if self._session.state is not State.CONNECTED:
            return []
        try:
            return self.join(subscription, now)
        except Refusal as refusal:
            return self.refuse(refusal, now)

    def refuse(self, refusal: Refusal, now: int) -> list[Effect]:
        if self._session.state is not State.CONNECTED:
            return []
        return [self._hub.refuse(self._session, self._message, refusal, now)]


def _wanted(request: requests.Subscribe) -> int | None:
    """Up to where somebody wants to have everything behind."""
    if request.resume is not None:
        return int(request.resume.seq)
    start = request.start
    if start is None or start == "earliest":
        return 0
    return int(start.seq) - 1 if isinstance(start, requests.Point) and start.seq else None


class Made(msgspec.Struct):
    """A new subscription on its way to the log."""

    subscription: Subscription
    joining: _Joining

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        return self.joining.made(self.subscription, now)

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        stream = self.subscription.stream
        if isinstance(stream, Topic):
            stream.subscriptions.pop(self.subscription.name, None)
        return self.joining.refuse(refusal, now)


def first_unsettled(subscription: Subscription) -> int:
    """The next position to be delivered to somebody who has nothing yet."""
    position = subscription.position
    return position.above.end_from(position.floor + 1) + 1


def _defaults(hub: Hub, name: str, mode: str, floor: int) -> SubscriptionDefinition:
    settings = hub.settings.dispatch
    return SubscriptionDefinition(
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
    )


def changed(
    definition: SubscriptionDefinition, given: requests.SubscriptionOptions
) -> SubscriptionDefinition:
    """The definition with the members that were given, checked."""
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
        )
        if value is not None
    }
    return msgspec.structs.replace(definition, **chosen)


def _redefine(
    hub: Hub, subscription: Subscription, definition: SubscriptionDefinition, now: int
) -> list[Effect]:
    hub.check_storage()
    old = subscription.definition
    subscription.redefine(definition, now)
    hub.dispatcher.watch(subscription, now)
    entry = journal.entry(Kind.SUBSCRIPTION_CREATED, subscription.stream, definition, now)
    undo = journal.Once(refused=lambda later: subscription.redefine(old, later))
    return [Append(entry, undo)]


def leave(
    hub: Hub, consumer: Consumer, reason: str, now: int, *, is_told: bool = True
) -> list[Effect]:
    """A consumer is gone, or sent away; what it had is delivered again."""
    subscription, session = consumer.subscription, consumer.session
    session.consumers.pop(consumer.id, None)
    subscription.left(consumer, now, hub.settings.dispatch.failover_ms)
    hub.dispatcher.wake(subscription)
    if not is_told or session.state is not State.CONNECTED:
        return []
    payload = {
        "topic": subscription.stream.name,
        "subscription": subscription.name,
        "subscriptionId": consumer.id,
        "unsubscribedAt": now,
        "reason": reason,
    }
    return [hub.notice(session, "hub:unsubscribed", wire.encode(payload), now)]


def find(hub: Hub, topic: str | None, name: str | None) -> Subscription:
    """The subscription, or a refusal."""
    if topic is None or name is None:
        raise refusals.structural("the payload needs topic and subscription")
    found = publishing.find(hub, topic).subscriptions.get(name)
    if found is None:
        raise refusals.unknown_subscription(topic, name)
    return found


def _named(hub: Hub, session: Session, message: Envelope) -> Subscription:
    request = requests.parse(requests.SubscriptionName, message.payload)
    subscription = find(hub, request.topic, request.subscription)
    publishing.check_may_read(session, request.topic)
    return subscription


def info(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:sub_info`."""
    return _shown(hub, session, message, _named(hub, session, message), now)


def _shown(
    hub: Hub, session: Session, message: Envelope, subscription: Subscription, now: int
) -> list[Effect]:
    """How long its oldest message has waited may have to be looked up."""

    def reply(oldest_ms: int | None, later: int) -> Reply:
        payload = wire.encode(describe(subscription, oldest_ms, later))
        return hub.reply(session, message, "hub:sub_info_response", payload, later)

    oldest_ms = subscription.oldest_ms()
    if oldest_ms is not None or not subscription.lag:
        return [reply(oldest_ms, now)]

    def then(found: list[Stored], later: int) -> list[Effect]:
        if session.state is not State.CONNECTED:
            return []
        return [reply(found[0].at_ms if found else None, later)]

    stream = subscription.stream
    seq = first_unsettled(subscription)
    return [Fetch(stream.name, stream.id, seq, 1, 1, then)]


def describe(subscription: Subscription, oldest_ms: int | None, now: int) -> dict[str, object]:
    """What people see of a subscription."""
    definition, position = subscription.definition, subscription.position
    stream, window, stats = subscription.stream, subscription.window, subscription.stats
    lag = subscription.lag
    is_late = lag > 0 and oldest_ms is not None
    return {
        "topic": stream.name,
        "subscription": subscription.name,
        "mode": definition.mode,
        "epoch": stream.epoch,
        "generation": position.generation,
        "consumers": [
            {
                "consumer": one.name,
                "subscriptionId": one.id,
                "session": one.session.id,
                "inFlight": one.flights,
                "window": one.window,
            }
            for one in subscription.consumers
        ],
        "floor": position.floor,
        "next": subscription.next_to_send,
        "head": stream.head,
        "first": stream.first,
        "lag": lag,
        "lagSeconds": max(0, now - (oldest_ms or now)) / 1000 if is_late else 0,
        "inFlight": window.count(SENT),
        "waitingRetry": window.count(WAITING),
        "exhausted": window.exhausted,
        "settledAboveFloor": position.above.count,
        "parked": len(position.parked),
        "deadLettered": position.dead_lettered,
        "redelivered": stats.redelivered,
        "lost": stats.lost,
        "paused": position.is_paused,
        "blocked": subscription.is_blocked,
        "window": definition.window,
        "strict": definition.strict,
        "ackTimeoutMs": definition.ack_timeout_ms,
        "maxDeliveries": definition.max_deliveries,
        "backoffMs": definition.backoff_ms,
        "backoffCapMs": definition.backoff_cap_ms,
        "heartbeatMs": subscription.heartbeat_ms,
        "autoAck": definition.auto_ack,
        "poison": subscription.poison_policy,
        "deadLetter": definition.dead_letter,
        "ratePerSecond": definition.rate_s,
    }


def list_subscriptions(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:list_subs`: a page of the subscriptions of one topic or of all."""
    request = requests.parse_or_empty(requests.ListSubscriptions, message.payload)
    limit = requests.page(request.limit, PAGE_MAX)
    offset = max(0, int(request.offset or 0))
    topics = (
        sorted(hub.streams.topics.values(), key=lambda topic: topic.name)
        if request.topic is None
        else [publishing.find(hub, request.topic)]
    )
    allowance = session.allowance
    found = (
        subscription
        for topic in topics
        if allowance.may_subscribe(topic.name)
        for _, subscription in sorted(topic.subscriptions.items())
    )
    shown = list(islice(found, offset, offset + limit + 1))
    payload = {
        "subscriptions": [describe(one, one.oldest_ms(), now) for one in shown[:limit]],
        "offset": offset,
        "limit": limit,
        "hasMore": len(shown) > limit,
    }
    return [hub.reply(session, message, "hub:sub_info_response", wire.encode(payload), now)]


def pause(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:sub_pause`: nothing is sent until it is resumed; acks still count."""
    return _set_paused(hub, session, message, now, is_paused=True)


def resume(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:sub_resume`."""
    return _set_paused(hub, session, message, now, is_paused=False)


def _set_paused(
    hub: Hub, session: Session, message: Envelope, now: int, *, is_paused: bool
) -> list[Effect]:
    subscription = _named(hub, session, message)
    hub.check_storage()

    def done(later: int) -> list[Effect]:
        subscription.position.is_paused = is_paused
        hub.dispatcher.wake(subscription)
        return []

    body = journal.cursor(subscription)
    body.is_paused = is_paused
    entry = journal.entry(Kind.CURSOR, subscription.stream, body, now)
    answer = Then(
        session,
        message,
        "hub:sub_info_response",
        lambda: describe(subscription, subscription.oldest_ms(), now),
    )
    return [Append(entry, journal.Waited(journal.Once(done), [answer]))]


def update(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:sub_update`: other options for a running subscription, at once."""
    subscription = _named(hub, session, message)
    given = requests.parse(requests.SubscriptionOptions, message.payload)
    effects = _redefine(hub, subscription, changed(subscription.definition, given), now)
    hub.dispatcher.wake(subscription)
    for consumer in subscription.consumers:
        if given.window is not None:
            consumer.window = subscription.definition.window
        consumer.auto_ack = subscription.definition.auto_ack
    return [*effects, *_shown(hub, session, message, subscription, now)]


def delete(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:sub_delete`."""
    subscription = _named(hub, session, message)
    hub.check_storage()
    payload = describe(subscription, subscription.oldest_ms(), now) | {"deleted": True}
    body = msgspec.structs.replace(subscription.definition)
    entry = journal.entry(Kind.SUBSCRIPTION_DELETED, subscription.stream, body, now)
    answer = Then(session, message, "hub:sub_info_response", payload)
    once = journal.Once(lambda later: remove(hub, subscription, "deleted", later))
    return [Append(entry, journal.Waited(once, [answer]))]


def remove(hub: Hub, subscription: Subscription, reason: str, now: int) -> list[Effect]:
    """Forget a subscription; its consumers are told."""
    effects: list[Effect] = []
    for consumer in list(subscription.consumers):
        effects += leave(hub, consumer, reason, now)
    stream = subscription.stream
    if isinstance(stream, Topic):
        stream.subscriptions.pop(subscription.name, None)
        hub.streams.deleted_subscriptions.add((stream.name, subscription.name))
    hub.dispatcher.remove(subscription)
    return effects


def seek(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:seek`: begin again somewhere else; acks for what was sent before mean nothing then."""
    subscription = _named(hub, session, message)
    request = requests.parse(requests.Seek, message.payload)
    topic = subscription.stream
    assert isinstance(topic, Topic)
    hub.check_storage()

    def then(floor: int, later: int) -> list[Effect]:
        if session.state is not State.CONNECTED:
            return []
        old = subscription.position
        settled_behind = (
            old.floor - floor + old.above.count
            if floor < old.floor
            else sum(
                min(last, topic.head) - max(first, floor + 1) + 1
                for first, last in old.above
                if last > floor
            )
        )
        skipped = sum(
            not old.is_settled(seq) for seq in range(old.floor + 1, min(floor, topic.head) + 1)
        )
        payload = {
            "epoch": topic.epoch,
            "next": floor + 1,
            "willReplay": settled_behind,
            "willSkip": skipped,
        }
        if request.dry_run:
            return [hub.reply(session, message, "hub:sought", wire.encode(payload), later)]
        subscription.last_generation += 1
        generation = subscription.last_generation

        def done(committed: int) -> list[Effect]:
            subscription.seek(floor, generation)
            hub.dispatcher.wake(subscription)
            return []

        reserved = max(old.reserved, subscription.reserving)
        body = Cursor(
            subscription.name,
            generation,
            floor,
            reserved,
            [],
            {},
            {},
            old.is_paused,
            old.dead_lettered,
        )
        entry = journal.entry(Kind.CURSOR, topic, body, later)
        answer = Then(session, message, "hub:sought", payload)
        return [Append(entry, journal.Waited(journal.Once(done), [answer]))]

    return find_start(hub, topic, request.to, then, now)


def forget_mailbox(hub: Hub, mailbox: Mailbox, now: int) -> list[Effect]:
    """A mailbox is dropped with what waits in it, which is counted."""
    hub.tally.mailbox_dropped += mailbox.waiting(now)
    hub.streams.forgotten.add(mailbox.name)
    hub.streams.mailboxes.pop(mailbox.name, None)
    for consumer in list(mailbox.subscription.consumers):
        leave(hub, consumer, "dropped", now, is_told=False)
    hub.dispatcher.remove(mailbox.subscription)
    entry = journal.entry(Kind.STREAM_DELETED, mailbox, Body(), now)
    return [Append(entry, journal.UNWATCHED)]
