"""What operations on the lake need: the data folder's log, its lake, and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from signalhub.operate.arguments import InvalidArgument
from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.source import known
from signalhub.pipeline.source.plan import LOG_FOLDER
from signalhub.pipeline.tables.tables import ENTRIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from signalhub.pipeline.lake import Lake
    from signalhub.settings.model import Settings

_SMALL_LAKE_BYTES = 64 * 2**20
"""Work on a smaller lake ends before Java's optimising compiler would pay off."""
OpenSpark = Callable[["Settings"], AbstractContextManager["SparkSession"]]
"""Opens a Spark session while it is needed; `lambda _: nullcontext(spark)` lends an open one."""


def check_log(settings: Settings) -> None:
    """Check that the data folder has a log; raises `InvalidArgument`, `LogGone`."""
    known.check_log(Path(settings.data))
    if not (Path(settings.data) / LOG_FOLDER).is_dir():
        raise InvalidArgument(
            f"there is no log in {settings.data}",
            "give the data folder of a hub with --data; `signalhub serve` creates one",
        )


def open_lake(settings: Settings) -> Lake:
    """Return the lake of a data folder; raises `InvalidArgument` if there is none yet."""
    chosen = settings.pipeline
    lake = lake_of(settings.data, chosen.lake, is_for_spark=chosen.spark == "always")
    if not lake.exists(ENTRIES.name):
        raise InvalidArgument(
            f"there is no lake at {lake.uri}",
            f"create it with `signalhub pipeline once --data {settings.data}`, or give another"
            " location with --lake (pipeline.lake)",
        )
    return lake


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """Open a Spark session while the block runs; an open session of this process is shared."""
    from signalhub.pipeline.run.spark import session

    chosen = settings.pipeline
    # Errors are raised, so Spark does not need to log them.
    with session(
        chosen.master or "local[*]",
        memory=chosen.memory,
        log_level="OFF",
        data=Path(settings.data),
        is_brief=lake_of(settings.data, chosen.lake).bytes() <= _SMALL_LAKE_BYTES,
    ) as spark:
        yield spark
