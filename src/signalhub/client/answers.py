"""The hub's answers.

They are decoded leniently: missing members take their defaults and unknown members are ignored,
so a client and a hub of different versions can talk to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from signalhub.wire.errors import OutcomeUnknown

T = TypeVar("T")


def answer_of(payload: Any, kind: type[T]) -> T:
    """Decode the payload of an answer."""
    try:
        return msgspec.convert(payload, kind, strict=False)
    except msgspec.ValidationError as error:
        # The request succeeded, but its result is unknown.
        raise OutcomeUnknown(f"the hub's answer cannot be read: {error}") from None


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the hub's answers; members it does not send take their defaults."""


class Receipt(_Answer, frozen=True):
    """The result of an ask: `delivered` to the recipient's socket, or `queued` for it."""

    message_id: str
    status: str = "delivered"
    delivered_at: int | None = None
    epoch: str | None = None  # Of the recipient's mailbox, if it has one.
    seq: int | None = None
    durability: str | None = None  # `fsync`, `interval` or `os`.
    duplicate: bool = False  # The hub already had it.
    attempts: int = 1  # How often this client sent it.

    @property
    def is_delivered(self) -> bool:
        return self.status == "delivered"


class Published(_Answer, frozen=True):
    """The result of a publish; only durable topics have positions."""

    topic: str = ""
    subscribers: int = msgspec.field(name="subscriberCount", default=0)
    epoch: str | None = None
    seq: int | None = None
    durability: str | None = None  # `fsync`, `interval` or `os`.
    duplicate: bool = False  # The hub already had it.
    attempts: int = 1  # How often this client sent it.


class BroadcastResult(_Answer, frozen=True):
    """How many actors a broadcast reached; `queued` ones receive it in later fan-out batches."""

    message_id: str = ""
    delivered: int = msgspec.field(name="deliveredCount", default=0)
    failed: int = msgspec.field(name="failedCount", default=0)
    queued: int = msgspec.field(name="queuedCount", default=0)


class Registration(_Answer, frozen=True):
    """An address registered by this client."""

    address: str = msgspec.field(name="actorAddress")
    expires_at: int = 0
    version: int = 1
    durable: bool = False
    waiting: int = 0  # Messages that waited for it and are delivered next.


class Actor(_Answer, frozen=True):
    """One actor, as `discover` returns it; `away` if it has a mailbox but no session."""

    address: str
    capabilities: tuple[str, ...] = ()
    away: bool = False


class Found(_Answer, frozen=True):
    """The actors `discover` found; `has_more` says whether there are more."""

    actors: tuple[Actor, ...] = ()
    has_more: bool = False

    def __iter__(self) -> Iterator[Actor]:
        return iter(self.actors)

    def __len__(self) -> int:
        return len(self.actors)

    def __getitem__(self, index: int) -> Actor:
        return self.actors[index]


class ListedActor(_Answer, frozen=True):
    """One registered actor, as `actors` returns it."""

    address: str = msgspec.field(name="actorAddress")
    capabilities: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    connection_id: str = ""
    registered_at: int = 0
    expires_at: int = 0
    version: int = 1


class _OffsetPage(_Answer, frozen=True):
    """A page of a list whose rows are counted."""

    offset: int = 0
    limit: int = 0
    has_more: bool = False

    def __len__(self) -> int:
        raise NotImplementedError

    def after(self, at: int) -> int | None:
        """Return the offset of the page after this one, which began at `at`; `None` if none."""
        return at + len(self) if self.has_more and len(self) else None


class ActorPage(_OffsetPage, frozen=True):
    """A page of the registry."""

    actors: tuple[ListedActor, ...] = ()
    total: int = 0

    def __iter__(self) -> Iterator[ListedActor]:
        return iter(self.actors)

    def __len__(self) -> int:
        return len(self.actors)


class SessionInfo(_Answer, frozen=True):
    """One session of the hub, as `sessions` returns it."""

    id: str = msgspec.field(name="sessionId")
    identity: str | None = None  # `None` before its hello.
    subject: str | None = None
    token_id: str | None = None  # The `jti` of its token.
    token_expires_at: int | None = None
    source: str = ""  # The network address of its client.
    connected_at: int = 0
    last_seen_at: int = 0
    registrations: int = 0
    subscriptions: int = 0
    consumers: int = 0
    queued_messages: int = 0
    queued_bytes: int = 0


