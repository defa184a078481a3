"""A set of positions, stored as sorted, disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from signalhub.wire.entry import Range


class Ranges:
    """A set for positions that are mostly added in order; adjacent ones are stored as one range.

    Invariant: ranges are sorted, disjoint and not adjacent.
    """

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.count = 0
        for first, last in ranges:
            self._firsts.append(first)
            self._lasts.append(last)
            self.count += last - first + 1

    def __contains__(self, position: int) -> bool:
        at = bisect_right(self._firsts, position) - 1
        return at >= 0 and position <= self._lasts[at]

    def __iter__(self) -> Iterator[Range]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def last(self) -> int:
        """The highest position; 0 if there is none."""
        return self._lasts[-1] if self._lasts else 0

    def add(self, position: int) -> bool:
        """Add a position; `False` if it was already present."""
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, position)
        if at and position <= lasts[at - 1]:
            return False
        self.count += 1
        joins_left = at > 0 and lasts[at - 1] == position - 1
        joins_right = at < len(firsts) and firsts[at] == position + 1
        if joins_left and joins_right:
            lasts[at - 1] = lasts[at]
            del firsts[at], lasts[at]
        elif joins_left:
            lasts[at - 1] = position
        elif joins_right:
            firsts[at] = position
        else:
            firsts.insert(at, position)
            lasts.insert(at, position)
        return True

    def add_range(self, first: int, last: int) -> None:
        """Add all positions from `first` to `last`."""
        kept = [(low, high) for low, high in self if high < first - 1 or low > last + 1]
        joined = [(low, high) for low, high in self if not (high < first - 1 or low > last + 1)]
        first = min([first, *(low for low, _ in joined)])
        last = max([last, *(high for _, high in joined)])
        at = bisect_left([low for low, _ in kept], first)
        kept.insert(at, (first, last))
        self.__init__(kept)  # type: ignore[misc]

    def count_within(self, first: int, last: int) -> int:
        """Return the number of positions from `first` to `last`."""
        begin = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        pairs = zip(self._firsts[begin:end], self._lasts[begin:end], strict=True)
        return sum(min(high, last) - max(low, first) + 1 for low, high in pairs)

    def end_from(self, position: int) -> int:
        """Return the end of the range that contains `position`; `position - 1` if none does."""
        at = bisect_right(self._firsts, position) - 1
        if at >= 0 and position <= self._lasts[at]:
            return self._lasts[at]
        return position - 1

    def drop_through(self, position: int) -> None:
        """Remove everything up to a position."""
        while self._firsts and self._lasts[0] <= position:
            self.count -= self._lasts[0] - self._firsts[0] + 1
            del self._firsts[0], self._lasts[0]
        if self._firsts and self._firsts[0] <= position:
            self.count -= position - self._firsts[0] + 1
            self._firsts[0] = position + 1
