"""A hub in memory with peers that speak the wire protocol, in virtual time.

Frames are handled the moment they are sent. A peer that waits for something lets the clock run to
whatever is due next, until it is there or ten seconds have passed; none of that takes real time.
On a clock given by the test, time stands still; only the hub's tick continues.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec

from signalhub.auth.tokens import Authenticator
from signalhub.clock import Ids
from signalhub.settings.model import Settings
from signalhub.testing import FakeClock
from tests.support import peer as peers
from tests.support.memory import shell as shells
from tests.support.memory.shell import MemoryShell
from tests.support.peer import PATIENCE_S, Closed
from tests.support.stage import StageOf

TICK_MS = 1_000
# How often other tasks of the test may run before time passes.
TURNS = 10
# The interval of a polling loop.
LOOK_AGAIN_MS = 10
PATIENCE_MS = int(PATIENCE_S * 1000)
GOING_AWAY = 1001


class FarEnd(shells.Peer):
    """The client's end of a connection: it keeps what comes as it is."""

    def __init__(self, shell: MemoryShell) -> None:
        super().__init__(shell)
        self.inbox: deque[bytes] = deque()

    def hear(self, frame: bytes) -> None:
        self.inbox.append(frame)


class Peer(peers.Peer):
    """A client without a socket."""

    def __init__(self, stage: MemoryStage) -> None:
        super().__init__(stage.clock.now_ms)
        self._stage = stage
        self._far = FarEnd(stage.shell)
        self._frame_bytes_max = stage.settings.frame_bytes_max
        stage.shell.peers.append(self._far)

    def send_text(self, text: str | bytes) -> None:
        payload = text.encode() if isinstance(text, str) else text
        assert len(payload) <= self._frame_bytes_max, "only a socket refuses frames of this size"
        if self.is_open:
            self._far.write(payload)

    async def receive_text(self) -> str:
        await self._stage.wait_until(lambda: bool(self._far.inbox) or not self.is_open)
        if not self._far.inbox:
            raise Closed(await self.until_closed())
        return self._far.inbox.popleft().decode()

    async def polls(self) -> AsyncIterator[None]:
        async for _ in self._stage.polls():
            yield

    @property
    def is_open(self) -> bool:
        return self._far.closed is None

    async def until_closed(self) -> int | None:
        await self._stage.wait_until(lambda: not self.is_open)
        assert self._far.closed is not None
        code, self.close_reason = self._far.closed
        self.close_code = None if code == 1006 else code
        return self.close_code

    def pause(self) -> None:
        self._far.block()

    def resume(self) -> None:
        self._far.read_on()

    def close(self, code: int = 1000) -> None:
        if self.is_open:
            self._far.closed = (code, "")
            self._far.drop()

    def hang_up(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self.is_open:
            self._far.drop()


class HeldDisk:
    """The log of the hub, which commits only when it is released."""

    def __init__(self, stage: MemoryStage) -> None:
        self._stage = stage

    def hold(self) -> None:
        self._stage.shell.engine.is_prompt = False

    def release(self) -> None:
        self._stage.shell.engine.is_prompt = True
        self._stage.shell.settle()

    async def wait(self) -> None:
        assert self._stage.shell.engine.pending


class MemoryStage(StageOf[Peer]):
    """One hub in memory; it can be stopped, killed and started again on the same data."""

    def __init__(self, settings: Settings, clock: FakeClock | None = None) -> None:
        self.settings = settings
        self._is_still = clock is not None
        self.clock: FakeClock = clock or FakeClock()
        self.shell = MemoryShell(
            settings,
            clock=self.clock,
            # Clients are told apart by their sessions, so every id must be unique.
            ids=Ids(),
            authenticator=Authenticator(settings.auth) if settings.auth.enabled else None,
        )
        self._is_running = True
        self._tick_at_ms = self.shell.now + TICK_MS

    async def dial(self) -> Peer:
        if not self._is_running:
            raise ConnectionRefusedError("the hub is stopped")
        return Peer(self)

    # The life of the hub.

    async def stop(self) -> None:
        shell = self.shell
        shell.perform(shell.hub.drain(shell.now))
        for peer in shell.peers:
            if peer.closed is None:
                peer.closed = (GOING_AWAY, "server_shutdown")
                shell.dropped(peer)
        shell.settle()
        shell.save_snapshot()
        self._is_running = False

    async def kill(self) -> None:
        for peer in self.shell.peers:
            peer.closed = peer.closed or (1006, "")
        self._is_running = False

    async def start(self) -> None:
        assert not self._is_running, "the hub is already running"
        self.shell = self.shell.restarted()
        self._is_running = True

    @contextmanager
    def held_disk(self) -> Iterator[HeldDisk]:
        disk = HeldDisk(self)
        yield disk
        disk.release()

    # Time.

    async def pass_time(self, seconds: float) -> None:
        until_ms = self.shell.now + round(seconds * 1000)
        while self.shell.now < until_ms:
            self._pass_until(until_ms)

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass until it is so, up to ten seconds."""
        for _ in range(TURNS):
            if is_so():
                return
            await asyncio.sleep(0)
        for _ in self._moments(PATIENCE_MS):
            if is_so():
                return
            await asyncio.sleep(0)
        raise TimeoutError

    async def polls(self) -> AsyncIterator[None]:
        """The moments at which a loop looks."""
        yield
        for _ in range(TURNS if self._is_still else PATIENCE_MS // LOOK_AGAIN_MS):
            next(self._moments(LOOK_AGAIN_MS))
            yield
        raise TimeoutError

    def _moments(self, ms: int) -> Iterator[None]:
        """What happens within this time, one thing after the other."""
        until_ms = self.shell.now + ms
        while not self._is_still and self.shell.now < until_ms:
            self._pass_until(until_ms)
            yield
        for _ in range(TURNS if self._is_still else 0):
            self.shell.settle()
            self.shell.tick()
            yield

    def _pass_until(self, until_ms: int) -> None:
        """Let time pass to what is due next, or to the given moment if nothing is."""
        if self._is_running:
            due_ms = min(self.shell.hub.next_dispatch_ms, self._tick_at_ms)
            until_ms = math.ceil(min(due_ms, until_ms))
        self.clock.advance(max(0, until_ms - self.shell.now) / 1000)
        if not self._is_running:
            return
        self.shell.settle()
        if self.shell.now >= self._tick_at_ms:
            self._tick_at_ms = self.shell.now + TICK_MS
            self.shell.tick()


@asynccontextmanager
async def run_stage(clock: FakeClock | None = None, **settings: Any) -> AsyncIterator[MemoryStage]:
    """A hub with these settings, the defaults otherwise."""
    yield MemoryStage(msgspec.convert(settings, Settings), clock)
