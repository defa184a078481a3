"""A run of the pipeline without Spark that kills itself at a chosen point.

python -m tests.pipeline.here_worker DATA POINT
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from signalhub.pipeline import commit
from signalhub.pipeline.lake import Lake, lake_of
from signalhub.pipeline.run.run import Pipeline
from signalhub.pipeline.run.status import folder_of
from signalhub.pipeline.tables.tables import DELIVERIES, ENTRIES, MESSAGES, QUARANTINE
from signalhub.settings.model import PipelineSettings as Settings

POINTS = (
    f"written {ENTRIES.name}",
    f"committed {ENTRIES.name}",
    f"written {MESSAGES.name}",
    f"committed {MESSAGES.name}",
    f"committed {DELIVERIES.name}",
    f"recorded {QUARANTINE.name}",
)
"""The last one is between the tables that are made and the status that says so."""


_NAMES = {"commits": "write_commit", "merges": "merge", "counts": "files"}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_spark() -> NoReturn:
    raise AssertionError("Spark was started")


def die_at(point: str) -> None:
    what, name = point.split()
    write_commit, merge, files = commit.write_commit, Lake.merge, Lake.files

    def commits(table: Path, version: int, operation: str, *rest: Any) -> bool:
        is_it = table.name == name and operation == "WRITE"
        if is_it and what == "written":
            die()
        done = write_commit(table, version, operation, *rest)
        if is_it and what == "committed":
            die()
        return done

    def merges(lake: Lake, table: str, *rest: Any) -> int | None:
        done = merge(lake, table, *rest)
        if table == name and what == "committed":
            die()
        return done

    def counts(lake: Lake) -> int:
        if what == "recorded":
            die()
        return files(lake)

    for owner, method in ((commit, commits), (Lake, merges), (Lake, counts)):
        setattr(owner, _NAMES[method.__name__], method)


def main(data: Path, point: str) -> None:
    folder_of(data).mkdir(exist_ok=True)
    die_at(point)
    Pipeline(no_spark, lake_of(data), data, Settings()).once()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
