"""Inboxes: sequences of messages without gaps, their ids, and the newest messages in memory.

A position is assigned when a message is passed to the log and becomes valid with the commit. If the
log refuses the message, the position is released, so there are no gaps. Only if the log has lost
entries, positions are skipped: see `floor.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.limits.quotas import NOBODY
from signalhub.core.messages.dedup import DELAY_MS_MIN, Dedup, KnownAck, Recalled, Remembered
from signalhub.core.rooms import values
from signalhub.wire.entry import Range, RoomMessageBody, StoredEntry, decode_body

if TYPE_CHECKING:
    from signalhub.core.erasure import Erasures
    from signalhub.core.rooms.accept import PendingMessage, WaitingMessage
    from signalhub.core.rooms.room import Room
    from signalhub.settings.model import RoomsSettings as RoomSettings

# The log identifies a stream by name and epoch; inboxes are never recreated, so one is enough.
STREAM_EPOCH = 1
# Evicted entries that may remain in a list before it is compacted.
_STALE_MAX: Final = 64
_NEVER_MS: Final = 2**53 - 1


class KeptMessage(msgspec.Struct, gc=False):
    """A committed message in memory; `json` is its form in a page."""

    seq: int
    message_id: str
    expires_ms: int
    json: bytes


class PageTexts:
    """The newest messages of an inbox as JSON texts in a row, so that a page is a slice of them."""

    __slots__ = ("_evicted", "_first", "_is_soonest_gone", "_texts", "longest", "soonest_ms")

    def __init__(self) -> None:
        self._begin(1)

    def _begin(self, first: int) -> None:
        self._texts: list[bytes] = []
        # The position of the first text, and how many have been evicted from there on.
        self._first = first
        self._evicted = 0
        # No message expires before; earlier than necessary if the one that would is gone.
        self.soonest_ms = _NEVER_MS
        self._is_soonest_gone = False
        # No text has more bytes.
        self.longest = 0

    def add(self, kept: KeptMessage) -> None:
        """Add a message at the end."""
        if len(self._texts) == self._evicted:
            self._begin(kept.seq)
        self._texts.append(kept.json)
        if kept.expires_ms < self.soonest_ms:
            self.soonest_ms = kept.expires_ms
        if len(kept.json) > self.longest:
            self.longest = len(kept.json)

    def evict(self, expires_ms: int) -> None:
        """Remove the first message."""
        self._texts[self._evicted] = b""
        self._evicted += 1
        if expires_ms <= self.soonest_ms:
            self._is_soonest_gone = True
        if self._evicted > _STALE_MAX and self._evicted * 2 > len(self._texts):
            del self._texts[: self._evicted]
            self._first += self._evicted
            self._evicted = 0

    def blank(self, seq: int) -> None:
        """Remove the content of a message, which has expired with that."""
        self._texts[seq - self._first] = b""
        self.soonest_ms = 0

    def between(self, first: int, last: int) -> list[bytes]:
        """Return the texts from one position to another."""
        return self._texts[first - self._first : last + 1 - self._first]

    def has_expired(self, recent: dict[int, KeptMessage], now: int) -> bool:
        """May a message have expired? They are looked at again if one of them is gone."""
        if self.soonest_ms > now:
            return False
        if self._is_soonest_gone:
            self._is_soonest_gone = False
            self.soonest_ms = min(kept.expires_ms for kept in recent.values())
        return self.soonest_ms <= now


class UnarchivedGroup(msgspec.Struct, array_like=True, gc=False):
    """Messages that are not archived yet, counted in groups to save memory."""

    last_offset: int
    count: int
    bytes: int


# Messages per group; the cap on unarchived messages need not be exact.
_GROUP_COUNT = 100


class Inbox:
    """The state of one inbox."""

    __slots__ = (
        "defined_at",
        "erased_to",
        "head",
        "holder",
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
        "skipped",
        "texts",
        "unarchived",
        "unarchived_bytes",
        "unarchived_count",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        # Whose quota it counts for.
        self.holder = NOBODY
        self.room: Room | None = None
        self.head = 0
        self.next_seq = 1
        # The oldest readable message, and when it expires; 0 if unknown.
        self.oldest = 1
        self.oldest_expires_ms = 0
        # Everything up to this position was erased.
        self.erased_to = 0
        # Positions that were skipped because the log had lost entries, oldest first.
        self.skipped: list[Range] = []
        # When the first message arrived.
        self.since_ms = 0
        # The room's retention, if it differs from the default, and the longest ever used.
        self.retention_s: float | None = None
        self.retention_max_s = 0.0
        # Recent acceptance times of its room, recovered from the log for the rate limit.
        self.saved_accepts: list[int] = []
        # The newest messages, without gaps from `recent_first` to `head`.
        self.recent: dict[int, KeptMessage] = {}
        self.recent_first = 1
        self.texts = PageTexts()
        # Being written to the log, by message id.
        self.pending: dict[str, PendingMessage] = {}
        # Messages that wait for a look-up on disk; `None` if no look-up is running.
        self.queue: deque[WaitingMessage] | None = None
        self.unarchived: deque[UnarchivedGroup] = deque()
        self.unarchived_count = 0
        self.unarchived_bytes = 0
        # An offset of the log from which `head` can be recovered.
        self.defined_at = 0

    @property
    def is_blank(self) -> bool:
        """Does it hold no state?"""
        is_empty = not self.head and not self.pending
        return is_empty and self.room is None and self.queue is None

    def assign(self, floor: int) -> int:
        """Assign the next position, which is above the floor."""
        seq = self.next_seq
        if seq <= floor:
            seq = floor + 1
        self.next_seq = seq + 1
        return seq

    def take_back(self, seq: int) -> None:
        """Release this position and all later ones: the log refused them."""
        self.next_seq = seq

    def committed(self, seq: int, offset: int, expires_ms: int) -> None:
        """Advance the head to a committed message."""
        if seq != self.head + 1:
            assert seq > self.head, f"{seq} is not above {self.head}"
            self.skipped.append((self.head + 1, seq - 1))
        self.head = seq
        self.defined_at = offset
        if seq == self.oldest:
            self.oldest_expires_ms = expires_ms

    def skipped_in(self, from_seq: int, to_seq: int, floor: int) -> list[Range]:
        """Return what was skipped between two positions, or will be by the next message."""
        skipped = self.skipped
        if self.head < floor:
            skipped = [*skipped, (self.head + 1, floor)]
        return [one for one in skipped if one[0] <= to_seq and one[1] >= from_seq]

    def advance_oldest(self, seq: int, expires_ms: int) -> None:
        """Set the oldest readable position, and when it expires (0: unknown)."""
        if seq > self.oldest or (seq == self.oldest and expires_ms):
            self.oldest = seq
            self.oldest_expires_ms = expires_ms

    def erase_to(self, seq: int) -> None:
        """Make everything up to this position unreadable."""
        self.erased_to = max(self.erased_to, seq)
        self.advance_oldest(self.erased_to + 1, 0)

    def has_stale_oldest(self, now: int) -> bool:
        """Has the oldest message expired, or is its expiry unknown?"""
        return self.oldest <= self.head and self.oldest_expires_ms <= now

    def seek_oldest(self) -> None:
        """Search for the oldest readable message again, after the clock was set back."""
        self.oldest, self.oldest_expires_ms = self.erased_to + 1, 0

    # Unarchived messages.

    def count_unarchived(self, offset: int, size: int) -> None:
        """Count a message that is not archived yet."""
        self.unarchived_count += 1
        self.unarchived_bytes += size
        newest = self.unarchived[-1] if self.unarchived else None
        if newest is None or newest.count >= _GROUP_COUNT:
            self.unarchived.append(UnarchivedGroup(offset, 1, size))
            return
        newest.last_offset = offset
        newest.count += 1
        newest.bytes += size

    def archived(self, offset: int) -> bool:
        """Stop counting messages before `offset`: they are archived. Return whether any were."""
        before = self.unarchived_count
        while self.unarchived and self.unarchived[0].last_offset < offset:
            group = self.unarchived.popleft()
            self.unarchived_count -= group.count
            self.unarchived_bytes -= group.bytes
        return self.unarchived_count < before


class Buffer:
    """The newest messages of all inboxes in memory, evicted oldest first."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max  # Per inbox.
        self._bytes_max = bytes_max  # In total.
        self.bytes = 0
        # Inbox and position, oldest first; `_stale` of them have been evicted already.
        self._order: deque[tuple[Inbox, int]] = deque()
        self._stale = 0

    def __len__(self) -> int:
        return len(self._order)

    def keep(self, inbox: Inbox, kept: KeptMessage) -> None:
        """Add a committed message, and evict old ones beyond the limits."""
        recent = inbox.recent
        if recent and kept.seq != inbox.recent_first + len(recent):
            # Pages count positions in memory, so what is before a gap is read from the log.
            self._stale += len(recent)
            while recent:
                self._evict(inbox)
        if not recent:
            inbox.recent_first = kept.seq
        recent[kept.seq] = kept
        inbox.texts.add(kept)
        self._order.append((inbox, kept.seq))
        self.bytes += len(kept.json)
        if len(recent) > self._count_max:
            self._evict(inbox)
            self._stale += 1
            if self._stale > _STALE_MAX and self._stale * 2 > len(self._order):
                self._order = deque(one for one in self._order if one[1] in one[0].recent)
                self._stale = 0
        while self.bytes > self._bytes_max:
            self._evict_oldest()

    def expire(self, now: int) -> None:
        """Evict expired messages."""
        while self._order:
            inbox, seq = self._order[0]
            kept = inbox.recent.get(seq)
            if kept is not None and kept.expires_ms > now:
                return
            self._evict_oldest()

    def blank(self, inbox: Inbox, seq: int) -> None:
        """Remove the content of a message; its position stays, as if it had expired."""
        kept = inbox.recent.get(seq)
        if kept is not None:
            self.bytes -= len(kept.json)
            kept.json, kept.expires_ms = b"", 0
            inbox.texts.blank(seq)

    def _evict(self, inbox: Inbox) -> None:
        kept = inbox.recent.pop(inbox.recent_first)
        self.bytes -= len(kept.json)
        inbox.texts.evict(kept.expires_ms)
        inbox.recent_first += 1

    def _evict_oldest(self) -> None:
        inbox, seq = self._order.popleft()
        if seq in inbox.recent:
            self._evict(inbox)
        else:
            self._stale -= 1


