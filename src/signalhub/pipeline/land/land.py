"""Landing: one streaming query from the log into `entries`, every entry exactly once.

Spark's checkpoint defines which entries are in a micro-batch; the table knows which ones it has. A
micro-batch that is repeated, completely or in part, adds only what is missing, because its
transaction records the last offset and rows up to the committed one are left out. If checkpoint and
table disagree (a checkpoint was lost, or a table restored), the table wins.

In a local folder the tasks write the files of the table (`files`); elsewhere, and in a table that
demands more of its writers, Spark writes rows.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from signalhub.pipeline.lake import Lake, Position, application
from signalhub.pipeline.land import files
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.source.source import FORMAT
from signalhub.pipeline.tables.tables import ENTRIES, QUARANTINE
from signalhub.privacy import make_folder
from signalhub.wire.errors import SignalHubError

BATCH_BYTES_MAX: Final = 512 * 2**20
"""The largest micro-batch, so that a long backlog is landed in steps."""


class Landed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one micro-batch."""

    end: LogPosition
    """The next entry to land."""
    rows: int
    bytes: int
    quarantined: int
    ms: int


class CheckpointAhead(SignalHubError):
    """The checkpoint continues beyond the table's position; it must be created again."""

    code = "checkpoint_ahead"

    def __init__(self, start: LogPosition, wanted: int) -> None:
        super().__init__(
            f"the checkpoint continues at offset {start.offset} of epoch {start.epoch}, but the"
            f" table needs {wanted} next; landing continues from the table"
        )


