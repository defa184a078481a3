"""What became of each message for each recipient, from a log whose every entry is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from signalhub.pipeline.tables import delivery_ends
from signalhub.pipeline.tables import piece as pieces
from signalhub.pipeline.tables.create import drop_table
from signalhub.pipeline.tables.piece import joined
from signalhub.pipeline.tables.subscriptions import Change, Stretch, Stretches
from signalhub.pipeline.tables.tables import SUBSCRIPTIONS
from signalhub.wire.entry import (
    Body,
    CursorBody,
    Entry,
    Kind,
    LostBody,
    Outcome,
    RemovedBody,
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


def cursor(scene: LogScene, name: str, generation: int, floor: int) -> Entry:
    body = CursorBody(name, generation, floor, floor + 10, [], {}, {})
    return scene.about(Kind.CURSOR, "orders", body)


def write_life(scene: LogScene) -> None:
    """One of everything; the number of each entry is its offset."""

    def of(name: str, generation: int, *deliveries: Settlement) -> Entry:
        return scene.settled("orders", name, generation, *deliveries)

    def order() -> Entry:
        return scene.published("orders", 1)

    failed = Settlement(2, 4, Outcome.FAILED, 1, 1, 1000, 1000, "w", "busy")
    deleted = SubscriptionDefinitionBody("audit", "", 1, False, 1, 1, 1, 1, None, False)

    def of_pattern(stream: str, start: int) -> Entry:
        made = SubscriptionDefinitionBody("all", "", 1, False, 1, 1, 1, 1, None, False)
        made.start, made.pattern = start, "orders/#"
        return scene.about(Kind.SUBSCRIPTION_CREATED, stream, made)

    paused = CursorBody("all", 1, 0, 0, [], {}, {}, True)
    scene.append(
        [
            scene.about(Kind.STREAM_CREATED, "orders", StreamDefinitionBody(True)),  # 0
            scene.subscribed("billing"),
            cursor(scene, "billing", 1, 0),
            order(),  # 3: seq 1
            order(),  # 4: seq 2
            of("billing", 1, Settlement(1, 3, Outcome.ACKED, 1, 0, 1000, 1000, "w"), failed),
            order(),  # 6: seq 3
            scene.subscribed("audit", start=1),
            cursor(scene, "billing", 2, 0),  # 8: a seek to the beginning
            of("billing", 1, Settlement(2, 4, Outcome.ACKED, 2, 1, 1000, 3000, "w2")),
            order(),  # 10: seq 4
            of("audit", 1, Settlement(2, 4, Outcome.DEAD_LETTERED, 3), Settlement(3, 6, 4, 0)),
            scene.about(Kind.SUBSCRIPTION_DELETED, "orders", deleted),  # 12
            scene.subscribed("audit", start=3),
            scene.about(Kind.LOST, "orders", LostBody("billing", 1, 1)),  # 14
            of("billing", 2, Settlement(2, 4, Outcome.WRITTEN)),
            of("audit", 1, Settlement(4, 10, Outcome.ACKED)),  # 16: of its second life
            scene.mailed(BOB, 1),  # 17
            scene.mailed(CAROL, 1, is_durable=False),  # 18
            scene.settled("", "", 0, Settlement(0, 18, Outcome.WRITTEN, 1)),
            scene.settled(BOB, "", 1, Settlement(1, 17, Outcome.HANDED_OVER, 1, 0, 1, 1, BOB)),
            scene.mailed(BOB, 2),  # 21
            scene.settled(BOB, "", 1, Settlement(1, 17, Outcome.ACKED, 1, 0, 1, 1, BOB)),
            scene.about(Kind.STREAM_DELETED, BOB, Body()),  # 23
            scene.about(Kind.REMOVED, "orders", RemovedBody([(3, 3)], "purged")),  # 24
            order(),  # 25: seq 5
            of_pattern("orders/#", 0),  # 26: it is no subscription, but makes some
            scene.about(Kind.CURSOR, "orders/#", paused),
            of_pattern("orders", 5),  # 28
            order(),  # 29: seq 6
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
    (29, "subscription", "orders/all", 1, "pending", None, 0, None, None),
    (29, "subscription", "orders/audit", 2, "pending", None, 0, None, None),
    (29, "subscription", "orders/billing", 2, "pending", None, 0, None, None),
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
        patched.setattr(delivery_ends, "merge_here", crash)
        with pytest.raises(OSError, match="no space"):
            life.shape("subscriptions", "deliveries")

    life.shape("deliveries")

    assert found(life) == EXPECTED
    assert {topic for (topic,) in life.rows("subscriptions", "topic")} == {"orders"}


@pytest.mark.parametrize(
    ("entries", "few"), [(9, pieces.FEW), (1_000, 0)], ids=["small ones", "one that Spark reads"]
)
def test_a_table_made_again_in_small_pieces_is_the_same(
    life: Lakeside, monkeypatch: pytest.MonkeyPatch, entries: int, few: int
) -> None:
    monkeypatch.setattr(pieces, "FEW", few)
    columns = [one for one in SUBSCRIPTIONS.names if not one.endswith("_at")]
    before = life.rows("subscriptions", *columns)
    for name in ("subscriptions", "deliveries"):
        drop_table(life.spark, life.lake, name)

    life.shape("subscriptions", "deliveries", piece_entries=entries)

    assert life.rows("subscriptions", *columns) == before
    assert found(life) == EXPECTED


def changed(entries: pa.Table, *, epoch: int, begin: int = 0) -> pa.Table:
    """The same entries in another epoch, from another offset on."""
    columns = {
        "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), entries.num_rows),
        "offset": pc.add(entries["offset"], begin),
    }
    for name, values in columns.items():
        entries = entries.set_column(entries.column_names.index(name), name, values)
    return entries


def test_a_message_of_an_earlier_epoch_is_settled_in_a_later_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    before, after = LogScene(tmp_path / "before"), LogScene(tmp_path / "after")
    before.append(
        [
            before.subscribed("billing"),
            cursor(before, "billing", 1, 0),
            before.published("orders", 1),  # 2
            before.published("orders", 2),  # 3
            before.published("orders", 3),  # 4: given up
            before.subscribed("late"),  # 5: given up
        ]
    )
    third = msgspec.structs.replace(after.published("orders", 3), seq=3)
    after.append([after.settled("orders", "billing", 1, Settlement(1, 2, Outcome.ACKED)), third])
    side, other = Lakeside(spark, tmp_path / "before"), Lakeside(spark, tmp_path / "after")
    side.append(changed(side.source(), epoch=1), 1, 5)
    side.catch_up(1, 5, "subscriptions", "deliveries")
    side.append(changed(other.source(), epoch=2, begin=4), 2, 5)
    side.catch_up(2, 5, "subscriptions", "deliveries")

    rows = side.rows("deliveries", "epoch", "offset", "recipient", "outcome", "reason")
    assert [row for row in rows if row[2] == "orders/billing"] == [
        (1, 2, "orders/billing", "acked", None),
        (1, 3, "orders/billing", "pending", None),
        (1, 4, "orders/billing", "lost", "given_up"),
        (2, 5, "orders/billing", "pending", None),
    ]
    assert {row[3] for row in rows if row[2] == "orders/late"} == {"lost"}


# Which subscription reads what from where on, without Spark.


def change(offset: int, kind: str, name: str | None = "billing", **more: Any) -> Change:
    return Change(
        offset=offset,
        kind=kind,
        stream=more.pop("stream", "orders"),
        stream_epoch=1,
        accepted_at=offset * 1000,
        subscription=name,
        **more,
    )


def made(offset: int, start: int = 0, **more: Any) -> Change:
    return change(offset, "subscription_created", floor=start, **more)


def moved(offset: int, generation: int, floor: int) -> Change:
    return change(offset, "cursor", generation=generation, floor=floor)


def follow(*changes: Change, epoch: int = 1, known: list[Stretch] | None = None) -> list[Stretch]:
    stretches = Stretches(0, epoch, known or [])
    for one in changes:
        stretches.apply(one)
    return stretches.changed


BEGUN = "generation", "life", "hub_generation", "floor", "from_offset", "to_offset", "ended"
DELETED = change(9, "subscription_deleted")
STRETCHES = {
    "from its start until it is deleted": (
        (made(3, start=7), DELETED),
        [(1, 1, 1, 7, 3, 9, "deleted")],
    ),
    "a definition written again changes nothing": (
        (made(3), moved(4, 1, 0), made(8), moved(9, 1, 5)),
        [(1, 1, 1, 0, 3, None, None)],
    ),
    "a seek begins a new generation": (
        (made(3), moved(4, 1, 0), moved(9, 2, 5), moved(10, 2, 8)),
        [(1, 1, 1, 0, 3, 9, "sought"), (2, 1, 2, 5, 9, None, None)],
    ),
    "what is made again counts on": (
        (made(3), moved(5, 2, 0), DELETED, made(12, start=4)),
        [
            (1, 1, 1, 0, 3, 5, "sought"),
            (2, 1, 2, 0, 5, 9, "deleted"),
            (3, 2, 1, 4, 12, None, None),
        ],
    ),
    "where the log was cut the first cursor says where it stands": (
        (made(3, start=0), moved(4, 1, 900), moved(5, 1, 901)),
        [(1, 1, 1, 900, 3, None, None)],
    ),
    "a cursor of what does not exist means nothing": ((moved(4, 2, 9),), []),
}


@pytest.mark.parametrize(("changes", "expected"), STRETCHES.values(), ids=STRETCHES)
def test_a_subscription_reads_in_stretches(
    changes: tuple[Change, ...], expected: list[tuple[Any, ...]]
) -> None:
    found = follow(*changes)

    assert [tuple(getattr(one, name) for name in BEGUN) for one in found] == expected


def test_what_the_table_knows_is_gone_on_from() -> None:
    known = follow(made(3), moved(5, 2, 0), DELETED)

    (again,) = follow(made(12, start=4), known=known)

    assert (again.generation, again.life, again.hub_generation) == (3, 2, 1)


def test_a_topic_ends_its_own_subscriptions_only() -> None:
    found = follow(made(3), made(4, stream="other"), change(9, "stream_deleted", name=None))

    assert [(one.topic, one.ended) for one in found] == [("orders", "deleted"), ("other", None)]


def test_a_new_epoch_undoes_what_was_given_up() -> None:
    known = follow(made(3), change(12, "subscription_deleted"), made(13, stream="other"))
    stretches = Stretches(0, 2, known)
    stretches.cut(10, 99)

    ends = {one.topic: (one.ended, one.to_epoch, one.to_offset) for one in stretches.changed}
    assert ends == {"orders": (None, None, None), "other": ("given_up", 2, 10)}


def test_ranges_that_are_close_or_too_many_are_joined() -> None:
    far = 10**9
    spans = [(1, 0, 9), (1, 20, 30), (1, far, far + 1), (2, 5, 6)]

    assert joined(spans) == [(1, 0, 30), (1, far, far + 1), (2, 5, 6)]
    assert joined(spans, most=2) == [(1, 0, far + 1), (2, 5, 6)]
    assert joined([]) == []
