"""How long topics keep their messages, and what keeps the log from being cut."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from signalhub.core import placement, replay
from signalhub.core.effects import Append, Effect, FindTime
from signalhub.core.rooms import recovery
from signalhub.core.streams import dead_letters
from signalhub.core.streams.streams import Mailbox, Stream, Topic
from signalhub.core.subscriptions import progress
from signalhub.core.subscriptions.join import first_unsettled
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.wire.entry import Kind, Removed, StreamDefinition

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
                effects += dead_letters.lose_before(hub, topic, first, now)
        if definition.retention_s is not None and topic.head >= topic.first:
            effects.append(_find_expired(hub, topic, now - definition.retention_s * 1000))
    return effects


def _find_expired(hub: Hub, topic: Topic, oldest_ms: float) -> FindTime:
    def then(seq: int | None, now: int) -> list[Effect]:
        if seq is None:
            # The log could not be read: nothing is known, so nothing is given up.
            return []
        first = seq or topic.head + 1
        return dead_letters.lose_before(hub, topic, first, now) if first > topic.first else []

    return FindTime(topic.name, topic.id, oldest_ms, then)


def cut(hub: Hub, firsts: dict[int, int], now: int) -> list[Effect]:
    """Old segments are gone: these are the oldest positions left by stream id, 0 where none is."""
    effects: list[Effect] = []
    for stream in list(streams(hub)):
        first = firsts.get(stream.id)
        if first is not None:
            first = first or stream.head + 1
            if first > stream.first:
                effects += dead_letters.lose_before(hub, stream, first, now)
    return effects


def anchored(hub: Hub) -> int:
    """The log may be cut up to here: everything in use is defined behind it."""
    first = min((one.defined_at for one in streams(hub)), default=NOTHING_DEFINED)
    if hub.replays.is_known:
        first = min(first, hub.replays.defined_at)
    others = (hub.placements.defined_at, recovery.anchored(hub.rooms))
    return min([first, *(one for one in others if one is not None)])


def anchor(hub: Hub, end: int, now: int) -> list[Effect]:
    """Write everything defined before `end` again: definitions, cursors, what was removed."""
    effects: list[Effect] = []
    for stream in streams(hub):
        # What is being deleted must not be defined again behind its end.
        if stream.defined_at >= end or (isinstance(stream, Topic) and stream.is_deleting):
            continue
        anchors = _anchors(hub, stream, now)
        # It is anchored when the last of its entries is on disk, from the first of them on.
        anchors[-1].follow(partial(_anchored, stream, len(anchors)))
        effects += anchors
    effects += replay.anchor(hub, end, now)
    effects += placement.anchor(hub, end, now)
    return effects + recovery.anchor(hub.rooms, end, now)


def _anchors(hub: Hub, stream: Topic | Mailbox, now: int) -> list[Append]:
    subscriptions: list[Subscription] = []
    if isinstance(stream, Topic):
        definition = stream.definition
        subscriptions = [one for one in stream.subscriptions.values() if not one.is_deleting]
    else:
        definition = StreamDefinition(False, kinds=stream.kinds)
    definition = replace(definition, first=stream.first, head=stream.head)
    entries = [progress.entry(Kind.STREAM_CREATED, stream, definition, now)]
    if stream.removed:
        removed = Removed(list(stream.removed), "anchored")
        entries.append(progress.entry(Kind.REMOVED, stream, removed, now))
    entries += [
        progress.entry(Kind.SUBSCRIPTION_CREATED, stream, one.definition, now)
        for one in subscriptions
    ]
    if isinstance(stream, Mailbox):
        subscriptions = [stream.subscription]
    appends = [Append(entry) for entry in entries]
    return appends + [progress.write_cursor(hub.dispatcher, one, now) for one in subscriptions]


def _anchored(stream: Stream, count: int, offset: int, now: int) -> list[Effect]:
    """It was written again in so many entries one after the other."""
    stream.defined_at = offset - count + 1
    return []


def streams(hub: Hub) -> Iterator[Topic | Mailbox]:
    """Every topic and mailbox."""
    yield from hub.streams.topics.values()
    yield from hub.streams.mailboxes.values()


def needed_by_rooms(hub: Hub, now: int) -> int | None:
    """The oldest offset that holds a message somebody may still fetch; `None` if none does."""
    needed = hub.rooms.messages.pins.needed_from(now)
    archived = hub.rooms.messages.archived
    return needed if needed is None or archived is None else max(needed, archived)


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
