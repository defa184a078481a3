"""The pipeline's account of itself: the status file, and one line for every batch."""

from __future__ import annotations

import logging
import os
import threading
from copy import copy
from pathlib import Path
from typing import Final

from signalhub.clock import SystemClock
from signalhub.pipeline.land import Landed
from signalhub.pipeline.segments import Position
from signalhub.pipeline.status import LastBatch, Status, Totals, Upkeep, read_status, write_status

log = logging.getLogger("signalhub.pipeline")

_ALIVE_MS: Final = 5_000
"""The status is written at least this often, so that its age tells whether the pipeline lives."""


class Journal:
    """Written by the landing thread and by the main one."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._clock = SystemClock()
        now = self._clock.now_ms()
        earlier = read_status(data)
        self._status = Status(
            pid=os.getpid(),
            started_ms=now,
            tables=earlier.tables if earlier else {},
            last_batch=earlier.last_batch if earlier else None,
            upkeep=earlier.upkeep if earlier else None,
        )
        self._lock = threading.Lock()
        self._write()

    @property
    def inbox_failures(self) -> int:
        return self._status.inbox_failures

    @inbox_failures.setter
    def inbox_failures(self, count: int) -> None:
        self._status.inbox_failures = count

    @property
    def upkeep(self) -> Upkeep | None:
        """The last round of upkeep, also of an earlier pipeline."""
        return self._status.upkeep

    @upkeep.setter
    def upkeep(self, done: Upkeep) -> None:
        with self._lock:
            self._status.upkeep = done
            self._write()
        facts = {"files": done.files, "ms": done.ms}
        for name in ("removed", "compacted", "purged", "failed"):
            if found := getattr(done, name):
                facts[name] = found
        log.info("upkeep of the tables done", extra=facts)

    def totals(self) -> Totals:
        return copy(self._status.totals)

    def running(self, position: Position, head: Position) -> None:
        """Landing begins, or goes on, here."""
        with self._lock:
            self._status.state = "running"
            self._status.failures, self._status.reason = 0, ""
            self._status.epoch, self._status.position = position.epoch, position.offset
            self._status.head = head.offset
            self._write()

    def landed(self, batch: Landed, head: Position) -> None:
        """One batch more."""
        now = self._clock.now_ms()
        with self._lock:
            status, totals = self._status, self._status.totals
            status.state, status.failures, status.reason = "running", 0, ""
            status.epoch, status.position = batch.end.epoch, batch.end.offset
            status.head = head.offset
            status.last_batch = LastBatch(
                at_ms=now, rows=batch.rows, bytes=batch.bytes, ms=batch.ms
            )
            totals.batches += 1
            totals.rows += batch.rows
            totals.bytes += batch.bytes
            totals.quarantined += batch.quarantined
            self._write()
        facts = {
            "rows": batch.rows,
            "position": batch.end.offset,
            "behind": max(0, head.offset - batch.end.offset),
            "ms": batch.ms,
        }
        if batch.quarantined:
            facts["quarantined"] = batch.quarantined
        log.info("landed", extra=facts)

    def reached(self, table: str, last: int | None) -> None:
        """A derived table has come so far."""
        with self._lock:
            self._status.tables[table] = 0 if last is None else last + 1

    def look(self, head: Position) -> None:
        """Nothing happened; every now and then that is said, too."""
        with self._lock:
            self._status.head = head.offset
            if self._clock.now_ms() - self._status.updated_ms >= _ALIVE_MS:
                self._write()

    def retrying(self, reason: str, failures: int) -> None:
        with self._lock:
            self._status.state = "retrying"
            self._status.reason, self._status.failures = reason, failures
            self._write()

    def failed(self, reason: str) -> None:
        with self._lock:
            self._status.state, self._status.reason = "failed", reason
            self._write()

    def stopped(self) -> None:
        with self._lock:
            self._status.state = "stopped"
            self._write()

    def _write(self) -> None:
        self._status.updated_ms = self._clock.now_ms()
        try:
            write_status(self._data, self._status)
        except OSError as error:
            log.warning("the status cannot be written", extra={"reason": str(error)})
