"""Requests about the session itself: connect, heartbeat, disconnect, tokens, statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub.auth.permissions import EVERYTHING, Allowance
from signalhub.core import refusals, requests
from signalhub.core.effects import Close, Effect, Forget
from signalhub.core.patterns.pattern import PatternConsumer
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.sessions.sessions import heartbeat_payload
from signalhub.core.streams.streams import Topic
from signalhub.counters import Tally
from signalhub.pacing import Period
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import PROTOCOL_VERSION, Envelope
from signalhub.wire.errors import Refusal
from signalhub.wire.names import is_reserved

if TYPE_CHECKING:
    from signalhub.auth.session_tokens import SessionTokens
    from signalhub.auth.tokens import Authenticator
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.audience import Topics
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.sessions.logins import RefusedLogins
    from signalhub.core.sessions.registry import Registration, Registry
    from signalhub.core.sessions.sessions import Identities, Sessions
    from signalhub.core.streams.mailboxes import Mailboxes
    from signalhub.core.subscriptions.join import Subscriptions
    from signalhub.core.wall_time import WallTime
    from signalhub.settings.model import Settings

_MAJOR = PROTOCOL_VERSION.split(".", 1)[0]
_SESSION_TOKEN_MS = 3_600_000
_WINDOW_MS = 60_000


class CounterWindow:
    """Counters of the current minute, for `hub:metrics`."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._start = (0, 0, 0, 0, 0)
        self._start_ms = 0
        self._period = Period(_WINDOW_MS)

    def tick(self, now: int) -> None:
        """Start a new window each minute."""
        if self._period.is_due(now):
            self._start_ms = now
            self._start = self._totals()

    def payload(self, now: int, wall: WallTime) -> bytes:
        """The counts since the window began."""
        received, sent, errors, opened, closed = (
            total - start for total, start in zip(self._totals(), self._start, strict=True)
        )
        return wire.encode(
            {
                "messages_received": received,
                "messages_sent": sent,
                "errors": errors,
                "connections_opened": opened,
                "connections_closed": closed,
                "windowStart": wall.shown(self._start_ms or now),
                "timestamp": wall.shown(now),
            }
        )

    def _totals(self) -> tuple[int, int, int, int, int]:
        tally = self._tally
        return (
            tally.received,
            tally.sent,
            sum(tally.errors.values()),
            tally.connections_opened,
            tally.connections_closed,
        )


