"""A hub and hosts, each a separate process on all cores, and a way to call their actors."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.machine import choose_cores, cpu_s, data_folder
from bench.servers import HUB, Running, Server, running, unpinned
from bench.subjects import MeasurementFailed
from signalhub.actors.host.caller import ActorHub

T = TypeVar("T")

ASK_S_MAX = 300.0

_POLL_S = 0.01


@contextmanager
def folder() -> Iterator[Path]:
    """Create a folder on a real disk while the block runs."""
    with tempfile.TemporaryDirectory(
        prefix="bench-actors-", dir=data_folder(), ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def host(
    url: str, name: str, kinds: list[str], *, data: Path | None = None, overdue: int = 0
) -> Server:
    """Return a host for `bench.servers` to start; its data is in its folder by default."""

    def command(place: Path) -> list[str]:
        words = [str(data or place / "data"), url, name, ",".join(kinds), str(overdue)]
        return [sys.executable, "-m", "bench.actors.host", *words]

    return Server(name=f"host {name}", command=command, ready="is connected")


@contextmanager
def hub() -> Iterator[tuple[Running, str]]:
    """Run a hub that syncs before it acknowledges; yield its URL."""
    with running(unpinned(HUB), choose_cores()) as target:
        yield target, f"ws://127.0.0.1:{target.port}/ws"


@dataclass(frozen=True, slots=True)
class Pair:
    """A hub between a host of callers and a host of callees."""

    url: str
    hub: Running
    callers: Running
    callees: Running


@contextmanager
def pair() -> Iterator[Pair]:
    """Start everything between two hosts from scratch."""
    with ExitStack() as stack:
        server, url = stack.enter_context(hub())
        cores = choose_cores()
        callers = running(unpinned(host(url, "callers", ["caller"])), cores)
        callees = running(unpinned(host(url, "callees", ["callee"])), cores)
        yield Pair(url, server, stack.enter_context(callers), stack.enter_context(callees))


def calling(url: str, work: Callable[[ActorHub], Awaitable[T]]) -> T:
    """Run a coroutine with a connection to the hub."""

    async def run() -> T:
        async with ActorHub(url) as connection, asyncio.timeout(ASK_S_MAX):
            return await work(connection)

    try:
        return asyncio.run(run())
    except TimeoutError as error:
        raise MeasurementFailed(f"not every call was answered within {ASK_S_MAX:.0f} s") from error


class Meter:
    """Measure the CPU seconds of processes, by name, while they live."""

    def __init__(self, **pids: list[int]) -> None:
        self._pids = pids
        self._before = self._now()

    def read(self) -> dict[str, float]:
        """Return what was used since the last reading."""
        now = self._now()
        spent = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return spent

    def _now(self) -> dict[str, float]:
        return {name: cpu_s(pids) for name, pids in self._pids.items()}


def await_line(target: Running, pattern: str, seconds_max: float) -> str:
    """Wait until a process has printed something; return it."""
    output, deadline = target.folder / "output.txt", time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        if found := re.search(pattern, output.read_text(errors="replace"), re.MULTILINE):
            return found[0]
        time.sleep(_POLL_S)
    tail = output.read_text(errors="replace")[-300:]
    raise MeasurementFailed(f"{target.server.name} took too long; it printed: {tail}")
