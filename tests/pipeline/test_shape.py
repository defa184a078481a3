"""The tables: made as declared, filled once whatever is repeated, and saying what clients saw."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import signalhub
from signalhub import Message
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.tables import piece, reference, tables
from signalhub.pipeline.tables.catch_up import ORDER, catch_up
from signalhub.pipeline.tables.create import ensure_table
from signalhub.pipeline.tables.tables import TABLES
from signalhub.pipeline.tables.traffic import traffic
from signalhub.testing import run_hub
from signalhub.wire.entry import Kind, Outcome
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import NOON_MS, LogScene

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lake.md"
HASH = "abcdefghijklmnopqrstuv"
LATER_MS = 4_000_000_000_000
ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
CAROL = "@(demo/carol)"
PATIENCE_S = 60.0


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path)


@pytest.fixture
def side(spark: SparkSession, scene: LogScene, tmp_path: Path) -> Lakeside:
    return Lakeside(spark, tmp_path)


def test_the_page_is_up_to_date() -> None:
    """If it is not: python -m signalhub.pipeline.tables.reference > docs/lake.md"""
    assert PAGE.read_text() == reference.page()


def test_every_kind_and_outcome_is_explained() -> None:
    text = reference.page()

    assert all(f"| `{kind.name.lower()}` | {kind.value} |" in text for kind in Kind)
    assert all(f"| `{outcome.name.lower()}` |" in text for outcome in Outcome)
    assert all(f"## `{name}`" in text for name in TABLES)


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
    commits = tmp_path / "entries" / "_delta_log"
    before = sorted(commits.iterdir())
    assert not ensure_table(spark, Lake(str(tmp_path)), "entries")
    assert sorted(commits.iterdir()) == before, "what is there is not taken for a failed attempt"


def test_every_table_takes_in_each_entry_once(
    side: Lakeside, scene: LogScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First as if they were many, which Spark reads, then a few more."""

    def shape() -> None:
        scene.publish(30)
        scene.append([scene.said(f"inbox.1.{HASH}", expires_ms=LATER_MS) for _ in range(5)])
        scene.append([scene.mailed("@(demo/bob)", {"n": 1})])
        side.shape()

    with monkeypatch.context() as patched:
        patched.setattr(piece, "FEW", 0)
        shape()
    first = side.rows("traffic_1m", "kind", "accepted", "settled")
    shape()
    counts = {name: side.count(name) for name in ORDER}
    assert (counts["messages"], counts["inbox"], counts["deliveries"]) == (72, 10, 2)
    assert side.rows("traffic_1m", "kind", "accepted", "settled") == [
        (kind, 2 * accepted, settled) for kind, accepted, settled in first
    ]

    ((epoch, last),) = side.land()
    again = [catch_up(lambda: side.spark, side.lake, name, 0, epoch, last) for name in ORDER]

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


async def take(source: Any, count: int) -> list[Message]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(source) for _ in range(count)]


async def live(data: Path) -> None:
    """Ask, publish, ack, nack, give up, seek, put back, delete, and let something expire."""
    async with run_hub(data=str(data)) as hub, signalhub.connect(hub.url, ALICE) as alice:
        await alice.create_topic("orders", poison="dead_letter")
        async with alice.consume("orders", "billing", backoff_s=0.01) as orders:
            for name in ("again", "never", "fine"):
                await alice.publish("orders", "order", {"name": name}, headers={"from": "test"})
            again, never, fine = await take(orders, 3)
            await again.nack(reason="busy")
            await never.term(reason="nonsense", wait=True)
            await fine.ack(wait=True)
            (again,) = await take(orders, 1)
            await again.ack(wait=True)
            await alice.seek("orders", "billing", "earliest")
            for message in await take(orders, 3):
                await message.ack(wait=True)
        assert await alice.redrive("orders.dlq") == 1
        await alice.delete_subscription("orders", "billing")
        async with signalhub.connect(hub.url, CAROL) as carol:
            await alice.ask(CAROL, "task", {"name": "now"})
            await take(carol.messages(), 1)
        async with signalhub.connect(hub.url, BOB, durable=True) as bob:
            await alice.ask(BOB, "task", {"name": "there"})
            await take(bob.messages(), 1)
        await alice.ask(BOB, "task", {"name": "late"}, ttl_ms=20)
        await alice.ask(BOB, "task", {"name": "kept"})
        await asyncio.sleep(0.05)
        async with signalhub.connect(hub.url, BOB, durable=True) as bob:
            await take(bob.messages(), 1)
        await alice.ask(BOB, "task", {"name": "waiting"})


async def test_the_tables_say_what_clients_saw(spark: SparkSession, tmp_path: Path) -> None:
    await live(tmp_path)
    side = Lakeside(spark, tmp_path)
    side.shape()

    messages, deliveries = side.table("messages"), side.table("deliveries")
    both = deliveries.join(messages, ["shard", "epoch", "offset"]).select(
        "recipient_kind",
        "recipient",
        F.expr("payload:name::string"),
        "generation",
        "outcome",
        "attempts",
        deliveries["reason"],
    )
    billing = ("subscription", "orders/billing")
    assert sorted(map(tuple, both.collect()), key=repr) == sorted(
        [
            (*billing, "again", 1, "acked", 2, "busy"),
            (*billing, "never", 1, "dead_lettered", 1, "nonsense"),
            (*billing, "fine", 1, "acked", 1, None),
            (*billing, "again", 2, "acked", 1, None),
            (*billing, "never", 2, "acked", 1, None),
            (*billing, "fine", 2, "acked", 1, None),
            (*billing, "never", 2, "dropped", 0, "deleted"),
            ("actor", CAROL, "now", 1, "written", 1, None),
            ("mailbox", BOB, "there", 1, "written", 1, None),
            ("mailbox", BOB, "late", 1, "expired", 0, None),
            ("mailbox", BOB, "kept", 1, "written", 1, None),
            ("mailbox", BOB, "waiting", 1, "pending", 0, None),
        ],
        key=repr,
    )
    is_out_of_order = (
        "first_sent_at IS NULL OR last_sent_at < first_sent_at OR settled_at < first_sent_at"
    )
    assert side.count("deliveries", f"attempts > 0 AND ({is_out_of_order})") == 0
    ((source, topic, subscription, seq, name, was_redriven),) = (
        side.table("dead_letters")
        .selectExpr(
            "source",
            "topic",
            "subscription",
            "original_seq",
            "payload:name::string",
            "redriven_at >= last_failure",
        )
        .collect()
    )
    assert (source, topic, subscription, seq) == ("topic", "orders", "billing", 2)
    assert (name, was_redriven) == ("never", True)
    accepted, settled, size = map(
        sum, zip(*side.rows("traffic_1m", "accepted", "settled", "bytes"), strict=True)
    )
    assert accepted == side.count("messages")
    assert settled == side.count("deliveries", "settled_at IS NOT NULL")
    assert size == sum(one or 0 for (one,) in side.rows("messages", "bytes"))
