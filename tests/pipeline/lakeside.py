"""Lakes for tests of the derived tables: entries landed as one plain batch, then shaped.

That is done without Spark, and what tests look at they read without it: both would take it a
second for the smallest table.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, PostCommitHookProperties, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from signalhub.log.folder import look
from signalhub.pipeline.lake import Lake, application
from signalhub.pipeline.source.columns import TIME
from signalhub.pipeline.source.plan import log_of
from signalhub.pipeline.source.source import BatchReader, Options
from signalhub.pipeline.tables.catch_up import ORDER, catch_up
from signalhub.pipeline.tables.create import ensure_table
from signalhub.pipeline.tables.tables import ENTRIES


@cache
def empty_table(spark: SparkSession, name: str) -> Path:
    """An empty table: making one takes longer than copying it."""
    lake = Lake(tempfile.mkdtemp(prefix="signalhub-empty-"))
    ensure_table(spark, lake, name)
    return Path(lake.location(name))


class Lakeside:
    """The lake of one data folder."""

    def __init__(self, spark: SparkSession, data: Path) -> None:
        self.spark = spark
        self.data = data
        self.lake = Lake(str(data / "lake"))
        self._make(ENTRIES.name)

    def _make(self, name: str) -> None:
        if not self.lake.exists(name):
            copytree(empty_table(self.spark, name), self.lake.location(name), dirs_exist_ok=True)

    def source(self) -> pa.Table:
        """What the log holds, as rows of `entries`."""
        options = Options(path=str(self.data), beyond_published=True)
        rows = BatchReader(options).read_here()
        for name, type in (("removed_at", TIME), ("removed_reason", pa.string())):
            rows = rows.append_column(name, pa.nulls(rows.num_rows, type))
        return rows.select(ENTRIES.names)

    def land(self) -> list[tuple[int, int]]:
        """Take in what is new; the epochs with the last offset of each."""
        segments = look(log_of(self.data)).segments
        ends = {one.epoch: one.end - 1 for one in segments if one.end > one.base}
        for epoch, last in ends.items():
            committed = self.lake.committed(ENTRIES.name, 0, epoch)
            new = pc.field("offset") > (-1 if committed is None else committed)
            self.append(self.source().filter((pc.field("epoch") == epoch) & new), epoch, last)
        return list(ends.items())

    def append(self, entries: pa.Table, epoch: int, last: int) -> None:
        """Land entries of one epoch up to an offset."""
        landed = Transaction(application(0, epoch), last)
        write_deltalake(
            self.lake.location(ENTRIES.name),
            entries,
            mode="append",
            commit_properties=CommitProperties(app_transactions=[landed]),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False),
        )

    def catch_up(self, epoch: int, last: int, *tables: str, piece_entries: int = 1_000_000) -> None:
        """Let derived tables follow, all unless some are named."""
        for table in tables or ORDER:
            self._make(table)
            catch_up(
                lambda: self.spark, self.lake, table, 0, epoch, last, piece_entries=piece_entries
            )

    def shape(self, *tables: str, piece_entries: int = 1_000_000) -> None:
        """Land what is new, and let derived tables follow."""
        for epoch, last in self.land():
            self.catch_up(epoch, last, *tables, piece_entries=piece_entries)

    def table(self, name: str) -> DataFrame:
        return self.spark.read.format("delta").load(self.lake.location(name))

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Some columns of all rows, sorted."""
        listed = ", ".join(f'"{column}"' for column in columns)
        found = self.lake.select(name, f"SELECT {listed} FROM {name}")
        assert found is not None
        rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
        return sorted(rows, key=repr)

    def count(self, name: str, where: str = "true") -> int:
        """How many rows are there that a condition holds for."""
        found = self.lake.select(name, f"SELECT count(*) AS n FROM {name} WHERE {where}")
        assert found is not None
        count: int = found["n"][0].as_py()
        return count
