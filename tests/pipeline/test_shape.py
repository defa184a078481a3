"""Derived tables follow `entries`: every row once, whatever is repeated, interrupted or rebuilt."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from signalhub.pipeline.tables import tables
from signalhub.pipeline.tables.catch_up import ORDER, catch_up
from signalhub.pipeline.tables.create import ensure_table
from signalhub.pipeline.tables.traffic import traffic
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import NOON_MS, LogScene

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
    counts = {name: side.count(name) for name in ORDER}
    assert (counts["messages"], counts["inbox"], counts["deliveries"]) == (36, 5, 1)

    ((epoch, last),) = side.land()
    again = [catch_up(side.spark, side.lake, name, 0, epoch, last) for name in ORDER]

    assert [one.rows for one in again] == [0] * len(ORDER)
    assert {one.to for one in again} == {last}
    assert {name: side.count(name) for name in ORDER} == counts


def test_inbox_holds_what_may_still_be_read(side: Lakeside, scene: LogScene) -> None:
    stream = f"inbox.2.{HASH}"
    scene.append([scene.said(stream, expires_ms=NOON_MS + 1), scene.said(stream, "YWJj")])
    side.shape("inbox")
    scene.append([scene.said(stream, expires_ms=LATER_MS)])
    side.shape("inbox")

    rows = side.rows("inbox", "inbox", "key_version", "seq", "message_id", "ciphertext", "offset")
    assert rows == [
        (HASH, 2, 2, "m-2", b"YWJj", 1),
        (HASH, 2, 3, "m-3", b"q83v", 2),
    ]


def test_messages_have_their_content_as_columns(side: Lakeside, scene: LogScene) -> None:
    scene.append([scene.published("orders", {"customer": {"id": 7}}, key="k")])
    scene.append([scene.mailed("@(demo/bob)", 1, ttl=500), scene.said(f"inbox.1.{HASH}")])
    side.shape("messages")

    read = side.table("messages").orderBy("offset")
    rows = read.selectExpr("topic", "type", "sender", "key", "headers", "bytes", "ttl_ms").collect()
    assert tuple(rows[0])[:4] == ("orders", "order:new", "@(demo/alice)", "k")
    assert (rows[0]["headers"], rows[0]["bytes"]) == ({"source": "test"}, 23)
    assert (rows[1]["topic"], rows[1]["ttl_ms"]) == (None, 500)
    assert tuple(rows[2])[:5] == (None,) * 5
    ids = [row[0] for row in read.selectExpr("payload:customer.id::int").collect()]
    assert ids == [7, None, None]


def test_a_table_of_another_version_is_made_again_from_the_beginning(
    side: Lakeside, scene: LogScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(3)
    side.shape("messages")
    newer = msgspec.structs.replace(tables.MESSAGES, version=99)
    monkeypatch.setitem(tables.TABLES, "messages", newer)

    assert ensure_table(side.spark, side.lake, "messages")
    assert side.count("messages") == 0
    assert not ensure_table(side.spark, side.lake, "messages")
    side.shape("messages")
    assert side.count("messages") == 3


def test_traffic_counts_by_minute_kind_and_topic(spark: SparkSession) -> None:
    def at(minute: int, second: int, ms: int = 0) -> datetime:
        return datetime(2026, 1, 1, 12, minute, second, ms * 1000)

    place = "shard INT, epoch BIGINT, offset BIGINT"
    messages = spark.createDataFrame(
        [
            (0, 1, 1, "published", at(0, 1), "orders", 10),
            (0, 1, 2, "published", at(0, 59), "orders", 20),
            (0, 1, 3, "published", at(1, 0), "orders", 40),
            (0, 1, 4, "room_message", at(1, 0), None, None),
        ],
        f"{place}, kind STRING, accepted_at TIMESTAMP, topic STRING, bytes BIGINT",
    )
    deliveries = spark.createDataFrame(
        [
            (0, 1, 1, at(0, 1), at(0, 1, 3)),
            (0, 1, 1, at(0, 1), at(0, 1)),
            (0, 1, 2, at(0, 59), at(1, 1)),
            (0, 1, 3, at(1, 0), None),
        ],
        f"{place}, accepted_at TIMESTAMP, settled_at TIMESTAMP",
    )

    rows = traffic(messages, deliveries).orderBy("minute", "kind").collect()

    assert [tuple(row)[2:7] for row in rows] == [
        ("published", "orders", 2, 3, 30),
        ("published", "orders", 1, 0, 40),
        ("room_message", None, 1, 0, 0),
    ]
    assert [tuple(one) for one in rows[0]["latency_histogram"]] == [(1, 1), (4, 1), (2048, 1)]
    assert (rows[0]["p50_ms"], rows[1]["p50_ms"]) == (3.0, None)
    assert rows[1]["latency_histogram"] == []
