"""Recovery: restore the state of durable streams from a snapshot and the log after it.

Entries are applied in the order they were written. Applying an entry that the snapshot already
contains is harmless, so a snapshot only has to be no newer than what was committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from signalhub.core.limits.quotas import Holder
from signalhub.core.messages.ask import Orphan
from signalhub.core.messages.dedup import KnownAck, Remembered
from signalhub.core.placement import Place, Row
from signalhub.core.rooms import recovery
from signalhub.core.streams.streams import Mailbox, Topic
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.ranges import Ranges
from signalhub.wire.entry import (
    SETTLING,
    Body,
    BroadcastBody,
    CursorBody,
    DeadLetterOrigin,
    ErasedBody,
    Kind,
    LostBody,
    MessageBody,
    OperatedBody,
    Outcome,
    PlacedBody,
    Range,
    RemovedBody,
    SettledBody,
    Settlement,
    StoredEntry,
    StreamDefinitionBody,
    SubscriptionDefinitionBody,
    decode_body,
    encode_body,
)

if TYPE_CHECKING:
    from signalhub.core.erasure import Erasures
    from signalhub.core.messages.ask import Asks
    from signalhub.core.messages.dedup import Dedup
    from signalhub.core.patterns.patterns import Patterns
    from signalhub.core.placement import Placements
    from signalhub.core.replay import Replays
    from signalhub.core.rooms.rooms import Rooms
    from signalhub.core.streams.mailboxes import Mailboxes
    from signalhub.core.streams.streams import Streams
    from signalhub.settings.model import Settings


class StreamState(Body):
    """A stream in a snapshot."""

    name: str
    id: int
    definition: StreamDefinitionBody
    head: int
    first: int
    bytes: int
    removed: list[Range]
    attached_at_ms: int = 0
    expiries: dict[int, tuple[float, int]] = msgspec.field(default_factory=dict)
    bytes_marks: list[tuple[int, int]] = msgspec.field(default_factory=list)


class SubscriptionState(Body):
    """A subscription in a snapshot; a mailbox's has no name."""

    stream: int
    definition: SubscriptionDefinitionBody
    cursor: CursorBody
    idle_since_ms: int = 0  # 0 while it has a consumer.


class Snapshot(msgspec.Struct):
    """Changes since the last snapshot, or everything: encoded states by stream id.

    `None` stands for a deleted stream. Everything committed before `offset` is included.
    """

    offset: int
    is_whole: bool
    next_id: int
    streams: dict[int, bytes | None]
    subscriptions: dict[tuple[int, str], bytes | None]
    # Ids accepted since the last snapshot; these accumulate.
    remembered: Remembered
    # The same for rooms and inboxes, by name, and for the ids of their messages.
    rooms: dict[str, bytes | None] = {}
    room_ids: Remembered = Remembered(0, b"", {})
    # The progress of replay jobs, if it changed.
    replays: bytes | None = None
    # Places of durable actors: actor, host, token, offset.
    placements: list[Row] = []


class Parts(msgspec.Struct, frozen=True):
    """The parts of the hub that survive a restart."""

    streams: Streams
    mailboxes: Mailboxes
    asks: Asks
    dedup: Dedup
    replays: Replays
    placements: Placements
    erasures: Erasures
    rooms: Rooms
    patterns: Patterns


