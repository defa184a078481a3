"""What requests to the API for messages hold, and what is answered; its OpenAPI follows from it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from signalhub.core.requests import SEQS_MAX, Duration, Position
from signalhub.wire.envelope import NULL
from signalhub.wire.names import (
    ADDRESS_CHARS_MAX,
    ID_CHARS_MAX,
    TOPIC_CHARS_MAX,
    TYPE_CHARS_MAX,
)

BATCH_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 2**20
PULL_MAX: Final = 1_000
PULL_WAIT_MS_MAX: Final = 30_000
REQUEST_MS_MAX: Final = 60_000
PAGE_MAX: Final = 1_000
ACTORS_MAX: Final = 100
NUMBER_MAX: Final = 2**53
# Of an Idempotency-Key, which the place in a batch follows in ids.
KEY_CHARS_MAX: Final = ID_CHARS_MAX - 16

_ADDRESS: Final = r"^@\([\s\S]+\)$"

Topic = Annotated[
    str,
    Meta(min_length=1, max_length=TOPIC_CHARS_MAX, description="The topic.", examples=["orders"]),
]
MessageType = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=TYPE_CHARS_MAX,
        pattern="^(?!hub:)",
        description="What kind of message it is; `hub:` is the hub's own.",
        examples=["order:placed"],
    ),
]
To = Annotated[
    str,
    Meta(
        pattern=_ADDRESS,
        max_length=ADDRESS_CHARS_MAX,
        description="The address of the recipient.",
        examples=["@(shop/prices)"],
    ),
]
From = Annotated[
    str,
    Meta(
        pattern=_ADDRESS,
        max_length=ADDRESS_CHARS_MAX,
        description="Who sends it: by default the actor of the token, or `@(http/client)`.",
    ),
]
MessageId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=ID_CHARS_MAX,
        description="Makes repeats safe, as `Idempotency-Key` does; the hub makes one if absent.",
    ),
]
Ttl = Annotated[
    int, Meta(ge=1, le=NUMBER_MAX, description="Milliseconds after which it is worthless.")
]
Seq = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]


def _null() -> Raw:
    # A factory, because the description of a default would be its value.
    return NULL


class Body(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """Base of all requests; an unknown member is refused: it may be `durable` misspelt."""


# Requests.


class PublishBody(Body):
    """A message for everybody who is subscribed to a topic."""

    topic: Topic
    type: MessageType
    data: Raw = msgspec.field(default_factory=_null)
    key: Annotated[str, Meta(max_length=256)] | None = None
    headers: (
        Annotated[dict[str, Annotated[str, Meta(max_length=1_024)]], Meta(max_length=64)] | None
    ) = None
    durable: bool | None = None
    deliver_at: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | None = None
    ttl: Ttl | None = None
    id: MessageId | None = None
    sender: From | None = msgspec.field(name="from", default=None)


class SendBody(Body):
    """A message for one actor."""

    to: To
    type: MessageType
    data: Raw = msgspec.field(default_factory=_null)
    ttl: Ttl | None = None
    id: MessageId | None = None
    sender: From | None = msgspec.field(name="from", default=None)


class RequestBody(Body):
    """A message for one actor that is to reply."""

    to: To
    type: MessageType
    data: Raw = msgspec.field(default_factory=_null)
    timeout_ms: Annotated[int, Meta(ge=1, le=REQUEST_MS_MAX)] = 30_000
    id: MessageId | None = None


class PullBody(Body):
    """How many messages to take, and how long to wait for the first one."""

    max: Annotated[int, Meta(ge=1, le=PULL_MAX)] = 100
    wait_ms: Annotated[int, Meta(ge=0, le=PULL_WAIT_MS_MAX)] = 0
    mode: Literal["exclusive", "failover", "shared", "key-shared"] | None = None
    window: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    start: Literal["earliest", "latest"] | None = msgspec.field(name="from", default=None)


class SettleBody(Body):
    """Which messages are settled: exactly one of `seq`, `seqs` and `upTo`."""

    seq: Position | UnsetType = UNSET
    seqs: Annotated[list[Position], Meta(max_length=SEQS_MAX)] | UnsetType = UNSET
    up_to: Position | UnsetType = UNSET
    epoch: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    ids: Annotated[list[str], Meta(max_length=SEQS_MAX)] | UnsetType = UNSET
    attempt: Position | UnsetType = UNSET


class NackBody(SettleBody):
    """The same, and when they may come again."""

    delay_ms: Duration | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ExtendBody(SettleBody, kw_only=True):
    """The same, and for how long more they are worked on, from now."""

    ms: Annotated[int, Meta(ge=1, le=NUMBER_MAX)]


class TermBody(SettleBody):
    """The same, and why they are never to come again."""

    reason: str | UnsetType = UNSET


# Answers.


class AnswerBody(msgspec.Struct, rename="camel", gc=False):
    """Base of all answers; later versions may have more members."""


class StoredPublish(AnswerBody, omit_defaults=True):
    """A durable publish: on disk at this position."""

    id: str
    topic: str
    epoch: str
    seq: Seq
    durability: Literal["fsync", "interval", "os"]
    duplicate: bool | UnsetType = UNSET
    subscriber_count: int | UnsetType = UNSET


class Published(AnswerBody):
    """A publish to a plain topic: handed to so many subscribers."""

    id: str
    topic: str
    subscriber_count: Annotated[int, Meta(ge=0)]


class Told(AnswerBody):
    """A tell: forwarded if somebody is there."""

    id: str


class Receipt(AnswerBody, omit_defaults=True):
    """An ask: stored, and delivered or queued in a mailbox."""

    id: str
    status: Literal["delivered", "queued"]
    durability: str | UnsetType = UNSET
    delivered_at: int | UnsetType = UNSET
    queued_at: int | UnsetType = UNSET
    queue_position: int | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET


class Reply(AnswerBody):
    """The reply to a request."""

    id: str
    sender: str = msgspec.field(name="from")
    type: str
    data: Raw


class Refused(AnswerBody, rename={"error_code": "errorCode", "retry_after_ms": "retryAfterMs"}):
    """Why something was not done, and what to do."""

    error: str
    error_code: str
    resolution: str
    details: dict[str, Any]
    retry_after_ms: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class BatchItem(AnswerBody, omit_defaults=True):
    """What became of one message of a batch: the status it would have had alone."""

    status: int
    id: str | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    epoch: str | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    subscriber_count: int | UnsetType = UNSET
    error: str | UnsetType = UNSET
    error_code: str | UnsetType = UNSET
    resolution: str | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET


class Batch(AnswerBody):
    """The results in the order of the messages, and how many of them were refused."""

    results: list[BatchItem]
    failed: Annotated[int, Meta(ge=0)]


class StoredMessage(AnswerBody, omit_defaults=True):
    """A message of a durable topic."""

    id: str
    seq: Seq
    epoch: str
    sender: str = msgspec.field(name="from")
    type: str
    data: Raw
    published_at: int
    key: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    dead_letter: Raw | UnsetType = UNSET


class Delivery(StoredMessage, kw_only=True, omit_defaults=True):
    """A message that was taken from a subscription, and is to be settled."""

    attempt: Seq
    redelivered: bool
    delivery_id: str


class History(AnswerBody, omit_defaults=True):
    """A page of a topic; `next` is the position after it."""

    topic: str
    epoch: str
    messages: list[StoredMessage]
    next: Seq
    complete: bool
    lost_from: Seq | UnsetType = UNSET
    lost_to: Seq | UnsetType = UNSET
    withheld: int | UnsetType = UNSET


class Pulled(AnswerBody):
    """What was taken, oldest first; nothing if nothing came in time."""

    topic: str
    subscription: str
    messages: list[Delivery]


class Settled(AnswerBody):
    """How many were settled, which were not waited for, and up to where all are settled."""

    floor: Annotated[int, Meta(ge=0)]
    accepted: Annotated[int, Meta(ge=0)]
    ignored: list[int]


class FoundActor(AnswerBody):
    """An address that is registered, and what it can do."""

    address: str
    capabilities: list[str]


class Actors(AnswerBody):
    """Who matches; `hasMore` if there are others."""

    actors: list[FoundActor]
    has_more: bool
