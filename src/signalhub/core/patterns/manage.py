"""Pattern subscriptions: show, change, pause, seek and delete all parts together.

Requests that name a pattern come here, those that name a topic go to the subscription of that
topic, which may be a part of a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect
from signalhub.core.limits.scans import Scans, Steps
from signalhub.core.operations import operated_unless_owned
from signalhub.core.patterns.join import check_letters, check_pattern
from signalhub.core.patterns.patterns import CHANGE, Patterns, Work
from signalhub.core.sessions.session import Session
from signalhub.core.streams.catalog import check_may_read
from signalhub.core.streams.streams import Topic
from signalhub.core.subscriptions.join import changed, check_options, find_start
from signalhub.core.subscriptions.manage import PAGE_MAX, Management, describe, moved, sought
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import SENT, WAITING
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.patterns.pattern import Pattern
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.core.subscriptions.join import Subscriptions


class _Which(msgspec.Struct, gc=False):
    """Does a request name a pattern?"""

    pattern: msgspec.Raw = msgspec.Raw(b"")


_decode_which = msgspec.json.Decoder(_Which).decode


class PatternManagement:
    """Shows and changes pattern subscriptions on request."""

    def __init__(
        self,
        patterns: Patterns,
        subscriptions: Subscriptions,
        management: Management,
        streams: Streams,
        dispatcher: Dispatcher,
        scans: Scans,
        storage: LogState,
        replies: Replies,
    ) -> None:
        self._patterns = patterns
        self._subscriptions = subscriptions
        self._management = management
        self._streams = streams
        self._dispatcher = dispatcher
        self._scans = scans
        self._storage = storage
        self._replies = replies

    def handlers(self) -> dict[str, Handler]:
        """Those of subscriptions; a request with a pattern is served here."""
        one = self._management.handlers()
        every: dict[str, Handler] = {
            "hub:sub_info": self.info,
            "hub:sub_update": self.update,
            "hub:sub_pause": self.pause,
            "hub:sub_resume": self.resume,
            "hub:sub_delete": self.delete,
            "hub:list_subs": self.list_subscriptions,
            "hub:seek": self.seek,
        }
        # What is about single positions is about one topic.
        found = {
            type: _either(every[type], handler) if type in every else handler
            for type, handler in one.items()
        }
        return found | {"hub:list_subs": self.list_subscriptions}

    def _named(self, text: str, name: str, *, with_deleted: bool = False) -> Pattern:
        check_pattern(text)
        found = self._patterns.index.find(text, name)
        if found is not None and found.is_preparing:
            found = None
        is_ending = found is not None and (found.is_gone or found.deleting is not None)
        if found is None or (is_ending and not with_deleted):
            raise refusals.unknown_subscription(text, name)
        return found

    def _changed(self, session: Session, message: Envelope, verb: str) -> Pattern:
        """The pattern to change: its owner may, others need a permission over all of it."""
        request = requests.parse(requests.PatternNameRequest, message.payload)
        text, name, allowance = request.pattern, request.subscription, session.allowance
        check_pattern(text)
        if allowance is not EVERYTHING:
            found = self._patterns.index.find(text, name)
            owner = "" if found is None else found.definition.owner
            may = allowance.may_delete if verb == "delete" else allowance.may_manage
            # That there is none may be told to those who could list it.
            is_told = found is None and allowance.may_subscribe(text)
            if not is_told and not may(text, owner):
                raise refusals.unauthorized(verb, text)
        return self._named(text, name, with_deleted=verb == "delete")

    # Showing.

    def info(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_info` of a pattern: its parts added up."""
        request = requests.parse(requests.PatternNameRequest, message.payload)
        check_pattern(request.pattern)
        check_may_read(session, request.pattern)
        pattern = self._named(request.pattern, request.subscription)
        return self._shown(session, message, pattern, now)

    def _shown(
        self, session: Session, message: Envelope, pattern: Pattern, now: int
    ) -> list[Effect]:
        def steps() -> Steps:
            facts: dict[str, object] = {}
            yield from _added_up(pattern, now, facts)
            return "hub:sub_info_response", facts

        size = len(pattern.members)
        return self._scans.run(session, message, steps(), now, size=size)

    def list_subscriptions(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:list_subs`: of a pattern its parts, with `patterns` all patterns."""
        request = requests.parse_or_empty(requests.ListSubscriptionsRequest, message.payload)
        if request.pattern is None and not request.patterns:
            return self._management.list_subscriptions(session, message, now)
        limit = requests.page(request.limit, PAGE_MAX)
        offset = max(0, int(request.offset or 0))
        text = request.pattern
        if text is not None:
            check_pattern(text)
            check_may_read(session, text)
        found: list[Pattern | Subscription] = []
        for pattern in self._patterns.index:
            if pattern.is_gone or (text is not None and pattern.text != text):
                continue
            if text is None and not session.allowance.may_subscribe(pattern.text):
                continue
            found += [pattern] if text is None else pattern.members.values()

        def steps() -> Steps:
            rows: list[dict[str, object]] = []
            for one in found[offset : offset + limit]:
                facts: dict[str, object] = {}
                if isinstance(one, Subscription):
                    facts = describe(one, one.oldest_ms(), now)
                    yield 1
                else:
                    yield from _added_up(one, now, facts)
                rows.append(facts)
            return "hub:sub_info_response", {
                "subscriptions": rows,
                "offset": offset,
                "limit": limit,
                "hasMore": len(found) > offset + limit,
            }

        return self._scans.run(session, message, steps(), now, size=len(found))

    # Changing.

    def pause(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_pause`: no part sends until the pattern is resumed."""
        return self._set_paused(session, message, now, is_paused=True)

    def resume(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_resume`; parts that were paused one by one stay paused."""
        return self._set_paused(session, message, now, is_paused=False)

    def _set_paused(
        self, session: Session, message: Envelope, now: int, *, is_paused: bool
    ) -> list[Effect]:
        pattern = self._changed(session, message, "manage")
        self._storage.check()
        append = self._patterns.pause(pattern, now, is_paused=is_paused)
        answer = self._end_with_info(session, message, pattern)
        append.follow(lambda offset, later: answer(None, later), answer)
        return [*_record(session, message, "manage", pattern, now), append]

    def _end_with_info(
        self, session: Session, message: Envelope, pattern: Pattern
    ) -> Callable[[Refusal | None, int], list[Effect]]:
        """Answer with the state, or with the reason why it was not done."""

        def ended(refusal: Refusal | None, now: int) -> list[Effect]:
            if session.is_over:
                return []
            try:
                if refusal is not None:
                    raise refusal
                return self._shown(session, message, pattern, now)
            except Refusal as found:
                return [self._replies.refuse(session, message, found, now)]

        return ended

    def update(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_update`: change the options of all parts, and of those to come."""
        pattern = self._changed(session, message, "manage")
        given = requests.parse(requests.SubscriptionOptions, message.payload)
        check_options(session, pattern.text, given)
        check_letters(pattern.text, given)
        self._storage.check()
        definition = changed(pattern.definition, given)
        append = self._patterns.redefine(pattern, definition, now)
        before = [(one, one.window, one.auto_ack) for one in pattern.consumers]
        for one, _, _ in before:
            if given.window is not None:
                one.grant(definition.window)
            one.auto_ack = definition.auto_ack
        self.redefine_parts(pattern, given, self._end_with_info(session, message, pattern))

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            for one, window, auto_ack in before:
                one.grant(window)
                one.auto_ack = auto_ack
            return []

        append.follow(lambda offset, later: [], undo)
        return [*_record(session, message, "manage", pattern, now), append]

    def redefine_parts(
        self,
        pattern: Pattern,
        given: requests.SubscriptionOptions,
        ended: Callable[[Refusal | None, int], list[Effect]] | None,
    ) -> None:
        """Change the given options of all parts, in slices."""
        work = Work(ended or (lambda refusal, now: []))

        def steps() -> Iterator[int]:
            for part in list(pattern.members.values()):
                yield CHANGE
                if part.is_deleted or part.is_deleting:
                    continue
                definition = changed(part.definition, given)
                # Only the whole expires.
                definition.idle_expiry_ms = 0
                if definition != part.definition:
                    work.append(self._subscriptions.redefine(part, definition, self._patterns.now))
                for share in part.consumers:
                    share.auto_ack = definition.auto_ack

        self._patterns.begin(work, steps())

    def delete(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_delete`: delete the pattern and its parts, and nothing else."""
        pattern = self._changed(session, message, "delete")
        self._storage.check()
        facts: dict[str, object] = {
            "topic": pattern.text,
            "pattern": pattern.text,
            "subscription": pattern.name,
            "mode": pattern.definition.mode,
            "topics": len(pattern.members),
            "deleted": True,
        }
        answer = self._replies.answer(session, message, "hub:sub_info_response", facts)

        def ended(refusal: Refusal | None, later: int) -> list[Effect]:
            return answer.committed(0, later) if refusal is None else answer.refused(refusal, later)

        pattern.awaiting.append(ended)
        if pattern.is_gone or pattern.deleting is not None:
            # It is answered with those that asked before.
            return []
        append = self._patterns.delete(pattern, now)
        return [*_record(session, message, "delete", pattern, now), append]

    def seek(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:seek`: move all parts; topics without a part get one if they hold messages."""
        pattern = self._changed(session, message, "manage")
        request = requests.parse(requests.SeekRequest, message.payload)
        to = request.to
        check_target(to)
        self._storage.check()
        facts: dict[str, object] = {
            "topic": pattern.text,
            "pattern": pattern.text,
            "topics": 0,
            "willReplay": 0,
            "willSkip": 0,
        }
        answer = self._replies.answer(session, message, "hub:sought", facts)

        def ended(refusal: Refusal | None, later: int) -> list[Effect]:
            return answer.committed(0, later) if refusal is None else answer.refused(refusal, later)

        work = Work(ended)
        seeking = _Seek(self, pattern, to, work, facts, is_dry=bool(request.dry_run))
        self._patterns.begin(work, seeking.steps())
        if request.dry_run:
            return []
        return [*_record(session, message, "manage", pattern, now)]

    # What a seek needs.

    @property
    def now(self) -> int:
        return self._patterns.now

    def part_for(
        self, pattern: Pattern, topic: Topic, floor: int, work: Work, now: int
    ) -> Subscription | None:
        """The part on a topic, made if there is none; one that has to wait begins at the floor."""
        part = pattern.members.get(topic.name)
        if part is None:
            begin = pattern.floor_of(topic)
            made = self._patterns.make_part(pattern, topic, begin, now)
            if made is None:
                pattern.postpone(topic, floor)
                return None
            work.append(made)
            part = pattern.members[topic.name]
        return part

    def lacking(self, pattern: Pattern) -> Iterator[Topic | None]:
        return self._patterns.lacking(pattern)

    def move(self, part: Subscription, floor: int, now: int) -> Append:
        """Move one part."""
        return sought(self._dispatcher, part, floor, now)


class _Seek:
    """Moves the parts of a pattern, one after the other."""

    def __init__(
        self,
        management: PatternManagement,
        pattern: Pattern,
        to: requests.Start,
        work: Work,
        facts: dict[str, object],
        *,
        is_dry: bool,
    ) -> None:
        self._management = management
        self._pattern = pattern
        self._to = to
        self._work = work
        self._facts = facts
        self._is_dry = is_dry
        self._sums = [0, 0, 0]

    def steps(self) -> Iterator[int]:
        pattern = self._pattern
        for part in list(pattern.members.values()):
            yield CHANGE
            topic = part.stream
            if not part.is_deleted and not part.is_deleting:
                assert isinstance(topic, Topic)
                self._seek(topic)
        for topic_or_none in self._management.lacking(pattern):
            yield 1 if topic_or_none is None else 2 * CHANGE
            if topic_or_none is not None and not pattern.is_gone:
                self._seek(topic_or_none)

    def _seek(self, topic: Topic) -> None:
        work = self._work
        work.begin()
        effects = find_start(topic, self._to, self._found(topic), self._unread, self._now)
        work.made += effects

    @property
    def _now(self) -> int:
        return self._management.now

    def _unread(self, now: int) -> list[Effect]:
        return self._work.end(refusals.storage_unreadable(), now)

    def _found(self, topic: Topic) -> Callable[[int, int], list[Effect]]:
        def then(floor: int, now: int) -> list[Effect]:
            pattern, work = self._pattern, self._work
            part = pattern.members.get(topic.name)
            if topic.is_deleting or pattern.is_gone or (part is not None and part.is_deleted):
                return work.end(None, now)
            if part is None and self._is_dry:
                begin = pattern.floor_of(topic)
                replayed, skipped = max(0, begin - floor), max(0, floor - begin)
            else:
                part = self._management.part_for(pattern, topic, floor, work, now)
                if part is None:
                    return work.end(None, now)
                replayed, skipped = moved(part.position, floor, topic.head)
            for at, more in enumerate((1, replayed, skipped)):
                self._sums[at] += more
            names = ("topics", "willReplay", "willSkip")
            self._facts |= dict(zip(names, self._sums, strict=True))
            if not self._is_dry:
                assert part is not None
                work.append(self._management.move(part, floor, now))
            made, work.made = work.made, []
            return [*made, *work.end(None, now)]

        return then


def check_target(to: requests.Start) -> None:
    """Refuse what is no target of a seek over all topics."""
    if to in ("earliest", "latest"):
        return
    if isinstance(to, requests.Point) and (to.seq, to.epoch) == (None, None):
        given = [one for one in (to.last, to.time) if one is not None]
        if len(given) == 1:
            return
    raise refusals.structural(
        "a pattern is sought to `earliest`, `latest` or an object with one of last and time; seek"
        " one of its topics to a position"
    )


def _either(every: Handler, one: Handler) -> Handler:
    """A handler of requests about a pattern or about one topic."""

    def handle(session: Session, message: Envelope, now: int) -> list[Effect]:
        if b'"pattern"' in bytes(message.payload):
            try:
                given = bytes(_decode_which(message.payload).pattern)
            except requests.UNFIT as error:
                raise requests.unfit(error) from None
            if given not in (b"", b"null"):
                return every(session, message, now)
        return one(session, message, now)

    return handle


def _record(
    session: Session, message: Envelope, verb: str, pattern: Pattern, now: int
) -> list[Append]:
    over, owner = f"{pattern.text}/{pattern.name}", pattern.definition.owner
    return operated_unless_owned(session, message.type, verb, over, owner, now)


_ADDED = (
    "lag",
    "inFlight",
    "waitingRetry",
    "exhausted",
    "settledAboveFloor",
    "parked",
    "deadLettered",
    "redelivered",
    "lost",
)


def _added_up(pattern: Pattern, now: int, facts: dict[str, object]) -> Iterator[int]:
    """Fill in what `hub:sub_info` shows of a pattern."""
    sums = dict.fromkeys(_ADDED, 0)
    lag_s: float | None = 0.0
    blocked = behind = 0
    held_up: object = None
    if pattern.held_up is not None:
        # There is no single topic, and nothing of it has been sent.
        held_up = {"seq": 0, "code": pattern.held_up.code, "reason": pattern.held_up.message}
    for part in list(pattern.members.values()):
        yield 2
        position, window, stats = part.position, part.window, part.stats
        lag = part.lag
        for name, value in zip(
            _ADDED,
            (
                lag,
                window.count(SENT),
                window.count(WAITING),
                window.exhausted,
                position.above.count,
                len(position.parked),
                position.dead_lettered,
                stats.redelivered,
                stats.lost,
            ),
            strict=True,
        ):
            sums[name] += value
        blocked += part.is_blocked
        behind += lag > 0
        if part.backlog.obstacle is not None and held_up is None:
            held_up = describe(part, None, now)["heldUp"]
        oldest_ms = part.oldest_ms() if lag else now
        if lag_s is not None:
            lag_s = None if oldest_ms is None else max(lag_s, max(0, now - oldest_ms) / 1000)
    definition = pattern.definition
    facts |= {
        "topic": pattern.text,
        "pattern": pattern.text,
        "subscription": pattern.name,
        "mode": definition.mode,
        "consumers": [
            {
                "consumer": one.name,
                "subscriptionId": one.id,
                "session": one.session.id,
                "inFlight": one.flights,
                "window": one.window,
            }
            for one in pattern.consumers
        ],
        "topics": len(pattern.members),
        "topicsBehind": behind,
        "topicsBlocked": blocked,
        **sums,
        "lagSeconds": lag_s,
        "paused": pattern.is_paused,
        "blocked": blocked > 0,
        "heldUp": held_up,
        "window": definition.window,
        "strict": definition.strict,
        "ackTimeoutMs": definition.ack_timeout_ms,
        "maxDeliveries": definition.max_deliveries,
        "backoffMs": definition.backoff_ms,
        "backoffCapMs": definition.backoff_cap_ms,
        "autoAck": definition.auto_ack,
        "poison": definition.poison,
        "deadLetter": definition.dead_letter,
        "ratePerSecond": definition.rate_s,
        "idleExpiryMs": definition.idle_expiry_ms,
        "backlogMax": definition.backlog_max,
        "backlogPolicy": definition.backlog_policy or None,
    }
