"""The positions of the entries of one segment, so that reading needs no search.

Consecutive entries of a stream form a run; an entry without a position in its stream (seq 0) is in
no run. Batches are grouped into blocks, which are read and verified as a whole; a mark is the start
of a block.

A writer adds to a `Positions` while readers in other threads use it: every change is atomic in the
interpreter, and `size` and `end` are updated last.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from signalhub.log.disk import Disk
from signalhub.log.errors import LogDamaged
from signalhub.log.record import HEADER_BYTES, Records, Unreadable, read_entry_heads
from signalhub.log.segment import BATCHES_BEGIN, LocatedBatch, SegmentInfo, scan_batches

BLOCK_BYTES: Final = 2**16


class Run(msgspec.Struct, gc=False):
    """Entries `first_seq`, `first_seq + 1`, … of a stream, and the position of each in the file.

    There are very many of these, so they are untracked by the garbage collector.
    """

    first_seq: int
    positions: array[int] | memoryview[int]
    max_ms: int
    """When the last of them was accepted."""

    @property
    def end_seq(self) -> int:
        """The position after the last."""
        return self.first_seq + len(self.positions)


class Span(msgspec.Struct, frozen=True):
    """The bytes of a block: some whole batches, starting with offset `first`."""

    begin: int
    end: int
    first: int


class Lookup(Protocol):
    """The look-up of a segment, or of a part of one that starts at `base` and `begin`."""

    @property
    def base(self) -> int: ...

    @property
    def begin(self) -> int: ...

    def runs(self, stream: str, stream_epoch: int) -> list[Run]:
        """The file positions of a stream's entries, by position in the stream."""

    def parts(self) -> list[object]:
        """The large collections, for callers that free them step by step."""

    def span_of_offset(self, offset: int) -> Span:
        """The block that holds an offset."""

    def span_of_position(self, position: int) -> Span:
        """The block that holds a position."""


def mark_before(marks: Sequence[int], wanted: int) -> int:
    """The last mark at or before `wanted`."""
    found = bisect_right(marks, wanted) - 1
    assert found >= 0, f"{wanted} is before the first mark"
    return found


class Positions:
    """The look-up of a segment, or of its end, while it grows."""

    def __init__(self, base: int, begin: int) -> None:
        self.base = base
        self.begin = begin
        self.end = base
        """The offset after the last known batch."""
        self.size = begin
        """Where the last known batch ends."""
        self.mark_offsets = array("Q")
        self.mark_positions = array("I")
        self._runs: dict[tuple[str, int], Run] = {}
        self._earlier: dict[tuple[str, int], list[Run]] = {}

    def add(self, records: Records) -> None:
        """Add a batch just committed, which starts where the last one ended."""
        self.mark()
        begin = self.size + HEADER_BYTES
        for stream, stream_epoch, first_seq, max_ms, positions in records.groups(begin):
            self._extend((stream, stream_epoch), first_seq, max_ms, array("I", positions))
        self.move(self.end + records.count, begin + len(records.data))

    def _extend(
        self, key: tuple[str, int], first_seq: int, max_ms: int, positions: array[int]
    ) -> None:
        run = self._runs.get(key)
        if run is not None and first_seq == run.first_seq + len(run.positions):
            if max_ms > run.max_ms:
                run.max_ms = max_ms
            run.positions.extend(positions)  # type: ignore[union-attr]
            return
        if run is not None:
            self._earlier.setdefault(key, []).append(run)
        self._runs[key] = Run(first_seq, positions, max_ms)

    def add_batch(self, located: LocatedBatch) -> None:
        """Add a batch read from the file."""
        self.mark()
        shift = located.position - located.at
        heads = read_entry_heads(located.data, located.batch, located.at)
        for at, _, stream, stream_epoch, seq, at_ms in heads:
            if seq:
                self.note(stream, stream_epoch, seq, at_ms, at + shift)
        self.move(located.batch.end, located.end)

    def mark(self) -> None:
        """A batch starts here; it also starts a block if the last one is full."""
        marks = self.mark_positions
        if not marks or self.size - marks[-1] >= BLOCK_BYTES:
            self.mark_offsets.append(self.end)
            marks.append(self.size)

    def note(self, stream: str, stream_epoch: int, seq: int, at_ms: int, position: int) -> None:
        """An entry with a position in its stream."""
        key = stream, stream_epoch
        run = self._runs.get(key)
        if run is not None and seq == run.first_seq + len(run.positions):
            if at_ms > run.max_ms:
                run.max_ms = at_ms
            run.positions.append(position)  # type: ignore[union-attr]
            return
        if run is not None:
            self._earlier.setdefault(key, []).append(run)
        self._runs[key] = Run(seq, array("I", (position,)), at_ms)

    def move(self, end: int, size: int) -> None:
        """The end of the batch that was added."""
        self.end = end
        self.size = size

    @property
    def streams(self) -> int:
        """The number of streams with runs."""
        return len(self._runs)

    def pop_stream(self) -> tuple[str, int, list[Run]]:
        """Remove any one stream; returns its name, epoch and runs."""
        key, run = self._runs.popitem()
        return *key, _in_order([*self._earlier.pop(key, ()), run])

    def parts(self) -> list[object]:
        """The large collections, for callers that free them step by step."""
        return [*self._runs, *self._runs.values(), *self._earlier.values()]

    def runs(self, stream: str, stream_epoch: int) -> list[Run]:
        """The file positions of a stream's entries, by position in the stream."""
        key = stream, stream_epoch
        run = self._runs.get(key)
        if run is None:
            return []
        return _in_order([*self._earlier.get(key, ()), run])

    def span_of_offset(self, offset: int) -> Span:
        """The block that holds an offset."""
        return self._span(mark_before(self.mark_offsets, offset))

    def span_of_position(self, position: int) -> Span:
        """The block that holds a position."""
        return self._span(mark_before(self.mark_positions, position))

    def _span(self, mark: int) -> Span:
        # Read the size first: the writer may start the next block at any moment.
        size = self.size
        positions = self.mark_positions
        end = positions[mark + 1] if mark + 1 < len(positions) else size
        return Span(positions[mark], end, self.mark_offsets[mark])


