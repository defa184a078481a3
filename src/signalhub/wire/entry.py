"""The kinds of log entries and their bodies.

Bodies are MessagePack arrays; members are only added at the end, with a default, so that a newer
program reads what an older one wrote. The core writes and reads them, the log stores them unread,
the pipeline turns them into columns.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec

Range = tuple[int, int]  # From and to, inclusive.
T = TypeVar("T")

# The prefix of the stream name of an erased entry whose stream was an address.
PSEUDONYM_PREFIX: Final = "erased."
PSEUDONYM: Final = r"^erased\.[0-9a-f]{32}$"

# A durable actor is named by kind and key, separated by the first slash.
ACTOR: Final = r"^[a-z][a-z0-9_-]{0,63}/[^\x00-\x1f\x7f-\x9f]{1,256}\Z"


class Kind(IntEnum):
    """The kind of an entry. Numbers are never reused, and 22 to 31 are reserved."""

    MAIL = 1  # A message for one actor.
    PUBLISHED = 2  # A message on a durable topic.
    BROADCAST = 3  # A broadcast as ask: the acknowledgement of its sender.
    SETTLED = 4  # Outcomes of deliveries.
    CURSOR = 5  # The progress of a subscription or mailbox.
    STREAM_CREATED = 6  # A mailbox or topic was created, or its definition changed.
    STREAM_DELETED = 7
    SUBSCRIPTION_CREATED = 8  # A subscription was created, or its definition changed.
    SUBSCRIPTION_DELETED = 9
    REMOVED = 10  # Entries of a stream were removed: redriven or purged.
    LOST = 11  # Retention removed entries that a subscription had not settled.
    ROOM_MESSAGE = 12  # A message in an inbox; its stream is the inbox.
    INBOX_STANDS = 13  # The state of an inbox, written again before old segments are deleted.
    ROOM_BOUND = 14  # A room was bound to its inbox; from this kind on the stream is the room.
    ROOM_BLOB = 15  # One of a room's opaque blobs was written.
    ROOM_PROPOSAL = 16  # A proposal changed without a message: it expired, or was rewritten.
    # The key that hashes the names of rooms and inboxes, and where positions continue; its stream
    # is empty.
    INBOX_KEY = 17
    ERASED = 18  # An erasure of entries.
    REPLAYS_STAND = 19  # The progress of jobs, rewritten before old segments are deleted.
    PLACED = 20  # A durable actor got a place; its stream is empty.
    OPERATED = 21  # Somebody used a permission over what is not theirs; its stream is empty.


class Entry(msgspec.Struct, gc=False):
    """One entry before it is written. Without a position in its stream it has `seq` 0."""

    count: ClassVar[int] = 1

    kind: int
    stream: str
    stream_epoch: int
    seq: int
    at_ms: int
    body: bytes


class Bodies(Protocol):
    """The bodies of several entries."""

    @property
    def count(self) -> int: ...

    def __len__(self) -> int:
        """The bytes of all of them."""

    def sizes(self) -> list[int]:
        """The bytes of each."""

    def body(self, at: int, /) -> bytes:
        """One of them."""


class EntryRun(msgspec.Struct, gc=False):
    """Entries of one stream with consecutive positions, the first of which is `seq`."""

    kind: int
    stream: str
    stream_epoch: int
    seq: int
    at_ms: int
    body: Bodies
    count: int

    def entries(self) -> list[Entry]:
        """Each for itself."""
        return [
            Entry(
                self.kind,
                self.stream,
                self.stream_epoch,
                self.seq + at,
                self.at_ms,
                self.body.body(at),
            )
            for at in range(self.count)
        ]


class StoredEntry(msgspec.Struct, frozen=True, gc=False):
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


class DeadLetterOrigin(Body):
    """Where a dead letter comes from, and why it was given up."""

    topic: str  # Or the address of a mailbox.
    subscription: str
    epoch: str
    seq: int
    attempts: int
    reason: str
    first_failure: int
    last_failure: int
    consumers: list[str]
    offset: int = 0  # Of the original; 0 in letters of version 0.1.


class RedrivenOrigin(Body):
    """The message whose dead letter was redriven: its id, and its position in its stream."""

    id: str
    epoch: str
    seq: int
    is_edited: bool = False


class ReplayOrigin(Body):
    """The replay job that sent a copy, and the original: its log, position and id there.

    A job never goes beyond its bound, which also tells how old it is.
    """

    job: str
    shard: int
    epoch: int
    offset: int
    id: str
    until_epoch: int
    until_offset: int


class MessageBody(Body):
    """Body of MAIL and PUBLISHED: one message, and what its copies need."""

    id: str  # Chosen by its sender.
    copy_id: bytes  # The same for every copy, redelivered ones included.
    sender: str
    type: str
    data: bytes  # JSON.
    metadata: bytes = b""  # The sender's metadata as JSON, without the hub's members.
    ttl: float | int | None = None
    expires_at: float | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    deliver_at: int | None = None
    dead: DeadLetterOrigin | None = None
    only_for: str | None = None  # The only subscription that gets a message sent again.
    replay: ReplayOrigin | None = None
    redriven: RedrivenOrigin | None = None


class BroadcastBody(Body):
    """Body of BROADCAST."""

    id: str
    sender: str
    ack: bytes  # The payload of the acknowledgement, as JSON.


class Outcome(IntEnum):
    """The outcome of one delivery."""

    ACKED = 1
    WRITTEN = 2  # Settled by the write to the socket.
    FAILED = 3  # An attempt failed; it will be retried.
    EXPIRED = 4
    DROPPED = 5  # By the poison policy.
    DEAD_LETTERED = 6
    GONE = 7  # There was no recipient.
    HANDED_OVER = 8  # Given to the socket; the recipient settles it.
    FILTERED = 9  # Meant for another subscription, or removed before it was read.
    ERASED = 10  # Its content was erased from the log.


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


class SettledBody(Body):
    """Body of SETTLED; a mailbox has no subscription name."""

    subscription: str
    generation: int
    deliveries: list[Settlement]


class CursorBody(Body):
    """Body of CURSOR: everything up to `floor` is settled or parked, and so is `above`."""

    subscription: str
    generation: int
    floor: int
    reserved: int  # Nothing beyond it was ever sent.
    above: list[Range]
    parked: dict[int, int]  # Due times by seq.
    failures: dict[int, int]  # Failed attempts by seq.
    is_paused: bool = False
    dead_lettered: int = 0
    letters_through: int = -1  # The offset of the last dead letter that is counted.


class StreamDefinitionBody(Body):
    """Body of STREAM_CREATED."""

    is_topic: bool
    retention_s: float | None = None
    retention_bytes: int | None = None
    poison: str | None = None
    dead_letter: str | None = None
    heartbeat_ms: int | None = None
    # The stream's position when its definition was written again, before segments were deleted.
    first: int = 1
    head: int = 0
    # Of a host's mailbox: the kinds of durable actors it serves.
    kinds: tuple[str, ...] | None = None
    # The subject of the token that it was created with; empty if unknown.
    owner: str = ""


class SubscriptionDefinitionBody(Body):
    """Body of SUBSCRIPTION_CREATED: the definition of a subscription."""

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
    start: int = 0  # Its initial floor.
    owner: str = ""  # The subject of the token it was created with; empty if unknown.
    idle_expiry_ms: int = 0  # Deleted after this time without a consumer; 0 for never.
    backlog_max: int = 0  # Unsettled messages; 0 for no limit.
    backlog_policy: str = ""  # What happens beyond `backlog_max`.
    # Of a pattern subscription, whose entries have the pattern as stream, and of its parts.
    pattern: str = ""
    # A pattern begins with this many of the messages that a topic has; with all if `None`.
    last: int | None = None


class RemovedBody(Body):
    """Body of REMOVED."""

    ranges: list[Range]
    reason: str


class LostBody(Body):
    """Body of LOST."""

    subscription: str
    first: int
    last: int


class RoomEffect(Body):
    """The effect of a message on the state of its room, such as a proposal."""

    room: str  # The name of the room's stream.
    type: str
    proposal: str
    pseudonym: str = ""


class RoomMessageBody(Body):
    """Body of ROOM_MESSAGE. Its sender and room are not stored."""

    message_id: str
    ciphertext: bytes  # As base64url text without padding; opaque to the hub.
    # Rounded down as the setting `rooms.timestamps` says; `None`: not shown.
    created_ms: int | None
    expires_ms: int
    is_appended: bool = False  # Written to the inbox directly, bypassing the room.
    control: RoomEffect | None = None
    # A keyed digest of pseudonym and ciphertext, to recognise a repeat with other content; 0 in
    # entries of 0.1.0.
    digest: int = 0


class InboxStandsBody(Body):
    """Body of INBOX_STANDS."""

    head: int
    oldest: int
    since_ms: int  # The time of its first message.
    retention_s: float | None = None
    erased: int = 0  # Nothing up to here is read again.
    skipped: list[Range] = msgspec.field(default_factory=list)  # Positions without a message.


class RoomBoundBody(Body):
    """Body of ROOM_BOUND."""

    inbox: str  # The name of the inbox's stream.


class RoomBlobBody(Body):
    """Body of ROOM_BLOB."""

    name: str
    version: int
    data: bytes
    modified_ms: int


class ProposalBody(Body):
    """Body of ROOM_PROPOSAL, and a proposal as its room remembers it."""

    id: str
    proposer: str
    content: bytes
    status: str
    created_ms: int
    expires_ms: int
    approvals: list[bytes] = msgspec.field(default_factory=list)
    changed_ms: int = 0


class InboxKeyBody(Body):
    """Body of INBOX_KEY."""

    version: int
    fingerprint: str
    epoch: int = 0  # Of the log when this was written; 0 in entries of 0.1.0.
    # Messages accepted from here on have higher positions: the log has lost what had lower ones.
    floor: int = 0

    def is_for(self, other: InboxKeyBody) -> bool:
        """Is it about the same key?"""
        return (self.version, self.fingerprint) == (other.version, other.fingerprint)


class ErasedBody(Body):
    """Body of ERASED; for an inbox the entry has its stream, for an actor it names nobody.

    The first entry of an erasure describes it and has no ranges; others follow.
    """

    reason: str
    ranges: list[Range] = msgspec.field(default_factory=list)  # Offsets in the log.
    # Of these: with an address as stream.
    renamed: list[Range] = msgspec.field(default_factory=list)
    pseudonym: str = ""  # Replaces the address.
    through: int = 0  # The last position of the inbox that is erased.


class JobBody(Body):
    """A job in REPLAYS_STAND: who began it, and how it ended."""

    job: str
    operation: str
    by: str  # Empty in the log, which is not searched for names here; a snapshot has it.
    address: str
    began_ms: int = 0
    ended_ms: int = 0
    phase: str = ""  # `end` or `failed`.
    detail: str = ""


class ReplaysStandBody(Body):
    """Body of REPLAYS_STAND: the last copy of each replay, and the newest forgotten one."""

    last: list[ReplayOrigin]
    forgotten_epoch: int
    forgotten_offset: int
    jobs: list[JobBody] = msgspec.field(default_factory=list)  # Replays and others.


class PlacedBody(Body):
    """Body of PLACED: the host's address, and the token that messages to the actor must carry."""

    actor: str
    host: str  # Empty: the place was forgotten.
    token: int
    owner: str = ""  # The subject of the token it was first placed with; empty if unknown.
    first: int = 1  # The token at which the actor started empty.


class OperatedBody(Body):
    """Body of OPERATED: who used which permission, over what."""

    by: str  # The subject of the token; empty if unknown.
    address: str  # The identity of the session.
    verb: str
    over: str
    # Of a job: `begin`, `end` or `failed`; one that has no end was interrupted.
    phase: str = ""
    job: str = ""
    request: str = ""  # Empty in older entries.
    detail: str = ""  # What else is worth knowing, without contents.


# The bytes of a body.
encode_body: Callable[[Body], bytes] = msgspec.msgpack.Encoder().encode
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def decode_body(kind: type[T], body: bytes) -> T:
    """Decode a body; raises `msgspec.MsgspecError` if its structure is different."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    decoded: T = decoder.decode(body)
    return decoded
