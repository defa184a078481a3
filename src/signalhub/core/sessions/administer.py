"""`hub:list_sessions` and `hub:close_session`: what an operator sees of sessions, and ends."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Effect, Note
from signalhub.core.operations import operated
from signalhub.wire import envelope as wire
from signalhub.wire.names import Pattern

if TYPE_CHECKING:
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.sessions.session import Session
    from signalhub.core.sessions.sessions import Sessions
    from signalhub.core.wall_time import WallTime
    from signalhub.wire.envelope import Envelope
    from signalhub.wire.errors import Refusal

OPERATION: Final = "sessions"
PAGE_MAX: Final = 200
# Sessions looked at for one page, so that a rare pattern does not hold up others.
_LOOKED_AT_MAX: Final = 1_000
_GOING_AWAY: Final = 1001


class Administration:
    """Handles the requests of operators about sessions."""

    def __init__(self, sessions: Sessions, replies: Replies) -> None:
        self._sessions = sessions
        self._replies = replies

    def handlers(self) -> dict[str, Handler]:
        return {"hub:list_sessions": self.list_sessions, "hub:close_session": self.close_session}

    def list_sessions(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:list_sessions`: one page, oldest first; `next` leads to the following one."""
        _authorize(session)
        request = requests.parse_or_empty(requests.ListSessionsRequest, message.payload)
        pattern = Pattern(request.pattern or "*")
        limit = requests.page(request.limit, PAGE_MAX)
        rows: list[dict[str, object]] = []
        last = int(request.after or 0)
        everybody = list(self._sessions)
        first = bisect_right(everybody, last, key=attrgetter("number"))
        has_more = False
        for looked_at, one in enumerate(everybody[first : first + _LOOKED_AT_MAX + 1]):
            if len(rows) == limit or looked_at == _LOOKED_AT_MAX:
                has_more = True
                break
            last = one.number
            if one.has_socket and pattern.matches(one.address):
                rows.append(_row(one, self._replies.wall))
        payload = {
            "sessions": rows,
            "total": len(self._sessions),
            "next": last if has_more else None,
        }
        reply = self._replies.reply(session, message, "hub:session_list", wire.encode(payload), now)
        return [*operated(session, message.type, "admin", OPERATION, now), reply]

    def close_session(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:close_session`: recorded first, then the session is told and closed.

        If it cannot be recorded, it is closed all the same: on a full disk an operator must be able
        to end whoever fills it.
        """
        _authorize(session)
        wanted = requests.parse(requests.CloseSessionRequest, message.payload).session_id
        target = self._sessions.get(wanted)
        if target is None:
            raise refusals.unknown_session(wanted)
        closing = _Closing(self, session, message, target)
        (record,) = operated(session, message.type, "admin", target.address, now)
        record.follow(closing.committed, closing.refused)
        return [record]

    def end(
        self,
        session: Session,
        message: Envelope,
        target: Session,
        now: int,
        *,
        is_recorded: bool = True,
    ) -> list[Effect]:
        """Answer, then close; one may close one's own session, too."""
        facts: dict[str, object] = {"sessionId": target.id, "identity": target.identity}
        payload = wire.encode(facts if is_recorded else facts | {"recorded": False})
        reply = self._replies.reply(session, message, "hub:session_closed", payload, now)
        effects: list[Effect] = [] if session.is_over else [reply]
        if not target.is_over:
            text = "An operator has closed the session."
            effects += self._sessions.dismiss(target, "closed_by_operator", text, _GOING_AWAY, now)
        return effects


class _Closing:
    """A session to be closed once the record of it is on disk."""

    __slots__ = ("_administration", "_message", "_session", "_target")

    def __init__(
        self, administration: Administration, session: Session, message: Envelope, target: Session
    ) -> None:
        self._administration = administration
        self._session = session
        self._message = message
        self._target = target

    def committed(self, offset: int, now: int) -> list[Effect]:
        return self._administration.end(self._session, self._message, self._target, now)

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        """The log takes nothing, so the hub's own output has to do."""
        facts: dict[str, object] = {
            "session": self._target.id,
            "identity": self._target.identity,
            "by": self._session.allowance.subject,
            "operator": self._session.address,
            "reason": str(refusal.code),
        }
        note = Note("an operator closed a session, which could not be recorded", facts)
        ended = self._administration.end(
            self._session, self._message, self._target, now, is_recorded=False
        )
        return [note, *ended]


def _authorize(session: Session) -> None:
    allowance = session.allowance
    if allowance is not EVERYTHING and not allowance.may_administer(OPERATION):
        raise refusals.unauthorized("admin", OPERATION)


def _row(session: Session, wall: WallTime) -> dict[str, object]:
    claims, waiting = session.claims, session.outbound
    return {
        "sessionId": session.id,
        "identity": session.identity,
        "subject": None if claims is None else claims.subject,
        "tokenId": None if claims is None else claims.jti or None,
        "tokenExpiresAt": None if claims is None else int(claims.expires_at_s * 1000),
        "source": session.source,
        "connectedAt": wall.shown(session.connected_at_ms),
        "lastSeenAt": wall.shown(session.last_seen_ms),
        "registrations": len(session.registrations),
        "subscriptions": session.count_topics(),
        "consumers": len(session.consumers),
        "queuedMessages": 0 if waiting is None else waiting.messages,
        "queuedBytes": 0 if waiting is None else waiting.bytes,
    }
