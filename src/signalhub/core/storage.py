"""How the log is: what it promises, whether it takes entries, and what it still has to take."""

from __future__ import annotations

from functools import partial
from typing import Final

from signalhub.core.effects import Append, Effect
from signalhub.wire.entry import Entry
from signalhub.wire.errors import Refusal

_DURABILITY: Final = {"always": "fsync", "interval": "interval", "os": "os"}


class LogState:
    """The log as the core knows it."""

    def __init__(self, sync: str) -> None:
        self.durability = _DURABILITY[sync]
        # Why the log takes nothing more, if it has stopped.
        self.fault: Refusal | None = None
        # Entries nobody waits for that the log had no room for.
        self._unwritten: list[Entry] = []

    def stop(self, fault: Refusal) -> None:
        """The log takes nothing more until the next start."""
        self.fault = fault

    def check(self) -> None:
        """Refuse what needs the log when the log has stopped."""
        if self.fault is not None:
            raise self.fault

    def append(self, entry: Entry) -> Append:
        """An entry nobody waits for, which is written later if the log has no room now."""
        return Append(entry, refused=partial(self._refused, entry))

    def _refused(self, entry: Entry, refusal: Refusal, now: int) -> list[Effect]:
        if refusal.retryable:
            self._unwritten.append(entry)
        return []

    def tick(self) -> list[Effect]:
        """Try again to write what the log had no room for."""
        unwritten, self._unwritten = self._unwritten, []
        return [self.append(one) for one in unwritten]