class Control:
    """Handles requests about the session itself."""

    def __init__(
        self,
        sessions: Sessions,
        identities: Identities,
        registry: Registry,
        topics: Topics,
        mailboxes: Mailboxes,
        subscriptions: Subscriptions,
        storage: LogState,
        replies: Replies,
        window: CounterWindow,
        logins: RefusedLogins,
        settings: Settings,
        authenticator: Authenticator | None,
        session_tokens: SessionTokens,
    ) -> None:
        self._sessions = sessions
        self._identities = identities
        self._registry = registry
        self._topics = topics
        self._mailboxes = mailboxes
        self._subscriptions = subscriptions
        self._storage = storage
        self._replies = replies
        self._wall = replies.wall
        self._window = window
        self._logins = logins
        self._settings = settings
        self._authenticator = authenticator
        self._session_tokens = session_tokens

    def handlers(self) -> dict[str, Handler]:
        return {
            "hub:connect": self.connect,
            "hub:heartbeat": self.heartbeat,
            "hub:disconnect": self.disconnect,
            "hub:refresh_token": self.refresh_token,
            "hub:queue_stats": self.queue_stats,
            "hub:metrics": self.metrics,
        }

    def connect(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:connect`: check version, token and capabilities, then connect the session."""
        if not wire.is_object(message.metadata):
            raise refusals.structural("hub:connect needs metadata with protocolVersion, an object")
        # The first hello of a socket cannot be longer.
        requests.check_size(message.metadata, self._settings.hello_bytes_max, "metadata")
        hello = requests.parse(requests.ConnectRequest, message.metadata, "metadata")
        version = hello.protocol_version
        if version is not None and not isinstance(version, str):
            raise refusals.structural("metadata.protocolVersion must be a string")
        if version is None or version.split(".", 1)[0] != _MAJOR:
            raise refusals.version_mismatch(version)
        claims = None
        if self._authenticator is not None:
            token = hello.auth_token if isinstance(hello.auth_token, str) else ""
            try:
                claims = self._authenticator.verify(token, self._wall.shown(now) / 1000)
            except Refusal as refusal:
                return [
                    self._replies.refuse(session, message, refusal, now),
                    *self._logins.refused(session.source, "hub:connect", refusal.message, now),
                ]
        elif is_reserved(message.sender):
            raise refusals.reserved_address(message.sender)
        if not isinstance(hello.capabilities, list) or not hello.capabilities:
            raise refusals.no_capabilities()
        self._sessions.count(session, "" if claims is None else claims.subject)

        session.state = SessionState.CONNECTED
        session.settles_mail = "ack" in hello.capabilities
        session.set_clock(message.timestamp, now, self._wall)
        session.claims = claims
        session.allowance = (
            EVERYTHING
            if claims is None
            else Allowance(claims.actor, claims.permissions, claims.subject)
        )
        session.hello_identity = message.sender if claims is None else claims.actor
        self._identities.assign(session, session.hello_identity)
        metadata: dict[str, object] = {"actorIdentity": session.identity}
        if claims is None:
            metadata["sessionToken"] = self._session_tokens.issue(
                session.id, now, _SESSION_TOKEN_MS
            )
        else:
            metadata["tokenExpiresAt"] = int(claims.expires_at_s * 1000)
        self._sessions.watch_token(session)
        reply = self._replies.reply(
            session,
            message,
            "hub:connected",
            self._welcome(session, now),
            now,
            wire.encode(metadata),
        )
        return [*self._withdraw(session, now), reply]

    def _withdraw(self, session: Session, now: int) -> list[Effect]:
        """Remove registrations and subscriptions that the new token does not permit."""
        allowance = session.allowance
        if allowance is EVERYTHING:
            return []
        effects: list[Effect] = []
        for consumer in list(session.consumers.values()):
            if isinstance(consumer, PatternConsumer):
                if not consumer.pattern.may_be_consumed(allowance):
                    effects += self._subscriptions.leave(consumer, "unauthorized", now)
                continue
            subscription = consumer.subscription
            name, owner = subscription.name, subscription.definition.owner
            stream = subscription.stream
            if isinstance(stream, Topic) and not allowance.may_consume(stream.name, name, owner):
                effects += self._subscriptions.leave(consumer, "unauthorized", now)
        for subscriber in list((session.subscriptions or {}).values()):
            for topic in list(subscriber.topics):
                if not allowance.may_subscribe(topic) or not allowance.may_register(
                    subscriber.address
                ):
                    self._topics.unsubscribe(session, subscriber.address, topic)
        barred = [
            address
            for address, held in session.registrations.items()
            if not allowance.may_register(address) or not self._may_hold(allowance, held)
        ]
        for address in barred:
            self._registry.remove(address)
            self._mailboxes.detach_from(session, address, now)
        if session.identity in barred:
            # It must neither speak for the address nor be taken for it.
            self._identities.rename(session)
        return [*effects, Forget(barred)] if barred else effects

    def _may_hold(self, allowance: Allowance, held: Registration) -> bool:
        try:
            self._mailboxes.check_may_hold(allowance, held.address, held.capabilities)
        except Refusal:
            return False
        return True

    def _welcome(self, session: Session, now: int) -> bytes:
        settings = self._settings
        return wire.encode(
            {
                "sessionId": session.id,
                "serverVersion": PROTOCOL_VERSION,
                "serverTime": self._wall.shown(now),
                "maxMessageSize": settings.message_bytes_max,
                "heartbeatInterval": settings.heartbeat_ms,
                "capabilities": {
                    "maxActorsPerInstance": settings.registry.limit,
                    "supportsBackpressure": True,
                    "supportedContentTypes": ["application/json"],
                    "messageRate": settings.message_rate,
                    "messageBurst": settings.message_burst,
                    "durable": True,
                    "durability": self._storage.durability,
                },
            }
        )

    def heartbeat(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:heartbeat`: return both clocks; like every frame it renews the leases."""
        echoed = wire.encode(message.timestamp)
        if wire.is_object(message.payload):
            echoed = (
                bytes(requests.parse(requests.HeartbeatRequest, message.payload).timestamp)
                or echoed
            )
        payload = heartbeat_payload(echoed, self._wall.shown(now))
        return [self._replies.reply(session, message, "hub:heartbeat_ack", payload, now)]

    def disconnect(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:disconnect`: acknowledge, clean up, close."""
        payload = wire.encode({"acknowledged": True, "sessionId": session.id, "cleanedUp": True})
        reply = self._replies.reply(session, message, "hub:disconnect", payload, now)
        return [
            reply,
            *self._sessions.closed(session, now),
            Close(session, 1000, "client requested"),
        ]

    def refresh_token(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:refresh_token`: replace a valid token by a newer one without reconnecting."""
        token = requests.parse_or_empty(requests.RefreshRequest, message.payload).token
        if token is None:
            given = requests.parse(requests.RefreshMetadata, message.metadata, "metadata")
            token = given.auth_token
        if not token:
            raise refusals.invalid_token(
                "No token was given in payload.token or metadata.authToken."
            )
        wall_ms = self._wall.shown(now)
        if self._authenticator is None or session.claims is None:
            self._session_tokens.check(token, session.id, now)
            ends_at_ms = wall_ms + _SESSION_TOKEN_MS
            token = self._session_tokens.issue(session.id, now, _SESSION_TOKEN_MS)
        else:
            token, ends_at_ms = self._authenticator.refresh(token, session.claims, wall_ms / 1000)
            claims = self._authenticator.verify(token, wall_ms / 1000)
            self._sessions.count(session, claims.subject)
            session.claims = claims
            session.allowance = Allowance(claims.actor, claims.permissions, claims.subject)
            self._sessions.watch_token(session)
        payload = wire.encode(
            {"token": token, "expiresAt": ends_at_ms, "tokenExpiresAt": ends_at_ms}
        )
        reply = self._replies.reply(session, message, "hub:token_refreshed", payload, now)
        return [*self._withdraw(session, now), reply]

    def queue_stats(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:queue_stats`: how much is queued for this session, and how fast it reads."""
        waiting = session.outbound
        elapsed_s = max(1, now - session.connected_at_ms) / 1000
        payload = wire.encode(
            {
                "queueDepth": waiting.messages if waiting is not None else 0,
                "queueBytes": waiting.bytes if waiting is not None else 0,
                "processingRate": round(session.sent / elapsed_s, 3),
                "pauseThreshold": self._settings.outbound.pause_messages,
                "resumeThreshold": self._settings.outbound.resume_messages,
            }
        )
        return [self._replies.reply(session, message, "hub:queue_stats_response", payload, now)]

    def metrics(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:metrics`: the counters of the current minute."""
        payload = self._window.payload(now, self._wall)
        return [self._replies.reply(session, message, "hub:metrics_response", payload, now)]
