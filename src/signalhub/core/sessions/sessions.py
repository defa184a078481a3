"""Sessions from the opening of a socket to its end, and their identities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from signalhub.core.effects import Close, Effect, Forget
from signalhub.core.limits.quotas import Holder, Quotas, Resource
from signalhub.core.sessions.session import Session, SessionState
from signalhub.pacing import Period, TokenBucket
from signalhub.wire import envelope as wire
from signalhub.wire.authority import source_of

if TYPE_CHECKING:
    from signalhub.auth.tokens import Claims
    from signalhub.clock import Ids
    from signalhub.core.messages.audience import Topics
    from signalhub.core.patterns.pattern import PatternConsumer
    from signalhub.core.replies import Replies
    from signalhub.core.sessions.registry import Registry
    from signalhub.core.subscriptions.consumers import Consumer
    from signalhub.counters import Tally
    from signalhub.settings.model import Settings


class Identities:
    """Sessions by identity; an identity may be shared until one session registers it."""

    def __init__(self) -> None:
        # Nearly every identity belongs to one session; others get a table.
        self._sessions: dict[str, Session | dict[Session, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, identity: str) -> list[Session]:
        """The sessions with this identity, oldest first."""
        found = self._sessions.get(identity)
        if found is None:
            return []
        return [found] if isinstance(found, Session) else list(found)

    def assign(self, session: Session, identity: str) -> None:
        """Set the identity of a session."""
        if session.identity == identity:
            return
        self.remove(session)
        session.identity = identity
        if not session.has_socket:
            # Whoever registers the address is not disturbed by it, nor the other way round.
            return
        found = self._sessions.get(identity)
        if found is None:
            self._sessions[identity] = session
        elif isinstance(found, Session):
            self._sessions[identity] = {found: None, session: None}
        else:
            found[session] = None

    def rename(self, session: Session) -> None:
        """It lost its address: use the one registered last, or the identity of its hello."""
        names = list(session.registrations)
        name = names[-1] if names else session.hello_identity
        if name is not None:
            self.assign(session, name)

    def remove(self, session: Session) -> None:
        """Remove the identity of a session."""
        if session.identity is None:
            return
        found = self._sessions.get(session.identity)
        if found is session:
            del self._sessions[session.identity]
        elif isinstance(found, dict):
            found.pop(session, None)
            if not found:
                del self._sessions[session.identity]


class Sessions:
    """Every session of the shard."""

    def __init__(
        self,
        identities: Identities,
        registry: Registry,
        topics: Topics,
        detach: Callable[[Consumer | PatternConsumer, int], None],
        quotas: Quotas,
        replies: Replies,
        ids: Ids,
        settings: Settings,
        tally: Tally,
    ) -> None:
        self._identities = identities
        self._registry = registry
        self._topics = topics
        self._detach = detach
        self._quotas = quotas
        self._replies = replies
        self._ids = ids
        self._settings = settings
        self._tally = tally
        # In the order of opening, to notify sessions in the same order in every run.
        self._sessions: dict[str, Session] = {}
        self._count = 0
        # How many of them have no socket.
        self._without_sockets = 0
        self._token_ends_ms: dict[Session, float] = {}
        self._next_token_end_ms = math.inf
        self._push = Period(int(settings.heartbeat_push_s * 1000))
        self.is_draining = False

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __len__(self) -> int:
        """The number of sessions with a socket."""
        return len(self._sessions) - self._without_sockets

    def get(self, session_id: str) -> Session | None:
        """The open session with this id."""
        return self._sessions.get(session_id)

    def opened(
        self, link: object, now: int, source: str = "", *, has_socket: bool = True
    ) -> Session:
        """A socket was accepted from this network address, or requests come from it by HTTP."""
        settings = self._settings
        bucket = TokenBucket(settings.message_rate, settings.message_burst, now)
        self._count += 1
        session = Session(
            f"session-{self._ids.secret()}",
            link,
            bucket,
            now,
            self._count,
            source,
            has_socket=has_socket,
        )
        self._sessions[session.id] = session
        if has_socket:
            self._tally.connections_opened += 1
        else:
            self._without_sockets += 1
        return session

    def closed(self, session: Session, now: int) -> list[Effect]:
        """A socket has closed or is about to. Idempotent."""
        if session.state is SessionState.CLOSED:
            return []
        session.state = SessionState.CLOSED
        self._sessions.pop(session.id, None)
        self._identities.remove(session)
        self._topics.leave(session)
        self._token_ends_ms.pop(session, None)
        if session.counted is not None:
            self._quotas.release(Resource.SESSIONS, session.counted)
            session.counted = None
        if session.has_socket:
            self._tally.connections_closed += 1
        else:
            self._without_sockets -= 1
        self._registry.dismiss(session)
        for consumer in list(session.consumers.values()):
            self._detach(consumer, now)
        addresses = list(session.registrations)
        for address in addresses:
            self._registry.remove(address)
        # During a shutdown registrations stay on disk, because the actors will return.
        return [Forget(addresses)] if addresses and not self.is_draining else []

    def count(self, session: Session, identity: str) -> None:
        """It says who it is, maybe not for the first time; raises `Refusal` above a quota."""
        holder, before = Holder(identity, source_of(session.source)), session.counted
        if holder == before:
            return
        self._quotas.check(Resource.SESSIONS, holder)
        if before is not None:
            self._quotas.release(Resource.SESSIONS, before)
        self._quotas.take(Resource.SESSIONS, holder)
        session.counted = holder

    def dismiss(
        self, session: Session, reason: str, text: str, code: int, now: int
    ) -> list[Effect]:
        """Tell a session why it is closed, clean up and close it."""
        payload = wire.encode({"reason": reason, "message": text})
        notice = self._replies.notice(session, "hub:disconnect", payload, now)
        return [notice, *self.closed(session, now), Close(session, code, reason)]

    def drain(self, now: int) -> list[Effect]:
        """Tell all sessions that the hub is shutting down."""
        self.is_draining = True
        effects: list[Effect] = []
        for session in list(self._sessions.values()):
            effects += self.dismiss(session, "server_shutdown", "The hub is stopping.", 1001, now)
        return effects

    # Tokens.

    def watch_token(self, session: Session) -> None:
        """Close the session when its token expires, unless it is refreshed."""
        if session.claims is None:
            return
        # A jump of the wall clock does not end it: what is left of its time is fixed here.
        ends_ms = self._replies.wall.own(session.claims.expires_at_s * 1000)
        self._token_ends_ms[session] = ends_ms
        self._next_token_end_ms = min(self._next_token_end_ms, ends_ms)

    def end_tokens(self, now: int) -> list[Effect]:
        """Close sessions whose token has expired."""
        effects: list[Effect] = []
        if now < self._next_token_end_ms:
            return effects
        ended = [session for session, ends_ms in self._token_ends_ms.items() if ends_ms <= now]
        for session in ended:
            text = "The token has expired."
            effects += self.dismiss(session, "unauthorized", text, 1008, now)
        self._next_token_end_ms = min(self._token_ends_ms.values(), default=math.inf)
        return effects

    def end_denied(self, is_denied: Callable[[Claims], bool], now: int) -> list[Effect]:
        """Close sessions whose token has been denied."""
        effects: list[Effect] = []
        for session in list(self._token_ends_ms):
            if session.claims is not None and is_denied(session.claims):
                text = "The token has been revoked."
                effects += self.dismiss(session, "unauthorized", text, 1008, now)
        return effects

    # Notices.

    def push_heartbeats(self, now: int) -> list[Effect]:
        """Push heartbeats to all sessions if that is configured and due."""
        if not self._settings.heartbeat_push_s or not self._push.is_due(now):
            return []
        server_ms = self._replies.wall.shown(now)
        payload = heartbeat_payload(b"%d" % server_ms, server_ms)
        return [
            self._replies.notice(session, "hub:heartbeat_ack", payload, now)
            for session in self._sessions.values()
            if session.state is SessionState.CONNECTED and session.has_socket
        ]

    def hold(self, sender: Session, address: str, now: int) -> list[Effect]:
        """Ask a sender to hold its tells to one address."""
        self._tally.paused += 1
        payload = wire.encode({"reason": "outbound_queue_full", "target": address})
        return [self._replies.notice(sender, "hub:pause", payload, now)]

    def resume(self, held: list[tuple[Session, str]], now: int) -> list[Effect]:
        """Tell held senders to resume."""
        self._tally.resumed += len(held)
        return [
            self._replies.notice(sender, "hub:resume", wire.encode({"target": address}), now)
            for sender, address in held
            if sender.state is SessionState.CONNECTED
        ]


def heartbeat_payload(echoed: bytes, server_ms: int) -> bytes:
    """Payload of `hub:heartbeat_ack`."""
    return b'{"timestamp":%b,"serverTime":%d}' % (echoed, server_ms)
