"""Where a durable message came from, and how its recipient says what became of it.

Members are read one by one: a hub of another age may send some of them in another shape, and a
message must not be lost for that.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


class Delivery(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """One attempt to deliver a message of a durable stream.

    `stream` is set for mailboxes, `subscription` for durable subscriptions; a copy of a plain
    subscription has neither, and nothing to settle.
    """

    epoch: str
    seq: int
    stream: str | None = None
    subscription: str | None = None
    attempt: int = 1
    redelivered: bool = False
    published_at: int | None = None  # Milliseconds since the epoch.
    accepted_at: int | None = None  # The same; set for the mailbox of a host.
    id: str | None = None  # Names this attempt.


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a dead letter comes from and why it was given up."""

    topic: str | None = None
    subscription: str | None = None
    stream: str | None = None
    epoch: str | None = None
    seq: int | None = None
    attempts: int = 0
    reason: str | None = None
    first_failure: int | None = None  # Milliseconds since the epoch, like the last.
    last_failure: int | None = None
    consumers: tuple[str, ...] = ()


class Settled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the hub made of a settlement: `ignored` names those that were not in flight."""

    floor: int = 0
    accepted: int = 0
    ignored: tuple[int, ...] = ()


def read_members(value: object, kind: type[S]) -> S | None:
    """Read a struct of which members may be missing or wrong; `None` without a required one."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return _read_each(value, kind) if isinstance(value, dict) else None


def _read_each(members: dict[Any, Any], kind: type[S]) -> S | None:
    good: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        try:
            good[field.name] = msgspec.convert(members[field.encode_name], field.type)
        except (KeyError, msgspec.ValidationError):
            if field.required:
                return None
    return kind(**good)


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
