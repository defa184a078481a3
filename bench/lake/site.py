"""A place to measure in: folders that go afterwards, a Spark session, and a log landed at once."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.lake.results import MeasurementFailed
from bench.machine import data_folder, process_tree
from signalhub.pipeline.create import ensure_table, forget_tables
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.land import Landing
from signalhub.pipeline.segments import Position, Segments, log_of
from signalhub.pipeline.session import open_session
from signalhub.pipeline.tables import ENTRIES

MASTER = "local[2]"
MEMORY = "1g"
LAND_S_MAX = 600.0
_POLL_S = 0.02
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on a real disk, as long as the context lasts."""
    with tempfile.TemporaryDirectory(
        prefix="bench-lake-", dir=data_folder(), ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Spark as the pipeline has it when it runs alone on two cores."""
    spark = open_session(MASTER, memory=MEMORY, name="bench")
    try:
        yield spark
    finally:
        spark.stop()


def log_end(data: Path) -> Position:
    """The end of a log that nobody is writing."""
    return Segments(log_of(data)).valid()


def make_entries(spark: SparkSession, lake: Lake) -> None:
    """An empty table `entries`."""
    forget_tables(spark)
    ensure_table(spark, lake, ENTRIES.name)


def land(spark: SparkSession, lake: Lake, data: Path, checkpoint: Path, end: Position) -> float:
    """Land a whole log into an empty table; the seconds from the query's start to the last row."""
    began = time.monotonic()
    landing = Landing(
        spark=spark,
        lake=lake,
        data=data,
        checkpoint=checkpoint,
        report=lambda batch: None,
        until=end,
        beyond_published=True,
    )
    query = landing.begin(Position(end.epoch, 0))
    try:
        while (lake.committed(ENTRIES.name, 0, end.epoch) or 0) < end.offset - 1:
            check(query)
            if time.monotonic() - began > LAND_S_MAX:
                raise MeasurementFailed(f"the log was not landed within {LAND_S_MAX:.0f} s")
            time.sleep(_POLL_S)
        return time.monotonic() - began
    finally:
        query.stop()


def check(query: StreamingQuery) -> None:
    """Raise what ended a query that should still run."""
    if not query.isActive:
        raise MeasurementFailed(f"landing ended: {query.exception()}")


def count_rows(lake: Lake, name: str) -> int:
    """The rows of a table, as its files say."""
    table = lake.open(name)
    if table is None:
        return 0
    rows: int = sum(pa.table(table.get_add_actions())["num_records"].to_pylist())
    return rows


def spent_s(root: int, *, with_root: bool = True) -> float:
    """CPU seconds of a process tree, with threads and children that have ended meanwhile."""
    pids = process_tree(root)[0 if with_root else 1 :]
    return _TICK_S * sum(map(_ticks, pids))


def _ticks(pid: int) -> int:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    # User and system time, its own and that of children it has waited for.
    return sum(map(int, after_name[11:15]))
