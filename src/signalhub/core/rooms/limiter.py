"""A sliding window: so many in so long, counted exactly.

Times come from a clock that never goes back. A refusal is not recorded, so waiting is all it takes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

# Who has not been seen for a window needs no record; beyond this many the longest unseen go first.
_WINDOWS_MAX: Final = 50_000
_SWEPT: Final = 1_000


class SlidingWindow:
    """The times of what was accepted within the last `window_ms`."""

    __slots__ = ("_limit", "_window_ms", "times")

    def __init__(self, limit: int, window_ms: int, times: Iterable[int] = ()) -> None:
        self._limit = limit
        self._window_ms = window_ms
        self.times = deque(times)

    def wait_ms(self, now: int) -> int:
        """How long until one more fits; 0 if it does."""
        times, oldest = self.times, now - self._window_ms
        while times and times[0] <= oldest:
            times.popleft()
        if len(times) < self._limit:
            return 0
        return max(1, times[0] + self._window_ms - now)

    def record(self, now: int) -> None:
        """One was accepted."""
        self.times.append(now)

    def take_back(self) -> None:
        """The newest one did not happen after all."""
        if self.times:
            self.times.pop()

    def take(self, now: int) -> int:
        """Record one if it fits; otherwise how long it has to wait."""
        wait_ms = self.wait_ms(now)
        if not wait_ms:
            self.times.append(now)
        return wait_ms


class Windows:
    """Windows by name, forgotten when nothing is in them."""

    def __init__(self, limit: int, window_ms: int) -> None:
        self._limit = limit
        self._window_ms = window_ms
        # The longest unused first.
        self._windows: OrderedDict[str, SlidingWindow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def of(self, name: str) -> SlidingWindow:
        """The window of this name."""
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = SlidingWindow(self._limit, self._window_ms)
            if len(self._windows) > _WINDOWS_MAX:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(name)
        return window

    def sweep(self, now: int) -> None:
        """Forget some of those that are empty by now."""
        for _ in range(min(_SWEPT, len(self._windows))):
            name, window = next(iter(self._windows.items()))
            if window.times and window.times[-1] > now - self._window_ms:
                return
            del self._windows[name]