class SessionPage(_Answer, frozen=True):
    """A page of the hub's sessions; `next` is where the following one begins."""

    sessions: tuple[SessionInfo, ...] = ()
    total: int = 0
    next: int | None = None

    def __iter__(self) -> Iterator[SessionInfo]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)

    def after(self, _at: int) -> int | None:
        """Return where the page after this one begins; `None` if there is none."""
        return self.next


class QueueStats(_Answer, frozen=True):
    """What is queued in the hub for this connection."""

    queue_depth: int = 0
    processing_rate: float = 0.0
    pause_threshold: int = 0
    resume_threshold: int = 0


class UsedBy(_Answer, frozen=True):
    """How much one identity, or one source address, uses."""

    identity: str = ""
    source: str = ""
    used: int = 0


class ResourceUsage(_Answer, frozen=True):
    """A resource of the hub: how much of it is used, its limits, and who uses most of it."""

    resource: str = ""
    used: int = 0
    limit: int | None = None
    per_identity: int | None = None
    per_source: int | None = None
    identities: tuple[UsedBy, ...] = ()
    sources: tuple[UsedBy, ...] = ()


class LimitUsage(_Answer, frozen=True):
    """What `limits` returns: every resource that is limited."""

    resources: tuple[ResourceUsage, ...] = ()


class RefreshedToken(_Answer, frozen=True):
    """A token that replaces the one in use."""

    token: str
    expires_at: int | None = None


class Lost(NamedTuple):
    """Positions that can no longer be read, both ends included."""

    first: int
    last: int


class Retention(_Answer, frozen=True):
    """How long and how much a topic keeps; `None` means no limit."""

    age_s: float | None = msgspec.field(name="ageSeconds", default=None)
    bytes: int | None = None


class Topic(_Answer, frozen=True):
    """A durable topic."""

    name: str = msgspec.field(name="topic")
    durable: bool = True
    epoch: str | None = None
    head: int = 0  # The last position; 0 if nothing was published yet.
    first: int | None = None  # The oldest position that can still be read.
    bytes: int | None = None  # Messages published since the topic was created.
    retention: Retention | None = None
    poison: str | None = None
    dead_letter: str | None = None
    heartbeat_ms: int | None = None
    removed: int | None = None  # Positions redriven or purged.
    subscriptions: tuple[str, ...] = ()


class TopicPage(_OffsetPage, frozen=True):
    """A page of the durable topics."""

    topics: tuple[Topic, ...] = ()

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


class HeldUp(_Answer, frozen=True):
    """Where a subscription waits because of the log, or a pattern because of a limit, and why."""

    seq: int = 0
    code: str = ""
    reason: str = ""
    segment: str | None = None
    position: int | None = None


