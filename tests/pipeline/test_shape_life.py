"""The derived tables of a hub's real life say what its clients saw."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import signalhub
from signalhub import Message
from signalhub.testing import run_hub
from tests.pipeline.lakeside import Lakeside

ALICE = "@(demo/alice)"
BOB = "@(demo/bob)"
CAROL = "@(demo/carol)"
PATIENCE_S = 60.0


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
