"""The typed payloads of all requests.

Unknown members are ignored, so that newer clients work; members of the wrong type are refused, so
that the hub never guesses.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from signalhub.core import refusals
from signalhub.wire.entry import ACTOR, PSEUDONYM
from signalhub.wire.envelope import NULL, Address, Envelope, Id, Number
from signalhub.wire.errors import Refusal
from signalhub.wire.names import ADDRESS_CHARS_MAX, TYPE_CHARS_MAX

T = TypeVar("T")

Type = Annotated[str, Meta(min_length=1, max_length=TYPE_CHARS_MAX)]


_ABSENT = Raw(b"")

SEQS_MAX = 10_000
POSITIONS_MAX = 1_000
EDITS_MAX = 100
JOB_CHARS_MAX = 128
ACTORS_MAX = 1_000
FENCES_MAX = 2_000
Position = Annotated[int, Meta(ge=1, le=2**53)]
LogNumber = Annotated[int, Meta(ge=0, le=2**53)]
Duration = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[float, Meta(ge=0, le=2**53)]
Poison = Literal["block", "drop", "dead_letter"]
BacklogPolicy = Literal["drop_oldest", "refuse"]
Actor = Annotated[str, Meta(pattern=ACTOR)]
Token = Annotated[int, Meta(ge=1, le=2**53)]
_DAY_MS = 86_400_000


class RequestPayload(msgspec.Struct, gc=False, rename="camel"):
    """Base of all payloads."""


class ConnectRequest(RequestPayload):
    """Metadata of `hub:connect`; untyped, because the handler checks it in a fixed order."""

    protocol_version: Any = None
    auth_token: Any = None
    capabilities: Any = None


class HeartbeatRequest(RequestPayload):
    """Payload of `hub:heartbeat`; the timestamp is echoed unchanged."""

    timestamp: Raw = _ABSENT


class RegisterRequest(RequestPayload):
    """Payload of `hub:register`."""

    actor_address: str
    capabilities: list[str]
    metadata: dict[str, Any] | None = None
    ttl_seconds: Number | None = None
    durable: bool | None = None


class UnregisterRequest(RequestPayload):
    """Payload of `hub:unregister`."""

    actor_address: str


class Renewal(RequestPayload):
    """Payload or metadata of `hub:renew`."""

    renewal_token: str | None = None


class DiscoverRequest(RequestPayload):
    """Payload of `hub:discover`."""

    pattern: str
    capability: str | None = None
    limit: Number | None = None
    include_away: bool | None = None


class ListActorsRequest(RequestPayload):
    """Payload of `hub:list_actors`."""

    offset: Number | None = None
    limit: Number | None = None


class ListSessionsRequest(RequestPayload):
    """Payload of `hub:list_sessions`; `after` is the `next` of the page before."""

    pattern: Annotated[str, Meta(min_length=1, max_length=ADDRESS_CHARS_MAX)] | None = None
    after: LogNumber | None = None
    limit: Number | None = None


class CloseSessionRequest(RequestPayload):
    """Payload of `hub:close_session`."""

    session_id: Id


class ListJobsRequest(RequestPayload):
    """Payload of `hub:list_jobs`."""

    limit: Number | None = None


class SendRequest(RequestPayload):
    """Payload of `hub:send`."""

    type: Type
    to: str | None = None
    data: Raw = NULL
    fences: Annotated[dict[str, Token], Meta(max_length=FENCES_MAX)] | None = None


class BroadcastRequest(RequestPayload):
    """Payload of `hub:broadcast`."""

    type: Type
    data: Raw = NULL
    exclude_self: bool | None = None


class BroadcastMetadata(RequestPayload):
    """Metadata of `hub:broadcast`."""

    target_capability: str | None = None


class Point(RequestPayload):
    """A position in a topic: exactly one of `seq`, `time` and `last`."""

    seq: Position | None = None
    time: Number | None = None
    last: Position | None = None
    epoch: str | None = None


Start = str | Point


class ResumePoint(RequestPayload):
    """The last position a consumer has processed."""

    seq: Annotated[int, Meta(ge=0, le=2**53)]
    epoch: str | None = None


class SubscriptionOptions(RequestPayload):
    """Options of a durable subscription; an omitted one stays as it is, or gets its default."""

    window: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    strict: bool | None = None
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=_DAY_MS)] | None = None
    max_deliveries: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    backoff_ms: Annotated[int, Meta(ge=0, le=_DAY_MS)] | None = None
    backoff_cap_ms: Annotated[int, Meta(ge=0, le=_DAY_MS)] | None = None
    heartbeat_ms: Annotated[int, Meta(ge=0, le=_DAY_MS)] | None = None
    auto_ack: bool | None = None
    poison: Poison | None = None
    dead_letter: str | None = None
    rate_per_second: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    idle_expiry_ms: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    backlog_max: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    backlog_policy: BacklogPolicy | None = None


class SubscribeRequest(SubscriptionOptions):
    """Payload of `hub:subscribe`; durable if `subscription` is given."""

    topic: str = ""
    pattern: str | None = None
    subscription: str | None = None
    mode: str | None = None
    start: Start | None = msgspec.field(name="from", default=None)
    consumer: str | None = None
    resume: ResumePoint | None = None
    # The same of a pattern, by topic.
    positions: Annotated[dict[str, ResumePoint], Meta(max_length=POSITIONS_MAX)] | None = None


class UnsubscribeRequest(RequestPayload):
    """Payload of `hub:unsubscribe`; clients put the topic into either of the first two."""

    topic: str | None = None
    subscription_id: str | None = None
    subscription: str | None = None
    pattern: str | None = None


class PublishRequest(RequestPayload):
    """Payload of `hub:publish`."""

    topic: str
    type: Type
    data: Raw = NULL
    durable: bool | None = None
    key: str | None = None
    deliver_at: Number | None = None
    # An object of strings or null, decoded once it is known to be short.
    headers: Raw = NULL


class RetentionLimits(RequestPayload):
    """How long a topic keeps its messages."""

    age_seconds: Annotated[float, Meta(gt=0)] | None = None
    bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None


class TopicNameRequest(RequestPayload):
    """Payload of requests about one topic."""

    topic: str


class TopicOptionsRequest(TopicNameRequest):
    """Payload of `hub:topic_update`."""

    retention: RetentionLimits | None = None
    poison: Poison | None = None
    dead_letter: str | None = None
    heartbeat_ms: Annotated[int, Meta(ge=0, le=_DAY_MS)] | None = None


class TopicCreateRequest(TopicOptionsRequest):
    """Payload of `hub:topic_create`."""

    durable: bool | None = None


class ListTopicsRequest(RequestPayload):
    """Payload of `hub:list_topics`."""

    pattern: str | None = None
    limit: Number | None = None
    offset: Number | None = None


class SubscriptionNameRequest(RequestPayload):
    """Payload of requests about one subscription."""

    topic: str
    subscription: str


class PatternNameRequest(RequestPayload):
    """Payload of requests about one pattern subscription."""

    pattern: str
    subscription: str


class ListSubscriptionsRequest(RequestPayload):
    """Payload of `hub:list_subs`."""

    topic: str | None = None
    pattern: str | None = None
    patterns: bool | None = None
    limit: Number | None = None
    offset: Number | None = None


class SeekRequest(RequestPayload):
    """Payload of `hub:seek`, besides the subscription's name."""

    to: Start
    dry_run: bool | None = None
    # The generation of the plan that is carried out: refused if there was a seek since.
    generation: Position | None = None


