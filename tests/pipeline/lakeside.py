"""Lakes for tests of the derived tables: entries landed as one plain batch, then shaped.

What tests look at they read without Spark, which takes a second for the smallest table.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from signalhub.log.folder import look
from signalhub.pipeline.lake import Lake, application
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

    def source(self) -> DataFrame:
        """What the log holds, as rows of `entries`, to be written as one file."""
        options = Options(path=str(self.data), beyond_published=True)
        nothing = F.lit(None)
        return (
            self.spark.createDataFrame(BatchReader(options).read_here())
            .withColumn("removed_at", nothing.cast("timestamp"))
            .withColumn("removed_reason", nothing.cast("string"))
            .select(*ENTRIES.names)
            .coalesce(1)
        )

    def land(self) -> list[tuple[int, int]]:
        """Take in what is new; the epochs with the last offset of each."""
        segments = look(log_of(self.data)).segments
        ends = {one.epoch: one.end - 1 for one in segments if one.end > one.base}
        for epoch, last in ends.items():
            committed = self.lake.committed(ENTRIES.name, 0, epoch)
            new = F.col("offset") > (-1 if committed is None else committed)
            self.append(self.source().where((F.col("epoch") == epoch) & new), epoch, last)
        return list(ends.items())

    def append(self, entries: DataFrame, epoch: int, last: int) -> None:
        """Land entries of one epoch up to an offset."""
        (
            entries.write.format("delta")
            .mode("append")
            .option("txnAppId", application(0, epoch))
            .option("txnVersion", last)
            .save(self.lake.location(ENTRIES.name))
        )

    def catch_up(self, epoch: int, last: int, *tables: str, piece_entries: int = 1_000_000) -> None:
        """Let derived tables follow, all unless some are named."""
        for table in tables or ORDER:
            self._make(table)
            catch_up(self.spark, self.lake, table, 0, epoch, last, piece_entries=piece_entries)

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
