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
    pipes = asyncio.gather(
        _write(process.stdin, text), _read(process.stdout), _read(process.stderr)
    )
    try:
        async with asyncio.timeout(limit_s):
            _, output, errors = await asyncio.shield(pipes)
            if max(len(output), len(errors)) > OUTPUT_BYTES_MAX:
                ended_by = "output"
            else:
                await process.wait()
    except TimeoutError:
        ended_by = "time"
        output = errors = b""
    finally:
        if ended_by is not None or process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        pipes.cancel()
        await asyncio.gather(pipes, return_exceptions=True)
        await process.wait()
    return ProgramResult(
        process.returncode or 0,
        output.decode(errors="replace"),
        errors.decode(errors="replace"),
        ended_by,
    )


async def _write(stream: asyncio.StreamWriter, text: str) -> None:
    # It need not read what it is given.
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(text.encode(errors="replace"))
        await stream.drain()
    stream.close()


async def _read(stream: asyncio.StreamReader) -> bytes:
    """All that is written, or a little more than is allowed."""
    parts = bytearray()
    while part := await stream.read(2**16):
        parts += part
        if len(parts) > OUTPUT_BYTES_MAX:
            break
    return bytes(parts)
