"""What hosts send each other: messages between actors, several in one batch.

A message is stored in the form in which it travels, so that sending a batch is joining bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from signalhub.wire.errors import SignalHubError

# Types of messages on the hub.
BATCH: Final = "actors:batch"  # From a host: messages of its actors.
CALL: Final = "actors:call"  # From outside: one request.
RESULT: Final = "actors:result"  # To somebody outside: the outcome.
MARK: Final = "actors:mark"  # To oneself: everything before it has arrived.
MOVE: Final = "actors:move"  # Between hosts: parts of an actor, and that it has arrived.
CONTROL: Final = "actors:control"  # From outside: look at or mend a host.
ANSWER: Final = "actors:answer"  # To somebody outside: what came of that.

# The addresses of hosts begin like this; nobody else speaks for actors.
HOST_PREFIX: Final = "@(actors/"

ENVELOPE_VERSION: Final = 1
NULL: Final = msgspec.Raw(b"null")

Kind = Literal["request", "result"]


class NotReadable(SignalHubError):
    """A message of another version or shape."""

    code = "malformed_message"


class Message(msgspec.Struct, omit_defaults=True, rename={"sender": "from"}, gc=False):
    """One message from actor to actor; `sender` is empty for calls from outside.

    `body` is the operation of a request, the outcome of a result. `wants` says whether anybody
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
    """What is read of a message that cannot be read."""

    kind: str = ""
    call: str = ""
    to: str = ""
    sender: str = ""


class Outlines(msgspec.Struct):
    messages: list[Outline] = []


class Version(msgspec.Struct):
    v: int = 0


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Message).decode
_decode_batch = msgspec.json.Decoder(Batch).decode
_decode_outlines = msgspec.json.Decoder(Outlines).decode
_decode_version = msgspec.json.Decoder(Version).decode

_HEAD: Final = b'{"v":%d,"messages":[' % ENVELOPE_VERSION


def join(payloads: Iterable[bytes]) -> bytes:
    """The body of a batch."""
    return b"%b%b]}" % (_HEAD, b",".join(payloads))


def split(data: bytes) -> list[tuple[Message, bytes]]:
    """The messages of a batch, each with its own bytes; raises `NotReadable`."""
    try:
        version = _decode_version(data).v
        if version != ENVELOPE_VERSION:
            raise NotReadable(
                f"a batch of version {version}; this host reads version {ENVELOPE_VERSION}"
            )
        raws = [bytes(raw) for raw in _decode_batch(data).messages]
        return [(decode(raw), raw) for raw in raws]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotReadable(f"a batch that cannot be read: {error}") from error


def outlines(data: bytes) -> list[Outline]:
    """What can be made out of a batch of another version; nothing, if it is no batch at all."""
    try:
        return [one for one in _decode_outlines(data).messages if one.call and one.to]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
