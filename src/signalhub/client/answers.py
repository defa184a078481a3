"""What the hub says about durable topics and subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the hub's answers; members it does not send take their defaults."""


class Lost(NamedTuple):
    """Positions that are gone for good, both ends included."""

    first: int
    last: int


class Retention(_Answer, frozen=True):
    """How long and how much a topic keeps; `None` is without limit."""

    age_s: float | None = msgspec.field(name="ageSeconds", default=None)
    bytes: int | None = None


class Topic(_Answer, frozen=True):
    """A durable topic."""

    name: str = msgspec.field(name="topic")
    durable: bool = True
    epoch: str | None = None
    head: int = 0  # The last position; 0 when nothing was published yet.
    first: int | None = None  # The oldest position that can still be read.
    bytes: int | None = None  # What was ever published to it.
    retention: Retention | None = None
    poison: str | None = None
    dead_letter: str | None = None
    heartbeat_ms: int | None = None
    removed: int | None = None  # Positions redriven or purged.
    subscriptions: tuple[str, ...] = ()


class TopicPage(_Answer, frozen=True):
    """A page of the durable topics."""

    topics: tuple[Topic, ...] = ()
    offset: int = 0
    limit: int = 0
    has_more: bool = False

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.topics)

    def __len__(self) -> int:
        return len(self.topics)


class ConsumerInfo(_Answer, frozen=True):
    """A consumer of a durable subscription."""

    name: str = msgspec.field(name="consumer", default="")
    subscription_id: str = ""
    session: str = ""
    in_flight: int = 0
    window: int = 0


class SubscriptionInfo(_Answer, frozen=True):
    """A durable subscription: `lag` counts what is neither settled nor parked for later."""

    topic: str = ""
    name: str = msgspec.field(name="subscription", default="")
    mode: str = ""
    epoch: str | None = None
    consumers: tuple[ConsumerInfo, ...] = ()
    floor: int = 0  # Everything up to here is settled.
    next: int = 0
    head: int = 0
    lag: int = 0
    lag_s: float | None = msgspec.field(name="lagSeconds", default=None)
    in_flight: int = 0
    waiting_retry: int = 0
    exhausted: int = 0  # They failed too often, and the poison policy has not settled them.
    settled_above_floor: int = 0
    parked: int = 0  # They are to be delivered later.
    dead_lettered: int = 0
    redelivered: int = 0
    lost: int = 0
    paused: bool = False
    blocked: bool = False
    generation: int | None = None
    first: int | None = None
    window: int | None = None
    strict: bool | None = None
    ack_timeout_ms: int | None = None
    max_deliveries: int | None = None
    backoff_ms: int | None = None
    backoff_cap_ms: int | None = None
    heartbeat_ms: int | None = None
    auto_ack: bool | None = None
    poison: str | None = None
    dead_letter: str | None = None
    rate_per_second: float | None = None


class SubscriptionPage(_Answer, frozen=True):
    """Durable subscriptions, of one topic or of all."""

    subscriptions: tuple[SubscriptionInfo, ...] = ()
    offset: int = 0
    limit: int = 0
    has_more: bool = False

    def __iter__(self) -> Iterator[SubscriptionInfo]:
        return iter(self.subscriptions)

    def __len__(self) -> int:
        return len(self.subscriptions)


class Sought(_Answer, frozen=True):
    """Where a subscription reads on after a seek, and what that repeats or leaves out."""

    epoch: str | None = None
    next: int = 0
    will_replay: int = 0
    will_skip: int = 0


class Replayed(_Answer, frozen=True):
    """How a replay ended: was that all, and where would it go on?"""

    count: int = 0
    complete: bool = True
    next: int | None = None
    lost_from: int | None = None
    lost_to: int | None = None


class Count(_Answer, frozen=True):
    """How many dead letters were put back, or thrown away."""

    count: int = 0


class Original(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was accepted before, and where it is in the log it was accepted in."""

    epoch: int
    offset: int
    id: str
    type: str
    shard: int = 0
    sender: str | None = msgspec.field(name="from", default=None)
    key: str | None = None
    headers: dict[str, str] | None = None
    data: Any = None  # JSON that is ready may be given as `msgspec.Raw`.


class OriginalPosition(msgspec.Struct, frozen=True):
    """Where an original is."""

    shard: int
    epoch: int
    offset: int


class Republished(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replay has come; `None` before its first message."""

    job: str = ""
    position: OriginalPosition | None = None
    appended: int = 0
    skipped: int = 0  # This replay had appended them before.


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Of a copy: which replay sent it, and the original's place and id."""

    job: str
    shard: int = 0
    epoch: int = 0
    offset: int = 0
    id: str = ""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken out of the hub's log; nothing of it is read again."""

    entries: int = 0
    settled: int = 0  # Copies that somebody had not settled yet.
    mailbox: bool = False
    segments: int = 0  # Files of the log that were written anew.
    torn: int = 0
    epoch: int = 0
    through: int = 0  # Everything before this offset of the log was searched.
    at: float = 0  # When it was done, in milliseconds.
