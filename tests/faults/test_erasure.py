"""Power is cut at every operation of an erasure: a segment is the old one or the new one."""

from __future__ import annotations

from functools import cache

import pytest

from signalhub.log.erasure import SegmentErasure
from signalhub.log.errors import LogFailed, LogFull
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.recovery import recover
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk, PowerCut
from signalhub.testing.disk import Operation
from signalhub.wire.entry import StoredEntry
from tests.support.memory.log import drive, entry, used_bytes
from tests.support.memory.log_workload import explained, opened
from tests.support.volume import thinned

BATCHES = 24
CHOSEN = tuple((at, at) for at in range(1, 3 * BATCHES, 3))
ERASURE = SegmentErasure(CHOSEN, "erased.0f", CHOSEN[::2])
SECRET = b"nobody is to read this again"


def open_log(disk: FaultyDisk) -> Log:
    log = opened(disk, segment_bytes=2_000)
    assert log.state == "open"
    return log


@cache
def written() -> dict[str, bytes]:
    """A log of some segments, everything to be erased in sealed ones."""
    disk = FaultyDisk()
    log = open_log(disk)
    for seq in range(1, 3 * BATCHES, 3):
        log.append([entry(seq), entry(seq + 1, body=SECRET), entry(seq + 2)])
    log.roll_soon()
    log.append([entry(3 * BATCHES + 1)])
    drive(log.upkeep())
    log.close()
    return disk.files()


def entries(disk: FaultyDisk) -> list[StoredEntry]:
    return [*Reader.of_folder(disk).scan(0)]


@cache
def before() -> list[StoredEntry]:
    return entries(FaultyDisk(written()))


def erase(disk: FaultyDisk) -> None:
    log = open_log(disk)
    drive(log.erase([ERASURE]))
    log.close()


@cache
def operations() -> int:
    disk = FaultyDisk(written())
    erase(disk)
    check_done(disk)
    assert disk.operations > 40
    return disk.operations


def check_half_done(disk: FaultyDisk) -> None:
    """Whatever was reached: sound, in order, each segment wholly done or not begun."""
    recovery = recover(disk, repair=False)
    assert recovery.damage is None
    assert verify(disk).is_sound
    found = entries(disk)
    chosen = {first for first, _ in CHOSEN}
    for info in recovery.segments:
        own = [one for one in found if info.base <= one.offset < info.end]
        states = {one.is_erased for one in own if one.offset in chosen}
        assert len(states) <= 1, f"{info.name} is a mixture"
    for old, new in zip(before(), found, strict=True):
        assert (new.offset, new.kind) == (old.offset, old.kind)
        assert (new.seq, new.at_ms) == (old.seq, old.at_ms)
        assert new == old or (new.is_erased and new.offset in chosen)


def check_done(disk: FaultyDisk) -> None:
    assert verify(disk).erased == len(CHOSEN)
    assert SECRET not in b"".join(disk.files().values())
    assert not [name for name in disk.names() if name.endswith(".tmp")]


def check_next_process_finishes_it(disk: FaultyDisk) -> None:
    check_half_done(disk)
    erase(disk)
    check_half_done(disk)
    check_done(disk)


def cut_at(operation: int) -> FaultyDisk:
    disk = FaultyDisk(written())
    disk.crash_at(operation)
    with pytest.raises(PowerCut):
        erase(disk)
    return disk


@pytest.mark.parametrize("share", thinned(range(4), 1))
def test_a_power_cut_leaves_the_old_or_the_new_segment(share: int) -> None:
    for operation in range(1 + share, operations() + 1, 4):
        disk = cut_at(operation)
        for seed in (0, 1, *range(operation * 100, operation * 100 + 8)):
            with explained("cut at operation", operation, disk.trace[-1], "seed", seed):
                check_next_process_finishes_it(disk.crash(seed))


def test_a_kill_leaves_the_old_or_the_new_segment() -> None:
    for operation in range(1, operations() + 1):
        check_next_process_finishes_it(cut_at(operation).restart())


def test_what_is_done_is_done_even_if_the_power_is_cut_at_once() -> None:
    disk = FaultyDisk(written())
    drive(open_log(disk).erase([ERASURE]))

    for seed in range(20):
        check_done(disk.crash(seed))


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_names"])
def test_a_failing_disk_ends_it_and_the_next_start_finishes_it(operation: Operation) -> None:
    disk = FaultyDisk(written())
    log = open_log(disk)
    disk.fail(operation, name="" if operation == "sync_names" else "*.tmp")

    with pytest.raises(LogFailed):
        drive(log.erase([ERASURE]))

    assert log.state == "failed"
    check_next_process_finishes_it(disk.restart())


def test_a_full_disk_postpones_it() -> None:
    disk = FaultyDisk(written())
    log = open_log(disk)
    used = used_bytes(disk)
    for spare in (0, 100, 500, 1_000):
        disk.capacity_bytes = used + spare
        with pytest.raises(LogFull):
            drive(log.erase([ERASURE]))
        assert log.state == "open"
        check_half_done(FaultyDisk(disk.files()))
    disk.capacity_bytes = None

    drive(log.erase([ERASURE]))

    assert verify(disk).erased == len(CHOSEN)
