from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.erasure import SegmentErasure, remove_torn, rewrite
from signalhub.log.errors import LogDamaged
from signalhub.log.index import Index
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.record import SALT_BYTES, encode_entry, entry_digest, erased_entry
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from signalhub.wire.entry import Kind, StoredEntry
from tests.support.memory.log import (
    do_upkeep,
    drive,
    entry,
    fill,
    flip_bit,
    open_log,
    seqs,
)

ADDRESS = "@(people/ada)"
PSEUDONYM = "erased.00ff"
SEGMENT_BYTES = 4_000
SECRET = b"the colour of the sky"


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def log(disk: FaultyDisk) -> Log:
    return two_streams(disk)


def two_streams(disk: FaultyDisk | SystemDisk) -> Log:
    """Batches of four: two orders, a message to somebody, and how it was settled."""
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    for turn in range(1, 31):
        log.append(
            [
                entry(2 * turn - 1),
                entry(2 * turn),
                entry(turn, ADDRESS, body=SECRET, kind=Kind.MAIL, stream_epoch=2),
                entry(0, ADDRESS, body=SECRET, kind=Kind.SETTLED, stream_epoch=2),
            ]
        )
    do_upkeep(log)
    return log


def of_somebody(log: Log) -> SegmentErasure:
    """Everything of the second stream in segments that are finished."""
    ranges = tuple((at, at + 1) for at in range(2, log.segments[-1].base, 4))
    return SegmentErasure(ranges, PSEUDONYM, ranges)


def roll(log: Log) -> None:
    log.roll_soon()
    log.append([entry(61)])


def everything(log: Log) -> list[StoredEntry]:
    return [*Reader(log).scan(log.first)]


def bytes_of(disk: FaultyDisk | SystemDisk) -> bytes:
    files = (disk.open(name, read_only=True) for name in disk.names())
    return b"".join(file.read(file.size(), 0) for file in files)


def test_what_is_erased_is_nowhere_and_everything_but_body_and_name_stays(
    disk: FaultyDisk, log: Log
) -> None:
    roll(log)
    before, erasure = everything(log), of_somebody(log)

    done = drive(log.erase([erasure]))

    assert SECRET not in bytes_of(disk)
    assert ADDRESS.encode() not in bytes_of(disk)
    chosen = {at for first, last in erasure.ranges for at in range(first, last + 1)}
    assert sum(one.erased for one in done) == len(chosen)
    for old, new in zip(before, everything(log), strict=True):
        assert new.is_erased == (old.offset in chosen)
        assert (new.offset, new.kind, new.stream_epoch) == (old.offset, old.kind, old.stream_epoch)
        assert (new.seq, new.at_ms) == (old.seq, old.at_ms)
        assert new.stream == PSEUDONYM if new.is_erased else new == old


def test_the_log_is_still_proven_and_counts_what_was_erased(disk: FaultyDisk, log: Log) -> None:
    chains = [info.chain for info in log.segments]
    erasure = of_somebody(log)

    drive(log.erase([erasure]))

    report = verify(disk)
    assert report.is_sound, report.problems
    assert report.erased == 2 * len(erasure.ranges)
    assert [info.chain for info in log.segments] == chains
    assert [info.chain for info in recover(disk, repair=False).segments] == chains
    files = disk.files()
    assert drive(log.erase([of_somebody(log)])) == [], "erasing again changes nothing"
    assert disk.files() == files


def test_a_stream_that_keeps_its_name_is_read_with_its_holes(log: Log) -> None:
    reader = Reader(log)
    assert seqs(reader.read("orders", 1, 1, 10, 2**20)) == [*range(1, 11)]

    drive(log.erase([SegmentErasure(((1, 1), (4, 4)))]))

    found = reader.read("orders", 1, 1, 10, 2**20)
    assert seqs(found) == [*range(1, 11)]
    assert [one.seq for one in found if one.is_erased] == [2, 3]


def test_a_reader_of_the_process_forgets_the_old_file(log: Log) -> None:
    reader = Reader(log)
    assert reader.read(ADDRESS, 2, 1, 5, 2**20)[0].body == SECRET

    drive(log.erase([of_somebody(log)]))

    left = reader.read(ADDRESS, 2, 1, 100, 2**20)
    assert all(one.offset >= log.segments[-1].base for one in left)
    assert seqs(reader.read(PSEUDONYM, 2, 1, 5, 2**20)) == [1, 2, 3, 4, 5]


def test_a_reader_of_another_process_that_finds_a_fault_looks_again(
    disk: FaultyDisk, log: Log
) -> None:
    reader = Reader.of_folder(disk)
    # It knows where everything was, and has closed the file.
    assert next(reader.scan(0)).offset == 0
    assert seqs(reader.read("orders", 1, 1, 3, 2**20)) == [1, 2, 3]
    reader._blocks.close()

    drive(log.erase([of_somebody(log)]))

    assert seqs(reader.read("orders", 1, 1, 60, 2**20)) == [*range(1, 61)]


