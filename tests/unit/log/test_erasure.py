from __future__ import annotations

from pathlib import Path

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.erasure import SegmentErasure, remove_torn, rewrite
from signalhub.log.errors import LogDamaged, LogFull
from signalhub.log.index import Index
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.record import SALT_BYTES, encode_entry, entry_digest, erased_entry
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from signalhub.wire.entry import Kind, StoredEntry
from tests.support.memory.log import do_upkeep, drive, entry, fill, flip_bit, open_log, seqs

ADDRESS = "@(people/ada)"
PSEUDONYM = "erased.00ff"
SEGMENT_BYTES = 4_000
SECRET = b"the colour of the sky"


def two_streams(disk: FaultyDisk | SystemDisk) -> Log:
    """Batches of four: two orders, a message for somebody, and what became of it."""
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
    end = log.segments[-1].base
    ranges = tuple((at, at + 1) for at in range(2, end, 4))
    return SegmentErasure(ranges, PSEUDONYM, ranges)


def everything(log: Log) -> list[StoredEntry]:
    return [*Reader(log).scan(log.first)]


def bytes_of(disk: FaultyDisk | SystemDisk) -> bytes:
    files = (disk.open(name, read_only=True) for name in disk.names())
    return b"".join(file.read(file.size(), 0) for file in files)


def test_what_is_erased_is_nowhere_in_the_folder() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    log.roll_soon()
    log.append([entry(61)])

    drive(log.erase([of_somebody(log)]))

    assert SECRET not in bytes_of(disk)
    assert ADDRESS.encode() not in bytes_of(disk)


def test_everything_but_body_and_name_stays() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    before, erasure = everything(log), of_somebody(log)

    done = drive(log.erase([erasure]))

    after = everything(log)
    chosen = {at for first, last in erasure.ranges for at in range(first, last + 1)}
    assert sum(one.erased for one in done) == len(chosen)
    for old, new in zip(before, after, strict=True):
        assert new.is_erased == (old.offset in chosen)
        assert (new.offset, new.kind, new.stream_epoch) == (old.offset, old.kind, old.stream_epoch)
        assert (new.seq, new.at_ms) == (old.seq, old.at_ms)
        if new.is_erased:
            assert new.stream == PSEUDONYM
        else:
            assert new == old


def test_the_log_is_still_proven_and_counts_what_was_erased() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    chains = [info.chain for info in log.segments]
    erasure = of_somebody(log)

    drive(log.erase([erasure]))

    report = verify(disk)
    assert report.is_sound, report.problems
    assert report.erased == 2 * len(erasure.ranges)
    assert [info.chain for info in log.segments] == chains
    assert [info.chain for info in recover(disk, repair=False).segments] == chains


def test_a_stream_that_keeps_its_name_is_read_with_its_holes() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    reader = Reader(log)
    assert seqs(reader.read("orders", 1, 1, 10, 2**20)) == [*range(1, 11)]

    drive(log.erase([SegmentErasure(((1, 1), (4, 4)))]))

    found = reader.read("orders", 1, 1, 10, 2**20)
    assert seqs(found) == [*range(1, 11)]
    assert [one.seq for one in found if one.is_erased] == [2, 3]


def test_a_reader_of_the_process_forgets_the_old_file() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    reader = Reader(log)
    assert reader.read(ADDRESS, 2, 1, 5, 2**20)[0].body == SECRET

    drive(log.erase([of_somebody(log)]))

    left = reader.read(ADDRESS, 2, 1, 100, 2**20)
    assert all(one.offset >= log.segments[-1].base for one in left)
    assert seqs(reader.read(PSEUDONYM, 2, 1, 5, 2**20)) == [1, 2, 3, 4, 5]


def test_a_reader_of_another_process_that_finds_fault_looks_again() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    reader = Reader.of_folder(disk)
    # It knows where everything was, and has let go of the file.
    scan = reader.scan(0)
    assert next(scan).offset == 0
    assert seqs(reader.read("orders", 1, 1, 3, 2**20)) == [1, 2, 3]
    reader._blocks.close()

    drive(log.erase([of_somebody(log)]))

    assert seqs(reader.read("orders", 1, 1, 60, 2**20)) == [*range(1, 61)]


def test_a_look_up_of_the_old_file_is_never_used_for_the_new_one() -> None:
    """All entries of a batch move by the size of one, and the batch keeps its size."""
    disk = FaultyDisk()
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


def test_erasing_again_changes_nothing() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    drive(log.erase([of_somebody(log)]))
    files = disk.files()

    assert drive(log.erase([of_somebody(log)])) == []
    assert disk.files() == files


def test_two_erasures_may_share_a_segment() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    first = SegmentErasure(((2, 3),), "erased.01", ((2, 3),))
    second = SegmentErasure(((3, 3), (6, 6)), "erased.02", ((6, 6),))

    done = drive(log.erase([first, second]))

    names = [one.stream for one in everything(log) if one.is_erased]
    assert names == ["erased.01", "erased.01", "erased.02"]
    assert len(done) == 1


