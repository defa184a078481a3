"""How much of the machine a search may take: little while it runs, and it ends in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PAGE_S: Final = 2.0
"""After this a page is given as it is, with a cursor."""
SHARE: Final = 0.25
FREE_S: Final = 0.05
"""So much processor time is taken at once: most pages need less."""
_NAP_S: Final = 0.05


class Stopped(Exception):
    """Nobody waits for the answer any more."""


class Pace:
    """Called again and again during a search; it sleeps, and says when time is over."""

    def __init__(
        self,
        *,
        page_s: float = PAGE_S,
        share: float = SHARE,
        is_stopped: Callable[[], bool] = lambda: False,
        cpu_s: Callable[[], float] = time.process_time,
        mono_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._page_s = page_s
        self._share = share
        self._is_stopped = is_stopped
        self._cpu_s = cpu_s
        self._mono_s = mono_s
        self._sleep = sleep
        self._began_cpu_s = cpu_s()
        self._began_s = mono_s()

    @property
    def left_s(self) -> float:
        """How much time is left."""
        return self._page_s - (self._mono_s() - self._began_s)

    def go_on(self) -> bool:
        """Wait as long as it takes to stay within the share; returns whether there is time left.

        Raises `Stopped`.
        """
        used_s = self._cpu_s() - self._began_cpu_s - FREE_S
        pause_s = used_s / self._share - (self._mono_s() - self._began_s)
        if used_s <= 0 or pause_s <= 0:
            if self._is_stopped():
                raise Stopped
            return self.left_s > 0
        until_s = self._mono_s() + min(pause_s, max(0.0, self.left_s))
        while (rest_s := until_s - self._mono_s()) > 0:
            if self._is_stopped():
                raise Stopped
            self._sleep(min(rest_s, _NAP_S))
        if self._is_stopped():
            raise Stopped
        return self.left_s > 0