class Recovery:
    """Restores the state of an earlier process."""

    def __init__(self, parts: Parts, settings: Settings, now: int) -> None:
        self._parts = parts
        self._heartbeat_ms = settings.dispatch.heartbeat_ms
        self._now = now
        self._remembered_from_ms = now - int(settings.dedup.window_s * 1000)
        # Asks within the dedup window, by (stream id, seq) or (0, offset).
        self._asks: dict[tuple[int, int], tuple[str, str]] = {}
        self._loose: dict[int, tuple[MessageBody, int]] = {}
        self._deleted: set[int] = set()
        # Cursors of the snapshot.
        self._saved: dict[Subscription, CursorBody] = {}
        # Dead letters that the last cursor of their subscription did not know, by their offset;
        # `None` if a seek has made the original new again.
        self._letters: dict[Subscription, dict[int, DeadLetterOrigin | None]] = {}
        # Ids must be added in the order of time.
        self._noted_ms = 0
        self._is_reading_again = False

    def restore(
        self,
        next_id: int,
        streams: list[bytes],
        subscriptions: list[bytes],
        remembered: list[Remembered],
        rooms: dict[str, bytes],
        room_ids: list[Remembered],
        replays: bytes | None = None,
        placements: Iterable[Row] = (),
    ) -> None:
        """Load a snapshot; raises `msgspec.MsgspecError` and changes nothing in that case."""
        states = [decode_body(StreamState, body) for body in streams]
        readers = [decode_body(SubscriptionState, body) for body in subscriptions]
        if replays is not None:
            self._parts.replays.restore(replays, is_saved=True)
        recovery.restore(self._parts.rooms, rooms)
        self._parts.placements.restore(placements)
        self._parts.rooms.messages.ids.load(room_ids)
        self._parts.dedup.load(remembered)
        self._noted_ms = max((one.newest_ms for one in remembered), default=0)
        self._parts.streams.next_id = next_id
        restored = (self._restore_stream(state) for state in states)
        known = {stream.id: stream for stream in restored}
        for state in readers:
            stream = known.get(state.stream)
            if stream is None and state.definition.pattern:
                self._parts.patterns.restore(
                    state.stream, state.definition, state.cursor, state.idle_since_ms, self._now
                )
            if stream is None:
                continue
            if isinstance(stream, Topic):
                found = self._make(stream, state.definition)
            else:
                found = stream.subscription
            found.restore(state.cursor, is_saved=True)
            self._saved[found] = state.cursor
            found.idle_since_ms = state.idle_since_ms or self._now

    def _restore_stream(self, state: StreamState) -> Topic | Mailbox:
        stream: Topic | Mailbox
        if state.definition.is_topic:
            stream = self._topic(state.name, state.id, state.definition)
            stream.bytes = state.bytes
            stream.bytes_marks.extend(state.bytes_marks)
        else:
            kinds, holder = state.definition.kinds, Holder(state.definition.owner)
            make = self._parts.mailboxes.make
            stream = make(state.name, state.id, self._now, kinds, holder)
            stream.attached_at_ms = state.attached_at_ms or self._now
            for seq, (at_ms, offset) in state.expiries.items():
                stream.expires(seq, at_ms, offset)
        stream.head = state.head
        stream.next_seq = state.head + 1
        stream.first = state.first
        stream.removed = Ranges(state.removed)
        stream.is_dirty = False
        return stream

    def apply(self, entry: StoredEntry) -> None:
        """Apply one entry."""
        self._is_reading_again = False
        kind = entry.kind
        if entry.is_erased:
            self._without_content(entry)
        elif kind == Kind.MAIL or kind == Kind.PUBLISHED:
            self._message(entry)
        elif kind == Kind.SETTLED:
            self._settled(entry, decode_body(SettledBody, entry.body))
        elif kind == Kind.CURSOR:
            cursor = decode_body(CursorBody, entry.body)
            found = self._subscription(entry.stream, entry.stream_epoch, cursor.subscription)
            if found is None:
                self._parts.patterns.apply_cursor(entry, cursor)
            else:
                self._restore(found, cursor)
                if isinstance(found.stream, Mailbox):
                    found.stream.attached_at_ms = entry.at_ms
        elif kind == Kind.BROADCAST:
            self._broadcast(entry)
        elif kind == Kind.REPLAYS_STAND:
            self._parts.replays.restore(entry.body, entry.offset)
        elif kind == Kind.PLACED:
            placed = decode_body(PlacedBody, entry.body)
            place = Place(placed.host, placed.token, entry.offset, placed.owner, placed.first)
            self._parts.placements.note(placed.actor, place)
        elif kind == Kind.ERASED:
            self._erased(entry)
        elif kind == Kind.OPERATED:
            record = decode_body(OperatedBody, entry.body)
            self._parts.replays.jobs.note(record, entry.at_ms, entry.offset)
        elif kind in recovery.ROOM_KINDS:
            recovery.apply(self._parts.rooms, entry, self._now)
        else:
            self._definition(entry)

    def remember(self, entry: StoredEntry) -> None:
        """Apply an entry before the snapshot, for de-duplication and unfinished erasures only."""
        if entry.kind == Kind.ERASED:
            self._hide(entry)
        if entry.at_ms < self._remembered_from_ms or entry.is_erased:
            return
        self._is_reading_again = True
        if entry.kind == Kind.MAIL or entry.kind == Kind.PUBLISHED:
            self._remember(entry, decode_body(MessageBody, entry.body))
        elif entry.kind == Kind.SETTLED:
            self._remember_outcomes(entry, decode_body(SettledBody, entry.body))
        elif entry.kind == Kind.BROADCAST:
            self._broadcast(entry)

    def finish(self) -> None:
        """The end of the log is reached."""
        parts = self._parts
        recovery.finish(parts.rooms)
        parts.streams.count_again()
        parts.patterns.finish(self._now)
        for stream in parts.streams.every():
            stream.is_made = True
        for subscription in parts.streams.readers():
            for dead in self._letters.get(subscription, {}).values():
                if dead is not None:
                    subscription.was_buried(dead)
            subscription.recovered()
        for box in parts.streams.mailboxes.values():
            # The absence of an owner is counted only while a hub is running.
            box.attached_at_ms = self._now
        for offset, (message, at_ms) in self._loose.items():
            orphan = Orphan(offset, at_ms, message.copy_id)
            parts.asks.restore(message.sender, message.id, orphan)

    # Kinds of entries.

    def _definition(self, entry: StoredEntry) -> None:
        streams, kind = self._parts.streams, entry.kind
        streams.next_id = max(streams.next_id, entry.stream_epoch + 1)
        topic = streams.topics.get(entry.stream)
        is_topic = topic is not None and topic.id == entry.stream_epoch
        if kind == Kind.STREAM_CREATED:
            self._created(entry)
        elif kind == Kind.STREAM_DELETED:
            box = streams.mailboxes.get(entry.stream)
            self._deleted.add(entry.stream_epoch)
            if topic is not None and is_topic:
                streams.forget(topic)
            elif box is not None and box.id == entry.stream_epoch:
                streams.forget(box)
        elif kind == Kind.LOST:
            lost = decode_body(LostBody, entry.body)
            found = self._subscription(entry.stream, entry.stream_epoch, lost.subscription)
            if found is not None:
                found.stream.first = max(found.stream.first, lost.last + 1)
                found.stream.touch()
                found.lost_through(lost.last)
        elif topic is not None and is_topic:
            self._topic_changed(topic, entry)
        elif topic is None and kind in (Kind.SUBSCRIPTION_CREATED, Kind.SUBSCRIPTION_DELETED):
            definition = decode_body(SubscriptionDefinitionBody, entry.body)
            if definition.pattern and definition.pattern == entry.stream:
                self._parts.patterns.apply(entry, definition, self._now)

    def _created(self, entry: StoredEntry) -> None:
        anchor = decode_body(StreamDefinitionBody, entry.body)
        definition = msgspec.structs.replace(anchor, first=1, head=0)
        stream: Topic | Mailbox
        if definition.is_topic:
            stream = self._topic(entry.stream, entry.stream_epoch, definition)
            stream.definition = stream.stored_definition = definition
        else:
            box = self._parts.streams.mailboxes.get(entry.stream)
            if box is None or box.id != entry.stream_epoch:
                make = self._parts.mailboxes.make
                box = make(entry.stream, entry.stream_epoch, entry.at_ms)
            box.holder = Holder(definition.owner)
            self._parts.mailboxes.stored(box, definition.kinds, entry.at_ms)
            stream = box
        stream.touch()
        stream.first = max(stream.first, anchor.first)
        if anchor.head > stream.head:
            stream.head = anchor.head
            stream.next_seq = anchor.head + 1

    def _topic_changed(self, topic: Topic, entry: StoredEntry) -> None:
        if entry.kind == Kind.REMOVED:
            for first, last in decode_body(RemovedBody, entry.body).ranges:
                topic.removed.add_range(first, last)
            topic.touch()
            return
        definition = decode_body(SubscriptionDefinitionBody, entry.body)
        found = topic.subscriptions.get(definition.name)
        if entry.kind == Kind.SUBSCRIPTION_DELETED:
            self._parts.streams.forget_subscription(topic, definition.name)
        elif found is None:
            self._make(topic, definition)
        else:
            found.redefine(definition, self._now)
            found.stored(definition)

    def _message(self, entry: StoredEntry) -> None:
        message = decode_body(MessageBody, entry.body)
        if message.replay is not None:
            self._parts.replays.note(message.replay, entry.offset)
        elif message.dead is not None:
            self._letter(entry.offset, message.dead)
        self._remember(entry, message)
        stream = self._grown(entry)
        if isinstance(stream, Mailbox) and message.expires_at is not None:
            stream.expires(entry.seq, message.expires_at, entry.offset)

    def _letter(self, offset: int, dead: DeadLetterOrigin) -> None:
        """Count a dead letter; its settlement may be missing."""
        streams = self._parts.streams
        found: Subscription | None = None
        if dead.subscription:
            topic = streams.topics.get(dead.topic)
            if topic is not None and topic.epoch == dead.epoch:
                found = topic.subscriptions.get(dead.subscription)
        else:
            box = streams.mailboxes.get(dead.topic)
            if box is not None and box.epoch == dead.epoch:
                found = box.subscription
        if found is not None:
            found.position.count_letter(offset)
            found.touch()
            self._letters.setdefault(found, {})[offset] = dead

    def _restore(self, subscription: Subscription, cursor: CursorBody) -> None:
        """Apply a cursor. Dead letters that were being written at the time are not part of it."""
        saved = self._saved.get(subscription)
        if saved is not None and _is_older(cursor, saved):
            return
        position = subscription.position
        generation, counted = position.generation, position.dead_lettered
        subscription.restore(cursor)
        letters = self._letters.pop(subscription, {})
        if cursor.letters_through < 0 and cursor.dead_lettered:
            # Version 0.1 did not say which letters it had counted.
            position.dead_lettered = max(counted, cursor.dead_lettered)
            position.letters_through = max(letters, default=-1)
        else:
            letters = {at: dead for at, dead in letters.items() if at > cursor.letters_through}
            for offset in letters:
                position.count_letter(offset)
        if cursor.generation != generation:
            letters = dict.fromkeys(letters)
        if letters:
            self._letters[subscription] = letters

    def _grown(self, entry: StoredEntry) -> Topic | Mailbox | None:
        """The stream that this message belongs to; `None` if it is unknown."""
        if not entry.seq or entry.stream_epoch in self._deleted:
            return None
        stream: Topic | Mailbox | None
        if entry.kind == Kind.PUBLISHED:
            stream = self._topic(entry.stream, entry.stream_epoch, StreamDefinitionBody(True))
        else:
            stream = self._parts.streams.mailboxes.get(entry.stream)
        if stream is None or stream.id != entry.stream_epoch or entry.seq <= stream.head:
            return None
        if entry.seq > stream.head + 1:
            # Retention removed the beginning of the stream, and its definition.
            stream.first = entry.seq
        stream.head = entry.seq
        stream.next_seq = entry.seq + 1
        stream.touch()
        if isinstance(stream, Topic):
            stream.grew(entry.seq, len(entry.body))
        return stream

    def _without_content(self, entry: StoredEntry) -> None:
        """Apply an erased entry: only its position counts."""
        streams, kind = self._parts.streams, entry.kind
        streams.next_id = max(streams.next_id, entry.stream_epoch + 1)
        if kind == Kind.MAIL or kind == Kind.PUBLISHED:
            self._grown(entry)
        elif kind == Kind.ROOM_MESSAGE:
            recovery.apply(self._parts.rooms, entry, self._now)
        elif kind == Kind.STREAM_DELETED:
            # Its name was erased, too.
            self._deleted.add(entry.stream_epoch)
            for stream in streams.every():
                if stream.id == entry.stream_epoch:
                    streams.forget(stream)

    def _erased(self, entry: StoredEntry) -> None:
        """Apply what an erasure does at once."""
        body = self._hide(entry)
        if entry.stream:
            recovery.erase(self._parts.rooms, entry.stream, body.through)

    def _hide(self, entry: StoredEntry) -> ErasedBody:
        body = decode_body(ErasedBody, entry.body)
        if body.ranges:
            self._parts.erasures.add(body, entry.offset)
        return body

    def _settled(self, entry: StoredEntry, settled: SettledBody) -> None:
        self._remember_outcomes(entry, settled)
        found = self._subscription(entry.stream, entry.stream_epoch, settled.subscription)
        if found is not None and found.position.generation == settled.generation:
            found.replay(settled)
            if isinstance(found.stream, Mailbox):
                for one in settled.deliveries:
                    if one.outcome in SETTLING:
                        found.stream.settled(one.seq)

    # De-duplication.

    def _remember(self, entry: StoredEntry, message: MessageBody) -> None:
        if entry.at_ms < self._remembered_from_ms or message.dead is not None:
            return
        if message.replay is not None:
            # It is not repeated by id, since its job tracks its progress.
            return
        if self._is_reading_again and self._is_known(message.sender, message.id):
            return
        if entry.kind == Kind.MAIL and not entry.seq:
            self._loose[entry.offset] = (message, entry.at_ms)
            return
        if entry.kind == Kind.MAIL:
            self._asks[entry.stream_epoch, entry.seq] = (message.sender, message.id)
        ack = KnownAck(entry.at_ms, "queued", seq=entry.seq, stream=entry.stream_epoch)
        self._note(message.sender, message.id, entry.at_ms, ack)

    def _is_known(self, sender: str, message_id: str) -> bool:
        return self._parts.dedup.find(sender, message_id, self._noted_ms) is not None

    def _note(self, sender: str, message_id: str, at_ms: int, ack: KnownAck) -> None:
        self._noted_ms = max(self._noted_ms, at_ms)
        self._parts.dedup.remember(sender, message_id, self._noted_ms, ack)

    def _remember_outcomes(self, entry: StoredEntry, settled: SettledBody) -> None:
        for one in settled.deliveries:
            if not entry.stream:
                self._remember_loose(entry, one)
            elif one.outcome == Outcome.HANDED_OVER:
                ask = self._asks.pop((entry.stream_epoch, one.seq), None)
                if ask is not None:
                    ack = KnownAck(one.last_sent, "delivered", b"", one.seq, entry.stream_epoch)
                    self._note(*ask, entry.at_ms, ack)

    def _remember_loose(self, entry: StoredEntry, one: Settlement) -> None:
        ask = self._loose.pop(one.offset, None)
        if ask is not None and one.outcome == Outcome.WRITTEN:
            message, _ = ask
            self._note(message.sender, message.id, entry.at_ms, KnownAck(one.last_sent))

    def _broadcast(self, entry: StoredEntry) -> None:
        if entry.at_ms >= self._remembered_from_ms:
            told = decode_body(BroadcastBody, entry.body)
            if not (self._is_reading_again and self._is_known(told.sender, told.id)):
                self._note(told.sender, told.id, entry.at_ms, KnownAck(entry.at_ms, extra=told.ack))

    # Finding.

    def _topic(self, name: str, stream_id: int, definition: StreamDefinitionBody) -> Topic:
        streams = self._parts.streams
        topic = streams.topics.get(name)
        if topic is None or topic.id != stream_id:
            topic = Topic(name, stream_id, streams.log_epoch, definition)
            streams.add(topic)
        return topic

    def _make(self, topic: Topic, definition: SubscriptionDefinitionBody) -> Subscription:
        made = Subscription(topic, definition, self._heartbeat_ms, self._now)
        self._parts.streams.add_subscription(topic, made)
        return made

    def _subscription(self, stream: str, stream_id: int, name: str) -> Subscription | None:
        found: Topic | Mailbox | None
        if name:
            found = self._parts.streams.topics.get(stream)
            subscription = None if found is None else found.subscriptions.get(name)
        else:
            found = self._parts.streams.mailboxes.get(stream)
            subscription = None if found is None else found.subscription
        if found is None or found.id != stream_id:
            return None
        return subscription


