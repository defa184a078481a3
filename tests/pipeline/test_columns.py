"""Bytes of the log as Arrow columns, and bodies of entries as more of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from signalhub.log.errors import LogDamaged
from signalhub.log.reader import Reader
from signalhub.pipeline.source import source
from signalhub.pipeline.source.columns import SCHEMA, TIME, read_columns
from signalhub.pipeline.source.plan import Segments
from signalhub.pipeline.tables import bodies
from signalhub.wire.entry import (
    BroadcastBody,
    DeadLetterOrigin,
    Entry,
    Kind,
    MessageBody,
    Outcome,
    RemovedBody,
    RoomMessageBody,
    SettledBody,
    Settlement,
    encode_body,
)
from tests.pipeline.scene import NOON_MS, LogScene, flip


def rows(scene: LogScene) -> list[dict[str, Any]]:
    segments = Segments(scene.disk)
    head = segments.published()
    assert head is not None
    plan = segments.plan(segments.first, head)
    batches = [one for part in plan.slices for one in read_columns(scene.disk, 7, part)]
    assert all(one.schema == SCHEMA for one in batches)
    found: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return found


def test_columns_say_what_a_reader_of_single_entries_says(tmp_path: Path) -> None:
    scene = LogScene(tmp_path, segment_bytes=2**16)
    for number in range(40):
        scene.append(
            [
                scene.published(f"topic-{number % 3}", {"n": number, "text": "x" * number}),
                scene.said("inbox.1.abcdefghijklmnopqrstuv", "q83v" * number),
                Entry(Kind.CURSOR, "topic-1", 1, 0, NOON_MS + number, b"\x93\x01\x02\x03"),
            ]
        )
    expected = list(Reader.of_folder(scene.disk).scan(0))

    found = rows(scene)

    assert len(found) == len(expected) == 120
    for row, stored in zip(found, expected, strict=True):
        assert row["shard"] == 7
        assert row["offset"] == stored.offset
        assert row["kind"] == Kind(stored.kind).name.lower()
        assert (row["stream"], row["stream_epoch"]) == (stored.stream, stored.stream_epoch)
        assert row["seq"] == stored.seq
        assert row["accepted_at"].timestamp() * 1000 == stored.at_ms
        assert row["body"] == stored.body
        assert row["fault"] is None


def test_ids_and_expiries_are_taken_from_messages_of_every_kind(tmp_path: Path) -> None:
    scene = LogScene(tmp_path)
    inbox = "inbox.1.abcdefghijklmnopqrstuv"
    broadcast = encode_body(BroadcastBody("b-1", "@(demo/alice)", b"{}"))
    scene.append(
        [
            scene.published("orders", {}, id="o-1"),
            scene.said(inbox, expires_ms=NOON_MS),
            scene.said(inbox, expires_ms=10**19),
            Entry(Kind.BROADCAST, "", 0, 0, NOON_MS, broadcast),
        ]
    )

    found = rows(scene)

    assert [row["id"] for row in found] == ["o-1", "m-1", "m-2", "b-1"]
    _, soon, beyond_all_time, _ = (row["expires_at"] for row in found)
    assert soon.timestamp() * 1000 == NOON_MS
    assert beyond_all_time is found[0]["expires_at"] is found[3]["expires_at"] is None


def test_a_body_that_is_no_message_is_a_row_with_a_fault(tmp_path: Path) -> None:
    scene = LogScene(tmp_path)
    scene.append(
        [
            scene.published("orders", {}),
            Entry(Kind.PUBLISHED, "orders", 1, 2, NOON_MS, b"\xc1 this is no MessagePack"),
            Entry(200, "orders", 1, 0, NOON_MS, b"\x90"),
        ]
    )

    good, spoiled, unknown = rows(scene)

    assert good["fault"] is None
    assert good["segment"] is None
    assert "invalid body of kind published" in spoiled["fault"]
    assert spoiled["body"] == b"\xc1 this is no MessagePack"
    assert spoiled["segment"].endswith(".log")
    assert spoiled["byte_position"] > 0
    assert unknown["kind"] == "kind_200"
    assert "200" in unknown["fault"]


def test_a_slice_that_is_not_what_it_was_planned_as_is_damage(tmp_path: Path) -> None:
    scene = LogScene(tmp_path)
    scene.publish(100)
    segments = Segments(scene.disk)
    head = segments.published()
    assert head is not None
    plan = segments.plan(segments.first, head)
    flip(tmp_path / "log" / plan.slices[0].segment, plan.slices[0].end - 5)

    with pytest.raises(LogDamaged):
        list(read_columns(scene.disk, 0, plan.slices[0]))


def test_spark_and_arrow_are_told_of_the_same_columns() -> None:
    assert [one.split()[0] for one in source.SCHEMA.split(", ")] == SCHEMA.names
    spelled = {field.name: field.dataType.simpleString() for field in from_arrow_schema(SCHEMA)}
    assert [one.split()[1].lower() for one in source.SCHEMA.split(", ")] == list(spelled.values())


MESSAGE = MessageBody(
    id="m-1",
    copy_id=b"0123456789abcdef",
    sender="@(demo/alice)",
    type="order",
    data='{"name": "Zoë"}'.encode(),
    ttl=1500,
    key="k",
    headers={"a": "b"},
)


def read(reading: bodies.BodyReader, *entries: tuple[str, bytes | None]) -> list[dict[str, Any]]:
    """The rows of entries of these kinds and bodies."""
    count = len(entries)
    batch = pa.RecordBatch.from_pydict(
        {
            "shard": pa.array([0] * count, pa.int32()),
            "epoch": pa.array([1] * count, pa.int64()),
            "offset": pa.array(range(count), pa.int64()),
            "kind": [kind for kind, _ in entries],
            "stream": ["orders"] * count,
            "stream_epoch": pa.array([1] * count, pa.int64()),
            "seq": pa.array(range(1, count + 1), pa.int64()),
            "id": pa.array([None] * count, pa.string()),
            "accepted_at": pa.array([0] * count, TIME),
            "expires_at": pa.array([None] * count, TIME),
            "body": pa.array([body for _, body in entries], pa.binary()),
        }
    )
    found: list[dict[str, Any]] = bodies.read_batch(batch, reading).to_pylist()
    return found


def test_a_message_is_read_into_its_columns() -> None:
    (row,) = read(bodies.MESSAGES, ("published", encode_body(MESSAGE)))

    assert (row["type"], row["sender"], row["key"]) == ("order", "@(demo/alice)", "k")
    assert row["headers"] == [("a", "b")]
    assert row["payload_json"] == '{"name": "Zoë"}'
    assert (row["bytes"], row["ttl_ms"], row["replay_job"]) == (16, 1500, None)


def test_a_broadcast_has_only_a_sender_and_a_room_message_only_a_size() -> None:
    told = BroadcastBody("b-1", "@(demo/alice)", b"{}")
    said = RoomMessageBody("r-1", b"q83v", None, 2**42)

    rows = read(
        bodies.MESSAGES, ("broadcast", encode_body(told)), ("room_message", encode_body(said))
    )

    assert [row["sender"] for row in rows] == ["@(demo/alice)", None]
    assert [row["bytes"] for row in rows] == [None, 4]


def test_what_cannot_be_read_gives_no_row_and_disturbs_no_other() -> None:
    rows = read(
        bodies.MESSAGES,
        ("published", b"\xc1"),
        ("mail", encode_body(MESSAGE)),
        ("mail", b""),
        ("room_message", encode_body(MESSAGE)),
    )

    assert [row["offset"] for row in rows] == [1]


def test_a_removed_body_leaves_an_empty_row_only_where_counts_must_fit() -> None:
    (row,) = read(bodies.MESSAGES, ("published", None))

    assert (row["offset"], row["sender"], row["bytes"]) == (0, None, None)
    assert read(bodies.INBOX, ("room_message", None)) == []
    assert read(bodies.SETTLEMENTS, ("settled", None)) == []


def test_only_dead_letters_are_dead_letters() -> None:
    dead = DeadLetterOrigin("orders", "billing", "1-1", 7, 3, "busy", 1000, 0, ["w"])
    letter = msgspec.structs.replace(MESSAGE, dead=dead)

    (row,) = read(
        bodies.DEAD_LETTERS, ("published", encode_body(MESSAGE)), ("published", encode_body(letter))
    )

    assert (row["topic"], row["subscription"], row["original_seq"]) == ("orders", "billing", 7)
    assert (row["first_failure"].timestamp(), row["last_failure"]) == (1, None)


def test_a_settled_entry_gives_a_row_per_delivery() -> None:
    settled = SettledBody(
        "billing",
        2,
        [
            Settlement(1, 10, Outcome.ACKED, 2, 1, 1000, 2000, "w", "busy"),
            Settlement(2, 11, Outcome.EXPIRED, 0),
            Settlement(3, 12, 99),
        ],
    )

    rows = read(bodies.SETTLEMENTS, ("settled", encode_body(settled)))

    assert [row["message_offset"] for row in rows] == [10, 11, 12]
    assert [row["outcome"] for row in rows] == ["acked", "expired", "outcome_99"]
    assert [row["attempts"] for row in rows] == [2, 0, 1]
    assert rows[1]["first_sent_at"] is None
    assert {row["generation"] for row in rows} == {2}


def test_a_removal_gives_a_row_per_range() -> None:
    removed = RemovedBody([(3, 5), (9, 9)], "purged")

    rows = read(bodies.CHANGES, ("removed", encode_body(removed)))

    assert [(row["floor"], row["last"], row["reason"]) for row in rows] == [
        (2, 5, "purged"),
        (8, 9, "purged"),
    ]
