"""The pipeline as a child process: started with the hub, restarted, and stopped with it.

It runs in a separate process group, because Spark starts a second process. Its standard input is a
pipe that nobody writes to: it ends with the hub, however the hub ends, and the group with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from signalhub.counters import LakeTally
from signalhub.pacing import grown
from signalhub.pipeline.run import java
from signalhub.wire.errors import SettingsError

log = logging.getLogger("signalhub.pipeline")

_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 60.0
_STOP_S: Final = 4.0
"""Landing is exactly once, so a pipeline may be killed at any time."""
_LONG_S: Final = 600.0
"""After a run of this length the pause is reset."""
_STDERR: Final = 2


def pipeline_command(data: Path, config: str | None) -> list[str]:
    """Return the command that starts the pipeline of a data folder."""
    command = [sys.executable, "-m", "signalhub", "pipeline", "up", "--data", str(data)]
    if config is not None:
        command += ["--config", config]
    return [*command, "--beside", str(os.getpid())]


def check_machine() -> None:
    """Check that the pipeline can run on this machine; raises `SettingsError`. Blocks.

    A hub that was told to run one must not seem to, while nothing reaches the lake.
    """
    if problem := java.problem():
        raise SettingsError(
            f"the pipeline cannot run: {problem}; or run it on another machine with"
            ' pipeline.run = "elsewhere", or turn it off with --no-pipeline'
        )


class Beside:
    """Keeps one child process running until it is stopped."""

    def __init__(
        self,
        command: Sequence[str],
        tally: LakeTally,
        *,
        pause_s: float = _PAUSE_S,
        stop_s: float = _STOP_S,
    ) -> None:
        self._command = command
        self._tally = tally
        self._pause_s = pause_s
        self._stop_s = stop_s
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process id of the child, while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the child, and restart it whenever it ends."""
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Terminate the child; kill it after a timeout. May be called more than once."""
        self._is_stopping.set()
        if self._keeper is not None:
            await self._keeper

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._is_stopping.is_set():
            began_s = loop.time()
            try:
                reason = f"exit code {await self._run_once()}"
            except OSError as error:
                reason = str(error)
            if self._is_stopping.is_set():
                return
            if loop.time() - began_s >= _LONG_S:
                failures = 0
            pause_s = grown(self._pause_s, _PAUSE_MAX_S, failures)
            failures += 1
            log.error("the pipeline ended", extra={"reason": reason, "again_in_s": pause_s})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), pause_s)
                return
            self._tally.restarts += 1

    async def _run_once(self) -> int:
        """Run the child once; return its exit code."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            # The hub's stdout is reserved for the line with its address.
            stdout=_STDERR,
            start_new_session=True,
        )
        self._process = process
        log.info("the pipeline was started", extra={"pid": process.pid})
        ended = asyncio.create_task(process.wait())
        asked = asyncio.create_task(self._is_stopping.wait())
        try:
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._end(process, ended)
            return await ended
        finally:
            asked.cancel()
            # Spark's Java process survives a killed child.
            _kill_group(process.pid)
            self._process = None

    async def _end(self, process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait((ended,), timeout=self._stop_s)
        if not ended.done():
            log.warning("the pipeline did not stop in time: killing it", extra={"pid": process.pid})
            _kill_group(process.pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
