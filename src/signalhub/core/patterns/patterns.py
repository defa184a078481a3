"""All pattern subscriptions: their parts, what is done to many of them, and what survives.

A part is made before the first message that needs it: whoever publishes to a topic that was not
compared with the present patterns appends the entries of new parts before the message. Topics that
hold messages already get theirs in slices. So a topic without its part has had no message since the
pattern was made, however often the hub is killed meanwhile.

Parts count like other subscriptions. While there may be no more of them the publisher goes on, the
pattern is held up, and what is missing is made from where it would have begun once there is room.

What is done to all parts is done in slices, too, and answered once all of it is on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from signalhub.core import refusals
from signalhub.core.effects import Append, Effect, Note
from signalhub.core.limits.quotas import Holder, Quotas, Resource
from signalhub.core.patterns.pattern import Pattern
from signalhub.wire.entry import CursorBody, Kind, StoredEntry, SubscriptionDefinitionBody
from signalhub.wire.errors import Refusal, unworded
from signalhub.wire.names import levels_match

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.patterns.index import PatternIndex
    from signalhub.core.requests import ResumePoint
    from signalhub.core.streams.streams import Streams, Topic
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.core.subscriptions.join import Subscriptions
    from signalhub.core.subscriptions.subscription import Subscription
    from signalhub.settings.model import Settings

# What one turn may cost; looking at a topic costs 1.
SLICE: Final = 500
# What a change of one part costs.
CHANGE: Final = 5
# Parts that the watchdog looks at each second.
_WATCHED: Final = 1_000

Ended = Callable[[Refusal | None, int], list[Effect]]


class Work:
    """Something that is done to many topics, in slices; `ended` is called once all is on disk."""

    def __init__(self, ended: Ended) -> None:
        self.steps: Iterator[int] = iter(())
        # Effects that the present turn has not returned yet.
        self.made: list[Effect] = []
        self._ended = ended
        self._pending = 0
        self._refusal: Refusal | None = None
        self.is_done = False

    def append(self, append: Append) -> None:
        """Write an entry; the work is not over before it is on disk."""
        self.begin()
        append.follow(self._written, self._refused)
        self.made.append(append)

    def begin(self) -> None:
        """Wait for something that reports its end with `end`."""
        self._pending += 1

    def end(self, refusal: Refusal | None, now: int) -> list[Effect]:
        """What was waited for is over."""
        self._pending -= 1
        self._refusal = self._refusal or refusal
        return self.finish(now)

    def fail(self, refusal: Refusal) -> None:
        """It cannot be done completely."""
        self._refusal = self._refusal or refusal

    def finish(self, now: int) -> list[Effect]:
        """Report the end, if nothing is left to do or to wait for."""
        if not self.is_done or self._pending:
            return []
        ended, self._ended = self._ended, _nothing
        return ended(self._refusal, now)

    def _written(self, offset: int, now: int) -> list[Effect]:
        return self.end(None, now)

    def _refused(self, refusal: Refusal, now: int) -> list[Effect]:
        return self.end(refusal, now)


def _nothing(refusal: Refusal | None, now: int) -> list[Effect]:
    return []


class Patterns:
    """Manages pattern subscriptions."""

    def __init__(
        self,
        index: PatternIndex,
        streams: Streams,
        subscriptions: Subscriptions,
        dispatcher: Dispatcher,
        quotas: Quotas,
        storage: LogState,
        settings: Settings,
    ) -> None:
        self.index = index
        self._streams = streams
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._quotas = quotas
        self._storage = storage
        self._watches = settings.dispatch.heartbeat_ms > 0
        self._parts_max = settings.dispatch.limit
        self._per_topic = settings.limits.patterns_per_topic
        self._per_topic_of_one = max(1, int(self._per_topic * settings.limits.identity_share))
        self._work: deque[Work] = deque()
        self.now = 0
        # Parts that the watchdog has not looked at in this round.
        self._unwatched: list[Subscription] = []

    # Parts.

    def fit(self, topic: Topic, now: int) -> list[Append]:
        """Somebody publishes to a topic: make the parts that it lacks, before the message."""
        if topic.fitted == self.index.version:
            return []
        topic.fitted = self.index.version
        appends = [
            self.make_part(pattern, topic, pattern.floor_of(topic), now)
            for pattern in self.index.matching(topic)
            if not pattern.is_gone and topic.name not in pattern.members
        ]
        return [one for one in appends if one is not None]

    def make_part(self, pattern: Pattern, topic: Topic, floor: int, now: int) -> Append | None:
        """Make the part of a pattern on a topic; `None` if it has to wait."""
        pattern.held_up = self._obstacle(pattern)
        if pattern.held_up is not None:
            self._forget_gone(pattern)
            pattern.postpone(topic, floor)
            return None
        definition = pattern.part_definition(floor)
        part, append = self._subscriptions.make(topic, definition, pattern.holder, now)
        pattern.take(part)

        def not_made(refusal: Refusal, later: int) -> list[Effect]:
            topic.fitted = -1
            pattern.postpone(topic, floor)
            return []

        append.follow(lambda offset, later: [], not_made)
        self._dispatcher.wake(part)
        return append

    def _forget_gone(self, pattern: Pattern) -> None:
        """Topics come and go while a pattern waits; those that are gone need no memory."""
        topics, waiting = self._streams.topics, pattern.waiting
        if len(waiting) > 2 * len(topics):
            pattern.waiting = {
                name: begin
                for name, begin in waiting.items()
                if name in topics and topics[name].id == begin[0]
            }

    def _obstacle(self, pattern: Pattern) -> Refusal | None:
        """Why it may have no more parts."""
        if self._streams.count_subscriptions() >= self._parts_max:
            return refusals.too_many_subscriptions(self._parts_max)
        return self._quotas.refusal(Resource.SUBSCRIPTIONS, pattern.holder)

    def _unfilled(self, pattern: Pattern) -> Iterator[Topic | None]:
        """The topics whose part is due, and `None` for others that were examined."""
        if pattern.definition.last != 0:
            yield from self.lacking(pattern)
            return
        for name, (topic_id, _) in list(pattern.waiting.items()):
            topic = self._streams.topics.get(name)
            if topic is None or topic.id != topic_id or name in pattern.members:
                pattern.waiting.pop(name, None)
                yield None
            else:
                yield None if topic.is_deleting else topic

    def lacking(self, pattern: Pattern) -> Iterator[Topic | None]:
        """The topics with messages that lack their part; `None` for others that were examined."""
        for name in self._streams.names():
            topic = self._streams.topics.get(name)
            if (
                topic is None
                or topic.is_deleting
                # The next message to a topic that was compared does not ask for parts.
                or (topic.head < topic.first and topic.fitted != self.index.version)
                or name in pattern.members
                or topic.is_letters
                or not levels_match(pattern.levels, name.split("/"))
            ):
                yield None
            else:
                yield topic

    def fill(self, pattern: Pattern) -> None:
        """Make the parts on topics that hold messages."""
        pattern.needs_filling = False
        pattern.filled = []

        def ended(refusal: Refusal | None, now: int) -> list[Effect]:
            pattern.needs_filling |= refusal is not None
            filled, pattern.filled = pattern.filled or [], None
            return [effect for one in filled for effect in one(now)]

        work = Work(ended)

        def steps() -> Iterator[int]:
            for topic in self._unfilled(pattern):
                if pattern.is_gone:
                    return
                if topic is not None:
                    made = self.make_part(pattern, topic, pattern.floor_of(topic), self.now)
                    if made is None:
                        return
                    work.append(made)
                yield 1 if topic is None else CHANGE

        self.begin(work, steps())

    # Work in slices.

    @property
    def has_work(self) -> bool:
        """Is there anything to do in the next turn?"""
        return bool(self._work)

    def begin(self, work: Work, steps: Iterator[int]) -> None:
        """Do something in slices, after what was begun before."""
        work.steps = steps
        self._work.append(work)

    def turn(self, now: int) -> list[Effect]:
        """Do the next slice."""
        self.now = now
        left = SLICE
        effects: list[Effect] = []
        while self._work and left > 0:
            work = self._work[0]
            try:
                while left > 0:
                    left -= next(work.steps)
            except StopIteration:
                work.is_done = True
            except Refusal as refusal:
                work.fail(refusal)
                work.is_done = True
            except Exception as error:
                # It must end, or it would fail again in every turn.
                effects.append(Note("work on a pattern failed", {}, unworded(error)))
                work.fail(refusals.failed())
                work.is_done = True
            made, work.made = work.made, []
            effects += made
            if work.is_done:
                self._work.popleft()
                effects += work.finish(now)
        return effects

    def tick(self, now: int) -> list[Effect]:
        """Once a second: expire, go on with what the log refused, and look for lost wakes."""
        self.now = now
        if self._storage.fault is not None or not len(self.index):
            return []
        effects: list[Effect] = []
        for pattern in self.index:
            if pattern.is_gone and not pattern.is_ending:
                self.end(pattern)
            elif self._may_fill(pattern):
                self.fill(pattern)
            elif pattern.is_abandonable and _is_abandoned(pattern, now):
                facts: dict[str, object] = {"pattern": pattern.text, "subscription": pattern.name}
                effects.append(Note("a pattern subscription without consumers expired", facts))
                effects.append(self.delete(pattern, now))
            for consumer in pattern.consumers:
                consumer.serve()
        self._watch(now)
        return effects

    def _may_fill(self, pattern: Pattern) -> bool:
        """Are there parts to be made, and can they be?"""
        if not pattern.needs_filling or pattern.filled is not None or pattern.is_gone:
            return False
        if pattern.making is not None:
            return False
        if pattern.held_up is not None:
            if self._work:
                # If many wait for room, they do not search all topics for their parts at once.
                return False
            pattern.held_up = self._obstacle(pattern)
        return pattern.held_up is None

    def _watch(self, now: int) -> None:
        """Wake parts that should have had a pass."""
        if not self._watches:
            return
        if not self._unwatched:
            self._unwatched = [
                part for one in self.index if one.consumers for part in one.members.values()
            ]
        for _ in range(min(_WATCHED, len(self._unwatched))):
            part = self._unwatched.pop()
            pattern = part.pattern
            if part.is_deleted or pattern is None or not part.is_behind:
                continue
            if any(part in one.queue or part in one.reading for one in pattern.consumers):
                continue
            if not part.consumers.all or part.is_missing_a_pass:
                self._dispatcher.poll(part, now)

    # Patterns.

    def check_room(self, text: str, holder: Holder) -> None:
        """Refuse another pattern if there are too many, or too many that match the same topics."""
        limit = self._quotas.limits[Resource.PATTERNS].total
        if self._quotas.total(Resource.PATTERNS) >= limit:
            raise refusals.too_many_patterns(limit)
        self._quotas.check(Resource.PATTERNS, holder)
        if holder.identity and not self.index.has_room(
            text, self._per_topic_of_one, holder.identity
        ):
            raise refusals.crowded_pattern(text, self._per_topic_of_one, of_identity=True)
        if not self.index.has_room(text, self._per_topic):
            raise refusals.crowded_pattern(text, self._per_topic, of_identity=False)

    def make(
        self,
        definition: SubscriptionDefinitionBody,
        holder: Holder,
        positions: dict[str, ResumePoint],
        now: int,
    ) -> tuple[Pattern, list[Effect]]:
        """Make a pattern subscription; it is permanent once its entry is on disk.

        On topics with a position its part is made first, because the positions are not stored. If
        the hub is killed before all of them are on disk, there is no pattern, and nothing is left.
        """
        pattern = Pattern(self._streams.take_id(), definition, now)
        pattern.holder = holder
        self._add(pattern)
        pattern.needs_filling = definition.last != 0

        def made(offset: int, later: int) -> list[Effect]:
            pattern.making = None
            pattern.is_dirty = True
            pattern.defined_at = offset
            if pattern.needs_filling:
                self.fill(pattern)
            return []

        def not_made(refusal: Refusal, later: int) -> list[Effect]:
            pattern.making = None
            pattern.is_preparing = False
            if pattern.members:
                # The next tick deletes what was made for it.
                pattern.is_gone = True
            else:
                self._remove(pattern)
            return []

        entry = pattern.entry(Kind.SUBSCRIPTION_CREATED, now)
        making = pattern.making = Append(entry, made, not_made)
        if not positions:
            return pattern, [making]
        pattern.positions, pattern.is_preparing = positions, True
        self._prepare(pattern, making)
        return pattern, []

    def _prepare(self, pattern: Pattern, making: Append) -> None:
        """Make the parts on topics with a position, and then the pattern."""

        def ended(refusal: Refusal | None, now: int) -> list[Effect]:
            return making.refused(refusal, now) if refusal and pattern.is_preparing else []

        work = Work(ended)

        def steps() -> Iterator[int]:
            for name in pattern.positions:
                topic = self._resumable(pattern, name)
                if topic is not None:
                    made = self.make_part(pattern, topic, pattern.floor_of(topic), self.now)
                    if made is not None:
                        work.append(made)
                yield 1 if topic is None else CHANGE
            pattern.positions, pattern.is_preparing = {}, False
            work.made.append(making)

        self.begin(work, steps())

    def _resumable(self, pattern: Pattern, name: str) -> Topic | None:
        """The topic of this name, if a position in it can hold."""
        topic, resume = self._streams.topics.get(name), pattern.positions[name]
        if (
            topic is None
            or topic.is_deleting
            or topic.is_letters
            or name in pattern.members
            or resume.epoch not in (None, topic.epoch)
            or not levels_match(pattern.levels, name.split("/"))
        ):
            return None
        return topic

    def redefine(
        self, pattern: Pattern, definition: SubscriptionDefinitionBody, now: int
    ) -> Append:
        """Change the options of new parts at once; undone if the log rejects the entry."""
        old, pattern.definition = pattern.definition, definition

        def done(offset: int, later: int) -> list[Effect]:
            pattern.stored_definition = definition
            pattern.is_dirty = True
            return []

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            pattern.definition = old
            return []

        return Append(pattern.entry(Kind.SUBSCRIPTION_CREATED, now), done, undo)

    def pause(self, pattern: Pattern, now: int, *, is_paused: bool) -> Append:
        """Pause or resume all parts."""

        def done(offset: int, later: int) -> list[Effect]:
            pattern.is_paused = pattern.stored_pause = is_paused
            pattern.is_dirty = True
            if not is_paused:
                self.queue_parts(pattern, later)
            return []

        entry = pattern.entry(Kind.CURSOR, now, is_paused=is_paused)
        return Append(entry, done)

    def queue_parts(self, pattern: Pattern, now: int) -> int:
        """Let all parts that have something to send wait for their turns; return the total lag."""
        lag = 0
        first = pattern.consumers[0] if pattern.consumers else None
        for part in pattern.members.values():
            position = part.position
            behind = part.stream.head - position.floor
            if behind <= 0 and not position.parked:
                continue
            lag += part.lag if position.parked else behind - position.above.count
            if first is None:
                continue
            # It gets its consumers with its turn, because there may be many; what is delayed has
            # to be waited for at once.
            first.wait(part)
            if position.parked:
                pattern.attach(part)
                self._dispatcher.schedule(part, part.next_due_ms(now))
        for consumer in pattern.consumers:
            if consumer is not pattern.consumers[0]:
                consumer.queue |= pattern.consumers[0].queue
            consumer.serve()
        return lag

    def delete(self, pattern: Pattern, now: int) -> Append:
        """Delete a pattern and its parts; those who await it are told once all is on disk."""

        def done(offset: int, later: int) -> list[Effect]:
            # The collector does not look into an append: a circle through it would stay for ever.
            pattern.deleting = None
            pattern.is_gone = True
            self._streams.deleted_subscriptions.add((pattern.id, pattern.name))
            effects: list[Effect] = []
            for consumer in list(pattern.consumers):
                effects += self._subscriptions.leave(consumer, "deleted", later)
            self.end(pattern)
            return effects

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            pattern.deleting = None
            return pattern.tell(refusal, later)

        pattern.deleting = Append(pattern.entry(Kind.SUBSCRIPTION_DELETED, now), done, undo)
        return pattern.deleting

    def end(self, pattern: Pattern) -> None:
        """Delete the parts of a pattern whose deletion is on disk."""
        pattern.is_ending = True

        def ended(refusal: Refusal | None, now: int) -> list[Effect]:
            pattern.is_ending = False
            if not pattern.members:
                self._remove(pattern)
            elif refusal is None:
                # Some were being made or deleted; the next tick goes on.
                return []
            return pattern.tell(refusal, now)

        work = Work(ended)

        def steps() -> Iterator[int]:
            for part in list(pattern.members.values()):
                if part.is_deleted or part.is_deleting:
                    continue
                if part.making is not None:
                    # The next tick deletes it.
                    continue
                work.append(self._subscriptions.delete(part, self.now))
                yield CHANGE

        self.begin(work, steps())

    def _add(self, pattern: Pattern) -> None:
        self.index.add(pattern)
        self._quotas.take(Resource.SUBSCRIPTIONS, pattern.holder)
        self._quotas.take(Resource.PATTERNS, pattern.holder)

    def _remove(self, pattern: Pattern) -> None:
        self.index.remove(pattern)
        self._quotas.release(Resource.SUBSCRIPTIONS, pattern.holder)
        self._quotas.release(Resource.PATTERNS, pattern.holder)

    # What survives.

    def restore(
        self,
        pattern_id: int,
        definition: SubscriptionDefinitionBody,
        cursor: CursorBody,
        idle_since_ms: int,
        now: int,
    ) -> None:
        """Restore a pattern from a snapshot."""
        pattern = self._restored(pattern_id, definition, now)
        pattern.is_paused = pattern.stored_pause = cursor.is_paused
        pattern.idle_since_ms = idle_since_ms or now
        pattern.is_dirty = False

    def apply(self, entry: StoredEntry, definition: SubscriptionDefinitionBody, now: int) -> None:
        """Apply the entry of a pattern."""
        found = self.index.find(definition.pattern, definition.name)
        if entry.kind == Kind.SUBSCRIPTION_DELETED:
            if found is not None and found.id == entry.stream_epoch:
                self._remove(found)
                self._streams.deleted_subscriptions.add((found.id, found.name))
            return
        if found is not None and found.id != entry.stream_epoch:
            self._remove(found)
            found = None
        found = found or self._restored(entry.stream_epoch, definition, now)
        found.definition = found.stored_definition = definition
        found.is_dirty = True

    def apply_cursor(self, entry: StoredEntry, cursor: CursorBody) -> None:
        """Apply the entry that says whether a pattern is paused."""
        found = self.index.find(entry.stream, cursor.subscription)
        if found is not None and found.id == entry.stream_epoch:
            found.is_paused = found.stored_pause = cursor.is_paused
            found.is_dirty = True

    def _restored(
        self, pattern_id: int, definition: SubscriptionDefinitionBody, now: int
    ) -> Pattern:
        pattern = Pattern(pattern_id, definition, now)
        self._add(pattern)
        return pattern

    def finish(self, now: int) -> None:
        """The end of the log is reached: patterns get their parts, and their owners are known."""
        for topic in self._streams.topics.values():
            for part in topic.subscriptions.values():
                text, name = part.definition.pattern, part.name
                if not text:
                    continue
                pattern = self.index.find(text, name)
                if pattern is None:
                    # The hub was killed while its parts were being deleted.
                    pattern = Pattern(0, part.definition, now)
                    pattern.is_gone = True
                    self.index.add(pattern)
                pattern.take(part)
        self._quotas.begin_again(Resource.PATTERNS)
        for pattern in self.index:
            pattern.holder = Holder(pattern.definition.owner)
            self._quotas.take(Resource.SUBSCRIPTIONS, pattern.holder)
            self._quotas.take(Resource.PATTERNS, pattern.holder)
            pattern.needs_filling = pattern.definition.last != 0 and not pattern.is_gone

    def take_changed(self, *, is_whole: bool) -> list[Pattern]:
        """The patterns for a snapshot: those that have changed, or all."""
        found = [
            one
            for one in self.index
            if one.making is None and not one.is_gone and (one.is_dirty or is_whole)
        ]
        for one in found:
            one.is_dirty = False
        return found

    def anchored(self) -> int | None:
        """The log from this offset on contains the definitions; `None` if there are none."""
        return min((one.defined_at for one in self.index if not one.is_gone), default=None)

    def anchor(self, end: int, now: int) -> list[Effect]:
        """Rewrite every definition that is before `end`; parts are anchored with their topics."""
        effects: list[Effect] = []
        for one in self.index:
            if one.defined_at >= end or one.is_gone or one.making or one.deleting:
                continue
            appends = [Append(one.entry(Kind.SUBSCRIPTION_CREATED, now))]
            if one.is_paused:
                appends.append(Append(one.entry(Kind.CURSOR, now, is_paused=True)))
            appends[-1].follow(partial(_anchored, one, len(appends)))
            effects += appends
        return effects


def _anchored(pattern: Pattern, count: int, offset: int, now: int) -> list[Effect]:
    pattern.defined_at = offset - count + 1
    return []


def _is_abandoned(pattern: Pattern, now: int) -> bool:
    expiry_ms = pattern.definition.idle_expiry_ms
    return bool(expiry_ms and pattern.idle_since_ms and now - pattern.idle_since_ms >= expiry_ms)
