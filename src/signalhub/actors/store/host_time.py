"""A host's own time, which never jumps, and the wall clock beside it.

What a host waits for or has to remember is measured by its own time; the wall clock is for people,
and for alarms at a time of day (docs/decisions/0014-time.md). Both are given to every turn. What
the next process needs to continue the own time is written with the turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from signalhub.actors.store.schema import CLOCK_AHEAD, CLOCK_NEWEST

if TYPE_CHECKING:
    from signalhub.actors.store.store import HostStore
    from signalhub.clock import SteadyClock

# A smaller change is not worth writing.
_CHANGE_MS_MIN: Final = 1_000
# A smaller one is a correction rather than somebody who sets the clock.
_STEP_MS_MIN: Final = 5_000


class HostTime:
    """The times of the present turn."""

    def __init__(self, store: HostStore) -> None:
        self._store = store
        self.own_ms = 0
        # How far the wall clock is ahead; negative if it is behind.
        self.ahead_ms = 0
        self._saved_ahead_ms = 0
        self._saved_ms = 0
        self._changes = 0

    def resume(self, clock: SteadyClock) -> None:
        """Continue the time of the process that last had the store."""
        self.load()
        clock.resume(ahead_ms=self._saved_ahead_ms, newest_ms=self._saved_ms)

    def load(self) -> None:
        self._saved_ahead_ms = self._store.get_meta(CLOCK_AHEAD) or 0
        self._saved_ms = self._store.get_meta(CLOCK_NEWEST) or 0

    @property
    def wall_ms(self) -> int:
        return self.own_ms + self.ahead_ms

    def shown(self, own_ms: int) -> int:
        """What the wall clock reads at a time of the host."""
        return own_ms + self.ahead_ms

    def own(self, wall_ms: int) -> int:
        """The host's own time when the wall clock reads `wall_ms`."""
        return wall_ms - self.ahead_ms

    def set(self, own_ms: int, ahead_ms: int) -> None:
        """A turn begins."""
        self.own_ms, self.ahead_ms = own_ms, ahead_ms
        self._changes = self._store.connection.total_changes()

    def is_unsaved(self, ahead_ms: int) -> bool:
        """Was the wall clock set since the last turn that was committed?"""
        return abs(ahead_ms - self._saved_ahead_ms) >= _CHANGE_MS_MIN

    @property
    def set_back_ms(self) -> int:
        """By how much the wall clock was set back since the last turn; 0 if it was not."""
        back_ms = self._saved_ahead_ms - self.ahead_ms
        return back_ms if back_ms >= _STEP_MS_MIN else 0

    def write(self) -> None:
        """At the end of a turn; one that has changed nothing stays without a write."""
        if self.is_unsaved(self.ahead_ms):
            self._store.put_meta(CLOCK_AHEAD, self.ahead_ms)
            self._saved_ahead_ms = self.ahead_ms
        is_changed = self._store.connection.total_changes() != self._changes
        if is_changed and self.own_ms - self._saved_ms >= _CHANGE_MS_MIN:
            self._store.put_meta(CLOCK_NEWEST, self.own_ms)
            self._saved_ms = self.own_ms

    def stop(self, own_ms: int, ahead_ms: int) -> None:
        """The host stops; raises `StorageFailed`."""
        self.own_ms, self.ahead_ms = own_ms, ahead_ms
        with self._store.transaction():
            # A step back that no turn has seen is left for the next start to notice.
            if not self.set_back_ms:
                self._store.put_meta(CLOCK_AHEAD, ahead_ms)
            self._store.put_meta(CLOCK_NEWEST, own_ms)
