"""What the hub reads from the tables of the lake, and what it makes of a lake in trouble."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from signalhub.core.rooms.values import Archived
from signalhub.engine.archive import LakeReader
from signalhub.log.segment import SegmentInfo, segment_name
from signalhub.pipeline.lake import LakeUnreachable
from tests.support.lake.small_lake import EPOCH, HASH, NOW_MS, STREAM, SmallLake, place, row


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
