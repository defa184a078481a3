"""The programs of the demo, each a process that is started again whenever it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

PAUSE_S: Final = 0.3
_STOP_S: Final = 10.0
# A program that ends sooner has not started, so the next attempt waits longer.
_LONG_S: Final = 5.0
_PAUSE_MAX_S: Final = 5.0


class Program:
    """One process at a time, under one command.

    `is_ready` is set once its output has a line with `ready`, and cleared when it ends. `gone` and
    `back` are called with it when it was killed and when it is ready again.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        ready: str,
        variables: Mapping[str, str] | None = None,
        back: Callable[[Program, float], None] = lambda program, away_s: None,
    ) -> None:
        self.name = name
        self.kills = 0
        self.is_ready = asyncio.Event()
        self._command = [sys.executable, "-m", "signalhub", *command]
        self._log = folder / f"{name}.log"
        self._cwd = folder
        self._ready = ready.encode()
        self._variables = dict(variables or {})
        self._back = back
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._killed_at_s: float | None = None

    @property
    def state(self) -> str:
        """`running`, `starting` or `away`."""
        if self.is_ready.is_set():
            return "running"
        return "away" if self._process is None else "starting"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and again whenever it ends."""
        self._keeper = asyncio.create_task(self._keep())

    def kill(self) -> bool:
        """Kill it without warning, as a crash does; `False` if it is not running."""
        process = self._process
        if process is None or process.returncode is not None:
            return False
        self.kills += 1
        self._killed_at_s = time.monotonic()
        self.is_ready.clear()
        process.kill()
        return True

    async def stop(self) -> None:
        """End it for good."""
        self._is_stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
        if self._keeper is None:
            return
        _, unfinished = await asyncio.wait((self._keeper,), timeout=_STOP_S)
        if unfinished:
            if process is not None and process.returncode is None:
                process.kill()
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))

    async def _keep(self) -> None:
        pause_s = PAUSE_S
        while not self._is_stopping:
            began_s = time.monotonic()
            await self._run_once()
            lasted_s = time.monotonic() - began_s
            pause_s = PAUSE_S if lasted_s > _LONG_S else min(2 * pause_s, _PAUSE_MAX_S)
            if not self._is_stopping:
                await asyncio.sleep(pause_s)

    async def _run_once(self) -> None:
        with self._log.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(self._variables),
                # Ctrl-C is for the supervisor, which ends the others in order.
                start_new_session=True,
            )
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                if self._ready in line and not self.is_ready.is_set():
                    self._is_back()
            await process.wait()
        finally:
            self.is_ready.clear()
            self._process = None
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _is_back(self) -> None:
        self.is_ready.set()
        killed_at_s, self._killed_at_s = self._killed_at_s, None
        if killed_at_s is not None:
            self._back(self, time.monotonic() - killed_at_s)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What a program inherits: nothing that would change its settings."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("SIGNALHUB_")
    }
    return inherited | dict(variables)
