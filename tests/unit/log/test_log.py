from __future__ import annotations

import errno
from typing import Literal

import pytest

from signalhub.log.errors import LogDamaged, LogFailed, LogFull
from signalhub.log.head import Head, read_head
from signalhub.log.log import Log
from signalhub.log.record import entry_digest, entry_positions
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN, PREPARED_NAME, scan_batches
from signalhub.log.survey import RESERVE_NAME
from signalhub.testing import FakeClock, FaultyDisk
from tests.support.memory.log import (
    NOW_MS,
    contents,
    do_upkeep,
    entry,
    fill,
    fill_segments,
    open_log,
)

Late = Literal["interval", "os"]
LATE: tuple[Late, ...] = ("interval", "os")


def trace(disk: FaultyDisk) -> list[tuple[str, str]]:
    return [(step.operation, step.name) for step in disk.trace]


def test_a_new_log_is_empty_and_has_the_time_as_its_epoch() -> None:
    log = open_log(FaultyDisk())

    assert (log.first, log.head, log.durable_head, log.state) == (0, 0, 0, "open")
    assert log.epoch == NOW_MS // 1000
    assert contents(log) == []


def test_offsets_are_dense_across_batches_and_restarts() -> None:
    disk = FaultyDisk()
    log = open_log(disk)

    assert log.append([entry(1), entry(2)]) == 0
    assert log.append([entry(3)]) == 2
    log.close()
    log = open_log(disk)
    assert log.append([entry(4)]) == 3

    assert (log.head, log.durable_head) == (4, 4)
    assert contents(log) == [entry(seq) for seq in (1, 2, 3, 4)]


def test_a_batch_is_one_write_and_one_sync_and_then_it_is_published() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    disk.trace.clear()

    log.append([entry(seq) for seq in range(1, 100)])

    name = log.segments[-1].name
    assert trace(disk) == [("write", name), ("sync", name), ("write", "head")]
    assert read_head(disk) == Head(log.epoch, 99, 99)


def test_a_batch_knows_the_durable_head_of_its_time() -> None:
    disk = FaultyDisk()
    clock = FakeClock()
    log = open_log(disk, clock)
    log.append([entry(1), entry(2)])
    clock.advance(7)
    log.append([entry(3)])

    info = log.segments[0]
    *_, last = scan_batches(disk.open(info.name), BATCHES_BEGIN, info.bytes)

    assert (last.batch.first, last.batch.durable) == (2, 2)
    assert (last.batch.epoch, last.batch.time_ms) == (log.epoch, NOW_MS + 7_000)


def test_no_two_entries_have_the_same_salt() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append([entry(1)] * 3)
    log.append([entry(1)] * 2)
    info = log.segments[0]

    digests = {
        entry_digest(located.data, at)
        for located in scan_batches(disk.open(info.name), BATCHES_BEGIN, info.bytes)
        for at in entry_positions(located.data, located.batch, located.at)
    }

    assert len(digests) == 5


def test_a_segment_is_full_at_its_size() -> None:
    log = open_log(FaultyDisk(), segment_bytes=2_000)

    fill(log, 60)

    sizes = [info.bytes for info in log.segments]
    assert len(sizes) > 4
    assert all(size <= 2_000 for size in sizes)
    assert all(size > 1_700 for size in sizes[:-1])
    assert [info.base for info in log.segments[1:]] == [info.end for info in log.segments[:-1]]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    log = open_log(FaultyDisk(), segment_bytes=2_000)

    fill(log, 1)
    log.append([entry(2, body=bytes(10_000))])
    fill(log, 1, first_seq=3)

    assert [info.base for info in log.segments] == [0, 1, 2]
    assert len(contents(log)) == 3


