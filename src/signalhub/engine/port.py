"""The interfaces of engine and archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from signalhub.core.effects import Append, Consult, EraseEntries, Fetch, FindTime, Locate, Located
from signalhub.core.rooms.values import Archived
from signalhub.wire.entry import StoredEntry
from signalhub.wire.errors import Refusal

# A socket is read as long as what it has sent, and the disk has not, takes less than this part of
# the room that is left: one alone may use a sixteenth of all, many together never more than all.
_SHARE = 1 / 16
# For an entry besides its body.
_ENTRY_BYTES = 256


class Unwritten:
    """Entries that are added and not committed: how many bytes they take, and may take.

    They are in memory, so a disk that hangs must not let clients add more of them without end.
    """

    __slots__ = ("_bytes_max", "added", "bytes", "written")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        # Since the start; equal if nothing waits.
        self.added = self.written = 0

    def add(self, append: Append) -> None:
        entry = append.entry
        self.added += 1
        self.bytes += len(entry.body) + _ENTRY_BYTES * entry.count

    def remove(self, appends: Iterable[Append]) -> None:
        """These were committed or refused."""
        for append in appends:
            entry = append.entry
            self.written += 1
            self.bytes -= len(entry.body) + _ENTRY_BYTES * entry.count

    @property
    def share_bytes(self) -> float:
        """How much of one socket may wait at the moment."""
        return (self._bytes_max - self.bytes) * _SHARE

    def is_behind(self) -> bool:
        """Does as much wait as may?"""
        return self.bytes >= self._bytes_max

    @property
    def is_much(self) -> bool:
        """Can clients notice it?"""
        return 2 * self.bytes > self._bytes_max


class Outcomes(Protocol):
    """Receives the outcomes of appends, on the loop and in order."""

    def committed(self, appends: list[Append], first: int) -> None:
        """These were committed; the first entry has the offset `first`, the others follow."""

    def refused(
        self, appends: list[Append], refusal: Refusal, *, is_final: bool, unknown: int = 0
    ) -> None:
        """All pending entries were refused; `is_final`: so will be all others until a restart.

        The first `unknown` entries may be in the log nevertheless.
        """

    def damaged(self, refusal: Refusal) -> None:
        """A read has found damage: the log is read-only until a restart."""


class Engine(Protocol):
    """A log of entries in one total order."""

    @property
    def epoch(self) -> int: ...

    @property
    def head(self) -> int:
        """The offset the next committed entry gets."""

    def scan(self, from_offset: int) -> Iterator[StoredEntry]:
        """Iterate over all entries from an offset on; blocks, so only for the start."""

    def offset_at_time(self, time_ms: int) -> int:
        """Return an offset at or before the first entry accepted at or after a time."""

    @property
    def unwritten(self) -> Unwritten:
        """What was added and not committed."""

    def append(self, append: Append) -> None:
        """Add an entry; it is submitted with the next `flush`."""

    def flush(self) -> None:
        """Submit the added entries to the commit thread; never blocks."""

    def hasten(self) -> None:
        """Submit them already, unless they will be refused."""

    def fetch(self, fetch: Fetch, done: Callable[[list[StoredEntry] | None], None]) -> None:
        """Read, and report on the loop; `None` if that failed."""

    def find_time(self, find: FindTime, done: Callable[[int | None], None]) -> None:
        """Find the first position at or after a time; report on the loop, `None` if that failed."""

    def locate(self, locate: Locate, done: Callable[[Located | None], None]) -> None:
        """Search the log, and report on the loop; `None` if that failed."""

    def erase(self, erase: EraseEntries, done: Callable[[int | Refusal], None]) -> None:
        """Erase content from the log, and report on the loop when that is durable or failed."""

    def close(self) -> None:
        """Commit added entries and release all resources."""


class Archive(Protocol):
    """Holds messages of inboxes that are no longer in the log."""

    @property
    def position(self) -> int:
        """Everything before this offset of the log is archived."""

    def consult(self, consult: Consult, done: Callable[[list[Archived] | None], None]) -> None:
        """Read messages, and report on the loop; `None` if the archive is unreachable."""
