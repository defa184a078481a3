"""Decoding a hub's HTTP answers about rooms and inboxes.

Decoding is lenient, so that client and hub can be of different versions. A refusal is either final
or says after what time to try again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from signalhub.client.transport.http import HttpAnswer
from signalhub.wire.base64url import decoded
from signalhub.wire.errors import ClientError, OutcomeUnknown, Refused, RoomCode, Unavailable

IDS_MAX = 10_000


class RoomMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a room or an inbox.

    An inbox does not store the sender and type of a message: they are known only for messages that
    arrived live. The time is known only for messages read from the inbox.
    """

    seq: int
    message_id: str
    ciphertext: bytes
    type: str | None = None
    pseudonym: str | None = None
    created_at: datetime | None = None


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The message is on the hub's disk and was announced to everyone in the room."""

    message_id: str
    seq: int
    is_repeat: bool = False  # It was already stored under the same id.


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The message is in the inbox."""

    message_id: str
    seq: int
    is_repeat: bool = False
    stored_at: datetime | None = None


class Missed(NamedTuple):
    """Positions deleted before they could be read, or lost by the hub, both ends included."""

    first: int
    last: int


class Gap(NamedTuple):
    """Positions without a message, both ends included."""

    first: int
    last: int
    is_skipped: bool  # The hub has lost entries of its log; otherwise they were deleted.


def gaps_of(skipped: Iterable[Missed], deleted: Missed, last: int) -> list[Gap]:
    """Return the gaps up to `last` in order: what is in `skipped` is not deleted."""
    gaps: list[Gap] = []
    position = deleted.first
    for one in sorted(skipped):
        first, end = max(one.first, position), min(one.last, last)
        if first > end:
            continue
        if position <= min(first - 1, deleted.last):
            gaps.append(Gap(position, min(first - 1, deleted.last), is_skipped=False))
        gaps.append(Gap(first, end, is_skipped=True))
        position = end + 1
    if position <= deleted.last:
        gaps.append(Gap(position, deleted.last, is_skipped=False))
    return gaps


class InboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of an inbox in ascending order; continue at `next_seq`."""

    messages: tuple[RoomMessage, ...] = ()
    next_seq: int = 0
    oldest_seq: int | None = None  # The oldest readable position; `None` if there is none.
    # The hub cannot read what begins at `next_seq` now: ask again from there, skip nothing.
    is_partial: bool = False
    reason: str | None = None  # Why: `storage_failed` for a damaged log, otherwise `UNAVAILABLE`.
    # Positions that the hub skipped after its log had lost entries; messages may have had them.
    skipped: tuple[Missed, ...] = ()

    @property
    def contiguous(self) -> tuple[RoomMessage, ...]:
        """The messages before the first one that the hub could not read."""
        if not self.is_partial:
            return self.messages
        return tuple(one for one in self.messages if one.seq < self.next_seq)

    def __iter__(self) -> Iterator[RoomMessage]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class RecentIds:
    """The last message ids seen, to recognise repeats."""

    def __init__(self, limit: int = IDS_MAX) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, message_id: str) -> bool:
        """Return whether an id is new, and remember it."""
        if message_id in self._ids:
            return False
        self._ids[message_id] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
        return True


RETRY_AFTER_S_MAX = 3600.0

# A reused connection may get a 408 because it was idle for too long.
_NOT_NOW = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.SERVICE_UNAVAILABLE)


class RoomRefusal(NamedTuple):
    """A failed request. `retry_after_s` is `None` if a retry would fail as well."""

    error: ClientError
    retry_after_s: float | None = None
    is_reached: bool = True  # Whether the answer came from a hub.


class _Body(msgspec.Struct, rename="camel"):
    error: str = ""
    error_code: str = ""
    retry_after_ms: float | None = None


class _Message(msgspec.Struct, rename="camel"):
    seq: int
    message_id: str
    ciphertext: str
    created_at: datetime | None = None


class _Range(msgspec.Struct, rename="camel"):
    from_seq: int
    to_seq: int


class _Page(msgspec.Struct, rename="camel"):
    next_seq: int
    messages: list[_Message] = []
    partial: bool = False
    reason: str | None = None
    skipped: list[_Range] = []


class _Stored(msgspec.Struct, rename="camel"):
    seq: int
    stored_at: datetime | None = None


_body = msgspec.json.Decoder(_Body)
_page = msgspec.json.Decoder(_Page)
_stored = msgspec.json.Decoder(_Stored)


def refusal_of(url: str, status: int, headers: Mapping[str, str], body: bytes) -> RoomRefusal:
    """Return why a request was refused, and when to retry it."""
    try:
        said = _body.decode(body)
    except msgspec.MsgspecError:
        said = _Body()
    text = said.error or f"{url} answered HTTP {status} {_phrase(status)}".rstrip()
    wait_s = retry_after_s(said.retry_after_ms, headers.get("retry-after", ""))
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return RoomRefusal(limited(text, wait_s), wait_s)
    if status in _NOT_NOW:
        refused = Unavailable(text)
        refused.is_answered = bool(said.error)
        return RoomRefusal(refused, wait_s)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        # It failed somewhere on the way, so it may have happened.
        return RoomRefusal(OutcomeUnknown(text), wait_s)
    if said.error_code:
        return RoomRefusal(Refused(said.error_code, text))
    return RoomRefusal(Unavailable(text))


def limited(text: str, retry_after_s: float) -> Refused:
    """The rate limit of a room or inbox was exceeded; the request can be retried."""
    return Refused(
        RoomCode.RATE_LIMIT_EXCEEDED,
        text or "Rate limit exceeded",
        retryable=True,
        details={"retryAfterMs": round(retry_after_s * 1000)},
    )


def retry_after_s(retry_after_ms: float | None, header: str = "") -> float:
    """Return how long the hub wants us to wait; the body is more exact than the header."""
    if retry_after_ms is not None and retry_after_ms >= 0:
        return min(retry_after_ms / 1000, RETRY_AFTER_S_MAX)
    return min(float(header), RETRY_AFTER_S_MAX) if header.isdecimal() else 0.0


def page_of(answer: HttpAnswer) -> InboxPage:
    """Decode a page of an inbox."""
    page = _page.decode(answer.body)
    oldest = answer.headers.get("x-inbox-oldest-seq", "")
    return InboxPage(
        messages=tuple(map(_message_of, page.messages)),
        next_seq=page.next_seq,
        oldest_seq=int(oldest) if oldest.isdecimal() else None,
        is_partial=page.partial,
        reason=page.reason,
        skipped=tuple(Missed(one.from_seq, one.to_seq) for one in page.skipped),
    )


def stored_of(answer: HttpAnswer, message_id: str) -> Stored:
    """Decode the answer to an append."""
    stored = _stored.decode(answer.body)
    return Stored(
        message_id=message_id,
        seq=stored.seq,
        is_repeat=answer.headers.get("idempotent-replay", "").lower() == "true",
        stored_at=stored.stored_at,
    )


def unreadable(url: str) -> Unavailable:
    """The answer does not come from a hub, or from one of another version."""
    return Unavailable(f"{url} answered with something that is not from a hub")


def _message_of(message: _Message) -> RoomMessage:
    return RoomMessage(
        seq=message.seq,
        message_id=message.message_id,
        ciphertext=decoded(message.ciphertext),
        created_at=message.created_at,
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
