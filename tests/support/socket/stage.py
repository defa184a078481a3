"""A running hub with the peers a test puts on it; leaving the block sends them all away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from signalhub.clock import Clock, SystemClock
from signalhub.testing import HubProcess, RunningHub, run_hub, spawn_hub
from tests.support.socket import peer as peers
from tests.support.socket.peer import PATIENCE_S, Envelope, Peer, Response

# Enough to make a socket that is not read from fill up after a few kilobytes.
SMALL_BUFFER = 4096
LOOK_AGAIN_S = 0.01


class Stage:
    """One hub and its visitors."""

    def __init__(self, hub: RunningHub | HubProcess, clock: Clock) -> None:
        self._hub = hub
        self.clock = clock
        self._peers: list[Peer] = []

    @property
    def port(self) -> int:
        return self._hub.port

    async def call(self, host: str = "127.0.0.1", receive_bytes: int = 0) -> Peer:
        """A bare TCP connection."""
        peer = await peers.dial(self.port, self.clock.now_ms, host, receive_bytes)
        self._peers.append(peer)
        return peer

    async def dial(
        self,
        path: str = "/ws",
        headers: Mapping[str, str] | None = None,
        *,
        receive_bytes: int = 0,
    ) -> Peer:
        """A WebSocket that has not said anything yet."""
        peer = await self.call(receive_bytes=receive_bytes)
        await peer.upgrade(path, headers)
        return peer

    async def connect(
        self, sender: str | None = None, *, receive_bytes: int = 0, **metadata: Any
    ) -> Peer:
        """A session without a registration."""
        peer = await self.dial(receive_bytes=receive_bytes)
        if sender is not None:
            peer.sender = sender
        reply = await peer.connect(**metadata)
        assert reply["type"] == "hub:connected", reply
        return peer

    async def join(self, address: str, *capabilities: str, receive_bytes: int = 0) -> Peer:
        """A session that has registered an address."""
        peer = await self.connect(receive_bytes=receive_bytes)
        reply = await peer.register(address, *capabilities)
        assert reply["type"] == "hub:registered", reply
        return peer

    async def get(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Response:
        """One HTTP request."""
        peer = await self.call()
        given = {"Host": "hub", "Connection": "close"} | dict(headers or {})
        peer.write(peers.request(method, path, given))
        return await peer.response()

    async def health(self) -> dict[str, Any]:
        """The hub's own opinion of itself."""
        answer: dict[str, Any] = json.loads((await self.get("/health")).body)
        return answer

    async def metric(self, name: str) -> float:
        """One number from `/metrics`."""
        page = (await self.get("/metrics")).body.decode()
        found = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def send_everybody_away(self) -> None:
        for peer in self._peers:
            peer.abort()
        self._peers.clear()


class InProcess(Stage):
    """A hub in the test's own loop; it can be stopped and started again on the same data."""

    def __init__(self, hub: RunningHub) -> None:
        super().__init__(hub, hub.clock)
        self.hub = hub


class Spawned(Stage):
    """A hub in a process of its own, to be killed."""

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub, SystemClock())
        self.hub = hub


@asynccontextmanager
async def run_stage(clock: Clock | None = None, **settings: Any) -> AsyncIterator[InProcess]:
    """A hub with these settings, the defaults otherwise."""
    async with run_hub(clock, **settings) as hub:
        stage = InProcess(hub)
        try:
            yield stage
        finally:
            stage.send_everybody_away()


@asynccontextmanager
async def spawn_stage(**settings: Any) -> AsyncIterator[Spawned]:
    """The same in a process of its own."""
    async with spawn_hub(**settings) as hub:
        stage = Spawned(hub)
        try:
            yield stage
        finally:
            stage.send_everybody_away()


async def addresses(peer: Peer, pattern: str = "*", **payload: Any) -> list[str]:
    """What discovery finds."""
    reply = await peer.ask("hub:discover", {"pattern": pattern} | payload)
    assert reply["type"] == "hub:discovered", reply
    return [actor["address"] for actor in reply["payload"]["actors"]]


async def until_gone(peer: Peer, address: str) -> None:
    """Wait until discovery does not find the address any more."""
    async with asyncio.timeout(PATIENCE_S):
        while address in await addresses(peer, address):
            pass


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for something that announces itself to nobody."""
    for _ in range(int(PATIENCE_S / LOOK_AGAIN_S)):
        if is_so():
            return
        await asyncio.sleep(LOOK_AGAIN_S)
    raise TimeoutError


def code_of(reply: Envelope) -> str:
    """The code of an error, after checking that it is one with all five members."""
    assert reply["type"] == "hub:error", reply
    payload = reply["payload"]
    assert set(payload) == {"code", "message", "resolution", "details", "retryable"}, payload
    assert isinstance(payload["message"], str)
    assert isinstance(payload["resolution"], str)
    assert payload["message"]
    assert payload["resolution"]
    assert isinstance(payload["details"], dict)
    assert isinstance(payload["retryable"], bool)
    code: str = payload["code"]
    return code


def numbered(prefix: str, count: int) -> Iterator[str]:
    """Addresses `@(prefix/0)` and on."""
    return (f"@({prefix}/{index})" for index in range(count))
