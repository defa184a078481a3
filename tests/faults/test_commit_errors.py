"""The commit thread over a bad disk: reports are true, in order, and end with the first error."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from queue import SimpleQueue
from random import Random
from threading import Event

import pytest

from signalhub.log.commit import Committed, GroupCommit, NotCommitted, Outcome, UpkeepThread
from signalhub.log.errors import LogFailed, LogFull
from signalhub.log.log import Log
from signalhub.log.recovery import recover
from signalhub.testing import FakeClock, FaultyDisk
from signalhub.testing.disk import Operation
from signalhub.wire.entry import Entry
from tests.support.memory.log_workload import (
    Ledger,
    Sync,
    assert_readable,
    assert_sound,
    copy_of,
    go_on,
    log_settings,
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
ROUNDS = 70
IN_FLIGHT = 3


class Sender:
    """Submits in bursts and believes nothing but the reports."""

    def __init__(self, disk: FaultyDisk, *, sync: Sync = "always") -> None:
        self.disk = disk
        self.ledger = Ledger()
        self.outcomes: list[Outcome] = []
        self.log = Log(disk, log_settings(sync), recover(disk, repair=True), clock=FakeClock())
        self._reports: SimpleQueue[Outcome] = SimpleQueue()
        self.commit = GroupCommit(self.log, self._reports.put)
        self._rng = Random(3)

    def submit(self) -> None:
        entries = make_entries(self._rng, self.ledger, self._rng.choice((1, 2, 5)), 0)
        assert self.commit.submit(entries) == len(self.ledger.submitted)
        self.ledger.submitted += entries

    def hear(self) -> Outcome:
        outcome = self._reports.get(timeout=30)
        self.outcomes.append(outcome)
        if isinstance(outcome, Committed):
            assert outcome.first == self.ledger.acked
            assert outcome.first < outcome.end <= len(self.ledger.submitted)
            self.ledger.acked = outcome.end
        else:
            assert outcome.first == self.ledger.acked
        return outcome

    def burst(self) -> NotCommitted | None:
        """Submit several and hear of all of them, or of the first that failed."""
        for _ in range(IN_FLIGHT):
            self.submit()
        while self.ledger.acked < len(self.ledger.submitted):
            outcome = self.hear()
            if isinstance(outcome, NotCommitted):
                return outcome
        return None

    def close(self) -> None:
        self.commit.close()
        self.log.close()

    def unheard(self) -> list[Outcome]:
        """What was reported and not listened to; only after the thread has ended."""
        found = []
        while not self._reports.empty():
            found.append(self._reports.get())
        return found


def open_sender(disk: FaultyDisk) -> Sender | None:
    """None if the disk fails before there is a log."""
    try:
        return Sender(disk)
    except LogFailed:
        return None


@pytest.mark.parametrize("operation", MOMENTS)
def test_nothing_is_reported_as_committed_after_an_error(operation: Operation) -> None:
    failures = 0
    for call in MOMENTS[operation]:
        disk = FaultyDisk()
        disk.fail(operation, at=call)
        sender = open_sender(disk)
        if sender is None:
            continue
        failure = next(filter(None, (sender.burst() for _ in range(ROUNDS))), None)
        if failure is not None:
            failures += 1
            assert isinstance(failure.error, LogFailed)
            operations = disk.operations
            for _ in range(5):
                sender.submit()
            sender.close()
            assert disk.operations == operations, "a failed sync is never repeated"
            assert sender.unheard() == []
        disk.heal()
        for seed in range(5):
            survive(disk.crash(seed), copy_of(sender.ledger))
        restarted = disk.restart()
        survive(restarted, sender.ledger)
        go_on(restarted, sender.ledger)
    assert failures > 5


def test_resuming_after_a_failure_is_refused_again() -> None:
    disk = FaultyDisk()
    sender = Sender(disk)
    assert sender.burst() is None
    disk.fail("sync", name="*.log")
    first = sender.burst()
    del sender.ledger.submitted[sender.ledger.acked :]

    assert sender.commit.resume() == sender.ledger.acked
    second = sender.burst()
    sender.close()

    assert first is not None
    assert second is not None
    assert isinstance(first.error, LogFailed)
    assert isinstance(second.error, LogFailed)


@pytest.mark.parametrize("written", [0, 100])
def test_a_full_disk_takes_offsets_back_so_that_they_stay_dense(written: int) -> None:
    refusals = 0
    for call in CALLS:
        disk = FaultyDisk()
        sender = Sender(disk)
        disk.fail(
            "write", at=call, error=errno.ENOSPC, written=written, times=1 + call % 3, name="*.log"
        )
        for _ in range(20):
            outcome = sender.burst()
            if outcome is not None:
                refusals += 1
                assert isinstance(outcome.error, LogFull)
                assert outcome.end == len(sender.ledger.submitted)
                del sender.ledger.submitted[outcome.first :]
                assert sender.commit.resume() == outcome.first
        assert_readable(sender.log, sender.ledger)
        sender.close()
        assert_sound(disk, sender.ledger)
    assert refusals > 2 * len(CALLS) // 5


def test_what_is_queued_behind_a_refused_batch_is_refused_with_it() -> None:
    """Its positions come after those that were refused, so it must not be stored either."""
    disk = FaultyDisk()
    log = Log(disk, log_settings(), recover(disk, repair=True), clock=FakeClock())
    reports: SimpleQueue[Outcome] = SimpleQueue()
    gate = Event()

    def report(outcome: Outcome) -> None:
        reports.put(outcome)
        gate.wait(30)

    commit = GroupCommit(log, report)
    commit.submit([Entry(2, "orders", 1, 1, 0, b"first")])
    assert reports.get(timeout=30) == Committed(0, 1)
    # Too large to share a batch with what follows it.
    commit.submit([Entry(2, "orders", 1, 2, 0, bytes(5 * 2**20))])
    commit.submit([Entry(2, "orders", 1, 3, 0, b"third")])
    disk.fail("write", error=errno.ENOSPC, name="*.log")
    gate.set()

    refusal = reports.get(timeout=30)
    commit.close()

    assert isinstance(refusal, NotCommitted)
    assert (refusal.first, refusal.end) == (1, 3)
    assert reports.empty()
    assert log.head == 1


def test_what_is_submitted_between_refusal_and_resuming_never_happens() -> None:
    disk = FaultyDisk()
    sender = Sender(disk)
    assert sender.burst() is None
    disk.capacity_bytes = 0
    refusal = sender.burst()
    disk.capacity_bytes = None
    assert refusal is not None
    sender.submit()
    sender.submit()

    del sender.ledger.submitted[refusal.first :]
    sender.commit.resume()
    assert sender.burst() is None
    sender.close()

    assert sender.unheard() == []
    assert_sound(disk, sender.ledger)


def test_an_interval_sync_that_fails_is_reported_and_final() -> None:
    disk = FaultyDisk()
    sender = Sender(disk, sync="interval")
    disk.fail("sync", name="*.log")

    sender.submit()
    while isinstance(sender.hear(), Committed):
        pass

    (*_, last) = sender.outcomes
    assert isinstance(last, NotCommitted)
    assert isinstance(last.error, LogFailed)
    assert sender.log.durable_head == 0
    operations = disk.operations
    sender.close()
    assert disk.operations == operations


@pytest.mark.parametrize("cut", thinned(range(1, 60)))
def test_power_loss_under_group_commit_keeps_what_was_reported(cut: int) -> None:
    """The thread dies with the machine; only what it had reported was promised."""
    disk = FaultyDisk()
    sender = Sender(disk)
    disk.crash_at(cut)
    failure = next(filter(None, (sender.burst() for _ in range(ROUNDS))))
    sender.commit.close()

    assert "PowerCut" in str(failure.error)
    assert_reports_were_true(sender)


@pytest.mark.parametrize("cut", thinned(range(5, 250, 6)))
def test_power_loss_while_segments_are_sealed_beside_the_commits(cut: int) -> None:
    """Two threads share the disk, so which operation is hit differs from run to run."""
    disk = FaultyDisk()
    sender = Sender(disk)
    upkeep = UpkeepThread(sender.log)
    disk.crash_at(cut)
    while sender.burst() is None:
        pass
    sender.commit.close()
    upkeep.close()

    assert_reports_were_true(sender)


def assert_reports_were_true(sender: Sender) -> None:
    """Whatever survives, everything reported as committed is in it."""
    for seed in range(8):
        image, ledger = sender.disk.crash(seed), copy_of(sender.ledger)
        survive(image, ledger)
        assert ledger.epoch == sender.ledger.epoch
        go_on(image, ledger)
