"""What the server asks of whatever keeps durable entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from signalhub.core.effects import Append, Consult, EraseEntries, Fetch, FindTime, Locate, Located
from signalhub.core.rooms.values import Archived
from signalhub.wire.entry import StoredEntry
from signalhub.wire.errors import Refusal


class Outcomes(Protocol):
    """Whom the engine tells what became of things; always on the loop, in order."""

    def committed(self, appends: list[Append], first: int) -> None:
        """These are safe; the first one has the offset `first`, the others follow."""

    def refused(self, appends: list[Append], refusal: Refusal, *, is_final: bool) -> None:
        """Nothing that was on its way is safe; finally: nor will anything be until a restart."""


class Engine(Protocol):
    """A log of entries in one total order."""

    @property
    def epoch(self) -> int: ...

    @property
    def head(self) -> int:
        """The offset the next committed entry gets."""

    def scan(self, from_offset: int) -> Iterator[StoredEntry]:
        """Every entry from an offset on; for starting, not for serving."""

    def offset_at_time(self, time_ms: int) -> int:
        """An offset at or before the first entry accepted at or after a time."""

    def append(self, append: Append) -> None:
        """Take an entry; it goes to the disk with the next `flush`."""

    def flush(self) -> None:
        """Send on what was taken; never waits."""

    def fetch(self, fetch: Fetch, done: Callable[[list[StoredEntry] | None], None]) -> None:
        """Read, and report on the loop; `None` if that failed."""

    def find_time(self, find: FindTime, done: Callable[[int | None], None]) -> None:
        """Look up, and report on the loop; `None` if that failed."""

    def locate(self, locate: Locate, done: Callable[[Located | None], None]) -> None:
        """Look through the log, and report on the loop; `None` if that failed."""

    def erase(self, erase: EraseEntries, done: Callable[[int | Refusal], None]) -> None:
        """Take content out of the log; report on the loop when that is safe, or why it is not."""

    def close(self) -> None:
        """Commit what was taken and let go of everything."""


class Archive(Protocol):
    """Where messages of inboxes are that the log no longer has to hold."""

    @property
    def position(self) -> int:
        """Everything before this offset of the log is archived."""

    def consult(self, consult: Consult, done: Callable[[list[Archived] | None], None]) -> None:
        """Look messages up, and report on the loop; `None` if the archive cannot be reached."""
