"""Ids of accepted messages, remembered for a while, so that a repeat gets the same answer.

A record is 27 bytes: an 80-bit fingerprint of (sender, id), the time and the acknowledgement.
Records live in short `bytes` buckets, oldest first, searched by `bytes.rfind`. The table grows by
splitting one bucket at a time (linear hashing) and forgets by cutting the front of a bucket when it
is touched or swept, so no call handles the whole table. Measured with 200 000 ids: 30 bytes per
id, 32 in resident memory. The native part has a table of its own with the same records.

Arrivals are also counted in slices of the window. When memory runs out, the oldest slice is dropped
early, and `window_ms` says how far back the table still reaches; it grows again with time.

A clock that is set back stands still instead, so records stay in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from signalhub import native

if native.IS_ON or TYPE_CHECKING:
    import signalhub_native

Status = Literal["delivered", "queued"]

SLICES_PER_WINDOW: Final = 4

# Smaller differences between readings are jitter, not a clock that was set back.
_JITTER_MS: Final = 1_000
# A clock beyond 2100 is wrong, too; records have room until 2109.
_BELIEVED_MS_MAX: Final = 4_102_444_800_000
_SWEEP_BUCKETS_MAX: Final = 1_024


class KnownAck(msgspec.Struct, frozen=True):
    """The ack of a message: time, status and position, or for a broadcast its payload as JSON."""

    at_ms: int
    status: Status = "delivered"
    extra: bytes = b""
    seq: int = 0  # The position in its mailbox, topic or inbox, if it has one.
    stream: int = 0  # For a message of a room, the digest of its content.


class Remembered(msgspec.Struct, frozen=True):
    """Records of a period of time, for snapshots."""

    newest_ms: int
    records: bytes
    aside: dict[bytes, KnownAck]


class _Slice(msgspec.Struct):
    """The number of ids in a slice of the window, and how far time was ahead then."""

    began_ms: int
    newest_ms: int
    skew_ms: int
    count: int = 0


class Dedup:
    """Acks of accepted messages by (sender, id), for `window_ms`, in bounded memory."""

    def __init__(self, window_ms: int, memory_bytes_max: int) -> None:
        self._window_ms = window_ms
        self._memory_bytes_max = memory_bytes_max
        self._slice_ms_max = max(1, window_ms // SLICES_PER_WINDOW)
        self._slice_count_max = max(1, memory_bytes_max // SLICES_PER_WINDOW // _RECORD.size)
        self._table = signalhub_native.DedupTable() if native.IS_ON else _Table()
        self._slices: deque[_Slice] = deque()  # Newest first.
        self._sliced = 0  # Ids in all slices.
        self._now_ms = 0
        self._skew_ms = 0
        self._lost_until_ms = -1  # Records up to this time were dropped early.
        # Records since the last `take_fresh`, if they are kept; this doubles their size.
        self._is_fresh_kept = False
        self._fresh = bytearray()
        self._fresh_aside: dict[bytes, KnownAck] = {}

    @property
    def count(self) -> int:
        """The number of ids, including expired ones that were not swept yet."""
        return self._table.count

    @property
    def memory_bytes(self) -> int:
        return self._table.memory_bytes

    @property
    def window_ms(self) -> int:
        """How far back all accepted ids are known."""
        if self._lost_until_ms < 0:
            return self._window_ms
        return min(self._window_ms, self._now_ms - self._lost_until_ms)

    @property
    def now_ms(self) -> int:
        """Its own time, which never goes back."""
        return self._now_ms

    @property
    def is_shortened(self) -> bool:
        """Is the window shorter than configured for lack of memory?"""
        return self._lost_until_ms >= 0 and self.window_ms < self._window_ms

    def find(self, sender: str, message_id: str, now_ms: int) -> KnownAck | None:
        """The ack of an accepted message, unless it is older than the window."""
        return self.find_by(fingerprint(sender, message_id), now_ms)

    def find_by(self, key: bytes, now_ms: int) -> KnownAck | None:
        """The same, by fingerprint."""
        if now_ms + self._skew_ms != self._now_ms:
            self._advance(now_ms)
        found = self._table.find(key)
        if found is None:
            return None
        accepted_at_ms, ack = found
        if accepted_at_ms < self._oldest_kept_ms():
            return None
        if isinstance(ack, KnownAck):
            return ack
        delay_ms, status, seq, stream = ack
        at_ms = accepted_at_ms - self._skew_ms_at(accepted_at_ms) + delay_ms
        return KnownAck(at_ms, status, seq=seq, stream=stream)

    def knows_any(self, keys: list[bytes], now_ms: int) -> bool:
        """Was a message with one of these fingerprints accepted within the window?"""
        self._advance(now_ms)
        return self._table.knows_any(keys, self._oldest_kept_ms())

    def remember(self, sender: str, message_id: str, now_ms: int, ack: KnownAck) -> None:
        """The message was accepted; `ack` is what its sender is told. Once per message."""
        self.remember_by(fingerprint(sender, message_id), now_ms, ack)

    def remember_by(self, key: bytes, now_ms: int, ack: KnownAck) -> None:
        """The same, by fingerprint."""
        if now_ms + self._skew_ms != self._now_ms:
            self._advance(now_ms)
        self._count_arrival()
        table = self._table
        delay_ms = ack.at_ms - (self._now_ms - self._skew_ms)
        record = table.add(key, self._now_ms, ack, delay_ms, self._oldest_kept_ms())
        if self._is_fresh_kept:
            self._fresh += record
            if table.is_aside(key):
                self._fresh_aside[key] = ack
        if table.memory_bytes > self._memory_bytes_max:
            self._bound()

    def remember_queued(
        self, keys: list[bytes], now_ms: int, at_ms: int, first_seq: int, stream: int
    ) -> None:
        """Messages were accepted and have consecutive positions in a stream."""
        self._advance(now_ms)
        table, count = self._table, len(keys)
        delay_ms = at_ms - (self._now_ms - self._skew_ms)
        if first_seq + count > _SEQ_MAX or not self._have_room(count, delay_ms, stream):
            for seq, key in enumerate(keys, first_seq):
                self.remember_by(key, now_ms, KnownAck(at_ms, "queued", seq=seq, stream=stream))
            return
        oldest_ms = self._oldest_kept_ms()
        records = table.add_queued(keys, self._now_ms, delay_ms, stream, first_seq, oldest_ms)
        if self._is_fresh_kept:
            self._fresh += records

    def remember_delivered(
        self, keys: list[bytes], now_ms: int, at_ms: int, streams: list[int], seqs: list[int]
    ) -> None:
        """Messages were accepted, each with a position in its stream."""
        self._advance(now_ms)
        table, count = self._table, len(keys)
        delay_ms = at_ms - (self._now_ms - self._skew_ms)
        if max(seqs) > _SEQ_MAX or not self._have_room(count, delay_ms, max(streams)):
            for key, stream, seq in zip(keys, streams, seqs, strict=True):
                self.remember_by(key, now_ms, KnownAck(at_ms, seq=seq, stream=stream))
            return
        oldest_ms = self._oldest_kept_ms()
        records = table.add_delivered(keys, self._now_ms, delay_ms, streams, seqs, oldest_ms)
        if self._is_fresh_kept:
            self._fresh += records

    def _have_room(self, count: int, delay_ms: int, stream: int) -> bool:
        """Can so many be added as records at once? If so, they are counted."""
        self._count_arrival()
        newest = self._slices[0]
        needed_bytes = count * (_RECORD.size + _BUCKET_BYTES)
        if (
            not DELAY_MS_MIN <= delay_ms <= _DELAY_MASK + DELAY_MS_MIN
            or stream > _STREAM_MAX
            or newest.count + count > self._slice_count_max
            or self._table.memory_bytes + needed_bytes > self._memory_bytes_max
        ):
            # The first one is counted.
            newest.count -= 1
            self._sliced -= 1
            return False
        newest.count += count - 1
        self._sliced += count - 1
        return True

    def _bound(self) -> None:
        table = self._table
        while table.memory_bytes > self._memory_bytes_max and table.count > 1:
            # Trimming bucket by bucket pays only if most buckets have something to trim.
            if (table.count - self._sliced) * _BUCKET_RECORDS_MEAN < table.count:
                self._give_up_oldest_slice()
            table.trim(1, self._oldest_kept_ms())

    def keep_fresh(self) -> None:
        """Start keeping new records for `take_fresh`."""
        self._is_fresh_kept = True

    def take_fresh(self) -> Remembered:
        """Take the records since the last call."""
        records, self._fresh = bytes(self._fresh), bytearray()
        aside, self._fresh_aside = self._fresh_aside, {}
        return Remembered(self._now_ms, records, aside)

    def load(self, kept: Iterable[Remembered]) -> None:
        """Load records of an earlier process; call this first."""
        assert not self._table.count, "only an empty memory can be loaded"
        pieces = []
        for one in kept:
            # If the clock was set back, time continues from where it was.
            self._advance(one.newest_ms)
            count = len(one.records) // _RECORD.size
            if count:
                self._count_arrival()
                self._slices[0].count += count - 1
                self._sliced += count - 1
                pieces.append(one)
        self._table.load(pieces)
        self._bound()

    def sweep(self, now_ms: int) -> None:
        """Free some expired records; takes about a millisecond, called once a second."""
        self._advance(now_ms)
        self._drop_expired_slices()
        self._table.trim(_SWEEP_BUCKETS_MAX, self._oldest_kept_ms())

    def _advance(self, now_ms: int) -> None:
        at_ms = now_ms + self._skew_ms
        if self._now_ms < at_ms <= _BELIEVED_MS_MAX:
            self._now_ms = at_ms
        elif not self._now_ms - _JITTER_MS <= at_ms <= self._now_ms:
            # One millisecond passes, so that every moment belongs to one skew.
            self._now_ms += 1
            self._skew_ms = self._now_ms - now_ms

    def _oldest_kept_ms(self) -> int:
        oldest_ms, lost_ms = self._now_ms - self._window_ms, self._lost_until_ms
        return oldest_ms if oldest_ms > lost_ms else lost_ms + 1

    def _skew_ms_at(self, accepted_at_ms: int) -> int:
        for one in self._slices:
            if one.began_ms <= accepted_at_ms:
                return one.skew_ms
        return self._skew_ms

    def _count_arrival(self) -> None:
        newest = self._slices[0] if self._slices else None
        if (
            newest is None
            or newest.count >= self._slice_count_max
            or self._now_ms - newest.began_ms >= self._slice_ms_max
            or newest.skew_ms != self._skew_ms
        ):
            self._drop_expired_slices()
            newest = _Slice(self._now_ms, self._now_ms, self._skew_ms)
            self._slices.appendleft(newest)
        newest.newest_ms = self._now_ms
        newest.count += 1
        self._sliced += 1

    def _drop_expired_slices(self) -> None:
        while self._slices and self._slices[-1].newest_ms < self._oldest_kept_ms():
            self._sliced -= self._slices.pop().count

    def _give_up_oldest_slice(self) -> None:
        if self._slices:
            oldest = self._slices.pop()
            self._sliced -= oldest.count
            self._lost_until_ms = max(self._lost_until_ms, oldest.newest_ms)
        else:
            self._lost_until_ms = self._now_ms


_KEY_BYTES: Final = 10
RECORD_BYTES: Final = 27
# The key, the word described below, and the position: the stream, and forty bits for the seq.
_RECORD: Final = Struct("<10sQI5s")
assert _RECORD.size == RECORD_BYTES
_VALUE: Final = Struct("<QI5s")
_WORD: Final = Struct("<Q")
_SEQ_BYTES: Final = 5
_SEQ_MAX: Final = 2 ** (8 * _SEQ_BYTES) - 1
_STREAM_MAX: Final = 2**32 - 1

# The word: 42 bits of time in milliseconds, 20 bits from acceptance to ack, the kind.
_KIND_BITS: Final = 2
_DELAY_BITS: Final = 20
_TIME_SHIFT: Final = _KIND_BITS + _DELAY_BITS
_KIND_MASK: Final = (1 << _KIND_BITS) - 1
_DELAY_MASK: Final = (1 << _DELAY_BITS) - 1
# Acks may also be a little older than the time their ids are known by.
DELAY_MS_MIN: Final = -10_000
_DELIVERED: Final = 0
_QUEUED: Final = 1
_ASIDE: Final = 2

_BUCKET_RECORDS_MEAN: Final = 16
# A `bytes` object's own size, what the allocator rounds it up by, and its place in the list.
_BUCKET_BYTES: Final = 33 + 8 + 9
# Likewise for an entry of the dict of acks that do not fit a record.
_ASIDE_BYTES: Final = 300


class _Table:
    """Records by linear hashing, in each bucket in the order of time.

    Invariant: `len(buckets) == mask + 1 + split`. The buckets before `split` and their twins above
    `mask` are told apart by one more bit of the key.
    """

    __slots__ = (
        "_aside",
        "_buckets",
        "_cursor",
        "_mask",
        "_next_mask",
        "_split",
        "count",
        "memory_bytes",
    )

    def __init__(self) -> None:
        self._aside: dict[bytes, KnownAck] = {}
        self._begin()

    def _begin(self) -> None:
        self.count = 0
        self.memory_bytes = _BUCKET_BYTES
        self._cursor = 0
        self._buckets = [b""]
        self._mask = 0
        self._next_mask = 1
        self._split = 0

    def find(self, key: bytes) -> tuple[int, KnownAck | tuple[int, Status, int, int]] | None:
        """When it was accepted; its ack, or the delay until the ack, its status and position."""
        bucket = self._buckets[self._index(key)]
        at = bucket.rfind(key)
        # The bytes of a key may also turn up across two records.
        while at > 0 and at % _RECORD.size:
            at = bucket.rfind(key, 0, at + _KEY_BYTES - 1)
        if at < 0:
            return None
        word, stream, seq = _VALUE.unpack_from(bucket, at + _KEY_BYTES)
        kind = word & _KIND_MASK
        if kind == _ASIDE:
            ack = self._aside.get(key)
            return None if ack is None else (word >> _TIME_SHIFT, ack)
        delay_ms = (word >> _KIND_BITS & _DELAY_MASK) + DELAY_MS_MIN
        status: Status = "queued" if kind == _QUEUED else "delivered"
        return word >> _TIME_SHIFT, (delay_ms, status, int.from_bytes(seq, "little"), stream)

    def knows_any(self, keys: list[bytes], oldest_kept_ms: int) -> bool:
        """Does it hold one of these keys, accepted then or later?"""
        found = map(self.find, keys)
        return any(one is not None and one[0] >= oldest_kept_ms for one in found)

    def is_aside(self, key: bytes) -> bool:
        """Does its ack not fit a record?"""
        return key in self._aside

    def load(self, kept: list[Remembered]) -> None:
        """Fill an empty table with records, oldest first, all at once."""
        count = sum(len(one.records) for one in kept) // _RECORD.size
        while len(self._buckets) * _BUCKET_RECORDS_MEAN < count:
            self._buckets += [b""] * len(self._buckets)
            self._mask, self._next_mask = self._next_mask, self._next_mask << 1 | 1
        mask, size, number = self._mask, _RECORD.size, int.from_bytes
        filled: list[list[bytes]] = [[] for _ in self._buckets]
        for one in kept:
            records = one.records
            for at in range(0, len(records), size):
                record = records[at : at + size]
                filled[number(record[:4], "little") & mask].append(record)
            self._aside.update(one.aside)
        self._buckets = [b"".join(bucket) for bucket in filled]
        self.count = count
        aside_bytes = sum(_ASIDE_BYTES + len(ack.extra) for ack in self._aside.values())
        self.memory_bytes = count * size + len(self._buckets) * _BUCKET_BYTES + aside_bytes

    def add(
        self, key: bytes, at_ms: int, ack: KnownAck, delay_ms: int, oldest_kept_ms: int
    ) -> bytes:
        """The record that was added."""
        index = self._index(key)
        kept = self._trimmed(self._buckets[index], oldest_kept_ms)
        delay = delay_ms - DELAY_MS_MIN
        is_large = ack.extra or ack.seq > _SEQ_MAX or ack.stream > _STREAM_MAX
        if is_large or not 0 <= delay <= _DELAY_MASK:
            self._take_back(key)
            self._aside[key] = ack
            self.memory_bytes += _ASIDE_BYTES + len(ack.extra)
            record = _RECORD.pack(key, at_ms << _TIME_SHIFT | _ASIDE, 0, b"")
        else:
            kind = _QUEUED if ack.status == "queued" else _DELIVERED
            word = at_ms << _TIME_SHIFT | delay << _KIND_BITS | kind
            record = _RECORD.pack(key, word, ack.stream, ack.seq.to_bytes(_SEQ_BYTES, "little"))
        self._buckets[index] = kept + record
        self.count += 1
        self.memory_bytes += _RECORD.size
        if self.count > len(self._buckets) * _BUCKET_RECORDS_MEAN:
            self._split_one()
        return record

    def add_queued(
        self,
        keys: list[bytes],
        at_ms: int,
        delay_ms: int,
        stream: int,
        first_seq: int,
        oldest_kept_ms: int,
    ) -> bytes:
        """Add consecutive messages of a stream that are queued; return their records."""
        ack_ms = at_ms + delay_ms
        return b"".join(
            self.add(
                key,
                at_ms,
                KnownAck(ack_ms, "queued", seq=seq, stream=stream),
                delay_ms,
                oldest_kept_ms,
            )
            for seq, key in enumerate(keys, first_seq)
        )

    def add_delivered(
        self,
        keys: list[bytes],
        at_ms: int,
        delay_ms: int,
        streams: list[int],
        seqs: list[int],
        oldest_kept_ms: int,
    ) -> bytes:
        """Add messages that are delivered, with their streams and positions; return the records."""
        ack_ms = at_ms + delay_ms
        return b"".join(
            self.add(
                key,
                at_ms,
                KnownAck(ack_ms, seq=seq, stream=stream),
                delay_ms,
                oldest_kept_ms,
            )
            for key, stream, seq in zip(keys, streams, seqs, strict=True)
        )

    def trim(self, buckets: int, oldest_kept_ms: int) -> None:
        """Cut older records from the next few buckets, going round and round."""
        for _ in range(min(buckets, len(self._buckets))):
            self._cursor = (self._cursor + 1) % len(self._buckets)
            self._buckets[self._cursor] = self._trimmed(self._buckets[self._cursor], oldest_kept_ms)
        if not self.count:
            self._begin()

    def _trimmed(self, bucket: bytes, oldest_kept_ms: int) -> bytes:
        oldest_word = oldest_kept_ms << _TIME_SHIFT
        end = 0
        while end < len(bucket):
            (word,) = _WORD.unpack_from(bucket, end + _KEY_BYTES)
            if word >= oldest_word:
                break
            if word & _KIND_MASK == _ASIDE:
                self._take_back(bucket[end : end + _KEY_BYTES])
            end += _RECORD.size
        if not end:
            return bucket
        self.count -= end // _RECORD.size
        self.memory_bytes -= end
        return bucket[end:]

    def _take_back(self, key: bytes) -> None:
        ack = self._aside.pop(key, None)
        if ack is not None:
            self.memory_bytes -= _ASIDE_BYTES + len(ack.extra)

    def _index(self, key: bytes) -> int:
        bits = int.from_bytes(key[:4], "little")
        index = bits & self._mask
        return index if index >= self._split else bits & self._next_mask

    def _split_one(self) -> None:
        bucket = self._buckets[self._split]
        stays: list[bytes] = []
        moves: list[bytes] = []
        for at in range(0, len(bucket), _RECORD.size):
            moving = int.from_bytes(bucket[at : at + 4], "little") & self._mask + 1
            (moves if moving else stays).append(bucket[at : at + _RECORD.size])
        self._buckets[self._split] = b"".join(stays)
        self._buckets.append(b"".join(moves))
        self.memory_bytes += _BUCKET_BYTES
        self._split += 1
        if self._split > self._mask:
            self._mask, self._next_mask = self._next_mask, self._next_mask << 1 | 1
            self._split = 0


def accepted_ms(record: bytes) -> int:
    """When the message of a record was accepted."""
    (word,) = _WORD.unpack_from(record, _KEY_BYTES)
    time_ms: int = word >> _TIME_SHIFT
    return time_ms


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """What is known of a room's message: its position, and a digest of its content.

    The position of an unknown message is 0, and so is the digest of one that was recorded before
    there were digests.
    """

    seq: int = 0
    digest: int = 0


def recalled(record: bytes) -> Recalled:
    """The position and digest in a record."""
    _, digest, seq = _VALUE.unpack_from(record, _KEY_BYTES)
    return Recalled(int.from_bytes(seq, "little"), digest)


def plain_fingerprint(sender: str, message_id: str) -> bytes:
    """The key of a message."""
    # The length keeps ("ab", "c") and ("a", "bc") apart. A collision would swallow a new message;
    # among ten million ids its odds are below one in ten billion.
    text = f"{len(sender)} {sender}{message_id}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


fingerprint = signalhub_native.fingerprint if native.IS_ON else plain_fingerprint
