from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from signalhub.log.commit import Committed, GroupCommit, NotCommitted, Outcome, UpkeepThread
from signalhub.log.errors import LogDamaged, LogFailed, LogFull
from signalhub.log.log import Log
from signalhub.log.recovery import recover
from signalhub.log.segment import segment_name
from signalhub.testing import FaultyDisk
from signalhub.testing.disk import Operation
from tests.support.memory.log import contents, do_upkeep, entry, fill, fill_segments, open_log

PATIENCE_S = 10.0


class Caller:
    """Submits entries and keeps the reports; may keep the commit thread waiting."""

    def __init__(self, disk: FaultyDisk, **settings: Any) -> None:
        self.log: Log = open_log(disk, **settings)
        self.outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.commit = GroupCommit(self.log, self._report)
        self._seq = 0

    def _report(self, outcome: Outcome) -> None:
        self.outcomes.put(outcome)
        assert self.may_go_on.wait(PATIENCE_S)

    def submit(self, count: int = 1, size: int = 10) -> int:
        first, self._seq = self._seq + 1, self._seq + count
        return self.commit.submit([entry(first + n, body=bytes(size)) for n in range(count)])

    def hear(self) -> Outcome:
        return self.outcomes.get(timeout=PATIENCE_S)

    def hear_to(self, end: int) -> list[Outcome]:
        """The reports up to an offset or a refusal."""
        outcomes = [self.hear()]
        while isinstance(outcomes[-1], Committed) and outcomes[-1].end < end:
            outcomes.append(self.hear())
        return outcomes

    def refusal(self) -> NotCommitted:
        outcome = self.hear()
        assert isinstance(outcome, NotCommitted)
        return outcome

    def hold(self) -> None:
        """Let the thread wait in its next report, so that a queue builds up."""
        self.may_go_on.clear()
        self.submit()
        self.hear()

    def close(self) -> None:
        self.may_go_on.set()
        self.commit.close()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def caller(disk: FaultyDisk) -> Iterator[Caller]:
    caller = Caller(disk)
    yield caller
    caller.close()


def test_offsets_are_given_at_once_and_reported_in_order(disk: FaultyDisk) -> None:
    first = open_log(disk)
    fill(first, 3)
    first.close()
    caller = Caller(disk)

    assert [caller.submit(count) for count in (1, 3, 2)] == [3, 4, 7]

    end = 3
    for outcome in caller.hear_to(9):
        assert isinstance(outcome, Committed)
        assert outcome.first == end
        end = outcome.end
    assert caller.log.head == caller.log.durable_head == end == 9
    assert [one.seq for one in contents(caller.log)[3:]] == [1, 2, 3, 4, 5, 6]
    caller.close()


def test_a_single_entry_does_not_wait_and_what_has_gathered_is_committed_together(
    caller: Caller,
) -> None:
    for offset in range(5):
        caller.submit()
        assert caller.hear() == Committed(offset, offset + 1)
    caller.hold()
    for _ in range(10):
        caller.submit()

    caller.may_go_on.set()

    assert caller.hear() == Committed(6, 16)


def test_a_long_queue_is_committed_in_several_batches(caller: Caller) -> None:
    caller.hold()
    for _ in range(5):
        caller.submit(1, size=400_000)
    caller.submit(1, size=2_000_000)
    caller.submit(5_000)

    caller.may_go_on.set()

    outcomes = caller.hear_to(5_007)
    assert outcomes[:4] == [Committed(1, 3), Committed(3, 5), Committed(5, 6), Committed(6, 7)]
    assert len(outcomes) == 6
    assert caller.log.head == 5_007


@pytest.mark.parametrize("size", [10, 5 * 2**20], ids=["in its batch", "in the next batch"])
def test_a_full_disk_refuses_everything_queued(caller: Caller, disk: FaultyDisk, size: int) -> None:
    """What follows a refused entry has a later position, so it must not be stored either."""
    caller.hold()
    caller.submit(2, size)
    caller.submit(3)
    disk.fail("write", error=errno.ENOSPC, name="*.log")

    caller.may_go_on.set()

    refusal = caller.refusal()
    assert (refusal.first, refusal.end) == (1, 6)
    assert isinstance(refusal.error, LogFull)
    assert (caller.log.head, caller.log.state) == (1, "full")
    caller.commit.resume()
    caller.submit()
    assert caller.hear() == Committed(1, 2)


@pytest.mark.parametrize(
    ("operation", "size", "unknown"),
    [("sync", 10, 5), ("sync", 5 * 2**20, 1), ("write", 10, 5), ("create", 4_000, 0)],
    ids=["sync", "sync of the first of two", "write", "before the write"],
)
def test_only_the_batch_that_was_being_written_is_in_doubt(
    disk: FaultyDisk, operation: Operation, size: int, unknown: int
) -> None:
    """With a new segment to begin, nothing of the batch was written when that failed."""
    caller = Caller(disk, segment_bytes=4_096 if operation == "create" else 64 * 2**20)
    caller.hold()
    caller.submit(1, size)
    caller.submit(4)
    disk.fail(operation, error=errno.EIO, name="*")

    caller.may_go_on.set()

    refusal = caller.refusal()
    assert isinstance(refusal.error, LogFailed)
    assert (refusal.first, refusal.attempted, refusal.end) == (1, 1 + unknown, 6)
    caller.close()


