"""The state of the log: its durability, whether it accepts entries, and entries to retry.

A log that has failed or is damaged accepts nothing until the next start. If damage kept the start
from reading all of it, the hub does not know everything that is stored: what could lie behind the
damage is neither shown nor called unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from signalhub.core import refusals
from signalhub.core.effects import Append, Effect
from signalhub.core.refusals import Damaged
from signalhub.wire.errors import Refusal

_DURABILITY: Final = {"always": "fsync", "interval": "interval", "os": "os"}
# Of asks that are delivered although a damaged log cannot record them.
_UNRECORDED: Final = "none"


class LogState:
    """What the core knows about the log."""

    def __init__(self, sync: str) -> None:
        self._durability = _DURABILITY[sync]
        # Why the log has stopped, if it has.
        self.fault: Refusal | None = None
        # Does as much wait for the disk as may?
        self.is_behind: Callable[[], bool] = bool
        # Why entries are missing from what the hub knows, if some are.
        self.gap: Refusal | None = None
        # Entries that the log had no room for.
        self._unwritten: list[Append] = []

    def stop(self, fault: Refusal) -> None:
        """The log accepts nothing more until the next start; the first reason counts."""
        self.fault = self.fault or fault

    def hide(self, damage: Refusal) -> None:
        """The log has stopped, and entries behind the damage could not be read at the start."""
        self.fault = self.gap = damage

    @property
    def is_damaged(self) -> bool:
        """Is the log read-only because of damage, so that its disk may still be sound?"""
        return isinstance(self.fault, Damaged)

    @property
    def durability(self) -> str:
        """How safely what is acknowledged now is stored."""
        return _UNRECORDED if self.is_damaged else self._durability

    def check(self) -> None:
        """Refuse if the log has stopped, or if too much waits for the disk."""
        if self.fault is not None:
            raise self.fault
        if self.is_behind():
            raise refusals.disk_behind()

    def check_known(self) -> None:
        """Refuse if the answer could lie behind the damage."""
        if self.gap is not None:
            raise self.gap

    def append(self, one: Append) -> Append:
        """Append an entry that is retried later if the log has no room."""
        return Append(one.entry, one.committed, partial(self._refused, one))

    def check_written(self, stream: str) -> None:
        """Refuse if an entry of the stream still waits until the log has room."""
        if any(one.entry.stream == stream for one in self._unwritten):
            raise refusals.storage_full()

    def _refused(self, one: Append, refusal: Refusal, now: int) -> list[Effect]:
        if not refusal.retryable:
            return one.refused(refusal, now)
        self._unwritten.append(one)
        return []

    def tick(self) -> list[Effect]:
        """Retry the entries that the log had no room for."""
        unwritten, self._unwritten = self._unwritten, []
        return [self.append(one) for one in unwritten]
