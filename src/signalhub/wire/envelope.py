"""The message: its eleven members, its codec and its limits.

Incoming frames are decoded into `Envelope`, with payload and metadata kept as the sender's bytes.
Outgoing frames are written by splicing: the envelope is new, `data` and `metadata` are the sender's
own bytes. The caller must check that the frame is valid UTF-8, which msgspec does not do inside raw
members.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Final, Literal, NoReturn

import msgspec
from msgspec import Meta, Raw

from signalhub.wire import names

PROTOCOL_VERSION = "0.1.0"
RAW_PING = b'{"type":"ping"}'
RAW_PONG = b'{"type":"pong"}'
TELL: Final = "tell"
ASK: Final = "ask"

NULL = Raw(b"null")

# Larger numbers are not times, and arithmetic on them is not exact.
_EXACT = 2**53
Number = Annotated[int, Meta(ge=-_EXACT, le=_EXACT)] | Annotated[float, Meta(ge=-_EXACT, le=_EXACT)]
Id = Annotated[str, Meta(max_length=names.ID_CHARS_MAX)]
Address = Annotated[str, Meta(max_length=names.ADDRESS_CHARS_MAX)]
Type = Annotated[str, Meta(max_length=names.TYPE_CHARS_MAX)]


class Envelope(msgspec.Struct, gc=False):
    """One incoming message that passed the basic check."""

    id: Id
    to: Address
    type: Type
    pattern: Literal["tell", "ask"]
    timestamp: Number
    correlation_id: str | None = msgspec.field(name="correlationId")
    ttl: Number | None
    signature: str | None
    sender: Address = msgspec.field(name="from")
    payload: Raw = NULL
    metadata: Raw = NULL


class NotJson(ValueError):
    """The frame is not JSON."""


class NotEnvelope(ValueError):
    """Valid JSON that is not an envelope; carries what the reply needs, if readable."""

    def __init__(self, reason: str, sender: str | None, message_id: str | None) -> None:
        super().__init__(reason)
        self.sender = sender
        self.message_id = message_id


_decode = msgspec.json.Decoder(Envelope).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
# JSON text of any value.
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode

_CODEC_ERRORS = (ValueError, RecursionError)


def decode(frame: bytes) -> Envelope:
    """Read a frame, or raise `NotJson` or `NotEnvelope`."""
    try:
        envelope = _decode(frame)
    except _CODEC_ERRORS as error:
        raise _explain(frame, error) from None
    # Text starts with `@(` exactly if it sorts between `@(` and `@)`; this allocates no strings.
    if not ("@(" <= envelope.sender < "@)" and "@(" <= envelope.to < "@)"):
        reason = "`from` and `to` must be addresses beginning with `@(`"
        raise NotEnvelope(reason, envelope.sender, envelope.id)
    return envelope


class _Glimpse(msgspec.Struct, gc=False):
    id: Id | None = None
    sender: Address | None = msgspec.field(name="from", default=None)


_glimpse = msgspec.json.Decoder(_Glimpse).decode


def peek(frame: bytes) -> tuple[str | None, str | None]:
    """Sender and id of a refused frame, for the reply; `None` if unreadable."""
    try:
        seen = _glimpse(frame)
    except _CODEC_ERRORS:
        return None, None
    return seen.sender, seen.id


def _explain(frame: bytes, error: Exception) -> NotJson | NotEnvelope:
    """Distinguish invalid JSON from JSON that is not an envelope, and keep what a reply needs.

    The standard library decides, because it accepts valid JSON that msgspec refuses: lone
    surrogates, and numbers outside the range of floats.
    """
    if isinstance(error, RecursionError):
        # Looking again would cost much, and find the same.
        return NotJson("it is nested too deeply")
    if len(frame) > _LONG_FRAME_BYTES:
        return _explain_long(frame, error)
    try:
        value = _decode_leniently(frame.decode(errors="replace"))
    except RecursionError:
        return NotJson("it is nested too deeply")
    except ValueError as cause:
        return NotJson(str(cause))
    if not isinstance(value, dict):
        return NotEnvelope("the frame must hold one JSON object", None, None)
    sender = _short_text(value.get("from"), names.ADDRESS_CHARS_MAX)
    message_id = _short_text(value.get("id"), names.ID_CHARS_MAX)
    return NotEnvelope(str(error), sender, message_id)


def _explain_long(frame: bytes, error: Exception) -> NotJson | NotEnvelope:
    """The same without making the values: those of one mebibyte take 80 ms."""
    whole = _SURROGATE.sub(rb"\\u0041", frame)
    try:
        _skip(whole)
    except RecursionError:
        return NotJson("it is nested too deeply")
    except ValueError as cause:
        return NotJson(str(cause))
    if not whole.lstrip().startswith(b"{"):
        return NotEnvelope("the frame must hold one JSON object", None, None)
    return NotEnvelope(str(error), *peek(whole))


_LONG_FRAME_BYTES: Final = 2**12
# Half of a pair, which only msgspec refuses without the other one.
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
# Numbers of any size are skipped.
_skip = msgspec.json.Decoder(Raw).decode


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Integers as floats: they may have more digits than Python converts.
_decode_leniently = json.JSONDecoder(parse_int=float, parse_constant=_refuse_constant).decode


def _short_text(value: object, chars_max: int) -> str | None:
    """The value, if it is a string that can be sent back."""
    if not isinstance(value, str) or len(value) > chars_max:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def is_object(raw: Raw) -> bool:
    """Is the raw member a JSON object?"""
    return bytes(raw)[:1] == b"{"


def from_hub(
    *,
    message_id: bytes,
    type: str,
    to: str,
    payload: bytes,
    now_ms: int,
    correlation_id: str | None = None,
    metadata: bytes = b"{}",
) -> bytes:
    """A complete message written by the hub itself; replies are always `tell`."""
    return b"".join(
        (
            b'{"id":"',
            message_id,
            _FROM_HUB,
            encode(to),
            b',"type":',
            encode(type),
            b',"payload":',
            payload,
            b',"pattern":"tell","correlationId":',
            encode(correlation_id),
            b',"timestamp":%d,"metadata":' % now_ms,
            metadata,
            b',"ttl":null,"signature":null}',
        )
    )


_FROM_HUB = b'","from":"' + names.HUB_ADDRESS.encode() + b'","to":'
_VIA = b'"via":"' + names.HUB_ADDRESS.encode() + b'"'
_MARKED = b'{"forwarded":true,' + _VIA + b',"originalMessageId":'
_EMPTY = Raw(b"{}")
# Of an ask without a mailbox that may have been delivered before.
REPEATED: Final = b',"delivery":{"attempt":2,"redelivered":true}'
_NOTHING = Raw(b"")


class _Ours(msgspec.Struct, gc=False, rename="camel"):
    """What only the hub says of a copy: who passed it on, and from which topic or stream it is."""

    forwarded: Raw = _NOTHING
    via: Raw = _NOTHING
    original_message_id: Raw = _NOTHING
    delivery: Raw = _NOTHING
    publication: Raw = _NOTHING
    broadcast: Raw = _NOTHING
    replay: Raw = _NOTHING
    dead_letter: Raw = _NOTHING
    original: Raw = _NOTHING
    redriven: Raw = _NOTHING


_decode_ours = msgspec.json.Decoder(_Ours).decode
_OURS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(_Ours))
# Finds their names in most spellings, and the beginning of all others.
_may_hold_ours = re.compile(rb'"(?:%b)"|\\u00' % "|".join(sorted(_OURS)).encode()).search
# From this size on, reading is faster than searching; and so much is not written again.
_LONG_BYTES: Final = 2**11
_REWRITTEN_BYTES_MAX: Final = 2**16


def _without_ours(metadata: bytes) -> bytes:
    """The sender's metadata without members of the hub's, or none of it if that takes long.

    Otherwise a message to an actor could pass for one that was published to a topic, or for a
    position of a stream that the actor then settles. Names may be spelt with escapes.
    """
    if len(metadata) < _LONG_BYTES and not _may_hold_ours(metadata):
        return metadata
    try:
        if not any(map(bytes, msgspec.structs.astuple(_decode_ours(metadata)))):
            return metadata
        if len(metadata) > _REWRITTEN_BYTES_MAX:
            return b"{}"
        members = _decode_members(metadata)
    except RecursionError:
        return b"{}" if _may_hold_ours(metadata) else metadata
    return encode({name: value for name, value in members.items() if name not in _OURS})


def _marked(metadata: bytes) -> bytes:
    """The sender's metadata with the hub's members added, up to the value of the last one."""
    if metadata[:1] != b"{":
        return _MARKED
    inner = _without_ours(metadata)[1:-1].strip()
    return b"{" + inner + b"," + _MARKED[1:] if inner else _MARKED


def forwarded_metadata(metadata: bytes, original_id: str) -> bytes:
    """Metadata of mail, without the closing brace: the hub adds members about the delivery."""
    return b"".join((_marked(metadata), encode(original_id)))


def _ttl(ttl: Number | None) -> bytes:
    """The sender's lifetime; zero means none."""
    return encode(ttl) if ttl else b"null"


