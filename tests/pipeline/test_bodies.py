"""Bodies of entries become columns, and what cannot be read becomes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from signalhub.pipeline.source.columns import TIME
from signalhub.pipeline.tables import bodies
from signalhub.wire.entry import (
    BroadcastBody,
    DeadLetterOrigin,
    MessageBody,
    Outcome,
    RemovedBody,
    RoomMessageBody,
    SettledBody,
    Settlement,
    encode_body,
)

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