class Landing(msgspec.Struct, frozen=True, kw_only=True):
    """How and where entries are landed."""

    spark: SparkSession
    lake: Lake
    data: Path
    checkpoint: Path
    report: Callable[[Landed], None]
    shard: int = 0
    batch_entries: int = 100
    batch_s: float = 5.0
    poll_s: float = 2.5
    """A micro-batch costs about the same however small it is, so do not run one every second."""
    until: LogPosition | None = None
    """Land up to here and end; `None` continues until stopped."""
    beyond_published: bool = False

    def begin(self, position: LogPosition) -> StreamingQuery:
        """Start the query at its checkpoint, or at the table's position if they disagree."""
        done = checkpointed(self.checkpoint, self.shard)
        # Entries may have landed without Spark, and the log need no longer have them.
        is_behind = done is not None and done < position and not has_unfinished(self.checkpoint)
        if is_behind or (done is not None and done > position):
            self.forget_checkpoint()
        options = {
            "shard": str(self.shard),
            "startingOffset": f"{position.epoch}:{position.offset}",
            "maxBytesPerBatch": str(BATCH_BYTES_MAX),
            "beyondPublished": str(self.beyond_published).lower(),
        }
        if self.until is not None:
            options["until"] = f"{self.until.epoch}:{self.until.offset}"
        else:
            options["minEntriesPerBatch"] = str(self.batch_entries)
            options["maxDelayMs"] = str(int(self.batch_s * 1000))
        source = FORMAT
        if files.can_write(self.lake):
            source = files.FORMAT
            options["into"] = self.lake.location(ENTRIES.name)
            self.spark.dataSource.register(files.FileSource)
        poll_s = 0.0 if self.until else self.poll_s
        make_folder(self.checkpoint.parent)
        stream = self.spark.readStream.format(source).options(**options).load(str(self.data))
        writer = (
            stream.writeStream.foreachBatch(self.land)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(processingTime=f"{int(poll_s * 1000)} milliseconds")
            .queryName("land")
        )
        # Landing must not wait behind long work on other tables.
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "land")
        try:
            return writer.start()
        finally:
            self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]

    def forget_checkpoint(self) -> None:
        """Reset the checkpoint; the next start continues from the table's position."""
        gone = self.checkpoint.with_suffix(".old")
        shutil.rmtree(gone, ignore_errors=True)
        # Half of one would be an error for ever.
        with contextlib.suppress(FileNotFoundError):
            self.checkpoint.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def land(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch without the entries that are already there."""
        began = time.monotonic()
        start, end = batch_range(self.checkpoint, batch_id, self.shard)
        last = end.offset - 1
        committed = self.lake.committed(ENTRIES.name, self.shard, end.epoch)
        if start is not None and start.epoch == end.epoch and start.offset > _next(committed):
            raise CheckpointAhead(start, _next(committed))
        if last < 0:
            # The log was just created: there are no entries yet, and no position to record.
            return
        if committed is not None and last <= committed:
            # A crash came between this commit and the next step, so do that step now.
            if not files.are_in(batch):
                self._quarantine(batch, end)
            elif start is not None and start.epoch == end.epoch:
                self._quarantine(self._rows(start.offset, end), end)
            return
        write = self._write_files if files.are_in(batch) else self._write_rows
        rows, size, faults = write(batch, committed, end)
        self.report(
            Landed(
                end=end,
                rows=rows,
                bytes=size,
                quarantined=faults,
                ms=int((time.monotonic() - began) * 1000),
            )
        )

    def _write_files(
        self, batch: DataFrame, committed: int | None, end: LogPosition
    ) -> tuple[int, int, int]:
        """Let the tasks write files, and commit them; return rows, bytes and faults."""
        found = files.written(batch.collect())
        if not files.can_write(self.lake):
            files.delete(self.lake, found)
            raise RuntimeError("the table has been changed; landing starts again")
        wanted = _next(committed)
        is_whole = files.are_complete(found, end.offset - 1) and found[0].first >= wanted
        if found and not is_whole:
            # The table has some of the entries, so leave them out; or positions were skipped.
            files.delete(self.lake, found)
            return self._write_rows(self._rows(max(wanted, found[0].first), end), committed, end)
        faults = sum(one.faults for one in found)
        if faults:
            # First, because the start of the first micro-batch is not known after a crash.
            self._quarantine(self._rows(found[0].first, end), end)
        self.commit(found, Position(self.shard, end.epoch, end.offset - 1), committed)
        return sum(one.rows for one in found), sum(one.body_bytes for one in found), faults

    def commit(
        self, found: Sequence[files.WrittenFile], position: Position, committed: int | None
    ) -> None:
        """Make files part of `entries`."""
        files.commit(self.spark, self.lake, found, position, committed)

    def _rows(self, first: int, end: LogPosition) -> DataFrame:
        """Return the rows of the source from an offset on."""
        options = {
            "shard": str(self.shard),
            "startingOffset": f"{end.epoch}:{first}",
            "until": f"{end.epoch}:{end.offset}",
            "beyondPublished": str(self.beyond_published).lower(),
        }
        return self.spark.read.format(FORMAT).options(**options).load(str(self.data))

    def _write_rows(
        self, rows: DataFrame, committed: int | None, end: LogPosition
    ) -> tuple[int, int, int]:
        if committed is not None:
            rows = rows.where(F.col("offset") > committed)
        seen = Observation()
        observed = rows.observe(
            seen,
            F.count(F.lit(1)).alias("rows"),
            F.coalesce(F.sum(F.length("body")), F.lit(0)).alias("bytes"),
            F.count("fault").alias("faults"),
        )
        self._append(entries_of(observed), ENTRIES.name, end)
        found = seen.get
        if found["faults"]:
            self._quarantine(rows, end)
        return found["rows"], found["bytes"], found["faults"]

    def _quarantine(self, batch: DataFrame, end: LogPosition) -> None:
        committed = self.lake.committed(QUARANTINE.name, self.shard, end.epoch)
        if committed is not None and committed >= end.offset - 1:
            return
        faults = quarantine_of(batch)
        if committed is not None:
            faults = faults.where(F.col("offset") > committed)
        if not faults.isEmpty():
            self._append(faults, QUARANTINE.name, end)

    def _append(self, rows: DataFrame, table: str, end: LogPosition) -> None:
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", application(self.shard, end.epoch))
            .option("txnVersion", end.offset - 1)
            .save(self.lake.location(table))
        )


def _next(committed: int | None) -> int:
    return 0 if committed is None else committed + 1


def entries_of(rows: DataFrame) -> DataFrame:
    """Return rows of the source as rows of `entries`."""
    removed_at = F.when(F.col("is_erased"), F.current_timestamp())
    removed_reason = F.when(F.col("is_erased"), F.lit("erased"))
    return rows.withColumns({"removed_at": removed_at, "removed_reason": removed_reason}).select(
        *ENTRIES.names
    )


def quarantine_of(rows: DataFrame) -> DataFrame:
    """Return what could not be decoded as rows of `quarantine`."""
    return (
        rows.where(F.col("fault").isNotNull())
        .withColumns(
            {
                "reason": F.col("fault"),
                "attempts": F.lit(1),
                "raw": F.col("body"),
                "at": F.current_timestamp(),
            }
        )
        .select(*QUARANTINE.names)
    )


def has_unfinished(checkpoint: Path) -> bool:
    """Return whether a micro-batch was planned that is not recorded as done."""
    return bool(_numbers(checkpoint / "offsets") - _numbers(checkpoint / "commits"))


def checkpointed(checkpoint: Path, shard: int) -> LogPosition | None:
    """Return the position after the last micro-batch recorded as done; `None` if there is none."""
    done = _numbers(checkpoint / "commits")
    return _noted(checkpoint, max(done), shard) if done else None


def _numbers(folder: Path) -> set[int]:
    return {int(one.name) for one in folder.glob("*") if one.name.isdigit()}


def batch_range(
    checkpoint: Path, batch_id: int, shard: int
) -> tuple[LogPosition | None, LogPosition]:
    """Return start and end of a micro-batch, which Spark records before running it.

    The first one of a checkpoint starts where the table ends, so its start is not recorded.
    """
    start = _noted(checkpoint, batch_id - 1, shard) if batch_id else None
    return start, _noted(checkpoint, batch_id, shard)


def _noted(checkpoint: Path, batch_id: int, shard: int) -> LogPosition:
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    offsets = msgspec.json.decode(lines[-1], type=dict[str, dict[str, int]])
    return LogPosition(**offsets[str(shard)])
