"""What the index finds and forgets; damage to its file is in tests/faults/test_index_damage.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.index import Index
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.survey import INDEX_NAME
from tests.support.memory.log import do_upkeep, entry, open_log, seqs

ENDLESS = 2**30
NOTHING: frozenset[int] = frozenset()


@pytest.fixture
def disk(tmp_path: Path) -> SystemDisk:
    return SystemDisk(tmp_path / "log")


@pytest.fixture
def log(disk: SystemDisk) -> Iterator[Log]:
    """Five sealed segments, of which each holds `orders` and every second one `mail`."""
    log = open_log(disk, segment_bytes=3_000)
    for number in range(5):
        log.append([entry(10 * number + step) for step in range(1, 11)])
        if number % 2:
            log.append([entry(number // 2 + 1, "mail")])
        log.append([entry(number + 1, "filler", body=bytes(3_000))])
    log.append([entry(6, "filler", body=bytes(3_000))])
    do_upkeep(log)
    yield log
    log.close()


@pytest.fixture
def index(disk: SystemDisk) -> Iterator[Index]:
    index = Index(disk)
    yield index
    index.close()


def update(index: Index, log: Log) -> int:
    return sum(1 for _ in index.update(log.segments))


def execute(disk: SystemDisk, sql: str) -> None:
    """Change the index behind its back."""
    connection = apsw.Connection(str(disk.path / INDEX_NAME))
    connection.execute(sql)
    connection.close()


def holding(log: Log, stream: str, from_seq: int) -> frozenset[int]:
    """The sealed segments with entries of a stream from a position on, by reading them all."""
    reader = Reader(log)
    found = frozenset(
        info.base
        for info in log.segments
        if info.is_sealed
        for stored in reader.scan(info.base, info.end)
        if stored.stream == stream and stored.seq >= from_seq
    )
    reader.close()
    return found


def test_sealed_segments_are_found_by_stream_and_position(index: Index, log: Log) -> None:
    assert index.find("orders", 1, 1) == (NOTHING, NOTHING)
    assert update(index, log) > 0
    assert update(index, log) == 0, "only what is new is added"

    known, found = index.find("orders", 1, 31)
    assert known == frozenset(info.base for info in log.segments if info.is_sealed)
    assert found == holding(log, "orders", 31)
    for stream, epoch, from_seq, count in (
        *(("orders", 1, 1, 5), ("orders", 1, 31, 2), ("orders", 1, 50, 1), ("orders", 1, 51, 0)),
        *(("mail", 1, 1, 2), ("mail", 2, 1, 0)),
    ):
        assert len(index.find(stream, epoch, from_seq)[1]) == count
    log.remove(log.segments[:4])
    update(index, log)
    known, found = index.find("orders", 1, 1)
    assert known == frozenset(info.base for info in log.segments if info.is_sealed)
    assert found <= known


def test_a_reader_with_an_index_reads_the_same(index: Index, log: Log) -> None:
    update(index, log)
    with_index, without = Reader(log, index), Reader(log)

    for stream in ("orders", "mail", "filler", "nobody"):
        for from_seq in (1, 2, 15, 50, 51):
            expected = without.read(stream, 1, from_seq, ENDLESS, ENDLESS)
            assert with_index.read(stream, 1, from_seq, ENDLESS, ENDLESS) == expected
        assert with_index.earliest(stream, 1) == without.earliest(stream, 1)

    with_index.close()
    without.close()


def test_a_reader_opens_only_the_segments_that_matter(
    index: Index, log: Log, disk: SystemDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    update(index, log)
    reader = Reader(log, index)
    opened: list[str] = []
    really_open = disk.open

    def counted(name: str, *, read_only: bool = False) -> object:
        opened.append(name)
        return really_open(name, read_only=read_only)

    monkeypatch.setattr(disk, "open", counted)

    assert seqs(reader.read("mail", 1, 2, 10, ENDLESS)) == [2]
    assert len([name for name in opened if name != log.segments[-1].name]) == 1
    reader.close()


@pytest.mark.parametrize(
    "change",
    [
        "SELECT 1",
        "UPDATE stream_range SET stream = 'ordert' WHERE last_seq = 20",
        "PRAGMA user_version = 99",
    ],
    ids=["nothing", "rows", "version"],
)
def test_an_index_is_checked_before_it_is_used(log: Log, disk: SystemDisk, change: str) -> None:
    first = Index(disk)
    update(first, log)
    first.close()
    execute(disk, change)

    again = Index(disk)
    assert again.find("orders", 1, 1) == (NOTHING, NOTHING)
    update(again, log)

    assert len(again.find("orders", 1, 1)[1]) == 5
    again.close()


def test_a_segment_that_was_replaced_is_learned_again(
    index: Index, log: Log, disk: SystemDisk
) -> None:
    update(index, log)
    execute(disk, "UPDATE segment SET chain = x'00' WHERE base = 0")

    assert update(index, log) > 0
    assert update(index, log) == 0
