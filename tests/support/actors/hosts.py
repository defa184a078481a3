"""Hosts of durable actors around a real hub, and ways to look at them from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import apsw

from signalhub.actors import Actor, DurableConfig, wire
from signalhub.actors.api import payload
from signalhub.actors.api.operation import Operation
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import FILE, Host
from signalhub.actors.kernel.events import DeliveryArrived, Receipted
from signalhub.actors.move.leave import PART_BYTES
from signalhub.clock import Clock, SystemClock
from signalhub.testing import HostProcess
from signalhub.testing.local_actors import request_body
from tests.support.actors.examples import QUICK

PATIENCE_S = 20.0
PAUSE_S = 0.02
# So much of an actor takes three parts to move.
BALLAST_CHARS = 2 * PART_BYTES + 1
UNLIMITED: dict[str, Any] = {"message_rate": 0.0, "connection_rate": 0.0}


class Shifting(SystemClock):
    """A clock that can be set."""

    def __init__(self, shift_s: float = 0.0) -> None:
        self.shift_ms = round(shift_s * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def advance(self, seconds: float, *hosts: Host) -> None:
        """Time passes for those who have this clock; any event makes them look at it."""
        self.shift_ms += round(seconds * 1000)
        for host in hosts:
            host.kernel_events([Receipted("a batch nobody knows")])


@asynccontextmanager
async def hosting(
    url: str,
    folder: Path,
    name: str,
    *classes: type[Actor],
    clock: Clock | None = None,
    is_awaited: bool = True,
    replaces: bool = False,
    **config: Any,
) -> AsyncIterator[Host]:
    """A host that retries quickly, once the hub knows it."""
    chosen = DurableConfig(**(QUICK | config))
    async with Host(
        *classes,
        data=folder / name,
        url=url,
        name=name,
        config=chosen,
        clock=clock,
        replaces=replaces,
    ) as host:
        if is_awaited:
            async with asyncio.timeout(PATIENCE_S):
                await host.is_connected.wait()
        yield host


async def ask(url: str, target: str, operation: Operation, timeout_s: float = PATIENCE_S) -> Any:
    async with ActorHub(url) as outside:
        return await outside.ask(target, operation, timeout=timeout_s)


async def command(url: str, host: Host | HostProcess, name: str, **arguments: Any) -> Any:
    async with ActorHub(url) as outside:
        return await outside.command(host.address, name, arguments)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110  What happens elsewhere has no event here.
            await asyncio.sleep(PAUSE_S)


def stored(folder: Path, name: str, actor: str, key: str) -> Any:
    """A value of an actor's state, read beside its host."""
    connection = apsw.Connection(str(folder / name / FILE), flags=apsw.SQLITE_OPEN_READONLY)
    found = connection.execute(
        "SELECT value FROM state WHERE actor = ? AND key = ?", (actor, key)
    ).get
    connection.close()
    return None if found is None else payload.decode(found)


def rows_of(folder: Path, name: str, query: str) -> list[Any]:
    """What a host's store says, read beside it; the first column."""
    connection = apsw.Connection(str(folder / name / FILE), flags=apsw.SQLITE_OPEN_READONLY)
    rows = [row[0] for row in connection.execute(query)]
    connection.close()
    return rows


# Whoever sends something without the hub.
NOBODY = SimpleNamespace(sender="@(test/nobody)", payload={}, is_settleable=False)


def called(actor: str, operation: Operation) -> DeliveryArrived:
    """A call as if the hub had delivered it."""
    data = request_body(uuid4().hex, actor, operation)
    return DeliveryArrived(wire.CALL, data, NOBODY.sender, time.time_ns() // 1_000_000, NOBODY)


async def lost(host: Host) -> None:
    """Wait until the host has noticed that there is no hub."""
    client = host._client
    assert client is not None

    async def is_lost() -> bool:
        return not client.is_connected

    await until(is_lost)


async def back(host: Host) -> None:
    """Wait until the host is connected again."""
    client = host._client
    assert client is not None

    async def is_back() -> bool:
        return client.is_connected

    await until(is_back)


async def arrived(url: str, host: Host | HostProcess, actor: str) -> None:
    async def is_here() -> bool:
        found = await command(url, host, "actor", actor=actor)
        return found is not None and found["status"] == "here" and found["move"] is None

    await until(is_here)


async def packed(url: str, host: Host) -> None:
    """Wait until all of an actor that leaves is on its way."""

    async def is_packed() -> bool:
        moves = (await command(url, host, "stats"))["moves"]
        return [each["step"] for each in moves] == ["drained"]

    await until(is_packed)
