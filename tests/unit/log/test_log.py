from __future__ import annotations

import errno

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
    sealed_log,
    used_bytes,
)

late = pytest.mark.parametrize("sync", ["interval", "os"])


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def trace(disk: FaultyDisk) -> list[tuple[str, str]]:
    return [(step.operation, step.name) for step in disk.trace]


def test_a_new_log_is_empty_and_has_the_time_as_its_epoch(disk: FaultyDisk) -> None:
    log = open_log(disk)

    assert (log.first, log.head, log.durable_head, log.state) == (0, 0, 0, "open")
    assert log.epoch == NOW_MS // 1000
    assert contents(log) == []


def test_offsets_are_dense_across_batches_and_restarts(disk: FaultyDisk) -> None:
    log = open_log(disk)

    assert log.append([entry(1), entry(2)]) == 0
    assert log.append([entry(3)]) == 2
    log.close()
    log = open_log(disk)
    assert log.append([entry(4)]) == 3

    assert (log.head, log.durable_head) == (4, 4)
    assert contents(log) == [entry(seq) for seq in (1, 2, 3, 4)]


def test_a_batch_is_one_write_and_one_sync_and_then_it_is_published(disk: FaultyDisk) -> None:
    log = open_log(disk)
    disk.trace.clear()

    log.append([entry(seq) for seq in range(1, 100)])

    name = log.segments[-1].name
    assert trace(disk) == [("write", name), ("sync", name), ("write", "head")]
    assert read_head(disk) == Head(log.epoch, 99, 99)


def test_a_batch_records_the_durable_head_and_a_salt_for_each_entry(disk: FaultyDisk) -> None:
    clock = FakeClock()
    log = open_log(disk, clock)
    log.append([entry(1)] * 3)
    clock.advance(7)
    log.append([entry(1)] * 2)

    info = log.segments[0]
    batches = list(scan_batches(disk.open(info.name), BATCHES_BEGIN, info.bytes))
    digests = {
        entry_digest(one.data, at)
        for one in batches
        for at in entry_positions(one.data, one.batch, one.at)
    }

    last = batches[-1].batch
    assert (last.first, last.durable) == (3, 3)
    assert (last.epoch, last.time_ms) == (log.epoch, NOW_MS + 7_000)
    assert len(digests) == 5


def test_a_segment_is_full_at_its_size(disk: FaultyDisk) -> None:
    log = open_log(disk, segment_bytes=2_000)

    fill(log, 60)

    sizes = [info.bytes for info in log.segments]
    assert len(sizes) > 4
    assert all(size <= 2_000 for size in sizes)
    assert all(size > 1_700 for size in sizes[:-1])
    assert [info.base for info in log.segments[1:]] == [info.end for info in log.segments[:-1]]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(disk: FaultyDisk) -> None:
    log = open_log(disk, segment_bytes=2_000)

    for size in (100, 10_000, 100):
        log.append([entry(log.head + 1, body=bytes(size))])

    assert [info.base for info in log.segments] == [0, 1, 2]
    assert len(contents(log)) == 3


def test_a_segment_is_full_at_its_age(disk: FaultyDisk) -> None:
    clock = FakeClock()
    log = open_log(disk, clock, segment_s=60)
    clock.advance(61)
    fill(log, 1)
    assert len(log.segments) == 1, "an empty segment does not age"

    clock.advance(50)
    log.close()
    log = open_log(disk, clock, segment_s=60)
    fill(log, 1, first_seq=2)

    assert [info.base for info in log.segments] == [0, 1]


def test_the_next_segment_is_prepared_when_the_active_one_is_half_full(disk: FaultyDisk) -> None:
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


def test_a_segment_that_was_not_prepared_in_time_is_created_without(disk: FaultyDisk) -> None:
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


def test_a_closed_log_leaves_no_prepared_segment(disk: FaultyDisk) -> None:
    log = open_log(disk, segment_bytes=10_000)
    log.append([entry(1, body=bytes(6_000))])
    do_upkeep(log)

    log.close()

    assert PREPARED_NAME not in disk.names()
    assert disk.open_files == 0


@late
def test_a_log_that_syncs_late_commits_what_is_written(disk: FaultyDisk, sync: str) -> None:
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
    fill(log, 2)
    log.close()
    assert recover(disk.crash(1), repair=True).head == 5, "closing syncs"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_sync_that_finds_no_room_takes_the_batch_back_for_good(
    disk: FaultyDisk, error: int
) -> None:
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


def test_a_late_sync_that_finds_no_room_ends_the_log_too(disk: FaultyDisk) -> None:
    """Some of it was committed already, so it cannot be taken back."""
    log = open_log(disk, sync="interval")
    fill(log, 2)
    disk.fail("sync", error=errno.ENOSPC)

    with pytest.raises(LogFailed):
        log.sync()

    assert log.state == "failed"


def test_a_damaged_log_can_be_read_but_not_written() -> None:
    disk, log = sealed_log(4)
    missing = log.segments[2].name
    disk.remove(missing)

    log = open_log(FaultyDisk(disk.files()))

    assert log.state == "damaged"
    for refused in (lambda: log.append([entry(1)]), log.sync):
        with pytest.raises(LogDamaged, match=missing):
            refused()
    assert not log.has_upkeep
    log.close()


def test_space_is_set_aside_once(disk: FaultyDisk) -> None:
    log = open_log(disk, segment_bytes=2**16)
    assert disk.open(RESERVE_NAME).size() == 2**14

    log.close()
    disk.trace.clear()
    open_log(disk, segment_bytes=2**16)

    assert ("write", RESERVE_NAME) not in trace(disk)


def test_a_full_disk_does_not_stop_a_log_from_opening(disk: FaultyDisk) -> None:
    log = open_log(disk)
    fill(log, 3)
    log.close()
    for name in ("head", RESERVE_NAME):
        disk.remove(name)
    disk.capacity_bytes = used_bytes(disk)

    log = open_log(disk)

    assert len(contents(log)) == 3
    with pytest.raises(LogFull):
        log.append([entry(4)])
