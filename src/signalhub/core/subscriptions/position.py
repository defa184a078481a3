"""How far a subscription has got: what is settled, parked or has failed."""

from __future__ import annotations

from collections.abc import Sequence

from signalhub.ranges import Ranges
from signalhub.wire.entry import CursorBody, Outcome, Settlement


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
        "letters_through",
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
        # Positions up to here may have been sent by an earlier process.
        self.doubtful = 0
        # Each seek starts a new one; acks of older ones are ignored.
        self.generation = 1
        self.is_paused = False
        # The number of its dead letters ever written to the log, and the offset of the last one.
        self.dead_lettered = 0
        self.letters_through = -1

    def is_settled(self, seq: int) -> bool:
        """Is the position settled? Parked positions are not."""
        return (seq <= self.floor or seq in self.above) and seq not in self.parked

    def unsettled(self, head: int) -> int:
        """The number of positions up to the head that are neither settled nor parked."""
        parked_above = sum(seq > self.floor for seq in self.parked)
        return head - self.floor - self.above.count - parked_above

    @property
    def first_unsettled(self) -> int:
        """The oldest position that is neither settled nor parked."""
        return self.above.end_from(self.floor + 1) + 1

    def settle(self, seq: int) -> None:
        """Settle a position; idempotent."""
        if self.parked:
            self.parked.pop(seq, None)
        if self.failures:
            self.failures.pop(seq, None)
        if seq == self.floor + 1 and not self.above.count and not self.parked:
            # The common case: settled in order.
            self.floor = seq
        elif seq > self.floor:
            self.above.add(seq)
            self._advance()

    def settle_through(self, first: int, last: int) -> None:
        """Settle positions that are not parked and have not failed."""
        if first == self.floor + 1 and not self.above.count and not self.parked:
            self.floor = last
            return
        for seq in range(max(first, self.floor + 1), last + 1):
            self.above.add(seq)
        self._advance()

    def park(self, seq: int, due_ms: int) -> None:
        """Put a delayed message aside; later positions do not wait for it."""
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
        """Positions up to `last` are gone; only the `kept` ones, in order, stay unsettled."""
        low = self.floor + 1
        for seq in (*kept, last + 1):
            if low < seq:
                self.above.add_range(low, seq - 1)
            low = max(low, seq + 1)
        self._advance()

    def seek(self, floor: int, generation: int) -> None:
        """Start again after `floor`."""
        self.generation = generation
        self.floor = floor
        self.above = Ranges()
        self.parked.clear()
        self.failures.clear()
        self.doubtful = 0

    def replay(self, one: Settlement) -> None:
        """Apply a settlement read from the log, unless a snapshot already contains it."""
        if one.outcome == Outcome.HANDED_OVER or self.is_settled(one.seq):
            return
        if one.outcome == Outcome.FAILED:
            self.failures[one.seq] = one.failures
        else:
            self.settle(one.seq)

    def count_letter(self, offset: int) -> None:
        """A dead letter is in the log, unless it is counted already."""
        if offset > self.letters_through:
            self.dead_lettered += 1
            self.letters_through = offset

    def cursor(self, name: str) -> CursorBody:
        """The position as an entry."""
        return CursorBody(
            name,
            self.generation,
            self.floor,
            self.reserved,
            list(self.above),
            dict(self.parked),
            dict(self.failures),
            self.is_paused,
            self.dead_lettered,
            self.letters_through,
        )

    def restore(self, cursor: CursorBody) -> None:
        """Restore the position from an entry."""
        self.generation = cursor.generation
        self.floor = cursor.floor
        self.reserved = cursor.reserved
        self.above = Ranges(cursor.above)
        self.parked = dict(cursor.parked)
        self.failures = dict(cursor.failures)
        self.is_paused = cursor.is_paused
        self.dead_lettered = cursor.dead_lettered
        self.letters_through = cursor.letters_through
