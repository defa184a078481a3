"""The real hub as its own process, to be paused, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

START_S = 20.0
STOP_S = 10.0

_LISTENING = re.compile(rb"ws://[^\s:]+:(\d+)/")


class HubProcess:
    """`python -m signalhub serve` on one port and one data folder, through any number of lives."""

    def __init__(self, folder: Path, port: int, variables: Mapping[str, str]) -> None:
        self.data = folder / "data"
        self.port = port
        self._log = folder / "hub.log"
        self._variables = variables
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process of the present life."""
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
        """Everything the hub has written to stderr, in all its lives."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    async def start(self) -> None:
        """Start, or start again on the port it had, and wait until it listens."""
        assert self._process is None, "the hub is running already"
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
            )
        self.port = await self._announced_port()

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
        """Ask it to end as an operator does; the exit code."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it without warning, as a crash does."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Kill it and start it again at once."""
        await self.kill()
        await self.start()

    def pause(self) -> None:
        """Freeze the process; its sockets stay open and silent."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        self.process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _end(self, how: signal.Signals) -> int:
        process, self._process = self.process, None
        return await end_process(process, how)


async def end_process(process: asyncio.subprocess.Process, how: signal.Signals) -> int:
    """Tell a process to end, and make sure that it does; its exit code."""
    if process.returncode is None:
        process.send_signal(how)
        # A frozen process acts on SIGTERM only after it goes on.
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
async def spawn_hub(port: int = 0, **settings: Any) -> AsyncIterator[HubProcess]:
    """Run a hub as a process of its own; it is ended with the block.

    Settings are given by name, groups as mappings: `spawn_hub(message_rate=0,
    registry={"limit": 10})`.
    """
    with TemporaryDirectory(prefix="signalhub-") as folder:
        hub = HubProcess(Path(folder), port, variables_of(settings))
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
