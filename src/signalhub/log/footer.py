"""The footer of a sealed segment: its proof, and the position of every entry.

The summary can be read and checked alone; it is kept for a deleted segment, in its own file. The
chain is a SHA-256 over the chain of the previous segment and the digests of all entries, so nothing
in the past can be changed without changing every later chain. All numbers are little-endian.

    footer   summary | mark offsets u32… | mark positions u32… | hashes u64… | run positions u32…
             | runs
    summary  magic 8 | version u32 | epoch u32 | base u64 | end u64 | bytes u64 | created u64
             | earliest u64 | latest u64 | marks u32 | runs u32 | previous chain 32 | chain 32
             | crc32c u32
    run      stream epoch u32 | first seq u64 | latest u64 | count u32 | stream length u16 | stream
             | positions u32…
    trailer  position of the footer u64 | its length u32 | its crc32c u32 | crc32c u32 | magic 8

Marks are the blocks of `positions.py`, their offsets counted from the base. Hashes are sorted;
the position of a run is counted from the first run.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct
from typing import Final

import msgspec
from crc32c import crc32c

from signalhub.log.disk import File
from signalhub.log.positions import Run, Span, mark_before
from signalhub.log.record import Unreadable
from signalhub.log.segment import BATCHES_BEGIN, Digest, SegmentInfo, segment_name

VERSION: Final = 1
MAGIC: Final = b"SHubFoot"
TRAILER_MAGIC: Final = b"SHubEnd."
GENESIS: Final = bytes(32)
"""The chain before the first segment."""

_SUMMARY: Final = Struct("<8sIIQQQQQQII32s32s")
_TRAILER: Final = Struct("<QII")
_TRAILER_END: Final = Struct("<I8s")
_RUN: Final = Struct("<IQQIH")
_CRC: Final = Struct("<I")
_FOOTER_NAME: Final = re.compile(r"(\d{20})\.footer")

SUMMARY_BYTES: Final = _SUMMARY.size + _CRC.size
TRAILER_BYTES: Final = _TRAILER.size + _TRAILER_END.size


class SegmentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a sealed segment."""

    epoch: int
    base: int
    end: int
    bytes: int
    created_ms: int
    min_ms: int
    max_ms: int
    marks: int
    runs: int
    previous_chain: Digest
    chain: Digest


def footer_name(base: int) -> str:
    """The file with the footer of a deleted segment."""
    return f"{base:020d}.footer"


def footer_base(name: str) -> int | None:
    """The base offset in the name of such a file; None for others."""
    found = _FOOTER_NAME.fullmatch(name)
    return int(found[1]) if found else None


def encode_summary(summary: SegmentSummary) -> bytes:
    fields = _SUMMARY.pack(
        MAGIC,
        VERSION,
        summary.epoch,
        summary.base,
        summary.end,
        summary.bytes,
        summary.created_ms,
        summary.min_ms,
        summary.max_ms,
        summary.marks,
        summary.runs,
        summary.previous_chain,
        summary.chain,
    )
    return fields + _CRC.pack(crc32c(fields))


def decode_summary(data: bytes) -> SegmentSummary:
    """The verified summary at the beginning of some bytes; raises `Unreadable`."""
    if len(data) < SUMMARY_BYTES:
        raise Unreadable("the footer is truncated")
    magic, version, *fields = _SUMMARY.unpack_from(data)
    if magic != MAGIC:
        raise Unreadable("not a footer")
    if crc32c(data[: _SUMMARY.size]) != _CRC.unpack_from(data, _SUMMARY.size)[0]:
        raise Unreadable("the checksum of the footer's summary does not match")
    if version != VERSION:
        raise Unreadable(f"the footer has version {version}; this program supports {VERSION}")
    return msgspec.convert(dict(zip(_SUMMARY_FIELDS, fields, strict=True)), SegmentSummary)


_SUMMARY_FIELDS: Final = [field.name for field in msgspec.structs.fields(SegmentSummary)]


def sealed_segment(summary: SegmentSummary) -> SegmentInfo:
    """What a summary says about its segment."""
    return SegmentInfo(
        name=segment_name(summary.base),
        base=summary.base,
        end=summary.end,
        bytes=summary.bytes,
        epoch=summary.epoch,
        created_ms=summary.created_ms,
        is_sealed=True,
        min_ms=summary.min_ms,
        max_ms=summary.max_ms,
        chain=summary.chain,
    )


def encode_run(stream: bytes, stream_epoch: int, run: Run) -> bytes:
    count = len(run.positions)
    head = _RUN.pack(stream_epoch, run.first_seq, run.max_ms, count, len(stream))
    return b"".join((head, stream, bytes(run.positions)))


def run_hash(stream: bytes, stream_epoch: int) -> int:
    """The sort key of the runs of a footer."""
    digest = blake2b(stream, digest_size=8, salt=_CRC.pack(stream_epoch)).digest()
    return int.from_bytes(digest, "little")


