"""Derived tables follow `entries`: every row once, whatever is repeated, interrupted or rebuilt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from signalhub.pipeline.shape import ORDER, catch_up
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import LogScene

HASH = "abcdefghijklmnopqrstuv"
LATER_MS = 4_000_000_000_000


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path)


@pytest.fixture
def side(spark: SparkSession, scene: LogScene, tmp_path: Path) -> Lakeside:
    return Lakeside(spark, tmp_path)


def test_every_table_takes_in_each_entry_once(side: Lakeside, scene: LogScene) -> None:
    scene.publish(30)
    scene.append([scene.said(f"inbox.1.{HASH}", expires_ms=LATER_MS) for _ in range(5)])
    scene.append([scene.mailed("@(demo/bob)", {"n": 1})])
    side.shape()
    counts = {name: side.table(name).count() for name in ORDER}
    assert counts["messages"] == 36
    assert counts["inbox"] == 5
    assert counts["deliveries"] == 1
    side.shape()
    assert {name: side.table(name).count() for name in ORDER} == counts
    scene.append([scene.published("orders", {"n": 31})])
    side.shape()
    assert side.table("messages").count() == 37
    ((epoch, last),) = side.land()
    assert {side.lake.committed(name, 0, epoch) for name in ORDER} == {last}