def _in_order(runs: list[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.first_seq)


class LatePositions:
    """The look-up of an unsealed segment found at the start, built on first use.

    A scan needs only blocks, which are found far faster than every entry.
    """

    def __init__(self, disk: Disk, info: SegmentInfo) -> None:
        self.base = info.base
        self.begin = BATCHES_BEGIN
        self._disk = disk
        self._info = info
        self._blocks: Positions | None = None
        self._entries: Positions | None = None

    def runs(self, stream: str, stream_epoch: int) -> list[Run]:
        """The file positions of a stream's entries, by position in the stream."""
        if self._entries is None:
            self._blocks = self._entries = read_positions(self._disk, self._info)
        return self._entries.runs(stream, stream_epoch)

    def span_of_offset(self, offset: int) -> Span:
        """The block that holds an offset."""
        return self._found_blocks().span_of_offset(offset)

    def span_of_position(self, position: int) -> Span:
        """The block that holds a position."""
        return self._found_blocks().span_of_position(position)

    def parts(self) -> list[object]:
        """The large collections, if they were built."""
        return self._entries.parts() if self._entries else []

    def extend(self, info: SegmentInfo) -> None:
        """The segment has grown; only what is new is read. Raises `LogDamaged`."""
        self._info = info
        if self._entries is not None:
            _add(self._disk, info, self._entries)
        elif self._blocks is not None:
            _add(self._disk, info, self._blocks, only_blocks=True)

    def _found_blocks(self) -> Positions:
        blocks = self._blocks
        if blocks is None:
            blocks = self._blocks = read_positions(self._disk, self._info, only_blocks=True)
        return blocks


def read_positions(disk: Disk, info: SegmentInfo, *, only_blocks: bool = False) -> Positions:
    """The look-up of a segment, from its batches; raises `LogDamaged`."""
    positions = Positions(info.base, BATCHES_BEGIN)
    _add(disk, info, positions, only_blocks=only_blocks)
    return positions


def _add(disk: Disk, info: SegmentInfo, positions: Positions, *, only_blocks: bool = False) -> None:
    """Add the batches of a segment that are not known yet."""
    file = disk.open(info.name, read_only=True)
    try:
        for located in scan_batches(file, positions.size, info.bytes):
            if only_blocks:
                positions.mark()
                positions.move(located.batch.end, located.end)
            else:
                positions.add_batch(located)
    except Unreadable as error:
        raise LogDamaged(info.name, positions.size, str(error)) from error
    finally:
        file.close()
