"""What the hub reads from the tables of the lake, and what it makes of a lake in trouble.

At the end: whoever asks the archive is answered in bounded time, whatever the lake does.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from signalhub.core.effects import Consult
from signalhub.core.rooms.values import Archived
from signalhub.counters import LakeTally
from signalhub.engine import archive as module
from signalhub.engine.archive import LakeArchive, LakeReader, Sight
from signalhub.log.segment import SegmentInfo, segment_name
from signalhub.pipeline.lake import Lake, LakeUnreachable
from signalhub.testing import FakeClock
from tests.support.lake.small_lake import EPOCH, HASH, NOW_MS, STREAM, SmallLake, place, row
from tests.support.socket.stage import eventually


@pytest.fixture
def lake(tmp_path: Path) -> SmallLake:
    return SmallLake(tmp_path / "lake")


@pytest.fixture
def reader(lake: SmallLake) -> LakeReader:
    return LakeReader(lake.lake)


def seqs(
    reader: LakeReader, first: int, last: int, count: int = 100, stream: str = STREAM
) -> list[int]:
    return [one.seq for one in reader.page(stream, first, last, count, NOW_MS)]


def segment(base: int, end: int, epoch: int = EPOCH) -> SegmentInfo:
    return SegmentInfo(
        name=segment_name(base), base=base, end=end, bytes=1, epoch=epoch, created_ms=0
    )


def test_a_hub_beside_a_lake_does_not_load_spark() -> None:
    script = "import sys, signalhub.server.lake; print('pyspark' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stdout == "False\n", done.stderr


def test_a_table_that_is_not_there_yet_holds_nothing(reader: LakeReader) -> None:
    assert reader.page(STREAM, 1, 10, 10, NOW_MS) == []
    assert reader.inbox_position(EPOCH) == 0
    assert reader.holds(segment(0, 10)) is None


def test_the_position_is_the_offset_behind_the_last_one_of_the_epoch(
    lake: SmallLake, reader: LakeReader
) -> None:
    lake.append("inbox", [row(1)], last=41)
    assert (reader.inbox_position(EPOCH), reader.inbox_position(EPOCH + 1)) == (42, 0)

    lake.append("inbox", [], last=99)
    assert reader.inbox_position(EPOCH) == 100, "also without a row"


def test_a_message_is_read_as_it_was_written(lake: SmallLake, reader: LakeReader) -> None:
    lake.append("inbox", [row(1), row(2, {"created_at": None})], last=2)

    assert reader.page(STREAM, 1, 2, 2, NOW_MS) == [
        Archived(1, "m-1", b"Y2lwaGVy", NOW_MS, NOW_MS + 60_000),
        Archived(2, "m-2", b"Y2lwaGVy", None, NOW_MS + 60_000),
    ]


def test_a_page_holds_the_lowest_positions_with_both_ends_included(
    lake: SmallLake, reader: LakeReader
) -> None:
    for first in (21, 1, 11):
        lake.append("inbox", [row(seq) for seq in range(first, first + 10)], last=first)

    assert seqs(reader, 5, 25) == list(range(5, 26))
    assert seqs(reader, 5, 25, 7) == list(range(5, 12))
    assert seqs(reader, 30, 40) == [30]
    assert seqs(reader, 31, 40) == []


def test_only_the_inbox_that_was_asked_for_is_read(lake: SmallLake, reader: LakeReader) -> None:
    other = {"inbox": HASH[::-1]}
    rows = [row(1), row(2, other), row(3, {"key_version": 2}), row(4)]
    lake.append("inbox", rows, last=4)

    assert seqs(reader, 1, 9) == [1, 4]
    assert seqs(reader, 1, 9, stream=f"inbox.1.{HASH[::-1]}") == [2]
    assert seqs(reader, 1, 9, stream=f"inbox.2.{HASH}") == [3]


@pytest.mark.parametrize(
    "stream",
    [
        "inbox.1.x' OR '1' = '1",
        f"inbox.1.{HASH}' OR seq > 0 --",
        f"inbox.1 OR 1=1.{HASH}",
        f"room.1.{HASH}",
        f"inbox.1.{HASH}\n",
        "",
    ],
)
def test_what_is_no_name_of_an_inbox_never_becomes_a_query(
    lake: SmallLake, reader: LakeReader, stream: str
) -> None:
    lake.append("inbox", [row(1)], last=1)

    assert seqs(reader, 1, 9, stream=stream) == []


def test_expired_messages_are_passed_over_however_many_there_are(
    lake: SmallLake, reader: LakeReader
) -> None:
    gone = {"expires_at": NOW_MS * 1000}
    rows = [row(seq, gone if seq < 1_000 else None) for seq in range(1, 1_011)]
    lake.append("inbox", rows, last=1_010)

    assert seqs(reader, 1, 5_000, 2) == [1_000, 1_001]
    assert seqs(reader, 1, 999, 2) == []


def test_a_position_given_out_twice_has_the_message_of_the_later_epoch(
    lake: SmallLake, reader: LakeReader
) -> None:
    lake.append("inbox", [row(seq) for seq in range(1, 7)], last=6)
    renewed = [row(seq, {"message_id": f"n-{seq}"}, epoch=EPOCH + 1) for seq in range(4, 9)]
    lake.append("inbox", renewed, last=8, epoch=EPOCH + 1)

    for count in range(1, 9):
        found = reader.page(STREAM, 1, 8, count, NOW_MS)
        expected = ["m-1", "m-2", "m-3", "n-4", "n-5", "n-6", "n-7", "n-8"]
        assert [one.message_id for one in found] == expected[:count]


def test_what_the_log_still_holds_can_be_left_out(lake: SmallLake, reader: LakeReader) -> None:
    lake.append("inbox", [row(seq) for seq in range(1, 6)], last=5)
    lake.append("inbox", [row(6, epoch=EPOCH - 1)], last=6, epoch=EPOCH - 1)

    found = reader.page(STREAM, 1, 9, 9, NOW_MS, (EPOCH, 4))

    assert [one.seq for one in found] == [1, 2, 3, 6]


def test_what_was_erased_is_not_read_a_moment_later(lake: SmallLake, reader: LakeReader) -> None:
    lake.append("inbox", [row(seq) for seq in range(1, 6)], last=5)
    assert seqs(reader, 1, 5) == [1, 2, 3, 4, 5]

    DeltaTable(lake.lake.location("inbox")).delete('"offset" in (2, 3)')

    assert seqs(reader, 1, 5) == [1, 4, 5]


def test_files_that_vanish_while_they_are_read_are_looked_for_anew(
    lake: SmallLake, reader: LakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append("inbox", [row(1), row(2)], last=2)
    lake.append("inbox", [row(3)], last=3)
    assert seqs(reader, 1, 3) == [1, 2, 3]
    old = lake.lake.open("inbox")
    lake.compact("inbox")
    assert old is not None

    # The table stands where it stood before its files were replaced, until it is opened anew.
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda self: None)

    assert seqs(reader, 1, 3) == [1, 2, 3]
    assert lake.lake.open("inbox") is not old


def test_files_that_are_gone_for_good_are_told(lake: SmallLake, reader: LakeReader) -> None:
    lake.append("inbox", [row(1)], last=1)
    lake.spoil("inbox")

    with pytest.raises(LakeUnreachable, match="cannot be read"):
        reader.page(STREAM, 1, 1, 1, NOW_MS)


def test_a_lake_that_goes_away_is_not_an_empty_one(lake: SmallLake, reader: LakeReader) -> None:
    lake.append("inbox", [row(1)], last=1)
    assert seqs(reader, 1, 1) == [1]
    lake.hide()

    with pytest.raises(LakeUnreachable):
        reader.page(STREAM, 1, 1, 1, NOW_MS)
    with pytest.raises(LakeUnreachable):
        reader.inbox_position(EPOCH)

    lake.show()
    assert seqs(reader, 1, 1) == [1]


def test_the_hub_goes_on_while_a_query_runs(lake: SmallLake, reader: LakeReader) -> None:
    count = 300_000
    lake.append("entries", map(place, range(count)), last=count - 1)
    sql = """SELECT count(DISTINCT concat("offset", 'a', "offset" * 7, 'b')) FROM entries"""
    is_done = threading.Event()
    turns: list[None] = []

    def take_turns() -> None:
        while not is_done.wait(0.0005):
            turns.append(None)

    other = threading.Thread(target=take_turns)
    other.start()
    reader._query("entries", sql)
    seen = len(turns)
    is_done.set()
    other.join()

    assert seen > 5


@pytest.mark.parametrize(
    ("entries", "held"),
    [
        ([place(n) for n in range(30)], True),
        ([place(n) for n in range(30) if n != 15], False),
        ([place(14 if n == 15 else n) for n in range(30)], False),
        ([*map(place, range(30)), place(15)], False),
        ([place(n, EPOCH - 1) for n in range(30)], False),
        ([place(n) | {"shard": 1} for n in range(30)], False),
    ],
    ids=["whole", "lost", "doubled for lost", "doubled", "another epoch", "another shard"],
)
def test_a_segment_is_held_when_each_of_its_entries_is_there_once(
    lake: SmallLake, reader: LakeReader, entries: list[dict[str, int]], held: bool
) -> None:
    lake.append("entries", entries, last=29)

    assert reader.holds(segment(10, 20)) is held
    assert reader.holds(segment(20, 31)) is reader.holds(segment(10, 20, EPOCH - 1)) is None


PATIENCE_S = 20.0

Found = list[Archived] | None


@pytest.fixture
def filled(lake: SmallLake) -> SmallLake:
    """The lake with three messages."""
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
async def make(filled: SmallLake, tally: LakeTally, clock: FakeClock) -> AsyncIterator[Make]:
    """Archives over the lake, or another one; closed at the end."""
    made: list[LakeArchive] = []

    def archive(over: SmallLake = filled, **options: Any) -> LakeArchive:
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
    archive.wait_for([segment(10 * number, 10 * number + 10) for number in range(4)])
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
    archive.wait_for([segment(10 * number, 10 * number + 10) for number in range(3)])
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
    archive.wait_for([segment(10 * number, 10 * number + 10) for number in range(3)])
    for limit_s, landed in ((-1.0, 0), (60.0, 30)):
        monkeypatch.setattr(module, "_COUNT_S", limit_s)
        assert (await look(archive) or Sight(0, -1)).landed == landed


class _Vanishing(Lake):
    """A lake whose storage goes away just after a table was opened."""

    def open(self, name: str) -> DeltaTable | None:
        table = super().open(name)
        shutil.rmtree(self.uri)
        return table


def test_a_lake_that_goes_away_while_it_is_read_is_unreachable(lake: SmallLake) -> None:
    # delta-rs reads the commits of an open table again when it is asked for a position.
    lake.append("inbox", [], last=7)

    with pytest.raises(LakeUnreachable):
        _Vanishing(lake.lake.uri).committed("inbox", 0, EPOCH)
