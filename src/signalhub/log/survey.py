"""A read-only survey of a log folder.

For sealed segments the footers are trusted, because their batches are verified whenever they are
read. Unsealed ones are read and verified completely. A segment must end where the next one starts;
only the last one may end anywhere.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from typing import Final

import msgspec

from signalhub.log.disk import Disk, File
from signalhub.log.footer import (
    GENESIS,
    SegmentSummary,
    decode_summary,
    footer_base,
    footer_name,
    read_summary,
    sealed_segment,
)
from signalhub.log.head import HEAD_NAME, Head, head_fault, read_head
from signalhub.log.record import HEADER_BYTES, UnknownVersion, Unreadable, batch_length, read_batch
from signalhub.log.segment import (
    BATCHES_BEGIN,
    MAGIC,
    PREPARED_NAME,
    Header,
    SegmentInfo,
    base_of,
    new_segment,
    read_header,
    scan_batches,
    segment_name,
    used_bytes,
)

RESERVE_NAME: Final = "reserve"
INDEX_NAME: Final = "index.db"
TORN_SUFFIX: Final = ".torn"

_LEFTOVER_NAME: Final = re.compile(rf"\d{{20}}\.tmp|{re.escape(PREPARED_NAME)}")
_OTHER_NAME: Final = re.compile(
    rf"\d{{20}}\.\d+(\.\d+)?{re.escape(TORN_SUFFIX)}"
    rf"|{HEAD_NAME}|{RESERVE_NAME}|{re.escape(INDEX_NAME)}(-wal|-shm)?"
)
_STEPS_BEYOND_MAX: Final = 10_000


class Damage(msgspec.Struct, frozen=True):
    """A fault that a crash cannot cause."""

    segment: str
    position: int
    reason: str


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the last segment."""

    info: SegmentInfo
    is_unborn: bool = False
    """It has a name, but nothing was ever written to it."""
    torn_bytes: int = 0
    torn_reason: str = ""
    proven: int = 0
    """Everything below is known to have been synced, if it was ever written."""
    known_beyond: int = 0
    """Valid batches after the torn one say that everything below this was synced."""
    unproven_begin: int = BATCHES_BEGIN
    """The position of the first batch that is not known to be synced."""


class LogSurvey(msgspec.Struct, kw_only=True):
    """The result of a survey; the tail is the last segment."""

    segments: list[SegmentInfo]
    tail: Tail | None
    previous_chain: bytes
    published: Head | None
    damages: list[Damage]
    """All faults, in the order of the log."""
    leftovers: list[str]
    foreign: list[str]
    head_fault: str = ""
    """Why `published` is unknown although there are entries."""


class _Fault(Exception):
    """Damage, and the segment that is still readable if the fault is in another one."""

    def __init__(
        self, segment: str, position: int, reason: str, *, readable: SegmentInfo | None = None
    ) -> None:
        super().__init__(reason)
        self.damage = Damage(segment, position, reason)
        self.readable = readable


def survey(disk: Disk) -> LogSurvey:
    """Examine all segments."""
    # Read the head first: the log may grow meanwhile, and must not seem to have lost entries.
    published = read_head(disk)
    names = disk.names()
    found = LogSurvey(
        segments=[],
        tail=None,
        previous_chain=GENESIS,
        published=published,
        damages=[],
        leftovers=[name for name in names if _LEFTOVER_NAME.fullmatch(name)],
        foreign=[name for name in names if not _is_ours(name)],
    )
    bases = [base for base in map(base_of, names) if base is not None]
    footers = [base for base in map(footer_base, names) if base is not None]
    try:
        last_deleted = _last_deleted(disk, bases, footers)
        _check_presence(bases, last_deleted, found.published)
    except _Fault as fault:
        found.damages.append(fault.damage)
        last_deleted = None
    if last_deleted:
        found.previous_chain = last_deleted.chain
    _examine_all(disk, bases, found, last_deleted)
    if published is None and found.segments and found.segments[-1].end:
        # Every hub publishes the heads before the first entry.
        found.head_fault = head_fault(disk)
    return found