def encode_trailer(position: int, length: int, crc: int) -> bytes:
    fields = _TRAILER.pack(position, length, crc)
    return fields + _TRAILER_END.pack(crc32c(fields), TRAILER_MAGIC)


class _Trailer(msgspec.Struct, frozen=True):
    position: int
    length: int
    crc: int


def _read_trailer(file: File) -> _Trailer:
    data = file.read(TRAILER_BYTES, max(0, file.size() - TRAILER_BYTES))
    if len(data) < TRAILER_BYTES or not data.endswith(TRAILER_MAGIC):
        raise Unreadable("there is no footer")
    if crc32c(data[: _TRAILER.size]) != _TRAILER_END.unpack_from(data, _TRAILER.size)[0]:
        raise Unreadable("the checksum of the footer's trailer does not match")
    trailer = _Trailer(*_TRAILER.unpack_from(data))
    if trailer.position + trailer.length + TRAILER_BYTES != file.size():
        raise Unreadable("the footer is not where its trailer says")
    return trailer


def has_trailer(file: File) -> bool:
    """Whether a file ends like a sealed segment, even if its footer is damaged."""
    data = file.read(TRAILER_BYTES, max(0, file.size() - TRAILER_BYTES))
    if len(data) < TRAILER_BYTES:
        return False
    crc: int = _TRAILER_END.unpack_from(data, _TRAILER.size)[0]
    return data.endswith(TRAILER_MAGIC) or crc32c(data[: _TRAILER.size]) == crc


def read_summary(file: File) -> SegmentSummary:
    """The summary of a sealed segment, without the rest of its footer; raises `Unreadable`."""
    trailer = _read_trailer(file)
    summary = decode_summary(file.read(SUMMARY_BYTES, trailer.position))
    if summary.bytes != trailer.position:
        raise Unreadable("the footer belongs to another position")
    return summary


def footer_crc(file: File) -> int:
    """The checksum of a sealed segment's footer, which identifies it."""
    return _read_trailer(file).crc


def read_footer(file: File) -> Footer:
    """The whole verified footer of a sealed segment; raises `Unreadable`."""
    trailer = _read_trailer(file)
    data = file.read(trailer.length, trailer.position)
    if len(data) < trailer.length or crc32c(data) != trailer.crc:
        raise Unreadable("the checksum of the footer does not match")
    return Footer(data)


class Footer:
    """The look-up of a sealed segment, in its form on disk; nothing is unpacked in advance."""

    def __init__(self, data: bytes) -> None:
        self.summary = decode_summary(data)
        self.base = self.summary.base
        self.begin = BATCHES_BEGIN
        self.data = data
        self._view = memoryview(data)
        marks, runs = self.summary.marks, self.summary.runs
        at = SUMMARY_BYTES
        self._mark_offsets = self._view[at : (at := at + 4 * marks)].cast("I")
        self._mark_positions = self._view[at : (at := at + 4 * marks)].cast("I")
        self._hashes = self._view[at : (at := at + 8 * runs)].cast("Q")
        self._run_positions = self._view[at : (at := at + 4 * runs)].cast("I")
        self._runs_begin = at

    def runs(self, stream: str, stream_epoch: int) -> list[Run]:
        """The file positions of a stream's entries, by position in the stream."""
        name = stream.encode()
        wanted = run_hash(name, stream_epoch)
        found: list[Run] = []
        at = bisect_left(self._hashes, wanted)
        while at < len(self._hashes) and self._hashes[at] == wanted:
            its_name, its_epoch, run = self._run(at)
            if its_name == name and its_epoch == stream_epoch:
                found.append(run)
            at += 1
        return sorted(found, key=lambda run: run.first_seq)

    def parts(self) -> list[object]:
        """Nothing: a footer is one piece."""
        return []

    def last_seqs(self, count: int) -> Iterator[list[tuple[str, int, int]]]:
        """Stream, stream epoch and last position of every run, in groups of a given size."""
        for begin in range(0, len(self._hashes), count):
            runs = map(self._run, range(begin, min(begin + count, len(self._hashes))))
            yield [(name.decode(), epoch, run.end_seq - 1) for name, epoch, run in runs]

    def span_of_offset(self, offset: int) -> Span:
        """The block that holds an offset."""
        return self._span(mark_before(self._mark_offsets, offset - self.base))

    def span_of_position(self, position: int) -> Span:
        """The block that holds a position."""
        return self._span(mark_before(self._mark_positions, position))

    def _span(self, mark: int) -> Span:
        positions = self._mark_positions
        end = positions[mark + 1] if mark + 1 < len(positions) else self.summary.bytes
        return Span(positions[mark], end, self.base + self._mark_offsets[mark])

    def _run(self, at: int) -> tuple[bytes, int, Run]:
        position = self._runs_begin + self._run_positions[at]
        stream_epoch, first_seq, max_ms, count, length = _RUN.unpack_from(self._view, position)
        begin = position + _RUN.size
        middle = begin + length
        positions = self._view[middle : middle + 4 * count].cast("I")
        return bytes(self._view[begin:middle]), stream_epoch, Run(first_seq, positions, max_ms)
