"""Retention of topics, and what must be rewritten before the log is cut."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec.structs import replace

from signalhub.core.effects import Append, Effect, FindTime, Note
from signalhub.core.limits.scans import steps_of
from signalhub.core.streams.streams import Mailbox, Stream, Topic
from signalhub.core.subscriptions import progress
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.wire.entry import Kind, LostBody, RemovedBody, StreamDefinitionBody

if TYPE_CHECKING:
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.counters import Tally

NOTHING_DEFINED: Final = 2**63


# Stream, epoch, seq, whose.
Unsettled = tuple[str, int, int, str]


class Survey(msgspec.Struct):
    """What topics and mailboxes need of the log."""

    # The oldest position that each of them needs, if it needs any.
    unsettled: list[Unsettled] = []
    # The log from this offset on contains all definitions.
    defined_at: int = NOTHING_DEFINED
    # Name and epoch of all.
    streams: list[tuple[str, int]] = []


class Pruning:
    """Removes messages that a topic no longer keeps."""

    def __init__(self, streams: Streams, dispatcher: Dispatcher, tally: Tally) -> None:
        self._streams = streams
        self._dispatcher = dispatcher
        self._tally = tally

    def lose_before(self, stream: Topic | Mailbox, first: int, now: int) -> list[Effect]:
        """Messages before `first` are gone: count and report the unsettled ones."""
        first = min(first, stream.head + 1)
        stream.drop_before(first)
        effects: list[Effect] = []
        for subscription in stream.readers():
            text = "retention removed messages that were not settled"
            effects += self._lose(subscription, first, text, now)
        return effects

    def trim(self, subscription: Subscription, now: int) -> list[Effect]:
        """Drop the oldest messages of a subscription beyond its limit."""
        first = subscription.first_within_backlog
        if not first:
            return []
        return self._lose(subscription, first, "a backlog exceeded its limit", now)

    def _lose(self, subscription: Subscription, first: int, text: str, now: int) -> list[Effect]:
        stream, position = subscription.stream, subscription.position
        from_seq = min([position.floor + 1, *position.parked])
        lost = subscription.lose_before(first) if from_seq < first else 0
        self._dispatcher.wake(subscription)
        if lost <= 0:
            return []
        self._tally.lost += lost
        self._tally.loss_events += 1
        body = LostBody(subscription.name, from_seq, first - 1)
        facts: dict[str, object] = {
            "stream": stream.name,
            "subscription": subscription.name,
            "lost": lost,
            "from": from_seq,
            "to": first - 1,
        }
        return [Append(stream.entry(Kind.LOST, body, now)), Note(text, facts)]

    def expire_topics(self, now: int) -> list[Effect]:
        """Remove messages beyond the age or size that a topic keeps."""
        effects: list[Effect] = []
        for topic in list(self._streams.topics.values()):
            definition = topic.definition
            if definition.retention_bytes is not None:
                first = topic.first_within(definition.retention_bytes)
                if first > topic.first:
                    effects += self.lose_before(topic, first, now)
            if definition.retention_s is not None and topic.head >= topic.first:
                # The age has no upper limit, and a reader needs a time that is a number.
                oldest_ms = max(0.0, now - definition.retention_s * 1000)
                effects.append(self._find_expired(topic, oldest_ms))
        return effects

    def _find_expired(self, topic: Topic, oldest_ms: float) -> FindTime:
        def then(seq: int | None, now: int) -> list[Effect]:
            if seq is None:
                # The log could not be read, so remove nothing.
                return []
            first = seq or topic.head + 1
            return self.lose_before(topic, first, now) if first > topic.first else []

        return FindTime(topic.name, topic.id, oldest_ms, then)

    def cut(self, firsts: dict[int, int], now: int) -> list[Effect]:
        """Segments were deleted; `firsts` has the oldest remaining position by stream id, or 0."""
        effects: list[Effect] = []
        for stream in self._streams.every():
            first = firsts.get(stream.id)
            if first is not None:
                first = first or stream.head + 1
                if first > stream.first:
                    effects += self.lose_before(stream, first, now)
        return effects

    def survey(self) -> Generator[None, None, Survey]:
        """Look at all topics and mailboxes, a slice at a time.

        What is said about a stream may have changed at the end. What is published meanwhile is
        not in a segment that can be deleted yet.
        """
        survey = Survey()
        for part, _ in steps_of(self._streams.every()):
            for stream in part:
                survey.streams.append((stream.name, stream.id))
                survey.defined_at = min(survey.defined_at, stream.defined_at)
                if isinstance(stream, Topic):
                    survey.unsettled += _oldest(stream)
                elif stream.subscription.lag:
                    seq = stream.subscription.position.first_unsettled
                    survey.unsettled.append((stream.name, stream.id, seq, ""))
            yield
        return survey


def _oldest(topic: Topic) -> list[Unsettled]:
    """The oldest position that a topic needs, and the subscription that needs it."""
    oldest = [
        (min([one.position.first_unsettled, *one.position.parked]), one.name)
        for one in topic.subscriptions.values()
        if one.lag or one.position.parked
    ]
    if not oldest:
        return []
    seq, name = min(oldest)
    return [(topic.name, topic.id, seq, name)]


class Anchored(Protocol):
    """Something else that is defined in the log and must be rewritten before the log is cut."""

    def anchored(self) -> int | None:
        """The log may be cut up to this offset; `None` if it has nothing in the log."""

    def anchor(self, end: int, now: int) -> list[Effect]:
        """Rewrite everything defined before `end`."""


class Anchors:
    """Rewrites definitions and positions, so that the log can be cut."""

    def __init__(
        self, streams: Streams, dispatcher: Dispatcher, others: Iterable[Anchored]
    ) -> None:
        self._streams = streams
        self._dispatcher = dispatcher
        self._others = tuple(others)

    def anchored(self, survey: Survey | None = None) -> int:
        """The log may be cut up to this offset: everything in use is defined after it.

        Without a survey of the streams, look at all of them.
        """
        if survey is None:
            offsets = [one.defined_at for one in self._streams.every()]
        else:
            offsets = [survey.defined_at]
        others = (one.anchored() for one in self._others)
        offsets += [one for one in others if one is not None]
        return min(offsets, default=NOTHING_DEFINED)

    def anchor(self, end: int, now: int) -> list[Effect]:
        """Rewrite definitions, cursors and removed positions that are defined before `end`."""
        effects: list[Effect] = []
        for stream in self._streams.every():
            # Do not redefine a stream whose deletion is pending.
            if stream.defined_at >= end or (isinstance(stream, Topic) and stream.is_deleting):
                continue
            anchors = self._anchors(stream, now)
            # It is anchored at its first entry once the last one is on disk.
            anchors[-1].follow(partial(self._written, stream, len(anchors)))
            effects += anchors
        for one in self._others:
            effects += one.anchor(end, now)
        return effects

    def _written(self, stream: Stream, count: int, offset: int, now: int) -> list[Effect]:
        stream.anchored(offset - count + 1)
        return []

    def _anchors(self, stream: Topic | Mailbox, now: int) -> list[Append]:
        subscriptions: list[Subscription] = []
        if isinstance(stream, Topic):
            definition = stream.definition
            subscriptions = [one for one in stream.subscriptions.values() if not one.is_deleting]
        else:
            owner = stream.holder.identity
            definition = StreamDefinitionBody(False, kinds=stream.kinds, owner=owner)
        definition = replace(definition, first=stream.first, head=stream.head)
        entries = [stream.entry(Kind.STREAM_CREATED, definition, now)]
        if stream.removed:
            removed = RemovedBody(list(stream.removed), "anchored")
            entries.append(stream.entry(Kind.REMOVED, removed, now))
        entries += [
            stream.entry(Kind.SUBSCRIPTION_CREATED, one.definition, now) for one in subscriptions
        ]
        if isinstance(stream, Mailbox):
            subscriptions = [stream.subscription]
        appends = [Append(entry) for entry in entries]
        return appends + [
            progress.write_cursor(self._dispatcher, one, now) for one in subscriptions
        ]
