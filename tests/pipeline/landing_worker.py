"""A pipeline that kills itself, Spark and all, at a chosen point of its next batch.

    python -m tests.pipeline.landing_worker DATA POINT [MASTER TABLE [--full]]

With a table, what there is lands before, and the table takes it in; it prints how many rows that
are. Then more is to land. With `--full` its lake, on a small file system of its own, has no room at
first: when an attempt has failed, room is made. It prints how often it failed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from signalhub.pipeline.lake import Position, lake_of
from signalhub.pipeline.land.files import WrittenFile
from signalhub.pipeline.land.land import Landing
from signalhub.pipeline.run.run import Pipeline
from signalhub.pipeline.run.spark import open_session
from signalhub.pipeline.run.status import folder_of, read_status
from signalhub.pipeline.tables.tables import ENTRIES
from signalhub.settings.model import PipelineSettings as Settings
from tests.pipeline.scene import LogScene

FULL = "--full"
BEFORE_WRITE = "before-write"
WRITING = "writing"
WRITTEN = "written-not-committed"
COMMITTED = "committed-not-reported"
LANDED = "landed-not-checkpointed"
CHECKPOINTED = "checkpointed"
NEVER = "never"

POINTS = (BEFORE_WRITE, WRITING, WRITTEN, COMMITTED, LANDED, CHECKPOINTED)

_PIECE = bytes(2**12)

point = NEVER


def die() -> None:
    """Nothing is tidied up: the whole process group is gone at once, Java included."""
    os.killpg(0, signal.SIGKILL)


class DyingLanding(Landing, frozen=True, kw_only=True):
    """Dies between any two of its steps."""

    def land(self, batch: DataFrame, batch_id: int) -> None:
        if point == BEFORE_WRITE:
            die()
        if point == WRITING:
            die_when_writing(Path(self.lake.location(ENTRIES.name)))
        if point == CHECKPOINTED:
            die_when((self.checkpoint / "commits" / str(batch_id)).exists)
        super().land(batch, batch_id)
        if point == LANDED:
            die()

    def commit(
        self, found: Sequence[WrittenFile], position: Position, committed: int | None
    ) -> None:
        if point == WRITTEN:
            die()
        super().commit(found, position, committed)
        if point == COMMITTED:
            die()


def die_when(is_so: Callable[[], bool]) -> None:
    def watch() -> None:
        while not is_so():
            time.sleep(0.0005)
        die()

    threading.Thread(target=watch, daemon=True).start()


def die_when_writing(table: Path) -> None:
    """When a new data file is there, complete or not."""
    files = set(table.glob("*.parquet"))
    die_when(lambda: bool(set(table.glob("*.parquet")) - files))


def land_before(spark: SparkSession, data: Path, table: str, *, is_full: bool) -> None:
    """Land what there is, into a lake that may be full at first."""
    pipeline = Pipeline(spark, lake_of(data), data, Settings(), tables=(table,))
    filler = data / "lake" / "filler"
    failures = [0]

    def make_room() -> None:
        while (status := read_status(data)) is None or not status.failures:
            time.sleep(0.05)
        failures[0] = status.failures
        filler.unlink()
        pipeline.hurry()

    watcher = threading.Thread(target=make_room)
    if is_full:
        fill(filler)
        watcher.start()
    summary = pipeline.once()
    if is_full:
        watcher.join()
    print(summary.tables[table], failures[0], flush=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(_PIECE)
        except OSError:
            return


def main(
    data: Path, chosen: str, master: str = "local[1]", table: str = "", full: str = ""
) -> None:
    global point
    spark = open_session(master, memory="512m", is_brief=True)
    folder_of(data).mkdir(exist_ok=True)
    print("ready", flush=True)
    if table:
        land_before(spark, data, table, is_full=full == FULL)
        scene = LogScene(data, segment_bytes=2**16)
        scene.publish(150)
        scene.close()
    point = chosen
    lake = lake_of(data)
    Pipeline(spark, lake, data, Settings(), landing=DyingLanding, tables=()).once()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
