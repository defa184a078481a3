"""Landing entries in this process: what Spark needs for a few of them takes longer than the rest.

The table records what it has, as always, so either way continues where the other one ended. What is
unusual is left to Spark: damage, faults, more than one epoch, a micro-batch that was begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from signalhub.log.errors import EntriesGone, LogDamaged, LogFailed
from signalhub.pipeline.commit import write_file
from signalhub.pipeline.lake import Lake, Position
from signalhub.pipeline.land.files import (
    WrittenFile,
    are_complete,
    can_write,
    delete,
    write_slice,
)
from signalhub.pipeline.land.land import Landed, Landing, has_unfinished
from signalhub.pipeline.source.columns import TIME, read_columns, table_of
from signalhub.pipeline.source.plan import LogPosition, Segments, log_of
from signalhub.pipeline.tables.piece import FEW
from signalhub.pipeline.tables.tables import ENTRIES

_BYTES_MAX: Final = 16 * 2**20
_STEP_BYTES_MAX: Final = 64 * 2**20
"""More than this is worth more than one core."""


def land_here(
    lake: Lake,
    data: Path,
    checkpoint: Path,
    position: LogPosition,
    target: LogPosition,
    *,
    shard: int,
    report: Callable[[Landed], None],
) -> bool:
    """Land the entries up to `target`; returns `False` if Spark has to do it."""
    began = time.monotonic()
    if has_unfinished(checkpoint) or not can_write(lake):
        # What was begun may have been cut short between two tables.
        return False
    if position >= target:
        return True
    is_few = position.epoch == target.epoch and target.offset - position.offset <= FEW
    rows = _read(data, shard, position, target) if is_few else None
    if rows is None or rows["fault"].null_count < rows.num_rows:
        return False
    found = entries_here(rows)
    landed = Position(shard, target.epoch, target.offset - 1)
    committed = lake.committed(ENTRIES.name, shard, target.epoch)
    if committed is not None and committed != position.offset - 1:
        # Somebody else has landed meanwhile.
        return False
    into = Path(lake.location(ENTRIES.name))
    try:
        added = write_file(into, found, ENTRIES.statistics)
    except OSError:
        return False
    if not lake.add(ENTRIES.name, [added], landed, committed):
        (into / added["path"]).unlink(missing_ok=True)
        return False
    size = pc.sum(pc.binary_length(found["body"])).as_py() or 0
    ms = int((time.monotonic() - began) * 1000)
    report(Landed(end=target, rows=found.num_rows, bytes=size, quarantined=0, ms=ms))
    return True


def land_steadily(
    landing: Landing,
    segments: Segments,
    position: LogPosition,
    head: LogPosition,
    committed: int | None,
) -> LogPosition | None:
    """Land what there is up to the head, or as much as goes into one commit.

    `committed` is the last offset in the table. Returns the position after what has landed; `None`
    if Spark has to do it.
    """
    began = time.monotonic()
    lake, shard = landing.lake, landing.shard
    if position.epoch != head.epoch or has_unfinished(landing.checkpoint) or not can_write(lake):
        return None
    found: list[WrittenFile] = []
    try:
        plan = segments.plan(position, head, bytes_max=_STEP_BYTES_MAX)
        is_long = plan.end != head and landing.spark.sparkContext.defaultParallelism > 1
        if is_long or plan.end <= position:
            return None
        disk, into = log_of(landing.data), Path(lake.location(ENTRIES.name))
        for one in plan.slices:
            found.append(write_slice(disk, shard, one, into))
            if found[-1].faults:
                break
    except (EntriesGone, LogDamaged, LogFailed):
        delete(lake, found)
        return None
    except BaseException:
        delete(lake, found)
        raise
    last = plan.end.offset - 1
    if any(one.faults for one in found) or not are_complete(found, last):
        delete(lake, found)
        return None
    landing.commit(found, Position(shard, head.epoch, last), committed)
    landing.report(
        Landed(
            end=plan.end,
            rows=sum(one.rows for one in found),
            bytes=sum(one.body_bytes for one in found),
            quarantined=0,
            ms=int((time.monotonic() - began) * 1000),
        )
    )
    return plan.end


def _read(data: Path, shard: int, start: LogPosition, end: LogPosition) -> pa.Table | None:
    """Return all entries between two positions; `None` if they are large, or cannot be read."""
    try:
        disk = log_of(data)
        plan = Segments(disk).plan(start, end)
        size = sum(one.end - one.begin for one in plan.slices)
        if plan.end != end or size > _BYTES_MAX:
            return None
        rows = table_of(batch for one in plan.slices for batch in read_columns(disk, shard, one))
    except (EntriesGone, LogDamaged, LogFailed, OSError):
        return None
    return rows if rows.num_rows == end.offset - start.offset else None


def entries_here(rows: pa.Table) -> pa.Table:
    """Return rows of the source as rows of `entries`."""
    is_erased, now = rows["is_erased"], datetime.now(UTC)
    columns = {
        **dict(zip(rows.schema.names, rows.columns, strict=True)),
        "removed_at": pc.if_else(is_erased, pa.scalar(now, TIME), pa.scalar(None, TIME)),
        "removed_reason": pc.if_else(is_erased, "erased", pa.scalar(None, pa.string())),
    }
    return pa.table({name: columns[name] for name in ENTRIES.names})
