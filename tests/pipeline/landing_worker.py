"""A pipeline that kills itself, Spark and all, at a chosen point of its next batch.

    python -m tests.pipeline.landing_worker DATA POINT [MASTER [TABLE]]

One that is never killed prints how many entries it has landed, and how many rows the table gained.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame

from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.land.land import Landing
from signalhub.pipeline.run.run import Pipeline
from signalhub.pipeline.run.spark import open_session
from signalhub.pipeline.run.status import folder_of
from signalhub.pipeline.tables.tables import ENTRIES
from signalhub.settings.model import PipelineSettings as Settings

BEFORE_WRITE = "before-write"
WRITTEN = "written-not-committed"
COMMITTED = "committed-not-checkpointed"
CHECKPOINTED = "checkpointed"
NEVER = "never"

POINTS = (BEFORE_WRITE, WRITTEN, COMMITTED, CHECKPOINTED)

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
            watch_files(Path(self.lake.location(ENTRIES.name)))
        if point == CHECKPOINTED:
            watch_commit(self.checkpoint / "commits" / str(batch_id))
        super().land(batch, batch_id)
        if point == COMMITTED:
            die()


def watch_files(table: Path) -> None:
    """Die when a data file is there whose commit is not."""
    files, commits = set(table.glob("*.parquet")), set((table / "_delta_log").glob("*.json"))

    def is_written() -> bool:
        return bool(set(table.glob("*.parquet")) - files)

    def is_committed() -> bool:
        return bool(set((table / "_delta_log").glob("*.json")) - commits)

    def watch() -> None:
        while not is_written():
            time.sleep(0.0005)
        if not is_committed():
            die()

    threading.Thread(target=watch, daemon=True).start()


def watch_commit(path: Path) -> None:
    """Die when Spark has noted the end of the batch."""

    def watch() -> None:
        while not path.exists():
            time.sleep(0.0005)
        die()

    threading.Thread(target=watch, daemon=True).start()


def main(data: Path, chosen: str, master: str = "local[1]", *tables: str) -> None:
    global point
    point = chosen
    spark = open_session(master, memory="512m", is_brief=True)
    folder_of(data).mkdir(exist_ok=True)
    print("ready", flush=True)
    lake = lake_of(data)
    pipeline = Pipeline(spark, lake, data, Settings(), landing=DyingLanding, tables=tables)
    summary = pipeline.once()
    print(summary.rows, *(summary.tables[name] for name in tables), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
