"""Messages between hosts: messages of actors, several in one lane batch.

A message is stored as it is sent, so that building a lane batch is joining bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from signalhub.wire.errors import SignalHubError

# Message types on the hub.
BATCH: Final = "actors:batch"  # From a host: messages of its actors.
CALL: Final = "actors:call"  # From an outside caller: one request.
RESULT: Final = "actors:result"  # To an outside caller: the outcome.
MARK: Final = "actors:mark"  # To itself: everything before it has arrived.
MOVE: Final = "actors:move"  # Between hosts: parts of an actor, or that it has arrived.
CONTROL: Final = "actors:control"  # From an operator: inspect or repair a host.
ANSWER: Final = "actors:answer"  # To the operator: the result.

# The prefix of host addresses; only hosts send on behalf of actors.
HOST_PREFIX: Final = "@(actors/"

ENVELOPE_VERSION: Final = 1
NULL: Final = msgspec.Raw(b"null")

Kind = Literal["request", "result"]


class NotReadable(SignalHubError):
    """A message of an unknown version or structure."""

    code = "malformed_message"


class ActorMessage(msgspec.Struct, omit_defaults=True, rename={"sender": "from"}, gc=False):
    """One message from actor to actor; `sender` is empty for calls from outside.

    `body` is the operation of a request or the outcome of a result. `wants` says whether the caller
    waits for the result.
    """

    kind: Kind
    call: str
    to: str
    body: msgspec.Raw
    sender: str = ""
    context: msgspec.Raw = NULL
    wants: bool = True


class Batch(msgspec.Struct):
    v: int
    messages: list[msgspec.Raw]


class Outline(msgspec.Struct, rename={"sender": "from"}):
    """The fields read from a message that cannot be decoded as a whole."""

    kind: str = ""
    call: str = ""
    to: str = ""
    sender: str = ""


class Outlines(msgspec.Struct):
    messages: list[Outline] = []


class Version(msgspec.Struct):
    v: int = 0


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(ActorMessage).decode
_decode_batch = msgspec.json.Decoder(Batch).decode
_decode_outlines = msgspec.json.Decoder(Outlines).decode
_decode_version = msgspec.json.Decoder(Version).decode

# How every message of a lane batch begins.
_MESSAGE: Final = b'{"kind":"re'
_HEAD: Final = b'{"v":%d,"messages":[' % ENVELOPE_VERSION


def join(payloads: Iterable[bytes]) -> bytes:
    """The body of a lane batch, or of a call from outside."""
    return b"%b%b]}" % (_HEAD, b",".join(payloads))


def count(data: bytes) -> int:
    """How many messages a lane batch holds, about: bodies may look like messages."""
    return max(1, data.count(_MESSAGE))


def split(data: bytes) -> list[tuple[ActorMessage, bytes]]:
    """The messages of a lane batch, each with its own bytes; raises `NotReadable`."""
    try:
        try:
            batch = _decode_batch(data)
        except msgspec.ValidationError:
            # Another version may have other members.
            batch = None
        version = _decode_version(data).v if batch is None else batch.v
        if version != ENVELOPE_VERSION:
            raise NotReadable(
                f"lane batch of version {version}; this host reads version {ENVELOPE_VERSION}"
            )
        raws = [bytes(raw) for raw in (batch or _decode_batch(data)).messages]
        return [(decode(raw), raw) for raw in raws]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotReadable(f"unreadable lane batch: {error}") from error


def outlines(data: bytes) -> list[Outline]:
    """The readable fields of a lane batch of another version; empty if it is not one."""
    try:
        return [one for one in _decode_outlines(data).messages if one.call and one.to]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