class SettleForRequest(SubscriptionNameRequest):
    """Payload of `hub:sub_settle`: positions that were sent, settled for whoever has them."""

    seqs: Annotated[list[Position], Meta(min_length=1, max_length=SEQS_MAX)]
    verdict: Literal["ack", "nack", "term"]
    generation: Position | None = None
    delay_ms: Duration | None = None
    reason: str | None = None


class ReplayRequest(RequestPayload):
    """Payload of `hub:replay`."""

    topic: str
    from_seq: Position
    to_seq: Position | None = None
    limit: Position | None = None
    epoch: str | None = None


class LetterFilter(RequestPayload, forbid_unknown_fields=True):
    """Chooses dead letters; what is given must all be so.

    An unknown member is refused, because without it the filter would choose more.
    """

    seqs: Annotated[list[Position], Meta(max_length=SEQS_MAX)] | None = None
    reason: str | None = None
    stream: str | None = None
    """The topic or mailbox they came from."""
    subscription: str | None = None
    type: str | None = None
    died_from: Number | None = msgspec.field(name="from", default=None)
    died_to: Number | None = msgspec.field(name="to", default=None)


class LetterEdit(RequestPayload, forbid_unknown_fields=True):
    """What a redriven copy has instead of its letter; null removes key or headers."""

    data: Raw = _ABSENT
    type: Type | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType | None = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def changed(self) -> list[str]:
        """The members it replaces."""
        given = {"type": self.type, "key": self.key, "headers": self.headers}
        names = [name for name, value in given.items() if value is not msgspec.UNSET]
        return ["data", *names] if self.data else names


class LettersRequest(RequestPayload):
    """Payload of `hub:redrive` and `hub:purge`: all dead letters of a topic, or some."""

    topic: str
    seqs: Annotated[list[Position], Meta(max_length=SEQS_MAX)] | None = None
    all: bool | None = None
    filter: LetterFilter | None = None
    through: Position | None = None
    epoch: str | None = None
    edits: Annotated[dict[Position, LetterEdit], Meta(max_length=EDITS_MAX)] | None = None
    dry_run: bool | None = None


class Destination(RequestPayload):
    """The target of a replay job: a topic, one of its subscriptions, or a mailbox."""

    topic: str | None = None
    subscription: str | None = None
    actor: str | None = None


class LogPosition(RequestPayload):
    """A position in the log of a hub."""

    epoch: LogNumber
    offset: LogNumber


class OriginalMessage(RequestPayload):
    """A message to send again, and the position of the original."""

    epoch: LogNumber
    offset: LogNumber
    id: Id
    type: Type
    shard: LogNumber = 0
    sender: Address | None = msgspec.field(name="from", default=None)
    key: str | None = None
    headers: dict[str, str] | None = None
    data: Raw = NULL


