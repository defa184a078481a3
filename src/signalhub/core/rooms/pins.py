"""Which part of the log rooms still need: everything from the oldest message that can be read on.

Kept as marks over stretches of offsets, each with the latest expiry in it, so that a week of
messages takes little room and no inbox has to be asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

_STRETCH: Final = 1_024
_MARKS_MAX: Final = 4_096


class Pins:
    """Stretches of the log, and until when they are needed."""

    def __init__(self) -> None:
        # First offset and latest expiry, oldest first.
        self._marks: deque[tuple[int, int]] = deque()
        self._stretch = _STRETCH

    def add(self, offset: int, expires_ms: int) -> None:
        """A message was written at `offset` and can be read until `expires_ms`."""
        if self._marks:
            first, latest = self._marks[-1]
            if offset < first:
                return
            if offset - first < self._stretch:
                if expires_ms > latest:
                    self._marks[-1] = (first, expires_ms)
                return
        self._marks.append((offset, expires_ms))
        if len(self._marks) > _MARKS_MAX:
            self._merge()

    def needed_from(self, now: int) -> int | None:
        """The first offset that is needed; `None` if none is. Nothing is forgotten by asking.

        The clock may be wrong, and right again later.
        """
        return next((first for first, expires_ms in self._marks if expires_ms > now), None)

    def cut(self, offset: int) -> None:
        """The log begins at this offset now."""
        while len(self._marks) > 1 and self._marks[1][0] <= offset:
            self._marks.popleft()

    def marks(self) -> list[tuple[int, int]]:
        """All of it, to be kept."""
        return list(self._marks)

    def restore(self, marks: Iterable[tuple[int, int]]) -> None:
        """Begin with what was kept."""
        self._marks = deque(marks)

    def _merge(self) -> None:
        """Two stretches become one."""
        self._stretch *= 2
        marks = list(self._marks)
        odd = [marks.pop()] if len(marks) % 2 else []
        pairs = zip(marks[::2], marks[1::2], strict=True)
        self._marks = deque((one[0], max(one[1], other[1])) for one, other in pairs)
        self._marks.extend(odd)
