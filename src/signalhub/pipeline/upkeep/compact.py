"""Compaction: merges small files, and rewrites files whose rows are only marked as deleted.

Tables that only grow are compacted in the order of positions: a run of neighbouring small files
becomes one, so that the range of offsets of each file stays narrow. Delta's own compaction groups
files by size; it is used for tables whose files overlap anyway.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from signalhub.clock import SystemClock
from signalhub.pipeline.commit import LOG
from signalhub.pipeline.lake import Lake, LakeUnreachable
from signalhub.pipeline.storage import Storage
from signalhub.pipeline.tables.tables import ENTRIES, MESSAGES

FILE_BYTES: Final = 128 * 2**20
"""The target size of a file."""
SMALL_BYTES: Final = 16 * 2**20
SMALL_MAX: Final = 32
"""The number of small files at which a table is compacted."""

IN_ORDER: Final = frozenset({ENTRIES.name, MESSAGES.name})
_CONF: Final = {
    # Vacuum lists folders with this many tasks; the default of ten thousand takes a minute.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    # Then a page of an inbox is in one place of its file, and only a tenth of it is decoded.
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    # The rows to merge were created here, so they are the same whenever they are read.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_MARKS: Final = tuple(
    f"spark.databricks.delta.{one}.deletionVectors.persistent"
    for one in ("delete", "merge", "update")
)
"""Whether statements mark rows as deleted instead of rewriting their files."""
_SAYS: Final = ("size_bytes", "min.epoch", "max.epoch", "min.offset", "max.offset")


class DataFile(msgspec.Struct, frozen=True, order=True):
    """A file of a table with its statistics; one with several epochs has no position."""

    epoch: int
    first: int
    last: int
    bytes: int

    @property
    def is_small(self) -> bool:
        return self.bytes < SMALL_BYTES


class FileRun(msgspec.Struct, frozen=True):
    """Neighbouring files to be merged into one."""

    epoch: int
    first: int
    last: int
    files: int

    @property
    def condition(self) -> str:
        return f"epoch = {self.epoch} AND offset BETWEEN {self.first} AND {self.last}"


def upkeep_session(spark: SparkSession) -> SparkSession:
    """Return a separate session, whose settings affect no other."""
    session = spark.newSession()
    for name, value in _CONF.items():
        session.conf.set(name, value)
    return session


def rewrite_at_once(spark: SparkSession, *, is_so: bool) -> None:
    """Let statements rewrite files, so that no row is only marked and `purge` has nothing to do."""
    for name in _MARKS:
        spark.conf.set(name, str(not is_so).lower())


def compact(spark: SparkSession, lake: Lake, name: str, *, small_max: int = SMALL_MAX) -> int:
    """Merge small files into large ones; return by how many files the table shrank."""
    sizes = lake.sizes(name)
    if sum(size < SMALL_BYTES for size in sizes) < small_max:
        return 0
    if name in IN_ORDER:
        for run in runs(files_in_order(lake, name)):
            _rewrite(spark, lake.location(name), run)
    else:
        spark.sql(f"OPTIMIZE delta.`{lake.location(name)}`").collect()
    return len(sizes) - len(lake.sizes(name))


def runs(files: list[DataFile], bytes_max: int = FILE_BYTES) -> list[FileRun]:
    """Choose neighbours to merge: small ones, up to the target size of a file."""
    found: list[FileRun] = []
    open_run: list[DataFile] = []

    def close() -> None:
        if len(open_run) > 1:
            last = max(one.last for one in open_run)
            found.append(FileRun(open_run[0].epoch, open_run[0].first, last, len(open_run)))
        open_run.clear()

    for file in sorted(files):
        total = sum(one.bytes for one in open_run) + file.bytes
        is_next = bool(open_run) and open_run[0].epoch == file.epoch
        if not file.is_small or not is_next or total > bytes_max:
            close()
        if file.is_small:
            open_run.append(file)
    close()
    return found


def files_in_order(lake: Lake, name: str) -> list[DataFile]:
    """Return the files with a single epoch, by position."""
    rows = _described(lake, name)
    return sorted(
        DataFile(row["min.epoch"], row["min.offset"], row["max.offset"], row["size_bytes"])
        for row in rows
        if row["min.offset"] is not None and row["min.epoch"] == row["max.epoch"]
    )


def _rewrite(spark: SparkSession, location: str, run: FileRun) -> None:
    """Write the same rows into one file. Streaming readers have to ignore changes anyway."""
    rows = spark.read.format("delta").load(location).where(run.condition)
    (
        rows.coalesce(1)
        .sortWithinPartitions("offset")
        .write.format("delta")
        .mode("overwrite")
        .option("replaceWhere", run.condition)
        .save(location)
    )


def purge(spark: SparkSession, lake: Lake, name: str) -> int:
    """Rewrite files with rows that are only marked as deleted; return how many."""
    table = lake.open(name)
    if table is None or not pa.table(table.deletion_vectors()).num_rows:
        return 0
    (row,) = spark.sql(f"REORG TABLE delta.`{lake.location(name)}` APPLY (PURGE)").collect()
    return int(row["metrics"]["numFilesRemoved"])


def _described(lake: Lake, name: str) -> list[dict[str, Any]]:
    table = lake.open(name)
    if table is None:
        return []
    said = pa.table(table.get_add_actions(flatten=True))
    found: list[dict[str, Any]] = said.select(_SAYS).to_pylist()
    return found


IN_USE_S: Final = 3_600.0
"""Uncommitted files may belong to a write in progress, unless they are older than this."""

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_VERSIONED: Final = re.compile(r"(\d{20})\..+")
_TOMBSTONE: Final = "remove STRUCT<path: STRING, deletionTimestamp: BIGINT>"


def vacuum(
    spark: SparkSession, lake: Lake, name: str, age_s: float, *, is_alone: bool = False
) -> None:
    """Delete files that were replaced long enough ago.

    Files that were written but never committed are deleted once they cannot belong to a running
    write any more: immediately only if no other process is writing.
    """
    unneeded = _unneeded(lake, name)
    if unneeded is not None and (not unneeded or (is_alone and age_s <= 0)):
        for one in unneeded:
            one.unlink()
        return
    if not is_alone and age_s < IN_USE_S:
        folder = Storage(spark, lake.location(name))
        for path in replaced(spark, lake, name, _ago_ms(age_s)):
            folder.delete(path)
        age_s = IN_USE_S
    spark.sql(f"VACUUM delta.`{lake.location(name)}` RETAIN {age_s / 3600:.6f} HOURS").collect()


def _unneeded(lake: Lake, name: str) -> list[Path] | None:
    """Return the files of a local folder that its table does not name; `None` if that is unknown.

    Rows that are only marked as deleted are in files that delta-rs does not list.
    """
    if not lake.is_local:
        return None
    # Listed before the table is opened, so that no file is newer than what it knows.
    there = list(Path(lake.location(name)).iterdir())
    table = lake.open(name)
    if table is None or pa.table(table.deletion_vectors()).num_rows:
        return None
    needed = {uri.rsplit("/", 1)[-1] for uri in table.file_uris()}
    needed |= {f".{one}.crc" for one in needed} | {LOG}
    return [path for path in there if path.name not in needed and path.is_file()]


def replaced(spark: SparkSession, lake: Lake, name: str, before_ms: int) -> list[str]:
    """Return the files that are not part of the table, neither now nor at that time."""
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
    # Marking rows as deleted replaces a file by itself: keep everything the table names now.
    lake.forget(name)
    table = lake.open(name)
    if table is None or table.version() < max(newest, *_versions(_COMMIT, names)):
        raise LakeUnreachable(lake.location(name), "it is older than its log")
    needed = {uri.rsplit("/", 1)[-1] for uri in table.file_uris()}
    return sorted(path for path in found if path.rsplit("/", 1)[-1] not in needed)


def forget_commits(spark: SparkSession, lake: Lake, name: str, age_s: float) -> int:
    """Delete log files of single commits that are old enough; return how many.

    Every plan lists the log. Delta deletes commits itself, but never within a day. Keep what is
    needed without the newest checkpoint, in case that did not survive a power cut.
    """
    log = Storage(spark, f"{lake.location(name)}/{LOG}")
    names, before_ms = log.names(), _ago_ms(age_s)
    checkpoints = _versions(_CHECKPOINT, names).items()
    settled = sorted(version for version, one in checkpoints if log.modified_ms(one) <= before_ms)
    first = settled[-2] if len(settled) > 1 else 0
    # In order, so that an interruption leaves no gap.
    old = [one for one in names if (match := _VERSIONED.fullmatch(one)) and int(match[1]) < first]
    return sum(log.delete(one) for one in old)


def _versions(pattern: re.Pattern[str], names: list[str]) -> dict[int, str]:
    return {int(match[1]): one for one in names if (match := pattern.fullmatch(one))}


def _ago_ms(age_s: float) -> int:
    return SystemClock().now_ms() - int(age_s * 1000)
