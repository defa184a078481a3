"""The command line as its users run it: processes, and what they printed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from signalhub import Client
from signalhub.testing import RunningHub

PATIENCE_S = 20.0
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
