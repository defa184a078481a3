"""A scripted WebSocket server, for behaviour that a real hub never shows."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from signalhub.wire.names import HUB_ADDRESS

PATIENCE_S = 5.0


class Peer(WSListener):
    """The hub's end of one connection, controlled by the test.

    Only a close is answered automatically, while `is_polite` is true.
    So a client sends 512 tells at most before the test answers its `hub:heartbeat`.
    """

    def __init__(self, ids: itertools.count[int]) -> None:
        self.is_polite = True
        self.close_code: int | None = None
        self.gone = asyncio.Event()
        self._ids = ids
        self._transport: WSTransport
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(self, type: str | None = None) -> dict[str, Any]:
        """The client's next message, which must have this type if one is given."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self._heard.get()
        assert type is None or message["type"] == type, f"expected {type}, got {message}"
        return message

    def has_heard_nothing(self) -> bool:
        return self._heard.empty()

    def send(
        self,
        type: str,
        payload: Any = None,
        *,
        correlation_id: str | None = None,
        to: str = "@(unknown/unknown)",
        sender: str = HUB_ADDRESS,
        metadata: Mapping[str, Any] | None = None,
        message_id: str | None = None,
    ) -> None:
        """Send a message."""
        message = {
            "id": message_id or f"hub-{next(self._ids)}",
            "from": sender,
            "to": to,
            "type": type,
            "payload": payload,
            "pattern": "tell",
            "correlationId": correlation_id,
            "timestamp": 1_760_000_000_000,
            "metadata": metadata or {},
            "ttl": None,
            "signature": None,
        }
        self.send_raw(json.dumps(message).encode())

    def send_raw(self, text: bytes, *, fin: bool = True, is_continuation: bool = False) -> None:
        """Send one raw frame."""
        kind = WSMsgType.CONTINUATION if is_continuation else WSMsgType.TEXT
        self._transport.send(kind, text, fin)

    def ping(self, payload: bytes) -> None:
        self._transport.send_ping(payload)

    def answer(self, request: Mapping[str, Any], type: str, payload: Any = None) -> None:
        """Answer one of the client's messages."""
        self.send(type, payload, correlation_id=request["id"], to=request["from"])

    def refuse(
        self, request: Mapping[str, Any], code: str, *, retryable: bool = False, **details: Any
    ) -> None:
        """Answer with `hub:error`."""
        payload = {
            "code": code,
            "message": f"refused as {code}",
            "resolution": "ask the test",
            "retryable": retryable,
            "details": details,
        }
        self.answer(request, "hub:error", payload)

    async def welcome(self, **offers: Any) -> dict[str, Any]:
        """Answer `hub:connect` and the first `hub:register`; returns the latter."""
        hello = await self.receive("hub:connect")
        facts = {
            "sessionId": f"session-{next(self._ids)}",
            "serverVersion": "0.1.0",
            "maxMessageSize": 2**20,
            "heartbeatInterval": 100_000,
            "capabilities": {},
        }
        self.answer(hello, "hub:connected", facts | offers)
        register = await self.receive("hub:register")
        self.grant(register)
        return register

    def grant(self, register: Mapping[str, Any]) -> None:
        """Answer `hub:register`."""
        address = register["payload"]["actorAddress"]
        self.answer(register, "hub:registered", {"actorAddress": address, "version": 1})

    async def seat(self, **facts: Any) -> dict[str, Any]:
        """Grant the next `hub:subscribe` of a durable subscription; returns it."""
        request = await self.receive("hub:subscribe")
        asked = request["payload"]
        place = {name: asked[name] for name in ("topic", "subscription", "mode")}
        known = {
            "subscriptionId": f"seat-{next(self._ids)}",
            "epoch": "e1",
            "next": 1,
            "head": 0,
            "lag": 0,
            "recovered": True,
        }
        self.answer(request, "hub:subscribed", place | known | facts)
        return request

    def deliver(
        self,
        seq: int,
        payload: Any = None,
        *,
        topic: str = "orders",
        subscription: str = "billing",
        type: str = "order",
        epoch: str = "e1",
        attempt: int = 1,
        **metadata: Any,
    ) -> None:
        """Send a copy of a durable subscription; all copies of a message share its id."""
        delivery = {
            "subscription": subscription,
            "epoch": epoch,
            "seq": seq,
            "attempt": attempt,
            "redelivered": attempt > 1,
            "publishedAt": 1_760_000_000_000,
            "id": f"1.{seq}.{attempt}",
        }
        self.send(
            type,
            payload,
            sender="@(demo/shop)",
            message_id=f"{topic}-{epoch}-{seq}",
            metadata={"topic": topic, "publication": True, "delivery": delivery} | metadata,
        )

    def mail(self, address: str, seq: int, payload: Any = None, *, attempt: int = 1) -> None:
        """Send a copy from the mailbox of an address, likewise."""
        delivery = {
            "stream": address,
            "epoch": "m1",
            "seq": seq,
            "attempt": attempt,
            "redelivered": attempt > 1,
        }
        self.send(
            "task",
            payload,
            to=address,
            sender="@(demo/boss)",
            message_id=f"mail-{seq}",
            metadata={"delivery": delivery},
        )

    def close(self, code: int, reason: str = "") -> None:
        """Close with a close frame."""
        self._transport.send_close(WSCloseCode(code), reason)

    def abort(self) -> None:
        """Disconnect without a close frame."""
        self._transport.disconnect(False)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            message = json.loads(frame.get_payload_as_bytes())
            self._heard.put_nowait(message)
            if message["type"] == "hub:disconnect" and self.is_polite:
                self.answer(message, "hub:disconnect", {"acknowledged": True})
        elif frame.msg_type == WSMsgType.PONG:
            self._heard.put_nowait({"type": "pong", "payload": frame.get_payload_as_bytes()})
        elif frame.msg_type == WSMsgType.CLOSE:
            self.close_code = int(frame.get_close_code().value)
            if not transport.is_close_frame_sent:
                transport.send_close(WSCloseCode.OK)
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.gone.set()


class ScriptedHub:
    """Listens on the loopback; `accept` returns its connections one after another.

    While `refusal` is set, a status and headers, upgrades are refused with it.
    """

    def __init__(self, ssl: SSLContext | None = None) -> None:
        self.port = 0
        self.upgrades = 0
        self.refusal: tuple[int, dict[str, str]] | None = None
        self.refused = asyncio.Event()
        self._ids = itertools.count(1)
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._all: list[Peer] = []
        self._ssl = ssl
        self._server: asyncio.Server

    @property
    def url(self) -> str:
        return f"{'wss' if self._ssl else 'ws'}://127.0.0.1:{self.port}/ws"

    async def accept(self) -> Peer:
        """The next connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._peers.get()

    async def __aenter__(self) -> Self:
        self._server = await ws_create_server(self._upgrade, "127.0.0.1", 0, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for peer in self._all:
            peer.abort()
        await asyncio.gather(*(peer.gone.wait() for peer in self._all))

    def _upgrade(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        self.upgrades += 1
        if self.refusal is not None:
            self.refused.set()
            status, headers = self.refusal
            response = WSUpgradeResponse.create_error_response(status, b"no", headers)
            return WSUpgradeResponseWithListener(response, None)
        peer = Peer(self._ids)
        self._all.append(peer)
        self._peers.put_nowait(peer)
        return peer
