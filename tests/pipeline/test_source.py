"""The log as a source for Spark: what is read, in which pieces, and where it stops."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.scene import LogScene


def test_every_entry_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    scene = LogScene(tmp_path)
    scene.publish(250)

    rows = spark.read.format("signalhub").load(str(tmp_path)).orderBy("offset").collect()

    assert [row.offset for row in rows] == list(range(250))
    assert {row.kind for row in rows} == {"published"}
    assert rows[7].id == "orders-8"
    assert rows[7].seq == 8