def _is_ours(name: str) -> bool:
    if base_of(name) is not None or footer_base(name) is not None:
        return True
    return bool(_LEFTOVER_NAME.fullmatch(name) or _OTHER_NAME.fullmatch(name))


def _last_deleted(disk: Disk, bases: list[int], footers: list[int]) -> SegmentSummary | None:
    before = [base for base in footers if not bases or base < bases[0]]
    if not before:
        return None
    name = footer_name(before[-1])
    try:
        file = disk.open(name, read_only=True)
        try:
            summary = decode_summary(file.read(file.size(), 0))
        finally:
            file.close()
    except Unreadable as error:
        raise _Fault(name, 0, str(error)) from error
    if summary.base != before[-1]:
        raise _Fault(name, 0, "the footer belongs to another segment")
    return summary


def _check_presence(
    bases: list[int], deleted: SegmentSummary | None, published: Head | None
) -> None:
    begin = deleted.end if deleted else 0
    if bases and bases[0] != begin:
        raise _Fault(segment_name(begin), 0, f"it is missing; the log starts at {bases[0]}")
    if not bases and (deleted or published):
        raise _Fault(segment_name(begin), 0, "it is missing, and so is every other segment")


def _examine_all(
    disk: Disk, bases: list[int], found: LogSurvey, last_deleted: SegmentSummary | None
) -> None:
    epoch = last_deleted.epoch if last_deleted else 0
    chain = found.previous_chain
    for base, next_base in zip(bases, [*bases[1:], None], strict=False):
        try:
            file = disk.open(segment_name(base), read_only=True)
            try:
                if next_base is None:
                    found.tail = _examine_last(file, base, epoch, found.published)
                    info = found.tail.info
                else:
                    info = _examine_inner(file, base, next_base, chain)
            finally:
                file.close()
            if info.epoch < epoch:
                raise _Fault(info.name, 0, f"its epoch {info.epoch} is below the one before it")
        except _Fault as fault:
            found.damages.append(fault.damage)
            found.segments += [fault.readable] if fault.readable else []
            chain = b""
        else:
            found.segments.append(info)
            epoch, chain = info.epoch, info.chain


def _examine_inner(file: File, base: int, next_base: int, chain: bytes) -> SegmentInfo:
    name = segment_name(base)
    header = _header(file, name, base)
    try:
        summary = read_summary(file)
    except Unreadable:
        # Its sealing was interrupted, or its footer is damaged; the batches decide which.
        return _examine_unsealed(file, header, next_base)
    if (summary.base, summary.epoch) != (base, header.epoch):
        raise _Fault(name, summary.bytes, "its footer belongs to another segment")
    if summary.end != next_base:
        raise _gap(sealed_segment(summary), next_base)
    if chain and summary.previous_chain != chain:
        raise _Fault(name, summary.bytes, "its footer does not continue the chain before it")
    return sealed_segment(summary)


def _examine_unsealed(file: File, header: Header, next_base: int) -> SegmentInfo:
    scanned = _Scanned(header)
    scanned.read(file, next_base)
    info = scanned.info
    if info.end < next_base and used_bytes(file, info.bytes, file.size()):
        raise _Fault(info.name, info.bytes, scanned.reason)
    if info.end != next_base:
        raise _gap(info, next_base)
    return info


def _gap(info: SegmentInfo, next_base: int) -> _Fault:
    if info.end > next_base:
        return _Fault(segment_name(next_base), 0, f"it should start at {info.end}")
    missing = segment_name(info.end)
    return _Fault(missing, 0, f"it is missing; the next one starts at {next_base}", readable=info)


