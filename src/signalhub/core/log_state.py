"""The state of the log: its durability, whether it accepts entries, and entries to retry."""

from __future__ import annotations

from functools import partial
from typing import Final

from signalhub.core.effects import Append, Effect
from signalhub.wire.entry import Entry
from signalhub.wire.errors import Refusal

_DURABILITY: Final = {"always": "fsync", "interval": "interval", "os": "os"}


class LogState:
    """What the core knows about the log."""

    def __init__(self, sync: str) -> None:
        self.durability = _DURABILITY[sync]
        # Why the log has stopped, if it has.
        self.fault: Refusal | None = None
        # Entries that the log had no room for and that nothing waits for.
        self._unwritten: list[Entry] = []

    def stop(self, fault: Refusal) -> None:
        """The log accepts nothing more until the next start."""
        self.fault = fault

    def check(self) -> None:
        """Refuse if the log has stopped."""
        if self.fault is not None:
            raise self.fault

    def append(self, entry: Entry) -> Append:
        """Append an entry that nothing waits for; it is retried later if the log has no room."""
        return Append(entry, refused=partial(self._refused, entry))

    def _refused(self, entry: Entry, refusal: Refusal, now: int) -> list[Effect]:
        if refusal.retryable:
            self._unwritten.append(entry)
        return []

    def tick(self) -> list[Effect]:
        """Retry the entries that the log had no room for."""
        unwritten, self._unwritten = self._unwritten, []
        return [self.append(one) for one in unwritten]
