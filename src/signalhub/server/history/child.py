"""The hub's side of the process that reads disk and lake: started on first use, ended when idle.

It answers one question at a time. A question that takes too long, or a process that takes too much
memory, ends the process; whoever asked is told, and the next question starts another one. The hub
only passes bytes on, so its loop does no more for a search over millions of entries than for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from signalhub.counters import ReaderTally
from signalhub.server.history.questions import (
    FRAME_BYTES_MAX,
    LENGTH,
    AnyQuestion,
    Ask,
    Reply,
    Stop,
    decode_reply,
    framed,
)
from signalhub.settings.model import Settings

log = logging.getLogger("signalhub.history")

IDLE_S: Final = 300.0
ANSWER_S: Final = 10.0
START_S: Final = 20.0
"""How long the first answer may take in addition: its libraries are loaded."""
RESIDENT_BYTES_MAX: Final = 512 * 2**20
WAITING_MAX: Final = 8
_END_S: Final = 2.0
_STDERR: Final = 2

_STATUS: Final = {
    "bad_request": 400,
    "not_found": 404,
    "search_replaced": 409,
    "internal_error": 500,
}


class ReadRefused(Exception):
    """A question has no answer: the status of HTTP, a code, what is wrong and what to do."""

    def __init__(self, status: int, code: str, text: str, resolution: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.resolution = resolution


def reader_command(settings: Settings, data: Path) -> list[str]:
    """The command that starts the process, up to the number of its socket."""
    command = [sys.executable, "-m", "signalhub", "admin-reader", "--data", str(data)]
    if settings.pipeline.run != "off":
        command.append(f"--lake={settings.pipeline.lake}")
    return [
        *command,
        *("--log-level", settings.log_level, "--log-format", settings.log_format),
        "--socket",
    ]


class _Process:
    """One run of the process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self.reader = reader
        self.writer = writer
        self.has_answered = False

    async def ask(self, question: Ask) -> Reply:
        """The answer; raises `ConnectionError` or `EOFError` if the process has ended."""
        self.writer.write(framed(question))
        while True:
            head = await self.reader.readexactly(LENGTH.size)
            (length,) = LENGTH.unpack(head)
            if length > FRAME_BYTES_MAX:
                raise ConnectionError("an answer of the reader is too long")
            reply = decode_reply(await self.reader.readexactly(length))
            self.has_answered = True
            # Those nobody waits for any more come first.
            if reply.id == question.id:
                return reply

    async def end(self, *, is_killed: bool) -> None:
        """End it: it leaves when the socket is closed."""
        self.writer.close()
        if not is_killed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), _END_S)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


class _Search:
    """A question of somebody, which their next one ends."""

    def __init__(self, id: int, *, is_long: bool) -> None:
        self.id = id
        self.is_long = is_long
        self.is_replaced = False


