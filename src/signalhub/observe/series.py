"""The last week of rates, gauges and latencies, in memory.

Three rings of rows: one row per second for 15 minutes, per 10 seconds for 6 hours, per 5 minutes
for a week. A row holds one number per series. Counters become rates per second over the step,
latencies quantiles over the step in milliseconds, gauges their last value; of gauges the highest
value of the step is kept, too. Nothing is kept across a restart.

Times are the hub's own, which neither jumps nor goes back. A second without a tick, because the
machine was suspended, has no numbers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from signalhub.counters import Histogram

STEPS_MS: Final = (1_000, 10_000, 300_000)
LENGTHS: Final = (900, 2_160, 2_016)
NAMES_MAX: Final = 64
POINTS_MAX: Final = 2_160
HIGHEST: Final = ".max"

Quantiles = tuple[Histogram, tuple[float, ...]]


class Row(msgspec.Struct, frozen=True):
    """What is measured once a second, each in the order of the names."""

    counters: list[float]
    gauges: list[float]


class _Level:
    """One ring, and what its present step began with."""

    __slots__ = (
        "before",
        "counts",
        "first",
        "highest",
        "last",
        "length",
        "peaks",
        "rows",
        "step_ms",
    )

    def __init__(self, step_ms: int, length: int, width: int, gauges: int) -> None:
        self.step_ms = step_ms
        self.length = length
        self.rows = array("d", [math.nan]) * (length * width)
        self.highest = array("d", [math.nan]) * (length * gauges)
        # The number of the newest row, and of the first one ever.
        self.last = -1
        self.first = -1
        # Time, counters and counts of the histograms when the present step began.
        self.before: tuple[int, list[float]] | None = None
        self.counts: list[list[int]] = []
        self.peaks: list[float] = []


class Ring:
    """All series."""

    def __init__(
        self,
        counters: Sequence[str],
        gauges: Sequence[str],
        latencies: Mapping[str, Quantiles],
    ) -> None:
        self._latencies = list(latencies.values())
        self._counters = tuple(counters)
        self._gauges = tuple(gauges)
        quantiles = [
            f"{name}_p{100 * share:g}"
            for name, (_, shares) in latencies.items()
            for share in shares
        ]
        self.names = (*counters, *gauges, *quantiles)
        assert len(self.names) <= NAMES_MAX, f"{len(self.names)} series"
        self._index = {name: number for number, name in enumerate(self.names)}
        self._width = len(self.names)
        self._levels = [
            _Level(step_ms, length, self._width, len(self._gauges))
            for step_ms, length in zip(STEPS_MS, LENGTHS, strict=True)
        ]
        self.newest: dict[str, float] = {}

    @property
    def bytes(self) -> int:
        """The memory it takes."""
        return sum(8 * (len(one.rows) + len(one.highest)) for one in self._levels)

    def tick(self, row: Row, now: int) -> None:
        """Add what was measured; call this once a second."""
        for level in self._levels:
            self._add(level, row, now)

    def _add(self, level: _Level, row: Row, now: int) -> None:
        number = now // level.step_ms
        level.peaks = list(map(max, level.peaks, row.gauges)) if level.peaks else row.gauges
        before = level.before
        if before is None:
            level.first = number + 1
            level.last = number
            self._begin(level, row, now)
            return
        if number <= level.last:
            return
        elapsed_s = (now - before[0]) / 1000
        if number - level.last > 1:
            self._leave_out(level, number)
        rates = [
            (new - old) / elapsed_s if new > old else 0.0
            for new, old in zip(row.counters, before[1], strict=True)
        ]
        quantiles: list[float] = []
        for (histogram, shares), counts in zip(self._latencies, level.counts, strict=True):
            quantiles += _quantiles(histogram, counts, shares)
        values = rates + row.gauges + quantiles
        at = number % level.length
        level.rows[at * self._width : (at + 1) * self._width] = array("d", values)
        width = len(self._gauges)
        level.highest[at * width : (at + 1) * width] = array("d", level.peaks)
        level.last = number
        if level is self._levels[0]:
            self.newest = dict(zip(self.names, values, strict=True))
        self._begin(level, row, now)

    def _begin(self, level: _Level, row: Row, now: int) -> None:
        level.before = (now, row.counters)
        level.counts = [list(histogram.counts) for histogram, _ in self._latencies]
        level.peaks = []

    def _leave_out(self, level: _Level, number: int) -> None:
        """Nothing was measured in the steps before this one."""
        width, gauges = self._width, len(self._gauges)
        for one in range(max(level.last + 1, number - level.length + 1), number):
            at = one % level.length
            level.rows[at * width : (at + 1) * width] = array("d", [math.nan]) * width
            level.highest[at * gauges : (at + 1) * gauges] = array("d", [math.nan]) * gauges

    def read(
        self, names: Sequence[str], begin: int, end: int, step_ms: int
    ) -> tuple[int, list[int], dict[str, list[float]]]:
        """Return step, times and values of these series between two times.

        The step is the smallest one that reaches back to `begin` and is not below `step_ms`; the
        last one reaches back furthest. A time is the end of its step.
        """
        level = self._level_for(begin, end, step_ms)
        first = max(begin // level.step_ms, level.first, level.last - level.length + 1)
        numbers = range(first, min(end // level.step_ms, level.last) + 1)
        if level.before is None:
            numbers = range(0)
        found = {name: self._column(level, name, numbers) for name in names}
        return level.step_ms, [one * level.step_ms for one in numbers], found

    def _level_for(self, begin: int, end: int, step_ms: int) -> _Level:
        for level in self._levels[:-1]:
            reaches = level.last - level.length <= begin // level.step_ms
            is_short = (end - begin) // level.step_ms <= POINTS_MAX
            if level.step_ms >= step_ms and reaches and is_short:
                return level
        return self._levels[-1]

    def _column(self, level: _Level, name: str, numbers: range) -> list[float]:
        rows, width, at = level.rows, self._width, self._index.get(name, -1)
        if at < 0:
            gauge = self._gauges.index(name.removesuffix(HIGHEST))
            rows, width, at = level.highest, len(self._gauges), gauge
        column = rows[at::width]
        return [column[one % level.length] for one in numbers]

    def has(self, name: str) -> bool:
        """Is there a series of this name?"""
        return name in self._index or (
            name.endswith(HIGHEST) and name.removesuffix(HIGHEST) in self._gauges
        )


def _quantiles(histogram: Histogram, before: list[int], shares: tuple[float, ...]) -> list[float]:
    """Quantiles of what was counted since, in milliseconds: the upper bound of where each is."""
    counts = [new - old for new, old in zip(histogram.counts, before, strict=True)]
    sums = list(accumulate(counts))
    total = sums[-1]
    if not total:
        return [math.nan] * len(shares)
    bounds = histogram.bounds_s
    found: list[float] = []
    for share in shares:
        rank = share * total
        at = next(number for number, one in enumerate(sums) if one >= rank and one > 0)
        high = bounds[min(at, len(bounds) - 1)]
        low = bounds[at - 1] if 0 < at < len(bounds) else (0.0 if at == 0 else high)
        below = sums[at] - counts[at]
        part = (rank - below) / counts[at] if counts[at] else 1.0
        found.append(1000 * (low + (high - low) * min(1.0, max(0.0, part))))
    return found
