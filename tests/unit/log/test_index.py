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


def sealed(log: Log) -> list[int]:
    return [info.base for info in log.segments if info.is_sealed]


def holding(log: Log, stream: str, from_seq: int) -> frozenset[int]:
    """The sealed segments with entries of a stream from a position on, by looking at them all."""
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


def test_an_empty_index_knows_nothing(index: Index) -> None:
    assert index.find("orders", 1, 1) == (frozenset(), frozenset())


def test_sealed_segments_are_found_by_stream_and_position(index: Index, log: Log) -> None:
    update(index, log)
    bases = sealed(log)

    known, found = index.find("orders", 1, 31)
    assert known == frozenset(bases)
    assert found == holding(log, "orders", 31)
    assert len(found) == 2
    assert len(index.find("orders", 1, 1)[1]) == 5
    assert len(index.find("orders", 1, 50)[1]) == 1
    assert index.find("orders", 1, 51)[1] == frozenset()
    assert len(index.find("mail", 1, 1)[1]) == 2
    assert index.find("mail", 2, 1)[1] == frozenset()


def test_an_update_adds_only_what_is_new(index: Index, log: Log) -> None:
    assert update(index, log) > 0

    assert update(index, log) == 0


def test_deleted_segments_are_forgotten(index: Index, log: Log) -> None:
    update(index, log)
    log.remove(log.segments[:4])

    update(index, log)

    known, found = index.find("orders", 1, 1)
    assert known == frozenset(sealed(log))
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


def test_an_index_is_trusted_only_after_it_was_checked(log: Log, disk: SystemDisk) -> None:
    first = Index(disk)
    update(first, log)
    first.close()

    again = Index(disk)
    assert again.find("orders", 1, 1) == (frozenset(), frozenset())
    update(again, log)

    assert len(again.find("orders", 1, 1)[1]) == 5
    again.close()


def test_rows_that_changed_behind_its_back_are_noticed(log: Log, disk: SystemDisk) -> None:
    first = Index(disk)
    update(first, log)
    first.close()
    connection = apsw.Connection(str(index_path(log)))
    connection.execute("UPDATE stream_range SET stream = 'ordert' WHERE last_seq = 20")
    connection.close()

    again = Index(disk)
    update(again, log)

    assert len(again.find("orders", 1, 1)[1]) == 5
    again.close()


@pytest.mark.parametrize(
    "content", [b"", b"not a database", bytes(8_192), b"SQLite format 3\0" * 99]
)
def test_a_file_that_is_no_index_is_replaced(disk: SystemDisk, log: Log, content: bytes) -> None:
    (disk.path / INDEX_NAME).write_bytes(content)

    index = Index(disk)
    update(index, log)

    assert len(index.find("orders", 1, 1)[1]) == 5
    index.close()


def test_an_index_of_another_version_is_replaced(disk: SystemDisk, log: Log) -> None:
    connection = apsw.Connection(str(disk.path / INDEX_NAME))
    connection.execute("CREATE TABLE stream_range (other); PRAGMA user_version = 99")
    connection.close()

    index = Index(disk)
    update(index, log)

    assert len(index.find("orders", 1, 1)[1]) == 5
    index.close()


def test_an_index_damaged_inside_is_made_again(disk: SystemDisk, log: Log) -> None:
    index = Index(disk)
    update(index, log)
    index.close()
    path = disk.path / INDEX_NAME
    content = path.read_bytes()
    page = int.from_bytes(content[16:18], "big")
    path.write_bytes(content[:page] + b"\xff" * (len(content) - page))

    index = Index(disk)
    assert index.find("orders", 1, 1)[1] == frozenset(), "a reader does without"
    update(index, log)

    assert len(index.find("orders", 1, 1)[1]) == 5
    index.close()


def test_a_segment_that_was_replaced_is_learned_again(index: Index, log: Log) -> None:
    update(index, log)
    info = log.segments[0]
    connection = apsw.Connection(str(index_path(log)))
    connection.execute("UPDATE segment SET chain = x'00' WHERE base = ?", (info.base,))
    connection.close()

    assert update(index, log) > 0
    assert update(index, log) == 0


def index_path(log: Log) -> Path:
    assert isinstance(log.disk, SystemDisk)
    return log.disk.path / INDEX_NAME
