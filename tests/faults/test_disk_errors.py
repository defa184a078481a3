"""A disk that fails: nothing is acknowledged after an error, and a restart finds everything.

An error of a write or a sync ends the log until it is opened again, because after it nobody knows
what is on the disk. Only a full disk is a temporary answer.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from signalhub.log.errors import LogFailed, LogFull
from signalhub.log.reader import Reader
from signalhub.log.recovery import recover
from signalhub.testing import FaultyDisk
from signalhub.testing.disk import Operation
from signalhub.wire.errors import SignalHubError
from tests.support.memory.log import used_bytes
from tests.support.memory.log_workload import (
    CALLS,
    MOMENTS,
    Ledger,
    Run,
    Sync,
    assert_readable,
    assert_sound,
    copy_of,
    explained,
    go_on,
    live,
    make_entries,
    survive,
)
from tests.support.volume import thinned

CRASHES = range(4)
SCRIPT = 7
STEPS = 75


def new_run(seed: int, sync: Sync = "always") -> Run:
    return Run(FaultyDisk(), Ledger(), Random(seed), sync=sync)


def assert_restart_is_clean(disk: FaultyDisk, ledger: Ledger) -> None:
    """Neither a restart of the process nor a power cut after it loses what was acknowledged."""
    disk.heal()
    after_kill = disk.restart()
    found = copy_of(ledger)
    survive(after_kill, found)
    run = Run(after_kill, found, Random(1))
    run.append(2)
    run.sync()
    for seed in CRASHES:
        survive(after_kill.crash(seed), copy_of(found))
        survive(disk.crash(seed), copy_of(ledger))
    go_on(after_kill.restart(), found)


def run_until_error(disk: FaultyDisk, ledger: Ledger) -> Run | None:
    """The scripted run; the process whose log has failed, if one has."""
    run = None
    with suppress(LogFailed):
        run = Run(disk, ledger, Random(SCRIPT))
        run.live(STEPS)
        run.close()
        return None
    return run


def assert_refuses(run: Run) -> None:
    """The log answers with the same error for ever, and leaves the disk alone."""
    disk, acked = run.disk, run.ledger.acked
    operations = disk.operations
    entries = make_entries(Random(2), run.ledger, 1, 0)
    for _ in range(3):
        with pytest.raises(LogFailed, match="restart the hub"):
            run.log.append(entries)
        with pytest.raises(LogFailed):
            run.log.sync()
    assert disk.operations == operations, "a failed sync is never repeated"
    assert not run.log.has_upkeep
    run.abandon()
    assert disk.open_files == 0
    assert run.ledger.acked == acked
    assert run.log.head <= len(run.ledger.submitted)


def assert_closes_sound(run: Run) -> None:
    assert_readable(run.log, run.ledger)
    run.upkeep()
    run.close()
    assert_sound(run.disk, run.ledger)


@pytest.mark.parametrize("operation", MOMENTS)
def test_nothing_is_acknowledged_after_an_error(operation: Operation) -> None:
    failures = 0
    for call in MOMENTS[operation]:
        disk, ledger = FaultyDisk(), Ledger()
        disk.fail(operation, at=call)
        with explained(operation, "failed at call", call):
            run = run_until_error(disk, ledger)
            if run is not None and run.log.state == "failed":
                failures += 1
                assert_refuses(run)
            assert_restart_is_clean(disk, ledger)
    assert failures


@pytest.mark.parametrize("written", [1, 300])
def test_a_short_write_that_ends_in_an_error_ends_the_log(written: int) -> None:
    for call in CALLS:
        disk, ledger = FaultyDisk(), Ledger()
        disk.fail("write", at=call, written=written, name="*.log")
        run = run_until_error(disk, ledger)
        if run is not None:
            assert_refuses(run)
        assert_restart_is_clean(disk, ledger)


@pytest.mark.parametrize("written", [0, 1, 300])
def test_a_short_write_on_a_full_disk_leaves_nothing_of_the_batch(written: int) -> None:
    refusals = 0
    for call in CALLS:
        run = new_run(3)
        run.disk.fail("write", at=call, error=errno.ENOSPC, written=written, name="*.log")
        for _ in range(60):
            run.append(2)
            assert run.log.head == len(run.ledger.submitted)
        refusals += run.refusals
        assert_closes_sound(run)
    assert refusals >= len(CALLS) // 2


@pytest.mark.parametrize("operation", [*MOMENTS, "truncate", "remove"])
def test_a_disk_that_is_full_at_any_moment_is_full_for_that_moment_only(
    operation: Operation,
) -> None:
    """Some file systems notice late: when a file or even the folder is synced."""
    for call in MOMENTS.get(operation, CALLS):
        disk, ledger = FaultyDisk(), Ledger()
        disk.fail(operation, at=call, error=errno.ENOSPC)
        with explained("no room for", operation, "at call", call):
            run = live_on_a_full_disk(disk, ledger)
            if run is not None:
                assert_closes_sound(run)
            assert_restart_is_clean(disk, ledger)


def live_on_a_full_disk(disk: FaultyDisk, ledger: Ledger) -> Run | None:
    """A run of small and large batches; None if the log had to fail."""
    rng = Random(SCRIPT)
    run = None
    with suppress(LogFailed):
        while run is None:
            with suppress(LogFull):
                run = Run(disk, ledger, rng)
        for _ in range(STEPS // 2):
            with suppress(LogFull):
                run.append(rng.choice((1, 1, 2, 6)))
                run.upkeep(slices=rng.choice((1, 5)))
                if rng.random() < 0.1:
                    run.retain()
        return run
    return None


@pytest.mark.parametrize("call", CALLS)
def test_a_failed_sync_is_not_forgotten_by_the_next_process(call: int) -> None:
    """The system shows what it has given up writing; a restart must not build on that."""
    disk, ledger = FaultyDisk(), Ledger()
    disk.fail("sync", at=call, name="*.log")
    run_until_error(disk, ledger)
    disk = disk.restart()

    survive(disk, ledger)
    run = Run(disk, ledger, Random(4))
    run.append(1)
    run.append(3)

    for seed in range(20):
        assert survive(disk.crash(seed), copy_of(ledger)).head == len(ledger.submitted)


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_failed_sync_ends_a_log_that_syncs_late(sync: Sync) -> None:
    run = new_run(4, sync)
    run.append(2)
    run.sync()
    run.append(2)
    run.disk.fail("sync")

    with pytest.raises(LogFailed):
        run.sync()

    assert run.log.durable_head == 2
    assert_refuses(run)


def test_a_full_disk_refuses_and_resumes_at_every_fill_level() -> None:
    refusals, rooms = 0, thinned(range(0, 30_000, 370))
    for room in rooms:
        run = new_run(room)
        run.append(3)
        run.disk.capacity_bytes = used_bytes(run.disk) + room
        with explained(room, "bytes of room"):
            for _ in range(40):
                run.append(2)
                run.upkeep(slices=2)
            refusals += run.log.state == "full"
            assert_readable(run.log, run.ledger)
            for seed in range(3):
                survive(run.disk.crash(seed), copy_of(run.ledger))
            run.disk.capacity_bytes = None
            run.append(2)
            assert run.log.state == "open"
            assert_closes_sound(run)
    assert refusals > len(rooms) // 4


def test_space_that_comes_back_is_used_again() -> None:
    run = new_run(5)
    run.append(3)
    for _ in range(20):
        run.disk.capacity_bytes = used_bytes(run.disk)
        refusals = run.refusals
        while run.refusals == refusals:
            run.append(2)
        assert run.log.state == "full"
        run.disk.capacity_bytes += 5_000
        run.append(2)
        assert run.refusals == refusals + 1

    assert_readable(run.log, run.ledger)


def test_a_torn_tail_is_repaired_on_a_full_disk() -> None:
    """Recovery needs room to keep the torn bytes aside; the log has set it aside before."""
    run = new_run(6)
    for _ in range(6):
        run.append(3)
    run.close()
    info = run.log.segments[-1]
    run.disk.open(info.name).write(b"torn" * 150, info.bytes)
    run.disk.capacity_bytes = used_bytes(run.disk)

    found = recover(run.disk, repair=True)

    assert found.torn is not None
    assert found.torn.saved_as in run.disk.names()
    assert found.head == len(run.ledger.submitted)


def test_a_disk_that_cannot_be_read_stops_the_start_and_changes_nothing() -> None:
    disk, ledger = FaultyDisk(), Ledger()
    live(disk, ledger, SCRIPT, STEPS)
    before = disk.files()
    failures = 0
    for call in CALLS:
        image = FaultyDisk(before)
        image.fail("read", at=call)
        try:
            recover(image, repair=False)
        except LogFailed:
            failures += 1
        assert image.files() == before
        image.heal()
        survive(image, copy_of(ledger))
    assert failures > 5


def test_a_read_error_is_passed_on_and_never_skipped() -> None:
    disk, ledger = FaultyDisk(), Ledger()
    live(disk, ledger, SCRIPT, STEPS)
    failures = 0
    for call in CALLS:
        image = FaultyDisk(disk.files())
        run = Run(image, copy_of(ledger), Random(1))
        image.fail("read", at=call)
        try:
            seen = [*Reader(run.log).scan(run.log.first)]
        except (OSError, SignalHubError):
            failures += 1
        else:
            assert len(seen) == run.log.head - run.log.first
        image.heal()
        run.append(1)
        assert_readable(run.log, run.ledger)
    assert failures > 3
