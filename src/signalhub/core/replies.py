"""The hub's own messages to a session: answers, refusals and notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from signalhub.clock import Ids
from signalhub.core import requests
from signalhub.core.effects import Append, Effect, Reply
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.wall_time import WallTime
from signalhub.counters import Tally
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal
from signalhub.wire.names import NOBODY

Handler = Callable[[Session, Envelope, int], list[Effect]]
# A run's; `None` if its messages have to be handled one by one.
RunHandler = Callable[[Session, Any, int], "list[Effect] | None"]


class Replies:
    """Makes the hub's own messages, each with an id of its own."""

    def __init__(self, ids: Ids, tally: Tally, wall: WallTime) -> None:
        self._next_id = ids.next
        self._tally = tally
        # Every frame the hub writes is stamped by the wall clock.
        self.wall = wall

    def reply(
        self,
        session: Session,
        request: Envelope,
        type: str,
        payload: bytes,
        now: int,
        metadata: bytes = b"{}",
    ) -> Reply:
        """Answer a request."""
        frame = wire.from_hub(
            message_id=self._next_id(),
            type=type,
            to=request.sender,
            payload=payload,
            now_ms=self.wall.shown(now),
            correlation_id=request.id,
            metadata=metadata,
        )
        return Reply(session, frame)

    def notice(self, session: Session, type: str, payload: bytes, now: int) -> Reply:
        """Send a session something it did not request."""
        frame = wire.from_hub(
            message_id=self._next_id(),
            type=type,
            to=session.address,
            payload=payload,
            now_ms=self.wall.shown(now),
        )
        return Reply(session, frame)

    def refuse(self, session: Session, request: Envelope, refusal: Refusal, now: int) -> Reply:
        """Answer a request with an error."""
        self._tally.count_error(refusal.code)
        trace = requests.trace_of(request)
        return self.reply(session, request, "hub:error", error_payload(refusal), now, trace)

    def refuse_unread(
        self,
        session: Session,
        refusal: Refusal,
        now: int,
        sender: str | None,
        message_id: str | None,
    ) -> Reply:
        """Answer a frame that is not an envelope with an error."""
        self._tally.count_error(refusal.code)
        frame = wire.from_hub(
            message_id=self._next_id(),
            type="hub:error",
            to=sender or session.identity or NOBODY,
            payload=error_payload(refusal),
            now_ms=self.wall.shown(now),
            correlation_id=message_id,
        )
        return Reply(session, frame)

    def answer(
        self,
        session: Session,
        message: Envelope,
        type: str,
        payload: dict[str, object] | Callable[[], dict[str, object]],
    ) -> DeferredAnswer:
        """An answer that waits until an entry is on disk."""
        return DeferredAnswer(self, session, message, type, payload)

    def after(
        self, pending: Append, handle: Handler, session: Session, message: Envelope
    ) -> list[Effect]:
        """Handle a request once a pending entry is on disk; refuse both for the same reason."""

        def again(offset: int, later: int) -> list[Effect]:
            if session.state is not SessionState.CONNECTED:
                return []
            try:
                return handle(session, message, later)
            except Refusal as refusal:
                return [self.refuse(session, message, refusal, later)]

        def refused(refusal: Refusal, later: int) -> list[Effect]:
            if session.state is not SessionState.CONNECTED:
                return []
            return [self.refuse(session, message, refusal, later)]

        pending.follow(again, refused)
        return []


class DeferredAnswer:
    """Answers a request once its entry is on disk, or with the reason why it is not.

    A callable payload is evaluated when the answer is made.
    """

    __slots__ = ("_message", "_payload", "_replies", "_session", "_type")

    def __init__(
        self,
        replies: Replies,
        session: Session,
        message: Envelope,
        type: str,
        payload: dict[str, object] | Callable[[], dict[str, object]],
    ) -> None:
        self._replies = replies
        self._session = session
        self._message = message
        self._type = type
        self._payload = payload

    def committed(self, offset: int, now: int) -> list[Effect]:
        """The entry is on disk."""
        session = self._session
        if session.state is not SessionState.CONNECTED:
            return []
        payload = wire.encode(self._payload() if callable(self._payload) else self._payload)
        return [self._replies.reply(session, self._message, self._type, payload, now)]

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        """The log rejected the entry."""
        if self._session.state is not SessionState.CONNECTED:
            return []
        return [self._replies.refuse(self._session, self._message, refusal, now)]


def error_payload(refusal: Refusal) -> bytes:
    """The five members every error carries."""
    return wire.encode(
        {
            "code": refusal.code,
            "message": refusal.message,
            "resolution": refusal.resolution,
            "details": refusal.details,
            "retryable": refusal.retryable,
        }
    )
