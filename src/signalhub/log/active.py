"""The active segment, to which batches are written."""

from __future__ import annotations

from msgspec.structs import replace

from signalhub.log.disk import Disk, File
from signalhub.log.positions import LatePositions, Lookup, Positions
from signalhub.log.record import Records
from signalhub.log.segment import SegmentInfo


class Active:
    """The last segment: batches are appended, and count once they are kept."""

    def __init__(self, disk: Disk, file: File, info: SegmentInfo, *, rolls_at_s: float) -> None:
        self.base = info.base
        self.rolls_at_s = rolls_at_s
        self.has_asked_for_next = False
        self._file = file
        self._info = info
        self._max_ms = info.max_ms
        self._positions = Positions(info.end, info.bytes)
        found = (LatePositions(disk, info),) if info.end > info.base else ()
        self.lookups: tuple[Lookup, ...] = (*found, self._positions)

    @property
    def info(self) -> SegmentInfo:
        """Its present state."""
        positions = self._positions
        return replace(self._info, end=positions.end, bytes=positions.size, max_ms=self._max_ms)

    @property
    def size(self) -> int:
        """The position of the next batch."""
        return self._positions.size

    @property
    def is_empty(self) -> bool:
        return self._positions.end == self.base

    def write(self, batch: bytes) -> None:
        self._file.write(batch, self._positions.size)

    def sync(self) -> None:
        self._file.sync()

    def keep(self, records: Records, time_ms: int) -> None:
        """Keep the batch just written: readers can now find it."""
        self._max_ms = max(self._max_ms, time_ms)
        self._positions.add(records)

    def cut_back(self) -> None:
        """Remove what was written but not kept."""
        self._file.truncate(self._positions.size)

    def close(self) -> None:
        self._file.close()