# Ids that wait for a snapshot, of about 250 bytes each. There is one for every 50 000 entries.
_UNSAVED_MAX: Final = 200_000


class KnownIds:
    """Positions by the fingerprint of inbox and message id, within the dedup window."""

    def __init__(self, window_ms: int, memory_bytes_max: int, grid_ms: int) -> None:
        self.memory = Dedup(window_ms, memory_bytes_max)
        # Ids in no snapshot yet, and ids in a snapshot that is being written, with its offset.
        self.unsaved: dict[bytes, Recalled] = {}
        self._saving: list[tuple[int, dict[bytes, Recalled]]] = []
        self._window_ms = window_ms
        self._grid_ms = grid_ms
        self._slot_ms = self._id_ms = 0
        # Unsaved ids, how many were dropped because there were too many, and when.
        self._unsaved_count = 0
        self.dropped = 0
        self._dropped_ms = -1
        self.is_dropping = False

    def time(self, now: int) -> int:
        """Return the time to record ids with: on the grid, plus 1 ms for each id since.

        It reveals no more than the order of the log does, and the oldest ids are evicted first.
        """
        at_ms = now - now % self._grid_ms
        if at_ms > self._slot_ms:
            self._slot_ms = at_ms
            self._id_ms = max(at_ms, self._id_ms)
        return self._id_ms

    def oldest_ms(self, now: int) -> int:
        """Return the start of the dedup window; older ids are forgotten."""
        return self.time(now) - self._window_ms

    def find(self, key: bytes, now: int) -> KnownAck | None:
        """Look up an id in memory."""
        return self.memory.find_by(key, self.time(now))

    @property
    def is_whole(self) -> bool:
        """Are all ids of the window in memory?"""
        return not self.memory.is_shortened

    def find_unsaved(self, key: bytes) -> Recalled | None:
        """Look up an id that was evicted from memory before a snapshot held it."""
        if self.is_whole:
            return None
        found = self.unsaved.get(key)
        for _, keys in self._saving:
            found = found or keys.get(key)
        return found

    def may_be_on_disk(self, since_ms: int, now: int) -> bool:
        """May ids of an inbox that exists since `since_ms` be on disk only?"""
        memory = self.memory
        return memory.is_shortened and since_ms <= self.time(now) - memory.window_ms

    def remember(self, key: bytes, known: Recalled, now: int, at_ms: int) -> None:
        """Record an accepted message; `at_ms` is the time shown to clients."""
        id_ms = self.time(now)
        if id_ms < self._slot_ms + self._grid_ms - 1:
            self._id_ms += 1
        # A record stores the time relative to `id_ms`, in a limited range.
        told_ms = max(at_ms, id_ms + DELAY_MS_MIN)
        ack = KnownAck(told_ms, seq=known.seq, stream=known.digest)
        self.memory.remember_by(key, id_ms, ack)
        self._unsaved_count += key not in self.unsaved
        self.unsaved[key] = known
        if self._unsaved_count > _UNSAVED_MAX:
            self._drop_oldest_unsaved(now)

    def remember_all(self, known: dict[bytes, Recalled], now: int, at_ms: int) -> None:
        """Record accepted messages that came at the same time."""
        id_ms = self.time(now)
        if len(known) < 2 or id_ms < self._slot_ms + self._grid_ms - 1:
            # Each has its own time.
            for key, one in known.items():
                self.remember(key, one, now, at_ms)
            return
        told_ms = max(at_ms, id_ms + DELAY_MS_MIN)
        digests, seqs = [one.digest for one in known.values()], [one.seq for one in known.values()]
        self.memory.remember_delivered(list(known), id_ms, told_ms, digests, seqs)
        unsaved = self.unsaved
        before = len(unsaved)
        unsaved.update(known)
        self._unsaved_count += len(unsaved) - before
        if self._unsaved_count > _UNSAVED_MAX:
            self._drop_oldest_unsaved(now)

    def sweep(self, now: int) -> None:
        """Remove some of the ids that have left the window."""
        self.memory.sweep(self.time(now))
        self.is_dropping = self._dropped_ms >= self.oldest_ms(now)

    def _drop_oldest_unsaved(self, now: int) -> None:
        """Snapshots cannot be written: forget the oldest ids that wait for one.

        They are still known as long as `memory` has them, and after a restart that reads them from
        the log.
        """
        keys = self._saving.pop(0)[1] if self._saving else self.unsaved
        if keys is self.unsaved:
            self.unsaved = {}
        self._unsaved_count -= len(keys)
        self.dropped += len(keys)
        self._dropped_ms = self.time(now)
        self.is_dropping = True

    # Snapshots.

    def load(self, kept: list[Remembered]) -> None:
        """Load the ids of an earlier process; call this first."""
        self.memory.load(kept)
        self._id_ms = self.memory.now_ms
        self._slot_ms = self._id_ms - self._id_ms % self._grid_ms

    def take_fresh(self, offset: int) -> Remembered:
        """Return the new ids for the snapshot at this offset."""
        if self.unsaved:
            self._saving.append((offset, self.unsaved))
            self.unsaved = {}
        return self.memory.take_fresh()

    def saved(self, offset: int) -> None:
        """Forget unsaved ids: the snapshot at this offset is on disk."""
        while self._saving and self._saving[0][0] <= offset:
            self._unsaved_count -= len(self._saving.pop(0)[1])


