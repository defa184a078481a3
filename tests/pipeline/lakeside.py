"""Lakes for tests of the derived tables: entries landed as one plain batch, then shaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from signalhub.pipeline.lake import Lake, application
from signalhub.pipeline.tables.catch_up import ORDER, catch_up
from signalhub.pipeline.tables.create import ensure_table
from signalhub.pipeline.tables.tables import ENTRIES


class Lakeside:
    """The lake of one data folder."""

    def __init__(self, spark: SparkSession, data: Path) -> None:
        self.spark = spark
        self.data = data
        self.lake = Lake(str(data / "lake"))
        ensure_table(spark, self.lake, ENTRIES.name)

    def source(self) -> DataFrame:
        """What the log holds, as rows of `entries`."""
        rows = self.spark.read.format("signalhub").option("beyondPublished", True)
        nothing = F.lit(None)
        return (
            rows.load(str(self.data))
            .withColumn("removed_at", nothing.cast("timestamp"))
            .withColumn("removed_reason", nothing.cast("string"))
            .select(*ENTRIES.names)
        )

    def land(self) -> list[tuple[int, int]]:
        """Take in what is new; the epochs with the last offset of each."""
        rows = self.source().persist()
        ends = rows.groupBy("epoch").agg(F.max("offset")).orderBy("epoch").collect()
        for epoch, last in ends:
            committed = self.lake.committed(ENTRIES.name, 0, epoch)
            new = F.col("offset") > (-1 if committed is None else committed)
            self.append(rows.where((F.col("epoch") == epoch) & new), epoch, last)
        rows.unpersist()
        return [(epoch, last) for epoch, last in ends]

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
            catch_up(self.spark, self.lake, table, 0, epoch, last, piece_entries=piece_entries)

    def shape(self, *tables: str, piece_entries: int = 1_000_000) -> None:
        """Land what is new, and let derived tables follow."""
        for epoch, last in self.land():
            self.catch_up(epoch, last, *tables, piece_entries=piece_entries)

    def table(self, name: str) -> DataFrame:
        return self.spark.read.format("delta").load(self.lake.location(name))

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Some columns of all rows, sorted."""
        found = map(tuple, self.table(name).select(*columns).collect())
        return sorted(found, key=repr)
