"""The status file of the pipeline, beside its checkpoint."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from signalhub.clock import SystemClock
from signalhub.privacy import make_folder, opener

if TYPE_CHECKING:
    # The hub reads the status and must not load Spark.
    from signalhub.pipeline.land.land import Landed
    from signalhub.pipeline.source.plan import LogPosition


def replace_json(path: Path, value: object, *, is_synced: bool = True) -> None:
    """Replace a file with a value as JSON, atomically, and sync it to disk unless told not to."""
    make_folder(path.parent)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb", opener=opener) as file:
        file.write(msgspec.json.format(msgspec.json.encode(value)))
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if is_synced:
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


FOLDER: Final = "pipeline"
_NAME: Final = "status.json"

State = Literal["starting", "running", "retrying", "stopped", "failed"]


class LastBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The last landed batch."""

    at_ms: int
    rows: int
    bytes: int
    ms: int


class Totals(msgspec.Struct, kw_only=True):
    """Since the pipeline started."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    quarantined: int = 0


class UpkeepRound(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one round of upkeep; the next one starts where it ended."""

    at_ms: int
    ms: int
    looked_ms: int = 0
    """Everything due up to this time was found."""
    thorough_ms: int = 0
    """When the last thorough round was."""
    removed: dict[str, int] = {}
    """Rows that each table lost, or in `entries` their content."""
    files: int = 0
    """Data files of all tables together."""
    compacted: dict[str, int] = {}
    """By how many files a table shrank."""
    purged: dict[str, int] = {}
    """Files rewritten because rows in them were deleted."""
    vacuumed: list[str] = []
    forgotten: int = 0
    """Files deleted from the tables' logs, with their old commits."""
    erasures: int = 0
    """How many erasures were completed: nothing of their subjects is left."""
    failed: dict[str, str] = {}
    """Tables left to the next round, and why."""


class PipelineStatus(msgspec.Struct, kw_only=True):
    """Written after every batch and every change of state."""

    pid: int
    state: State = "starting"
    started_ms: int = 0
    updated_ms: int = 0
    epoch: int = 0
    position: int = 0
    """The next offset to land."""
    head: int = 0
    """The durable head of the log at that time."""
    last_batch: LastBatch | None = None
    failures: int = 0
    """Failed attempts since the last successful one."""
    reason: str = ""
    inbox_failures: int = 0
    tables: dict[str, int] = msgspec.field(default_factory=dict)
    """The next offset each derived table will take in."""
    totals: Totals = msgspec.field(default_factory=Totals)
    upkeep: UpkeepRound | None = None
    """The last round of upkeep of the tables."""


def folder_of(data: str | Path) -> Path:
    """Return the folder where the pipeline of a data folder keeps its files."""
    return Path(data) / FOLDER


def write_status(data: str | Path, status: PipelineStatus) -> None:
    """Replace the status atomically."""
    replace_json(folder_of(data) / _NAME, status, is_synced=False)


def read_status(data: str | Path) -> PipelineStatus | None:
    """Return the last status; `None` if there is none, or it is unreadable."""
    try:
        return msgspec.json.decode((folder_of(data) / _NAME).read_bytes(), type=PipelineStatus)
    except (OSError, msgspec.MsgspecError):
        return None


log = logging.getLogger("signalhub.pipeline")

_ENDED: Final = ("stopped", "failed")
_ALIVE_MS: Final = 5_000
"""The status is written at least this often, so that its age shows whether the pipeline runs."""


@contextmanager
def announced(data: Path) -> Iterator[None]:
    """Say from the beginning of the block on that a pipeline starts; say why if it cannot.

    Spark needs seconds to start, on a busy machine minutes. What went wrong before stays visible
    until something has landed.
    """
    earlier = read_status(data)
    status = PipelineStatus(pid=os.getpid()) if earlier is None else copy(earlier)
    has_failed = earlier is not None and earlier.state == "failed"
    status.pid, status.state, status.started_ms = os.getpid(), "starting", SystemClock().now_ms()
    status.failures, status.reason = (status.failures, status.reason) if has_failed else (0, "")
    status.totals = Totals()
    _tell(data, status)
    try:
        yield
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        status.failures += 1
        _end(data, "failed", text.splitlines()[0][:500], status.failures)
        raise
    except BaseException:
        _end(data, "stopped", "", 0)
        raise


def _end(data: Path, state: State, reason: str, failures: int) -> None:
    """Note how this process ends, unless it has done so itself."""
    status = read_status(data)
    if status is not None and status.pid == os.getpid() and status.state not in _ENDED:
        status.state, status.reason, status.failures = state, reason, failures
        _tell(data, status)


def _tell(data: Path, status: PipelineStatus) -> None:
    status.updated_ms = SystemClock().now_ms()
    try:
        write_status(data, status)
    except OSError as error:
        log.warning("the status cannot be written", extra={"reason": str(error)})


class Journal:
    """Keeps the status file up to date, for the landing thread and the main thread."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._clock = SystemClock()
        now = self._clock.now_ms()
        earlier = read_status(data)
        self._status = PipelineStatus(
            pid=os.getpid(),
            started_ms=now,
            tables=earlier.tables if earlier else {},
            last_batch=earlier.last_batch if earlier else None,
            upkeep=earlier.upkeep if earlier else None,
        )
        if earlier is not None and (earlier.pid, earlier.state) == (os.getpid(), "starting"):
            self._status.failures, self._status.reason = earlier.failures, earlier.reason
            self._status.started_ms = earlier.started_ms
        self._lock = threading.Lock()
        self._write()

    @property
    def inbox_failures(self) -> int:
        return self._status.inbox_failures

    @inbox_failures.setter
    def inbox_failures(self, count: int) -> None:
        self._status.inbox_failures = count

    @property
    def upkeep(self) -> UpkeepRound | None:
        """The last round of upkeep, possibly of an earlier pipeline."""
        return self._status.upkeep

    @upkeep.setter
    def upkeep(self, done: UpkeepRound) -> None:
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

    def running(self, position: LogPosition, head: LogPosition) -> None:
        """Landing starts, or continues, here."""
        with self._lock:
            self._status.state = "running"
            self._status.epoch, self._status.position = position.epoch, position.offset
            self._status.head = head.offset
            self._write()

    def landed(self, batch: Landed, head: LogPosition) -> None:
        """A batch was landed."""
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
        """A derived table has reached an offset."""
        with self._lock:
            self._status.tables[table] = 0 if last is None else last + 1

    def look(self, head: LogPosition) -> None:
        """Nothing happened; record that from time to time."""
        with self._lock:
            self._status.head = head.offset
            if (self._status.epoch, self._status.position) == (head.epoch, head.offset):
                # Until then a retry may fail again.
                self._status.failures, self._status.reason = 0, ""
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
            self._status.failures = max(1, self._status.failures)
            self._write()

    def stopped(self) -> None:
        with self._lock:
            self._status.state, self._status.failures, self._status.reason = "stopped", 0, ""
            self._write()

    def _write(self) -> None:
        _tell(self._data, self._status)
