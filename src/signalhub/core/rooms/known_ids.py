"""Which messages were accepted, so that a repeat gets the position of the original.

An id is in memory, or in no snapshot yet, or on disk. Memory holds the newest; when it has to give
some up, those that are in no snapshot are still known here, and the others are looked up on disk.
"""

from __future__ import annotations

from signalhub.core.dedup import DELAY_MS_MIN, Ack, Dedup, Remembered


class KnownIds:
    """Positions by the fingerprint of inbox and message id, for a window of time."""

    def __init__(self, window_ms: int, memory_bytes_max: int, grid_ms: int) -> None:
        self.memory = Dedup(window_ms, memory_bytes_max)
        # In no snapshot on disk yet, and on their way into one, with its offset.
        self.unsaved: dict[bytes, int] = {}
        self._saving: list[tuple[int, dict[bytes, int]]] = []
        self._window_ms = window_ms
        self._grid_ms = grid_ms
        self._slot_ms = self._id_ms = 0

    def time(self, now: int) -> int:
        """The time by which ids are known: on the grid, and then one tick further with each id.

        So it says no more than the order of the log does, yet what memory gives up first is old.
        """
        at_ms = now - now % self._grid_ms
        if at_ms > self._slot_ms:
            self._slot_ms = at_ms
            self._id_ms = max(at_ms, self._id_ms)
        return self._id_ms

    def oldest_ms(self, now: int) -> int:
        """What was accepted before this is not known any more."""
        return self.time(now) - self._window_ms

    def find(self, key: bytes, now: int) -> Ack | None:
        """What memory knows of an id."""
        return self.memory.find_by(key, self.time(now))

    def find_unsaved(self, key: bytes) -> int:
        """The position of an id memory gave up before it was in a snapshot; 0 if it is none."""
        if not self.memory.is_shortened:
            return 0
        seq = self.unsaved.get(key, 0)
        for _, keys in self._saving:
            seq = seq or keys.get(key, 0)
        return seq

    def may_be_on_disk(self, since_ms: int, now: int) -> bool:
        """May ids of an inbox that began at `since_ms` be where only the disk knows them?"""
        memory = self.memory
        return memory.is_shortened and since_ms <= self.time(now) - memory.window_ms

    def remember(self, key: bytes, seq: int, now: int, at_ms: int) -> None:
        """A message was accepted; `at_ms` is when, as it may be told."""
        id_ms = self.time(now)
        if id_ms < self._slot_ms + self._grid_ms - 1:
            self._id_ms += 1
        # What is told of it is its own time, if that fits a record; the position always does.
        told_ms = max(at_ms, id_ms + DELAY_MS_MIN)
        self.memory.remember_by(key, id_ms, Ack(told_ms, seq=seq))
        self.unsaved[key] = seq

    def sweep(self, now: int) -> None:
        """Let go of some of what has left the window."""
        self.memory.sweep(self.time(now))

    # Snapshots.

    def load(self, kept: list[Remembered]) -> None:
        """Know again what an earlier process knew; before anything else."""
        self.memory.load(kept)
        self._id_ms = self.memory.now_ms
        self._slot_ms = self._id_ms - self._id_ms % self._grid_ms

    def take_fresh(self, offset: int) -> Remembered:
        """What goes into the snapshot at this offset."""
        if self.unsaved:
            self._saving.append((offset, self.unsaved))
            self.unsaved = {}
        return self.memory.take_fresh()

    def saved(self, offset: int) -> None:
        """The snapshot at this offset is on disk."""
        while self._saving and self._saving[0][0] <= offset:
            self._saving.pop(0)
