"""What the log holds, as values: the kinds of entries and the bodies they carry.

Bodies are MessagePack arrays; members are only ever added at the end, with a default, so that a
newer program reads what an older one wrote. The core writes and replays them, the log stores them
without looking inside, the pipeline makes columns of them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, TypeVar

import msgspec

Range = tuple[int, int]  # From and to, both included.
T = TypeVar("T")

# An erased entry whose stream was somebody's address has one that begins like this.
PSEUDONYM_PREFIX: Final = "erased."
PSEUDONYM: Final = r"^erased\.[0-9a-f]{32}$"

# A durable actor is named by its kind and its key; only the first slash separates them.
ACTOR: Final = r"^[a-z][a-z0-9_-]{0,63}/[^\x00-\x1f\x7f-\x9f]{1,256}\Z"


class Kind(IntEnum):
    """Everything an entry can be. Numbers are never used again for something else."""

    MAIL = 1  # A message for one actor.
    PUBLISHED = 2  # A message on a durable topic.
    BROADCAST = 3  # A broadcast as ask: what its sender was told.
    SETTLED = 4  # What became of deliveries.
    CURSOR = 5  # How far a subscription or mailbox has come.
    STREAM_CREATED = 6  # A mailbox or topic was made, or its definition changed.
    STREAM_DELETED = 7
    SUBSCRIPTION_CREATED = 8  # A subscription was made, or its definition changed.
    SUBSCRIPTION_DELETED = 9
    REMOVED = 10  # Entries of a stream were taken away: redriven or purged.
    LOST = 11  # Retention removed entries that a subscription had not settled.
    ROOM_MESSAGE = 12  # A message in an inbox; its stream is the inbox.
    INBOX_STANDS = 13  # How far an inbox has come, written again because the log was to be cut.
    ROOM_BOUND = 14  # A room has its inbox; from here on the stream is the room.
    ROOM_BLOB = 15  # One of a room's opaque blobs was written.
    ROOM_PROPOSAL = 16  # What became of a proposal without a message: it expired, or was rewritten.
    INBOX_KEY = 17  # Which key hashes the names of rooms and inboxes; its stream is empty.
    ERASED = 18  # Entries lose their content on purpose.
    REPLAYS_STAND = 19  # How far replays have come, written again because the log was to be cut.
    PLACED = 20  # A durable actor has its place, or another one; its stream is empty.


class Entry(msgspec.Struct, gc=False):
    """One entry before it is written. What has no position in its stream has `seq` 0."""

    kind: int
    stream: str
    stream_epoch: int
    seq: int
    at_ms: int
    body: bytes


class Stored(msgspec.Struct, frozen=True, gc=False):
    """One entry as it was read back."""

    offset: int
    kind: int
    stream: str
    stream_epoch: int
    seq: int
    at_ms: int
    body: bytes
    is_erased: bool = False


class Body(msgspec.Struct, array_like=True, gc=False):
    """Base of all bodies."""


class DeadLetter(Body):
    """Where a dead letter comes from and why it died."""

    topic: str  # Or the address of a mailbox.
    subscription: str
    epoch: str
    seq: int
    attempts: int
    reason: str
    first_failure: int
    last_failure: int
    consumers: list[str]


class Replay(Body):
    """Which replay sent a copy, and the original: where it is in which log, and its id there.

    A replay never goes beyond the position it was bounded by, which also tells how old it is.
    """

    job: str
    shard: int
    epoch: int
    offset: int
    id: str
    until_epoch: int
    until_offset: int


class Message(Body):
    """Body of MAIL and PUBLISHED: one message, and all its copies need."""

    id: str  # As its sender named it.
    copy_id: bytes  # Every copy carries it, redelivered ones too.
    sender: str
    type: str
    data: bytes  # JSON.
    metadata: bytes = b""  # Of a sent message: what the hub does not write itself, as JSON.
    ttl: float | int | None = None
    expires_at: float | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    deliver_at: int | None = None
    dead: DeadLetter | None = None
    only_for: str | None = None  # The one subscription a message sent again is meant for.
    replay: Replay | None = None


class Broadcast(Body):
    """Body of BROADCAST."""

    id: str
    sender: str
    ack: bytes  # The payload of the acknowledgement, as JSON.


class Outcome(IntEnum):
    """What became of one delivery."""

    ACKED = 1
    WRITTEN = 2  # The write to the socket settled it.
    FAILED = 3  # An attempt failed; it will be tried again.
    EXPIRED = 4
    DROPPED = 5  # By the poison policy.
    DEAD_LETTERED = 6
    GONE = 7  # Nobody was there to take it.
    HANDED_OVER = 8  # Given to the socket; the recipient settles it.
    FILTERED = 9  # Meant for another subscription, or taken away before it was read.
    ERASED = 10  # Its content was taken out of the log on purpose.


# Outcomes after which a message is not delivered again.
SETTLING: Final = frozenset(Outcome) - {Outcome.FAILED, Outcome.HANDED_OVER}


class Settlement(Body):
    """One delivery of a SETTLED entry."""

    seq: int
    offset: int  # Of the message.
    outcome: int
    attempts: int = 1
    failures: int = 0
    first_sent: int = 0
    last_sent: int = 0
    consumer: str = ""
    reason: str = ""


class Settled(Body):
    """Body of SETTLED; a mailbox has no subscription name."""

    subscription: str
    generation: int
    deliveries: list[Settlement]


class Cursor(Body):
    """Body of CURSOR: everything up to `floor` is settled or parked, and so is `above`."""

    subscription: str
    generation: int
    floor: int
    reserved: int  # Nothing beyond it has ever been sent.
    above: list[Range]
    parked: dict[int, int]  # Seq to the time it is due.
    failures: dict[int, int]  # Seq to failed attempts.
    is_paused: bool = False
    dead_lettered: int = 0


class StreamDefinition(Body):
    """Body of STREAM_CREATED."""

    is_topic: bool
    retention_s: float | None = None
    retention_bytes: int | None = None
    poison: str | None = None
    dead_letter: str | None = None
    heartbeat_ms: int | None = None
    # Where the stream stood when its definition was written again, because the log was to be cut.
    first: int = 1
    head: int = 0
    # Of a host's mailbox: the kinds of durable actors it serves.
    kinds: tuple[str, ...] | None = None


class SubscriptionDefinition(Body):
    """Body of SUBSCRIPTION_CREATED, and what a subscription is told to do."""

    name: str
    mode: str
    window: int
    strict: bool
    ack_timeout_ms: int
    max_deliveries: int
    backoff_ms: int
    backoff_cap_ms: int
    heartbeat_ms: int | None
    auto_ack: bool
    poison: str | None = None
    dead_letter: str | None = None
    rate_s: float = 0.0
    start: int = 0  # The floor it began with.


class Removed(Body):
    """Body of REMOVED."""

    ranges: list[Range]
    reason: str


class Lost(Body):
    """Body of LOST."""

    subscription: str
    first: int
    last: int


class Control(Body):
    """What a room remembers of a message that is more than one for its members."""

    room: str  # The name of the room's stream.
    type: str
    proposal: str
    pseudonym: str = ""


class RoomMessage(Body):
    """Body of ROOM_MESSAGE. Who sent it and to which room is not kept."""

    message_id: str
    ciphertext: bytes  # As base64url text without padding; nobody here looks inside.
    created_ms: int | None  # Floored as the setting `rooms.timestamps` asks; `None`: not told.
    expires_ms: int
    is_appended: bool = False  # Written to the inbox directly, past the room.
    control: Control | None = None


class InboxStands(Body):
    """Body of INBOX_STANDS."""

    head: int
    oldest: int
    since_ms: int  # When its first message came.
    retention_s: float | None = None
    erased: int = 0  # Nothing up to here is read again.


class RoomBound(Body):
    """Body of ROOM_BOUND."""

    inbox: str  # The name of the inbox's stream.


class RoomBlob(Body):
    """Body of ROOM_BLOB."""

    name: str
    version: int
    data: bytes
    modified_ms: int


class Proposal(Body):
    """Body of ROOM_PROPOSAL, and a proposal as its room remembers it."""

    id: str
    proposer: str
    content: bytes
    status: str
    created_ms: int
    expires_ms: int
    approvals: list[bytes] = msgspec.field(default_factory=list)
    changed_ms: int = 0


class InboxKey(Body):
    """Body of INBOX_KEY."""

    version: int
    fingerprint: str


class Erased(Body):
    """Body of ERASED; the one of an inbox has its stream, one of an actor names nobody.

    The first entry of an erasure says what it is about, and has no ranges; others follow.
    """

    reason: str
    ranges: list[Range] = msgspec.field(default_factory=list)  # Offsets in the log.
    renamed: list[Range] = msgspec.field(default_factory=list)  # Of these: whose stream was a name.
    pseudonym: str = ""  # What stands for the name.
    through: int = 0  # The last position of the inbox that is erased.


class ReplaysStand(Body):
    """Body of REPLAYS_STAND: the last copy of each replay, and what was forgotten of others."""

    last: list[Replay]
    forgotten_epoch: int
    forgotten_offset: int


class Placed(Body):
    """Body of PLACED: the host's address, and the token that messages for the actor must have."""

    actor: str
    host: str
    token: int


_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def encode_body(body: Body) -> bytes:
    """The bytes of a body."""
    return _encode(body)


def decode_body(kind: type[T], body: bytes) -> T:
    """Read a body back; raises `msgspec.MsgspecError` if it is of another shape."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    decoded: T = decoder.decode(body)
    return decoded
