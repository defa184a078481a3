"""Pattern subscriptions: create, join and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect
from signalhub.core.limits.quotas import Resource, holder_of
from signalhub.core.operations import operated
from signalhub.core.patterns.pattern import Pattern, PatternConsumer
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.subscriptions.consumers import EXCLUSIVE
from signalhub.core.subscriptions.join import (
    MODES,
    NAME_CHARS_MAX,
    changed,
    check_may_consume,
    check_may_join,
    check_options,
    differing,
)
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal
from signalhub.wire.names import (
    WILDCARD_LEVELS_MAX,
    has_wildcard,
    is_subscribable,
    is_topic,
    levels_match,
    topic_matches,
)

if TYPE_CHECKING:
    from signalhub.core.patterns.manage import PatternManagement
    from signalhub.core.patterns.patterns import Patterns
    from signalhub.core.subscriptions.join import Subscriptions
    from signalhub.wire.entry import SubscriptionDefinitionBody

# Losses that an answer names.
_LOSSES_MAX = 100


class PatternJoins:
    """Serves `hub:subscribe` with a pattern."""

    def __init__(
        self, patterns: Patterns, subscriptions: Subscriptions, management: PatternManagement
    ) -> None:
        self.patterns = patterns
        self.subscriptions = subscriptions
        self.management = management

    def subscribe(
        self,
        session: Session,
        message: Envelope,
        request: requests.SubscribeRequest,
        address: str,
        now: int,
    ) -> list[Effect]:
        """Create a pattern subscription if it is new, and join it."""
        text, name = request.pattern, request.subscription
        assert text is not None
        check_pattern(text)
        if name is None:
            raise refusals.structural(
                "payload.pattern needs payload.subscription; a plain subscription has the wildcard"
                " in payload.topic"
            )
        if request.topic:
            raise refusals.structural("the payload needs either topic or pattern")
        for member, given in (("subscription", name), ("consumer", request.consumer)):
            if given is None:
                continue
            if not given or len(given) > NAME_CHARS_MAX or not given.isprintable():
                raise refusals.structural(
                    f"payload.{member} must have 1 to {NAME_CHARS_MAX} printable characters"
                )
        if request.mode is not None and request.mode not in MODES:
            raise refusals.structural(f"payload.mode must be one of {', '.join(MODES)}")
        last = _last_of(request.start)
        found = self.patterns.index.find(text, name)
        _check_may_consume(session, text, name, "" if found is None else found.definition.owner)
        _check_options(session, text, request)
        joining = PatternJoin(self, session, message, request, address)
        if found is not None:
            if found.is_gone or found.deleting is not None:
                raise refusals.unknown_subscription(text, name)
            if found.making is not None:
                return joining.wait(found, found.making)
            return joining.join(found, now)
        return joining.make(text, name, last, now)


class PatternJoin:
    """A request to consume a pattern, until it is answered."""

    def __init__(
        self,
        joins: PatternJoins,
        session: Session,
        message: Envelope,
        request: requests.SubscribeRequest,
        address: str,
    ) -> None:
        self._joins = joins
        self._session = session
        self._message = message
        self._request = request
        self._address = address

    def make(self, text: str, name: str, last: int | None, now: int) -> list[Effect]:
        """Create and join; answered once the entry is on disk."""
        patterns, subscriptions = self._joins.patterns, self._joins.subscriptions
        streams, settings = subscriptions.streams, subscriptions.settings
        check_may_join(self._session, settings.subscriptions_max)
        subscriptions.storage.check()
        if streams.count_subscriptions() >= settings.dispatch.limit:
            raise refusals.too_many_subscriptions(settings.dispatch.limit)
        holder = holder_of(self._session)
        patterns.check_room(text, holder)
        subscriptions.quotas.check(Resource.SUBSCRIPTIONS, holder)
        other = patterns.index.overlapping(text, name)
        if other is not None:
            raise refusals.pattern_conflict(name, f"the pattern {other.text!r}")
        levels = text.split("/")
        for topic in streams.subscribed():
            if name in topic.subscriptions and levels_match(levels, topic.name.split("/")):
                raise refusals.pattern_conflict(name, f"the topic {topic.name!r}")
        defaults = subscriptions.defaults(name, self._request.mode or EXCLUSIVE, 0)
        definition = changed(defaults, self._request)
        definition.owner = self._session.allowance.subject
        definition.pattern, definition.last = text, last
        positions = self._request.positions or {}
        pattern, effects = patterns.make(definition, holder, positions, now)
        assert pattern.making is not None
        return [*effects, *self.wait(pattern, pattern.making)]

    def wait(self, pattern: Pattern, making: Append) -> list[Effect]:
        """Join once the pattern is on disk, and topics that hold messages have their parts."""

        def made(offset: int, now: int) -> list[Effect]:
            if pattern.filled is not None:
                pattern.filled.append(filled)
                return []
            return filled(now)

        def filled(now: int) -> list[Effect]:
            if self._session.state is not SessionState.CONNECTED:
                return []
            try:
                if pattern.is_gone or pattern.deleting is not None:
                    raise refusals.unknown_subscription(pattern.text, pattern.name)
                return self.join(pattern, now)
            except Refusal as refusal:
                return self._refuse(refusal, now)

        making.follow(made, self._refuse)
        return []

    def join(self, pattern: Pattern, now: int) -> list[Effect]:
        """Add this session as a consumer."""
        joins, request, session = self._joins, self._request, self._session
        subscriptions, definition = joins.subscriptions, pattern.definition
        owner, allowance = definition.owner, session.allowance
        _check_may_consume(session, pattern.text, pattern.name, owner)
        if request.mode is not None and request.mode != definition.mode:
            raise refusals.subscription_conflict(pattern.name, definition.mode)
        name = request.consumer or self._address
        is_managed = not allowance.consumes(pattern.text, pattern.name, owner)
        held = pattern.named(name)
        if held is None or held.session is not session:
            check_may_join(session, subscriptions.settings.subscriptions_max)
        others = [one for one in pattern.consumers if one is not held]
        if definition.mode == EXCLUSIVE and others:
            raise refusals.subscription_busy(pattern.name, others[0].name)
        if held is not None and held.session.allowance.subject != allowance.subject:
            if not allowance.may_manage(pattern.text, owner):
                raise refusals.unauthorized("manage", pattern.text)
            is_managed |= allowance is not EVERYTHING and not allowance.owns(owner)
        # The window belongs to the consumer, all other options to the subscription.
        update = msgspec.structs.replace(changed(definition, request), window=definition.window)
        kept: list[str] = []
        if update != definition and not allowance.may_manage(pattern.text, owner):
            kept, update = differing(definition, update), definition
        if update != definition and not allowance.owns(owner):
            is_managed |= bool(owner) or allowance is not EVERYTHING
        effects: list[Effect] = []
        if is_managed:
            # What cannot be recorded is not done.
            subscriptions.storage.check()
            over = f"{pattern.text}/{pattern.name}"
            effects += operated(session, self._message.type, "manage", over, now)
        if update != definition:
            effects += self._redefine(pattern, update, now)
        if held is not None:
            is_told = held.session is not session
            effects += subscriptions.leave(held, "taken_over", now, is_told=is_told)
        consumer = PatternConsumer(
            "sub-" + subscriptions.ids.next().decode(),
            name,
            session,
            self._address,
            pattern,
            subscriptions.dispatcher,
            window=request.window or update.window,
            bytes_max=subscriptions.settings.dispatch.window_bytes,
            auto_ack=update.auto_ack,
        )
        session.joined(consumer)
        pattern.consumers.append(consumer)
        pattern.idle_since_ms = 0
        pattern.is_dirty = True
        lag = joins.patterns.queue_parts(pattern, now)
        payload = wire.encode(self._welcome(pattern, consumer, lag, kept))
        replies = subscriptions.replies
        return [*effects, replies.reply(session, self._message, "hub:subscribed", payload, now)]

    def _redefine(
        self, pattern: Pattern, update: SubscriptionDefinitionBody, now: int
    ) -> list[Effect]:
        self._joins.subscriptions.storage.check()
        redefined = self._joins.patterns.redefine(pattern, update, now)
        given = msgspec.structs.replace(self._request, window=None)
        self._joins.management.redefine_parts(pattern, given, None)
        return [redefined]

    def _welcome(
        self, pattern: Pattern, consumer: PatternConsumer, lag: int, kept: list[str]
    ) -> dict[str, object]:
        payload: dict[str, object] = {
            "topic": pattern.text,
            "pattern": pattern.text,
            "subscription": pattern.name,
            "subscriptionId": consumer.id,
            "mode": pattern.definition.mode,
            "topics": len(pattern.members),
            "lag": lag,
            "recovered": True,
            "idleExpiryMs": pattern.definition.idle_expiry_ms,
        }
        losses = self._losses()
        if losses:
            payload |= {"recovered": False, "lost": losses}
        return payload | {"kept": kept} if kept else payload

    def _losses(self) -> list[dict[str, object]]:
        """Where messages after the given positions are gone."""
        topics, losses = self._joins.subscriptions.streams.topics, []
        for name, resume in (self._request.positions or {}).items():
            topic = topics.get(name)
            if topic is None or (resume.epoch is not None and resume.epoch != topic.epoch):
                continue
            if resume.seq + 1 < topic.first:
                lost: dict[str, object] = {
                    "topic": name,
                    "lostFrom": int(resume.seq) + 1,
                    "lostTo": topic.first - 1,
                }
                losses.append(lost)
                if len(losses) == _LOSSES_MAX:
                    break
        return losses

    def _refuse(self, refusal: Refusal, now: int) -> list[Effect]:
        if self._session.state is not SessionState.CONNECTED:
            return []
        replies = self._joins.subscriptions.replies
        return [replies.refuse(self._session, self._message, refusal, now)]


def check_pattern(text: str) -> None:
    """Refuse what is no pattern of topics."""
    if not is_topic(text) or not text.isprintable() or not is_subscribable(text):
        raise refusals.structural(
            "payload.pattern must be a topic with the wildcards `+` for one level, or `#` as the"
            " last one"
        )
    if not has_wildcard(text):
        raise refusals.structural("payload.pattern has no wildcard; name a topic in payload.topic")
    if text.count("/") >= WILDCARD_LEVELS_MAX:
        raise refusals.too_many_levels(WILDCARD_LEVELS_MAX)


def _check_may_consume(session: Session, text: str, name: str, owner: str) -> None:
    if session.allowance is EVERYTHING:
        return
    if not session.allowance.may_subscribe(text):
        raise refusals.unauthorized("subscribe", text)
    check_may_consume(session, text, name, owner)


def _check_options(session: Session, text: str, request: requests.SubscribeRequest) -> None:
    check_options(session, text, request)
    check_letters(text, request)
    if request.resume is not None:
        raise refusals.structural(
            "payload.resume is for one topic; a pattern has payload.positions, by topic"
        )


def check_letters(text: str, given: requests.SubscriptionOptions) -> None:
    """Refuse a topic of dead letters that would come back to the subscription."""
    name = given.dead_letter
    if name is not None and topic_matches(text, name) and not name.endswith(".dlq"):
        raise refusals.structural(
            "payload.deadLetter must not match payload.pattern, unless it ends in `.dlq`"
        )


def _last_of(start: requests.Start | None) -> int | None:
    """How many of a topic's messages a new pattern begins with; `None` for all."""
    if start is None or start == "earliest":
        return None
    if start == "latest":
        return 0
    if isinstance(start, requests.Point) and start.seq is start.time is None and start.last:
        return int(start.last)
    raise refusals.structural(
        "a pattern begins at `earliest`, `latest` or an object with last; hub:seek takes a time,"
        " too"
    )
