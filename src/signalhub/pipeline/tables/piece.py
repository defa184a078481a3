"""A stretch of `entries` that a derived table takes in with one transaction."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from signalhub.pipeline.lake import Lake, application
from signalhub.pipeline.tables.tables import ENTRIES, TABLES

_CONF: Final = "spark.databricks.delta.write.txn"
_BUCKET: Final = 2**17
_RANGES_MAX: Final = 32
_FILE_SAYS: Final = ["min.shard", "max.shard", "min.epoch", "max.epoch", "min.offset"]


def epoch_begins(spark: SparkSession, lake: Lake, shard: int, epoch: int) -> dict[int, int]:
    """The first offset of every epoch there is up to one of them.

    What the files of `entries` say about themselves is enough, unless one holds several epochs.
    """
    opened = lake.open(ENTRIES.name)
    assert opened is not None
    files = pa.table(opened.get_add_actions(flatten=True)).select(_FILE_SAYS).to_pylist()
    says = [tuple(one.values()) for one in files]
    if all(None not in one and one[0] == one[1] and one[2] == one[3] for one in says):
        begins: dict[int, int] = {}
        for its_shard, _, its_epoch, _, offset in says:
            if its_shard == shard and its_epoch <= epoch:
                begins[its_epoch] = min(offset, begins.get(its_epoch, offset))
    else:
        entries = spark.read.format("delta").load(lake.location(ENTRIES.name))
        chosen = entries.where((F.col("shard") == shard) & (F.col("epoch") <= epoch))
        begins = dict(map(tuple, chosen.groupBy("epoch").agg(F.min("offset")).collect()))
    return dict(sorted(begins.items()))


def collected(rows: DataFrame) -> list[dict[str, Any]]:
    """A few rows brought here; times are microseconds."""
    found = rows.select(
        *(
            F.unix_micros(field.name).alias(field.name)
            if isinstance(field.dataType, TimestampType)
            else field.name
            for field in rows.schema.fields
        )
    )
    return [row.asDict() for row in found.collect()]


def selected(lake: Lake, table: str, what: str, where: str) -> list[dict[str, Any]]:
    """A few rows of a table, read without Spark; times are microseconds."""
    rows = lake.select(table, f"SELECT {what} FROM {table} WHERE {where}")  # noqa: S608
    assert rows is not None
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            whole = rows.column(at).cast(pa.timestamp("us", field.type.tz)).cast(pa.int64())
            rows = rows.set_column(at, field.name, whole)
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def is_before(alias: str, epoch: str, offset: str) -> Column:
    """Whether a row's position is before another one."""
    its_epoch, its_offset = F.col(f"{alias}.epoch"), F.col(f"{alias}.offset")
    is_same = its_epoch == F.col(epoch)
    return (its_epoch < F.col(epoch)) | (is_same & (its_offset < F.col(offset)))


def is_behind(alias: str, epoch: str, offset: str) -> Column:
    """Whether a row's position is behind another one."""
    its_epoch, its_offset = F.col(f"{alias}.epoch"), F.col(f"{alias}.offset")
    is_same = its_epoch == F.col(epoch)
    return (its_epoch > F.col(epoch)) | (is_same & (its_offset > F.col(offset)))


