"""One request to the hub: its declaration, its frame and its properties."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import NoneType
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, cast, get_args

import msgspec

from signalhub.client.answers import answer_of
from signalhub.client.arguments import (
    checked_address,
    checked_lifetime,
    checked_message_id,
)
from signalhub.clock import Ids
from signalhub.wire import names
from signalhub.wire.envelope import ASK, TELL, encode

REQUEST_S = 30.0

A = TypeVar("A")


class HeldBy(Enum):
    """What can hold a request back."""

    TELL = "tell"  # Pauses, including those of its target alone, and the hub's message rate.
    TRAFFIC = "traffic"  # Pauses of all traffic, and the hub's message rate.
    CONTROL = "control"  # The hub's message rate.
    EXEMPT = "exempt"  # Nothing but the connection, and control requests made before it.


class Payload(msgspec.Struct, Generic[A], omit_defaults=True, rename="camel"):
    """The content of a request; `A` is the type of its answer.

    A subclass declares one type of request: the constants below, its members as fields, and their
    checks in `__post_init__`. Members that have their default value are not sent.
    """

    TYPE: ClassVar[str]
    ANSWER: ClassVar[str | None] = None  # The type of the answer; `None` for a tell.
    ALIAS: ClassVar[str | None] = None  # Another name some hubs use for the answer.
    KIND: ClassVar[HeldBy] = HeldBy.CONTROL
    PATTERN: ClassVar[str] = ASK
    NOUN: ClassVar[str] = "a request"
    REPEATABLE: ClassVar[bool] = True
    READS: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        (cls.READS, *_) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]

    def content(self) -> object:
        """Return what is encoded as the payload."""
        return self

    def subject(self) -> str:
        """Return a short description for error texts: `task:assign to @(demo/bob)`."""
        return self.TYPE

    def target(self) -> str:
        """Return the target whose pause holds it back."""
        return ""

    def collects(self) -> str | None:
        """Return the topic whose replayed messages belong to the answer."""
        return None

    def is_repeatable(self) -> bool:
        """Return whether it can be sent again: the hub recognises it, or a repeat has no effect."""
        return self.REPEATABLE

    def read(self, answer: Any, attempts: int) -> A:
        """Decode the answer to a request that was sent `attempts` times."""
        return cast(A, None if self.READS is NoneType else answer_of(answer, self.READS))


class RequestOptions(TypedDict, total=False):
    """Options of a request beside its payload."""

    sender: str | None
    message_id: str | None
    metadata: Mapping[str, Any] | None
    ttl_ms: float | None
    timeout_s: float
    attempts: int
    wait: bool


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One frame and its properties; `Payload` explains the fields."""

    id: str
    frame: bytes
    kind: HeldBy
    subject: str
    target: str
    answer: str | None  # Without one, the request is done once written.
    answer_alias: str | None
    is_repeatable: bool
    collects: str | None
    timeout_s: float
    attempts: int

    def is_answered_by(self, type: str) -> bool:
        return type in (self.answer, self.answer_alias)


class FrameWriter:
    """Encodes frames; `sender` is their default sender."""

    def __init__(self, sender: str, ids: Ids) -> None:
        self.sender = checked_address(sender)
        self._ids = ids

    def new_id(self) -> str:
        return self._ids.next().decode()

    def request(
        self,
        payload: Payload[Any],
        now_ms: int,
        *,
        sender: str | None = None,
        message_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        ttl_ms: float | None = None,
        timeout_s: float = REQUEST_S,
        attempts: int = 1,
        wait: bool = True,
    ) -> Request:
        """Encode a request to the hub; without `wait`, it gets no answer."""
        if timeout_s <= 0 or attempts < 1:
            raise ValueError(f"{payload.NOUN} needs a timeout above 0 s and at least one attempt")
        checked_lifetime(ttl_ms)
        message_id = checked_message_id(message_id) or self.new_id()
        message = {
            "id": message_id,
            "from": self.sender if sender is None else checked_address(sender),
            "to": names.HUB_ADDRESS,
            "type": payload.TYPE,
            "payload": payload.content(),
            "pattern": payload.PATTERN if wait else TELL,
            "correlationId": None,
            "timestamp": now_ms,
            "metadata": metadata or {},
            "ttl": ttl_ms,
            "signature": None,
        }
        subject = payload.subject()
        is_repeatable = payload.is_repeatable()
        return Request(
            id=message_id,
            frame=_frame(message, subject),
            kind=payload.KIND,
            subject=subject,
            target=payload.target(),
            answer=payload.ANSWER if wait else None,
            answer_alias=payload.ALIAS,
            is_repeatable=is_repeatable,
            collects=payload.collects(),
            timeout_s=timeout_s,
            attempts=attempts if is_repeatable else 1,
        )


def _frame(message: dict[str, Any], subject: str) -> bytes:
    try:
        return encode(message)
    except RecursionError:
        reason = "it is nested too deeply, or contains itself"
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise TypeError(f"{subject} cannot be written as JSON: {reason}")
