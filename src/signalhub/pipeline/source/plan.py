"""Plans for reading the log in bulk: which bytes of which segments contain which entries.

A position is the epoch and the offset of the next entry to read. Within an epoch offsets are dense;
the next epoch may start below the end of the previous one, because entries were lost. A plan never
contains entries of two epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from signalhub.log.disk import Disk, File, SystemDisk
from signalhub.log.errors import EntriesGone, LogDamaged, LogFailed, storage_error
from signalhub.log.folder import is_gone, look
from signalhub.log.footer import read_footer, read_summary
from signalhub.log.head import read_head
from signalhub.log.record import Unreadable, read_entries
from signalhub.log.segment import (
    BATCHES_BEGIN,
    base_of,
    read_header,
    scan_batches,
    segment_name,
    used_bytes,
)
from signalhub.wire.errors import SettingsError

LOG_FOLDER: Final = "log"
SLICE_BYTES: Final = 32 * 2**20
_ATTEMPTS_MAX: Final = 5


def log_of(data: str | Path) -> SystemDisk:
    """Open the log of a data folder for reading.

    Raises `SettingsError` if there is none, `LogGone` if there was one.
    """
    path = Path(data) / LOG_FOLDER
    if is_gone(path):
        # Workers of Spark must not load what it takes to find out.
        from signalhub.pipeline.source import known

        known.check_log(Path(data))
    if not path.is_dir():
        raise SettingsError(f"there is no log in {data}; give the data folder of a hub with --data")
    return SystemDisk(path, read_only=True)


class LogPosition(msgspec.Struct, frozen=True, order=True):
    """The next entry to read."""

    epoch: int
    offset: int


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Whole batches of one segment; only the entries `from_offset` to `to_offset` are used."""

    segment: str
    epoch: int
    begin: int
    end: int
    from_offset: int
    to_offset: int
    """The offset after the last wanted entry."""


class ReadPlan(msgspec.Struct, frozen=True):
    """Slices in order, and the position after them."""

    slices: tuple[Slice, ...]
    end: LogPosition


class _BatchStart(msgspec.Struct, frozen=True):
    """A batch starts here with this offset."""

    offset: int
    position: int


