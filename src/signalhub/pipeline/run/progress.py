"""How far the lake is behind the log, determined without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from signalhub.clock import SystemClock
from signalhub.locks import is_hub_running
from signalhub.log.folder import is_gone
from signalhub.pipeline.lake import Lake, lake_of
from signalhub.pipeline.run.lock import running_pid
from signalhub.pipeline.run.status import PipelineStatus, read_status
from signalhub.pipeline.source import known
from signalhub.pipeline.source.plan import LOG_FOLDER, LogPosition, Segments, log_of
from signalhub.pipeline.tables.tables import AUDIT, ENTRIES, QUARANTINE, TABLES

_FEW_ENTRIES: Final = 50_000
_WITHOUT_POSITION: Final = (QUARANTINE.name, AUDIT.name)


class TableStanding(msgspec.Struct, frozen=True):
    """The state of one table; tables that do not follow `entries` have no position."""

    table: str
    position: int | None
    behind: int | None
    files: int
    bytes: int

    def facts(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


class Standing(msgspec.Struct, frozen=True):
    """The state of the whole lake, and of the pipeline that fills it."""

    state: str
    epoch: int
    position: int
    head: int
    lag_s: float | None
    """The age of the oldest entry that has not landed; `None` if it cannot be read."""
    last_batch: str
    failures: int
    reason: str
    hub: str
    tables: list[TableStanding]

    def facts(self) -> dict[str, Any]:
        """Everything except the tables."""
        lag = max(0, self.head - self.position)
        return {
            "state": self.state,
            "hub": self.hub,
            "epoch": self.epoch,
            "position": self.position,
            "head": self.head,
            "lag": lag,
            "lag_s": self.lag_s,
            "last_batch": self.last_batch,
            "failures": self.failures,
            "reason": self.reason,
        }


def standing(data: Path, uri: str, *, shard: int = 0) -> Standing:
    """Read log, tables and status file; raises `LakeUnreachable`, `LogGone`."""
    segments, lake = Segments(log_of(data)), lake_of(data, uri)
    hub_runs = is_hub_running(data)
    head = _head(segments, hub_runs)
    state, reason, status = told(data)
    found = known.examined(data)
    if found.problem:
        # What was there and cannot be read has not landed either, unless it is in the lake.
        head = max(head, LogPosition(found.epoch, found.published))
    begin = segments.epochs.get(head.epoch, 0)
    committed = lake.committed(ENTRIES.name, shard, head.epoch)
    position = begin if committed is None else committed + 1
    return Standing(
        state=state,
        epoch=head.epoch,
        position=position,
        head=head.offset,
        lag_s=_lag_s(segments, _next(segments, lake, shard, head), head),
        last_batch=_last_batch(status),
        failures=status.failures if status else 0,
        reason=reason or found.problem,
        hub="running" if hub_runs else "stopped",
        tables=[_table(lake, name, shard, begin, head) for name in TABLES],
    )


def is_nearly_done(data: Path, uri: str) -> bool:
    """Return whether so little is left to land that compiling the code would not pay off."""
    found = standing(data, uri)
    left = [
        found.head if one.behind is None else one.behind
        for one in found.tables
        if one.table not in _WITHOUT_POSITION
    ]
    return max(left) <= _FEW_ENTRIES


def behind(data: Path, lake: Lake, names: Iterable[str], *, shard: int = 0) -> dict[str, int]:
    """Return the entries that tables have not taken in yet, by table."""
    if is_gone(data / LOG_FOLDER):
        return {}
    segments = Segments(log_of(data))
    head = _head(segments, is_hub_running(data))
    begin = segments.epochs.get(head.epoch, 0)
    found = {name: _table(lake, name, shard, begin, head).behind for name in sorted(names)}
    return {name: count for name, count in found.items() if count}


def _head(segments: Segments, hub_runs: bool) -> LogPosition:
    return (segments.published() if hub_runs else None) or segments.valid()


def told(data: Path) -> tuple[str, str, PipelineStatus | None]:
    """Return the state of the pipeline, the reason of its last failure, and its status file.

    The file alone does not suffice: it may be that of an earlier process, or of one that was
    killed. The lock shows which process is there now.
    """
    pid, status = running_pid(data), read_status(data)
    if pid is not None:
        if status is None:
            return "starting", "", None
        is_earlier = pid not in (0, status.pid)
        return "starting" if is_earlier else status.state, status.reason, status
    if status is None:
        return "never started", "", None
    if status.state in ("stopped", "failed"):
        return status.state, status.reason, status
    died = f"process {status.pid} ended unexpectedly while it was {status.state}"
    return "failed", f"{died}: {status.reason}" if status.reason else died, status


def _next(segments: Segments, lake: Lake, shard: int, head: LogPosition) -> LogPosition:
    """Return the next entry to land, which may belong to an earlier epoch than the head."""
    for epoch in sorted(segments.epochs, reverse=True):
        committed = lake.committed(ENTRIES.name, shard, epoch)
        if committed is not None:
            return LogPosition(epoch, committed + 1)
    return min(segments.first, head)


def _lag_s(segments: Segments, position: LogPosition, head: LogPosition) -> float | None:
    if position >= head:
        return 0.0
    at_ms = segments.accepted_ms(position, head)
    return None if at_ms is None else max(0.1, round((SystemClock().now_ms() - at_ms) / 1000, 1))


def oldest_ms(data: Path, position: LogPosition) -> int | None:
    """Return when the first entry from a position on was accepted; `None` if there is none."""
    segments = Segments(log_of(data))
    return segments.accepted_ms(position, _head(segments, is_hub_running(data)))


def _last_batch(status: PipelineStatus | None) -> str:
    if status is None or status.last_batch is None:
        return "none"
    batch = status.last_batch
    at = datetime.fromtimestamp(batch.at_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"{batch.rows} rows in {batch.ms} ms at {at}"


def _table(lake: Lake, name: str, shard: int, begin: int, head: LogPosition) -> TableStanding:
    if not lake.exists(name):
        return TableStanding(name, None, None, 0, 0)
    sizes = lake.sizes(name)
    position = behind = None
    if name not in _WITHOUT_POSITION:
        committed = lake.committed(name, shard, head.epoch)
        position = begin if committed is None else committed + 1
        behind = max(0, head.offset - position)
    return TableStanding(name, position, behind, len(sizes), sum(sizes))