def test_a_look_up_of_the_old_file_is_never_used_for_the_new_one(disk: FaultyDisk) -> None:
    """All entries of a batch move by the size of one, and the batch keeps its size."""
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    size = 44 + len("orders") + 100
    log.append([*(entry(seq) for seq in range(1, 20)), entry(20, body=bytes(32 + size))])
    fill(log, 10, first_seq=21)
    do_upkeep(log)
    reader = Reader.of_folder(disk)
    assert seqs(reader.read("orders", 1, 3, 1, 2**20)) == [3]
    reader._blocks.close()
    grown = "n" * (len("orders") + 100 - 32 + size)
    before = log.segments[0].bytes

    drive(log.erase([SegmentErasure(((0, 0), (19, 19)), grown, ((0, 0),))]))

    assert log.segments[0].bytes == before
    assert seqs(reader.read("orders", 1, 3, 3, 2**20)) == [3, 4, 5]


def test_several_erasures_may_share_a_segment_and_an_entry(disk: FaultyDisk, log: Log) -> None:
    first = SegmentErasure(((2, 3),), "erased.01", ((2, 3),))
    second = SegmentErasure(((3, 3), (6, 6)), "erased.02", ((6, 6),))
    assert len(drive(log.erase([first, second]))) == 1
    names = [one.stream for one in everything(log) if one.is_erased]
    assert names == ["erased.01", "erased.01", "erased.02"]

    drive(log.erase([SegmentErasure(((10, 10),))]))
    assert everything(log)[10].stream == ADDRESS
    drive(log.erase([SegmentErasure(((10, 10),), PSEUDONYM, ((10, 10),))]))
    assert everything(log)[10].stream == PSEUDONYM
    assert verify(disk).is_sound


def test_the_salt_goes_with_the_body_so_that_nobody_can_guess_bodies() -> None:
    salt = bytes(range(1, 1 + SALT_BYTES))
    encoded = encode_entry(entry(1, body=SECRET), salt)

    erased = erased_entry(encoded, 0)

    assert salt not in erased
    assert erased.endswith(entry_digest(encoded, 0))
    assert entry_digest(erased, 0) == entry_digest(encoded, 0)


def test_entries_of_deleted_segments_are_passed_over(disk: FaultyDisk, log: Log) -> None:
    erasure = of_somebody(log)
    log.remove(log.segments[:1])

    drive(log.erase([erasure]))

    assert verify(disk).is_sound


def test_the_log_rolls_when_told_to_unless_its_segment_is_empty(disk: FaultyDisk) -> None:
    log = open_log(disk)
    log.roll_soon()
    log.append([entry(1, body=SECRET)])
    assert len(log.segments) == 1
    roll(log)

    done = drive(log.erase([SegmentErasure(((0, 0),))]))

    assert [one.erased for one in done] == [1]
    assert SECRET not in bytes_of(disk)


def test_a_damaged_segment_is_not_replaced(disk: FaultyDisk, log: Log) -> None:
    info = log.segments[1]
    flip_bit(disk, info.name, BATCHES_BEGIN + 100)
    files = disk.files()

    with pytest.raises(LogDamaged):
        drive(log.erase([of_somebody(log)]))

    assert disk.files()[info.name] == files[info.name]
    assert log.state == "damaged"


def test_commits_go_on_between_two_slices(disk: FaultyDisk, log: Log) -> None:
    before = log.head
    for _ in log.erase([of_somebody(log)]):
        log.append([entry(log.head)])

    assert log.head > before + 1
    assert verify(disk).is_sound


def test_an_abandoned_erasure_leaves_the_old_segment_and_no_other_file(
    disk: FaultyDisk, log: Log
) -> None:
    files = disk.files()
    slices = rewrite(disk, log.segments[0], [of_somebody(log)])
    next(slices)

    slices.close()

    assert disk.files() == files


def test_torn_ends_that_hold_the_bytes_are_removed_and_counted() -> None:
    names = [f"00000000000000000000.{position}.torn" for position in (48, 50, 99)]
    within = b"x" * 2**18 + ADDRESS.encode()
    across = b"y" * (2**18 - 3) + ADDRESS.encode()
    disk = FaultyDisk(dict(zip(names, (within, across, b"somebody else"), strict=True)))

    assert drive(remove_torn(disk, [ADDRESS.encode()])) == 2
    assert disk.names() == names[2:]


@pytest.mark.parametrize("has_crashed", [False, True])
def test_the_index_forgets_the_name_now_or_at_the_next_start(
    tmp_path: Path, has_crashed: bool
) -> None:
    disk = SystemDisk(tmp_path)
    log = two_streams(disk)
    index = Index(disk)
    drive(index.update(log.segments))
    roll(log)

    done = drive(log.erase([of_somebody(log)]))
    if has_crashed:
        index.close()
        index = Index(disk)
    else:
        index.forget([one.info.base for one in done])
    drive(index.update(log.segments))

    known, found = index.find(ADDRESS, 2, 1)
    assert known
    assert not found
    assert index.find(PSEUDONYM, 2, 1)[1]
    assert seqs(Reader(log, index).read("orders", 1, 1, 99, 2**20)) == [*range(1, 62)]
    index.close()
    assert ADDRESS.encode() not in bytes_of(disk)
