"""What clients may ask for: the payload of each request, typed.

Unknown members are ignored, so that newer clients keep working; members of the wrong type are
refused, so that nothing is guessed.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw

from signalhub.core import refusals
from signalhub.envelope import NULL, Envelope, Number
from signalhub.names import TYPE_CHARS_MAX

T = TypeVar("T")

Type = Annotated[str, Meta(min_length=1, max_length=TYPE_CHARS_MAX)]


_ABSENT = Raw(b"")


class Request(msgspec.Struct, gc=False, rename="camel"):
    """Base of all payloads."""


class Connect(Request):
    """Metadata of `hub:connect`; what has no type here is checked in its own order there."""

    protocol_version: Any = None
    auth_token: Any = None
    capabilities: Any = None


class Heartbeat(Request):
    """Payload of `hub:heartbeat`; whatever the time is written as, it is echoed."""

    timestamp: Raw = _ABSENT


class Register(Request):
    """Payload of `hub:register`."""

    actor_address: str
    capabilities: list[str]
    metadata: dict[str, Any] | None = None
    ttl_seconds: Number | None = None


class Unregister(Request):
    """Payload of `hub:unregister`."""

    actor_address: str


class Renewal(Request):
    """Payload or metadata of `hub:renew`."""

    renewal_token: str | None = None


class Discover(Request):
    """Payload of `hub:discover`."""

    pattern: str
    capability: str | None = None
    limit: Number | None = None


class ListActors(Request):
    """Payload of `hub:list_actors`."""

    offset: Number | None = None
    limit: Number | None = None


class Send(Request):
    """Payload of `hub:send`."""

    type: Type
    to: str | None = None
    data: Raw = NULL


class Broadcast(Request):
    """Payload of `hub:broadcast`."""

    type: Type
    data: Raw = NULL
    exclude_self: bool | None = None


class BroadcastMetadata(Request):
    """Metadata of `hub:broadcast`."""

    target_capability: str | None = None


class Subscribe(Request):
    """Payload of `hub:subscribe`."""

    topic: str


class Unsubscribe(Request):
    """Payload of `hub:unsubscribe`; clients put a topic into either member."""

    topic: str | None = None
    subscription_id: str | None = None


class Publish(Request):
    """Payload of `hub:publish`."""

    topic: str
    type: Type
    data: Raw = NULL


class Refresh(Request):
    """Payload of `hub:refresh_token`."""

    token: str | None = None


class RefreshMetadata(Request):
    """Metadata of `hub:refresh_token`, the other place for the token."""

    auth_token: str | None = None


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def parse(kind: type[T], raw: Raw, member: str = "payload") -> T:
    """Decode a raw member, or refuse with the name of what is wrong."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        result: T = decoder.decode(raw)
    except (ValueError, RecursionError) as error:
        raise refusals.structural(f"the {member} does not fit: {error}") from None
    return result


def parse_or_empty(kind: type[T], raw: Raw, member: str = "payload") -> T:
    """Like `parse`, for requests whose payload may be null."""
    return kind() if raw == NULL else parse(kind, raw, member)


def trace_of(envelope: Envelope) -> bytes:
    """The trace context of a request as metadata of its error; `{}` when there is none."""
    if b'"traceId"' not in bytes(envelope.metadata) and b'"spanId"' not in bytes(envelope.metadata):
        return b"{}"
    try:
        given = msgspec.json.decode(envelope.metadata)
    except (ValueError, RecursionError):
        return b"{}"
    if not isinstance(given, dict):
        return b"{}"
    kept = {key: given[key] for key in ("traceId", "spanId") if isinstance(given.get(key), str)}
    return msgspec.json.encode(kept)
