"""The local engine: what happens when the log refuses entries, and when segments are removed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from signalhub.core.effects import Append, EraseEntries, Fetch, Locate, Located
from signalhub.engine.local import LocalEngine, Needs
from signalhub.engine.upkeep import refusal_of
from signalhub.log.errors import LogDamaged, LogFailed, LogFull
from signalhub.settings import model
from signalhub.testing import FakeClock, FaultyDisk
from signalhub.wire.entry import ErasedBody, StoredEntry
from signalhub.wire.errors import Refusal
from tests.support.memory.log import entry

HOUR_S = 3_600.0


def nothing(*_: Any) -> Any:
    return []


class Stage:
    """An engine on a disk in memory, and the outcomes it reports."""

    def __init__(self, **log_settings: Any) -> None:
        self.disk = FaultyDisk()
        self.clock = FakeClock()
        loop = asyncio.get_running_loop()
        chosen: dict[str, Any] = {"segment_bytes": 2**16, "retention_s": HOUR_S}
        log = model.LogSettings(**chosen | log_settings)
        self.engine = LocalEngine(Path("log"), log, self.clock, loop, disk=self.disk)
        self.engine.report_to(self)
        self.committed_count = 0
        self.refusals: list[Refusal] = []
        self.on_refusal: Callable[[], None] = lambda: None

    def committed(self, appends: list[Append], first: int) -> None:
        self.committed_count += len(appends)

    def refused(
        self, appends: list[Append], refusal: Refusal, *, is_final: bool, unknown: int = 0
    ) -> None:
        self.refusals += [refusal] * len(appends)
        self.on_refusal()

    def damaged(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    async def append(self, *seqs: int, size: int = 100) -> None:
        for seq in seqs:
            self.engine.append(Append(entry(seq, body=bytes(size))))
        self.engine.flush()
        await asyncio.wait_for(self.engine.wait_until_written(), 10)

    async def fill_segments(self, count: int) -> None:
        """Add sealed segments, each with one entry that fills it."""
        for seq in range(1, count + 2):
            await self.append(seq, size=2**15 + 1)
        # A search runs on the upkeep thread, after the sealing.
        sealed: asyncio.Future[Located | None] = asyncio.Future()
        self.engine.locate(Locate(nothing, 0, 0, 1, b"", nothing), sealed.set_result)
        await asyncio.wait_for(sealed, 10)

    async def read(self) -> list[StoredEntry]:
        answer: asyncio.Future[list[StoredEntry] | None] = asyncio.Future()
        self.engine.fetch(Fetch("orders", 1, 1, 100, 2**20, nothing), answer.set_result)
        return await asyncio.wait_for(answer, 10) or []

    async def erase(self, offset: int) -> None:
        answer: asyncio.Future[int | Refusal] = asyncio.Future()
        erase = EraseEntries([ErasedBody("actor", [(offset, offset)])], nothing)
        self.engine.erase(erase, answer.set_result)
        assert await asyncio.wait_for(answer, 10) == 1

    async def retain(self) -> None:
        """Delete what is older than the retention."""
        cut: asyncio.Future[dict[int, int]] = asyncio.Future()
        head = self.engine.head
        needs = Needs(unsettled=[], needed=None, saved=head, landed=None, anchored=head, streams=[])
        self.engine.retain(needs, cut.set_result, nothing, nothing)
        await asyncio.wait_for(cut, 10)


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


async def test_whoever_waits_for_entries_learns_that_a_failed_log_refused_them(
    stage: Stage,
) -> None:
    stage.engine.append(Append(entry(1)))
    waiting = asyncio.create_task(stage.engine.wait_until_written())
    await asyncio.sleep(0)
    stage.engine.log.fail("Input/output error")

    stage.engine.flush()

    await asyncio.wait_for(waiting, 1)
    assert [one.code for one in stage.refusals] == ["storage_failed"]


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


@pytest.mark.parametrize("is_erased", [False, True], ids=["deleted", "erased"])
async def test_no_file_of_a_removed_segment_stays_open(stage: Stage, is_erased: bool) -> None:
    """An open file would keep the content and the space on the disk."""
    await stage.fill_segments(3)
    before = stage.disk.open_files
    assert len(await stage.read()) == 4
    assert stage.disk.open_files > before

    if is_erased:
        await stage.erase(0)
    else:
        stage.clock.advance(2 * HOUR_S)
        await stage.retain()

    assert stage.disk.open_files == before


@pytest.mark.parametrize(
    ("limits", "needs", "by"),
    [
        pytest.param({}, {"unsettled": [("orders", 1, 1, "s")]}, [], id="within the limits"),
        pytest.param({"retention_bytes": 2**16}, {}, [], id="nobody needs it"),
        pytest.param(
            {"retention_bytes": 2**16},
            {"unsettled": [("orders", 1, 1, "s")]},
            ["subscriptions"],
            id="subscriptions",
        ),
        pytest.param(
            {"retention_s": 1.0},
            {"unsettled": [("orders", 1, 2, "")]},
            ["mailboxes"],
            id="mailboxes, by age",
        ),
        pytest.param({"retention_bytes": 2**16}, {"needed": 0}, ["rooms"], id="rooms"),
        pytest.param({"retention_s": 1.0}, {"needed": 0}, [], id="rooms have a time of their own"),
        pytest.param({"retention_bytes": 2**16}, {"landed": 0}, ["pipeline"], id="pipeline"),
        pytest.param(
            {"retention_bytes": 2**16, "keep_unsettled": False},
            {"unsettled": [("orders", 1, 1, "s")], "needed": 0},
            [],
            id="nothing is kept for them",
        ),
        pytest.param(
            {"retention_bytes": 2**17},
            {"unsettled": [("orders", 1, 5, "s")]},
            [],
            id="only what may stay is needed",
        ),
    ],
)
async def test_whoever_holds_up_retention_is_named(
    limits: dict[str, Any], needs: dict[str, Any], by: list[str]
) -> None:
    stage = Stage(**limits)
    await stage.fill_segments(4)
    stage.clock.advance(60)
    head = stage.engine.head
    given: dict[str, Any] = {"unsettled": [], "needed": None, "landed": None}
    # Nothing is saved, so that nothing is deleted.
    asked = Needs(saved=0, anchored=head, streams=[], **given | needs)

    stage.engine.retain(asked, nothing, nothing, nothing)
    # A look at the log comes after it on the same thread.
    await stage.read()

    held = stage.engine.held
    assert held.by == by
    named = [(one.stream, one.subscription) for one in held.oldest]
    is_named = bool({"subscriptions", "mailboxes"} & set(by))
    assert named == [(one[0], one[3]) for one in needs.get("unsettled", []) if is_named]
    assert (held.bytes > 0) >= bool(by)
    stage.engine.close()
