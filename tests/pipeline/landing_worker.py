"""A pipeline that kills itself, Spark and all, at a chosen point of its next batch.

    python -m tests.pipeline.landing_worker [--full] DATA POINT [MASTER [TABLE]]

With `--full` its lake, on a small file system of its own, has no room at first: when an attempt has
failed, room is made, and when that is landed, more is to land. It prints how often it failed.

One that is never killed prints how many entries it has landed, and how many rows the table gained.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.land.land import Landing
from signalhub.pipeline.run.run import Pipeline
from signalhub.pipeline.run.spark import open_session
from signalhub.pipeline.run.status import folder_of, read_status
from signalhub.pipeline.tables.tables import ENTRIES
from signalhub.settings.model import PipelineSettings as Settings
from tests.pipeline.scene import LogScene

FULL = "--full"
BEFORE_WRITE = "before-write"
WRITTEN = "written-not-committed"
COMMITTED = "committed-not-checkpointed"
CHECKPOINTED = "checkpointed"
NEVER = "never"

POINTS = (BEFORE_WRITE, WRITTEN, COMMITTED, CHECKPOINTED)

_PIECE = bytes(2**12)

point = NEVER


def die() -> None:
    """Nothing is tidied up: the whole process group is gone at once, Java included."""
    os.killpg(0, signal.SIGKILL)


class DyingLanding(Landing, frozen=True, kw_only=True):
    """Dies before it writes, or after it has committed and before Spark knows."""

    def land(self, batch: DataFrame, batch_id: int) -> None:
        if point == BEFORE_WRITE:
            die()
        if point == WRITTEN:
            die_when_written(Path(self.lake.location(ENTRIES.name)))
        if point == CHECKPOINTED:
            die_when((self.checkpoint / "commits" / str(batch_id)).exists)
        super().land(batch, batch_id)
        if point == COMMITTED:
            die()


def die_when(is_so: Callable[[], bool]) -> None:
    def watch() -> None:
        while not is_so():
            time.sleep(0.0005)
        die()

    threading.Thread(target=watch, daemon=True).start()


def die_when_written(table: Path) -> None:
    """When a data file is there whose commit is not."""

    def found() -> tuple[set[Path], set[Path]]:
        return set(table.glob("*.parquet")), set((table / "_delta_log").glob("*.json"))

    files, commits = found()

    def is_so() -> bool:
        now = found()
        return bool(now[0] - files) and not now[1] - commits

    die_when(is_so)


def land_into_a_full_lake(spark: SparkSession, data: Path) -> int:
    """How often that failed until there was room."""
    pipeline = Pipeline(spark, lake_of(data), data, Settings(), tables=())
    filler = data / "lake" / "filler"
    fill(filler)
    failures: list[int] = []

    def make_room() -> None:
        while (status := read_status(data)) is None or not status.failures:
            time.sleep(0.05)
        failures.append(status.failures)
        filler.unlink()
        pipeline.hurry()

    watcher = threading.Thread(target=make_room)
    watcher.start()
    pipeline.once()
    watcher.join()
    return failures[0]


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(_PIECE)
        except OSError:
            return


def main(data: Path, chosen: str, master: str = "local[1]", *tables: str, is_full: bool) -> None:
    global point
    spark = open_session(master, memory="512m", is_brief=True)
    folder_of(data).mkdir(exist_ok=True)
    print("ready", flush=True)
    if is_full:
        print(land_into_a_full_lake(spark, data), flush=True)
        scene = LogScene(data, segment_bytes=2**16)
        scene.publish(150)
        scene.close()
    point = chosen
    lake = lake_of(data)
    pipeline = Pipeline(spark, lake, data, Settings(), landing=DyingLanding, tables=tables)
    summary = pipeline.once()
    print(summary.rows, *(summary.tables[name] for name in tables), flush=True)
    spark.stop()


if __name__ == "__main__":
    words = [one for one in sys.argv[1:] if one != FULL]
    main(Path(words[0]), *words[1:], is_full=FULL in sys.argv)
