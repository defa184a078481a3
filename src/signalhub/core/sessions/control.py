"""The session's own affairs: hello, heartbeat, goodbye, tokens, statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub.auth.permissions import EVERYTHING, Allowance
from signalhub.core import refusals, requests
from signalhub.core.effects import Close, Effect, Forget
from signalhub.core.sessions.session import Session, State
from signalhub.core.streams import mailboxes
from signalhub.core.streams.streams import Topic
from signalhub.core.subscriptions import join
from signalhub.counters import Tally
from signalhub.pacing import Period
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import PROTOCOL_VERSION, Envelope

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

_MAJOR = PROTOCOL_VERSION.split(".", 1)[0]
_SESSION_TOKEN_MS = 3_600_000
_WINDOW_MS = 60_000


class Identities:
    """Which sessions go by which name; a name may be shared until somebody registers it."""

    def __init__(self) -> None:
        # Nearly every name belongs to one session; a table is made only for the others.
        self._sessions: dict[str, Session | dict[Session, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, identity: str) -> list[Session]:
        """The sessions that go by this name, oldest first."""
        found = self._sessions.get(identity)
        if found is None:
            return []
        return [found] if isinstance(found, Session) else list(found)

    def assign(self, session: Session, identity: str) -> None:
        """The session goes by this name from now on."""
        if session.identity == identity:
            return
        self.remove(session)
        session.identity = identity
        found = self._sessions.get(identity)
        if found is None:
            self._sessions[identity] = session
        elif isinstance(found, Session):
            self._sessions[identity] = {found: None, session: None}
        else:
            found[session] = None

    def remove(self, session: Session) -> None:
        """The session is gone, or about to take another name."""
        if session.identity is None:
            return
        found = self._sessions.get(session.identity)
        if found is session:
            del self._sessions[session.identity]
        elif isinstance(found, dict):
            found.pop(session, None)
            if not found:
                del self._sessions[session.identity]


class Window:
    """The counters of the last full or running minute, for `hub:metrics`."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._start = (0, 0, 0, 0, 0)
        self._start_ms = 0
        self._period = Period(_WINDOW_MS)

    def tick(self, now: int) -> None:
        """Begin a new window when the minute is over."""
        if self._period.is_due(now):
            self._start_ms = now
            self._start = self._totals()

    def payload(self, now: int) -> bytes:
        """What happened since the window began."""
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
                "windowStart": self._start_ms or now,
                "timestamp": now,
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


