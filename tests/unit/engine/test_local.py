"""The local engine: what happens when the log refuses entries."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from signalhub.core.effects import Append
from signalhub.engine.local import LocalEngine
from signalhub.engine.upkeep import refusal_of
from signalhub.log.errors import LogDamaged, LogFailed, LogFull
from signalhub.settings import model
from signalhub.testing import FakeClock, FaultyDisk
from signalhub.wire.errors import Refusal
from tests.support.memory.log import entry


class Stage:
    """An engine on a disk in memory, and the outcomes it reports."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        loop = asyncio.get_running_loop()
        log = model.LogSettings(segment_bytes=2**16)
        self.engine = LocalEngine(Path("log"), log, FakeClock(), loop, disk=self.disk)
        self.engine.report_to(self)
        self.committed_count = 0
        self.refusals: list[Refusal] = []
        self.on_refusal: Callable[[], None] = lambda: None

    def committed(self, appends: list[Append], first: int) -> None:
        self.committed_count += len(appends)

    def refused(self, appends: list[Append], refusal: Refusal, *, is_final: bool) -> None:
        self.refusals += [refusal] * len(appends)
        self.on_refusal()

    async def append(self, *seqs: int) -> None:
        for seq in seqs:
            self.engine.append(Append(entry(seq)))
        self.engine.flush()
        await asyncio.wait_for(self.engine.wait_until_written(), 10)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    stage.engine.close()


async def test_entries_are_accepted_again_even_if_a_refusal_could_not_be_handled(
    stage: Stage,
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    def fail() -> None:
        raise LookupError("a fault of the caller")

    stage.on_refusal = fail
    stage.disk.fail("write", error=errno.ENOSPC, name="*.log")
    await stage.append(1)
    await stage.append(1)

    assert [one.code for one in stage.refusals] == ["storage_full"]
    assert stage.committed_count == 1
    assert [type(one["exception"]) for one in faults] == [LookupError]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (LogFull(), "storage_full", "disk is full"),
        (OSError(errno.ENOSPC, "No space left on device"), "storage_full", "disk is full"),
        (OSError(errno.EIO, "Input/output error"), "storage_failed", "log has failed"),
        (LogFailed("Input/output error"), "storage_failed", "log has failed"),
        (
            LogDamaged("00000000000000000000.log", 48, "the checksum does not match"),
            "storage_failed",
            "read-only: 00000000000000000000.log, byte 48: the checksum does not match.",
        ),
    ],
    ids=["full", "no space", "input/output", "failed", "damaged"],
)
def test_a_refusal_says_what_is_wrong_with_the_log(
    error: Exception, code: str, message: str
) -> None:
    refusal = refusal_of(error)

    assert refusal.code == code
    assert message in refusal.message
