"""A clock that moves only when told to."""

from __future__ import annotations


class FakeClock:
    """Stands still until `advance`; wall and monotonic time move together unless `jump` is used."""

    def __init__(self, now_ms: int = 1_760_000_000_000, mono_s: float = 1_000.0) -> None:
        self._now_ms = float(now_ms)
        self._mono_s = mono_s

    def now_ms(self) -> int:
        return int(self._now_ms)

    def mono_s(self) -> float:
        return self._mono_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0, "time only moves forward; use `jump` to set the wall clock back"
        self._now_ms += seconds * 1000
        self._mono_s += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator does; no time passes."""
        self._now_ms += seconds * 1000
