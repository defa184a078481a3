"""The real hub and hosts as processes, which tests pause, kill and restart."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from signalhub.actors.api.actor import Actor
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.host.host import FILE, Host, host_address
from signalhub.actors.kernel.events import (
    BatchRefused,
    DeliveryArrived,
    Effect,
    Event,
    GiveAway,
    Moved,
    PlacesFound,
    Receipted,
    SendBatch,
    SettleDelivery,
)
from signalhub.clock import SystemClock

START_S = 20.0
STOP_S = 10.0

_LISTENING = re.compile(rb"ws://[^\s:]+:(\d+)/")


class HubProcess:
    """`python -m signalhub serve` on one port and one data folder, across restarts."""

    def __init__(
        self, folder: Path, port: int, variables: Mapping[str, str], files_max: int | None = None
    ) -> None:
        """With `files_max`, the process may open no more files than that."""
        self.data = folder / "data"
        self.port = port
        self._log = folder / "hub.log"
        self._variables = variables
        self._files_max = files_max
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The running process."""
        assert self._process is not None, "the hub is not running"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        """Everything the hub has written to stderr, across restarts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    async def start(self) -> None:
        """Start, or start again on the port it had, and wait until it listens."""
        assert self._process is None, "the hub is already running"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SIGNALHUB_")}
        command = ("-m", "signalhub", "serve", "--port", str(self.port), "--data", str(self.data))
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=inherited | dict(self._variables),
                preexec_fn=None if self._files_max is None else self._limit_files,
            )
        self.port = await self._announced_port()

    def _limit_files(self) -> None:
        assert self._files_max is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._files_max, self._files_max))

    async def _announced_port(self) -> int:
        stdout = self.process.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(START_S):
                async for line in stdout:
                    if found := _LISTENING.search(line):
                        return int(found[1])
        except TimeoutError:
            pass
        await self.kill()
        raise RuntimeError(f"the hub did not start:\n{self.log()}")

    async def stop(self) -> int:
        """Stop it as an operator does; returns the exit code."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill it without warning, as a crash does."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Kill it and restart it at once."""
        await self.kill()
        await self.start()

    def pause(self) -> None:
        """Freeze the process; its sockets stay open and silent."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a frozen process."""
        self.process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _end(self, how: signal.Signals) -> int:
        process, self._process = self.process, None
        return await end_process(process, how)


