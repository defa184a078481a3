"""A disk that says no: nothing is acknowledged after an error, and a restart finds everything.

An error of a write or a sync ends the log until it is opened again, because after it nobody knows
what is on the disk. Only a full disk is an answer for now.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from signalhub.log.errors import LogFailed, LogFull
from signalhub.log.reader import Reader
from signalhub.log.recovery import recover
from signalhub.testing import FaultyDisk
from signalhub.testing.disk import Operation
from signalhub.wire.errors import SignalHubError
from tests.support.memory.log_workload import (
    Ledger,
    Run,
    Sync,
    assert_readable,
    assert_sound,
    copy_of,
    go_on,
    live,
    make_entries,
    survive,
)
from tests.support.volume import thinned

CALLS = thinned(range(1, 51))
# Names change seldom, so there are fewer moments at which that can fail.
MOMENTS: dict[Operation, Sequence[int]] = {
    "sync": CALLS,
    "write": CALLS,
    "sync_names": range(1, 13),
    "create": range(1, 13),
    "rename": range(1, 11),
}
CRASHES = range(4)
SCRIPT = 7
STEPS = 75


def assert_restart_is_clean(disk: FaultyDisk, ledger: Ledger, sync: Sync = "always") -> None:
    """Neither a restart of the process nor a power cut after it loses what was acknowledged."""
    disk.heal()
    after_kill = disk.restart()
    found = copy_of(ledger)
    survive(after_kill, found, sync=sync)
    run = Run(after_kill, found, Random(1), sync=sync)
    run.append(2)
    run.sync()
    for seed in CRASHES:
        survive(after_kill.crash(seed), copy_of(found), sync=sync)
        survive(disk.crash(seed), copy_of(ledger), sync=sync)
    go_on(after_kill.restart(), found, sync=sync)


def run_until_error(disk: FaultyDisk, ledger: Ledger) -> Run | None:
    """The scripted life; the process whose log has failed, if one has."""
    run = None
    with suppress(LogFailed):
        run = Run(disk, ledger, Random(SCRIPT))
        run.live(STEPS)
        run.close()
        return None
    return run


@pytest.mark.parametrize("operation", MOMENTS)
def test_nothing_is_acknowledged_after_an_error(operation: Operation) -> None:
    failures = 0
    for call in MOMENTS[operation]:
        disk, ledger = FaultyDisk(), Ledger()
        disk.fail(operation, at=call)
        try:
            run = run_until_error(disk, ledger)
            if run is not None and run.log.state == "failed":
                failures += 1
                assert_refuses(run)
            assert_restart_is_clean(disk, ledger)
        except BaseException as error:
            error.add_note(f"{operation} failed at call {call}")
            raise
    assert failures


def assert_refuses(run: Run) -> None:
    """The log answers with the same error for ever, and leaves the disk alone."""
    disk, acked = run.disk, run.ledger.acked
    operations = disk.operations
    entries = make_entries(Random(2), run.ledger, 1, 0)
    for _ in range(3):
        with pytest.raises(LogFailed):
            run.log.append(entries)
        with pytest.raises(LogFailed):
            run.log.sync()
    assert disk.operations == operations, "a failed sync is never repeated"
    assert not run.log.has_upkeep
    run.abandon()
    assert disk.open_files == 0
    assert run.ledger.acked == acked
    assert run.log.head <= len(run.ledger.submitted)


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
        disk, ledger = FaultyDisk(), Ledger()
        run = Run(disk, ledger, Random(3))
        disk.fail("write", at=call, error=errno.ENOSPC, written=written, name="*.log")
        for _ in range(60):
            run.append(2)
            assert run.log.head == len(ledger.submitted)
        assert_readable(run.log, ledger)
        refusals += run.refusals
        run.upkeep()
        run.close()
        assert_sound(disk, ledger)
    assert refusals >= len(CALLS) // 2


@pytest.mark.parametrize("operation", [*MOMENTS, "truncate", "remove"])
def test_a_disk_that_is_full_at_any_moment_is_full_for_that_moment_only(
    operation: Operation,
) -> None:
    """Some file systems notice late: when a file or even the folder is synced."""
    for call in MOMENTS.get(operation, CALLS):
        disk, ledger = FaultyDisk(), Ledger()
        disk.fail(operation, at=call, error=errno.ENOSPC)
        try:
            run = live_on_a_full_disk(disk, ledger)
            if run is not None:
                assert_readable(run.log, ledger)
                run.upkeep()
                run.close()
                assert_sound(disk, ledger)
            assert_restart_is_clean(disk, ledger)
        except BaseException as error:
            error.add_note(f"no room for {operation} at call {call}")
            raise


def live_on_a_full_disk(disk: FaultyDisk, ledger: Ledger) -> Run | None:
    """A life of small and large batches; None if the log had to fail."""
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
    disk, ledger = FaultyDisk(), Ledger()
    run = Run(disk, ledger, Random(4), sync=sync)
    run.append(2)
    run.sync()
    run.append(2)
    disk.fail("sync")

    with pytest.raises(LogFailed):
        run.sync()

    assert run.log.durable_head == 2
    assert_refuses(run)


def test_a_full_disk_refuses_and_resumes_at_every_fill_level() -> None:
    refusals, rooms = 0, thinned(range(0, 30_000, 370))
    for room in rooms:
        disk, ledger = FaultyDisk(), Ledger()
        run = Run(disk, ledger, Random(room))
        run.append(3)
        used = sum(map(len, disk.files().values()))
        disk.capacity_bytes = used + room
        try:
            for _ in range(40):
                run.append(2)
                run.upkeep(slices=2)
            refusals += run.log.state == "full"
            assert_readable(run.log, ledger)
            for seed in range(3):
                image = disk.crash(seed)
                survive(image, copy_of(ledger))
            disk.capacity_bytes = None
            run.append(2)
            assert run.log.state == "open"
            run.upkeep()
            run.close()
            assert_sound(disk, ledger)
        except BaseException as error:
            error.add_note(f"{room} bytes of room")
            raise
    assert refusals > len(rooms) // 4


def test_space_that_comes_back_is_used_again() -> None:
    disk, ledger = FaultyDisk(), Ledger()
    run = Run(disk, ledger, Random(5))
    run.append(3)
    for _ in range(20):
        disk.capacity_bytes = sum(map(len, disk.files().values()))
        refusals = run.refusals
        while run.refusals == refusals:
            run.append(2)
        assert run.log.state == "full"
        disk.capacity_bytes += 5_000
        run.append(2)
        assert run.refusals == refusals + 1

    assert_readable(run.log, ledger)


def test_a_torn_tail_is_repaired_on_a_full_disk() -> None:
    """Recovery needs room to keep the torn bytes aside; the log has set it aside before."""
    disk, ledger = FaultyDisk(), Ledger()
    run = Run(disk, ledger, Random(6))
    for _ in range(6):
        run.append(3)
    run.close()
    files = disk.files()
    name = run.log.segments[-1].name
    files[name] = files[name][: run.log.segments[-1].bytes] + b"torn" * 150
    full = FaultyDisk(files, capacity_bytes=sum(map(len, files.values())))

    found = recover(full, repair=True)

    assert found.torn is not None
    assert found.torn.saved_as in full.names()
    assert found.head == len(ledger.submitted)


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
        reader = Reader(run.log)
        image.fail("read", at=call)
        seen = []
        try:
            seen += [one.offset for one in reader.scan(run.log.first)]
        except (OSError, SignalHubError):
            failures += 1
        else:
            assert len(seen) == run.log.head - run.log.first
        image.heal()
        run.append(1)
        assert_readable(run.log, run.ledger)
    assert failures > 3
