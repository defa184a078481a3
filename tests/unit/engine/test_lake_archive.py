"""Whoever asks the archive is answered in bounded time, whatever the lake does."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from signalhub.core.effects import Consult
from signalhub.core.rooms.values import Archived
from signalhub.counters import LakeTally
from signalhub.engine import archive as module
from signalhub.engine.archive import LakeArchive, Sight
from signalhub.log.segment import SegmentInfo, segment_name
from signalhub.testing import FakeClock
from tests.support.lake.small_lake import EPOCH, NOW_MS, STREAM, SmallLake, place, row
from tests.support.socket.stage import eventually

PATIENCE_S = 20.0

Found = list[Archived] | None


@pytest.fixture
def lake(tmp_path: Path) -> SmallLake:
    lake = SmallLake(tmp_path / "lake")
    lake.append("inbox", [row(seq) for seq in range(1, 4)], last=3)
    return lake


@pytest.fixture
def tally() -> LakeTally:
    return LakeTally()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_MS - 60_000)


Make = Callable[..., LakeArchive]


@pytest.fixture
async def make(lake: SmallLake, tally: LakeTally, clock: FakeClock) -> AsyncIterator[Make]:
    """Archives over the lake, or another one; closed at the end."""
    made: list[LakeArchive] = []

    def archive(over: SmallLake = lake, **options: Any) -> LakeArchive:
        loop = asyncio.get_running_loop()
        made.append(LakeArchive(over.lake, EPOCH, clock, loop, tally, **options))
        return made[-1]

    yield archive
    for one in made:
        one.close()


@pytest.fixture
async def archive(make: Make) -> LakeArchive:
    return make()


@contextmanager
def hanging(lake: SmallLake) -> Iterator[None]:
    """Whoever opens a table waits."""
    with lake.lake._lock:
        yield


def ask(archive: LakeArchive, done: Callable[[Found], None]) -> None:
    archive.consult(Consult(STREAM, 1, 9, 9, lambda *_: []), done)


async def answer(archive: LakeArchive) -> Found:
    told: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
    ask(archive, told.set_result)
    return await told


async def look(archive: LakeArchive) -> Sight | None:
    told: asyncio.Future[Sight | None] = asyncio.get_running_loop().create_future()
    archive.look(told.set_result)
    return await told


def segment(number: int) -> SegmentInfo:
    base = 10 * number
    return SegmentInfo(
        name=segment_name(base), base=base, end=base + 10, bytes=1, epoch=EPOCH, created_ms=0
    )


async def test_a_question_is_answered_on_the_loop(archive: LakeArchive, tally: LakeTally) -> None:
    found = await answer(archive)

    assert found is not None
    assert [one.seq for one in found] == [1, 2, 3]
    assert (tally.consults, tally.failures) == (1, 0)


async def test_nobody_waits_for_a_lake_that_hangs_or_hears_a_late_answer(
    lake: SmallLake, archive: LakeArchive, tally: LakeTally
) -> None:
    archive._answer_s = 0.05
    told: list[Found] = []
    with hanging(lake):
        assert await archive.first_look() == 0
        ask(archive, told.append)
        await eventually(lambda: told != [])
        assert tally.failures == 2

    archive._answer_s = PATIENCE_S
    assert await answer(archive) is not None
    assert (told, tally.failures) == ([None], 2)
    assert (await archive.first_look(), archive.position) == (4, 4)


async def test_questions_do_not_pile_up(
    lake: SmallLake, archive: LakeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ASKED_MAX", 2)
    told: list[tuple[int, Found]] = []

    def teller(number: int) -> Callable[[Found], None]:
        return lambda found: told.append((number, found))

    with hanging(lake):
        for number in range(4):
            ask(archive, teller(number))
        assert told == []
        await asyncio.sleep(0)
        assert told == [(2, None), (3, None)]
    await eventually(lambda: len(told) == 4)
    assert await answer(archive) is not None


async def test_closing_does_not_wait_for_a_lake_that_hangs(
    lake: SmallLake, archive: LakeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.01)
    told: list[Found] = []
    with hanging(lake):
        ask(archive, told.append)
        archive.close()
        assert told == []


async def test_an_archive_that_is_needed_and_not_there_is_away(make: Make, tmp_path: Path) -> None:
    nothing = SmallLake(tmp_path / "nothing")
    for is_needed, expected in ((True, None), (False, [])):
        assert await answer(make(nothing, is_needed=is_needed)) == expected


async def test_a_table_that_was_made_again_is_noticed_within_a_minute(
    lake: SmallLake, archive: LakeArchive, clock: FakeClock
) -> None:
    for last in range(4, 8):
        lake.append("inbox", [], last=last)
    assert await look(archive) == Sight(8, 0)
    lake.drop()
    lake.append("inbox", [row(1)], last=1)

    clock.advance(61)

    assert await look(archive) == Sight(2, 0)
    found = await answer(archive)
    assert found is not None
    assert [one.seq for one in found] == [1]


async def test_waiting_segments_land_from_the_oldest_on_and_are_counted_once(
    lake: SmallLake, archive: LakeArchive
) -> None:
    archive.wait_for([segment(number) for number in range(4)])
    lake.append("inbox", [], last=38)
    lake.append("entries", map(place, range(20)), last=19)
    assert await look(archive) == Sight(39, 20)
    assert (archive.landed, archive.wanted) == (20, 4)

    lake.append("entries", map(place, range(20, 40)), last=39)
    assert await look(archive) == Sight(39, 30), "messages of rooms must be there as well"
    lake.append("inbox", [], last=39)
    assert await look(archive) == Sight(40, 40)
    lake.spoil("entries")
    assert await look(archive) == Sight(40, 40)


async def test_a_segment_that_is_missing_holds_up_those_behind_it(
    lake: SmallLake, archive: LakeArchive, caplog: pytest.LogCaptureFixture
) -> None:
    archive.wait_for([segment(number) for number in range(3)])
    lake.append("inbox", [], last=29)
    lake.append("entries", [place(n) for n in range(30) if n != 15], last=29)

    for _ in range(2):
        assert await look(archive) == Sight(30, 10)
    assert len(caplog.records) == 1
    caplog.clear()


async def test_a_table_that_is_being_made_again_is_away_and_not_empty(
    lake: SmallLake, make: Make, tmp_path: Path
) -> None:
    archive = make(log_cut=lambda: 4)
    assert len(await answer(archive) or []) == 3
    shutil.rmtree(tmp_path / "lake" / "inbox")
    lake.append("inbox", [], last=0)
    assert await answer(archive) is None

    lake.append("inbox", [row(seq) for seq in range(1, 4)], last=3)
    assert len(await answer(archive) or []) == 3


async def test_a_lake_ahead_of_the_log_says_nothing_about_it(make: Make) -> None:
    archive = make(log_head=lambda: 2)

    assert await look(archive) is None
    assert archive.position == 0


async def test_counting_many_segments_goes_on_where_it_stopped(
    archive: LakeArchive, lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append("inbox", [], last=29)
    lake.append("entries", map(place, range(30)), last=29)
    archive.wait_for([segment(number) for number in range(3)])
    for limit_s, landed in ((-1.0, 0), (60.0, 30)):
        monkeypatch.setattr(module, "_COUNT_S", limit_s)
        assert (await look(archive) or Sight(0, -1)).landed == landed
