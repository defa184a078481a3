"""The command line: in threads of this process, or as its users run it, in processes.

Most tests use `command` and `following`, which need no start of an interpreter. Signals, pipes and
terminals need `cli` and `started`.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from signalhub import Client
from signalhub.testing import RunningHub
from tests.support.process.terminal import Terminal

# For everything a test does with a command, its start included; beside other tests that is slow.
PATIENCE_S = 60.0
SENDER = "@(demo/alice)"
SECRET = "correct horse battery staple"


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def environment(url: str, **variables: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SIGNALHUB_")}
    return inherited | {"SIGNALHUB_URL": url, "PYTHONUNBUFFERED": "1"} | variables


async def cli(
    url: str, *arguments: str, stdin: bytes = b"", variables: Mapping[str, str] | None = None
) -> Done:
    """Run a command to its end."""
    async with started(url, *arguments, variables=variables) as process:
        out, err = await process.communicate(stdin)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def started(
    url: str, *arguments: str, variables: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that is still running, and is ended with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "signalhub",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(url, **(variables or {})),
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_of(stream: asyncio.StreamReader | None, text: str) -> str:
    """The next line, which holds the text."""
    assert stream is not None
    line = (await stream.readline()).decode()
    assert text in line
    return line


async def hub_knows(hub: RunningHub, address: str) -> None:
    """Wait until the address is registered."""
    async with asyncio.timeout(PATIENCE_S):
        while hub.app.hub.registry.get(address) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def unused_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"ws://127.0.0.1:{port}/ws"


async def fill(me: Client, count: int, topic: str = "orders", **definition: Any) -> None:
    """A durable topic with the numbers from 1 on."""
    await me.create_topic(topic, **definition)
    for number in range(1, count + 1):
        await me.publish(topic, "n", number, durable=True)


def columns(done: Done) -> list[list[str]]:
    return [line.split("\t") for line in done.out.splitlines()]


def sheet(done: Done) -> dict[str, str]:
    return dict(line.split("\t") for line in done.out.splitlines())


class _Routed:
    """A standard stream: each command has its own, everybody else the one from before."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._outside = getattr(sys, name)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(_OWN, self._name, self._outside), attribute)


_OWN = threading.local()
_STREAMS = ("stdin", "stdout", "stderr")


class _Pipe(io.StringIO):
    """What a command writes, for a reader in the loop of the test."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._reader = reader
        self._loop = asyncio.get_running_loop()

    def write(self, text: str) -> int:
        # A test that has failed does not wait for its commands.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reader.feed_data, text.encode())
        return len(text)


class Running:
    """A command in a thread of this process, with the members of a process."""

    count: ClassVar = 0

    def __init__(self, argv: Sequence[str], stdin: io.TextIOBase) -> None:
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self._streams = (stdin, _Pipe(self.stdout), _Pipe(self.stderr))
        self._argv = argv
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(target=self._run, daemon=True).start()

    async def wait(self) -> int:
        return await asyncio.wait_for(asyncio.shield(self._code), PATIENCE_S)

    async def communicate(self) -> tuple[bytes, bytes]:
        await self.wait()
        return await self.stdout.read(), await self.stderr.read()

    def _run(self) -> None:
        from signalhub.cli.app import run

        vars(_OWN).update(zip(_STREAMS, self._streams, strict=True))
        try:
            code = run(self._argv)
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._end, error)
        else:
            self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, outcome: int | BaseException) -> None:
        self.stdout.feed_eof()
        self.stderr.feed_eof()
        if isinstance(outcome, BaseException):
            self._code.set_exception(outcome)
        else:
            self._code.set_result(outcome)


@contextmanager
def _routed() -> Iterator[None]:
    """Let every thread have standard streams of its own."""
    before = [getattr(sys, name) for name in _STREAMS]
    Running.count += 1
    if Running.count == 1:
        for name in _STREAMS:
            setattr(sys, name, _Routed(name))
    try:
        yield
    finally:
        Running.count -= 1
        if Running.count == 0:
            for name, stream in zip(_STREAMS, before, strict=True):
                setattr(sys, name, getattr(stream, "_outside", stream))


def _with_url(url: str, arguments: Sequence[str]) -> list[str]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:end], *(("--url", url) if url else ()), *arguments[end:]]


async def command(
    url: str,
    *arguments: str,
    stdin: bytes = b"",
    typed: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Done:
    """Run a command to its end in this process; `typed` is what somebody at a terminal answers."""
    source = io.TextIOWrapper(io.BytesIO(stdin)) if typed is None else Terminal(typed)
    with pytest.MonkeyPatch.context() as patch, _routed():
        for name in [name for name in os.environ if name.startswith("SIGNALHUB_")]:
            patch.delenv(name)
        for name, value in (variables or {}).items():
            patch.setenv(name, value)
        running = Running(_with_url(url, arguments), source)
        out, err = await running.communicate()
    return Done(await running.wait(), out.decode(), err.decode())


Run = Callable[..., Awaitable[Done]]
"""`command` against one hub."""


@asynccontextmanager
async def following(url: str, *arguments: str) -> AsyncIterator[Running]:
    """A command that prints what arrives, in this process; the block ends when it does."""
    limit = () if "--for" in arguments else ("--for", str(PATIENCE_S))
    with _routed():
        running = Running(_with_url(url, [*arguments, *limit]), io.TextIOWrapper(io.BytesIO()))
        yield running
        await running.wait()
