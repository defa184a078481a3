"""Inboxes: gap-free sequences of messages, and what is known of these messages.

A position is assigned when a message is handed to the log and counts once it is committed; what the
log refuses is taken back, so there is never a hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.messages.dedup import DELAY_MS_MIN, Dedup, KnownAck, Remembered
from signalhub.core.rooms import values
from signalhub.wire.entry import RoomMessageBody, StoredEntry, decode_body

if TYPE_CHECKING:
    from signalhub.core.erasure import Erasures
    from signalhub.core.rooms.accept import MessageOnItsWay, WaitingMessage
    from signalhub.core.rooms.room import Room
    from signalhub.settings.model import RoomsSettings as RoomSettings

# The log knows a stream by its name and an epoch; inboxes are never made again.
STREAM_EPOCH = 1


class KeptMessage(msgspec.Struct, gc=False):
    """A committed message, ready to be read: `json` is what a page holds of it."""

    seq: int
    message_id: str
    expires_ms: int
    json: bytes


class UnarchivedBatch(msgspec.Struct, array_like=True, gc=False):
    """Messages that are not archived yet, counted together."""

    last_offset: int
    count: int
    bytes: int


# So many messages share one count; the cap need not be exact.
_BATCH_COUNT = 100


class Inbox:
    """What is known about one inbox."""

    __slots__ = (
        "defined_at",
        "erased_to",
        "head",
        "name",
        "next_seq",
        "oldest",
        "oldest_expires_ms",
        "pending",
        "queue",
        "recent",
        "recent_first",
        "retention_max_s",
        "retention_s",
        "room",
        "saved_accepts",
        "since_ms",
        "unarchived",
        "unarchived_bytes",
        "unarchived_count",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.room: Room | None = None
        self.head = 0
        self.next_seq = 1
        # Nothing before it can be read, and it can, until `oldest_expires_ms`.
        self.oldest = 1
        self.oldest_expires_ms = 0
        # Nothing up to here is ever read again, whatever the clock says.
        self.erased_to = 0
        # When its first message came.
        self.since_ms = 0
        # How long messages are kept, if its room says so, and the longest that was ever said.
        self.retention_s: float | None = None
        self.retention_max_s = 0.0
        # When its room accepted messages shortly before a restart, as far as only the log knows.
        self.saved_accepts: list[int] = []
        # The newest messages: `recent_first` to `head`, all of them.
        self.recent: dict[int, KeptMessage] = {}
        self.recent_first = 1
        # On their way to the log, by message id.
        self.pending: dict[str, MessageOnItsWay] = {}
        # Who waits until an id was looked up on disk; `None` when nobody does.
        self.queue: deque[WaitingMessage] | None = None
        self.unarchived: deque[UnarchivedBatch] = deque()
        self.unarchived_count = 0
        self.unarchived_bytes = 0
        # An offset of the log from which on its counter can be made again.
        self.defined_at = 0

    @property
    def is_blank(self) -> bool:
        """Would forgetting it lose nothing?"""
        return self.next_seq == 1 and self.room is None and self.queue is None

    def assign(self) -> int:
        """The position of the next message."""
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def take_back(self, seq: int) -> None:
        """The log refused what has this position, and everything behind it."""
        self.next_seq = seq

    def committed(self, seq: int, offset: int, expires_ms: int) -> None:
        """Everything up to here is on disk."""
        assert seq == self.head + 1, f"expected {self.head + 1}, got {seq}"
        self.head = seq
        self.defined_at = offset
        if seq == self.oldest:
            self.oldest_expires_ms = expires_ms

    def advance_oldest(self, seq: int, expires_ms: int) -> None:
        """Nothing before `seq` can be read any more; 0 if it is not known how long that one can."""
        if seq > self.oldest or (seq == self.oldest and expires_ms):
            self.oldest = seq
            self.oldest_expires_ms = expires_ms

    def erase_to(self, seq: int) -> None:
        """Nothing up to here is read again."""
        self.erased_to = max(self.erased_to, seq)
        self.advance_oldest(self.erased_to + 1, 0)

    def has_stale_oldest(self, now: int) -> bool:
        """Has its oldest message expired, or is its time unknown?"""
        return self.oldest <= self.head and self.oldest_expires_ms <= now

    def seek_oldest(self) -> None:
        """What seemed to have expired may not have: look for the oldest again."""
        self.oldest, self.oldest_expires_ms = self.erased_to + 1, 0

    # What the archive does not have yet.

    def count_unarchived(self, offset: int, size: int) -> None:
        """One more message waits for the archive."""
        self.unarchived_count += 1
        self.unarchived_bytes += size
        newest = self.unarchived[-1] if self.unarchived else None
        if newest is None or newest.count >= _BATCH_COUNT:
            self.unarchived.append(UnarchivedBatch(offset, 1, size))
            return
        newest.last_offset = offset
        newest.count += 1
        newest.bytes += size

    def archived(self, offset: int) -> None:
        """Everything before `offset` is in the archive."""
        while self.unarchived and self.unarchived[0].last_offset < offset:
            batch = self.unarchived.popleft()
            self.unarchived_count -= batch.count
            self.unarchived_bytes -= batch.bytes


_STALE_MAX: Final = 64


class Buffer:
    """What memory holds, and in which order it lets go."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max  # Of one inbox.
        self._bytes_max = bytes_max  # Of all.
        self.bytes = 0
        # Inbox and position, the oldest first; some of them have been let go already.
        self._order: deque[tuple[Inbox, int]] = deque()
        self._stale = 0

    def __len__(self) -> int:
        return len(self._order)

    def keep(self, inbox: Inbox, kept: KeptMessage) -> None:
        """Remember a committed message while there is room."""
        recent = inbox.recent
        if not recent:
            inbox.recent_first = kept.seq
        recent[kept.seq] = kept
        self._order.append((inbox, kept.seq))
        self.bytes += len(kept.json)
        if len(recent) > self._count_max:
            self._let_go(inbox)
            self._stale += 1
            if self._stale > _STALE_MAX and self._stale * 2 > len(self._order):
                self._order = deque(one for one in self._order if one[1] in one[0].recent)
                self._stale = 0
        while self.bytes > self._bytes_max:
            self._let_go_oldest()

    def expire(self, now: int) -> None:
        """Let go of what can no longer be read."""
        while self._order:
            inbox, seq = self._order[0]
            kept = inbox.recent.get(seq)
            if kept is not None and kept.expires_ms > now:
                return
            self._let_go_oldest()

    def blank(self, inbox: Inbox, seq: int) -> None:
        """Take out the content of a message; its place stays, as if it had expired."""
        kept = inbox.recent.get(seq)
        if kept is not None:
            self.bytes -= len(kept.json)
            kept.json, kept.expires_ms = b"", 0

    def _let_go(self, inbox: Inbox) -> None:
        self.bytes -= len(inbox.recent.pop(inbox.recent_first).json)
        inbox.recent_first += 1

    def _let_go_oldest(self) -> None:
        inbox, seq = self._order.popleft()
        if seq in inbox.recent:
            self._let_go(inbox)
        else:
            self._stale -= 1


