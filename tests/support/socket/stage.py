"""A running hub with the peers a test puts on it; leaving the block sends them all away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from signalhub.clock import Clock, SystemClock
from signalhub.testing import FakeClock, HubProcess, RunningHub, run_hub, spawn_hub
from tests.support.peer import PATIENCE_S, code_of
from tests.support.socket import peer as peers
from tests.support.socket.disk import held_disk
from tests.support.socket.peer import Peer, Response
from tests.support.stage import (
    HeldDisk,
    StageOf,
    addresses,
    greeted,
    numbered,
    registered,
    until_gone,
)

__all__ = [
    "LOOK_AGAIN_S",
    "SMALL_BUFFER",
    "InProcess",
    "Spawned",
    "Stage",
    "addresses",
    "code_of",
    "eventually",
    "numbered",
    "run_stage",
    "spawn_stage",
    "until_gone",
]

# Enough to make a socket that is not read from fill up after a few kilobytes.
SMALL_BUFFER = 4096
LOOK_AGAIN_S = 0.01


class Stage(StageOf[Peer]):
    """One hub and its visitors over TCP."""

    def __init__(self, hub: RunningHub | HubProcess, clock: Clock) -> None:
        self._hub = hub
        self.clock = clock
        self._peers: list[Peer] = []

    @property
    def port(self) -> int:
        return self._hub.port

    async def call(
        self, host: str = "127.0.0.1", receive_bytes: int = 0, source: str | None = None
    ) -> Peer:
        """A bare TCP connection."""
        peer = await peers.dial(self.port, self.clock.now_ms, host, receive_bytes, source)
        self._peers.append(peer)
        return peer

    async def dial(
        self,
        path: str = "/ws",
        headers: Mapping[str, str] | None = None,
        *,
        receive_bytes: int = 0,
        source: str | None = None,
    ) -> Peer:
        """A WebSocket that has not said anything yet."""
        peer = await self.call(receive_bytes=receive_bytes, source=source)
        await peer.upgrade(path, headers)
        return peer

    async def connect(
        self, sender: str | None = None, *, receive_bytes: int = 0, **metadata: Any
    ) -> Peer:
        peer = await self.dial(receive_bytes=receive_bytes)
        return await greeted(peer, sender, **metadata)

    async def join(self, address: str, *capabilities: str, receive_bytes: int = 0) -> Peer:
        peer = await self.connect(receive_bytes=receive_bytes)
        return await registered(peer, address, *capabilities)

    async def pass_time(self, seconds: float) -> None:
        """Wait; a clock that stands still is moved, and a message makes the hub look at it."""
        if not isinstance(self.clock, FakeClock):
            await asyncio.sleep(seconds)
            return
        self.clock.advance(seconds)
        await (await self.connect()).ask("hub:disconnect")

    async def stop(self) -> None:
        await self._hub.stop()

    async def start(self) -> None:
        await self._hub.start()

    def held_disk(self) -> AbstractContextManager[HeldDisk]:
        return held_disk()

    async def get(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Response:
        """One HTTP request."""
        peer = await self.call()
        given = {"Host": "localhost", "Connection": "close"} | dict(headers or {})
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

    async def kill(self) -> None:
        raise AssertionError("a hub in the test's own process cannot be killed")


class Spawned(Stage):
    """A hub in a process of its own, to be killed."""

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub, SystemClock())
        self.hub = hub

    async def stop(self) -> None:
        assert await self.hub.stop() == 0

    async def kill(self) -> None:
        await self.hub.kill()


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
async def spawn_stage(files_max: int | None = None, **settings: Any) -> AsyncIterator[Spawned]:
    """The same in a process of its own."""
    async with spawn_hub(files_max=files_max, **settings) as hub:
        stage = Spawned(hub)
        try:
            yield stage
        finally:
            stage.send_everybody_away()


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for something that announces itself to nobody."""
    for _ in range(int(PATIENCE_S / LOOK_AGAIN_S)):
        if is_so():
            return
        await asyncio.sleep(LOOK_AGAIN_S)
    raise TimeoutError
