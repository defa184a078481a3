from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from signalhub.log.commit import Committed, GroupCommit, NotCommitted, Outcome, UpkeepThread
from signalhub.log.errors import LogDamaged, LogFailed, LogFull
from signalhub.log.log import Log
from signalhub.log.recovery import recover
from signalhub.log.segment import segment_name
from signalhub.testing import FaultyDisk
from tests.support.memory.log import contents, do_upkeep, entry, fill, fill_segments, open_log

PATIENCE_S = 10.0


class Caller:
    """Submits entries and keeps what it is told; may keep the commit thread waiting."""

    def __init__(self, log: Log) -> None:
        self.outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.commit = GroupCommit(log, self._report)
        self._seq = 0

    def _report(self, outcome: Outcome) -> None:
        self.outcomes.put(outcome)
        assert self.may_go_on.wait(PATIENCE_S)

    def submit(self, count: int = 1, size: int = 10) -> int:
        first, self._seq = self._seq + 1, self._seq + count
        return self.commit.submit([entry(first + n, body=bytes(size)) for n in range(count)])

    def hear(self) -> Outcome:
        return self.outcomes.get(timeout=PATIENCE_S)

    def hold(self) -> None:
        """Let the thread wait in its next report, so that a queue builds up."""
        self.may_go_on.clear()
        self.submit()
        self.hear()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def log(disk: FaultyDisk) -> Log:
    return open_log(disk)


@pytest.fixture
def caller(log: Log) -> Iterator[Caller]:
    caller = Caller(log)
    yield caller
    caller.may_go_on.set()
    caller.commit.close()


def committed_to(caller: Caller, end: int) -> list[Outcome]:
    outcomes = [caller.hear()]
    while isinstance(outcomes[-1], Committed) and outcomes[-1].end < end:
        outcomes.append(caller.hear())
    return outcomes


def test_offsets_are_given_at_once_and_reported_in_order(caller: Caller, log: Log) -> None:
    assert [caller.submit(count) for count in (1, 3, 2)] == [0, 1, 4]

    end = 0
    for outcome in committed_to(caller, 6):
        assert isinstance(outcome, Committed)
        assert outcome.first == end
        end = outcome.end
    assert log.head == log.durable_head == end == 6
    assert [one.seq for one in contents(log)] == [1, 2, 3, 4, 5, 6]


def test_a_log_that_goes_on_goes_on_with_its_offsets(disk: FaultyDisk) -> None:
    first = open_log(disk)
    fill(first, 3)
    first.close()
    caller = Caller(open_log(disk))

    assert caller.submit() == 3
    assert caller.hear() == Committed(3, 4)
    caller.commit.close()


def test_whatever_has_gathered_is_committed_together(caller: Caller) -> None:
    caller.hold()
    for _ in range(10):
        caller.submit()

    caller.may_go_on.set()

    assert caller.hear() == Committed(1, 11)


def test_a_lonely_entry_does_not_wait_for_others(caller: Caller) -> None:
    for offset in range(5):
        caller.submit()
        assert caller.hear() == Committed(offset, offset + 1)


def test_a_long_queue_is_committed_in_several_batches(caller: Caller, log: Log) -> None:
    caller.hold()
    for _ in range(5):
        caller.submit(1, size=400_000)
    caller.submit(1, size=2_000_000)
    caller.submit(5_000)

    caller.may_go_on.set()

    outcomes = committed_to(caller, 5_007)
    assert outcomes[:4] == [Committed(1, 3), Committed(3, 5), Committed(5, 6), Committed(6, 7)]
    assert len(outcomes) == 6
    assert log.head == 5_007


def test_a_full_disk_refuses_everything_queued(caller: Caller, disk: FaultyDisk, log: Log) -> None:
    caller.hold()
    caller.submit(2)
    caller.submit(3)
    disk.capacity_bytes = 0

    caller.may_go_on.set()

    outcome = caller.hear()
    assert isinstance(outcome, NotCommitted)
    assert (outcome.first, outcome.end) == (1, 6)
    assert isinstance(outcome.error, LogFull)
    assert (log.head, log.state) == (1, "full")


def test_what_is_submitted_before_the_caller_knows_is_dropped(
    caller: Caller, disk: FaultyDisk, log: Log
) -> None:
    disk.capacity_bytes = 0
    caller.submit(2)
    assert isinstance(caller.hear(), NotCommitted)
    disk.capacity_bytes = None

    assert caller.submit(3) == 2
    assert caller.commit.resume() == 0
    assert caller.submit(4) == 0

    assert caller.hear() == Committed(0, 4)
    assert [one.seq for one in contents(log)] == [6, 7, 8, 9]
    assert caller.outcomes.empty()


