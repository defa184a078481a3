"""Where a durable message comes from, and the result of settling it.

Members are decoded one by one: a hub of another version may send some of them in another form,
and that must not lose the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from signalhub.wire.names import has_wildcard, topic_matches

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class Delivery(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """One attempt to deliver a message from a durable stream.

    `stream` is set for mailboxes, `subscription` for durable subscriptions; a copy from a plain
    subscription has neither and is not settled.
    """

    epoch: str
    seq: int
    stream: str | None = None
    subscription: str | None = None
    attempt: int = 1
    redelivered: bool = False
    published_at: int | None = None  # Milliseconds since the Unix epoch.
    accepted_at: int | None = None  # Likewise; set for the mailbox of a host.
    id: str | None = None  # Identifies this attempt.


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a dead letter comes from, and why it was dead-lettered."""

    topic: str | None = None
    subscription: str | None = None
    stream: str | None = None
    epoch: str | None = None
    seq: int | None = None
    attempts: int = 0
    reason: str | None = None
    first_failure: int | None = None  # Milliseconds since the Unix epoch, like `last_failure`.
    last_failure: int | None = None
    consumers: tuple[str, ...] = ()


class Settled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The hub's answer to a settlement; `ignored` lists those that were not in flight."""

    floor: int = 0
    accepted: int = 0
    ignored: tuple[int, ...] = ()


def reader_of(readers: Mapping[tuple[str, str], T], topic: str, subscription: str) -> T | None:
    """Find what reads a subscription of a topic, alone or with all topics of a pattern."""
    found = readers.get((topic, subscription))
    if found is None:
        for (pattern, name), one in readers.items():
            if name == subscription and has_wildcard(pattern) and topic_matches(pattern, topic):
                return one
    return found


def read_members(value: object, kind: type[S]) -> S | None:
    """Decode a struct whose members may be missing or invalid; `None` if a required one is."""
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


class Copy(NamedTuple):
    """A delivery, and the id of the message, which all copies share."""

    delivery: Delivery
    message_id: str


class Progress:
    """Unsettled messages. Invariant: a position is open (ours), returned (the hub's) or neither."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self._highest: int | None = None
        self._open: dict[int, Copy] = {}
        self._returned: dict[int, Copy] = {}

    def arrived(self, delivery: Delivery, message_id: str) -> None:
        """Record a delivery or redelivery."""
        if delivery.epoch != self.epoch:
            self.restart(delivery.epoch)
        seq = delivery.seq
        self._open[seq] = Copy(delivery, message_id)
        self._returned.pop(seq, None)
        if self._highest is None or seq > self._highest:
            self._highest = seq

    def is_open(self, delivery: Delivery) -> bool:
        return delivery.epoch == self.epoch and delivery.seq in self._open

    def settled(self, delivery: Delivery) -> None:
        """Record that a message is settled."""
        if delivery.epoch == self.epoch:
            self._close(delivery)
            self._returned.pop(delivery.seq, None)

    def settled_up_to(self, epoch: str, seq: int) -> list[Copy]:
        """Record that everything up to a position is settled; return the latest copies of it."""
        if epoch != self.epoch:
            return []
        every = {**self._returned, **self._open}
        self._open = {one: copy for one, copy in self._open.items() if one > seq}
        self._returned = {one: copy for one, copy in self._returned.items() if one > seq}
        return [copy for one, copy in sorted(every.items()) if one <= seq]

    def returned(self, delivery: Delivery) -> None:
        """Record that a message goes back to the hub unprocessed."""
        if delivery.epoch == self.epoch and (copy := self._close(delivery)) is not None:
            self._give_back(copy)

    def lost(self) -> None:
        """Return everything unsettled to the hub, because the connection was lost."""
        for _, copy in sorted(self._open.items()):
            self._give_back(copy)
        self._open.clear()

    def restart(self, epoch: str) -> None:
        """Start again with a new epoch of the stream; old positions are no longer valid."""
        self.epoch = epoch
        self._highest = None
        self._open.clear()
        self._returned.clear()

    @property
    def position(self) -> int | None:
        """Return up to which position everything is settled; `None` before any message."""
        unsettled = [*self._open, *self._returned]
        return min(unsettled) - 1 if unsettled else self._highest

    def _close(self, delivery: Delivery) -> Copy | None:
        latest = self._open.get(delivery.seq)
        if latest is None:
            return None
        known = latest.delivery
        if known.id != delivery.id and known.attempt <= delivery.attempt:
            return None
        return self._open.pop(delivery.seq)

    def _give_back(self, copy: Copy) -> None:
        self._returned[copy.delivery.seq] = copy
        # The hub may give it to another consumer, and then we never see it again.
        if len(self._returned) > RETURNED_MAX:
            del self._returned[next(iter(self._returned))]
