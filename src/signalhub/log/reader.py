"""Reading the log by offset, and streams by position or time.

Everything read is verified, in blocks, each once. Nothing is ever skipped: damage raises
`LogDamaged`, entries removed by retention raise `EntriesGone`, an unreadable disk `LogFailed`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol, TypeVar

from signalhub.log.blocks import Block, Blocks
from signalhub.log.disk import Disk
from signalhub.log.errors import EntriesGone, LogDamaged, storage_error
from signalhub.log.folder import Folder
from signalhub.log.footer import read_footer
from signalhub.log.index import Index
from signalhub.log.positions import Lookup, Run, read_positions
from signalhub.log.record import Unreadable
from signalhub.log.segment import SegmentInfo, segment_name
from signalhub.wire.entry import StoredEntry

_FOOTERS_MAX: Final = 32
_ATTEMPTS_MAX: Final = 5

T = TypeVar("T")


class SegmentSource(Protocol):
    """The source of segments: a `Log` in this process, or the `Folder` of another one."""

    @property
    def disk(self) -> Disk: ...

    @property
    def head(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def hole(self) -> LogDamaged | None: ...

    @property
    def segments(self) -> tuple[SegmentInfo, ...]: ...

    def lookups(self, base: int) -> tuple[Lookup, ...]: ...

    def refresh(self) -> None: ...


class Reader:
    """Verified entries of a log that another thread, or another process, may be writing.

    A reader belongs to one thread; create one per thread. In the process of the log it sees
    everything committed, in another process everything durable.
    """

    def __init__(self, source: SegmentSource, index: Index | None = None) -> None:
        """`source` is a `Log`; `index`, not shared with others, avoids reading every footer."""
        self._source = source
        self._index = index
        self._blocks = Blocks(source.disk)
        self._footers: OrderedDict[int, Lookup] = OrderedDict()
        # The known revision of each segment that was replaced.
        self._revisions: dict[int, int] = {}

    @classmethod
    def of_folder(cls, disk: Disk) -> Reader:
        """A reader for another process, or for the folder of a stopped hub."""
        return cls(Folder(disk))

    def scan(self, from_offset: int, to_offset: int | None = None) -> Iterator[StoredEntry]:
        """All entries in order, up to `to_offset` or to the head at that time."""
        offset = from_offset
        while True:
            head = self._source.head
            end = head if to_offset is None else min(head, to_offset)
            if offset >= end:
                return
            block = self._attempt(partial(self._block_of_offset, offset))
            end = min(end, block.end_offset)
            for one in range(offset, end):
                yield self._entry(block, one)
            offset = end

    def scan_back(self, before: int | None = None, to_offset: int = 0) -> Iterator[StoredEntry]:
        """All entries before an offset or the head, the newest first, down to `to_offset`.

        Raises what `scan` raises; `readable_before` says where to continue after damage.
        """
        head = self._source.head
        offset = head if before is None else min(head, before)
        while offset > to_offset:
            block = self._attempt(partial(self._block_of_offset, offset - 1))
            begin = max(block.first, to_offset)
            for one in range(offset - 1, begin - 1, -1):
                yield self._entry(block, one)
            offset = begin

    def readable_before(self, offset: int) -> int:
        """How far it can be read again before an offset that is damaged or missing."""
        segments = self._source.segments
        at = bisect_right(segments, offset, key=lambda info: info.base) - 1
        if at < 0 or offset >= segments[at].end:
            return segments[at].end if at >= 0 else offset
        try:
            return min(offset, self._any_block_of_offset(offset).end_offset)
        except (LogDamaged, OSError):
            # Not even the look-up of the segment can be read.
            return segments[at].base

    def readable_after(self, offset: int) -> int:
        """Where it can be read again after an offset that is damaged or missing."""
        segments = self._source.segments
        at = bisect_right(segments, offset, key=lambda info: info.base) - 1
        following = segments[at + 1].base if at + 1 < len(segments) else self._source.head
        if at < 0 or offset >= segments[at].end:
            return following
        try:
            parts = self._parts(segments[at])
            place = bisect_right(parts, offset, key=lambda part: part.base) - 1
            span = parts[place].span_of_offset(offset)
            block = self._blocks.get(segments[at].name, span)
            if offset < block.end_offset:
                return offset + 1
            if span.end < segments[at].bytes:
                later = [part for part in parts[place:] if part.begin <= span.end][-1]
                return later.span_of_position(span.end).first
        except (LogDamaged, OSError):
            # Not even the look-up of the segment can be read.
            pass
        return following

    def read(
        self, stream: str, stream_epoch: int, from_seq: int, count_max: int, bytes_max: int
    ) -> list[StoredEntry]:
        """Entries of a stream from a position on, at least one if there is any.

        Starts later than `from_seq` if retention has removed those entries.
        """

        has_looked_again = False

        def gather() -> list[StoredEntry]:
            nonlocal has_looked_again
            found: list[StoredEntry] = []
            size = 0
            try:
                for stored in self._follow(stream, stream_epoch, from_seq):
                    size += len(stored.body)
                    if found and size > bytes_max:
                        break
                    found.append(stored)
                    if len(found) >= count_max:
                        break
            except LogDamaged:
                # The segment may have been replaced. If not, return what lies before the damage.
                if not found or not has_looked_again:
                    has_looked_again = True
                    raise
            return found

        return self._attempt(gather)

    def earliest(self, stream: str, stream_epoch: int) -> int | None:
        """The oldest position of a stream that can still be read; None if there is none."""
        found = self.read(stream, stream_epoch, 1, 1, 0)
        return found[0].seq if found else None

    def seq_at_time(self, stream: str, stream_epoch: int, time_ms: int) -> int | None:
        """The first position accepted at or after a time; None if there is none yet."""

        def find() -> int | None:
            for stored in self._follow(stream, stream_epoch, 1, accepted_from_ms=time_ms):
                if stored.at_ms >= time_ms:
                    return stored.seq
            return None

        return self._attempt(find)

    def close(self) -> None:
        """Close the files; the next read opens those it needs."""
        self._blocks.close()
        self._footers.clear()

    def _attempt(self, step: Callable[[], T]) -> T:
        """Repeat an operation if a segment was deleted or replaced during it."""
        has_looked_again = False
        for _ in range(_ATTEMPTS_MAX):
            try:
                return step()
            except FileNotFoundError:
                self._source.refresh()
            except LogDamaged:
                if has_looked_again:
                    raise
                has_looked_again = True
                self.close()
                self._source.refresh()
            except OSError as error:
                raise storage_error(error) from error
        raise EntriesGone(self._source.first)

    def _segment_of(self, offset: int) -> SegmentInfo:
        segments = self._source.segments
        at = bisect_right(segments, offset, key=lambda info: info.base) - 1
        if at < 0 and self._source.hole is not None:
            raise self._source.hole
        if at < 0:
            raise EntriesGone(self._source.first)
        info = segments[at]
        if offset >= info.end:
            raise LogDamaged(segment_name(info.end), 0, "it is missing or cannot be read")
        return info

    def _entry(self, block: Block, offset: int) -> StoredEntry:
        try:
            return block.entry(offset)
        except Unreadable as error:
            name = self._segment_of(offset).name
            raise LogDamaged(name, block.begin, str(error)) from error

    def _block_of_offset(self, offset: int) -> Block:
        block = self._any_block_of_offset(offset)
        block.check(offset)
        return block

    def _any_block_of_offset(self, offset: int) -> Block:
        """The block of an offset, which may be damaged."""
        info = self._segment_of(offset)
        parts = self._parts(info)
        part = parts[bisect_right(parts, offset, key=lambda part: part.base) - 1]
        return self._blocks.get(info.name, part.span_of_offset(offset))

    def _follow(
        self, stream: str, stream_epoch: int, from_seq: int, *, accepted_from_ms: int = 0
    ) -> Iterator[StoredEntry]:
        head = self._source.head
        hole: LogDamaged | None = None
        for info in self._segments_with(stream, stream_epoch, from_seq):
            if isinstance(info, LogDamaged):
                hole = info
                continue
            for part in self._parts(info):
                for run in part.runs(stream, stream_epoch):
                    if run.end_seq <= from_seq or run.max_ms < accepted_from_ms:
                        continue
                    for stored in self._run(info, part, run, from_seq):
                        if stored.offset >= head:
                            return
                        if (stored.stream, stored.stream_epoch) != (stream, stream_epoch):
                            raise LogDamaged(info.name, 0, "its look-up does not match its entries")
                        if hole and stored.seq != from_seq:
                            raise hole
                        hole = None
                        yield stored
                        from_seq = stored.seq + 1
        if hole:
            raise hole

    def _run(
        self, info: SegmentInfo, part: Lookup, run: Run, from_seq: int
    ) -> Iterator[StoredEntry]:
        block: Block | None = None
        positions = run.positions
        for at in range(max(0, from_seq - run.first_seq), len(positions)):
            position = positions[at]
            if block is None or not block.begin <= position < block.end:
                span = part.span_of_position(position)
                if position >= span.end and not info.is_sealed:
                    # The writer is just adding this batch.
                    return
                block = self._blocks.get(info.name, span)
            try:
                stored = block.entry_at(position)
            except Unreadable as error:
                raise LogDamaged(info.name, position, str(error)) from error
            if stored.seq != run.first_seq + at:
                raise LogDamaged(info.name, position, "its look-up does not match its entries")
            yield stored

    def _segments_with(
        self, stream: str, stream_epoch: int, from_seq: int
    ) -> Iterator[SegmentInfo | LogDamaged]:
        """Segments that may contain a stream, and an error for each missing one between them."""
        known: frozenset[int] = frozenset()
        found: frozenset[int] = frozenset()
        if self._index:
            known, found = self._index.find(stream, stream_epoch, from_seq)
        if self._source.hole is not None:
            yield self._source.hole
        segments = self._source.segments
        end = segments[0].base if segments else 0
        for info in segments:
            if info.base != end:
                yield LogDamaged(segment_name(end), 0, "it is missing or cannot be read")
            end = info.end
            if info.base in found or info.base not in known:
                yield info

    def _parts(self, info: SegmentInfo) -> tuple[Lookup, ...]:
        if self._revisions.get(info.base, 0) != info.revision:
            self._revisions[info.base] = info.revision
            self._footers.pop(info.base, None)
            self._blocks.forget(info.name)
        return self._source.lookups(info.base) or (self._footer(info),)

    def _footer(self, info: SegmentInfo) -> Lookup:
        footer = self._footers.get(info.base)
        if footer is None:
            try:
                footer = read_footer(self._blocks.file(info.name))
            except Unreadable:
                # The batches contain the same, only slower.
                footer = read_positions(self._source.disk, info)
            self._footers[info.base] = footer
            if len(self._footers) > _FOOTERS_MAX:
                self._footers.popitem(last=False)
        self._footers.move_to_end(info.base)
        return footer
