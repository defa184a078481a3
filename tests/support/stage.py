"""A running hub with the peers of a test, in memory or over sockets.

What the hub does on the wire is tested against a stage. In `make test` that is one in memory
(`memory/stage.py`); in `make soak`, and where a test is about sockets, a real hub and TCP
(`socket/stage.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from signalhub.clock import Clock
from signalhub.testing import FakeClock
from tests.support.peer import Peer

P = TypeVar("P", bound=Peer)
P_co = TypeVar("P_co", bound=Peer, covariant=True)


class HeldDisk(Protocol):
    """A disk on which nothing becomes durable while it is held."""

    def hold(self) -> None:
        """From now on every write waits."""

    def release(self) -> None:
        """Let all writes continue."""

    async def wait(self) -> None:
        """Wait until a write is held."""


class StageOf(ABC, Generic[P_co]):
    """One hub and its visitors."""

    clock: Clock

    @abstractmethod
    async def dial(self) -> P_co:
        """A connection before its hello."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and let the hub notice."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the hub as an operator does."""

    @abstractmethod
    async def kill(self) -> None:
        """End the hub without warning, if it is one that can be killed."""

    @abstractmethod
    async def start(self) -> None:
        """Start it again on its data."""

    @abstractmethod
    def held_disk(self) -> AbstractContextManager[HeldDisk]:
        """Let the test decide when the disk writes."""

    async def restart(self, how: str = "stop") -> None:
        """End the hub, by `stop` or by `kill`, and start it again on its data."""
        await (self.kill() if how == "kill" else self.stop())
        await self.start()

    async def connect(self, sender: str | None = None, **metadata: Any) -> P_co:
        """A session without a registration."""
        return await greeted(await self.dial(), sender, **metadata)

    async def join(self, address: str, *capabilities: str) -> P_co:
        """A session that has registered an address."""
        return await registered(await self.connect(), address, *capabilities)


Stage: TypeAlias = StageOf[Peer]


class RunStage(Protocol):
    """Starts a hub with these settings, the defaults otherwise.

    With a clock given, time stands still unless the test moves it; without one it passes by itself.
    """

    def __call__(
        self, clock: FakeClock | None = None, **settings: Any
    ) -> AbstractAsyncContextManager[Stage]: ...


async def greeted(peer: P, sender: str | None = None, **metadata: Any) -> P:
    """The peer after its `hub:connect`."""
    if sender is not None:
        peer.sender = sender
    reply = await peer.connect(**metadata)
    assert reply["type"] == "hub:connected", reply
    return peer


async def registered(peer: P, address: str, *capabilities: str) -> P:
    """The peer after its `hub:register`."""
    reply = await peer.register(address, *capabilities)
    assert reply["type"] == "hub:registered", reply
    return peer


async def addresses(peer: Peer, pattern: str = "*", **payload: Any) -> list[str]:
    """What discovery finds."""
    reply = await peer.ask("hub:discover", {"pattern": pattern} | payload)
    assert reply["type"] == "hub:discovered", reply
    return [actor["address"] for actor in reply["payload"]["actors"]]


async def until_gone(peer: Peer, address: str) -> None:
    """Wait until discovery does not find the address any more."""
    async for _ in peer.polls():
        if address not in await addresses(peer, address):
            return


def numbered(prefix: str, count: int) -> Iterator[str]:
    """Addresses `@(prefix/0)` and on."""
    return (f"@({prefix}/{index})" for index in range(count))
