"""The log of another process, or of a stopped hub, read from its folder.

Nothing is written. Changes by the other process may appear as missing or unfinished files, so a
survey that finds a fault is repeated if the folder has changed.
"""

from __future__ import annotations

from typing import Final

from signalhub.log.disk import Disk
from signalhub.log.errors import LogDamaged, storage_error
from signalhub.log.head import read_head
from signalhub.log.positions import LatePositions, Lookup
from signalhub.log.recovery import LogRecovery, judge
from signalhub.log.segment import SegmentInfo
from signalhub.log.survey import LogSurvey, survey

_LOOKS_MAX: Final = 10


class Folder:
    """Segments up to the published durable head, or to the last valid batch if it is unknown."""

    hole: LogDamaged | None = None
    """Whoever reads by offset looks at what `examine` finds instead."""

    def __init__(self, disk: Disk) -> None:
        self.disk: Final = disk
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
        if published.durable > self._end or published.epoch > self.epoch:
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

    def refresh(self) -> None:
        """Survey the folder again."""
        self._segments = tuple(look(self.disk).segments)
        self._end = self._segments[-1].end if self._segments else 0
        self._lookups: dict[int, tuple[Lookup, ...]] = {
            info.base: (LatePositions(self.disk, info),)
            for info in self._segments
            if not info.is_sealed
        }


def examine(disk: Disk) -> tuple[LogSurvey, LogRecovery]:
    """A survey of a folder that may be changing, and what a start would make of it.

    A batch that was just being added may look damaged, but not twice at the same place.
    """
    found = look(disk)
    recovery = judge(found)
    while recovery.damage is not None and not found.damages:
        before = recovery.damage
        found = look(disk)
        recovery = judge(found)
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
