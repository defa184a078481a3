"""Where a subscription stands in its stream.

Up to `floor` everything is settled, or parked until its time; `above` is settled, too. The numbers
are written to the log as a cursor, with each settlement in between, so that a later process knows
them; a cursor is never ahead of the truth.

Nothing is sent beyond `reserved`, which is written before it is used. After a restart everything up
to it may have been sent, so those copies are marked; what lies beyond was never sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from signalhub.core.ranges import Ranges
from signalhub.entry import Cursor, Outcome, Settlement


class Position:
    """Invariant: every position up to `floor` is settled or in `parked`."""

    __slots__ = (
        "above",
        "dead_lettered",
        "doubtful",
        "failures",
        "floor",
        "generation",
        "is_paused",
        "parked",
        "reserved",
    )

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.above = Ranges()
        # Delayed messages by the time they are due.
        self.parked: dict[int, int] = {}
        # Failed attempts of messages that are not settled.
        self.failures: dict[int, int] = {}
        self.reserved = floor
        # What another process may have sent.
        self.doubtful = 0
        # A seek begins a new one; acks for an older one mean nothing.
        self.generation = 1
        self.is_paused = False
        # How many of its messages became dead letters, ever.
        self.dead_lettered = 0

    def is_settled(self, seq: int) -> bool:
        """Parked ones are not."""
        return (seq <= self.floor or seq in self.above) and seq not in self.parked

    def unsettled(self, head: int) -> int:
        """How many positions up to the head are neither settled nor parked."""
        parked_above = sum(seq > self.floor for seq in self.parked)
        return head - self.floor - self.above.count - parked_above

    def settle(self, seq: int) -> None:
        """Done with it. Harmless when repeated."""
        if self.parked:
            self.parked.pop(seq, None)
        if self.failures:
            self.failures.pop(seq, None)
        if seq == self.floor + 1 and not self.above and not self.parked:
            # The common case: everything is settled in its order.
            self.floor = seq
        elif seq > self.floor:
            self.above.add(seq)
            self._advance()

    def park(self, seq: int, due_ms: int) -> None:
        """It is delivered later, and nothing waits for it."""
        self.parked[seq] = due_ms
        self._advance()

    def _advance(self) -> None:
        floor = self.floor
        while True:
            reached = self.above.end_from(floor + 1)
            while reached + 1 in self.parked:
                reached += 1
            if reached == floor:
                break
            floor = reached
        if floor != self.floor:
            self.floor = floor
            self.above.drop_through(floor)

    def skip_to(self, last: int, kept: Sequence[int] = ()) -> None:
        """Nothing up to `last` can be read any more; only those kept, in order, are unsettled."""
        low = self.floor + 1
        for seq in (*kept, last + 1):
            if low < seq:
                self.above.add_range(low, seq - 1)
            low = max(low, seq + 1)
        self._advance()

    def seek(self, floor: int, generation: int) -> None:
        """Begin again behind `floor`."""
        self.generation = generation
        self.floor = floor
        self.above = Ranges()
        self.parked.clear()
        self.failures.clear()
        self.doubtful = 0

    def replay(self, one: Settlement) -> None:
        """Apply what the log says about one delivery."""
        if one.outcome == Outcome.FAILED:
            self.failures[one.seq] = one.failures
        elif one.outcome != Outcome.HANDED_OVER and not self.is_settled(one.seq):
            self.dead_lettered += one.outcome == Outcome.DEAD_LETTERED
            self.settle(one.seq)

    def cursor(self, name: str) -> Cursor:
        """All of it, to be written."""
        return Cursor(
            name,
            self.generation,
            self.floor,
            self.reserved,
            list(self.above),
            dict(self.parked),
            dict(self.failures),
            self.is_paused,
            self.dead_lettered,
        )

    def restore(self, cursor: Cursor) -> None:
        """Stand where an earlier process stood."""
        self.generation = cursor.generation
        self.floor = cursor.floor
        self.reserved = cursor.reserved
        self.above = Ranges(cursor.above)
        self.parked = dict(cursor.parked)
        self.failures = dict(cursor.failures)
        self.is_paused = cursor.is_paused
        self.dead_lettered = cursor.dead_lettered
