"""The local engine finds and erases entries beside its other work, and owns up to faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from signalhub.core.effects import Append, EraseEntries, Fetch, Locate, Located, Match
from signalhub.engine.local import LocalEngine
from signalhub.log.verify import verify
from signalhub.settings import model
from signalhub.testing import FakeClock, FaultyDisk
from signalhub.wire.entry import Entry, ErasedBody, StoredEntry
from signalhub.wire.errors import Refusal
from tests.support.memory.log import entry, flip_bit

SECRET = b"nobody is to read this again"
TORN = "00000000000000000000.48.torn"


def choose(stored: StoredEntry) -> Match | None:
    """Every second order."""
    if stored.seq % 2 or stored.is_erased:
        return None
    return Match(stored.offset, stored.kind, stored.stream, stored.stream_epoch, stored.seq)


def nothing(*_: Any) -> list[Any]:
    return []


class Stage:
    """An engine on a disk in memory, asked one thing after the other."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        loop = asyncio.get_running_loop()
        log = model.LogSettings(segment_bytes=2**16)
        self.engine = LocalEngine(Path("log"), log, FakeClock(), loop, disk=self.disk)
        self.engine.report_to(self)

    def committed(self, appends: list[Append], first: int) -> None:
        pass

    def refused(
        self, appends: list[Append], refusal: Refusal, *, is_final: bool, unknown: int = 0
    ) -> None:
        raise AssertionError(refusal)

    def damaged(self, refusal: Refusal) -> None:
        raise AssertionError(refusal)

    async def append(self, *entries: Entry) -> None:
        for one in entries:
            self.engine.append(Append(one))
        self.engine.flush()
        await self.engine.wait_until_written()

    async def fill(self, count: int) -> None:
        await self.append(*(entry(seq, body=SECRET) for seq in range(1, count + 1)))

    async def locate(self, from_offset: int = 0, **given: Any) -> Located | None:
        answer: asyncio.Future[Located | None] = asyncio.Future()
        end = self.engine.head
        asked: dict[str, Any] = {"choose": choose, "count_max": 1_000, "needle": b""} | given
        locate = Locate(from_offset=from_offset, to_offset=end, then=nothing, **asked)
        self.engine.locate(locate, answer.set_result)
        return await asyncio.wait_for(answer, 10)

    async def erase(self, *offsets: int) -> int | Refusal:
        answer: asyncio.Future[int | Refusal] = asyncio.Future()
        body = ErasedBody("actor", [(one, one) for one in offsets])
        self.engine.erase(EraseEntries([body], nothing), answer.set_result)
        return await asyncio.wait_for(answer, 10)

    async def read(self) -> list[StoredEntry]:
        answer: asyncio.Future[list[StoredEntry] | None] = asyncio.Future()
        self.engine.fetch(Fetch("orders", 1, 1, 100, 2**20, nothing), answer.set_result)
        return await asyncio.wait_for(answer, 10) or []


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    stage.engine.close()


async def test_what_is_found_is_in_a_finished_segment_after_the_next_entry(stage: Stage) -> None:
    await stage.fill(10)

    located = await stage.locate()
    assert located is not None
    await stage.append(entry(1, "other"))
    count = await stage.erase(*(one.offset for one in located.found))

    assert [one.seq for one in located.found] == [2, 4, 6, 8, 10]
    assert count == 1
    assert [one.seq for one in await stage.read() if one.is_erased] == [2, 4, 6, 8, 10]
    assert verify(stage.disk).erased == 5


async def test_a_search_comes_in_pages(stage: Stage) -> None:
    await stage.fill(10)

    first = await stage.locate(count_max=2)
    assert first is not None
    second = await stage.locate(first.end)

    assert second is not None
    assert [one.seq for one in first.found] == [2, 4]
    assert [one.seq for one in second.found] == [6, 8, 10]
    assert second.end == stage.engine.head


async def test_nothing_found_begins_no_segment(stage: Stage) -> None:
    await stage.append(entry(1))
    await stage.locate()
    await stage.append(entry(2))

    assert len(stage.engine.log.segments) == 1


async def test_torn_ends_go_with_it(stage: Stage) -> None:
    stage.disk.create(TORN).write(b"..." + SECRET, 0)
    await stage.fill(1)

    located = await stage.locate(needle=SECRET)

    assert located is not None
    assert located.torn == 1
    assert TORN not in stage.disk.names()


async def test_a_search_that_fails_is_answered(stage: Stage) -> None:
    await stage.fill(2)

    def fail(stored: StoredEntry) -> Match | None:
        raise RuntimeError("a fault of the caller")

    assert await stage.locate(choose=fail) is None


async def test_a_full_disk_and_damage_are_named(stage: Stage) -> None:
    await stage.fill(10)
    await stage.locate()
    await stage.append(entry(1, "other"))
    stage.disk.capacity_bytes = 0
    full = await stage.erase(1)
    stage.disk.capacity_bytes = None
    assert await stage.erase(1) == 1
    flip_bit(stage.disk, stage.engine.log.segments[0].name, 200)
    damaged = await stage.erase(3)

    assert isinstance(full, Refusal)
    assert isinstance(damaged, Refusal)
    assert (full.code, damaged.code) == ("storage_full", "storage_failed")
    assert stage.engine.log.state == "damaged"


async def test_a_sealed_segment_that_is_gone_is_no_fault(stage: Stage) -> None:
    assert await stage.erase(1, 2, 3) == 0