@lru_cache(maxsize=4)
def _stamped(now_ms: int) -> bytes:
    """The members from pattern to metadata of a forwarded message, cached for a tick."""
    return b',"pattern":"tell","correlationId":null,"timestamp":%d,"metadata":' % now_ms


def forwarded(
    message_id: bytes,
    message: Envelope,
    sender: bytes,
    to: bytes,
    type: str,
    data: Raw,
    now_ms: int,
    metadata: Raw,
    delivery: bytes = b"",
) -> bytes:
    """The copy of a sent message as its one recipient sees it; both addresses are JSON already.

    `delivery` is a member of the hub's about it, if there is one.
    """
    ttl = message.ttl
    return b"".join(
        (
            b'{"id":"',
            message_id,
            b'","from":',
            sender,
            b',"to":',
            to,
            b',"type":',
            encode(type),
            b',"payload":',
            data,
            _stamped(now_ms),
            _MARKED if metadata == _EMPTY else _marked(bytes(metadata)),
            encode(message.id),
            delivery,
            b'},"ttl":',
            encode(ttl) if ttl else b"null",
            b',"signature":null}',
        )
    )


def copies(
    *,
    message_id: bytes,
    sender: str,
    type: str,
    data: Raw,
    now_ms: int,
    correlation_id: str | None,
    metadata: bytes,
    ttl: Number | None,
) -> tuple[bytes, bytes]:
    """Head and tail of a fan-out: a recipient's copy is head + its address as JSON + tail."""
    head = b"".join((b'{"id":"', message_id, b'","from":', encode(sender), b',"to":'))
    tail = b"".join(
        (
            b',"type":',
            encode(type),
            b',"payload":',
            data,
            b',"pattern":"tell","correlationId":',
            encode(correlation_id),
            b',"timestamp":%d,"metadata":' % now_ms,
            metadata,
            b',"ttl":',
            _ttl(ttl),
            b',"signature":null}',
        )
    )
    return head, tail


BROADCAST_METADATA = b'{"broadcast":true,' + _VIA + b"}"


def publication_metadata(topic: str) -> bytes:
    """Metadata of a plain topic's copies; the publisher's own is dropped."""
    return b'{"topic":' + encode(topic) + b',"publication":true,' + _VIA + b"}"


def durable_metadata(topic: str) -> bytes:
    """The common part of the metadata of a durable topic's copies: more follows a comma."""
    return publication_metadata(topic)[:-1]
