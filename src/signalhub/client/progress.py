"""How far one reader of a stream has come.

The hub keeps the reading position and decides what to deliver; this is what the reader itself
knows, for two purposes: to say at the next connection after which position it goes on, and not to
hand out a copy of what was settled meanwhile.

Rule it keeps: everything up to `position` that was delivered here was settled here. Only of the
messages that went back to the hub a bounded number is remembered.
"""

from __future__ import annotations

# More than any window holds.
RETURNED_MAX = 16_384


class Progress:
    """Invariant: a position is open (ours to settle), returned (the hub's again) or neither."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self._highest: int | None = None
        self._open: set[int] = set()
        self._returned: dict[int, None] = {}

    def arrived(self, epoch: str, seq: int) -> None:
        """A message is here, perhaps once more."""
        if epoch != self.epoch:
            self.restart(epoch)
        self._open.add(seq)
        self._returned.pop(seq, None)
        if self._highest is None or seq > self._highest:
            self._highest = seq

    def is_open(self, epoch: str, seq: int) -> bool:
        return epoch == self.epoch and seq in self._open

    def settled(self, epoch: str, seq: int) -> None:
        if epoch == self.epoch:
            self._open.discard(seq)
            self._returned.pop(seq, None)

    def settled_up_to(self, epoch: str, seq: int) -> None:
        if epoch == self.epoch:
            self._open = {one for one in self._open if one > seq}
            self._returned = {one: None for one in self._returned if one > seq}

    def returned(self, epoch: str, seq: int) -> None:
        """It was not processed and goes back to the hub."""
        if self.is_open(epoch, seq):
            self._open.discard(seq)
            self._give_back(seq)

    def lost(self) -> None:
        """The connection is gone, and everything unsettled goes back to the hub."""
        for seq in sorted(self._open):
            self._give_back(seq)
        self._open.clear()

    def restart(self, epoch: str) -> None:
        """The stream was made anew; old positions mean nothing any more."""
        self.epoch = epoch
        self._highest = None
        self._open.clear()
        self._returned.clear()

    @property
    def position(self) -> int | None:
        """The last position up to which nothing is left to do here; `None` if nothing came yet."""
        unsettled = [*self._open, *self._returned]
        return min(unsettled) - 1 if unsettled else self._highest

    def _give_back(self, seq: int) -> None:
        self._returned[seq] = None
        # Others may get it, and then we never hear of it again.
        if len(self._returned) > RETURNED_MAX:
            del self._returned[next(iter(self._returned))]
