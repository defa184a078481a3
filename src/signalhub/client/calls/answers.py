"""What the hub answers over HTTP, and what the program gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from signalhub.client.delivery import Delivery
from signalhub.client.message import Message, Settles
from signalhub.client.rooms.answers import retry_after_s
from signalhub.client.transport.http import HttpAnswer
from signalhub.wire.errors import (
    ClientError,
    Code,
    NoReply,
    OutcomeUnknown,
    Refused,
    RequestFailed,
    Unavailable,
    UnknownActor,
)

_NO_REPLY = ("no_reply", "recipient_left")


class MessagePage(msgspec.Struct, frozen=True):
    """Messages of a topic, oldest first; iterate over it.

    `next_seq` is where the next page begins, `is_complete` whether there is none. Positions from
    `lost_from` to `lost_to` were asked for and are not kept any more.
    """

    topic: str
    epoch: str
    messages: tuple[Message, ...]
    next_seq: int
    is_complete: bool
    lost_from: int | None = None
    lost_to: int | None = None

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class _Problem(msgspec.Struct, rename="camel"):
    error: str = ""
    error_code: str = ""
    resolution: str = ""
    details: dict[str, Any] = {}
    retry_after_ms: float | None = None


class _Stored(msgspec.Struct, rename="camel"):
    id: str
    seq: int
    epoch: str
    type: str
    sender: str = msgspec.field(name="from")
    published_at: int = 0
    data: Any = None
    key: str | None = None
    headers: dict[str, str] | None = None
    dead_letter: dict[str, Any] | None = None
    attempt: int = 1
    redelivered: bool = False
    delivery_id: str | None = None


class _History(msgspec.Struct, rename="camel"):
    topic: str
    epoch: str
    messages: list[_Stored]
    next: int
    complete: bool
    lost_from: int | None = None
    lost_to: int | None = None


class _Pulled(msgspec.Struct):
    topic: str
    subscription: str
    messages: list[_Stored]


class _Reply(msgspec.Struct):
    id: str
    type: str
    sender: str = msgspec.field(name="from")
    data: Any = None


class Setback(msgspec.Struct):
    """A failed attempt; `wait_s` is `None` if another one would fail as well."""

    error: ClientError
    wait_s: float | None


def setback(url: str, answer: HttpAnswer) -> Setback:
    """Return why a request was not done, and when to try it again."""
    try:
        problem = msgspec.json.decode(answer.body, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem()
    status, code = answer.status, problem.error_code
    text = problem.error or f"{url} answered HTTP {status}"
    wait_s: float | None = retry_after_s(
        problem.retry_after_ms, answer.headers.get("retry-after", "")
    )
    if status == HTTPStatus.BAD_GATEWAY and code == "request_failed":
        failure = problem.details.get("code")
        return Setback(RequestFailed(text, code=str(failure or "failed")), None)
    if code in _NO_REPLY:
        return Setback(NoReply(text, code=code), None)
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.REQUEST_TIMEOUT):
        unavailable = Unavailable(text)
        unavailable.is_answered = bool(problem.error)
        return Setback(unavailable, wait_s)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Setback(OutcomeUnknown(text, resolution=problem.resolution), wait_s)
    if not code:
        return Setback(Unavailable(text), None)
    is_retryable = problem.retry_after_ms is not None
    kind = UnknownActor if code == Code.UNKNOWN_ACTOR else Refused
    refused = kind(
        code,
        text,
        resolution=problem.resolution,
        retryable=is_retryable,
        details=problem.details,
    )
    return Setback(refused, wait_s if is_retryable else None)


def page_of(body: bytes, to: str) -> MessagePage:
    """Decode a page of a topic."""
    page = msgspec.json.decode(body, type=_History)
    return MessagePage(
        page.topic,
        page.epoch,
        tuple(_message(one, page.topic, None, to, None) for one in page.messages),
        page.next,
        page.complete,
        page.lost_from,
        page.lost_to,
    )


def pulled_of(body: bytes, to: str, settler: Settles) -> list[Message]:
    """Decode messages that were taken from a subscription."""
    pulled = msgspec.json.decode(body, type=_Pulled)
    return [
        _message(one, pulled.topic, pulled.subscription, to, settler) for one in pulled.messages
    ]


def reply_of(body: bytes, to: str) -> Message:
    """Decode the reply to a request."""
    reply = msgspec.json.decode(body, type=_Reply)
    return Message(
        id=reply.id,
        sender=reply.sender,
        to=to,
        type=reply.type,
        payload=reply.data,
        metadata={},
        timestamp=0,
    )


def _message(
    stored: _Stored, topic: str, subscription: str | None, to: str, settler: Settles | None
) -> Message:
    facts: Mapping[str, Any] = {
        "topic": topic,
        "key": stored.key,
        "headers": stored.headers,
        "deadLetter": stored.dead_letter,
    }
    return Message(
        id=stored.id,
        sender=stored.sender,
        to=to,
        type=stored.type,
        payload=stored.data,
        metadata={name: value for name, value in facts.items() if value is not None},
        timestamp=stored.published_at,
        topic=topic,
        delivery=Delivery(
            epoch=stored.epoch,
            seq=stored.seq,
            subscription=subscription,
            attempt=stored.attempt,
            redelivered=stored.redelivered,
            published_at=stored.published_at,
            id=stored.delivery_id,
        ),
        _settler=settler,
    )
