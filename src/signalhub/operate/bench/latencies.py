"""A histogram of latencies with three digits, whatever their size, that can be sent and added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

# Digits in base two that are kept: the error is below a thousandth.
_BITS: Final = 11

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Latencies:
    """Counts of microseconds, exact to three digits."""

    def __init__(self, counts: Mapping[int, int] | None = None, largest_us: int = 0) -> None:
        self._counts = Counter({int(at): count for at, count in (counts or {}).items()})
        self.largest_us = largest_us

    @property
    def count(self) -> int:
        return self._counts.total()

    @property
    def counts(self) -> dict[int, int]:
        """The counts by the lower end of their bucket."""
        return dict(self._counts)

    def add(self, us: int) -> None:
        """Count one latency; one below 0, as clocks may show, counts as 0."""
        us = max(0, us)
        shift = max(0, us.bit_length() - _BITS)
        self._counts[us >> shift << shift] += 1
        self.largest_us = max(self.largest_us, us)

    def merge(self, other: Latencies) -> None:
        """Add all counts of another histogram."""
        self._counts.update(other._counts)
        self.largest_us = max(self.largest_us, other.largest_us)

    def percentile_us(self, percent: float) -> int | None:
        """Return the latency that so many percent do not exceed; `None` without any."""
        rank = self.count * percent / 100
        seen = 0
        for at, count in sorted(self._counts.items()):
            seen += count
            if seen >= rank:
                return at
        return None

    def figures_ms(self) -> dict[str, float]:
        """The percentiles and the largest, by name; empty without any."""
        if not self._counts:
            return {}
        named = {f"p{percent:g}": self.percentile_us(percent) or 0 for percent in PERCENTILES}
        return {name: us / 1_000 for name, us in {**named, "max": self.largest_us}.items()}