def test_offsets_stay_dense_over_many_refusals(caller: Caller, disk: FaultyDisk, log: Log) -> None:
    for round_ in range(20):
        caller.submit(2)
        assert caller.hear() == Committed(2 * round_, 2 * round_ + 2)
        disk.capacity_bytes = 0
        caller.submit(5)
        refused = caller.hear()
        assert isinstance(refused, NotCommitted)
        assert refused.first == 2 * round_ + 2
        disk.capacity_bytes = None
        caller.commit.resume()

    assert log.head == 40


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_an_error_everything_is_refused_for_good(
    caller: Caller, disk: FaultyDisk, operation: str
) -> None:
    disk.fail(operation, error=errno.EIO)  # type: ignore[arg-type]
    for _ in range(3):
        caller.submit(2)
        outcome = caller.hear()
        assert isinstance(outcome, NotCommitted)
        assert isinstance(outcome.error, LogFailed)
        disk.heal()
        caller.commit.resume()


def test_a_damaged_log_refuses_everything(disk: FaultyDisk) -> None:
    fill(open_log(disk), 3)
    disk.open(segment_name(0)).write(b"?", 0)
    caller = Caller(open_log(disk))

    caller.submit()

    outcome = caller.hear()
    assert isinstance(outcome, NotCommitted)
    assert isinstance(outcome.error, LogDamaged)
    caller.commit.close()


def test_an_unexpected_fault_is_reported_and_ends_the_log(
    caller: Caller, disk: FaultyDisk, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    disk.crash_at(1)

    caller.submit()

    outcome = caller.hear()
    assert isinstance(outcome, NotCommitted)
    assert isinstance(outcome.error, LogFailed)
    assert log.state == "failed"
    assert [line.levelno for line in caplog.records] == [logging.ERROR]


def test_a_listener_that_fails_does_not_harm_the_log(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Outcome) -> None:
        raise RuntimeError("the loop is closed")

    commit = GroupCommit(log, fail)
    commit.submit([entry(1)])
    commit.close()

    assert (log.head, log.state) == (1, "open")
    assert [line.message for line in caplog.records] == [
        "The report about committed entries failed"
    ]


def test_closing_commits_what_is_queued(caller: Caller, log: Log) -> None:
    caller.hold()
    caller.submit(4)
    caller.may_go_on.set()

    caller.commit.close()

    assert caller.hear() == Committed(1, 5)
    assert log.durable_head == 5


def test_syncs_follow_the_interval_and_not_the_commits(disk: FaultyDisk) -> None:
    log = open_log(disk, sync="interval", interval_ms=1)
    caller = Caller(log)
    caller.submit(3)
    assert caller.hear() == Committed(0, 3)

    # Nobody announces a sync by the clock, so it is looked for.
    nothing = threading.Event()
    deadline_s = time.monotonic() + PATIENCE_S
    while log.durable_head < 3:
        assert time.monotonic() < deadline_s
        nothing.wait(0.001)

    caller.commit.close()


def test_a_failed_interval_sync_is_reported(disk: FaultyDisk) -> None:
    log = open_log(disk, sync="interval", interval_ms=50)
    caller = Caller(log)
    disk.fail("sync", error=errno.EIO)
    caller.submit(3)
    outcomes = [caller.hear()]
    while isinstance(outcomes[-1], Committed):
        outcomes.append(caller.hear())

    assert outcomes[-1].first == (3 if len(outcomes) > 1 else 0)
    assert log.state == "failed"
    caller.commit.close()


def test_nothing_is_synced_before_the_end_if_that_is_the_setting(disk: FaultyDisk) -> None:
    log = open_log(disk, sync="os")
    caller = Caller(log)
    caller.submit(3)
    assert caller.hear() == Committed(0, 3)
    assert log.durable_head == 0

    caller.commit.close()

    assert log.durable_head == 3
    assert recover(disk.crash(1), repair=True).head == 3


def wait_for(upkeep: UpkeepThread) -> None:
    """Jobs come after what the log has to do."""
    is_done = threading.Event()
    upkeep.run(is_done.set)
    assert is_done.wait(PATIENCE_S)


def test_upkeep_seals_behind_the_back_of_the_log(disk: FaultyDisk) -> None:
    log = open_log(disk, segment_bytes=2_000)
    upkeep = UpkeepThread(log)
    fill_segments(log, 4)

    wait_for(upkeep)
    upkeep.close()

    assert [info.is_sealed for info in log.segments] == [True, True, True, False]


def test_upkeep_begins_with_what_the_last_process_left(disk: FaultyDisk) -> None:
    fill_segments(open_log(disk, segment_bytes=2_000), 3)
    log = open_log(disk.restart(), segment_bytes=2_000)

    upkeep = UpkeepThread(log)
    wait_for(upkeep)
    upkeep.close()

    assert not log.has_upkeep


def test_a_job_may_come_in_slices(log: Log) -> None:
    upkeep = UpkeepThread(log)
    steps: list[int] = []

    def job() -> Iterator[None]:
        for step in range(3):
            steps.append(step)
            yield

    upkeep.run(job)
    wait_for(upkeep)
    upkeep.close()

    assert steps == [0, 1, 2]


def test_a_job_that_fails_does_not_stop_the_others(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    upkeep = UpkeepThread(log)

    upkeep.run(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    wait_for(upkeep)
    upkeep.close()

    assert [line.message for line in caplog.records] == ["Upkeep of the log failed"]


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
