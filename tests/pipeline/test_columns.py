"""Bytes of the log as Arrow columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from signalhub.log.errors import LogDamaged
from signalhub.log.reader import Reader
from signalhub.pipeline.source import source
from signalhub.pipeline.source.columns import SCHEMA, read_columns
from signalhub.pipeline.source.plan import Segments
from signalhub.wire.entry import BroadcastBody, Entry, Kind, encode_body
from tests.pipeline.scene import NOON_MS, LogScene


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
    broadcast = encode_body(BroadcastBody("b-1", "@(demo/alice)", b"{}"))
    scene.append(
        [
            scene.published("orders", {}, id="o-1"),
            scene.said("inbox.1.abcdefghijklmnopqrstuv", expires_ms=NOON_MS),
            Entry(Kind.BROADCAST, "", 0, 0, NOON_MS, broadcast),
        ]
    )

    order, said, cast = rows(scene)

    assert (order["id"], order["expires_at"]) == ("o-1", None)
    assert (said["id"], said["expires_at"].timestamp() * 1000) == ("m-1", NOON_MS)
    assert (cast["id"], cast["expires_at"]) == ("b-1", None)


def test_an_expiry_beyond_all_time_is_none(tmp_path: Path) -> None:
    scene = LogScene(tmp_path)
    scene.append([scene.said("inbox.1.abcdefghijklmnopqrstuv", expires_ms=10**19)])

    assert rows(scene)[0]["expires_at"] is None


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
    path = tmp_path / "log" / plan.slices[0].segment
    damaged = bytearray(path.read_bytes())
    damaged[plan.slices[0].end - 5] ^= 1
    path.write_bytes(damaged)

    with pytest.raises(LogDamaged):
        list(read_columns(scene.disk, 0, plan.slices[0]))


def test_spark_and_arrow_are_told_of_the_same_columns() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    assert [one.split()[0] for one in source.SCHEMA.split(", ")] == SCHEMA.names
    spelled = {field.name: field.dataType.simpleString() for field in from_arrow_schema(SCHEMA)}
    assert [one.split()[1].lower() for one in source.SCHEMA.split(", ")] == list(spelled.values())