# Offsets per pin at first; beyond the maximum number of pins, neighbours are merged.
_PIN_OFFSETS: Final = 1_024
_PINS_MAX: Final = 4_096


class Pin(msgspec.Struct, gc=False):
    """A range of the log: its first offset, when its last message expires, and bytes of those."""

    first: int
    expires_ms: int
    bytes: int


class Pins:
    """Ranges of the log with messages that can still be fetched, and when they expire."""

    def __init__(self) -> None:
        # Oldest first.
        self._pins: deque[Pin] = deque()
        self._pin_offsets = _PIN_OFFSETS
        # After the newest message; unknown after a restart.
        self._end: int | None = None

    def add(self, offset: int, expires_ms: int, size: int = 0) -> None:
        """Pin a message of this size at `offset` until `expires_ms`."""
        self._end = offset + 1
        if self._pins:
            last = self._pins[-1]
            if offset < last.first:
                return
            if offset - last.first < self._pin_offsets:
                if expires_ms > last.expires_ms:
                    last.expires_ms = expires_ms
                last.bytes += size
                return
        self._pins.append(Pin(offset, expires_ms, size))
        if len(self._pins) > _PINS_MAX:
            self._merge()

    def needed_from(self, now: int) -> int | None:
        """Return the first offset that is needed, if any.

        Expired pins are kept, because the clock may be wrong now and corrected later.
        """
        return next((pin.first for pin in self._pins if pin.expires_ms > now), None)

    def bytes_held(self, now: int, archived: int | None) -> int:
        """Return the bytes in ranges that have not expired and are not archived as a whole."""
        held, end = 0, self._end
        for pin in reversed(self._pins):
            if archived is not None and end is not None and end <= archived:
                break
            held += pin.bytes if pin.expires_ms > now else 0
            end = pin.first
        return held

    def cut(self, offset: int) -> None:
        """Remove pins before the new start of the log."""
        if self._end is not None and self._end <= offset:
            self._pins.clear()
        while len(self._pins) > 1 and self._pins[1].first <= offset:
            self._pins.popleft()

    def all(self) -> list[tuple[int, int]]:
        """Return all pins for a snapshot, without their sizes."""
        return [(pin.first, pin.expires_ms) for pin in self._pins]

    def sizes(self) -> list[int]:
        """Return the sizes of all pins for a snapshot."""
        return [pin.bytes for pin in self._pins]

    @property
    def end(self) -> int:
        """The offset after the last one; 0 if it is not known."""
        return self._end or 0

    def restore(
        self, pins: Iterable[tuple[int, int]], sizes: Iterable[int] = (), end: int = 0
    ) -> None:
        """Restore the pins of a snapshot; one of 0.1.0 has no sizes."""
        self._end = end or None
        known = chain(sizes, repeat(0))
        self._pins = deque(Pin(*pin, size) for pin, size in zip(pins, known, strict=False))

    def _merge(self) -> None:
        """Merge neighbouring ranges, two into one."""
        self._pin_offsets *= 2
        pins = list(self._pins)
        odd = [pins.pop()] if len(pins) % 2 else []
        pairs = zip(pins[::2], pins[1::2], strict=True)
        self._pins = deque(
            Pin(one.first, max(one.expires_ms, other.expires_ms), one.bytes + other.bytes)
            for one, other in pairs
        )
        self._pins.extend(odd)