class RepublishRequest(RequestPayload):
    """Payload of `hub:republish`; without messages it asks for the progress of the job."""

    job: Annotated[str, Meta(min_length=1, max_length=JOB_CHARS_MAX)]
    until: LogPosition
    to: Destination
    messages: list[OriginalMessage] = []
    ended: bool = False
    """These are the last messages of the job, or all were sent before."""


class PlaceRequest(RequestPayload):
    """Payload of `hub:place`; a host that names itself claims the actors, with their tokens."""

    actors: Annotated[list[Actor], Meta(min_length=1, max_length=ACTORS_MAX)]
    host: str | None = None
    tokens: Annotated[dict[str, Token], Meta(max_length=ACTORS_MAX)] | None = None


class MoveRequest(RequestPayload):
    """Payload of `hub:move`."""

    actor: Actor
    token: Token
    to: str


class ForgetPlaceRequest(RequestPayload):
    """Payload of `hub:forget_place`."""

    actor: Actor


class EraseRequest(RequestPayload):
    """Payload of `hub:erase`: the messages of an actor, or the content of an inbox.

    `offsets` are ranges of further entries, valid in `epoch`. A caller that erases in other places,
    too, passes the `pseudonym` for the mailbox, so that it is the same everywhere.
    """

    actor: str | None = None
    inbox: Annotated[str, Meta(min_length=1)] | None = None
    offsets: Annotated[list[tuple[LogNumber, LogNumber]], Meta(max_length=SEQS_MAX)] = []
    epoch: LogNumber | None = None
    pseudonym: Annotated[str, Meta(pattern=PSEUDONYM)] | None = None


class SettleRequest(RequestPayload):
    """Payload of `hub:ack`, `hub:nack`, `hub:extend` and `hub:term`."""

    subscription_id: str | None = None
    topic: str | None = None
    subscription: str | None = None
    stream: str | None = None
    epoch: str | None = None
    seq: Position | None = None
    seqs: Annotated[list[Position], Meta(max_length=SEQS_MAX)] | None = None
    up_to: Position | None = None
    id: str | None = None
    ids: Annotated[list[str], Meta(max_length=SEQS_MAX)] | None = None
    attempt: Position | None = None
    delay_ms: Duration | None = None
    reason: str | None = None
    ms: Duration | None = None


class CreditRequest(RequestPayload):
    """Payload of `hub:credit`."""

    subscription_id: str
    messages: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    bytes: Annotated[int, Meta(ge=0, le=2**40)] | None = None


class LimitsRequest(RequestPayload):
    """Payload of `hub:limits`."""

    identity: Annotated[str, Meta(min_length=1)] | None = None
    limit: Number | None = None


class RefreshRequest(RequestPayload):
    """Payload of `hub:refresh_token`."""

    token: str | None = None


class RefreshMetadata(RequestPayload):
    """Metadata of `hub:refresh_token`; may hold the token instead."""

    auth_token: str | None = None


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def parse(kind: type[T], raw: Raw, member: str = "payload") -> T:
    """Decode a raw member; raises a `Refusal` that names what is wrong."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        result: T = decoder.decode(raw)
    except UNFIT as error:
        raise unfit(error, member) from None
    return result


def check_size(raw: Raw, bytes_max: int, member: str = "payload") -> None:
    """Refuse a member that is longer than one that can be used, before its values are made."""
    if len(bytes(raw)) > bytes_max:
        raise refusals.structural(f"the {member} is longer than {bytes_max} bytes")


# What decoders raise. Hot handlers decode directly, without `parse`.
UNFIT: Final = (ValueError, RecursionError)


def unfit(error: Exception, member: str = "payload") -> Refusal:
    """Return the refusal for a member that could not be decoded."""
    return refusals.structural(f"the {member} is invalid: {error}")


def parse_or_empty(kind: type[T], raw: Raw, member: str = "payload") -> T:
    """Like `parse`, for requests whose payload may be null."""
    return kind() if raw == NULL else parse(kind, raw, member)


def page(asked: Number | None, limit: int) -> int:
    """Return the page size."""
    return limit if asked is None else int(min(max(asked, 1), limit))


class _Trace(msgspec.Struct, gc=False, rename="camel"):
    """The trace context in the metadata of a request."""

    trace_id: Raw = _ABSENT
    span_id: Raw = _ABSENT


_decode_trace = msgspec.json.Decoder(_Trace).decode


def trace_of(envelope: Envelope) -> bytes:
    """Return the trace context of a request as metadata for its error; `{}` if there is none."""
    given = bytes(envelope.metadata)
    if b'"traceId"' not in given and b'"spanId"' not in given:
        return b"{}"
    try:
        trace = _decode_trace(given)
    except (ValueError, RecursionError):
        return b"{}"
    members = (("traceId", bytes(trace.trace_id)), ("spanId", bytes(trace.span_id)))
    kept = [b'"%b":%b' % (name.encode(), text) for name, text in members if text[:1] == b'"']
    return b"{%b}" % b",".join(kept)
