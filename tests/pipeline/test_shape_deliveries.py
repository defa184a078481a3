"""What became of each message for each recipient, from a log whose every entry is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from signalhub.pipeline.tables import delivery_ends
from signalhub.pipeline.tables.create import drop_table
from signalhub.wire.entry import (
    Body,
    CursorBody,
    Entry,
    Kind,
    LostBody,
    Outcome,
    RemovedBody,
    SettledBody,
    Settlement,
    StreamDefinitionBody,
    SubscriptionDefinitionBody,
)
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import LogScene

BOB = "@(demo/bob)"
CAROL = "@(demo/carol)"
COLUMNS = (
    "offset",
    "recipient_kind",
    "recipient",
    "generation",
    "outcome",
    "settle_offset",
    "attempts",
    "consumer",
    "reason",
)


def created(scene: LogScene, name: str, start: int = 0) -> Entry:
    definition = SubscriptionDefinitionBody(
        name, "exclusive", 10, False, 1000, 3, 10, 100, None, False, start=start
    )
    return scene.about(Kind.SUBSCRIPTION_CREATED, "orders", definition)


def cursor(scene: LogScene, name: str, generation: int, floor: int) -> Entry:
    body = CursorBody(name, generation, floor, floor + 10, [], {}, {})
    return scene.about(Kind.CURSOR, "orders", body)


def settled(
    scene: LogScene, stream: str, name: str, generation: int, *deliveries: Settlement
) -> Entry:
    return scene.about(Kind.SETTLED, stream, SettledBody(name, generation, list(deliveries)))


def write_life(scene: LogScene) -> None:
    """One of everything; the number of each entry is its offset."""

    def of(name: str, generation: int, *deliveries: Settlement) -> Entry:
        return settled(scene, "orders", name, generation, *deliveries)

    def order() -> Entry:
        return scene.published("orders", 1)

    failed = Settlement(2, 4, Outcome.FAILED, 1, 1, 1000, 1000, "w", "busy")
    deleted = SubscriptionDefinitionBody("audit", "", 1, False, 1, 1, 1, 1, None, False)
    scene.append(
        [
            scene.about(Kind.STREAM_CREATED, "orders", StreamDefinitionBody(True)),  # 0
            created(scene, "billing"),
            cursor(scene, "billing", 1, 0),
            order(),  # 3: seq 1
            order(),  # 4: seq 2
            of("billing", 1, Settlement(1, 3, Outcome.ACKED, 1, 0, 1000, 1000, "w"), failed),
            order(),  # 6: seq 3
            created(scene, "audit", start=1),
            cursor(scene, "billing", 2, 0),  # 8: a seek to the beginning
            of("billing", 1, Settlement(2, 4, Outcome.ACKED, 2, 1, 1000, 3000, "w2")),
            order(),  # 10: seq 4
            of("audit", 1, Settlement(2, 4, Outcome.DEAD_LETTERED, 3), Settlement(3, 6, 4, 0)),
            scene.about(Kind.SUBSCRIPTION_DELETED, "orders", deleted),  # 12
            created(scene, "audit", start=3),
            scene.about(Kind.LOST, "orders", LostBody("billing", 1, 1)),  # 14
            of("billing", 2, Settlement(2, 4, Outcome.WRITTEN)),
            of("audit", 1, Settlement(4, 10, Outcome.ACKED)),  # 16: of its second life
            scene.mailed(BOB, 1),  # 17
            scene.mailed(CAROL, 1, is_durable=False),  # 18
            settled(scene, "", "", 0, Settlement(0, 18, Outcome.WRITTEN, 1)),
            settled(scene, BOB, "", 1, Settlement(1, 17, Outcome.HANDED_OVER, 1, 0, 1, 1, BOB)),
            scene.mailed(BOB, 2),  # 21
            settled(scene, BOB, "", 1, Settlement(1, 17, Outcome.ACKED, 1, 0, 1, 1, BOB)),
            scene.about(Kind.STREAM_DELETED, BOB, Body()),  # 23
            scene.about(Kind.REMOVED, "orders", RemovedBody([(3, 3)], "purged")),  # 24
            order(),  # 25: seq 5
        ]
    )


EXPECTED = [
    (3, "subscription", "orders/billing", 1, "acked", 5, 1, "w", None),
    (3, "subscription", "orders/billing", 2, "lost", 14, 0, None, None),
    (4, "subscription", "orders/audit", 1, "dead_lettered", 11, 3, None, None),
    (4, "subscription", "orders/billing", 1, "acked", 9, 2, "w2", "busy"),
    (4, "subscription", "orders/billing", 2, "written", 15, 1, None, None),
    (6, "subscription", "orders/audit", 1, "expired", 11, 0, None, None),
    (6, "subscription", "orders/billing", 1, "sought", 8, 0, None, None),
    (6, "subscription", "orders/billing", 2, "removed", 24, 0, None, "purged"),
    (10, "subscription", "orders/audit", 1, "dropped", 12, 0, None, "deleted"),
    (10, "subscription", "orders/audit", 2, "acked", 16, 1, None, None),
    (10, "subscription", "orders/billing", 2, "pending", None, 0, None, None),
    (17, "mailbox", BOB, 1, "acked", 22, 1, BOB, None),
    (18, "actor", CAROL, 1, "written", 19, 1, None, None),
    (21, "mailbox", BOB, 1, "dropped", 23, 0, None, "deleted"),
    (25, "subscription", "orders/audit", 2, "pending", None, 0, None, None),
    (25, "subscription", "orders/billing", 2, "pending", None, 0, None, None),
]


@pytest.fixture(scope="module")
def life(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakeside:
    data = tmp_path_factory.mktemp("life")
    write_life(LogScene(data))
    return Lakeside(spark, data)


def found(side: Lakeside) -> list[tuple[Any, ...]]:
    return sorted(side.rows("deliveries", *COLUMNS), key=lambda row: row[:4])


def test_each_delivery_ends_as_the_log_says_even_if_a_crash_comes_between_two_merges(
    life: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> int:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(delivery_ends, "merge", crash)
        with pytest.raises(OSError, match="no space"):
            life.shape("subscriptions", "deliveries")

    life.shape("deliveries")

    assert found(life) == EXPECTED


def test_a_table_made_again_in_small_pieces_is_the_same(life: Lakeside) -> None:
    drop_table(life.spark, life.lake, "deliveries")

    life.shape("deliveries", piece_entries=9)

    assert found(life) == EXPECTED


def test_a_message_of_an_earlier_epoch_is_settled_in_a_later_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    before, after = LogScene(tmp_path / "before"), LogScene(tmp_path / "after")
    before.append(
        [
            created(before, "billing"),
            cursor(before, "billing", 1, 0),
            before.published("orders", 1),  # 2
            before.published("orders", 2),  # 3
            before.published("orders", 3),  # 4: given up
            created(before, "late"),  # 5: given up
        ]
    )
    third = msgspec.structs.replace(after.published("orders", 3), seq=3)
    after.append([settled(after, "orders", "billing", 1, Settlement(1, 2, Outcome.ACKED)), third])
    side, other = Lakeside(spark, tmp_path / "before"), Lakeside(spark, tmp_path / "after")
    later = other.source().withColumn("offset", F.col("offset") + 4)
    side.append(side.source().withColumn("epoch", F.lit(1).cast("bigint")), 1, 5)
    side.catch_up(1, 5, "subscriptions", "deliveries")
    side.append(later.withColumn("epoch", F.lit(2).cast("bigint")), 2, 5)
    side.catch_up(2, 5, "subscriptions", "deliveries")

    rows = side.rows("deliveries", "epoch", "offset", "recipient", "outcome", "reason")
    assert [row for row in rows if row[2] == "orders/billing"] == [
        (1, 2, "orders/billing", "acked", None),
        (1, 3, "orders/billing", "pending", None),
        (1, 4, "orders/billing", "lost", "given_up"),
        (2, 5, "orders/billing", "pending", None),
    ]
    assert {row[3] for row in rows if row[2] == "orders/late"} == {"lost"}
