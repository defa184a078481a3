"""The log of another process, or of a stopped hub, read from its folder.

Nothing is written. Changes by the other process may appear as missing or unfinished files, so a
survey that finds a fault is repeated if the folder has changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from signalhub.log.disk import Disk
from signalhub.log.errors import LogDamaged, storage_error
from signalhub.log.footer import footer_base
from signalhub.log.head import HEAD_NAME, Head, read_head
from signalhub.log.positions import LatePositions, Lookup
from signalhub.log.record import Unreadable
from signalhub.log.recovery import LogRecovery, judge
from signalhub.log.segment import SegmentInfo, base_of, scan_batches
from signalhub.log.survey import LogSurvey, survey

_LOOKS_MAX: Final = 10


class Folder:
    """Segments up to the published durable head, or to the last valid batch if it is unknown."""

    hole: LogDamaged | None = None
    """Whoever reads by offset looks at what `examine` finds instead."""

    def __init__(self, disk: Disk) -> None:
        self.disk: Final = disk
        self._segments: tuple[SegmentInfo, ...] = ()
        self._end = 0
        self.refresh()

    @property
    def epoch(self) -> int:
        return self._segments[-1].epoch if self._segments else 0

    @property
    def head(self) -> int:
        """The offset after the last readable entry, checked again on every call."""
        published = read_head(self.disk)
        if published is None or published.epoch < self.epoch:
            return self._end
        if published.epoch > self.epoch or (
            published.durable > self._end and not self._follow(published.durable)
        ):
            self.refresh()
        return min(published.durable, self._end)

    @property
    def first(self) -> int:
        """The oldest offset that can still be read."""
        return self._segments[0].base if self._segments else 0

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        return self._segments

    def lookups(self, base: int) -> tuple[Lookup, ...]:
        """The look-ups of an unsealed segment; none for others."""
        return self._lookups.get(base, ())

    def _follow(self, durable: int) -> bool:
        """Take in what was added to the last segment; returns whether that is everything.

        A survey reads all of that segment, and a reader that stays would do it for every page.
        """
        if not self._segments or self._segments[-1].is_sealed:
            return False
        info = self._segments[-1]
        try:
            grown = _grown(self.disk, info)
            for lookup in self._lookups[info.base]:
                lookup.extend(grown)
        except (LogDamaged, OSError):
            return False
        self._segments = (*self._segments[:-1], grown)
        self._end = grown.end
        return grown.end >= durable

    def refresh(self) -> None:
        """Survey the folder again."""
        self._segments = tuple(look(self.disk).segments)
        self._end = self._segments[-1].end if self._segments else 0
        self._lookups: dict[int, tuple[LatePositions, ...]] = {
            info.base: (LatePositions(self.disk, info),)
            for info in self._segments
            if not info.is_sealed
        }


def _grown(disk: Disk, info: SegmentInfo) -> SegmentInfo:
    """An unsealed segment with the valid batches that were added to it."""
    end, size, max_ms = info.end, info.bytes, info.max_ms
    file = disk.open(info.name, read_only=True)
    try:
        for located in scan_batches(file, size, file.size()):
            batch = located.batch
            if (batch.first, batch.epoch) != (end, info.epoch):
                break
            end, size, max_ms = batch.end, located.end, max(max_ms, batch.time_ms)
    except Unreadable:
        # Here begins what is not written yet, or the footer of a segment that is full now.
        pass
    finally:
        file.close()
    return msgspec.structs.replace(info, end=end, bytes=size, max_ms=max_ms)


def is_gone(folder: Path) -> bool:
    """Is there no log in a folder, nor a trace of one?"""
    names = os.listdir(folder) if folder.is_dir() else []
    return not any(
        base_of(name) is not None or footer_base(name) is not None or name == HEAD_NAME
        for name in names
    )


def examine(disk: Disk, known: Head | None = None) -> tuple[LogSurvey, LogRecovery]:
    """A survey of a folder that may be changing, and what a start would make of it.

    `known` is a head that was known from elsewhere before the survey. A batch that was just being
    added may look damaged, but not twice at the same place.
    """
    found = look(disk)
    recovery = judge(found, known)
    while recovery.damage is not None and not found.damages:
        before = recovery.damage
        found = look(disk)
        recovery = judge(found, known)
        if recovery.damage == before:
            break
    return found, recovery


def look(disk: Disk) -> LogSurvey:
    """A survey of a folder that may be changing; raises `LogFailed` if it cannot be read."""
    for attempts_left in reversed(range(_LOOKS_MAX)):
        try:
            names = disk.names()
            found = survey(disk)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempts_left:
                continue
            raise storage_error(error) from error
        if not found.damages or disk.names() == names:
            break
    return found
