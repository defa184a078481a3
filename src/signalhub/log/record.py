"""The record format of the log: entries, and the batches they are committed in.

A batch is written and verified as a whole: its checksum covers its header and every entry. An entry
has a stream, a position in it, the time it was accepted, and a body; the body is MessagePack, whose
structure depends on the kind and is declared where the kind is written.

All numbers are little-endian. A change that older readers would misread raises `VERSION`.

    batch   length u32 | crc32c u32 | magic u16 | version u8 | flags u8 | count u32 | epoch u32
            | first offset u64 | durable head u64 | time u64 | entries
    entry   length u32 | kind u8 | flags u8 | stream length u16 | stream epoch u32 | seq u64
            | accepted at u64 | salt 16 | stream | body

`length` counts the whole batch, or what follows in an entry. The checksum begins after itself.
The durable head is the one known when the batch was written: everything below it was on disk.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec
from crc32c import crc32c

from signalhub import native
from signalhub.wire.entry import Entry, EntryRun, StoredEntry

if native.IS_ON or TYPE_CHECKING:
    import signalhub_native

VERSION: Final = 1
MAGIC: Final = 0x4853  # "SH"
SALT_BYTES: Final = 16
BATCH_BYTES_MAX: Final = 2**30

_GUARD: Final = Struct("<II")
_HEAD: Final = Struct("<HBBIIQQQ")
_ENTRY: Final = Struct("<IBBHIQQ")
_LENGTH: Final = Struct("<I")

HEADER_BYTES: Final = _GUARD.size + _HEAD.size
ENTRY_HEADER_BYTES: Final = _ENTRY.size + SALT_BYTES
# The body and salt of such an entry were erased and replaced by the entry's digest.
ERASED: Final = 1


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a batch; `length` includes it."""

    length: int
    crc: int
    count: int
    epoch: int
    first: int
    durable: int
    time_ms: int

    @property
    def end(self) -> int:
        """The offset after the last entry."""
        return self.first + self.count


class Unreadable(ValueError):
    """Bytes that are not a valid batch or entry; the text says what is wrong."""


class UnknownVersion(Unreadable):
    """A complete batch in a format that this program does not know."""


def encode_entry(entry: Entry, salt: bytes) -> bytes:
    """The bytes of an entry in a batch."""
    stream = entry.stream.encode()
    body = entry.body
    length = ENTRY_HEADER_BYTES - _LENGTH.size + len(stream) + len(body)
    head = _ENTRY.pack(
        length, entry.kind, 0, len(stream), entry.stream_epoch, entry.seq, entry.at_ms
    )
    return b"".join((head, salt, stream, body))


# Consecutive entries of a stream: its name and epoch, the first position, the latest time, and
# where each is in the file, as an array of type `I` or its bytes.
Group: TypeAlias = "tuple[str, int, int, int, array[int]] | tuple[str, int, int, int, bytes]"


class Records(Protocol):
    """The encoded entries of one batch."""

    @property
    def count(self) -> int: ...

    @property
    def data(self) -> bytes:
        """The bytes of all of them."""

    def groups(self, begin: int, /) -> Sequence[Group]:
        """Entries with positions in their streams, if the first entry begins at `begin`."""


class PlainRecords:
    """The same, made in Python."""

    def __init__(self, entries: Sequence[Entry | EntryRun], salts: bytes) -> None:
        self._entries = entries = _singly(entries)
        self._encoded = [
            encode_entry(entry, salts[at : at + SALT_BYTES])
            for entry, at in zip(entries, range(0, len(salts), SALT_BYTES), strict=True)
        ]
        self.data = b"".join(self._encoded)

    @property
    def count(self) -> int:
        return len(self._entries)

    def groups(self, begin: int) -> list[Group]:
        groups: list[Group] = []
        stream, epoch, first, next_seq, max_ms = "", 0, 0, 0, 0
        positions = array("I")
        for entry, data in zip(self._entries, self._encoded, strict=True):
            seq = entry.seq
            if seq:
                at_ms = entry.at_ms
                if seq == next_seq and entry.stream_epoch == epoch and entry.stream == stream:
                    if at_ms > max_ms:
                        max_ms = at_ms
                else:
                    if positions:
                        groups.append((stream, epoch, first, max_ms, positions))
                        positions = array("I")
                    stream, epoch, first, max_ms = entry.stream, entry.stream_epoch, seq, at_ms
                positions.append(begin)
                next_seq = seq + 1
            begin += len(data)
        if positions:
            groups.append((stream, epoch, first, max_ms, positions))
        return groups


def _singly(entries: Sequence[Entry | EntryRun]) -> Sequence[Entry]:
    if EntryRun not in map(type, entries):
        return entries  # type: ignore[return-value]
    singly: list[Entry] = []
    for one in entries:
        singly += one.entries() if isinstance(one, EntryRun) else (one,)
    return singly


def encode_entries(entries: list[Entry | EntryRun], salts: bytes) -> Records:
    """Encode the entries of a batch, with concatenated salts."""
    if native.IS_ON:
        return signalhub_native.Records(entries, salts)
    return PlainRecords(entries, salts)


