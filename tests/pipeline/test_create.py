"""Tables are made as they are declared, also where an attempt has failed."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from signalhub.pipeline.lake import Lake
from signalhub.pipeline.tables.create import ensure_table


def test_a_table_that_could_not_be_made_is_made_as_it_is_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "entries" / "_delta_log" / "_staged_commits").mkdir(parents=True)
    lake = Lake(str(tmp_path))

    assert ensure_table(spark, lake, "entries")

    table = lake.open("entries")
    assert table is not None
    said = table.metadata().configuration
    assert said["delta.dataSkippingStatsColumns"].startswith("shard,epoch,offset")
    assert not ensure_table(spark, lake, "entries")


def test_what_is_there_is_not_taken_for_a_failed_attempt(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path))
    assert ensure_table(spark, lake, "audit")
    before = sorted((tmp_path / "audit" / "_delta_log").iterdir())

    assert not ensure_table(spark, Lake(str(tmp_path)), "audit")

    assert sorted((tmp_path / "audit" / "_delta_log").iterdir()) == before
