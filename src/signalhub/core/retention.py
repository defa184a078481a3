"""How long topics keep their messages, and what keeps the log from being cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from signalhub.core import journal, letters
from signalhub.core.effects import Append, Effect, FindTime
from signalhub.core.streams import Mailbox, Stream, Topic
from signalhub.core.subscribing import first_unsettled
from signalhub.entry import Kind, Removed, StreamDefinition
from signalhub.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

NOTHING_DEFINED: Final = 2**63


def expire_topics(hub: Hub, now: int) -> list[Effect]:
    """Give up what is older, or more, than a topic keeps."""
    effects: list[Effect] = []
    for topic in list(hub.streams.topics.values()):
        definition = topic.definition
        if definition.retention_bytes is not None:
            first = topic.first_within(definition.retention_bytes)
            if first > topic.first:
                effects += letters.lose_before(hub, topic, first, now)
        if definition.retention_s is not None and topic.head >= topic.first:
            effects.append(_find_expired(hub, topic, now - definition.retention_s * 1000))
    return effects


def _find_expired(hub: Hub, topic: Topic, oldest_ms: float) -> FindTime:
    def then(seq: int | None, now: int) -> list[Effect]:
        if seq is None:
            # The log could not be read: nothing is known, so nothing is given up.
            return []
        first = seq or topic.head + 1
        return letters.lose_before(hub, topic, first, now) if first > topic.first else []

    return FindTime(topic.name, topic.id, oldest_ms, then)


def cut(hub: Hub, firsts: dict[str, int], now: int) -> list[Effect]:
    """Old segments are gone: these are the oldest positions left, 0 where none is."""
    effects: list[Effect] = []
    for name, first in firsts.items():
        topic = hub.streams.topics.get(name)
        if topic is not None:
            first = first or topic.head + 1
            if first > topic.first:
                effects += letters.lose_before(hub, topic, first, now)
    return effects


def anchored(hub: Hub) -> int:
    """The log may be cut up to here: everything in use is defined behind it."""
    return min((one.defined_at for one in _streams(hub)), default=NOTHING_DEFINED)


def anchor(hub: Hub, end: int, now: int) -> list[Effect]:
    """Write everything defined before `end` again: definitions, cursors, what was removed."""
    effects: list[Effect] = []
    for stream in _streams(hub):
        # What is being deleted must not be defined again behind its end.
        if stream.defined_at >= end or (isinstance(stream, Topic) and stream.is_deleting):
            continue
        definition = StreamDefinition(False)
        subscriptions = []
        if isinstance(stream, Topic):
            definition = stream.definition
            subscriptions = list(stream.subscriptions.values())
        definition = replace(definition, first=stream.first, head=stream.head)
        entry = journal.entry(Kind.STREAM_CREATED, stream, definition, now)
        effects.append(Append(entry, Anchored(stream)))
        if stream.removed:
            removed = Removed(list(stream.removed), "anchored")
            entry = journal.entry(Kind.REMOVED, stream, removed, now)
            effects.append(Append(entry, journal.UNWATCHED))
        for subscription in subscriptions:
            if subscription.is_deleting:
                continue
            body = subscription.definition
            entry = journal.entry(Kind.SUBSCRIPTION_CREATED, stream, body, now)
            effects.append(Append(entry, journal.UNWATCHED))
            effects.append(journal.write_cursor(subscription, now))
        if isinstance(stream, Mailbox):
            effects.append(journal.write_cursor(stream.subscription, now))
    return effects


class Anchored:
    """A definition written again; cursors that follow it are behind it in the log."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        self._stream.defined_at = offset
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        return []


def _streams(hub: Hub) -> Iterator[Topic | Mailbox]:
    yield from hub.streams.topics.values()
    yield from hub.streams.mailboxes.values()


def unsettled(hub: Hub) -> list[tuple[str, int, int]]:
    """The oldest position each subscription and mailbox still needs: stream, its epoch, seq."""
    needed: list[tuple[str, int, int]] = []
    for topic in hub.streams.topics.values():
        oldest = [
            min([first_unsettled(one), *one.position.parked])
            for one in topic.subscriptions.values()
            if one.lag or one.position.parked
        ]
        if oldest:
            needed.append((topic.name, topic.id, min(oldest)))
    needed.extend(
        (box.name, box.id, first_unsettled(box.subscription))
        for box in hub.streams.mailboxes.values()
        if box.subscription.lag
    )
    return needed
