"""The consumers of one subscription, and which of them gets the next message.

* exclusive: one consumer, others are refused;
* failover: the first in order of joining, the others stand by;
* shared: round robin, skipping consumers without room and avoiding the last one on a retry;
* key-shared: all messages of a key go to one consumer, one at a time. A key stays with its owner
  until its messages are settled or the owner leaves, so joining and leaving never reorder it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.sessions.session import Session
from signalhub.wire import envelope

if TYPE_CHECKING:
    from signalhub.core.patterns.pattern import PatternConsumer
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.core.subscriptions.subscription import Subscription
    from signalhub.core.subscriptions.window import Flight

EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"
FAILOVER: Final = "failover"
KEY_SHARED: Final = "key-shared"


class Consumer:
    """One session as a consumer of a subscription."""

    __slots__ = (
        "address_json",
        "asked",
        "auto_ack",
        "bytes",
        "bytes_max",
        "flights",
        "group",
        "id",
        "name",
        "session",
        "subscription",
        "told",
        "waiting",
        "window",
    )

    def __init__(
        self,
        consumer_id: str,
        name: str,
        session: Session,
        address: str,
        subscription: Subscription,
        *,
        window: int,
        bytes_max: int,
        auto_ack: bool,
        group: PatternConsumer | None = None,
    ) -> None:
        self.id = consumer_id
        self.name = name
        self.session = session
        self.address_json = envelope.encode(address)
        self.subscription = subscription
        self.window = window
        self.bytes_max = bytes_max
        self.auto_ack = auto_ack
        self.flights = 0
        self.bytes = 0
        # How many more messages it wants, if it takes them one pull after the other.
        self.asked: int | None = None
        # The consumer of a pattern that it is a part of; its window counts then.
        self.group = group
        # The obstacle of its subscription that it was told about.
        self.told = ""
        # Keys it owns that wait for room.
        self.waiting: deque[KeyQueue] = deque()

    def grant(self, window: int | None = None, bytes_max: int | None = None) -> None:
        """Set how many messages and bytes may be in flight to it."""
        if window is not None:
            self.window = window
        if bytes_max is not None:
            self.bytes_max = bytes_max

    @property
    def place(self) -> dict[str, str]:
        """What it consumes, by name."""
        subscription = self.subscription
        return {"topic": subscription.stream.name, "subscription": subscription.name}

    def parts(self) -> tuple[Consumer]:
        """The consumers of single streams that it consists of."""
        return (self,)

    def ended(self) -> None:
        """It has left all streams."""

    def wake(self, dispatcher: Dispatcher) -> None:
        """It may have room again."""
        dispatcher.wake(self.subscription)

    def took(self, count: int, size: int) -> None:
        """Messages were sent to it."""
        self.flights += count
        self.bytes += size
        if self.asked is not None:
            self.asked -= count
        if self.group is not None:
            self.group.took(count, size)

    def gave(self, count: int, size: int) -> None:
        """Messages are no longer in flight to it."""
        self.flights -= count
        self.bytes -= size
        if self.group is not None:
            self.group.gave(count, size)

    @property
    def room(self) -> int:
        """How many messages may be sent to it."""
        if self.group is not None:
            return self.group.room_for(self.subscription)
        room = self.window - self.flights
        return room if self.asked is None else min(room, self.asked)

    @property
    def bytes_room(self) -> int:
        """How many bytes may be sent to it."""
        holder = self.group or self
        return holder.bytes_max - holder.bytes

    @property
    def is_named(self) -> bool:
        """Does it consume a durable subscription, and not a mailbox?"""
        return bool(self.subscription.name)

    @property
    def has_room(self) -> bool:
        """May one more message be sent to it? A blocked socket has no room."""
        if self.group is not None:
            return self.group.room_for(self.subscription) > 0
        return (
            self.flights < self.window
            and self.asked != 0
            and self.bytes < self.bytes_max
            and self.session.outbound is None
        )


class KeyQueue(msgspec.Struct, eq=False):
    """The unsettled messages of one key, oldest first; the first one may be in flight."""

    key: str
    flights: deque[Flight]
    owner: Consumer | None = None


class Consumers:
    """All consumers of a subscription, in order of joining."""

    __slots__ = ("_next", "all", "mode")

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.all: list[Consumer] = []
        self._next = 0

    def begin_at(self, turn: int) -> None:
        """Begin the round of shared messages with this one."""
        self._next = turn

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def capacity(self) -> int:
        """The number of messages that may be unsettled in total.

        It is 0 while nobody asks for any, so that none is read for nothing.
        """
        if all(one.asked == 0 for one in self.all):
            return 0
        if self.mode in (EXCLUSIVE, FAILOVER):
            return (self.all[0].group or self.all[0]).window
        return sum((one.group or one).window for one in self.all)

    def named(self, name: str) -> Consumer | None:
        return next((one for one in self.all if one.name == name), None)

    def add(self, consumer: Consumer) -> None:
        self.all.append(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer; `False` if it had already left."""
        if consumer not in self.all:
            return False
        self.all.remove(consumer)
        return True

    @property
    def have_room(self) -> bool:
        """Can any consumer take a message?"""
        if self.mode in (EXCLUSIVE, FAILOVER):
            return bool(self.all) and self.all[0].has_room
        return any(one.has_room for one in self.all)

    def choose(self, avoid: Consumer | None = None) -> Consumer | None:
        """The consumer of the next message, except in key-shared mode; `None` if none has room."""
        if self.mode != SHARED:
            # Exclusive and failover: only the first one receives.
            return self.all[0] if self.all and self.all[0].has_room else None
        spare = None
        for step in range(len(self.all)):
            at = (self._next + step) % len(self.all)
            one = self.all[at]
            if not one.has_room:
                continue
            if one is avoid:
                spare = one
                continue
            self._next = at + 1
            return one
        return spare

    def owner_of(self, queue: KeyQueue) -> Consumer | None:
        """The owner of a key; a key without one gets it by rendezvous hashing."""
        if queue.owner is None and self.all:
            key = queue.key.encode("utf-8", "surrogatepass")
            queue.owner = max(self.all, key=lambda one: (_weight(one.name, key), one.id))
        return queue.owner


def _weight(name: str, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, key=name.encode("utf-8", "surrogatepass")[:64]).digest()
