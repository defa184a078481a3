"""The environment of a measurement: temporary folders, a Spark session, and a landed log."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.machine import data_folder, process_tree
from bench.subjects import MeasurementFailed
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.land.land import Landing, checkpointed
from signalhub.pipeline.run.spark import open_session
from signalhub.pipeline.source.plan import LogPosition, Segments, log_of
from signalhub.pipeline.tables.create import ensure_table, forget_tables
from signalhub.pipeline.tables.tables import ENTRIES

MASTER = "local[2]"
MEMORY = "1g"
LAND_S_MAX = 600.0
_POLL_S = 0.02
_LOOK_S = 0.2
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextmanager
def folder() -> Iterator[Path]:
    """Create a folder on a real disk while the block runs."""
    with tempfile.TemporaryDirectory(
        prefix="bench-lake-", dir=data_folder(), ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Open Spark as the pipeline does when it runs alone on two cores."""
    spark = open_session(MASTER, memory=MEMORY, name="bench")
    try:
        yield spark
    finally:
        spark.stop()


def log_end(data: Path) -> LogPosition:
    """Return the end of a log that no process is writing."""
    return Segments(log_of(data)).valid()


def make_entries(spark: SparkSession, lake: Lake) -> None:
    """Create an empty table `entries`."""
    forget_tables(spark)
    ensure_table(spark, lake, ENTRIES.name)


def land(spark: SparkSession, lake: Lake, data: Path, checkpoint: Path, end: LogPosition) -> float:
    """Land a log into an empty table; return the seconds from the first batch to the last row.

    A working pipeline has its query running, so the time to start one does not count.
    """
    asked = time.monotonic()
    landing = Landing(
        spark=spark,
        lake=lake,
        data=data,
        checkpoint=checkpoint,
        report=lambda batch: None,
        until=end,
        beyond_published=True,
    )
    query = landing.begin(LogPosition(end.epoch, 0))
    try:
        while not (checkpoint / "offsets" / "0").exists():
            check(query)
            _check_time(asked)
            time.sleep(_POLL_S)
        began = time.monotonic()
        while (lake.committed(ENTRIES.name, 0, end.epoch) or 0) < end.offset - 1:
            check(query)
            _check_time(asked)
            time.sleep(_POLL_S)
        took_s = time.monotonic() - began
        while (checkpointed(checkpoint, 0) or LogPosition(0, 0)) < end:
            check(query)
            _check_time(asked)
            time.sleep(_POLL_S)
        return took_s
    finally:
        query.stop()


def _check_time(began: float) -> None:
    if time.monotonic() - began > LAND_S_MAX:
        raise MeasurementFailed(f"the log was not landed within {LAND_S_MAX:.0f} s")


def check(query: StreamingQuery) -> None:
    """Raise the error that ended a query which should still run."""
    if not query.isActive:
        raise MeasurementFailed(f"landing ended: {query.exception()}")


def count_rows(lake: Lake, name: str) -> int:
    """Return the number of rows of a table, from the statistics of its files."""
    table = lake.open(name)
    if table is None:
        return 0
    rows: int = sum(pa.table(table.get_add_actions())["num_records"].to_pylist())
    return rows


class CpuMeter:
    """Measure the CPU seconds a process tree uses while the block runs.

    It polls, because the use of a child may be unknown once it has ended. Processes that live
    shorter than one interval are missed.
    """

    def __init__(self, root: int, *, with_root: bool = True) -> None:
        self._root = root
        self._first = 0 if with_root else 1
        self._seen: dict[int, int] = {}
        self._spent = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._spent = 0
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._look()

    @property
    def seconds(self) -> float:
        return self._spent * _TICK_S

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        for pid in process_tree(self._root)[self._first :]:
            ticks = _ticks(pid)
            self._spent += max(0, ticks - self._seen.get(pid, 0))
            self._seen[pid] = ticks


def _ticks(pid: int) -> int:
    """Return user and system time of a process, without its children."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, after_name[11:13]))
