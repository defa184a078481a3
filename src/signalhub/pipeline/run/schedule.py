"""When work is due, and when it waits for a hub that needs the processor more."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from signalhub.clock import SystemClock
from signalhub.pacing import Period
from signalhub.pipeline.run.status import UpkeepRound, folder_of
from signalhub.pipeline.tables import catch_up
from signalhub.pipeline.tables.tables import INBOX
from signalhub.settings.model import PipelineSettings as Settings

WAIT_MS: Final = 300_000
"""The longest time that work waits for a busy hub."""

_BUSY: Final = 0.5
_LOOK_MS: Final = 1_000
_UPKEEP_RETRY_MS: Final = 300_000


class Neighbour:
    """The hub on the same machine, and whether it is busy.

    It has one main thread; on two cores, beside a sender and the pipeline, that thread got at most
    0.6 of a core at its limit.
    """

    def __init__(self, cpu_s: Callable[[], float | None] = lambda: None) -> None:
        """`cpu_s` returns the processor time it has used; `None` if unknown."""
        self._cpu_s = cpu_s
        self._last: tuple[int, float] | None = None
        self._is_busy = False

    def is_busy(self, now_ms: int) -> bool:
        """Return whether it has been busy since the last call."""
        if self._last is not None and now_ms - self._last[0] < _LOOK_MS:
            return self._is_busy
        used_s = self._cpu_s()
        if used_s is None:
            self._last = None
            self._is_busy = False
            return False
        if self._last is not None:
            at_ms, before_s = self._last
            self._is_busy = (used_s - before_s) * 1000 >= _BUSY * (now_ms - at_ms)
        self._last = now_ms, used_s
        return self._is_busy


def neighbour(pid: int | None) -> Neighbour:
    """Return the process with this id, if it is known."""
    return Neighbour() if pid is None else Neighbour(partial(_cpu_s, pid))


def _cpu_s(pid: int) -> float | None:
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name comes second, in brackets, and may contain anything.
    user, system = said.rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Beats:
    """The slower beats: inboxes, the other tables one by one, upkeep."""

    def __init__(
        self, settings: Settings, hub: Neighbour, tables: Sequence[str] = catch_up.ORDER
    ) -> None:
        self.inbox = Period(int(settings.inbox_s * 1000))
        self._hub = hub
        self._shape = Period(int(settings.shape_s * 1000))
        self._all = [name for name in tables if name != INBOX.name]
        self._tables: list[str] = []
        self._tables_due_ms = 0
        self._is_hurried = False
        self._upkeep_ms = int(settings.maintain_s * 1000)
        self._upkeep_retry = Period(min(self._upkeep_ms, _UPKEEP_RETRY_MS))
        self._begun_ms = SystemClock().now_ms()

    def hurry(self) -> None:
        """Make every table due as soon as those before it are done, whatever the hub is doing."""
        self._is_hurried = True

    def next_table(self, now_ms: int) -> str | None:
        """Return the next derived table to bring up to date."""
        is_busy = self._hub.is_busy(now_ms)
        if not self._tables and (self._shape.is_due(now_ms) or self._is_hurried):
            self._tables = list(self._all)
            self._tables_due_ms = now_ms - WAIT_MS if self._is_hurried else now_ms
            self._is_hurried = False
        may_wait = not self._is_hurried and now_ms - self._tables_due_ms < WAIT_MS
        if is_busy and may_wait:
            return None
        return self._tables.pop(0) if self._tables else None

    def put_back(self, table: str) -> None:
        """The table is not up to date yet; inboxes come first in between."""
        self._tables.insert(0, table)

    def is_upkeep_due(self, last: UpkeepRound | None, now_ms: int) -> bool:
        """Count the time since the last upkeep, whichever pipeline did it."""
        wall_ms = SystemClock().now_ms()
        since = wall_ms - (self._begun_ms if last is None else last.at_ms)
        wait_ms = WAIT_MS if self._hub.is_busy(now_ms) else 0
        is_due = since >= self._upkeep_ms + wait_ms or since < 0
        return is_due and self._upkeep_retry.is_due(wall_ms)


_NAME: Final = "hurry"


def ask(data: str | Path) -> None:
    """Ask the running pipeline to catch up now."""
    (folder_of(data) / _NAME).touch()


def was_asked(data: str | Path) -> bool:
    """Return whether it was asked; one answer serves all requests."""
    try:
        (folder_of(data) / _NAME).unlink()
    except FileNotFoundError:
        return False
    return True