class Piece:
    """The entries of one epoch behind `after`, up to and including `to`, and where they go."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        table: str,
        shard: int,
        epoch: int,
        after: int,
        to: int,
        begins: dict[int, int],
    ) -> None:
        self.spark: Final = spark
        self.lake: Final = lake
        self.table: Final = table
        self.shard: Final = shard
        self.epoch: Final = epoch
        self.after: Final = after
        self.to: Final = to
        self.begins: Final = begins

    @property
    def begins_epoch(self) -> bool:
        """Whether nothing of the epoch comes before it."""
        return self.after < self.begins[self.epoch]

    def read(self, name: str) -> DataFrame:
        """All rows of a table that are of this shard."""
        rows = self.spark.read.format("delta").load(self.lake.location(name))
        return rows.where(F.col("shard") == self.shard)

    def entries(self) -> DataFrame:
        """The entries themselves."""
        offset = F.col("offset")
        return self.read(ENTRIES.name).where(
            (F.col("epoch") == self.epoch) & (offset > self.after) & (offset <= self.to)
        )

    @property
    def condition(self) -> str:
        """Which rows of `entries`, or of another table by their position, belong to it."""
        return (
            f"shard = {self.shard} AND epoch = {self.epoch}"
            f' AND "offset" > {self.after} AND "offset" <= {self.to}'
        )

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of its entries: what a table makes nothing of need not be read by Spark."""
        found = selected(self.lake, ENTRIES.name, "DISTINCT kind", self.condition)
        return frozenset(row["kind"] for row in found)

    def first_at(self) -> int:
        """When the first of them was written."""
        what = "min(accepted_at) AS at"
        (first,) = selected(self.lake, ENTRIES.name, what, self.condition)
        at: int = first["at"]
        return at

    def standing(self) -> DataFrame:
        """Every entry up to here, without those that an epoch had given up when the next began."""
        kept = F.lit(False)
        ends = [*list(self.begins.values())[1:], self.to + 1]
        for at, epoch in enumerate(self.begins):
            kept |= (F.col("epoch") == epoch) & (F.col("offset") < min(ends[at:]))
        return self.read(ENTRIES.name).where(kept)

    def epoch_of(self, offset: Column) -> Column:
        """The epoch of an entry that stands, from its offset."""
        found = F.lit(None).cast("bigint")
        for epoch, begin in self.begins.items():
            found = F.when(offset >= begin, F.lit(epoch)).otherwise(found)
        return found.cast("bigint")

    def frame(self, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
        """A few rows made here; times are microseconds, which know no zone."""
        raw = self.spark.createDataFrame(rows, ddl.replace("TIMESTAMP", "BIGINT"))
        fields = (column.strip().split(" ", 1) for column in ddl.split(","))
        return raw.select(
            *(
                F.timestamp_micros(name).alias(name.strip("`")) if type == "TIMESTAMP" else name
                for name, type in fields
            )
        )

    def append(self, rows: DataFrame) -> int:
        """Add rows and record the position, both or neither; how many they were."""
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", application(self.shard, self.epoch))
            .option("txnVersion", self.to)
            .save(self.lake.location(self.table))
        )
        return self._metric("numOutputRows")

    def target(self) -> DeltaTable:
        return DeltaTable.forPath(self.spark, self.lake.location(self.table))

    def merge(self, merging: DeltaMergeBuilder, *, records: bool = True) -> int:
        """Merge; unless more is to follow, record the position in the same transaction."""
        if records:
            with self._position():
                merging.execute()
        else:
            merging.execute()
        return self._metric("numTargetRowsInserted", "numTargetRowsUpdated")

    def record(self) -> int:
        """There was nothing: the position alone."""
        nothing = ", ".join(
            f"CAST(NULL AS {one.type}) AS `{one.name}`" for one in TABLES[self.table].columns
        )
        return self.append(self.spark.sql(f"SELECT {nothing} WHERE false"))

    @contextmanager
    def _position(self) -> Iterator[None]:
        conf = self.spark.conf
        conf.set(f"{_CONF}AppId", application(self.shard, self.epoch))
        conf.set(f"{_CONF}Version", str(self.to))
        try:
            yield
        finally:
            conf.unset(f"{_CONF}AppId")
            conf.unset(f"{_CONF}Version")

    def _metric(self, *names: str) -> int:
        table = self.lake.open(self.table)
        assert table is not None
        (last,) = table.history(1)
        found = last.get("operationMetrics", {})
        return sum(int(found.get(name, 0)) for name in names)


def within(rows: DataFrame, prefix: str = "") -> str:
    """A condition with literal bounds that all these positions fulfil, for columns so prefixed.

    The target's files are chosen by it before anything is read, so a few old positions among new
    ones must not make one wide range.
    """
    bucket = F.floor(F.col("offset") / _BUCKET)
    found = rows.groupBy("epoch", bucket.alias("bucket")).agg(
        F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    spans = [tuple(row) for row in found.select("epoch", "first", "last").collect()]
    parts = [
        f"({prefix}epoch = {epoch} AND {prefix}offset BETWEEN {first} AND {last})"
        for epoch, first, last in joined(spans)
    ]
    return f"({' OR '.join(parts)})" if parts else "false"


def joined(
    spans: Sequence[tuple[int, int, int]], most: int = _RANGES_MAX
) -> list[tuple[int, int, int]]:
    """Spans (epoch, first, last) with the smallest gaps between them closed, until few are left."""
    ordered = sorted(spans)
    pairs = itertools.pairwise(ordered)
    gaps = sorted(
        (after[1] - before[2], at)
        for at, (before, after) in enumerate(pairs)
        if before[0] == after[0]
    )
    closed = {at for gap, at in gaps if gap <= _BUCKET}
    for _, at in gaps:
        if len(ordered) - len(closed) <= most:
            break
        closed.add(at)
    result: list[tuple[int, int, int]] = []
    for at, (epoch, first, last) in enumerate(ordered):
        if at - 1 in closed:
            result[-1] = (epoch, result[-1][1], last)
        else:
            result.append((epoch, first, last))
    return result