def _examine_last(file: File, base: int, epoch: int, published: Head | None) -> Tail:
    if _is_unborn(file) and (epoch or published):
        epoch = max(epoch, published.epoch if published else 0)
        return Tail(info=new_segment(Header(epoch, base, 0)), is_unborn=True)
    header = _header(file, segment_name(base), base)
    try:
        sealed_end = read_summary(file).end
    except Unreadable:
        pass
    else:
        raise _Fault(segment_name(sealed_end), 0, "it is missing; the one before it is sealed")
    scanned = _Scanned(header)
    scanned.read(file)
    info = scanned.info
    torn_bytes = used_bytes(file, info.bytes, file.size())
    beyond = _durable_beyond(file, info) if torn_bytes else 0
    proven = max(scanned.durable, beyond)
    if published and published.epoch == header.epoch:
        proven = max(proven, published.durable)
    return Tail(
        info=info,
        torn_bytes=torn_bytes,
        torn_reason=scanned.reason if torn_bytes else "",
        proven=proven,
        known_beyond=beyond,
        unproven_begin=scanned.position_of(proven),
    )


def _is_unborn(file: File) -> bool:
    size = file.size()
    if size < BATCHES_BEGIN:
        beginning = file.read(len(MAGIC), 0)
        return MAGIC.startswith(beginning) or not beginning.strip(b"\0")
    return not used_bytes(file, 0, size)


def _header(file: File, name: str, base: int) -> Header:
    try:
        header = read_header(file)
    except Unreadable as error:
        raise _Fault(name, 0, str(error)) from error
    if header.base != base:
        raise _Fault(name, 0, f"it was written as {segment_name(header.base)}")
    return header


def _durable_beyond(file: File, info: SegmentInfo) -> int:
    """The highest durable head recorded in valid batches after an invalid one."""
    durable, position, size = 0, info.bytes, file.size()
    for _ in range(_STEPS_BEYOND_MAX):
        length = batch_length(file.read(HEADER_BYTES, position))
        if not HEADER_BYTES <= length <= size - position:
            break
        try:
            batch = read_batch(file.read(length, position))
        except Unreadable:
            pass
        else:
            if batch.epoch == info.epoch and info.end <= batch.durable <= batch.first:
                durable = max(durable, batch.durable)
        position += length
    return durable


class _Scanned:
    """The valid batches at the start of an unsealed segment."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.durable = 0
        self.reason = "it is truncated"
        self._min_ms = self._max_ms = header.created_ms
        self._firsts = array("Q")
        self._positions = array("Q", (BATCHES_BEGIN,))
        self._end = header.base

    @property
    def info(self) -> SegmentInfo:
        header = self.header
        return SegmentInfo(
            name=segment_name(header.base),
            base=header.base,
            end=self._end,
            bytes=self._positions[-1],
            epoch=header.epoch,
            created_ms=header.created_ms,
            min_ms=self._min_ms,
            max_ms=self._max_ms,
        )

    def read(self, file: File, end: int | None = None) -> None:
        """Scan up to an offset, or as far as the batches are valid."""
        times = []
        try:
            for located in scan_batches(file, BATCHES_BEGIN, file.size()):
                batch = located.batch
                if batch.first != self._end or batch.epoch != self.header.epoch:
                    raise Unreadable(
                        f"a batch of epoch {batch.epoch} at offset {batch.first} does not belong"
                        f" after offset {self._end} of epoch {self.header.epoch}"
                    )
                self._firsts.append(batch.first)
                self._positions.append(located.end)
                self._end = batch.end
                self.durable = max(self.durable, batch.durable)
                times.append(batch.time_ms)
                if self._end == end:
                    break
        except UnknownVersion as error:
            raise _Fault(segment_name(self.header.base), self._positions[-1], str(error)) from error
        except Unreadable as error:
            self.reason = str(error)
        if times:
            self._min_ms, self._max_ms = min(times), max(times)

    def position_of(self, offset: int) -> int:
        """The position of the first batch that contains nothing below an offset."""
        return self._positions[bisect_left(self._firsts, offset)]