# What an entry takes in the log besides its id and ciphertext.
_ENTRY_BYTES: Final = 128


def size_in_log(message_id: str, ciphertext: bytes) -> int:
    """Return about how many bytes a message takes in the log."""
    return _ENTRY_BYTES + len(message_id) + len(ciphertext)


class Messages:
    """The messages of all inboxes: ids, the buffer, pins and what is not archived."""

    def __init__(
        self,
        settings: RoomSettings,
        times: values.Times,
        erasures: Erasures,
        dirty: set[Room | Inbox],
    ) -> None:
        """Changed inboxes are added to `dirty`."""
        self._times = times
        self._erasures = erasures
        self._dirty = dirty
        repeat_ms = int(settings.repeat_s * 1000)
        self.ids = KnownIds(repeat_ms, settings.repeat_memory_bytes, times.grid_ms)
        self.buffer = Buffer(settings.buffer, settings.buffer_bytes)
        self.pins = Pins()
        # Everything before this offset is in the archive; `None` without a pipeline.
        self.archived: int | None = None
        # Inboxes with unarchived messages.
        self._waiting: set[Inbox] = set()
        # Blobs do not hold up retention, but take disk until it has deleted them.
        self.blobs = Pins()
        # Bytes of messages and blobs of rooms in the log, as of the last `measure` and since, and
        # of those that are being written.
        self.disk_bytes = 0
        self.pending_bytes = 0
        self._disk_bytes_max = settings.disk_bytes_max

    @property
    def is_disk_full(self) -> bool:
        """Do rooms take as much of the log as they may?"""
        return self.disk_bytes + self.pending_bytes >= self._disk_bytes_max

    def count_blob(self, offset: int, size: int) -> None:
        """Count a committed blob."""
        self.blobs.add(offset, _NEVER_MS, size)
        self.disk_bytes += size

    def cut(self, offset: int) -> None:
        """The log begins here now."""
        self.pins.cut(offset)
        self.blobs.cut(offset)

    def remember(
        self, inbox: Inbox, body: RoomMessageBody, key: bytes, seq: int, offset: int, now: int
    ) -> int:
        """Record a committed message and its id; return the time of its entry."""
        at_ms = self.record(inbox, body, seq, offset, now)
        self.ids.remember(key, Recalled(seq, body.digest), now, at_ms)
        return at_ms

    def record(self, inbox: Inbox, body: RoomMessageBody, seq: int, offset: int, now: int) -> int:
        """Record a committed message; return the time of its entry."""
        inbox.committed(seq, offset, body.expires_ms)
        self._dirty.add(inbox)
        size = size_in_log(body.message_id, body.ciphertext)
        self.pins.add(offset, body.expires_ms, size)
        self.disk_bytes += size
        if self.archived is not None and offset >= self.archived:
            inbox.count_unarchived(offset, len(body.ciphertext))
            self._waiting.add(inbox)
        return self._times.floored(now)

    def measure(self, now: int) -> None:
        """Measure again what rooms take of the log: what has expired or is archived is free."""
        blob_bytes = self.blobs.bytes_held(now, self.archived)
        self.disk_bytes = self.pins.bytes_held(now, self.archived) + blob_bytes

    def await_archive(self, inbox: Inbox, groups: Iterable[UnarchivedGroup]) -> None:
        """Restore the unarchived messages of an inbox from a snapshot."""
        for group in groups:
            inbox.unarchived.append(group)
            inbox.unarchived_count += group.count
            inbox.unarchived_bytes += group.bytes
            self._waiting.add(inbox)

    def archived_to(self, offset: int) -> None:
        """Everything before this offset is archived."""
        self.archived = offset
        for inbox in list(self._waiting):
            if inbox.archived(offset):
                self._dirty.add(inbox)
            if not inbox.unarchived:
                self._waiting.discard(inbox)

    @property
    def unarchived(self) -> int:
        """The highest number of unarchived messages in one inbox."""
        if self.archived is None:
            return 0
        return max((one.unarchived_count for one in self._waiting), default=0)

    def erase(self, inbox: Inbox, through: int) -> None:
        """Make an inbox unreadable up to a position."""
        inbox.erase_to(through)
        self._dirty.add(inbox)
        for seq in inbox.recent:
            if seq <= through:
                self.buffer.blank(inbox, seq)

    def kept_of(self, stored: StoredEntry) -> KeptMessage | None:
        """Decode a message read from the log; `None` if it was erased."""
        if stored.is_erased or self._erasures.hides(stored.offset):
            return None
        body = decode_body(RoomMessageBody, stored.body)
        item = self.page_item(stored.seq, body.message_id, body.ciphertext, body.created_ms)
        return KeptMessage(stored.seq, body.message_id, body.expires_ms, item)

    def page_item(
        self, seq: int, message_id: str, ciphertext: bytes, created_ms: int | None
    ) -> bytes:
        """Return the JSON of a message in a page."""
        return values.page_item(
            seq, message_id, ciphertext, created_ms, is_exact=self._times.is_exact
        )
