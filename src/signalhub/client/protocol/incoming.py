"""What comes from the hub: heartbeats, messages, answers, refusals.

Payloads are not trusted: a member of the wrong type counts as missing.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from signalhub.client.delivery import Delivery, read_members
from signalhub.client.message import Message
from signalhub.client.protocol.events import ClientEvent, DeliveryHeldUp, MessageRefused
from signalhub.wire.errors import ClientError, Code, OutcomeUnknown, Refused, UnknownActor
from signalhub.wire.names import HUB_TYPE_PREFIX

HEARTBEAT_S = 100.0
ANSWER_S = 10.0


class Heartbeat:
    """Heartbeats of one link."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self.interval_s = interval_s
        self._sent_s = self._heard_s = now_s
        self._message_id: str | None = None
        self._since_s = now_s
        self._is_reading = True

    def sent(self, now_s: float) -> None:
        self._sent_s = now_s

    def heard(self, now_s: float) -> None:
        self._heard_s = now_s

    def beat(self, message_id: str, now_s: float) -> None:
        """Record that a heartbeat was sent."""
        self._message_id, self._since_s = message_id, now_s

    def answered(self, message_id: str | None) -> None:
        """Record an answer; only the one to the last heartbeat counts, others may be late."""
        if message_id == self._message_id:
            self._message_id = None

    def reading(self, is_reading: bool, now_s: float) -> None:
        """Reading stopped or resumed; restart the wait for an answer."""
        self._is_reading = is_reading
        self._since_s = now_s

    @property
    def wake_at_s(self) -> float | None:
        """When the next heartbeat is due, or the link counts as dead."""
        if self._message_id is None:
            return min(self._sent_s, self._heard_s) + self.interval_s
        return self._since_s + ANSWER_S if self._is_reading else None

    def is_due(self, now_s: float) -> bool:
        return self._message_id is None and self._is_past(now_s)

    def is_dead(self, now_s: float) -> bool:
        return self._message_id is not None and self._is_past(now_s)

    def _is_past(self, now_s: float) -> bool:
        wake_at_s = self.wake_at_s
        return wake_at_s is not None and now_s >= wake_at_s


REFUSAL_TYPES = frozenset(
    {
        "hub:error",
        "hub:unknown_actor",
        "hub:unauthorized",
        "hub:rate_limited",
        "hub:version_mismatch",
        "hub:message_too_large",
    }
)

MESSAGE_BYTES_MAX = 2**20

# How the ids of requests to many begin.
REQUEST_PREFIX = "request-"
# Copies of messages that were delivered before; their senders wait no longer.
_UNASKED = ("replay", "deadLetter", "original")

# Longer than any number a program uses.
_DIGITS_MAX = 1_000

# The hub does not know either whether these happened.
_UNDECIDED = frozenset({"timeout", Code.STORAGE_FAILED})


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the hub's hello."""

    session_id: str = ""
    session_token: str | None = None
    message_bytes_max: int = MESSAGE_BYTES_MAX
    heartbeat_s: float = HEARTBEAT_S
    message_rate: float = 0.0  # 0 means no limit.
    message_burst: float = 0.0
    durability: str | None = None  # `fsync`, `interval` or `os`.


class Incoming(msgspec.Struct, frozen=True):
    """One frame from the hub. Only `type` is required, so that old and new hubs can be read."""

    type: str
    id: str = ""
    sender: str = msgspec.field(name="from", default="")
    to: str = ""
    payload: Any = None
    correlation_id: str | None = msgspec.field(name="correlationId", default=None)
    timestamp: float = 0
    metadata: Any = None
    ttl: float | None = None

    @property
    def is_from_hub(self) -> bool:
        return self.type.startswith(HUB_TYPE_PREFIX)

    @property
    def facts(self) -> dict[str, Any]:
        """The payload, if it is an object."""
        return self.payload if isinstance(self.payload, dict) else {}


class Encoded(Incoming, frozen=True):
    """The same, with the payload as it came."""

    payload: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(Incoming).decode
_decode_outside = msgspec.json.Decoder(Encoded).decode


def decode(frame: bytes, encoded_types: Collection[str] = ()) -> Incoming | None:
    """Decode a frame, but no payloads of `encoded_types`; `None` if it is not a message."""
    try:
        if encoded_types and (encoded := _decode_outside(frame)).type in encoded_types:
            return encoded
        return _decode(frame)
    except (ValueError, RecursionError):
        return _decode_slowly(frame)


def _decode_slowly(frame: bytes) -> Incoming | None:
    """Decode a payload whose numbers only the standard library can read; they become floats."""
    try:
        value = json.loads(frame.decode(), parse_int=_number)
        return msgspec.convert(value, Incoming)
    except (ValueError, RecursionError):
        return None


def _number(digits: str) -> float:
    return int(digits) if len(digits) < _DIGITS_MAX else float(digits)


