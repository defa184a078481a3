"""How far replays have come, so that an interrupted one goes on and none repeats anything.

A replay, called a job, appends copies in the order of their originals, and each copy says which
original it is of. So the last copy of a job is all there is to know about it, and the log is where
that is learned from. The newest jobs are remembered; how new a job is its bound tells, the position
its selection ends at. What has a bound at or below that of a forgotten job might be that job, and
is refused.
"""

from __future__ import annotations

from typing import Final

import msgspec

from signalhub.core import refusals
from signalhub.core.journal import Waited
from signalhub.entry import Replay, ReplaysStand, decode_body, encode_body

JOBS_MAX: Final = 1_000

Place = tuple[int, int, int]  # Shard, epoch, offset.
Bound = tuple[int, int]  # Epoch, offset.

_NOTHING: Final[Bound] = (-1, -1)


def place_of(replay: Replay) -> Place:
    """Where the original of a copy is."""
    return (replay.shard, replay.epoch, replay.offset)


def bound_of(replay: Replay) -> Bound:
    """What the job that sent a copy is bounded by."""
    return (replay.until_epoch, replay.until_offset)


class OnItsWay(msgspec.Struct):
    """Copies of a job that are not on disk yet: the last of them, and who waits for it."""

    last: Replay
    receipt: Waited


class Replays:
    """The last copy of each job; what is not committed is kept apart."""

    def __init__(self, jobs_max: int = JOBS_MAX) -> None:
        self._jobs_max = jobs_max
        self._last: dict[str, Replay] = {}
        self._forgotten = _NOTHING
        self.on_its_way: dict[str, OnItsWay] = {}
        self.is_dirty = False
        # An offset of the log from which on all of this is found.
        self.defined_at = 0

    def __len__(self) -> int:
        return len(self._last)

    @property
    def is_known(self) -> bool:
        """Is there anything the log must not lose?"""
        return bool(self._last) or self._forgotten != _NOTHING

    def last(self, job: str) -> Replay | None:
        """The last copy of a job that is on disk."""
        return self._last.get(job)

    def newest(self, job: str) -> Place | None:
        """The original of the last copy of a job, on disk or on its way there."""
        pending = self.on_its_way.get(job)
        known = self._last.get(job) if pending is None else pending.last
        return None if known is None else place_of(known)

    def check(self, job: str, bound: Bound) -> None:
        """Refuse a job that may have been forgotten, or is another one of the same name."""
        pending = self.on_its_way.get(job)
        known = self._last.get(job) if pending is None else pending.last
        if known is not None:
            if bound_of(known) != bound:
                raise refusals.replay_conflict(job, *bound_of(known))
            return
        is_full = len(self._last) >= self._jobs_max
        oldest = min(map(bound_of, self._last.values())) if is_full else _NOTHING
        if bound <= max(self._forgotten, oldest):
            raise refusals.replay_forgotten(job, self._jobs_max)

    def note(self, replay: Replay, offset: int) -> None:
        """A copy is on disk, at this offset of the log."""
        if bound_of(replay) <= self._forgotten:
            return
        known = self._last.get(replay.job)
        if known is not None and place_of(known) >= place_of(replay):
            return
        if not self.is_known:
            self.defined_at = offset
        self._last[replay.job] = replay
        self.is_dirty = True
        if len(self._last) > self._jobs_max:
            self._forget_through(min(map(bound_of, self._last.values())))

    def _forget_through(self, bound: Bound) -> None:
        self._forgotten = max(self._forgotten, bound)
        self._last = {
            job: last for job, last in self._last.items() if bound_of(last) > self._forgotten
        }
        self.is_dirty = True

    # Across restarts.

    def state(self) -> bytes:
        """All of it, for a snapshot or an anchor."""
        return encode_body(ReplaysStand([*self._last.values()], *self._forgotten))

    def take_state(self, *, is_whole: bool) -> bytes | None:
        """The same if it changed since the last time, or if it is asked for."""
        if not (self.is_dirty or is_whole):
            return None
        self.is_dirty = False
        return self.state()

    def restore(self, state: bytes, offset: int = 0) -> None:
        """What was written is known again, beside what is; raises `msgspec.MsgspecError`."""
        stands = decode_body(ReplaysStand, state)
        for one in stands.last:
            self.note(one, offset)
        forgotten = (stands.forgotten_epoch, stands.forgotten_offset)
        if forgotten > self._forgotten:
            self._forget_through(forgotten)
