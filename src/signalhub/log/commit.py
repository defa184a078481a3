"""The two threads of the log: one commits queued entries, one does background work.

Group commit does not linger: all queued entries are written together as soon as the previous sync
is done, so a single entry never waits and many entries share one sync.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Final

import msgspec

from signalhub.log.errors import LogDamaged, LogFailed, LogFull
from signalhub.log.log import Log
from signalhub.wire.entry import Entry, EntryRun
from signalhub.wire.errors import SignalHubError

log_lines = logging.getLogger("signalhub.log")

_BATCH_ENTRIES_MAX: Final = 4_096
# A torn batch must fit into the reserve of the log.
_BATCH_BYTES_MAX: Final = 2**20
# If there is one core for both, whoever was told goes on first: what follows from that, such as the
# next messages of clients that were waiting, shares the next sync.
_give_way: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)
# Slices take less than half of this, so that upkeep mostly leaves the interpreter to other threads.
_PAUSE_S: Final = 0.001


class Committed(msgspec.Struct, frozen=True):
    """Entries `first` to `end - 1` are committed as `log.sync` of the settings promises."""

    first: int
    end: int


class NotCommitted(msgspec.Struct, frozen=True):
    """Nothing from `first` on was committed, including whatever was submitted since.

    The outcome of entries before `attempted` is unknown: their batch was being written. Everything
    else was not written. The caller gives up everything submitted and not yet reported, resets its
    counters and calls `resume`.
    """

    first: int
    attempted: int
    end: int
    error: SignalHubError


Outcome = Committed | NotCommitted


class GroupCommit:
    """One thread that commits, and reports in order.

    After `NotCommitted` everything submitted is dropped without another report until `resume`,
    because the positions assigned meanwhile would leave a gap.
    """

    def __init__(self, log: Log, report: Callable[[Outcome], None]) -> None:
        """`report` is called from the thread."""
        self._log = log
        self._report = report
        self._interval_s = log.interval_s
        self._sync_due_s = 0.0
        self._changed = threading.Condition(threading.Lock())
        self._entries: list[Entry | EntryRun] = []
        self._next = log.head
        self._reported = log.head
        self._is_waiting = False
        self._is_refusing = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="signalhub-commit", daemon=True)
        self._thread.start()

    def submit(self, entries: Sequence[Entry | EntryRun]) -> int:
        """Queue entries and return the offset of the first, without waiting for the disk."""
        with self._changed:
            assert not self._is_closed, "the log is closed"
            first = self._next
            self._next += sum([one.count for one in entries])
            if not self._is_refusing:
                self._entries += entries
                if self._is_waiting:
                    self._changed.notify()
        return first

    def resume(self) -> int:
        """Continue after `NotCommitted`; returns the offset of the next entry.

        Entries submitted before this call and not committed are dropped.
        """
        with self._changed:
            self._entries = []
            self._is_refusing = False
            self._next = self._log.head
            return self._next

    def close(self) -> None:
        """Commit and sync queued entries, and stop the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        with suppress(LogFailed, LogDamaged):
            self._log.sync()

    def _run(self) -> None:
        while (entries := self._take()) is not None:
            try:
                if entries:
                    first = self._log.append(entries)
                    self._reported = self._log.head
                    self._tell(Committed(first, self._reported))
                    _give_way()
                self._sync_if_due()
            except (LogFull, LogFailed, LogDamaged) as error:
                self._refuse(error)
            except BaseException as error:
                # Whatever the error, the waiting callers must learn that the outcome is unknown.
                log_lines.exception("the commit thread failed")
                self._refuse(self._log.fail(repr(error)))

    def _take(self) -> list[Entry | EntryRun] | None:
        """The next batch; empty when only a sync is due, None at the end."""
        with self._changed:
            while not self._entries:
                if self._is_closed:
                    return None
                timeout_s = self._sync_wait_s()
                if timeout_s is not None and timeout_s <= 0:
                    break
                self._is_waiting = True
                self._changed.wait(timeout_s)
                self._is_waiting = False
            entries = self._entries
            count = _count_of_batch(entries)
            self._entries = entries[count:]
        return entries[:count]

    def _refuse(self, error: SignalHubError) -> None:
        with self._changed:
            self._entries = []
            self._is_refusing = True
            attempted = max(self._reported, self._log.attempted)
            outcome = NotCommitted(self._reported, attempted, self._next, error)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        try:
            self._report(outcome)
        except Exception:
            log_lines.exception("an outcome of the commit thread could not be reported")

    def _sync_wait_s(self) -> float | None:
        """The time until a sync is due; None if no sync is scheduled."""
        if self._interval_s is None or self._log.durable_head == self._log.head or self._log.fault:
            return None
        return self._sync_due_s - monotonic()

    def _sync_if_due(self) -> None:
        wait_s = self._sync_wait_s()
        if wait_s is not None and wait_s <= 0:
            self._log.sync()
            self._sync_due_s = monotonic() + (self._interval_s or 0.0)


def _count_of_batch(entries: list[Entry | EntryRun]) -> int:
    """How many of the queued entries and runs go into one batch; a run is never divided."""
    size = total = 0
    for count, entry in enumerate(islice(entries, _BATCH_ENTRIES_MAX)):
        size += len(entry.body)
        total += entry.count
        if size > _BATCH_BYTES_MAX or total > _BATCH_ENTRIES_MAX:
            return max(1, count)
    return min(len(entries), _BATCH_ENTRIES_MAX)


Job = Callable[[], Iterable[None] | None]


class UpkeepThread:
    """One thread for background work: preparing and sealing segments, and submitted jobs."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._is_awake = True
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="signalhub-upkeep", daemon=True)
        log.on_upkeep = self.wake
        self._thread.start()

    def wake(self) -> None:
        """Check whether there is something to do."""
        with self._changed:
            self._is_awake = True
            self._changed.notify()

    def run(self, job: Job) -> None:
        """Run a job soon; one that returns an iterator runs in slices.

        A job that fails is logged and dropped.
        """
        self._jobs.append(job)
        self.wake()

    def close(self) -> None:
        """Stop after the current slice; unfinished work starts again at the next start."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait_for_work():
            self._drive(self._log.upkeep)
            while self._jobs and not self._is_closed:
                # Work the log had when a job was submitted is done before the job.
                self._drive(self._log.upkeep)
                self._drive(self._jobs.popleft())

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_awake or self._is_closed)
            self._is_awake = False
            return not self._is_closed

    def _drive(self, job: Job) -> None:
        try:
            for _ in job() or ():
                if self._is_closed:
                    return
                self._pause()
        except BaseException:
            log_lines.exception("upkeep of the log failed")

    def _pause(self) -> None:
        with self._changed:
            if not self._is_closed:
                self._changed.wait(_PAUSE_S)