def encode_batch(
    entries: Sequence[bytes],
    *,
    first: int,
    epoch: int,
    durable: int,
    time_ms: int,
    count: int | None = None,
) -> bytes:
    """The bytes of a batch of encoded entries; `count` says how many if some are joined."""
    body = b"".join(entries)
    number = len(entries) if count is None else count
    head = _HEAD.pack(MAGIC, VERSION, 0, number, epoch, first, durable, time_ms)
    guard = _GUARD.pack(HEADER_BYTES + len(body), crc32c(body, crc32c(head)))
    return b"".join((guard, head, body))


def read_batch(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """The verified header of the batch at a position; raises `Unreadable`."""
    if len(data) - position < HEADER_BYTES:
        raise Unreadable("the header is truncated")
    length, crc = _GUARD.unpack_from(data, position)
    magic, version, _, count, epoch, first, durable, time_ms = _HEAD.unpack_from(
        data, position + _GUARD.size
    )
    if magic != MAGIC:
        raise Unreadable("not the start of a batch")
    if not HEADER_BYTES <= length <= BATCH_BYTES_MAX:
        raise Unreadable(f"invalid batch length {length}")
    if len(data) - position < length:
        raise Unreadable("the batch is truncated")
    if crc32c(memoryview(data)[position + _GUARD.size : position + length]) != crc:
        raise Unreadable("the checksum does not match")
    if version != VERSION:
        raise UnknownVersion(f"the batch has version {version}; this program supports {VERSION}")
    return BatchHeader(length, crc, count, epoch, first, durable, time_ms)


def batch_length(data: bytes | memoryview, position: int = 0) -> int:
    """The length that the batch at a position claims to have; 0 if none starts there."""
    if len(data) - position < HEADER_BYTES:
        return 0
    length: int = _LENGTH.unpack_from(data, position)[0]
    return length


def read_entry(data: bytes | memoryview, position: int, offset: int) -> StoredEntry:
    """The entry at a position of verified bytes; raises `Unreadable` if it is malformed."""
    length, kind, flags, stream_bytes, stream_epoch, seq, at_ms = _ENTRY.unpack_from(data, position)
    begin = position + ENTRY_HEADER_BYTES
    end = position + _LENGTH.size + length
    middle = begin + stream_bytes
    stream = _stream_name(data, begin, middle)
    body = bytes(data[middle:end])
    return StoredEntry(offset, kind, stream, stream_epoch, seq, at_ms, body, bool(flags & ERASED))


def _stream_name(data: bytes | memoryview, begin: int, end: int) -> str:
    try:
        return str(data[begin:end], "utf-8")
    except UnicodeDecodeError:
        raise Unreadable("the stream of an entry is not text") from None


def read_entries(
    data: bytes | memoryview, batch: BatchHeader, position: int = 0
) -> Iterator[StoredEntry]:
    """The entries of a verified batch."""
    for offset, at in enumerate(entry_positions(data, batch, position), batch.first):
        yield read_entry(data, at, offset)


def read_entry_heads(
    data: bytes | memoryview, batch: BatchHeader, position: int = 0
) -> Iterator[tuple[int, int, str, int, int, int]]:
    """The position, flags, stream, epoch, seq and time of every entry of a verified batch."""
    at = position + HEADER_BYTES
    end = position + batch.length
    for _ in range(batch.count):
        if at + ENTRY_HEADER_BYTES > end:
            raise Unreadable("the entries do not fill their batch")
        length, _, flags, stream_bytes, stream_epoch, seq, at_ms = _ENTRY.unpack_from(data, at)
        begin = at + ENTRY_HEADER_BYTES
        stream = _stream_name(data, begin, begin + stream_bytes)
        yield at, flags, stream, stream_epoch, seq, at_ms
        at += _LENGTH.size + length
    if at != end:
        raise Unreadable("the entries do not fill their batch")


def entry_positions(
    data: bytes | memoryview, batch: BatchHeader, position: int = 0
) -> Iterator[int]:
    """The positions of the entries of a verified batch; raises `Unreadable` if it is malformed."""
    at = position + HEADER_BYTES
    end = position + batch.length
    for _ in range(batch.count):
        if at + ENTRY_HEADER_BYTES > end:
            raise Unreadable("the entries do not fill their batch")
        yield at
        at += _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
    if at != end:
        raise Unreadable("the entries do not fill their batch")


def erased_entry(data: bytes | memoryview, position: int, stream: bytes | None = None) -> bytes:
    """The same entry without its body and salt, optionally with another stream name.

    Its digest replaces them, so the chain does not change.
    """
    _, kind, flags, stream_bytes, stream_epoch, seq, at_ms = _ENTRY.unpack_from(data, position)
    begin = position + ENTRY_HEADER_BYTES
    name = bytes(data[begin : begin + stream_bytes]) if stream is None else stream
    digest = entry_digest(data, position)
    length = ENTRY_HEADER_BYTES - _LENGTH.size + len(name) + len(digest)
    head = _ENTRY.pack(length, kind, flags | ERASED, len(name), stream_epoch, seq, at_ms)
    return b"".join((head, bytes(SALT_BYTES), name, digest))


def entry_digest(data: bytes | memoryview, position: int) -> bytes:
    """The digest used in the chain of a segment: SHA-256 of the salted entry.

    An erased entry keeps its original digest.
    """
    length, _, flags, stream_bytes, *_ = _ENTRY.unpack_from(data, position)
    end = position + _LENGTH.size + length
    if flags & ERASED:
        begin = position + ENTRY_HEADER_BYTES + stream_bytes
        return bytes(data[begin:end])
    return sha256(memoryview(data)[position:end]).digest()
