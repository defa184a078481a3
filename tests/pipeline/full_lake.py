"""A pipeline whose lake has no room at first.

    python -m tests.pipeline.full_lake DATA

The lake lies on a small file system of its own. When the first attempt has failed, room is made.
Prints how often it failed and how many entries were landed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.run.run import Pipeline
from signalhub.pipeline.run.spark import open_session
from signalhub.pipeline.run.status import read_status
from signalhub.settings.model import PipelineSettings as Settings

_PIECE = bytes(2**12)


def main(data: Path) -> None:
    spark = open_session("local[1]", memory="512m", is_brief=True)
    pipeline = Pipeline(spark, lake_of(data), data, Settings(), tables=())
    filler = data / "lake" / "filler"
    fill(filler)
    failures: list[int] = []

    def make_room() -> None:
        while True:
            status = read_status(data)
            if status is not None and status.failures:
                failures.append(status.failures)
                os.remove(filler)
                pipeline.hurry()
                return
            time.sleep(0.05)

    watcher = threading.Thread(target=make_room)
    watcher.start()
    summary = pipeline.once()
    watcher.join()
    print(failures[0], summary.position, flush=True)
    spark.stop()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(_PIECE)
        except OSError:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