def message_of(incoming: Incoming) -> Message:
    """Return an application message as its recipient sees it."""
    metadata = incoming.metadata if isinstance(incoming.metadata, dict) else {}
    delivery = None
    if "delivery" in metadata:
        delivery = read_members(metadata["delivery"], Delivery)
    is_published = metadata.get("publication") is True or metadata.get("replay") is True
    # A durable message that came through no topic comes from a mailbox.
    is_published |= delivery is not None and delivery.stream is None
    return Message(
        id=incoming.id,
        sender=incoming.sender,
        to=incoming.to,
        type=incoming.type,
        payload=incoming.payload,
        metadata=metadata,
        timestamp=int(incoming.timestamp),
        ttl=incoming.ttl,
        topic=text_in(metadata, "topic") if is_published else None,
        delivery=delivery,
        request_id=_request_id(incoming, metadata),
    )


def _request_id(incoming: Incoming, metadata: dict[str, Any]) -> str | None:
    """The id that a reply names, if the sender waits for one."""
    if not metadata.keys().isdisjoint(_UNASKED):
        return None
    if metadata.get("expectsReply") is True:
        return text_in(metadata, "originalMessageId")
    # The hub forwards no metadata of what is sent to many.
    if metadata.get("publication") is True or metadata.get("broadcast") is True:
        asked = incoming.correlation_id or ""
        if asked.startswith(REQUEST_PREFIX):
            return asked
        return text_in(metadata.get("headers"), "expectsReply")
    return None


def welcome_of(incoming: Incoming) -> Welcome:
    """Decode `hub:connected`."""
    facts = incoming.facts
    offers = facts.get("capabilities")
    rate = number_in(offers, "messageRate") or 0.0
    return Welcome(
        session_id=str(facts.get("sessionId", "")),
        session_token=text_in(incoming.metadata, "sessionToken"),
        message_bytes_max=int(number_in(facts, "maxMessageSize") or MESSAGE_BYTES_MAX),
        heartbeat_s=(number_in(facts, "heartbeatInterval") or HEARTBEAT_S * 1000) / 1000,
        message_rate=rate,
        message_burst=number_in(offers, "messageBurst") or rate,
        durability=text_in(offers, "durability"),
    )


class Reasons(NamedTuple):
    """What a refusal says."""

    code: str
    text: str
    resolution: str
    details: dict[str, Any]


def reasons_of(incoming: Incoming) -> Reasons:
    """Return what a refusal says."""
    facts = incoming.facts
    details = facts.get("details")
    return Reasons(
        text_in(facts, "code") or incoming.type.removeprefix(HUB_TYPE_PREFIX),
        text_in(facts, "message") or text_in(facts, "reason") or "the hub gave no reason",
        text_in(facts, "resolution") or "",
        details if isinstance(details, dict) else {},
    )


def refusal_of(incoming: Incoming) -> ClientError:
    """Return the error for a refusal of a request."""
    code, text, resolution, details = reasons_of(incoming)
    if code in _UNDECIDED:
        return OutcomeUnknown(f"{code}: {text}", resolution=resolution)
    kind = UnknownActor if code == Code.UNKNOWN_ACTOR else Refused
    return kind(
        code,
        text,
        resolution=resolution,
        retryable=incoming.facts.get("retryable") is True,
        details=details,
    )


def refusal_event_of(incoming: Incoming, subject: str = "") -> ClientEvent:
    """Return the event for a refusal that no caller waits for."""
    code, text, resolution, details = reasons_of(incoming)
    seq = number_in(details, "seq")
    if incoming.correlation_id is None and seq is not None:
        return DeliveryHeldUp(
            code=code,
            seq=int(seq),
            topic=text_in(details, "topic") or "",
            subscription=text_in(details, "subscription") or "",
            detail=text,
            resolution=resolution,
        )
    return MessageRefused(code, subject, text, resolution)


def retry_after_s(incoming: Incoming) -> float | None:
    """Return after how many seconds the hub wants to be asked again, if it says so."""
    facts = incoming.facts
    details = facts.get("details")
    if not isinstance(details, dict):
        details = facts
    if (wait_ms := number_in(details, "retryAfterMs")) is not None:
        return wait_ms / 1000
    wait = number_in(details, "retryAfter")
    # The dedicated type uses milliseconds, the error's details use seconds.
    return wait / 1000 if wait is not None and incoming.type == "hub:rate_limited" else wait


def number_in(facts: object, name: str) -> float | None:
    """Return a member that is a number above 0."""
    value = facts.get(name) if isinstance(facts, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return None


def text_in(facts: object, name: str) -> str | None:
    """Return a member that is a non-empty string."""
    value = facts.get(name) if isinstance(facts, dict) else None
    return value if isinstance(value, str) and value else None
