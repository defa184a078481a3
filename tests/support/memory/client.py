"""A client, or its protocol alone, with the hub's end of its wire in the hands of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import signalhub
from signalhub import Client, Reconnect
from signalhub.client.protocol.effects import (
    Answered,
    Drop,
    Effect,
    Failed,
    Instant,
    Ready,
    SendFrame,
)
from signalhub.client.protocol.frame import FrameWriter, Payload, Request
from signalhub.client.protocol.protocol import Protocol
from signalhub.client.protocol.restore import Membership, Seat, SeatKey
from signalhub.client.requests import Ask, Publish, Register, Subscribe, Tell
from signalhub.clock import Ids
from signalhub.testing import FakeClock, Peer, ScriptedHub
from signalhub.wire.errors import ClientError
from tests.support.memory.stories import Stage

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
HUB = "@(cloudflare/signal-hub)"

QUICK = Reconnect(first_jitter_s=0.0, base_s=0.01)

E = TypeVar("E", bound=Effect)
T = TypeVar("T")


def connecting(url: str, **options: Any) -> asyncio.Future[Client]:
    """A client on its way to a hub; it reconnects without a pause."""
    return asyncio.ensure_future(signalhub.connect(url, ALICE, **({"reconnect": QUICK} | options)))


@asynccontextmanager
async def conversation(**options: Any) -> AsyncIterator[tuple[ScriptedHub, Peer, Client]]:
    """A client that is connected to a scripted hub."""
    async with ScriptedHub() as hub:
        opening = connecting(hub.url, **options)
        peer = await reconnected(hub)
        async with await opening as client:
            yield hub, peer, client


async def reconnected(hub: ScriptedHub) -> Peer:
    """The client's next connection, welcomed and registered."""
    peer = await hub.accept()
    await peer.welcome()
    return peer


async def exchange(
    call: Awaitable[T], peer: Peer, type: str, answer: str, facts: Any = None
) -> tuple[dict[str, Any], T]:
    """Answer the request of a call; the request, and what the caller gets."""
    calling = asyncio.ensure_future(call)
    request = await peer.receive(type)
    peer.answer(request, answer, facts)
    return request, await calling


async def caught_up(peer: Peer, client: Client) -> None:
    """Wait until the client has read everything the hub said."""
    await exchange(client.ping(), peer, "hub:heartbeat", "hub:heartbeat_ack")