class KnownIds:
    """Positions by the fingerprint of inbox and message id, for a window of time."""

    def __init__(self, window_ms: int, memory_bytes_max: int, grid_ms: int) -> None:
        self.memory = Dedup(window_ms, memory_bytes_max)
        # In no snapshot on disk yet, and on their way into one, with its offset.
        self.unsaved: dict[bytes, int] = {}
        self._saving: list[tuple[int, dict[bytes, int]]] = []
        self._window_ms = window_ms
        self._grid_ms = grid_ms
        self._slot_ms = self._id_ms = 0

    def time(self, now: int) -> int:
        """The time by which ids are known: on the grid, and then one tick further with each id.

        So it says no more than the order of the log does, yet what memory gives up first is old.
        """
        at_ms = now - now % self._grid_ms
        if at_ms > self._slot_ms:
            self._slot_ms = at_ms
            self._id_ms = max(at_ms, self._id_ms)
        return self._id_ms

    def oldest_ms(self, now: int) -> int:
        """What was accepted before this is not known any more."""
        return self.time(now) - self._window_ms

    def find(self, key: bytes, now: int) -> KnownAck | None:
        """What memory knows of an id."""
        return self.memory.find_by(key, self.time(now))

    def find_unsaved(self, key: bytes) -> int:
        """The position of an id memory gave up before it was in a snapshot; 0 if it is none."""
        if not self.memory.is_shortened:
            return 0
        seq = self.unsaved.get(key, 0)
        for _, keys in self._saving:
            seq = seq or keys.get(key, 0)
        return seq

    def may_be_on_disk(self, since_ms: int, now: int) -> bool:
        """May ids of an inbox that began at `since_ms` be where only the disk knows them?"""
        memory = self.memory
        return memory.is_shortened and since_ms <= self.time(now) - memory.window_ms

    def remember(self, key: bytes, seq: int, now: int, at_ms: int) -> None:
        """A message was accepted; `at_ms` is when, as it may be told."""
        id_ms = self.time(now)
        if id_ms < self._slot_ms + self._grid_ms - 1:
            self._id_ms += 1
        # What is told of it is its own time, if that fits a record; the position always does.
        told_ms = max(at_ms, id_ms + DELAY_MS_MIN)
        self.memory.remember_by(key, id_ms, KnownAck(told_ms, seq=seq))
        self.unsaved[key] = seq

    def sweep(self, now: int) -> None:
        """Let go of some of what has left the window."""
        self.memory.sweep(self.time(now))

    # Snapshots.

    def load(self, kept: list[Remembered]) -> None:
        """Know again what an earlier process knew; before anything else."""
        self.memory.load(kept)
        self._id_ms = self.memory.now_ms
        self._slot_ms = self._id_ms - self._id_ms % self._grid_ms

    def take_fresh(self, offset: int) -> Remembered:
        """What goes into the snapshot at this offset."""
        if self.unsaved:
            self._saving.append((offset, self.unsaved))
            self.unsaved = {}
        return self.memory.take_fresh()

    def saved(self, offset: int) -> None:
        """The snapshot at this offset is on disk."""
        while self._saving and self._saving[0][0] <= offset:
            self._saving.pop(0)


