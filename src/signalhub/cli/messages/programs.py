"""Runs a program with a text, for a limited time and with limited output; no shell is involved."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

OUTPUT_BYTES_MAX: Final = 512 * 2**10


class ProgramResult(msgspec.Struct, frozen=True):
    """How a program has ended; `ended_by` says why it was ended, if it was."""

    exit: int
    output: str
    errors: str
    ended_by: str | None = None  # `time` or `output`.


async def run_program(command: Sequence[str], text: str, *, limit_s: float) -> ProgramResult:
    """Give a program a text on standard input, and return what it wrote.

    A program that takes too long or writes too much is killed, with all it has started. Raises
    `OSError` if it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # A group of its own, so that nothing of it is left, and Ctrl-C is ours.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    ended_by = None
    reading = [asyncio.create_task(_read(one)) for one in (process.stdout, process.stderr)]
    others = [
        asyncio.create_task(_write(process.stdin, text)),
        asyncio.create_task(process.wait()),
    ]
    try:
        _, late = await asyncio.wait(
            [*reading, *others], timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION
        )
        if any(task.done() and task.exception() for task in reading):
            ended_by = "output"
        elif late:
            ended_by = "time"
    finally:
        if ended_by is not None or process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for task in (*reading, *others):
            task.cancel()
        await asyncio.gather(*reading, *others, return_exceptions=True)
        await process.wait()
        # What is left in the pipes keeps them open.
        rest = [asyncio.create_task(_drain(one)) for one in (process.stdout, process.stderr)]
        await asyncio.wait(rest, timeout=1.0)
    if ended_by is not None:
        return ProgramResult(process.returncode or 0, "", "", ended_by)
    output, errors = (task.result().decode(errors="replace") for task in reading)
    return ProgramResult(process.returncode or 0, output, errors)


async def _write(stream: asyncio.StreamWriter, text: str) -> None:
    # It need not read what it is given.
    try:
        with suppress(BrokenPipeError, ConnectionResetError):
            stream.write(text.encode(errors="replace"))
            await stream.drain()
    finally:
        stream.close()


async def _read(stream: asyncio.StreamReader) -> bytes:
    """All that is written."""
    parts = bytearray()
    while part := await stream.read(2**16):
        parts += part
        if len(parts) > OUTPUT_BYTES_MAX:
            raise ValueError(f"more than {OUTPUT_BYTES_MAX} bytes")
    return bytes(parts)


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(2**16):
        pass