def connect(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Check version, then token, then capabilities, and let the session in."""
    if not wire.is_object(message.metadata):
        raise refusals.structural("hub:connect needs metadata with protocolVersion, an object")
    hello = requests.parse(requests.Connect, message.metadata, "metadata")
    version = hello.protocol_version
    if version is not None and not isinstance(version, str):
        raise refusals.structural("metadata.protocolVersion must be a string")
    if version is None or version.split(".", 1)[0] != _MAJOR:
        raise refusals.version_mismatch(version)
    claims = None
    if hub.authenticator is not None:
        token = hello.auth_token if isinstance(hello.auth_token, str) else ""
        claims = hub.authenticator.verify(token, now / 1000)
    if not isinstance(hello.capabilities, list) or not hello.capabilities:
        raise refusals.no_capabilities()

    session.state = State.CONNECTED
    session.settles_mail = "ack" in hello.capabilities
    session.set_clock(message.timestamp, now)
    session.claims = claims
    session.allowance = (
        EVERYTHING if claims is None else Allowance(claims.actor, claims.permissions)
    )
    session.hello_identity = message.sender if claims is None else claims.actor
    hub.identities.assign(session, session.hello_identity)
    metadata: dict[str, object] = {"actorIdentity": session.identity}
    if claims is None:
        metadata["sessionToken"] = hub.session_tokens.issue(session.id, now, _SESSION_TOKEN_MS)
    else:
        metadata["tokenExpiresAt"] = int(claims.expires_at_s * 1000)
    hub.watch_token(session)
    reply = hub.replies.reply(
        session,
        message,
        "hub:connected",
        _welcome(hub, session, now),
        now,
        wire.encode(metadata),
    )
    return [*_withdraw(hub, session, now), reply]


def _withdraw(hub: Hub, session: Session, now: int) -> list[Effect]:
    """Take away what an earlier token allowed and the present one does not."""
    allowance = session.allowance
    if allowance is EVERYTHING:
        return []
    effects: list[Effect] = []
    for consumer in list(session.consumers.values()):
        stream = consumer.subscription.stream
        if isinstance(stream, Topic) and not allowance.may_subscribe(stream.name):
            effects += join.leave(hub, consumer, "unauthorized", now)
    for subscriber in list((session.subscriptions or {}).values()):
        for topic in list(subscriber.topics):
            if not allowance.may_subscribe(topic) or not allowance.may_register(subscriber.address):
                hub.topics.unsubscribe(session, subscriber.address, topic)
    barred = [one for one in session.registrations if not allowance.may_register(one)]
    for address in barred:
        hub.registry.remove(address)
        mailboxes.detach_from(hub, session, address, now)
    return [*effects, Forget(barred)] if barred else effects


def _welcome(hub: Hub, session: Session, now: int) -> bytes:
    settings = hub.settings
    return wire.encode(
        {
            "sessionId": session.id,
            "serverVersion": PROTOCOL_VERSION,
            "serverTime": now,
            "maxMessageSize": settings.message_bytes_max,
            "heartbeatInterval": settings.heartbeat_ms,
            "capabilities": {
                "maxActorsPerInstance": settings.registry.limit,
                "supportsBackpressure": True,
                "supportedContentTypes": ["application/json"],
                "messageRate": settings.message_rate,
                "messageBurst": settings.message_burst,
                "durable": True,
                "durability": hub.storage.durability,
            },
        }
    )


def heartbeat(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Echo the client's time and give ours; the leases are renewed by the frame itself."""
    echoed = wire.encode(message.timestamp)
    if wire.is_object(message.payload):
        echoed = bytes(requests.parse(requests.Heartbeat, message.payload).timestamp) or echoed
    payload = heartbeat_payload(echoed, now)
    return [hub.replies.reply(session, message, "hub:heartbeat_ack", payload, now)]


def heartbeat_payload(echoed: bytes, now: int) -> bytes:
    """Payload of `hub:heartbeat_ack`."""
    return b'{"timestamp":%b,"serverTime":%d}' % (echoed, now)


def disconnect(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Acknowledge, clean up, close."""
    payload = wire.encode({"acknowledged": True, "sessionId": session.id, "cleanedUp": True})
    reply = hub.replies.reply(session, message, "hub:disconnect", payload, now)
    return [reply, *hub.closed(session, now), Close(session, 1000, "client requested")]


def refresh_token(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Exchange a valid token for one that lasts longer, without reconnecting."""
    token = requests.parse_or_empty(requests.Refresh, message.payload).token
    if token is None:
        given = requests.parse(requests.RefreshMetadata, message.metadata, "metadata")
        token = given.auth_token
    if not token:
        raise refusals.invalid_token("No token was given in payload.token or metadata.authToken.")
    if hub.authenticator is None or session.claims is None:
        hub.session_tokens.check(token, session.id, now)
        ends_at_ms = now + _SESSION_TOKEN_MS
        token = hub.session_tokens.issue(session.id, now, _SESSION_TOKEN_MS)
    else:
        token, ends_at_ms = hub.authenticator.refresh(token, session.claims, now / 1000)
        session.claims = hub.authenticator.verify(token, now / 1000)
        session.allowance = Allowance(session.claims.actor, session.claims.permissions)
        hub.watch_token(session)
    payload = wire.encode({"token": token, "expiresAt": ends_at_ms, "tokenExpiresAt": ends_at_ms})
    reply = hub.replies.reply(session, message, "hub:token_refreshed", payload, now)
    return [*_withdraw(hub, session, now), reply]


def queue_stats(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """How much waits for this session, and how fast it takes it."""
    waiting = session.outbound
    elapsed_s = max(1, now - session.connected_at_ms) / 1000
    payload = wire.encode(
        {
            "queueDepth": waiting.messages if waiting is not None else 0,
            "queueBytes": waiting.bytes if waiting is not None else 0,
            "processingRate": round(session.sent / elapsed_s, 3),
            "pauseThreshold": hub.settings.outbound.pause_messages,
            "resumeThreshold": hub.settings.outbound.resume_messages,
        }
    )
    return [hub.replies.reply(session, message, "hub:queue_stats_response", payload, now)]


def metrics(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """The hub's counters of the running minute."""
    return [
        hub.replies.reply(session, message, "hub:metrics_response", hub.window.payload(now), now)
    ]
