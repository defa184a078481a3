"""What no table needs any more leaves the storage: replaced files, lost writes, old commits.

A table's log says which files were replaced, and when: each leaves a tombstone there. Going by
these is safe beside a pipeline at work, whose files on their way nobody has committed. Spark's own
VACUUM takes every file that no snapshot names, so it has to leave young ones alone.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from signalhub.clock import SystemClock
from signalhub.pipeline.lake import Lake, LakeUnreachable
from signalhub.pipeline.storage import LOG, Storage

IN_USE_S: Final = 3_600.0
"""Files nobody has committed may belong to a write on its way, unless they are as old as this."""

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_VERSIONED: Final = re.compile(r"(\d{20})\..+")
_TOMBSTONE: Final = "remove STRUCT<path: STRING, deletionTimestamp: BIGINT>"


def vacuum(
    spark: SparkSession, lake: Lake, name: str, age_s: float, *, is_alone: bool = False
) -> None:
    """Delete the files that were replaced so long ago.

    Files that were written and never committed go, too, when they cannot be on their way any more:
    at once only if nobody else is writing.
    """
    if not is_alone and age_s < IN_USE_S:
        folder = Storage(spark, lake.location(name))
        for path in replaced(spark, lake, name, _ago_ms(age_s)):
            folder.delete(path)
        age_s = IN_USE_S
    spark.sql(f"VACUUM delta.`{lake.location(name)}` RETAIN {age_s / 3600:.6f} HOURS").collect()


def replaced(spark: SparkSession, lake: Lake, name: str, before_ms: int) -> list[str]:
    """The files that are no part of the table any more, and were none at that time."""
    log = Storage(spark, f"{lake.location(name)}/{LOG}")
    names = log.names()
    checkpoints = _versions(_CHECKPOINT, names)
    newest = max(checkpoints, default=-1)
    later = [one for version, one in _versions(_COMMIT, names).items() if version > newest]
    sources = {"json": later, "parquet": [checkpoints[newest]] if checkpoints else []}
    found: set[str] = set()
    for kind, files in sources.items():
        if files:
            rows = spark.read.schema(_TOMBSTONE).format(kind).load([log.path(one) for one in files])
            gone = rows.where(F.col("remove.deletionTimestamp") <= before_ms)
            found |= {unquote(path) for (path,) in gone.select("remove.path").collect()}
    # Marking rows as deleted replaces a file by itself: what the table names now has to stay.
    lake.forget(name)
    table = lake.open(name)
    if table is None or table.version() < max(newest, *_versions(_COMMIT, names)):
        raise LakeUnreachable(lake.location(name), "it is older than its log")
    needed = {uri.rsplit("/", 1)[-1] for uri in table.file_uris()}
    return sorted(path for path in found if path.rsplit("/", 1)[-1] not in needed)


def forget_commits(spark: SparkSession, lake: Lake, name: str, age_s: float) -> int:
    """Delete what a table's log says of single commits so long ago; how many files.

    Every plan lists the log. Delta forgets commits by itself, but never within a day. What is
    needed without the newest checkpoint stays, should that not have survived a loss of power.
    """
    log = Storage(spark, f"{lake.location(name)}/{LOG}")
    names, before_ms = log.names(), _ago_ms(age_s)
    checkpoints = _versions(_CHECKPOINT, names).items()
    settled = sorted(version for version, one in checkpoints if log.modified_ms(one) <= before_ms)
    first = settled[-2] if len(settled) > 1 else 0
    # In order, so that whatever is left when this is interrupted has no gap.
    old = [one for one in names if (match := _VERSIONED.fullmatch(one)) and int(match[1]) < first]
    return sum(log.delete(one) for one in old)


def _versions(pattern: re.Pattern[str], names: list[str]) -> dict[int, str]:
    return {int(match[1]): one for one in names if (match := pattern.fullmatch(one))}


def _ago_ms(age_s: float) -> int:
    return SystemClock().now_ms() - int(age_s * 1000)
