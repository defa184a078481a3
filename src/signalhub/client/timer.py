"""The one timer a protocol needs: it is woken at the earliest moment it asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Ticking too early is harmless, so a timer is only replaced by an earlier one."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0

    def set(self, at_s: float | None, now_s: float) -> None:
        """Tick at this time at the latest; `None` asks for nothing."""
        if at_s is None or (self._timer is not None and self._at_s <= at_s):
            return
        self.cancel()
        self._at_s = at_s
        self._timer = self._loop.call_later(max(0.0, at_s - now_s), self._ring)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._tick()