class Segments:
    """The log of a data folder, read-only; another process may be writing it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._bases: list[int] = []
        self._epochs: dict[int, int] = {}
        # Where the last plan ended in its segment, so that the next one does not have to search.
        self._last: dict[int, _BatchStart] = {}
        self._refresh()

    @property
    def first(self) -> LogPosition:
        """Return the oldest readable entry; (0, 0) if there has never been one."""
        self._refresh()
        return self._begin_of(self._bases[0]) if self._bases else LogPosition(0, 0)

    @property
    def epochs(self) -> dict[int, int]:
        """Return the first offset of each readable epoch."""
        self._refresh()
        return {self._epochs[base]: base for base in reversed(self._bases)}

    def published(self) -> LogPosition | None:
        """Return the last published durable head; `None` if it is unknown."""
        head = read_head(self._disk)
        return LogPosition(head.epoch, head.durable) if head else None

    def valid(self) -> LogPosition:
        """Return the end of the last valid batch, for a log that no process is writing."""
        segments = look(self._disk).segments
        return LogPosition(segments[-1].epoch, segments[-1].end) if segments else LogPosition(0, 0)

    def accepted_ms(self, start: LogPosition, head: LogPosition) -> int | None:
        """Return when the first readable entry from `start` to `head` was accepted, if any."""
        try:
            first = max(start, self.first)
            found = self.plan(first, head, entries_max=1).slices if first < head else ()
            for one in found:
                file = self._disk.open(one.segment, read_only=True)
                try:
                    for located in scan_batches(file, one.begin, one.end):
                        for entry in read_entries(located.data, located.batch, located.at):
                            if entry.offset >= one.from_offset:
                                return entry.at_ms
                finally:
                    file.close()
        except (EntriesGone, LogDamaged, LogFailed, Unreadable, OSError):
            return None
        return None

    def plan(
        self,
        start: LogPosition,
        head: LogPosition,
        *,
        entries_max: int | None = None,
        bytes_max: int | None = None,
        slice_bytes: int = SLICE_BYTES,
    ) -> ReadPlan:
        """Return what to read from `start` on, at most to `head`, all of it verified.

        If there is damage, the plan ends before it; raises `LogDamaged` if no good entries are left
        before the damage, and `EntriesGone` if `start` no longer exists.
        """
        has_looked_again = False
        for _ in range(_ATTEMPTS_MAX):
            try:
                return self._plan(start, head, entries_max, bytes_max, slice_bytes)
            except FileNotFoundError:
                # Retention has just deleted a segment.
                self._refresh()
            except LogDamaged:
                if has_looked_again:
                    raise
                # Erasing may have replaced the file by one with other file positions.
                has_looked_again = True
                self._last.clear()
                self._refresh()
            except OSError as error:
                raise storage_error(error) from error
        raise EntriesGone(self.first.offset)

    def _plan(
        self,
        start: LogPosition,
        head: LogPosition,
        entries_max: int | None,
        bytes_max: int | None,
        slice_bytes: int,
    ) -> ReadPlan:
        if head > start and head.epoch not in self._epochs.values():
            # A segment of the same name may have been started again.
            self._epochs.clear()
            self._last.clear()
            self._refresh()
        elif head > start and head.offset > self._known_to:
            self._refresh()
        start = self._settle(start, head)
        limit = self._epoch_end(start.epoch, head)
        if entries_max is not None:
            limit = min(limit, start.offset + entries_max)
        slices: list[Slice] = []
        offset, left = start.offset, bytes_max
        try:
            for one in self._slices(start, limit, slice_bytes):
                slices.append(one)
                offset = one.to_offset
                if left is not None:
                    left -= one.end - one.begin
                    if left <= 0:
                        break
        except LogDamaged:
            if not slices:
                raise
        return ReadPlan(tuple(slices), LogPosition(start.epoch, offset))

    def _settle(self, start: LogPosition, head: LogPosition) -> LogPosition:
        """Return the position, or the start of a later epoch if nothing of this one is left."""
        while start.epoch < head.epoch and start.offset >= self._epoch_end(start.epoch, head):
            later = [base for base in self._bases if self._epochs[base] > start.epoch]
            if not later:
                break
            start = self._begin_of(later[0])
        return start

    def _epoch_end(self, epoch: int, head: LogPosition) -> int:
        later = [base for base in self._bases if self._epochs[base] > epoch]
        if later:
            return min(later[0], head.offset) if epoch == head.epoch else later[0]
        return head.offset if epoch == head.epoch or epoch == 0 else 0

    def _slices(self, start: LogPosition, limit: int, slice_bytes: int) -> Iterator[Slice]:
        offset = start.offset
        while offset < limit:
            at = bisect_right(self._bases, offset) - 1
            if at < 0:
                raise EntriesGone(self._bases[0] if self._bases else limit)
            base = self._bases[at]
            end = self._bases[at + 1] if at + 1 < len(self._bases) else limit
            for one in self._slices_of(base, offset, min(end, limit), slice_bytes):
                yield one
                offset = one.to_offset
            if offset < min(end, limit):
                raise LogDamaged(segment_name(offset), 0, "it is missing")

    def _slices_of(self, base: int, first: int, limit: int, slice_bytes: int) -> Iterator[Slice]:
        """Return the slices of one segment; end with its batches, raise at a damaged one."""
        name, epoch = segment_name(base), self._epochs[base]
        file = self._disk.open(name, read_only=True)
        try:
            begin = end = self._start_of(base, first).position
            offset = to_offset = first
            fault: Unreadable | None = None
            try:
                for located in scan_batches(file, begin, _batches_end(file)):
                    end = located.end
                    if located.batch.end <= first:
                        begin = end
                        continue
                    to_offset = min(located.batch.end, limit)
                    if to_offset == located.batch.end:
                        self._last[base] = _BatchStart(to_offset, end)
                    if to_offset == limit:
                        break
                    if end - begin >= slice_bytes:
                        yield _slice(name, epoch, (begin, end), (offset, to_offset))
                        begin, offset = end, to_offset
            except Unreadable as error:
                fault = error
            if to_offset > offset:
                yield _slice(name, epoch, (begin, end), (offset, to_offset))
            if fault and used_bytes(file, end, file.size()):
                raise LogDamaged(name, end, str(fault)) from fault
        finally:
            file.close()

    def _start_of(self, base: int, offset: int) -> _BatchStart:
        """Return a file position at or before an offset in its segment."""
        last = self._last.get(base)
        if last and last.offset <= offset:
            return last
        file = self._disk.open(segment_name(base), read_only=True)
        try:
            span = read_footer(file).span_of_offset(offset)
        except Unreadable:
            return _BatchStart(base, BATCHES_BEGIN)
        finally:
            file.close()
        return _BatchStart(span.first, span.begin)

    def _begin_of(self, base: int) -> LogPosition:
        return LogPosition(self._epochs[base], base)

    @property
    def _known_to(self) -> int:
        """Return the offset up to which no new segment can exist."""
        return self._bases[-1] if self._bases else -1

    def _refresh(self) -> None:
        try:
            bases = sorted(b for b in map(base_of, self._disk.names()) if b is not None)
        except FileNotFoundError:
            bases = []
        epochs: dict[int, int] = {}
        for base in bases:
            if base in self._epochs:
                epochs[base] = self._epochs[base]
                continue
            try:
                file = self._disk.open(segment_name(base), read_only=True)
            except FileNotFoundError:
                continue
            try:
                epochs[base] = read_header(file).epoch
            except Unreadable as error:
                raise LogDamaged(segment_name(base), 0, str(error)) from error
            finally:
                file.close()
        self._bases = [base for base in bases if base in epochs]
        self._epochs = epochs
        self._last = {base: start for base, start in self._last.items() if base in epochs}


def _slice(segment: str, epoch: int, positions: tuple[int, int], offsets: tuple[int, int]) -> Slice:
    return Slice(
        segment=segment,
        epoch=epoch,
        begin=positions[0],
        end=positions[1],
        from_offset=offsets[0],
        to_offset=offsets[1],
    )


def _batches_end(file: File) -> int:
    """Return where the batches of a segment end; an unsealed one may have free space after them."""
    try:
        return read_summary(file).bytes
    except Unreadable:
        return file.size()
