"""The commit thread over a bad disk: reports are true, in order, and end with the first error."""

from __future__ import annotations

import errno
from queue import SimpleQueue
from random import Random

import pytest

from signalhub.log.commit import Committed, GroupCommit, NotCommitted, Outcome, UpkeepThread
from signalhub.log.errors import LogFailed, LogFull
from signalhub.testing import FaultyDisk
from signalhub.testing.disk import Operation
from tests.support.memory.log_workload import (
    CALLS,
    MOMENTS,
    Ledger,
    assert_readable,
    assert_sound,
    copy_of,
    go_on,
    make_entries,
    opened,
    survive,
)
from tests.support.volume import thinned

ROUNDS = 70
IN_FLIGHT = 3


class Sender:
    """Submits in bursts and believes nothing but the reports."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.ledger = Ledger()
        self.log = opened(disk)
        self._reports: SimpleQueue[Outcome] = SimpleQueue()
        self.commit = GroupCommit(self.log, self._reports.put)
        self._rng = Random(3)

    def submit(self) -> None:
        entries = make_entries(self._rng, self.ledger, self._rng.choice((1, 2, 5)), 0)
        assert self.commit.submit(entries) == len(self.ledger.submitted)
        self.ledger.submitted += entries

    def hear(self) -> Outcome:
        outcome = self._reports.get(timeout=30)
        assert outcome.first == self.ledger.acked
        if isinstance(outcome, Committed):
            assert outcome.first < outcome.end <= len(self.ledger.submitted)
            self.ledger.acked = outcome.end
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

    def has_unheard(self) -> bool:
        """Whether there were more reports; only after the thread has ended."""
        return not self._reports.empty()


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
            assert not sender.has_unheard()
        disk.heal()
        attempted = sender.ledger.acked if failure is None else failure.attempted
        for seed in range(5):
            found = survive(disk.crash(seed), copy_of(sender.ledger))
            assert found.head <= attempted, "nothing else was written"
        restarted = disk.restart()
        assert survive(restarted, sender.ledger).head <= attempted
        go_on(restarted, sender.ledger)
    assert failures > 5


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
                assert outcome.attempted == outcome.first, "that it did not happen is certain"
                assert outcome.end == len(sender.ledger.submitted)
                del sender.ledger.submitted[outcome.first :]
                assert sender.commit.resume() == outcome.first
        assert_readable(sender.log, sender.ledger)
        sender.close()
        assert_sound(disk, sender.ledger)
    assert refusals > 2 * len(CALLS) // 5


@pytest.mark.parametrize("cut", thinned(range(1, 60)))
def test_power_loss_under_group_commit_keeps_what_was_reported(cut: int) -> None:
    """The thread dies with the machine; only what it had reported was promised."""
    sender = Sender(FaultyDisk())
    sender.disk.crash_at(cut)
    failure = next(filter(None, (sender.burst() for _ in range(ROUNDS))))
    sender.commit.close()

    assert "PowerCut" in str(failure.error)
    assert_reports_were_true(sender)


@pytest.mark.parametrize("cut", thinned(range(5, 250, 6)))
def test_power_loss_while_segments_are_sealed_beside_the_commits(cut: int) -> None:
    """Two threads share the disk, so which operation is hit differs from run to run."""
    sender = Sender(FaultyDisk())
    upkeep = UpkeepThread(sender.log)
    sender.disk.crash_at(cut)
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
