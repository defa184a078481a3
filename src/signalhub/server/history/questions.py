"""What the hub asks the process that reads disk and lake, and how both travel between them.

A frame is its length and one MessagePack struct. A question says what whoever asks may read; the
answer is JSON that the hub passes on as it is, or the sentence of an error.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

LENGTH: Final = Struct("<I")
FRAME_BYTES_MAX: Final = 16 * 2**20

Range = tuple[int, int]


class Reach(msgspec.Struct, frozen=True):
    """Whose contents may be shown: patterns over topics, and over addresses."""

    topics: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """Is there nothing that may not be shown?"""
        return "*" in self.topics and "*" in self.addresses


EVERYTHING: Final = Reach(("*",), ("*",))


class Hidden(msgspec.Struct, frozen=True):
    """What is being erased: ranges of offsets, and senders with the offset before which."""

    epoch: int = 0
    offsets: tuple[Range, ...] = ()
    senders: dict[str, float] = {}


class Filter(msgspec.Struct, frozen=True):
    """Which entries are wanted; all given members must fit. Without `kinds`, messages are."""

    stream: str | None = None
    kinds: tuple[str, ...] = ()
    key: str | None = None
    type: str | None = None
    sender: str | None = None
    text: str | None = None


class Question(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all questions."""

    reach: Reach = Reach()
    hidden: Hidden = Hidden()


class ScrollQuestion(Question, frozen=True, tag=True, kw_only=True):
    """A page of entries, before or after a position, or up to a time."""

    filter: Filter = Filter()
    before: str | None = None
    after: str | None = None
    at: int | None = None
    limit: int = 100
    payload_bytes: int = 4_096


class EntryQuestion(Question, frozen=True, tag=True, kw_only=True):
    """One entry with what belongs to it."""

    shard: int
    epoch: int
    offset: int


class CountQuestion(Question, frozen=True, tag=True, kw_only=True):
    """How many messages there are per bucket."""

    stream: str | None = None
    begin: int
    end: int
    buckets: int = 200


class SeriesQuestion(Question, frozen=True, tag=True, kw_only=True):
    """Numbers of a time that the ring does not remember."""

    names: tuple[str, ...]
    begin: int
    end: int
    step_s: int


class LettersQuestion(Question, frozen=True, tag=True, kw_only=True):
    """Dead letters of a topic, the newest first; the hub says which are there."""

    topic: str
    stream_epoch: int
    wire_epoch: str
    first: int
    head: int
    removed: tuple[Range, ...]
    before: int | None = None
    reason: str | None = None
    source: str | None = None
    subscription: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 100
    payload_bytes: int = 4_096


class ActionsQuestion(Question, frozen=True, tag=True, kw_only=True):
    """What operators did."""

    before: str | None = None
    after: str | None = None
    at: int | None = None
    verb: str | None = None
    by: str | None = None
    text: str | None = None
    limit: int = 100


class CallsQuestion(Question, frozen=True, tag=True, kw_only=True):
    """Calls between hosts that log and lake know, the newest first."""

    before: str | None = None
    text: str | None = None
    actor: str | None = None
    limit: int = 100


class CallQuestion(Question, frozen=True, tag=True, kw_only=True):
    """The steps of one call and of those it caused."""

    call: str
    before: str | None = None
    payload_bytes: int = 4_096


class LakeQuestion(Question, frozen=True, tag=True, kw_only=True):
    """The tables, as a list."""

    head: int
    kept_s: dict[str, float] = {}


class TableQuestion(Question, frozen=True, tag=True, kw_only=True):
    """The newest rows of one table."""

    name: str
    limit: int = 20


class AuditQuestion(Question, frozen=True, tag=True, kw_only=True):
    """The newest audit of each hour."""

    begin: int | None = None
    end: int | None = None


class ProofQuestion(Question, frozen=True, tag=True, kw_only=True):
    """What an audit found, with the chain of the log."""

    hub: str


AnyQuestion = (
    ScrollQuestion
    | EntryQuestion
    | CountQuestion
    | SeriesQuestion
    | LettersQuestion
    | ActionsQuestion
    | CallsQuestion
    | CallQuestion
    | LakeQuestion
    | TableQuestion
    | AuditQuestion
    | ProofQuestion
)


class Ask(msgspec.Struct, frozen=True, tag=True):
    """From the hub: a question, to be answered after those before it."""

    id: int
    question: AnyQuestion


class Stop(msgspec.Struct, frozen=True, tag=True):
    """From the hub: nobody waits for this answer any more."""

    id: int


class Reply(msgspec.Struct, frozen=True):
    """To the hub: JSON, or why there is none; and how much memory the process takes."""

    id: int
    body: bytes = b""
    code: str = ""
    error: str = ""
    resolution: str = ""
    resident_bytes: int = 0


encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Ask | Stop).decode
decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode


def framed(message: Ask | Stop | Reply) -> bytes:
    """The bytes of one frame."""
    data = encode(message)
    return LENGTH.pack(len(data)) + data
