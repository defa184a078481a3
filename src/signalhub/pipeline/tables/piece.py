"""A range of `entries` that a derived table takes in with one transaction."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from signalhub.pipeline.lake import Lake, Merging, Position, application
from signalhub.pipeline.source.columns import TYPES
from signalhub.pipeline.tables import bodies
from signalhub.pipeline.tables.bodies import BodyReader
from signalhub.pipeline.tables.tables import ENTRIES, TABLES

_CONF: Final = "spark.databricks.delta.write.txn"
_MATERIALIZE: Final = "spark.databricks.delta.merge.materializeSource"
FEW: Final = 4_000
"""Up to this many rows are decoded in this process: Spark takes a second to start."""
_FEW_BYTES: Final = 16 * 2**20
_BUCKET: Final = 2**17
_RANGES_MAX: Final = 32
_SIZE_SAYS: Final = ("min.offset", "max.offset", "size_bytes")
_FILE_SAYS: Final = ["min.shard", "max.shard", "min.epoch", "max.epoch", "min.offset"]


def epoch_begins(
    spark: Callable[[], SparkSession], lake: Lake, shard: int, epoch: int
) -> dict[int, int]:
    """Return the first offset of every epoch up to this one.

    The statistics of the files of `entries` are enough, unless a file contains several epochs.
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
        entries = spark().read.format("delta").load(lake.location(ENTRIES.name))
        chosen = entries.where((F.col("shard") == shard) & (F.col("epoch") <= epoch))
        begins = dict(map(tuple, chosen.groupBy("epoch").agg(F.min("offset")).collect()))
    return dict(sorted(begins.items()))


def collected(rows: DataFrame) -> list[dict[str, Any]]:
    """Collect a few rows; times are microseconds."""
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
    """Return a few rows of a table, read without Spark; times are microseconds."""
    rows = lake.select(table, f"SELECT {what} FROM {table} WHERE {where}")  # noqa: S608
    assert rows is not None
    return listed(rows)


def columns_of(lake: Lake, table: str, names: Sequence[str], rest: str) -> pa.Table:
    """Return the same rows as an Arrow table with the declared types."""
    listed = ", ".join(f'"{name}"' for name in names)
    rows = lake.select(table, f"SELECT {listed} FROM {table} WHERE {rest}")  # noqa: S608
    assert rows is not None
    types = {one.name: one.type for one in TABLES[table].columns}
    return rows.cast(pa.schema([(name, TYPES[types[name]]) for name in names]))


