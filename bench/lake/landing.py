"""How fast the log is landed in `entries`, compared with two other ways."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.lake.logs import fill, open_log, publications
from bench.lake.site import (
    CpuMeter,
    count_rows,
    folder,
    land,
    log_end,
    make_entries,
    spark_session,
)
from bench.servers import ROOT
from bench.subjects import Column, MeasurementFailed, Plan, Sample, Subject
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.source.columns import read_columns
from signalhub.pipeline.source.plan import LogPosition, Segments, log_of
from signalhub.pipeline.tables.tables import ENTRIES

NAME = "landing"
PIPELINE = "pipeline"
PLAIN = "pyarrow and deltalake"
PLAIN_NATIVE = "the same with our native decoder"
LINES = "Spark from JSON lines"

ENTRIES_FULL = 3_000_000
WARM_RUNS = 2
PLAIN_S_MAX = 600.0
_REMOVED = ("removed_at", "removed_reason")


@dataclass(frozen=True, slots=True)
class _Spent:
    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class _Source:
    """One log, the same entries as JSON lines, and a session to land them with."""

    spark: SparkSession
    data: Path
    lines: Path
    end: LogPosition
    bytes: int


def _by_pipeline(source: _Source, lake: Lake) -> _Spent:
    make_entries(source.spark, lake)
    checkpoint = Path(lake.uri) / "checkpoint"
    with CpuMeter(os.getpid()) as meter:
        seconds = land(source.spark, lake, source.data, checkpoint, source.end)
    return _Spent(seconds, meter.seconds)


def _by_lines(source: _Source, lake: Lake) -> _Spent:
    make_entries(source.spark, lake)
    names = [one for one in ENTRIES.columns if one.name not in _REMOVED]
    schema = ", ".join(
        f"`{one.name}` {'STRING' if one.type == 'BINARY' else one.type}" for one in names
    )
    rows = source.spark.read.schema(schema).json(str(source.lines))
    rows = rows.withColumns(
        {
            "body": F.unbase64("body"),
            "removed_at": F.lit(None).cast("timestamp"),
            "removed_reason": F.lit(None).cast("string"),
        }
    )
    rows = rows.select(*ENTRIES.names)
    began = time.monotonic()
    with CpuMeter(os.getpid()) as meter:
        rows.write.format("delta").mode("append").save(lake.location(ENTRIES.name))
        seconds = time.monotonic() - began
    return _Spent(seconds, meter.seconds)


def _by_plain(source: _Source, lake: Lake) -> _Spent:
    return _by_script(source, lake, "off")


def _by_plain_native(source: _Source, lake: Lake) -> _Spent:
    return _by_script(source, lake, "auto")


def _by_script(source: _Source, lake: Lake, native: str) -> _Spent:
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "bench.lake.plain", str(source.data)]
    command += [lake.location(ENTRIES.name), str(core)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "SIGNALHUB_NATIVE": native},
        capture_output=True,
        text=True,
        check=False,
        timeout=PLAIN_S_MAX,
    )
    if done.returncode:
        raise MeasurementFailed(f"{PLAIN} failed: {done.stderr.strip()[-300:]}")
    return _Spent(**json.loads(done.stdout))


_WAYS: dict[str, Callable[[_Source, Lake], _Spent]] = {
    PIPELINE: _by_pipeline,
    PLAIN: _by_plain,
    PLAIN_NATIVE: _by_plain_native,
    LINES: _by_lines,
}


def measure(plan: Plan) -> Iterator[Sample]:
    """Run every way once per round, in random order, each into a new lake."""
    with folder() as place, spark_session() as spark:
        count = plan.count(ENTRIES_FULL, at_least=1_000)
        plan.say(f"making a log of {count:,} entries and the same as JSON lines")
        data, lines = place / "data", place / "lines"
        with open_log(data) as log:
            fill(log, publications(), count)
        size = _write_lines(data, lines)
        source = _Source(spark, data, lines, log_end(data), size)
        for way in [PIPELINE, LINES] * WARM_RUNS:
            _run(way, source, place / "lake")
        for _ in range(plan.rounds):
            for way in plan.order.sample(list(_WAYS), len(_WAYS)):
                yield _run(way, source, place / "lake")


def _run(way: str, source: _Source, place: Path) -> Sample:
    lake = Lake(str(place))
    try:
        spent = _WAYS[way](source, lake)
        if (rows := count_rows(lake, ENTRIES.name)) != source.end.offset:
            raise MeasurementFailed(f"{way} made {rows} rows of {source.end.offset} entries")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Sample(
        way,
        {
            "rate_s": source.end.offset / spent.seconds,
            "mb_s": source.bytes / spent.seconds / 1e6,
            "cpu_us": spent.cpu_s / source.end.offset * 1e6,
            "seconds": spent.seconds,
        },
    )


def _write_lines(data: Path, target: Path) -> int:
    """Write one object per entry with the columns of the table; bodies as base64, times as text.

    Returns the size of the entries in the log in bytes.
    """
    target.mkdir()
    disk, end = log_of(data), log_end(data)
    encoder = msgspec.json.Encoder()
    columns = [name for name in ENTRIES.names if name not in _REMOVED]
    slices = Segments(disk).plan(LogPosition(end.epoch, 0), end).slices
    for number, one in enumerate(slices):
        with (target / f"{number:05d}.json").open("wb") as file:
            for batch in read_columns(disk, 0, one):
                file.write(encoder.encode_lines(batch.select(columns).to_pylist()))
    return sum(one.end - one.begin for one in slices)


SUBJECT = Subject(
    name=NAME,
    title="landing: a log into an empty table `entries`, warm",
    columns=(
        Column("entries per s", "rate_s"),
        Column("MB of log per s", "mb_s", 1),
        Column("CPU µs per entry", "cpu_us", 2),
        Column("s", "seconds", 2),
    ),
    measure=measure,
)
