"""What the page of the demo shows, composed once a second."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from signalhub.log.disk import SystemDisk
from signalhub.log.errors import EntriesGone, LogDamaged, LogFailed
from signalhub.log.folder import Folder
from signalhub.log.reader import Reader
from signalhub.operate.demo.ledger import Ledger
from signalhub.operate.demo.stages import Stages

_ENTRIES_MAX: Final = 5_000
_EVENTS_MAX: Final = 50
_SHOWN_MAX: Final = 60
_PATIENCE_MS: Final = 60_000


class Tally:
    """What one consumer of placed orders has seen.

    Positions have no gaps, so one that is skipped and does not come within a minute is lost; what
    failed comes again later than what follows it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen = 0
        self.failures = 0
        self._next = 1
        self._missing: dict[int, int] = {}

    def took(self, seq: int, now_ms: int) -> None:
        """A message at this position was handled."""
        if seq >= self._next:
            self._missing |= dict.fromkeys(range(self._next, seq), now_ms)
            self._next = seq + 1
        elif seq in self._missing:
            del self._missing[seq]
        else:
            return
        self.seen += 1

    def lost(self, now_ms: int) -> int:
        """How many were skipped and did not come."""
        return sum(since < now_ms - _PATIENCE_MS for since in self._missing.values())


class Board:
    """Follows the log, and remembers what happened."""

    def __init__(self, data: Path) -> None:
        self.stages = Stages()
        self.events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_MAX)
        self.proof: dict[str, Any] | None = None
        self._data = data
        self._folder: Folder | None = None
        self._reader: Reader | None = None
        self._offset = 0

    @property
    def position(self) -> str | None:
        """Where it goes on reading: epoch and offset."""
        return None if self._folder is None else f"{self._folder.epoch}.{self._offset}"

    def note(self, text: str) -> None:
        """Remember an event."""
        self.events.appendleft({"at": now_ms(), "text": text})

    async def follow(self) -> None:
        """Read what the log has beyond what was read, in a thread."""
        await asyncio.to_thread(self._follow)

    def _follow(self) -> None:
        try:
            if self._reader is None:
                folder = self._data / "log"
                if not folder.is_dir():
                    return
                self._folder = Folder(SystemDisk(folder, read_only=True))
                self._reader = Reader(self._folder)
            for entry in self._reader.scan(self._offset, self._offset + _ENTRIES_MAX):
                self.stages.take(entry)
                self._offset = entry.offset + 1
        except EntriesGone as gone:
            self._offset = gone.first
        except (LogDamaged, LogFailed, OSError):
            # The hub is just starting, or cuts what it never acknowledged; look again later.
            self._reader = self._folder = None

    def show(self, ledger: Ledger, consumers: list[Tally], **facts: Any) -> dict[str, Any]:
        """The whole board, as it is published."""
        ended, at_ms = ledger.confirmed + ledger.cancelled, now_ms()
        return {
            "at": at_ms,
            "position": self.position,
            "stages": self.stages.counts(),
            "moving": [
                {"order": one.order, "stage": one.stage, "since": one.since}
                for one in self.stages.newest(_SHOWN_MAX)
            ],
            "placed": ledger.placed,
            "open": ledger.placed - ended,
            "confirmed": ledger.confirmed,
            "cancelled": ledger.cancelled,
            "unverified": len(ledger.unverified),
            "ledger": [
                {
                    "name": one.name,
                    "text": one.text,
                    "left": one.left,
                    "right": one.right,
                    "ok": one.is_exact,
                }
                for one in ledger.balances()
            ],
            "lost": sum(one.lost(at_ms) for one in consumers),
            "doubled": ledger.doubled,
            "consumers": [
                {"name": one.name, "seen": one.seen, "failures": one.failures} for one in consumers
            ],
            "proof": self.proof,
            "events": [*self.events],
            **facts,
        }


def now_ms() -> int:
    return time.time_ns() // 1_000_000