def listed(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as dictionaries; times are microseconds."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            whole = rows.column(at).cast(pa.timestamp("us", field.type.tz)).cast(pa.int64())
            rows = rows.set_column(at, field.name, whole)
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
    """Create a DataFrame of a few rows; times are microseconds, without a time zone.

    Unlike rows from Python they are part of the plan, so that no job has to fetch them.
    """
    return spark.createDataFrame(arrow(rows, ddl))


def arrow(rows: Sequence[tuple[Any, ...]], ddl: str) -> pa.Table:
    """Create an Arrow table of a few rows; see `frame`."""
    fields = [column.strip().split(" ", 1) for column in ddl.split(",")]
    columns = list(zip(*rows, strict=True)) or [()] * len(fields)
    arrays = {
        name.strip("`"): pa.array(column, pa.int64() if type == "TIMESTAMP" else TYPES[type])
        for column, (name, type) in zip(columns, fields, strict=True)
    }
    schema = pa.schema([(name.strip("`"), TYPES[type]) for name, type in fields])
    return pa.table(arrays).cast(schema)


def is_before(alias: str, epoch: str, offset: str) -> Column:
    """Return whether a row's position is before another one."""
    its_epoch, its_offset = F.col(f"{alias}.epoch"), F.col(f"{alias}.offset")
    is_same = its_epoch == F.col(epoch)
    return (its_epoch < F.col(epoch)) | (is_same & (its_offset < F.col(offset)))


def is_behind(alias: str, epoch: str, offset: str) -> Column:
    """Return whether a row's position is after another one."""
    its_epoch, its_offset = F.col(f"{alias}.epoch"), F.col(f"{alias}.offset")
    is_same = its_epoch == F.col(epoch)
    return (its_epoch > F.col(epoch)) | (is_same & (its_offset > F.col(offset)))


class Piece:
    """The entries of one epoch after `after`, up to and including `to`, and their target table.

    A small one needs no Spark: see `take_here` of the tables.
    """

    def __init__(
        self,
        lake: Lake,
        table: str,
        shard: int,
        epoch: int,
        after: int,
        to: int,
        begins: dict[int, int],
    ) -> None:
        self.lake: Final = lake
        self.table: Final = table
        self.shard: Final = shard
        self.epoch: Final = epoch
        self.after: Final = after
        self.to: Final = to
        self.begins: Final = begins

    @property
    def begins_epoch(self) -> bool:
        """Whether it is the first piece of its epoch."""
        return self.after < self.begins[self.epoch]

    def body_rows(self, reading: BodyReader, *kinds: str) -> list[dict[str, Any]]:
        """Return rows decoded from the bodies of entries; times are microseconds."""
        return listed(self.decoded(reading, kinds or reading.kinds))

    def decoded(self, reading: BodyReader, kinds: Iterable[str]) -> pa.Table:
        """Decode the bodies of entries of some kinds, in this process."""
        names = [name for name, _ in bodies.ENTRY] + ["body"]
        batches = self.stored(names, kinds).combine_chunks().to_batches()
        read = [bodies.read_batch(one, reading) for one in batches]
        return pa.Table.from_batches(read, reading.schema)

    def stored(self, names: Sequence[str], kinds: Iterable[str]) -> pa.Table:
        """Read columns of entries of some kinds, in this process."""
        chosen = ", ".join(f"'{kind}'" for kind in kinds)
        return columns_of(
            self.lake, ENTRIES.name, names, f"{self.condition} AND kind IN ({chosen})"
        )

    def few(self, table: str, names: Sequence[str], where: str) -> pa.Table | None:
        """Return the rows of a table that match a condition; `None` if there are many."""
        condition = f"shard = {self.shard} AND {where}"
        found = columns_of(self.lake, table, names, f"{condition} LIMIT {FEW + 1}")
        return None if found.num_rows > FEW else found

    @cached_property
    def is_small(self) -> bool:
        """Whether it has few entries, in small files."""
        if self.to - self.after > FEW:
            return False
        opened = self.lake.open(ENTRIES.name)
        assert opened is not None
        files = pa.table(opened.get_add_actions(flatten=True))
        says = zip(*(files[name].to_pylist() for name in _SIZE_SAYS), strict=True)
        sizes = (
            size
            for first, last, size in says
            if first is None or (first <= self.to and last > self.after)
        )
        return bool(sum(sizes) <= _FEW_BYTES)

    @property
    def condition(self) -> str:
        """The SQL condition for its rows in `entries`, or in another table with positions."""
        return (
            f"shard = {self.shard} AND epoch = {self.epoch}"
            f' AND "offset" > {self.after} AND "offset" <= {self.to}'
        )

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of its entries, so that Spark can skip kinds that a table does not use."""
        found = selected(self.lake, ENTRIES.name, "DISTINCT kind", self.condition)
        return frozenset(row["kind"] for row in found)

    def first_at(self) -> int:
        """Return when the first entry was written."""
        what = "min(accepted_at) AS at"
        (first,) = selected(self.lake, ENTRIES.name, what, self.condition)
        at: int = first["at"]
        return at

    def standing_here(self) -> pa.Table:
        """Return all entries up to here, except those that a later epoch has discarded.

        They have no bodies.
        """
        names = [name for name in ENTRIES.names if name != "body"]
        quoted = self._kept('"')
        where = f"shard = {self.shard} AND ({quoted})"
        return columns_of(self.lake, ENTRIES.name, names, where)

    def _kept(self, quote: str) -> str:
        ends = [*list(self.begins.values())[1:], self.to + 1]
        offset = f"{quote}offset{quote}"
        return " OR ".join(
            f"(epoch = {epoch} AND {offset} < {min(ends[at:])})"
            for at, epoch in enumerate(self.begins)
        )

    @property
    def has_few_standing(self) -> bool:
        """Whether all entries up to here are few."""
        return self.is_small and self.to - min(self.begins.values()) < FEW

    def merge_here(self, rows: pa.Table, merging: Merging, *, records: bool = True) -> int | None:
        """Merge a few rows without Spark; `None` if Spark has to do it."""
        position = Position(self.shard, self.epoch, self.to) if records else None
        return self.lake.merge(self.table, rows, merging, position)

    def append_here(self, rows: pa.Table) -> int | None:
        """Append a few rows without Spark; `None` if Spark has to do it."""
        position = Position(self.shard, self.epoch, self.to)
        return rows.num_rows if self.lake.append(self.table, rows, position) else None

    def record_here(self) -> int | None:
        """Record the position without adding rows; `None` if Spark has to do it."""
        return 0 if self.lake.record(self.table, self.shard, self.epoch, self.to) else None

    def is_new(self, positions: pa.Table) -> bool:
        """Return whether all these positions are in the piece and the table has no row in it."""
        is_within = all(
            epoch == self.epoch and self.after < offset <= self.to
            for epoch, offset in _positions(positions)
        )
        return is_within and self.is_free(self.condition)

    def is_free(self, condition: str) -> bool:
        """Return whether the table has no row that matches a condition."""
        (found,) = selected(self.lake, self.table, "count(*) AS rows", condition)
        return not found["rows"]


class SparkPiece(Piece):
    """The same for Spark, which also reads a small one in this process where it can."""

    def __init__(self, spark: SparkSession, piece: Piece) -> None:
        super().__init__(
            piece.lake,
            piece.table,
            piece.shard,
            piece.epoch,
            piece.after,
            piece.to,
            piece.begins,
        )
        self.spark: Final = spark

    def read(self, name: str) -> DataFrame:
        """Return all rows of a table that belong to this shard."""
        rows = self.spark.read.format("delta").load(self.lake.location(name))
        return rows.where(F.col("shard") == self.shard)

    def entries(self, *kinds: str) -> DataFrame:
        """Return the entries of some kinds; without bodies if the piece is small."""
        if self.is_small:
            names = [name for name in ENTRIES.names if name != "body"]
            return self.shown(self.stored(names, kinds))
        offset = F.col("offset")
        rows = self.read(ENTRIES.name).where(
            (F.col("epoch") == self.epoch) & (offset > self.after) & (offset <= self.to)
        )
        return rows.where(F.col("kind").isin(*kinds))

    def bodies(self, reading: BodyReader, *kinds: str) -> DataFrame:
        """Decode the bodies of its entries, of these kinds or of all kinds of `reading`."""
        if self.is_small:
            return self.shown(self.decoded(reading, kinds or reading.kinds))
        return bodies.read_bodies(self.entries(*kinds or reading.kinds), reading)

    def body_rows(self, reading: BodyReader, *kinds: str) -> list[dict[str, Any]]:
        """Return the same rows as dictionaries; times are microseconds."""
        if self.is_small:
            return listed(self.decoded(reading, kinds))
        return collected(self.bodies(reading, *kinds))

    def standing(self) -> DataFrame:
        """Return the same as `standing_here`; if there are many, they have bodies."""
        if self.has_few_standing:
            return self.shown(self.standing_here())
        return self.read(ENTRIES.name).where(self._kept(""))

    def epoch_of(self, offset: Column) -> Column:
        """Return the epoch of a valid entry, by its offset."""
        found = F.lit(None).cast("bigint")
        for epoch, begin in self.begins.items():
            found = F.when(offset >= begin, F.lit(epoch)).otherwise(found)
        return found.cast("bigint")

    def shown(self, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
        """Return an Arrow table as a DataFrame; Spark needs a chunk even in empty columns."""
        some = rows if rows.num_rows else rows.schema.empty_table()
        return self.spark.createDataFrame(some, schema)

    def frame(self, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
        """Create a DataFrame of a few rows; times are microseconds, without a time zone."""
        return frame(self.spark, rows, ddl)

    def append(self, rows: DataFrame) -> int:
        """Append rows and record the position in one transaction; return the number of rows."""
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", application(self.shard, self.epoch))
            .option("txnVersion", self.to)
            .save(self.lake.location(self.table))
        )
        return self._metric("numOutputRows")

    def merge(
        self, rows: DataFrame, merging: Merging, *, bounds: str = "true", records: bool = True
    ) -> int:
        """Merge; record the position in the same transaction unless another merge follows.

        `bounds` is true for all rows that match: Spark selects files by it.
        """
        target = DeltaTable.forPath(self.spark, self.lake.location(self.table))
        merger = target.alias("t").merge(rows.alias("s"), f"{merging.on} AND {bounds}")
        if merging.updated:
            changes: dict[str, str | Column] = {**merging.updated}
            merger = merger.whenMatchedUpdate(condition=merging.update_if, set=changes)
        if merging.inserted:
            values: dict[str, str | Column] = {**merging.inserted}
            merger = merger.whenNotMatchedInsert(condition=merging.insert_if, values=values)
        if records:
            with self._position():
                merger.execute()
        else:
            merger.execute()
        return self._metric("numTargetRowsInserted", "numTargetRowsUpdated")

    def record(self) -> int:
        """Record the position without adding rows."""
        if self.record_here() is not None:
            return 0
        nothing = ", ".join(
            f"CAST(NULL AS {one.type}) AS `{one.name}`" for one in TABLES[self.table].columns
        )
        return self.append(self.spark.sql(f"SELECT {nothing} WHERE false"))

    @contextmanager
    def held(self, rows: DataFrame, *, are_few: bool) -> Iterator[HeldRows]:
        """Keep rows that are used more than once; a few are collected."""
        if are_few:
            found = rows.toArrow()
            # They are in memory, so Delta does not need to materialize them.
            self.spark.conf.set(_MATERIALIZE, "none")
            try:
                yield HeldRows(self.shown(found, rows.schema), found)
            finally:
                self.spark.conf.unset(_MATERIALIZE)
            return
        try:
            yield HeldRows(rows.persist(), None)
        finally:
            rows.unpersist()

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


class HeldRows(NamedTuple):
    """Rows with a position as a DataFrame; also as an Arrow table if there are few."""

    rows: DataFrame
    here: pa.Table | None

    def within(self, prefix: str) -> str:
        """See `within`."""
        if self.here is None:
            return within(self.rows, prefix)
        return condition_of([(epoch, at, at) for epoch, at in _positions(self.here)], prefix)


def _positions(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(rows["epoch"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def within(rows: DataFrame, prefix: str = "") -> str:
    """Return a condition with literal bounds that all these positions fulfil.

    Files of the target are selected by it before anything is read, so a few old positions among
    new ones must not produce one wide range.
    """
    bucket = F.floor(F.col("offset") / _BUCKET)
    found = rows.groupBy("epoch", bucket.alias("bucket")).agg(
        F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    spans = [tuple(row) for row in found.select("epoch", "first", "last").collect()]
    return condition_of(spans, prefix)


def condition_of(spans: Sequence[tuple[int, int, int]], prefix: str) -> str:
    """Return an SQL condition for spans (epoch, first, last), which may match more than they do."""
    parts = [
        f"({prefix}epoch = {epoch} AND {prefix}offset BETWEEN {first} AND {last})"
        for epoch, first, last in joined(spans)
    ]
    return f"({' OR '.join(parts)})" if parts else "false"


def joined(
    spans: Sequence[tuple[int, int, int]], most: int = _RANGES_MAX
) -> list[tuple[int, int, int]]:
    """Merge spans (epoch, first, last) across the smallest gaps until few are left."""
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
