"""What a client can say to a hub, as frames ready to be written.

Arguments are checked here, before anything is sent: a bad address or name is a `ValueError`, a
payload that is no JSON a `TypeError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from signalhub.client.arguments import (
    checked_address,
    checked_capabilities,
    checked_headers,
    checked_message_id,
    checked_subscription,
    checked_topic,
    checked_type,
    epoch_ms,
)
from signalhub.client.protocol.frame import REQUEST_S, FrameWriter, Kind, Request
from signalhub.client.stream_requests import StreamComposer
from signalhub.clock import Ids
from signalhub.wire.envelope import ASK, PROTOCOL_VERSION, TELL

HELLO_TTL_MS = 5_000
GOODBYE_TTL_MS = 500

_CONNECT_CAPABILITIES = ["send", "receive"]


class Composer:
    """Writes the requests of one client; `sender` is its address unless said otherwise.

    A client that acknowledges says so in its hello: it settles itself what comes from mailboxes.
    """

    def __init__(self, sender: str, ids: Ids, *, acknowledges: bool = False) -> None:
        self.acknowledges = acknowledges
        self._frames = FrameWriter(sender, ids)
        self.streams = StreamComposer(self._frames)

    def hello(self, token: str | None, now_ms: int) -> Request:
        """The first frame on a new connection, from an address nobody else has."""
        message_id = self._frames.new_id()
        metadata: dict[str, Any] = {
            "protocolVersion": PROTOCOL_VERSION,
            "capabilities": [*_CONNECT_CAPABILITIES, *(["ack"] if self.acknowledges else [])],
            "clientMetadata": {"platform": "python"},
        }
        if token is not None:
            metadata["authToken"] = token
        return self._frames.request(
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
        return self._frames.request(
            "hub:disconnect",
            None,
            now_ms,
            kind=Kind.EXEMPT,
            ttl_ms=GOODBYE_TTL_MS,
            answer="hub:disconnect",
        )

    def heartbeat(self, now_ms: int) -> Request:
        return self._frames.request(
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
        *,
        durable: bool | None = None,
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
        if durable is not None:
            payload["durable"] = durable
        return self._frames.request(
            "hub:register", payload, now_ms, sender=address, answer="hub:registered"
        )

    def unregister(self, address: str, now_ms: int) -> Request:
        payload = {"actorAddress": checked_address(address)}
        return self._frames.request(
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
        message_id: str | None = None,
        fences: Mapping[str, int] | None = None,
        timeout_s: float,
        attempts: int,
    ) -> Request:
        _check_attempts("an ask", timeout_s, attempts)
        return self._send(
            to,
            type,
            payload,
            now_ms,
            pattern=ASK,
            ttl_ms=ttl_ms,
            metadata=metadata,
            sender=sender,
            message_id=checked_message_id(message_id),
            fences=fences,
            answer="hub:delivery_ack",
            timeout_s=timeout_s,
            attempts=attempts,
        )

    def publish(
        self,
        topic: str,
        type: str,
        payload: Any,
        now_ms: int,
        *,
        durable: bool = False,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: float | datetime | None = None,
        ttl_ms: float | None = None,
        sender: str | None = None,
        message_id: str | None = None,
        timeout_s: float = REQUEST_S,
        attempts: int = 1,
    ) -> Request:
        _check_attempts("a publish", timeout_s, attempts)
        content: dict[str, Any] = {
            "topic": checked_topic(topic),
            "type": checked_type(type),
            "data": payload,
        }
        if durable:
            content["durable"] = True
        if key is not None:
            content["key"] = key
        if headers is not None:
            content["headers"] = checked_headers(headers)
        if deliver_at is not None:
            content["deliverAt"] = epoch_ms(deliver_at)
        return self._frames.request(
            "hub:publish",
            content,
            now_ms,
            kind=Kind.TRAFFIC,
            message_id=checked_message_id(message_id),
            sender=sender,
            ttl_ms=_checked_ttl(ttl_ms),
            subject=f"{type} on topic {topic}",
            answer="hub:published",
            # A plain topic keeps nothing, so the hub could not recognise the second copy.
            is_repeatable=durable,
            timeout_s=timeout_s,
            attempts=attempts if durable else 1,
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
        return self._frames.request(
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
        return self._frames.request(
            "hub:subscribe", payload, now_ms, sender=sender, answer="hub:subscribed"
        )

    def unsubscribe(self, topic: str, now_ms: int, *, sender: str | None = None) -> Request:
        payload = {"topic": checked_subscription(topic)}
        return self._frames.request(
            "hub:unsubscribe", payload, now_ms, sender=sender, answer="hub:unsubscribed"
        )

    def discover(
        self,
        pattern: str,
        capability: str | None,
        limit: int,
        now_ms: int,
        *,
        include_away: bool = False,
    ) -> Request:
        if not pattern:
            raise ValueError("a pattern such as `demo/*` is needed; `*` matches everybody")
        payload: dict[str, Any] = {"pattern": pattern, "limit": limit}
        if capability is not None:
            payload["capability"] = capability
        if include_away:
            payload["includeAway"] = True
        return self._frames.request("hub:discover", payload, now_ms, answer="hub:discovered")

    def list_actors(self, offset: int, limit: int, now_ms: int) -> Request:
        payload = {"offset": offset, "limit": limit}
        return self._frames.request("hub:list_actors", payload, now_ms, answer="hub:actor_list")

    def queue_stats(self, now_ms: int) -> Request:
        return self._frames.request(
            "hub:queue_stats", {}, now_ms, answer="hub:queue_stats_response"
        )

    def metrics(self, now_ms: int) -> Request:
        return self._frames.request("hub:metrics", {}, now_ms, answer="hub:metrics_response")

    def refresh_token(self, token: str, now_ms: int) -> Request:
        return self._frames.request(
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
        message_id: str | None = None,
        fences: Mapping[str, int] | None = None,
        answer: str | None = None,
        timeout_s: float = REQUEST_S,
        attempts: int = 1,
    ) -> Request:
        content: dict[str, Any] = {"to": checked_address(to), "type": checked_type(type)}
        content["data"] = payload
        if fences:
            content["fences"] = dict(fences)
        return self._frames.request(
            "hub:send",
            content,
            now_ms,
            kind=Kind.TELL if pattern == TELL else Kind.TRAFFIC,
            pattern=pattern,
            message_id=message_id,
            sender=sender,
            target=to,
            metadata=metadata,
            ttl_ms=_checked_ttl(ttl_ms),
            subject=f"{type} to {to}",
            answer=answer,
            timeout_s=timeout_s,
            attempts=attempts,
        )


def _check_attempts(what: str, timeout_s: float, attempts: int) -> None:
    if timeout_s <= 0 or attempts < 1:
        raise ValueError(f"{what} needs a timeout above 0 s and at least one attempt")


def _checked_ttl(ttl_ms: float | None) -> float | None:
    if ttl_ms is not None and ttl_ms <= 0:
        raise ValueError("a lifetime must be longer than 0 ms; leave it out for none")
    return ttl_ms