async def end_process(process: asyncio.subprocess.Process, how: signal.Signals) -> int:
    """Signal a process and make sure that it ends; returns its exit code."""
    if process.returncode is None:
        process.send_signal(how)
        # A frozen process handles SIGTERM only after it is resumed.
        process.send_signal(signal.SIGCONT)
    try:
        async with asyncio.timeout(STOP_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@asynccontextmanager
async def spawn_hub(
    port: int = 0, *, files_max: int | None = None, **settings: Any
) -> AsyncIterator[HubProcess]:
    """Run a hub as a separate process, which is stopped with the block.

    Settings are passed by name, groups as mappings: `spawn_hub(message_rate=0,
    registry={"limit": 10})`. With `files_max`, it may open no more files than that.
    """
    with TemporaryDirectory(prefix="signalhub-") as folder:
        hub = HubProcess(Path(folder), port, variables_of(settings), files_max)
        await hub.start()
        try:
            yield hub
        finally:
            if hub.is_running:
                await hub.stop()


def variables_of(settings: Mapping[str, Any], prefix: str = "SIGNALHUB") -> dict[str, str]:
    """Settings as the environment variables the hub reads them from."""
    variables: dict[str, str] = {}
    for name, value in settings.items():
        variable = f"{prefix}_{name.upper()}"
        if isinstance(value, Mapping) and variable != "SIGNALHUB_AUTH_KEYS":
            variables |= variables_of(value, variable)
        elif isinstance(value, str):
            variables[variable] = value
        else:
            variables[variable] = json.dumps(value)
    return variables


_PROGRAM: Final = "from signalhub.testing.process import main; main()"


class HostPlan(msgspec.Struct, kw_only=True):
    """The arguments of a host process."""

    classes: list[str]
    data: str
    url: str
    name: str
    config: dict[str, Any] = {}
    foreign: list[str] = []
    clock_s: float = 0.0
    kill_at: str = ""


class HostProcess:
    """A host on one data folder, across any number of restarts."""

    def __init__(self, folder: Path, plan: HostPlan) -> None:
        self.data = Path(plan.data)
        self.name = plan.name
        self.address = host_address(plan.name)
        self._plan = plan
        self._log = folder / f"{plan.name}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The running process."""
        assert self._process is not None, "the host is not running"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def file(self) -> Path:
        """The path of its store."""
        return self.data / FILE

    def log(self) -> str:
        """Everything the host has written to stderr, across restarts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    async def start(self, *, kill_at: str = "", clock_s: float = 0.0) -> None:
        """Start, or start again, and wait until the hub knows it.

        Args:
            kill_at: A point and how often it must be reached, such as `recovery:2`, armed from
                the start. Then this does not wait; `killed` waits for the end.
            clock_s: How far its clock is ahead of the real one; negative for behind.
        """
        assert self._process is None, "the host is already running"
        plan = msgspec.structs.replace(self._plan, kill_at=kill_at, clock_s=clock_s)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", _PROGRAM, msgspec.json.encode(plan).decode()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # It imports actors from the same places as the test.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        if not kill_at:
            await self.connected()

    async def connected(self) -> None:
        """Wait until the hub knows it."""
        await self._said("connected")

    async def arm(self, point: str) -> None:
        """Kill the process when it reaches the point (for the n-th time: `commit:3`)."""
        stdin = self.process.stdin
        assert stdin is not None
        stdin.write(f"{point}\n".encode())
        await self._said("armed")

    async def _said(self, word: str) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await stdout.readline()
        except TimeoutError:
            line = b""
        if line.decode().strip() != word:
            await self.kill()
            raise RuntimeError(f"the host {self.name} is not {word}:\n{self.log()}")

    async def killed(self) -> None:
        """Wait until it has reached the point it was armed for."""
        process = self.process
        async with asyncio.timeout(START_S):
            await process.wait()
        assert process.returncode == -signal.SIGKILL, self.log()
        await process.communicate()
        self._process = None

    async def kill(self) -> None:
        """Kill it without warning, as a crash does."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Stop it as an operator does; returns the exit code."""
        return await self._end(signal.SIGTERM)

    async def restart(self, *, clock_s: float = 0.0) -> None:
        """Kill it and restart it at once."""
        await self.kill()
        await self.start(clock_s=clock_s)

    async def _end(self, how: signal.Signals) -> int:
        process, self._process = self.process, None
        return await end_process(process, how)


@asynccontextmanager
async def spawn_host(
    *classes: type[Actor],
    url: str,
    name: str,
    config: Mapping[str, Any] | None = None,
    foreign: Iterable[str] = (),
    is_started: bool = True,
) -> AsyncIterator[HostProcess]:
    """Run a host as a separate process, which is stopped with the block.

    The classes must be importable from a module. `config` are settings of `DurableConfig` by name.
    """
    with TemporaryDirectory(prefix="signalhub-") as folder:
        plan = HostPlan(
            classes=[f"{one.__module__}:{one.__qualname__}" for one in classes],
            data=str(Path(folder) / "data"),
            url=url,
            name=name,
            config=dict(config or {}),
            foreign=list(foreign),
        )
        host = HostProcess(Path(folder), plan)
        if is_started:
            await host.start()
        try:
            yield host
        finally:
            if host.is_running:
                await host.kill()


# The rest runs in the process of the host.


class _Doom:
    """The point at which this process is killed."""

    def __init__(self) -> None:
        self.point = ""
        self._left = 0
        self._next = ""

    def arm(self, text: str) -> None:
        first, _, self._next = text.partition(">")
        self.point, _, count = first.partition(":")
        self._left = int(count or 1)

    def reached(self, point: str) -> None:
        if point != self.point:
            return
        self._left -= 1
        if not self._left and self._next:
            self.arm(self._next)
        elif not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


_doom = _Doom()
at = _doom.reached


class _DoomedHost(Host):
    """A host with additional points around the kernel."""

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SettleDelivery():
                    at("settle")
                case SendBatch():
                    at(f"send {_short(effect.type)}")
                case GiveAway():
                    at("give away")
        super()._perform(effects)

    async def _sent(self, effect: SendBatch) -> Receipted | BatchRefused:
        answer = await super()._sent(effect)
        if isinstance(answer, Receipted):
            at(f"sent {_short(effect.type)}")
        return answer

    def kernel_events(self, events: Iterable[Event]) -> None:
        happened = list(events)
        for event in happened:
            if isinstance(event, DeliveryArrived):
                at(f"arrived {_short(event.type)}")
            elif isinstance(event, Moved) and event.token is not None:
                at("gave away")
            elif isinstance(event, PlacesFound):
                at("located")
        super().kernel_events(happened)

    def reached(self, point: str) -> None:
        """On the kernel's thread."""
        at(point)
        if point != "committed":
            return
        execute = self.kernel.store.execute
        if _doom.point == "result stored":
            if execute("SELECT 1 FROM inbox WHERE kind = 'result' AND not_before_ms = 0").get:
                at("result stored")
        elif _doom.point.startswith("move "):
            for (step,) in execute("SELECT step FROM moves").fetchall():
                at(f"move {step}")


def _short(type: str) -> str:
    return type.rpartition(":")[2]


class _ShiftedClock(SystemClock):
    """A clock that is wrong by a number of seconds."""

    def __init__(self, shift_s: float) -> None:
        self._shift_ms = round(shift_s * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self._shift_ms


def _found(name: str) -> type[Actor]:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    assert isinstance(found, type)
    assert issubclass(found, Actor)
    return found


def main() -> None:
    """Run the host; it ends with its standard input, so that it does not outlive the test."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(_serve(msgspec.json.decode(sys.argv[1], type=HostPlan)))


async def _serve(plan: HostPlan) -> None:
    host = _DoomedHost(
        *map(_found, plan.classes),
        data=plan.data,
        url=plan.url,
        name=plan.name,
        config=DurableConfig(**plan.config),
        foreign=plan.foreign,
        clock=_ShiftedClock(plan.clock_s),
        reached=lambda point: host.reached(point),
    )
    if plan.kill_at:
        _doom.arm(plan.kill_at)
    async with host:
        ends = [asyncio.create_task(one) for one in (host.run(), _obey(host), _terminated())]
        done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()


async def _obey(host: Host) -> None:
    """Report when the host is connected, then read the points to arm."""
    await host.is_connected.wait()
    print("connected", flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        _doom.arm(line.decode().strip())
        print("armed", flush=True)


async def _terminated() -> None:
    wanted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, wanted.set)
    await wanted.wait()
