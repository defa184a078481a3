"""What a client can say to a hub, as frames ready to be written.

Arguments are checked here, before anything is sent: a bad address or name is a `ValueError`, a
payload that is no JSON a `TypeError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from signalhub import names
from signalhub.client.arguments import (
    checked_address,
    checked_capabilities,
    checked_subscription,
    checked_topic,
    checked_type,
)
from signalhub.clock import Ids
from signalhub.envelope import ASK, PROTOCOL_VERSION, TELL, encode

HELLO_TTL_MS = 5_000
GOODBYE_TTL_MS = 500
REQUEST_S = 30.0

_CONNECT_CAPABILITIES = ["send", "receive"]


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
    is_repeatable: bool = True  # May be sent again: the hub recognises it, or twice is as once.
    timeout_s: float = REQUEST_S
    attempts: int = 1


class Composer:
    """Writes the requests of one client; `sender` is its address unless said otherwise."""

    def __init__(self, sender: str, ids: Ids) -> None:
        self.sender = checked_address(sender)
        self._ids = ids

    def hello(self, token: str | None, now_ms: int) -> Request:
        """The first frame on a new connection, from an address nobody else has."""
        message_id = self._ids.next().decode()
        metadata: dict[str, Any] = {
            "protocolVersion": PROTOCOL_VERSION,
            "capabilities": _CONNECT_CAPABILITIES,
            "clientMetadata": {"platform": "python"},
        }
        if token is not None:
            metadata["authToken"] = token
        return self._request(
            "hub:connect",
            None,
            now_ms,
            kind=Kind.EXEMPT,
            message_id=message_id,
            sender=f"@(local/client-{message_id})",
            metadata=metadata,
            ttl_ms=HELLO_TTL_MS,
            answer="hub:connected",
        )

    def goodbye(self, now_ms: int) -> Request:
        return self._request(
            "hub:disconnect",
            None,
            now_ms,
            kind=Kind.EXEMPT,
            ttl_ms=GOODBYE_TTL_MS,
            answer="hub:disconnect",
        )

    def heartbeat(self, now_ms: int) -> Request:
        return self._request(
            "hub:heartbeat",
            {"timestamp": now_ms},
            now_ms,
            kind=Kind.EXEMPT,
            pattern=TELL,
            answer="hub:heartbeat_ack",
        )

    def register(
        self,
        address: str,
        capabilities: Iterable[str],
        metadata: Mapping[str, Any],
        lease_s: float | None,
        now_ms: int,
    ) -> Request:
        payload: dict[str, Any] = {
            "actorAddress": checked_address(address),
            "capabilities": checked_capabilities(capabilities),
            "metadata": dict(metadata),
        }
        if lease_s is not None:
            if lease_s <= 0:
                raise ValueError("a lease must be longer than 0 s")
            payload["ttlSeconds"] = lease_s
        return self._request(
            "hub:register", payload, now_ms, sender=address, answer="hub:registered"
        )

    def unregister(self, address: str, now_ms: int) -> Request:
        payload = {"actorAddress": checked_address(address)}
        return self._request(
            "hub:unregister", payload, now_ms, sender=address, answer="hub:unregistered"
        )

    def tell(
        self,
        to: str,
        type: str,
        payload: Any,
        now_ms: int,
        *,
        ttl_ms: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        sender: str | None = None,
    ) -> Request:
        return self._send(
            to, type, payload, now_ms, pattern=TELL, ttl_ms=ttl_ms, metadata=metadata, sender=sender
        )

    def ask(
        self,
        to: str,
        type: str,
        payload: Any,
        now_ms: int,
        *,
        ttl_ms: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        sender: str | None = None,
        timeout_s: float,
        attempts: int,
    ) -> Request:
        if timeout_s <= 0 or attempts < 1:
            raise ValueError("an ask needs a timeout above 0 s and at least one attempt")
        return self._send(
            to,
            type,
            payload,
            now_ms,
            pattern=ASK,
            ttl_ms=ttl_ms,
            metadata=metadata,
            sender=sender,
            answer="hub:delivery_ack",
            timeout_s=timeout_s,
            attempts=attempts,
        )

    def publish(
        self, topic: str, type: str, payload: Any, now_ms: int, *, sender: str | None = None
    ) -> Request:
        content = {"topic": checked_topic(topic), "type": checked_type(type), "data": payload}
        return self._request(
            "hub:publish",
            content,
            now_ms,
            kind=Kind.TRAFFIC,
            sender=sender,
            subject=f"{type} on topic {topic}",
            answer="hub:published",
            # A plain topic keeps nothing, so the hub could not recognise the second copy.
            is_repeatable=False,
        )

    def broadcast(
        self,
        type: str,
        payload: Any,
        now_ms: int,
        *,
        capability: str | None = None,
        exclude_self: bool = False,
        sender: str | None = None,
    ) -> Request:
        content = {"type": checked_type(type), "data": payload, "excludeSelf": exclude_self}
        return self._request(
            "hub:broadcast",
            content,
            now_ms,
            kind=Kind.TRAFFIC,
            sender=sender,
            metadata={} if capability is None else {"targetCapability": capability},
            subject=f"broadcast of {type}",
            answer="hub:broadcast_ack",
        )

    def subscribe(self, topic: str, now_ms: int, *, sender: str | None = None) -> Request:
        payload = {"topic": checked_subscription(topic)}
        return self._request(
            "hub:subscribe", payload, now_ms, sender=sender, answer="hub:subscribed"
        )

    def unsubscribe(self, topic: str, now_ms: int, *, sender: str | None = None) -> Request:
        payload = {"topic": checked_subscription(topic)}
        return self._request(
            "hub:unsubscribe", payload, now_ms, sender=sender, answer="hub:unsubscribed"
        )

    def discover(self, pattern: str, capability: str | None, limit: int, now_ms: int) -> Request:
        if not pattern:
            raise ValueError("a pattern such as `demo/*` is needed; `*` matches everybody")
        payload: dict[str, Any] = {"pattern": pattern, "limit": limit}
        if capability is not None:
            payload["capability"] = capability
        return self._request("hub:discover", payload, now_ms, answer="hub:discovered")

    def list_actors(self, offset: int, limit: int, now_ms: int) -> Request:
        payload = {"offset": offset, "limit": limit}
        return self._request("hub:list_actors", payload, now_ms, answer="hub:actor_list")

    def queue_stats(self, now_ms: int) -> Request:
        return self._request("hub:queue_stats", {}, now_ms, answer="hub:queue_stats_response")

    def metrics(self, now_ms: int) -> Request:
        return self._request("hub:metrics", {}, now_ms, answer="hub:metrics_response")

    def refresh_token(self, token: str, now_ms: int) -> Request:
        return self._request(
            "hub:refresh_token", {"token": token}, now_ms, answer="hub:token_refreshed"
        )

    def _send(
        self,
        to: str,
        type: str,
        payload: Any,
        now_ms: int,
        *,
        pattern: str,
        ttl_ms: float | None,
        metadata: Mapping[str, Any] | None,
        sender: str | None,
        answer: str | None = None,
        timeout_s: float = REQUEST_S,
        attempts: int = 1,
    ) -> Request:
        if ttl_ms is not None and ttl_ms <= 0:
            raise ValueError("a lifetime must be longer than 0 ms; leave it out for none")
        content = {"to": checked_address(to), "type": checked_type(type), "data": payload}
        return self._request(
            "hub:send",
            content,
            now_ms,
            kind=Kind.TELL if pattern == TELL else Kind.TRAFFIC,
            pattern=pattern,
            sender=sender,
            target=to,
            metadata=metadata,
            ttl_ms=ttl_ms,
            subject=f"{type} to {to}",
            answer=answer,
            timeout_s=timeout_s,
            attempts=attempts,
        )

    def _request(
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
        is_repeatable: bool = True,
        timeout_s: float = REQUEST_S,
        attempts: int = 1,
    ) -> Request:
        message_id = message_id or self._ids.next().decode()
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
            is_repeatable=is_repeatable,
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