_STRETCH: Final = 1_024
_MARKS_MAX: Final = 4_096


class Pins:
    """Stretches of the log, and until when they are needed."""

    def __init__(self) -> None:
        # First offset and latest expiry, oldest first.
        self._marks: deque[tuple[int, int]] = deque()
        self._stretch = _STRETCH

    def add(self, offset: int, expires_ms: int) -> None:
        """A message was written at `offset` and can be read until `expires_ms`."""
        if self._marks:
            first, latest = self._marks[-1]
            if offset < first:
                return
            if offset - first < self._stretch:
                if expires_ms > latest:
                    self._marks[-1] = (first, expires_ms)
                return
        self._marks.append((offset, expires_ms))
        if len(self._marks) > _MARKS_MAX:
            self._merge()

    def needed_from(self, now: int) -> int | None:
        """The first offset that is needed; `None` if none is. Nothing is forgotten by asking.

        The clock may be wrong, and right again later.
        """
        return next((first for first, expires_ms in self._marks if expires_ms > now), None)

    def cut(self, offset: int) -> None:
        """The log begins at this offset now."""
        while len(self._marks) > 1 and self._marks[1][0] <= offset:
            self._marks.popleft()

    def marks(self) -> list[tuple[int, int]]:
        """All of it, to be kept."""
        return list(self._marks)

    def restore(self, marks: Iterable[tuple[int, int]]) -> None:
        """Begin with what was kept."""
        self._marks = deque(marks)

    def _merge(self) -> None:
        """Two stretches become one."""
        self._stretch *= 2
        marks = list(self._marks)
        odd = [marks.pop()] if len(marks) % 2 else []
        pairs = zip(marks[::2], marks[1::2], strict=True)
        self._marks = deque((one[0], max(one[1], other[1])) for one, other in pairs)
        self._marks.extend(odd)


