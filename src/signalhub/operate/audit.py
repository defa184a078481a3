"""Prove that everything in the log is in the lake, once and unchanged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from signalhub.operate.lake import OpenSpark, open_lake, spark_session
from signalhub.pipeline.audit.audit import STEPS, Audit, Findings

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession

    from signalhub.settings.model import Settings

WAIT_S: Final = 120.0
"""Two beats of the slower tables."""


def audit(
    settings: Settings,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    wait_s: float = WAIT_S,
    progress: Callable[[int, int], object] = lambda done, total: None,
    open_spark: OpenSpark = spark_session,
) -> Findings:
    """Check everything up to the head of the log, or the hours that start from `since` to `until`.

    A running pipeline has `wait_s` to catch up. `progress` is called with the number of steps done
    and their total. Raises `InvalidArgument` if there is no lake.
    """
    lake = open_lake(settings)
    done = 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        progress(done, STEPS)

    with ExitStack() as stack:

        def spark() -> SparkSession:
            return stack.enter_context(open_spark(settings))

        opening = spark() if settings.pipeline.spark == "always" else spark
        judging = Audit(opening, lake, Path(settings.data))
        progress(0, STEPS)
        return judging.run(wait_s=wait_s, since=since, until=until, advance=advance)
