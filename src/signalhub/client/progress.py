"""How far one reader of a stream has come.

The hub keeps the reading position and decides what to deliver; this is what the reader itself
knows, for two purposes: to say at the next connection after which position it goes on, and not to
hand out a copy of what was settled meanwhile.

Rules it keeps: everything up to `position` that was delivered here was settled here; only of the
messages that went back to the hub a bounded number is remembered. Settling one copy closes the
later attempts, but not what a seek has sent anew: attempts are then counted from the beginning.
"""

from __future__ import annotations

from signalhub.client.delivery import Delivery

# More than any window holds.
RETURNED_MAX = 16_384


class Progress:
    """Invariant: a position is open (ours to settle), returned (the hub's again) or neither."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self._highest: int | None = None
        self._open: dict[int, Delivery] = {}
        self._returned: dict[int, None] = {}

    def arrived(self, delivery: Delivery) -> None:
        """A message is here, perhaps once more."""
        if delivery.epoch != self.epoch:
            self.restart(delivery.epoch)
        seq = delivery.seq
        self._open[seq] = delivery
        self._returned.pop(seq, None)
        if self._highest is None or seq > self._highest:
            self._highest = seq

    def is_open(self, delivery: Delivery) -> bool:
        return delivery.epoch == self.epoch and delivery.seq in self._open

    def settled(self, delivery: Delivery) -> None:
        """It need not come again."""
        if delivery.epoch == self.epoch:
            self._close(delivery)
            self._returned.pop(delivery.seq, None)

    def settled_up_to(self, epoch: str, seq: int) -> None:
        """Nothing up to this position need come again."""
        if epoch == self.epoch:
            self._open = {one: delivery for one, delivery in self._open.items() if one > seq}
            self._returned = {one: None for one in self._returned if one > seq}

    def returned(self, delivery: Delivery) -> None:
        """It was not processed and goes back to the hub."""
        if delivery.epoch == self.epoch and self._close(delivery):
            self._give_back(delivery.seq)

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

    def _close(self, delivery: Delivery) -> bool:
        latest = self._open.get(delivery.seq)
        if latest is None:
            return False
        if latest.id != delivery.id and latest.attempt <= delivery.attempt:
            return False
        del self._open[delivery.seq]
        return True

    def _give_back(self, seq: int) -> None:
        self._returned[seq] = None
        # Others may get it, and then we never hear of it again.
        if len(self._returned) > RETURNED_MAX:
            del self._returned[next(iter(self._returned))]
