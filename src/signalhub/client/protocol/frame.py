"""One request to the hub: its frame, and how to treat it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from signalhub.client.arguments import checked_address
from signalhub.clock import Ids
from signalhub.wire import names
from signalhub.wire.envelope import ASK, encode

REQUEST_S = 30.0


class Kind(Enum):
    """What may hold a request back."""

    TELL = "tell"  # Pauses, also of its target alone, and the hub's message rate.
    TRAFFIC = "traffic"  # Pauses of everything, and the hub's message rate.
    CONTROL = "control"  # The hub's message rate.
    EXEMPT = "exempt"  # Nothing but the connection.


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One frame and how to treat it."""

    id: str
    frame: bytes
    kind: Kind
    subject: str  # What it is about, for error texts: `task:assign to @(demo/bob)`.
    target: str = ""
    answer: str | None = None  # The type that answers it; without one it is done once written.
    answer_alias: str | None = None  # What some hubs call the answer.
    is_repeatable: bool = True  # May be sent again: the hub recognises it, or twice is as once.
    collects: str | None = None  # The topic whose replayed messages belong to the answer.
    timeout_s: float = REQUEST_S
    attempts: int = 1

    def is_answered_by(self, type: str) -> bool:
        return type in (self.answer, self.answer_alias)


class FrameWriter:
    """Writes frames; `sender` is their sender unless said otherwise."""

    def __init__(self, sender: str, ids: Ids) -> None:
        self.sender = checked_address(sender)
        self._ids = ids

    def new_id(self) -> str:
        return self._ids.next().decode()

    def request(
        self,
        type: str,
        payload: Any,
        now_ms: int,
        *,
        kind: Kind = Kind.CONTROL,
        pattern: str = ASK,
        message_id: str | None = None,
        sender: str | None = None,
        target: str = "",
        metadata: Mapping[str, Any] | None = None,
        ttl_ms: float | None = None,
        subject: str = "",
        answer: str | None = None,
        answer_alias: str | None = None,
        is_repeatable: bool = True,
        collects: str | None = None,
        timeout_s: float = REQUEST_S,
        attempts: int = 1,
    ) -> Request:
        """Write a frame to the hub."""
        message_id = message_id or self.new_id()
        message = {
            "id": message_id,
            "from": self.sender if sender is None else checked_address(sender),
            "to": names.HUB_ADDRESS,
            "type": type,
            "payload": payload,
            "pattern": pattern,
            "correlationId": None,
            "timestamp": now_ms,
            "metadata": metadata or {},
            "ttl": ttl_ms,
            "signature": None,
        }
        subject = subject or type
        return Request(
            id=message_id,
            frame=_frame(message, subject),
            kind=kind,
            subject=subject,
            target=target,
            answer=answer,
            answer_alias=answer_alias,
            is_repeatable=is_repeatable,
            collects=collects,
            timeout_s=timeout_s,
            attempts=attempts,
        )


def _frame(message: dict[str, Any], subject: str) -> bytes:
    try:
        return encode(message)
    except RecursionError:
        reason = "it is nested too deeply, or contains itself"
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise TypeError(f"{subject} cannot be written as JSON: {reason}")
