"""Erasure in the lake: remove what was found from every table, by position.

Statements are kept in a table's history, so none of them names the subject: rows are selected by
joining a set of positions. `entries` comes last, because everything else is found through it; an
interrupted erasure is simply repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from signalhub.pipeline.erase.subject import Subject, find, ranges
from signalhub.pipeline.lake import Lake, literal
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.tables.catch_up import ORDER
from signalhub.pipeline.tables.piece import columns_of, condition_of
from signalhub.pipeline.tables.tables import (
    AUDIT,
    DEAD_LETTERS,
    DELIVERIES,
    ENTRIES,
    INBOX,
    MESSAGES,
    QUARANTINE,
    TABLES,
)
from signalhub.pipeline.upkeep import compact
from signalhub.pipeline.upkeep.compact import vacuum
from signalhub.wire.entry import PSEUDONYM_PREFIX
from signalhub.wire.errors import SignalHubError

T = TypeVar("T")
Step = Callable[[str], object]

_ATTEMPTS: Final = 6
_PAUSE_S: Final = 1.0
WAIT_S: Final = 300.0
_AT: Final = "t.shard = s.shard AND t.epoch = s.epoch AND t.offset = s.offset"
_RENAMES: Final = f"s.is_named AND NOT startswith(t.stream, '{PSEUDONYM_PREFIX}')"
_EMPTIED: Final = (
    *("id", "type", "sender", "key", "headers", "payload", "payload_json"),
    *("bytes", "ttl_ms", "replay_job"),
)
Values = dict[str, "str | Column"]


class PipelineBehind(SignalHubError):
    """The running pipeline has not reached the end of the erasure in time."""

    code = "pipeline_behind"

    def __init__(self, table: str, wait_s: float) -> None:
        super().__init__(
            f"the table {table} has not taken in the entries to be erased within {wait_s:g} s;"
            " see `signalhub pipeline status`, then repeat the command to resume"
        )


class LakeErasure(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be erased from which lake."""

    subject: Subject
    through: LogPosition
    """Everything before it."""
    pseudonym: str
    now_ms: int


class Removal(msgspec.Struct, kw_only=True):
    """The result of an erasure."""

    tables: dict[str, int] = {}
    positions: list[tuple[int, int, int]] = []


def wait_for(
    lake: Lake,
    through: LogPosition,
    hurry: Callable[[], object],
    *,
    shard: int = 0,
    wait_s: float = WAIT_S,
    poll_s: float = 0.5,
) -> None:
    """Wait until a running pipeline is past a position: before that, it may write what it has read.

    Raises `PipelineBehind`.
    """
    until = time.monotonic() + wait_s
    for name in (ENTRIES.name, *ORDER):
        while through.offset > 0:
            committed = lake.committed(name, shard, through.epoch)
            if committed is not None and committed >= through.offset - 1:
                break
            if time.monotonic() > until:
                raise PipelineBehind(name, wait_s)
            hurry()
            time.sleep(poll_s)


def erase(
    spark: SparkSession, lake: Lake, erasure: LakeErasure, step: Step = lambda name: None
) -> Removal:
    """Erase from every table; `step` is called with each step.

    The caller must hold the table lock.
    """
    session = compact.upkeep_session(spark)
    step("searching the lake")
    found = find(session, lake, erasure.subject, erasure.through)
    work = _Erasing(session, lake, erasure, found)
    removal = Removal(positions=ranges(found))
    for name, forget in work.tables.items():
        if lake.exists(name):
            step(f"erasing from {name}")
            # A merge of many files would mix their rows, so those are marked, then purged.
            is_small = lake.bytes(name) <= compact.FILE_BYTES
            compact.rewrite_at_once(session, is_so=is_small)
            count = repeated(forget)
            if count:
                removal.tables[name] = count
    for name in TABLES:
        # Earlier attempts may have marked rows and stopped there, so check every table.
        if lake.exists(name):
            step(f"rewriting {name}")
            repeated(partial(compact.purge, session, lake, name))
    return removal