class Scene(Stage):
    """Performs nothing: what the protocol wants is kept to be looked at.

    Stories know a request by its payload, which is written in the same words every time.
    """

    def __init__(self, lease_s: float | None = None) -> None:
        self.clock = FakeClock()
        self.membership = Membership()
        self.membership.registered(Register(ALICE, ["chat"], {}, lease_s))
        self.protocol = Protocol(FrameWriter(ALICE, Ids("0" * 20)), self.membership, self.now)
        self.effects: list[Effect] = []
        self._frames = 0
        self._requests: dict[Any, Request] = {}
        self._written: dict[Any, dict[str, Any]] = {}

    @property
    def now(self) -> Instant:
        return Instant.of(self.clock)

    def of(self, kind: type[E]) -> list[E]:
        """All effects of a kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self) -> list[dict[str, Any]]:
        """What was written since the last call."""
        frames = [json.loads(effect.frame) for effect in self.of(SendFrame)]
        fresh = frames[self._frames :]
        self._frames = len(frames)
        return fresh

    def sent_one(self, type: str) -> dict[str, Any]:
        """The only message written since the last call."""
        (message,) = self.sent()
        assert message["type"] == type
        return message

    def wrote(self, *payloads: Any) -> None:
        """These messages were written since the last look; control messages do not count."""
        frames = [frame for frame in self.sent() if "data" in (frame["payload"] or {})]
        assert [frame["payload"]["data"] for frame in frames] == [*payloads]
        for frame in frames:
            first = self._written.setdefault(frame["payload"]["data"], frame)
            assert frame == first, "a repeat has the same id"

    def error_of(self, request: Request) -> ClientError:
        """How a request failed."""
        (failed,) = [effect for effect in self.of(Failed) if effect.id == request.id]
        return failed.error

    def done(self, *payloads: Any) -> None:
        """These requests are answered, each once, and no others."""
        names = {request.id: payload for payload, request in self._requests.items()}
        assert [names[effect.id] for effect in self.of(Answered)] == [*payloads]

    def failed(self, count: int) -> None:
        assert len(self.of(Failed)) == count

    def fails(self, payload: Any, kind: str, text: str = "") -> None:
        error = self.error_of(self._requests[payload])
        assert type(error).__name__ == kind
        assert text in str(error)

    def submit(self, payload: Payload[Any], **options: Any) -> Request:
        request = self.protocol.frames.request(payload, self.now.wall_ms, **options)
        self.effects += self.protocol.submit(request, self.now)
        return request

    def _named(self, payload: Any, request: Request) -> Request:
        if isinstance(payload, int | str):
            self._requests[payload] = request
        return request

    def tell(self, payload: Any = None, to: str = BOB) -> Request:
        return self._named(payload, self.submit(Tell(to, "note", payload)))

    def ask(self, payload: Any = None, timeout_s: float = 30.0, attempts: int = 3) -> Request:
        options = {"timeout_s": timeout_s, "attempts": attempts}
        return self._named(payload, self.submit(Ask(BOB, "task", payload), **options))

    def publish(self, payload: Any = None, *, durable: bool = False, **options: Any) -> Request:
        request = self.submit(Publish("news", "item", payload, durable), **options)
        return self._named(payload, request)

    def durable(self, payload: Any, timeout_s: float = 30.0, attempts: int = 3) -> None:
        """Publish to a durable topic."""
        self.publish(payload, durable=True, timeout_s=timeout_s, attempts=attempts)

    def forget(self, payload: Any) -> None:
        self.protocol.forget(self._requests[payload].id)

    def consume(self, topic: str = "orders", name: str = "billing", **facts: Any) -> Seat:
        """Join a durable subscription, and let the hub grant it."""
        seat = Seat(SeatKey(topic, name), {"mode": "exclusive", "from": "earliest"}, ALICE)
        self.membership.seated(seat)
        request = seat.request(self.protocol.frames, self.now.wall_ms)
        self.effects += self.protocol.submit(request, self.now, seat=seat)
        self.hear("hub:subscribed", {"epoch": "e1"} | facts, self.sent_one("hub:subscribe"))
        return seat

    def subscribe(self, topic: str) -> None:
        """Subscribe, and let the hub grant it."""
        request = self.protocol.frames.request(Subscribe(topic), self.now.wall_ms)
        self.effects += self.protocol.submit(
            request, self.now, lambda: self.membership.subscribed(ALICE, topic)
        )
        self.hear("hub:subscribed", {"topic": topic}, self.sent_one("hub:subscribe"))

    def hear(
        self,
        type: str,
        payload: Any = None,
        request: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> None:
        """The hub says something, perhaps in answer to a request."""
        message = {
            "id": "h-1",
            "from": HUB,
            "to": ALICE,
            "type": type,
            "payload": payload,
            "pattern": "tell",
            "correlationId": request["id"] if request else None,
            "timestamp": self.now.wall_ms,
            "metadata": {},
            "ttl": None,
            "signature": None,
        }
        self.hear_raw(json.dumps(message | members).encode())

    def hear_raw(self, frame: bytes) -> None:
        self.effects += self.protocol.received(frame, self.now)

    def answer(self, payload: Any) -> None:
        """The hub accepts an ask or a publish."""
        frame = self._written[payload]
        kind = "hub:published" if frame["type"] == "hub:publish" else "hub:delivery_ack"
        self.hear(kind, {"messageId": frame["id"]}, frame)

    def refuse(self, request: Any, code: str, retry_after_ms: int = 0, **facts: Any) -> None:
        """The hub refuses a request, given as its frame or by its payload."""
        frame = request if isinstance(request, dict) else self._written[request]
        known: dict[str, Any] = {"code": code, "message": f"because of {code}"}
        if retry_after_ms:
            known["details"] = {"retryAfterMs": retry_after_ms}
        self.hear("hub:error", known | facts, frame)

    def pause(self, target: str | None = None) -> None:
        self.hear("hub:pause", {"target": target} if target else {"reason": "busy"})

    def resume(self, target: str | None = None) -> None:
        self.hear("hub:resume", {"target": target} if target else {})

    def congest(self) -> None:
        self.effects += self.protocol.congested(True, self.now)

    def clear(self) -> None:
        self.effects += self.protocol.congested(False, self.now)

    def read(self, is_reading: bool) -> None:
        """The program is too slow, and what the hub says is not read; or it is read again."""
        self.effects += self.protocol.reading(is_reading, self.now)

    def time(self, seconds: float | str) -> None:
        """Let time pass as a punctual shell would: every wake-up is obeyed at its moment."""
        end_s = self.clock.mono_s() + float(seconds)
        for _ in range(10_000):
            wake_at_s = self.protocol.wake_at_s(self.clock.mono_s())
            if wake_at_s is None or wake_at_s > end_s:
                break
            self.clock.advance(max(0.0, wake_at_s - self.clock.mono_s()))
            self.effects += self.protocol.tick(self.now)
            if self.of(Drop) and self.of(Drop)[-1] is self.effects[-1]:
                return
        self.clock.advance(max(0.0, end_s - self.clock.mono_s()))
        self.effects += self.protocol.tick(self.now)

    def open(self) -> dict[str, Any]:
        """A link opens; the hello."""
        self.effects += self.protocol.opened(None, self.now)
        return self.sent_one("hub:connect")

    def lose(self, reason: str = "cut") -> None:
        self.effects += self.protocol.lost(reason, self.now)

    def leave(self) -> None:
        self.effects += self.protocol.leave(self.now)

    def greet(self, **facts: Any) -> list[dict[str, Any]]:
        """A link opens and the hub accepts the hello; what the client wants to restore."""
        hello = self.open()
        self.hear("hub:connected", {"sessionId": "s-1", "capabilities": {}} | facts, hello)
        return self.sent()

    def connect(self, **facts: Any) -> None:
        """From nothing to ready."""
        restoring = self.greet(**facts)
        ready = len(self.of(Ready))
        for _ in range(1_000):
            for request in restoring:
                self.hear(_GRANTS[request["type"]], request["payload"], request)
            if len(self.of(Ready)) > ready:
                return
            restoring = self.sent()
        raise AssertionError("never became ready")


_GRANTS = {"hub:register": "hub:registered", "hub:subscribe": "hub:subscribed"}
