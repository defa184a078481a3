"""Hosts of durable actors around a real hub, and ways to look at them from outside."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
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
from signalhub.actors.kernel.events import DeliveryArrived, Event, Receipted
from signalhub.actors.move.leave import PART_BYTES
from signalhub.clock import Clock, SystemClock
from signalhub.testing import HostProcess, RunningHub
from signalhub.testing.local_actors import request_body
from tests.support.actors.examples import QUICK

PATIENCE_S = 20.0
PAUSE_S = 0.02
# So large that a move takes three parts.
BALLAST_CHARS = 2 * PART_BYTES + 1
UNLIMITED: dict[str, Any] = {"message_rate": 0.0, "connection_rate": 0.0}
# Whoever sends something without the hub.
NOBODY = SimpleNamespace(sender="@(test/nobody)", payload={}, is_settleable=False)


class Shifting(SystemClock):
    """A clock that can be set."""

    def __init__(self, shift_s: float = 0.0) -> None:
        self.shift_ms = round(shift_s * 1000)
        self._passed_s = 0.0

    def mono_s(self) -> float:
        return super().mono_s() + self._passed_s

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def advance(self, seconds: float, *hosts: Host) -> None:
        """Time passes for those who have this clock; any event makes them look at it."""
        self.jump(seconds)
        self._passed_s += seconds
        for host in hosts:
            host.kernel_events([Receipted("a batch nobody knows")])

    def jump(self, seconds: float) -> None:
        """An administrator sets the clock."""
        self.shift_ms += round(seconds * 1000)


class World:
    """A hub, and a folder for the hosts around it."""

    def __init__(self, hub: RunningHub, folder: Path) -> None:
        self.hub = hub
        self.folder = folder

    @asynccontextmanager
    async def host(
        self,
        name: str,
        *classes: type[Actor],
        clock: Clock | None = None,
        is_awaited: bool = True,
        replaces: bool = False,
        **config: Any,
    ) -> AsyncIterator[Host]:
        """A host that retries quickly, once the hub knows it."""
        chosen = DurableConfig(**(QUICK | config))
        options: dict[str, Any] = {"config": chosen, "clock": clock, "replaces": replaces}
        data = self.folder / name
        async with Host(*classes, data=data, url=self.hub.url, name=name, **options) as host:
            if is_awaited:
                async with asyncio.timeout(PATIENCE_S):
                    await host.is_connected.wait()
            yield host

    async def ask(self, target: str, operation: Operation) -> Any:
        async with ActorHub(self.hub.url) as outside:
            return await outside.ask(target, operation, timeout=PATIENCE_S)

    async def command(self, host: Host | HostProcess, name: str, **arguments: Any) -> Any:
        async with ActorHub(self.hub.url) as outside:
            return await outside.command(host.address, name, arguments)

    async def begin_move(self, actor: str, here: Any, there: Any, **options: Any) -> None:
        await self.command(here, "move", actor=actor, to=there.address, **options)

    async def move(self, actor: str, here: Any, there: Any, **options: Any) -> None:
        await self.begin_move(actor, here, there, **options)
        await self.arrived(actor, there)

    async def arrived(self, actor: str, host: Host | HostProcess) -> None:
        async def is_here() -> bool:
            found = await self.command(host, "actor", actor=actor)
            return found is not None and found["status"] == "here" and found["move"] is None

        await until(is_here)

    async def packed(self, host: Host) -> None:
        """Wait until all of an actor that leaves is on its way."""

        async def steps() -> list[str]:
            return [each["step"] for each in (await self.command(host, "stats"))["moves"]]

        await until(steps, ["drained"])

    async def stop_hub(self, *hosts: Host) -> None:
        """Until these hosts have noticed."""
        await self.hub.stop()
        for host in hosts:
            await until(partial(is_connected, host), False)

    async def start_hub(self, *hosts: Host) -> None:
        """Until these hosts are connected again."""
        await self.hub.start()
        for host in hosts:
            await until(partial(is_connected, host))

    def stored(self, name: str, actor: str, key: str) -> Any:
        """A value of an actor's state, read beside its host."""
        query = "SELECT value FROM state WHERE actor = ? AND key = ?"
        found = self.rows(name, query, actor, key)
        return payload.decode(found[0]) if found else None

    def rows(self, name: str, query: str, *bindings: str) -> list[Any]:
        """The first column of what a host's store says, read beside it."""
        path = str(self.folder / name / FILE)
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        rows = [row[0] for row in connection.execute(query, bindings)]
        connection.close()
        return rows


async def until(look: Callable[[], Any], wanted: object = True) -> None:
    """Wait for something that tells nobody when it happens."""
    found: Any = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = look()
                found = await found if inspect.isawaitable(found) else found
                if found == wanted:
                    return
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise AssertionError(f"it is {found!r}, not {wanted!r}") from None


def is_connected(host: Host) -> bool:
    client = host._client
    assert client is not None
    return client.is_connected


def called(actor: str, operation: Operation) -> Event:
    """A call as if the hub had delivered it."""
    data = request_body(uuid4().hex, actor, operation)
    return DeliveryArrived(wire.CALL, data, NOBODY.sender, time.time_ns() // 1_000_000, NOBODY)