class Messages:
    """What is known of all messages: their ids, the newest of them, and where the others are."""

    def __init__(
        self,
        settings: RoomSettings,
        times: values.Times,
        erasures: Erasures,
        dirty: set[Room | Inbox],
    ) -> None:
        """Inboxes that change are added to `dirty`."""
        self._times = times
        self._erasures = erasures
        self._dirty = dirty
        repeat_ms = int(settings.repeat_s * 1000)
        self.ids = KnownIds(repeat_ms, settings.repeat_memory_bytes, times.grid_ms)
        self.buffer = Buffer(settings.buffer, settings.buffer_bytes)
        self.pins = Pins()
        # Everything before this offset is in the archive; `None` without a pipeline.
        self.archived: int | None = None
        # Inboxes with messages that the archive does not have yet.
        self._waiting: set[Inbox] = set()

    def remember(
        self, inbox: Inbox, body: RoomMessageBody, key: bytes, seq: int, offset: int, now: int
    ) -> int:
        """A message is on disk: its position counts and its id is known. The time of its entry."""
        inbox.committed(seq, offset, body.expires_ms)
        self._dirty.add(inbox)
        self.pins.add(offset, body.expires_ms)
        at_ms = self._times.floored(now)
        self.ids.remember(key, seq, now, at_ms)
        if self.archived is not None and offset >= self.archived:
            inbox.count_unarchived(offset, len(body.ciphertext))
            self._waiting.add(inbox)
        return at_ms

    def await_archive(self, inbox: Inbox, batches: Iterable[UnarchivedBatch]) -> None:
        """These of an inbox waited for the archive when a snapshot was taken."""
        for batch in batches:
            inbox.unarchived.append(batch)
            inbox.unarchived_count += batch.count
            inbox.unarchived_bytes += batch.bytes
            self._waiting.add(inbox)

    def archived_to(self, offset: int) -> None:
        """The archive has everything before this offset."""
        self.archived = offset
        for inbox in list(self._waiting):
            inbox.archived(offset)
            self._dirty.add(inbox)
            if not inbox.unarchived:
                self._waiting.discard(inbox)

    @property
    def unarchived(self) -> int:
        """The messages that wait for the archive in the inbox where most do."""
        if self.archived is None:
            return 0
        return max((one.unarchived_count for one in self._waiting), default=0)

    def erase(self, inbox: Inbox, through: int) -> None:
        """Nothing of an inbox up to a position is read again."""
        inbox.erase_to(through)
        self._dirty.add(inbox)
        for seq in inbox.recent:
            if seq <= through:
                self.buffer.blank(inbox, seq)

    def kept_of(self, stored: StoredEntry) -> KeptMessage | None:
        """A message as it was read from the log; `None` if it was erased."""
        if stored.is_erased or self._erasures.hides(stored.offset):
            return None
        body = decode_body(RoomMessageBody, stored.body)
        item = self.page_item(stored.seq, body.message_id, body.ciphertext, body.created_ms)
        return KeptMessage(stored.seq, body.message_id, body.expires_ms, item)

    def page_item(
        self, seq: int, message_id: str, ciphertext: bytes, created_ms: int | None
    ) -> bytes:
        """A message as a page holds it."""
        alike = values.members(seq, message_id, ciphertext)
        return values.page_item(alike, created_ms, is_exact=self._times.is_exact)