def test_what_is_submitted_before_the_caller_knows_is_dropped(
    caller: Caller, disk: FaultyDisk
) -> None:
    disk.capacity_bytes = 0
    caller.submit(2)
    caller.refusal()
    disk.capacity_bytes = None

    assert caller.submit(3) == 2
    assert caller.commit.resume() == 0
    assert caller.submit(4) == 0

    assert caller.hear() == Committed(0, 4)
    assert [one.seq for one in contents(caller.log)] == [6, 7, 8, 9]
    assert caller.outcomes.empty()


def test_a_damaged_log_refuses_everything(disk: FaultyDisk) -> None:
    fill(open_log(disk), 3)
    disk.open(segment_name(0)).write(b"?", 0)
    caller = Caller(disk)

    caller.submit()

    assert isinstance(caller.refusal().error, LogDamaged)
    caller.close()


def test_an_unexpected_fault_is_reported_and_ends_the_log(
    caller: Caller, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.crash_at(1)

    caller.submit()

    assert isinstance(caller.refusal().error, LogFailed)
    assert caller.log.state == "failed"
    assert [line.levelno for line in caplog.records] == [logging.ERROR]


def test_a_listener_that_fails_does_not_harm_the_log(
    disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Outcome) -> None:
        raise RuntimeError("the loop is closed")

    log = open_log(disk)
    commit = GroupCommit(log, fail)
    commit.submit([entry(1)])
    commit.close()

    assert (log.head, log.state) == (1, "open")
    assert [line.message for line in caplog.records] == [
        "an outcome of the commit thread could not be reported"
    ]


def test_closing_commits_what_is_queued(caller: Caller) -> None:
    caller.hold()
    caller.submit(4)
    caller.may_go_on.set()

    caller.commit.close()

    assert caller.hear() == Committed(1, 5)
    assert caller.log.durable_head == 5


def test_syncs_follow_the_interval_and_not_the_commits(disk: FaultyDisk) -> None:
    caller = Caller(disk, sync="interval", interval_ms=1)
    caller.submit(3)
    assert caller.hear() == Committed(0, 3)

    # Nobody announces a sync by the clock, so it is looked for.
    nothing = threading.Event()
    deadline_s = time.monotonic() + PATIENCE_S
    while caller.log.durable_head < 3:
        assert time.monotonic() < deadline_s
        nothing.wait(0.001)
    caller.close()


def test_a_failed_interval_sync_is_reported_and_final(disk: FaultyDisk) -> None:
    caller = Caller(disk, sync="interval", interval_ms=50)
    disk.fail("sync", error=errno.EIO)
    caller.submit(3)

    *before, last = caller.hear_to(4)

    assert isinstance(last, NotCommitted)
    assert isinstance(last.error, LogFailed)
    assert last.first == (3 if before else 0)
    assert (caller.log.state, caller.log.durable_head) == ("failed", 0)
    operations = disk.operations
    caller.close()
    assert disk.operations == operations


def test_nothing_is_synced_before_the_end_if_that_is_the_setting(disk: FaultyDisk) -> None:
    caller = Caller(disk, sync="os")
    caller.submit(3)
    assert caller.hear() == Committed(0, 3)
    assert caller.log.durable_head == 0

    caller.close()

    assert caller.log.durable_head == 3
    assert recover(disk.crash(1), repair=True).head == 3


def wait_for(upkeep: UpkeepThread) -> None:
    """Jobs come after what the log has to do."""
    is_done = threading.Event()
    upkeep.run(is_done.set)
    assert is_done.wait(PATIENCE_S)


def test_upkeep_seals_what_the_last_process_left_and_what_is_written_meanwhile(
    disk: FaultyDisk,
) -> None:
    fill_segments(open_log(disk, segment_bytes=2_000), 3)
    log = open_log(disk.restart(), segment_bytes=2_000)
    upkeep = UpkeepThread(log)
    wait_for(upkeep)
    assert not log.has_upkeep

    fill_segments(log, 6)
    wait_for(upkeep)
    upkeep.close()

    assert [info.is_sealed for info in log.segments] == [True] * 5 + [False]


def test_a_job_may_come_in_slices_and_one_that_fails_does_not_stop_the_others(
    disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    upkeep = UpkeepThread(open_log(disk))
    steps: list[int] = []

    def job() -> Iterator[None]:
        for step in range(3):
            steps.append(step)
            yield

    upkeep.run(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    upkeep.run(job)
    wait_for(upkeep)
    upkeep.close()

    assert steps == [0, 1, 2]
    assert [line.message for line in caplog.records] == ["upkeep of the log failed"]


def test_upkeep_ends_in_the_middle_of_its_work_when_it_is_closed(disk: FaultyDisk) -> None:
    log = open_log(disk)
    upkeep = UpkeepThread(log)
    has_begun = threading.Event()

    def endless() -> Iterator[None]:
        while True:
            has_begun.set()
            yield

    upkeep.run(endless)
    assert has_begun.wait(PATIENCE_S)
    upkeep.close()

    assert do_upkeep(log) == 0