def test_a_segment_is_full_at_its_age() -> None:
    disk, clock = FaultyDisk(), FakeClock()
    log = open_log(disk, clock, segment_s=60)
    clock.advance(61)
    fill(log, 1)
    assert len(log.segments) == 1, "an empty segment does not age"

    clock.advance(50)
    log.close()
    log = open_log(disk, clock, segment_s=60)
    fill(log, 1, first_seq=2)

    assert [info.base for info in log.segments] == [0, 1]


def test_setting_the_clock_back_or_forth_changes_no_order() -> None:
    clock = FakeClock()
    log = open_log(FaultyDisk(), clock, segment_s=60)
    for seconds in (-86_400, 2 * 86_400, -86_400):
        clock.jump(seconds)
        fill(log, 2)

    assert len(log.segments) == 1
    assert log.head == 6


def test_the_next_segment_is_prepared_when_the_active_one_is_half_full() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=100_000)
    asked: list[int] = []
    log.on_upkeep = lambda: asked.append(log.segments[-1].bytes)
    fill(log, 250)
    assert not asked

    fill(log, 150, first_seq=251)
    assert len(asked) == 1
    assert 50_000 <= asked[0] < 51_000
    assert log.has_upkeep
    do_upkeep(log)
    assert disk.open(PREPARED_NAME).size() == 100_000
    fill_segments(log, 2)

    assert PREPARED_NAME not in disk.names()
    assert disk.open(log.segments[1].name).size() == 100_000


def test_a_segment_that_was_not_prepared_in_time_is_made_without() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=600_000)
    log.append([entry(1, body=bytes(400_000))])
    upkeep = log.upkeep()
    next(upkeep)

    log.append([entry(2, body=bytes(400_000))])
    assert disk.open(log.segments[1].name).size() == log.segments[1].bytes
    list(upkeep)
    log.append([entry(3, body=bytes(400_000))])

    assert disk.open(log.segments[2].name).size() == 600_000
    assert [one.seq for one in contents(log)] == [1, 2, 3]


class BusyDisk(FaultyDisk):
    """Lets upkeep run at the worst moment: while a prepared segment gets its name."""

    log: Log | None = None

    def rename(self, old: str, new: str) -> None:
        if self.log and old == PREPARED_NAME:
            do_upkeep(self.log)
        super().rename(old, new)


def test_a_prepared_segment_is_not_prepared_again_while_it_is_taken() -> None:
    disk = BusyDisk()
    disk.log = log = open_log(disk, segment_bytes=10_000)
    log.append([entry(1, body=bytes(6_000))])
    do_upkeep(log)

    log.append([entry(2, body=bytes(6_000))])

    assert [one.seq for one in contents(log)] == [1, 2]
    assert [one.seq for one in contents(open_log(disk.restart()))] == [1, 2]


def test_a_closed_log_leaves_no_prepared_segment() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=10_000)
    log.append([entry(1, body=bytes(6_000))])
    do_upkeep(log)

    log.close()

    assert PREPARED_NAME not in disk.names()
    assert disk.open_files == 0


@pytest.mark.parametrize("sync", LATE)
def test_a_log_that_syncs_late_commits_what_is_written(sync: Late) -> None:
    disk = FaultyDisk()
    log = open_log(disk, sync=sync)
    disk.trace.clear()

    fill(log, 3)
    assert (log.head, log.durable_head) == (3, 0)
    assert read_head(disk) == Head(log.epoch, 0, 3)
    assert len(contents(log)) == 3
    assert "sync" not in {operation for operation, _ in trace(disk)}

    log.sync()
    assert log.durable_head == 3
    assert read_head(disk) == Head(log.epoch, 3, 3)


@pytest.mark.parametrize("sync", LATE)
def test_a_finished_segment_is_synced_before_the_next_is_begun(sync: Late) -> None:
    disk = FaultyDisk()
    log = open_log(disk, sync=sync, segment_bytes=2_000)

    fill_segments(log, 2)

    assert log.durable_head == log.segments[1].base == log.head - 1
    for seed in range(20):
        assert recover(disk.crash(seed), repair=True).damage is None


