"""A segment: one file of batches, named after the first offset in it, sealed with a footer.

A segment gets its name only after its header is on disk, so a named file without a valid header is
not the result of a crash. All numbers are little-endian.

    header  magic 8 | version u32 | epoch u32 | base u64 | created u64 | zero u32 | crc32c u32
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator
from struct import Struct
from typing import Final

import msgspec
from crc32c import crc32c

from signalhub.log.disk import Disk, File
from signalhub.log.record import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    BatchHeader,
    Unreadable,
    batch_length,
    read_batch,
)

VERSION: Final = 1
MAGIC: Final = b"SHubSegm"
PREPARED_NAME: Final = "next.tmp"

Digest = bytes

_HEADER: Final = Struct("<8sIIQQI")
_CRC: Final = Struct("<I")
BATCHES_BEGIN: Final = _HEADER.size + _CRC.size

_WINDOW_BYTES: Final = 2**20
_PREPARED_PIECE_BYTES: Final = 2**18
_ZEROS: Final = bytes(_WINDOW_BYTES)
_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one segment without reading it."""

    name: str
    base: int
    end: int
    """The offset after its last entry."""
    bytes: int
    """The position after its last batch."""
    epoch: int
    created_ms: int
    is_sealed: bool = False
    min_ms: int = 0
    max_ms: int = 0
    """When its entries were accepted; for an unsealed one, when its batches were written."""
    chain: Digest = b""
    """Empty until it is sealed."""
    revision: int = 0
    """How often this process has replaced its file."""


class Header(msgspec.Struct, frozen=True):
    """The header of a segment."""

    epoch: int
    base: int
    created_ms: int


def segment_name(base: int) -> str:
    return f"{base:020d}.log"


def temporary_name(base: int) -> str:
    """The name of a segment, or of its footer, while it is being written."""
    return f"{base:020d}.tmp"


def base_of(name: str) -> int | None:
    """The base offset in the name of a segment; None for other files."""
    found = _SEGMENT_NAME.fullmatch(name)
    return int(found[1]) if found else None


def encode_header(header: Header) -> bytes:
    fields = _HEADER.pack(MAGIC, VERSION, header.epoch, header.base, header.created_ms, 0)
    return fields + _CRC.pack(crc32c(fields))


def read_header(file: File) -> Header:
    """The verified header of a segment; raises `Unreadable`."""
    data = file.read(BATCHES_BEGIN, 0)
    if len(data) < BATCHES_BEGIN:
        raise Unreadable("the header of the segment is truncated")
    magic, version, epoch, base, created_ms, _ = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Unreadable("not a segment of a log")
    if crc32c(data[: _HEADER.size]) != _CRC.unpack_from(data, _HEADER.size)[0]:
        raise Unreadable("the checksum of the segment's header does not match")
    if version != VERSION:
        raise Unreadable(f"the segment has version {version}; this program supports {VERSION}")
    return Header(epoch, base, created_ms)


def create_segment(disk: Disk, header: Header, *, prepared: File | None = None) -> File:
    """A new segment with its name on disk, ready for batches.

    `prepared` is the file `PREPARED_NAME`, filled with zeros. An existing file is replaced.
    """
    temporary = PREPARED_NAME if prepared else temporary_name(header.base)
    if prepared is None:
        disk.remove(temporary)
    file = prepared or disk.create(temporary)
    try:
        file.write(encode_header(header), 0)
        file.sync()
        disk.rename(temporary, segment_name(header.base))
        disk.sync()
    except OSError:
        file.close()
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise
    return file


def prepare_segment(disk: Disk, size: int) -> Generator[None, None, File]:
    """The file `PREPARED_NAME`, filled with zeros on disk, written in small steps.

    Writing into allocated space saves every sync a change of the file size.
    """
    disk.remove(PREPARED_NAME)
    file = disk.create(PREPARED_NAME)
    try:
        for position in range(0, size, _PREPARED_PIECE_BYTES):
            file.write(_ZEROS[: min(_PREPARED_PIECE_BYTES, size - position)], position)
            yield
            if position % _WINDOW_BYTES == 0:
                # Many small syncs, because a large one would delay commits.
                file.sync()
        file.sync()
    except OSError:
        file.close()
        with contextlib.suppress(OSError):
            disk.remove(PREPARED_NAME)
        raise
    except GeneratorExit:
        # The hub stops before it is ready; the next start removes the file.
        file.close()
        raise
    return file


def new_segment(header: Header) -> SegmentInfo:
    """The description of a segment just created."""
    return SegmentInfo(
        name=segment_name(header.base),
        base=header.base,
        end=header.base,
        bytes=BATCHES_BEGIN,
        epoch=header.epoch,
        created_ms=header.created_ms,
        min_ms=header.created_ms,
        max_ms=header.created_ms,
    )


class LocatedBatch(msgspec.Struct, frozen=True, gc=False):
    """A verified batch in its file, and in `data`, where it starts at `at`."""

    position: int
    batch: BatchHeader
    data: bytes
    at: int

    @property
    def end(self) -> int:
        """The position of the next batch."""
        return self.position + self.batch.length


def scan_batches(file: File, begin: int, end: int) -> Iterator[LocatedBatch]:
    """The verified batches between two positions; raises `Unreadable` at the first invalid one."""
    data, origin, position = b"", begin, begin
    while position < end:
        at = position - origin
        if len(data) - at < max(batch_length(data, at), HEADER_BYTES):
            data, origin, at = file.read(min(_WINDOW_BYTES, end - position), position), position, 0
            length = batch_length(data)
            if len(data) < length <= BATCH_BYTES_MAX:
                data = file.read(min(length, end - position), position)
        batch = read_batch(data, at)
        yield LocatedBatch(position, batch, data, at)
        position += batch.length


def used_bytes(file: File, begin: int, end: int) -> int:
    """The number of bytes from `begin` on before the prepared space, which is all zeros."""
    used = 0
    for position in range(begin, end, _WINDOW_BYTES):
        data = file.read(min(_WINDOW_BYTES, end - position), position)
        if data != _ZEROS and data != _ZEROS[: len(data)]:
            used = position - begin + len(data.rstrip(b"\0"))
    return used