class HistoryReader:
    """Asks the process, which runs only while somebody does."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        answer_s: float = ANSWER_S,
        idle_s: float = IDLE_S,
        resident_bytes_max: int = RESIDENT_BYTES_MAX,
        searches_max: int = WAITING_MAX,
        tally: ReaderTally | None = None,
    ) -> None:
        """The number of a socket is added to `command`."""
        self._searches_max = searches_max
        self._command = command
        self._answer_s = answer_s
        self._idle_s = idle_s
        self._resident_bytes_max = resident_bytes_max
        self._ids = count(1)
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._searches: dict[str, _Search] = {}
        self._running: int | None = None
        self._process: _Process | None = None
        self._starting: asyncio.Task[_Process] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self.tally: Final = tally or ReaderTally()

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return None if self._process is None else self._process.process.pid

    async def ask(
        self, question: AnyQuestion, *, search_of: str = "", is_long: bool = False
    ) -> bytes:
        """The answer as JSON; raises `ReadRefused`.

        `search_of` names whose search it is: of each of them only the newest goes on. One that may
        be long counts for the limit of searches.
        """
        search = _Search(next(self._ids), is_long=is_long)
        if is_long and self._others(search_of) >= self._searches_max:
            raise ReadRefused(
                429,
                "too_many_searches",
                f"{self._searches_max} others are searching.",
                "Try again in a moment; the setting is ui.searches_max.",
            )
        if self._waiting > WAITING_MAX:
            raise ReadRefused(
                429,
                "rate_limited",
                "Too many questions wait for the process that reads history.",
                "Try again in a moment.",
            )
        if search_of:
            self._replace(search_of, search)
        self._waiting += 1
        try:
            async with self._turn:
                if search.is_replaced:
                    raise _replaced()
                return await self._ask(search.id, question)
        finally:
            self._waiting -= 1
            if self._searches.get(search_of) is search:
                del self._searches[search_of]

    async def stop(self) -> None:
        """End the process; nothing is asked any more."""
        self._is_stopped = True
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        self._drop(is_killed=True)
        if self._ending:
            await asyncio.wait(self._ending)

    def _others(self, whose: str) -> int:
        """How many others have a search that may be long."""
        return sum(one.is_long for name, one in self._searches.items() if name != whose)

    def _replace(self, whose: str, search: _Search) -> None:
        earlier = self._searches.get(whose)
        if earlier is not None:
            earlier.is_replaced = True
            self._stop(earlier.id)
        self._searches[whose] = search

    def _stop(self, id: int) -> None:
        """Nobody waits for this answer any more."""
        if self._running == id and self._process is not None:
            self._process.writer.write(framed(Stop(id)))

    async def _ask(self, id: int, question: AnyQuestion) -> bytes:
        self._be_busy()
        self.tally.questions += 1
        try:
            process = await self._started()
            seconds = self._answer_s + (0 if process.has_answered else START_S)
            self._running = id
            async with asyncio.timeout(seconds):
                reply = await process.ask(Ask(id, question))
        except TimeoutError:
            self.tally.failures += 1
            self._drop(is_killed=True)
            raise ReadRefused(
                504,
                "history_timeout",
                f"The process that reads history has not answered within {seconds:g} s.",
                "Ask for less: a shorter time, or one topic.",
            ) from None
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self.tally.failures += 1
            self._drop(is_killed=True)
            log.warning("the process that reads history ended", extra={"reason": str(error)})
            raise ReadRefused(
                503,
                "history_unavailable",
                "The process that reads history has ended.",
                "Try again, which starts another one.",
            ) from None
        except asyncio.CancelledError:
            self._stop(id)
            raise
        finally:
            self._running = None
            self._be_idle()
        if reply.resident_bytes > self._resident_bytes_max:
            self._drop(is_killed=False)
        if reply.code:
            status = _STATUS.get(reply.code, 503)
            raise ReadRefused(status, reply.code, reply.error, reply.resolution)
        return reply.body

    async def _started(self) -> _Process:
        if self._is_stopped:
            raise ConnectionError("the hub is stopping")
        known = self._process
        if known is not None and known.process.returncode is None:
            return known
        self._drop(is_killed=True)
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(_seen)
        # Whoever waits for it may give up; the next question finds it started.
        return await asyncio.shield(self._starting)

    async def _start(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    # The hub's stdout is reserved for the line with its address.
                    stdout=_STDERR,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        self._process = started = _Process(process, reader, writer)
        self.tally.starts += 1
        log.info("the process that reads history was started", extra={"pid": process.pid})
        return started

    def _drop(self, *, is_killed: bool) -> None:
        """End the process, if it runs; the next question starts another one."""
        process, self._process = self._process, None
        if process is not None:
            task = asyncio.ensure_future(process.end(is_killed=is_killed))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _be_busy(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _be_idle(self) -> None:
        self._be_busy()
        later: Callable[..., asyncio.TimerHandle] = asyncio.get_running_loop().call_later
        self._idle = later(self._idle_s, self._rest)

    def _rest(self) -> None:
        self._idle = None
        if not self._turn.locked():
            self._drop(is_killed=False)


def _seen(started: asyncio.Task[_Process]) -> None:
    """Whoever waited was told; if nobody does any more, a failure to start is nobody's."""
    if not started.cancelled():
        started.exception()


def _replaced() -> ReadRefused:
    return ReadRefused(
        409,
        "search_replaced",
        "The search was ended: another one of yours has begun.",
        "Search again.",
    )
