"""Messages of the clients of the peer for rooms and inboxes, as typed JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bench.peers.sqlite_messages import Message

CIPHERTEXT_CHARS_MAX = 2**16 * 4 // 3 + 4

Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._~:-]{1,128}\Z")]
Ciphertext = Annotated[
    str,
    Meta(
        pattern=r"^(?:[A-Za-z0-9_-]+|[A-Za-z0-9+/]+)={0,2}\Z",
        max_length=CIPHERTEXT_CHARS_MAX,
    ),
]
Type = Literal[
    "mls_app", "mls_proposal", "mls_approval", "mls_rejection", "mls_commit", "mls_group_info"
]


class Envelope(msgspec.Struct, rename="camel"):
    """A posted message."""

    room_id: Id
    ciphertext: Ciphertext
    message_id: Id | None = None
    pseudonym_id: Id | None = None
    type: Type = "mls_app"


class Send(msgspec.Struct, rename="camel"):
    """A frame from a socket."""

    action: Literal["send"]
    ciphertext: Ciphertext
    message_id: Id | None = None
    type: Type = "mls_app"


class Accepted(msgspec.Struct, rename="camel"):
    message_id: str
    seq: int


class Stored(msgspec.Struct, rename="camel"):
    seq: int
    message_id: str
    ciphertext: str
    created_at: str


class Page(msgspec.Struct, rename="camel"):
    messages: list[Stored]
    next_seq: int


class Welcome(msgspec.Struct, rename="camel", tag_field="action", tag="welcome"):
    last_seq: int
    oldest_buffered_seq: int


class Ack(msgspec.Struct, rename="camel", tag_field="action", tag="ack", omit_defaults=True):
    message_id: str
    seq: int
    duplicate: bool = False


class Heard(msgspec.Struct, rename="camel", tag_field="action", tag="message"):
    seq: int
    message_id: str
    ciphertext: str
    type: str
    pseudonym_id: str


class Refused(msgspec.Struct, rename="camel", tag_field="action", tag="error"):
    error: str
    error_code: str


encode = msgspec.json.Encoder().encode
read_envelope = msgspec.json.Decoder(Envelope).decode
read_send = msgspec.json.Decoder(Send).decode


def as_base64url(ciphertext: str) -> str:
    """Return the same characters in the URL-safe alphabet, without padding."""
    return ciphertext.rstrip("=").replace("+", "-").replace("/", "_")


def heard(message: Message) -> str:
    return text_of(
        Heard(
            message.seq,
            message.message_id,
            message.ciphertext,
            message.type,
            message.pseudonym,
        )
    )


def outcome(message: Message) -> str:
    if not message.seq:
        return text_of(Refused("the message could not be kept", "UNAVAILABLE"))
    return text_of(Ack(message.message_id, message.seq, message.is_repeat))


def text_of(frame: msgspec.Struct) -> str:
    return encode(frame).decode()