def _is_older(cursor: CursorBody, saved: CursorBody) -> bool:
    """Was it still being written when the snapshot was taken, which knows letters after it?"""
    return cursor.generation == saved.generation and cursor.letters_through < saved.letters_through


def take_snapshot(parts: Parts, offset: int, *, is_whole: bool = False) -> Snapshot:
    """Take a snapshot of the changes, or of everything, with the log committed up to `offset`."""
    streams: dict[int, bytes | None] = {}
    subscriptions: dict[tuple[int, str], bytes | None] = {}
    changed = parts.streams.take_changed()
    for stream in parts.streams.every() if is_whole else changed:
        if not stream.is_made:
            stream.note_change()
            continue
        if stream.is_dirty or is_whole:
            stream.is_dirty = False
            streams[stream.id] = encode_body(_stream_state(stream))
        for subscription in stream.readers():
            cursor = subscription.take_cursor(is_whole=is_whole)
            if subscription.is_dirty:
                # Its definition is being written.
                stream.note_change()
            if cursor is not None:
                state = SubscriptionState(
                    stream.id,
                    subscription.stored_definition,
                    cursor,
                    subscription.idle_since_ms,
                )
                subscriptions[stream.id, subscription.name] = encode_body(state)
    for pattern in parts.patterns.take_changed(is_whole=is_whole):
        state = SubscriptionState(
            pattern.id,
            pattern.stored_definition,
            pattern.cursor(pattern.stored_pause),
            pattern.idle_since_ms,
        )
        subscriptions[pattern.id, pattern.name] = encode_body(state)
    forgotten, deleted = parts.streams.take_forgotten()
    for stream_id in forgotten:
        streams.setdefault(stream_id, None)
    for key in deleted:
        subscriptions.setdefault(key, None)
    return Snapshot(
        offset,
        is_whole,
        parts.streams.next_id,
        streams,
        subscriptions,
        parts.dedup.take_fresh(),
        recovery.take_states(parts.rooms, is_whole=is_whole),
        parts.rooms.messages.ids.take_fresh(offset),
        parts.replays.take_state(is_whole=is_whole),
        parts.placements.take_rows(is_whole=is_whole),
    )


def _stream_state(stream: Topic | Mailbox) -> StreamState:
    head, first, removed = stream.head, stream.first, list(stream.removed)
    if isinstance(stream, Topic):
        definition, size = stream.stored_definition, stream.bytes
        state = StreamState(stream.name, stream.id, definition, head, first, size, removed)
        state.bytes_marks = list(stream.bytes_marks)
    else:
        owner = stream.holder.identity
        definition = StreamDefinitionBody(False, kinds=stream.stored_kinds, owner=owner)
        state = StreamState(stream.name, stream.id, definition, head, first, 0, removed)
        state.attached_at_ms, state.expiries = stream.attached_at_ms, stream.expiries
    return state