class _Erasing:
    """One erasure, table by table."""

    def __init__(
        self, spark: SparkSession, lake: Lake, erasure: LakeErasure, found: pa.Table
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._erasure = erasure
        self._is_empty = not found.num_rows
        self._found = spark.createDataFrame(found)
        # Literal bounds, by which files are selected before anything is read.
        self._bounds = condition_of(ranges(found), "t.")
        self.tables: dict[str, Callable[[], int]] = {
            DEAD_LETTERS.name: lambda: self._delete(DEAD_LETTERS.name),
            QUARANTINE.name: lambda: self._delete(QUARANTINE.name),
            INBOX.name: lambda: self._delete(INBOX.name),
            DELIVERIES.name: self._forget_deliveries,
            MESSAGES.name: self._empty_messages,
            AUDIT.name: self._rename_in_audits,
            ENTRIES.name: self._strip_entries,
        }

    def _merging(
        self, name: str, source: DataFrame | None = None, on: str = ""
    ) -> DeltaMergeBuilder:
        target = DeltaTable.forPath(self._spark, self._lake.location(name)).alias("t")
        if source is None:
            return target.merge(self._found.alias("s"), f"{_AT} AND {self._bounds}")
        return target.merge(source.alias("s"), on)

    def _delete(self, name: str) -> int:
        if self._is_empty or not self._holds_some(name):
            return 0
        return _affected(self._merging(name).whenMatchedDelete())

    def _holds_some(self, name: str) -> bool:
        """Return whether a table has rows at the positions that were found."""
        where = self._bounds.replace("t.", "").replace("offset", '"offset"')
        found = self._lake.select(name, f"SELECT 1 FROM {name} WHERE {where} LIMIT 1")  # noqa: S608
        return found is not None and found.num_rows > 0

    def _strip_entries(self) -> int:
        if self._is_empty:
            return 0
        holds = f"t.removed_reason IS DISTINCT FROM 'erased' OR {_RENAMES}"
        values: Values = {
            "body": F.lit(None),
            "id": F.lit(None),
            "removed_at": F.coalesce(
                "t.removed_at", F.timestamp_millis(F.lit(self._erasure.now_ms))
            ),
            "removed_reason": F.lit("erased"),
            "stream": self._renamed("stream"),
        }
        return _affected(self._merging(ENTRIES.name).whenMatchedUpdate(holds, values))

    def _empty_messages(self) -> int:
        if self._is_empty or not self._holds_some(MESSAGES.name):
            return 0
        holds = " OR ".join(f"t.{name} IS NOT NULL" for name in _EMPTIED)
        values: Values = {name: F.lit(None) for name in _EMPTIED}
        values["stream"] = self._renamed("stream")
        merging = self._merging(MESSAGES.name)
        return _affected(merging.whenMatchedUpdate(f"{holds} OR {_RENAMES}", values))

    def _renamed(self, column: str) -> Column:
        its = F.col(f"t.{column}")
        is_renamed = F.col("s.is_named") & ~F.startswith(its, F.lit(PSEUDONYM_PREFIX))
        return F.when(is_renamed, F.lit(self._erasure.pseudonym)).otherwise(its)

    def _forget_deliveries(self) -> int:
        count = 0
        if not self._is_empty and self._holds_some(DELIVERIES.name):
            renames = _RENAMES.replace("t.stream", "t.recipient")
            holds = f"t.reason IS NOT NULL OR s.is_named AND t.consumer IS NOT NULL OR {renames}"
            consumer = F.when(F.col("s.is_named"), F.lit(None)).otherwise(F.col("t.consumer"))
            values: Values = {
                "recipient": self._renamed("recipient"),
                "consumer": consumer,
                "reason": F.lit(None),
            }
            count += _affected(self._merging(DELIVERIES.name).whenMatchedUpdate(holds, values))
        return count + self._forget_consumer()

    def _forget_consumer(self) -> int:
        """Keep deliveries that the subject received from others, but remove its name."""
        key = ("shard", "epoch", "offset", "recipient", "generation")
        where = f"consumer = {literal(self._erasure.subject.name)}"
        places = columns_of(self._lake, DELIVERIES.name, key, where)
        if not places.num_rows:
            return 0
        once = self._spark.createDataFrame(places.group_by(list(key)).aggregate([]))
        on = " AND ".join(f"t.{name} = s.{name}" for name in key)
        merging = self._merging(DELIVERIES.name, once, on)
        return _affected(merging.whenMatchedUpdate(set={"consumer": F.lit(None)}))

    def _rename_in_audits(self) -> int:
        """Audits mention streams in their texts."""
        name, stand_in = self._erasure.subject.stream, self._erasure.pseudonym
        if not name:
            return 0
        texts = "array_to_string(exceptions, ' ')"
        query = f"SELECT 1 FROM audit WHERE strpos({texts}, {literal(name)}) > 0 LIMIT 1"  # noqa: S608
        found = self._lake.select(AUDIT.name, query)
        if found is None or not found.num_rows:
            return 0
        key = ("run_id", "shard", "epoch", "hour", "from_offset")
        named = F.exists("exceptions", lambda text: F.contains(text, F.lit(name)))
        told = F.transform("exceptions", lambda text: F.replace(text, F.lit(name), F.lit(stand_in)))
        rows = self._rows_of(AUDIT.name).where(named)
        places = self._collected(rows.select(*key, told.alias("exceptions")))
        on = " AND ".join(f"t.{column} <=> s.{column}" for column in key)
        merging = self._merging(AUDIT.name, places, on)
        return _affected(merging.whenMatchedUpdate(set={"exceptions": "s.exceptions"}))

    def _rows_of(self, name: str) -> DataFrame:
        return self._spark.read.format("delta").load(self._lake.location(name))

    def _collected(self, rows: DataFrame) -> DataFrame:
        """Collect rows found by name, so that the statement that uses them contains no name."""
        return self._spark.createDataFrame(rows.distinct().toArrow(), rows.schema)


def _affected(merging: DeltaMergeBuilder) -> int:
    (row,) = merging.execute().collect()
    return int(row["num_affected_rows"])


def repeated(work: Callable[[], T], pause_s: float = _PAUSE_S) -> T:
    """Retry after a conflict: another process wrote the same files."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return work()
        except Exception as error:
            if "Concurrent" not in type(error).__name__ and "DELTA_CONCURRENT" not in str(error):
                raise
            time.sleep(pause_s * attempt)
    return work()


def vacuum_all(
    spark: SparkSession, lake: Lake, *, is_alone: bool, step: Step = lambda name: None
) -> None:
    """Delete all files that the tables no longer need, now."""
    session = compact.upkeep_session(spark)
    for name in TABLES:
        if lake.exists(name):
            step(f"deleting replaced files of {name}")
            vacuum(session, lake, name, 0.0, is_alone=is_alone)