class SubscriptionInfo(_Answer, frozen=True):
    """A durable subscription; `lag` counts messages that are neither settled nor parked."""

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
    exhausted: int = 0  # Failed too often, and the poison policy has not settled them.
    settled_above_floor: int = 0
    parked: int = 0  # Parked until their delivery time.
    dead_lettered: int = 0
    redelivered: int = 0
    lost: int = 0
    paused: bool = False
    blocked: bool = False
    held_up: HeldUp | None = None  # Why it cannot deliver more.
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
    idle_expiry_ms: int | None = None
    backlog_max: int | None = None
    backlog_policy: str | None = None
    # Of a pattern and its parts; a pattern adds up its topics.
    pattern: str | None = None
    topics: int | None = None
    topics_behind: int | None = None
    topics_blocked: int | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for all topics that match."""
        return self.pattern is not None and self.pattern == self.topic


class SubscriptionPage(_OffsetPage, frozen=True):
    """Durable subscriptions, of one topic or of all."""

    subscriptions: tuple[SubscriptionInfo, ...] = ()

    def __iter__(self) -> Iterator[SubscriptionInfo]:
        return iter(self.subscriptions)

    def __len__(self) -> int:
        return len(self.subscriptions)


class Sought(_Answer, frozen=True):
    """The position after a seek, and how many messages it repeats or skips."""

    epoch: str | None = None
    next: int = 0
    will_replay: int = 0
    will_skip: int = 0
    topics: int | None = None  # Of a pattern: how many are moved.


class Replayed(_Answer, frozen=True):
    """The end of a replay: whether the range is complete, and where to continue."""

    count: int = 0
    complete: bool = True
    next: int | None = None
    lost_from: int | None = None
    lost_to: int | None = None


class Count(_Answer, frozen=True):
    """How many dead letters were redriven or purged, and how many of the chosen ones stay."""

    count: int = 0
    skipped: int = 0


class LetterCount(int):
    """How many dead letters were redriven or purged.

    `skipped` of the chosen ones stay: their origin is gone or closed to this session, or the edit
    is not possible.
    """

    skipped: int

    def __new__(cls, count: int, skipped: int = 0) -> Self:
        made = super().__new__(cls, count)
        made.skipped = skipped
        return made


class ReasonCount(_Answer, frozen=True):
    """How many dead letters have one reason."""

    reason: str = ""
    count: int = 0


class ChosenLetter(_Answer, frozen=True):
    """One of the dead letters that were chosen; reason, type and key need `read`."""

    seq: int = 0
    stream: str | None = None
    subscription: str | None = None
    attempts: int = 0
    last_failure: int = 0
    reason: str | None = None
    type: str | None = None
    key: str | None = None


class LettersPreview(_Answer, frozen=True):
    """What a redrive or purge would do, up to the position `through`."""

    count: int = 0
    skipped: int = 0  # Their origin is gone, or closed to this session.
    epoch: str = ""
    through: int = 0
    by_reason: tuple[ReasonCount, ...] | None = None  # `None` without `read`.
    first: tuple[ChosenLetter, ...] = ()


class Job(_Answer, frozen=True):
    """A job of an operator, as `jobs` returns it."""

    job: str
    operation: str = ""
    state: str = ""  # `running`, `done`, `failed` or `interrupted`.
    subject: str | None = None
    identity: str | None = None
    began_at: int | None = None
    ended_at: int | None = None
    detail: str | None = None


class JobPage(_Answer, frozen=True):
    """The newest jobs of the hub, the last one first."""

    jobs: tuple[Job, ...] = ()
    total: int = 0

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


class Original(msgspec.Struct, frozen=True, kw_only=True):
    """A message accepted earlier, and its position in the log."""

    epoch: int
    offset: int
    id: str
    type: str
    shard: int = 0
    sender: str | None = msgspec.field(name="from", default=None)
    key: str | None = None
    headers: dict[str, str] | None = None
    data: Any = None  # Encoded JSON can be passed as `msgspec.Raw`.


class OriginalPosition(msgspec.Struct, frozen=True):
    """The position of an original."""

    shard: int
    epoch: int
    offset: int


class Republished(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a replay job; `position` is `None` before its first message."""

    job: str = ""
    position: OriginalPosition | None = None
    appended: int = 0
    skipped: int = 0  # Appended by this job before.


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """In a copy: the replay job that sent it, and the original's position and id."""

    job: str
    shard: int = 0
    epoch: int = 0
    offset: int = 0
    id: str = ""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure removed from the hub's log."""

    entries: int = 0
    settled: int = 0  # Deliveries that were not settled yet.
    mailbox: bool = False
    segments: int = 0  # Log files that were rewritten.
    torn: int = 0
    epoch: int = 0
    through: int = 0  # The log was searched up to this offset.
    at: float = 0  # Completion time in milliseconds.


class Place(msgspec.Struct, frozen=True):
    """Where a durable actor lives; messages for it carry the token as a fence."""

    actor: str
    host: str
    token: int
    fresh: bool = False
    """It starts there empty, although the token is not the first: its former place was
    forgotten."""


class Unplaced(msgspec.Struct, frozen=True):
    """A durable actor without a place, and why; with code `no_host`, try again later."""

    actor: str
    code: str
    message: str = ""
    resolution: str = ""


class Placements(msgspec.Struct, frozen=True):
    """The result of `place`, in the order of the request."""

    places: tuple[Place, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