def test_an_entry_erased_for_one_may_lose_the_name_for_another() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    drive(log.erase([SegmentErasure(((2, 2),))]))
    assert everything(log)[2].stream == ADDRESS

    drive(log.erase([SegmentErasure(((2, 2),), PSEUDONYM, ((2, 2),))]))

    assert everything(log)[2].stream == PSEUDONYM
    assert verify(disk).is_sound


def test_the_salt_goes_with_the_body_so_that_nobody_can_try_bodies_out() -> None:
    salt = bytes(range(1, 1 + SALT_BYTES))
    encoded = encode_entry(entry(1, body=SECRET), salt)

    erased = erased_entry(encoded, 0)

    assert salt not in erased
    assert erased.endswith(entry_digest(encoded, 0))
    assert entry_digest(erased, 0) == entry_digest(encoded, 0)


def test_entries_of_deleted_segments_are_passed_over() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    erasure = of_somebody(log)
    log.remove(log.segments[:1])

    drive(log.erase([erasure]))

    assert verify(disk).is_sound


def test_the_last_segment_is_left_once_the_log_is_told_to_roll() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([entry(1, body=SECRET)])
    log.roll_soon()
    log.append([entry(2)])

    done = drive(log.erase([SegmentErasure(((0, 0),))]))

    assert [one.erased for one in done] == [1]
    assert SECRET not in bytes_of(disk)


def test_an_empty_segment_is_not_rolled() -> None:
    log = open_log(FaultyDisk())
    log.roll_soon()
    log.append([entry(1)])

    assert len(log.segments) == 1


def test_a_damaged_segment_is_not_replaced() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    info = log.segments[1]
    flip_bit(disk, info.name, BATCHES_BEGIN + 100)
    files = disk.files()

    with pytest.raises(LogDamaged):
        drive(log.erase([of_somebody(log)]))

    assert disk.files()[info.name] == files[info.name]
    assert log.state == "damaged"


def test_without_room_nothing_happens_and_later_it_does() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    files = disk.files()
    disk.capacity_bytes = sum(map(len, files.values())) + 2_000

    with pytest.raises(LogFull):
        drive(log.erase([of_somebody(log)]))
    assert disk.files() == files

    disk.capacity_bytes = None
    assert drive(log.erase([of_somebody(log)]))
    assert log.state == "open"


def test_commits_go_on_between_two_slices() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    slices = log.erase([of_somebody(log)])
    seq = 61
    for _ in slices:
        log.append([entry(seq)])
        seq += 1

    assert seq > 62
    assert verify(disk).is_sound


def test_an_abandoned_erasure_leaves_the_old_segment_and_no_other_file() -> None:
    disk = FaultyDisk()
    log = two_streams(disk)
    files = disk.files()
    info = log.segments[0]
    slices = rewrite(disk, info, [of_somebody(log)])
    next(slices)

    slices.close()

    assert disk.files() == files


def test_torn_ends_that_hold_the_bytes_are_removed_and_counted() -> None:
    disk = FaultyDisk(
        {
            "00000000000000000000.48.torn": b"x" * 2**18 + ADDRESS.encode(),
            "00000000000000000000.99.torn": b"somebody else",
            "00000000000000000000.50.torn": b"y" * (2**18 - 3) + ADDRESS.encode(),
        }
    )

    assert drive(remove_torn(disk, [ADDRESS.encode()])) == 2
    assert disk.names() == ["00000000000000000000.99.torn"]


class TestIndex:
    """The look-up of a real folder, which knows the names of streams, too."""

    def test_the_index_forgets_the_name(self, tmp_path: Path) -> None:
        disk = SystemDisk(tmp_path)
        log = two_streams(disk)
        index = Index(disk)
        drive(index.update(log.segments))
        erasure = of_somebody(log)
        log.roll_soon()
        log.append([entry(61)])
        last = log.segments[-1].base
        everything_left = tuple((at, at + 1) for at in range(2, last, 4))

        done = drive(
            log.erase([erasure, SegmentErasure(everything_left, PSEUDONYM, everything_left)])
        )
        index.forget([one.info.base for one in done])
        drive(index.update(log.segments))
        index.close()

        assert ADDRESS.encode() not in bytes_of(disk)
        reader = Reader(log, Index(disk))
        assert seqs(reader.read("orders", 1, 1, 99, 2**20)) == [*range(1, 62)]

    def test_after_a_crash_before_that_the_next_start_finds_out(self, tmp_path: Path) -> None:
        disk = SystemDisk(tmp_path)
        log = two_streams(disk)
        index = Index(disk)
        drive(index.update(log.segments))
        log.roll_soon()
        log.append([entry(61)])
        drive(log.erase([of_somebody(log)]))
        index.close()

        again = Index(disk)
        drive(again.update(log.segments))

        known, found = again.find(ADDRESS, 2, 1)
        assert known
        assert not found
        assert again.find(PSEUDONYM, 2, 1)[1]
