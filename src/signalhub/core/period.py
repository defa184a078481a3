"""Work that comes round: due once per period, whatever the clock does."""

from __future__ import annotations


class Period:
    """Due at once, then every `period_ms`. A clock set back delays it by one period at most."""

    __slots__ = ("_next_ms", "period_ms")

    def __init__(self, period_ms: int) -> None:
        self.period_ms = period_ms
        self._next_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """`True` once per period."""
        if now_ms < self._next_ms <= now_ms + self.period_ms:
            return False
        self._next_ms = now_ms + self.period_ms
        return True