@pytest.mark.parametrize("sync", LATE)
def test_closing_syncs(sync: Late) -> None:
    disk = FaultyDisk()
    log = open_log(disk, sync=sync)
    fill(log, 3)

    log.close()

    assert recover(disk.crash(1), repair=True).head == 3


def test_a_full_disk_refuses_a_batch_and_nothing_of_it_stays() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    fill(log, 3)
    before = disk.files()
    disk.capacity_bytes = sum(map(len, before.values())) + 50

    with pytest.raises(LogFull, match="free some space"):
        log.append([entry(4)])

    assert (log.state, log.head) == ("full", 3)
    assert disk.files() == before
    assert len(contents(log)) == 3


def test_a_log_takes_entries_again_when_there_is_room() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    disk.capacity_bytes = sum(map(len, disk.files().values()))
    with pytest.raises(LogFull):
        fill(log, 1)

    disk.capacity_bytes = None
    fill(log, 2)

    assert (log.state, log.head) == ("open", 2)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_want_of_room_found_out_by_a_sync_takes_the_batch_back_for_good(error: int) -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    fill(log, 2)
    disk.fail("sync", error=error)

    with pytest.raises(LogFull):
        log.append([entry(3)])

    for seed in range(10):
        assert recover(disk.crash(seed), repair=True).head == 2
    disk.heal()
    fill(log, 1, first_seq=3)
    assert [one.seq for one in contents(log)] == [1, 2, 3]


def test_a_roll_that_finds_no_room_is_tried_again() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill(log, 10)
    disk.fail("create", error=errno.ENOSPC)
    with pytest.raises(LogFull):
        fill(log, 5, first_seq=11)
    head = log.head

    disk.heal()
    fill(log, 3, first_seq=head + 1)

    assert len(log.segments) == 2
    assert [one.seq for one in contents(log)] == list(range(1, head + 4))


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_any_other_error_ends_the_log(operation: Literal["write", "sync"]) -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    fill(log, 2)
    disk.fail(operation, error=errno.EIO)

    with pytest.raises(LogFailed, match="restart the hub"):
        log.append([entry(3)])

    assert (log.state, log.head, log.durable_head) == ("failed", 2, 2)
    disk.heal()
    with pytest.raises(LogFailed):
        log.append([entry(3)])
    assert len(contents(log)) == 2


def test_a_late_sync_that_finds_no_room_ends_the_log_too() -> None:
    """Some of it was committed already, so it cannot be taken back."""
    disk = FaultyDisk()
    log = open_log(disk, sync="interval")
    fill(log, 2)
    disk.fail("sync", error=errno.ENOSPC)

    with pytest.raises(LogFailed):
        log.sync()

    assert log.state == "failed"


def test_a_damaged_log_can_be_read_but_not_written() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 4)
    do_upkeep(log)
    names = [info.name for info in log.segments]
    files = {name: data for name, data in disk.files().items() if name != names[2]}

    log = open_log(FaultyDisk(files))

    assert log.state == "damaged"
    for refused in (lambda: log.append([entry(1)]), log.sync):
        with pytest.raises(LogDamaged, match=names[2]):
            refused()
    assert not log.has_upkeep
    log.close()


def test_space_is_set_aside_once() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2**16)
    assert disk.open(RESERVE_NAME).size() == 2**14

    log.close()
    disk.trace.clear()
    open_log(disk, segment_bytes=2**16)

    assert RESERVE_NAME not in {step.name for step in disk.trace if step.operation == "write"}


def test_a_full_disk_does_not_stop_a_log_from_opening() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    fill(log, 3)
    log.close()
    kept = disk.files().keys() - {"head", RESERVE_NAME}
    files = {name: disk.files()[name] for name in kept}
    full = FaultyDisk(files, capacity_bytes=sum(map(len, files.values())))

    log = open_log(full)

    assert len(contents(log)) == 3
    with pytest.raises(LogFull):
        log.append([entry(4)])
