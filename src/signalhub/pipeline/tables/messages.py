"""The table `messages`: one row per accepted message."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from signalhub.pipeline.lake import Merging
from signalhub.pipeline.source.columns import TIME
from signalhub.pipeline.tables import bodies
from signalhub.pipeline.tables.piece import Piece, SparkPiece, within
from signalhub.pipeline.tables.tables import DEAD_LETTERS, INBOX, MESSAGES
from signalhub.pipeline.tables.variant import Unusual, variants

# inbox.<version of the key>.<keyed hash>
_STREAM: Final = re.compile(r"[^.]*\.([0-9]{1,9})\.(.*)", re.DOTALL)


def messages(read: DataFrame) -> DataFrame:
    """Return the rows for decoded messages; removed ones keep only their position and times."""
    is_room = F.col("kind") == "room_message"
    room_ttl_ms = F.unix_millis("expires_at") - F.unix_millis("accepted_at")
    return (
        read.withColumn("topic", F.when(F.col("kind") == "published", F.col("stream")))
        .withColumn("payload", F.try_parse_json("payload_json"))
        .withColumn("ttl_ms", F.when(is_room, room_ttl_ms).otherwise(F.col("ttl_ms")))
        .withColumn(
            "id", F.when(F.col("bytes").isNotNull() | F.col("sender").isNotNull(), F.col("id"))
        )
        .select(*MESSAGES.names)
    )


def messages_here(read: pa.Table) -> pa.Table:
    """Return the same rows of a few messages; raises `Unusual`."""
    kind, none = read["kind"], pa.scalar(None, pa.string())
    lasts = [read[name].cast(pa.int64()) for name in ("expires_at", "accepted_at")]
    room_ttl_ms = pc.divide(pc.subtract(*lasts), 1_000)
    has_id = pc.or_(pc.is_valid(read["bytes"]), pc.is_valid(read["sender"]))
    columns = {
        **dict(zip(read.schema.names, read.columns, strict=True)),
        "topic": pc.if_else(pc.equal(kind, "published"), read["stream"], none),
        "payload": variants(read["payload_json"].to_pylist()),
        "ttl_ms": pc.if_else(pc.equal(kind, "room_message"), room_ttl_ms, read["ttl_ms"]),
        "id": pc.if_else(has_id, read["id"], none),
    }
    return pa.table({name: columns[name] for name in MESSAGES.names})


def take_messages_here(piece: Piece) -> int | None:
    """Take in a small piece without Spark; `None` if Spark has to do it."""
    if piece.kinds.isdisjoint(bodies.MESSAGES.kinds):
        return piece.record_here()
    try:
        return piece.append_here(
            messages_here(piece.decoded(bodies.MESSAGES, bodies.MESSAGES.kinds))
        )
    except Unusual:
        return None


def take_messages(piece: SparkPiece) -> int:
    """Take in one piece."""
    if piece.kinds.isdisjoint(bodies.MESSAGES.kinds):
        return piece.record()
    return piece.append(messages(piece.bodies(bodies.MESSAGES)))


def inbox(read: DataFrame) -> DataFrame:
    """Return the rows for decoded room messages that have not expired."""
    # The stream is named inbox.<version of the key>.<keyed hash>.
    parts = F.split("stream", r"\.", 3)
    return (
        read.where(F.col("expires_at") > F.current_timestamp())
        .withColumn("inbox", parts[2])
        .withColumn("key_version", parts[1].try_cast("int"))
        .where(F.col("inbox").isNotNull())
        .select(*INBOX.names)
    )


def inbox_here(read: pa.Table) -> pa.Table:
    """Return the same rows of a few messages; raises `Unusual`."""
    now = pa.scalar(datetime.now(UTC), TIME)
    read = read.filter(pc.greater(read["expires_at"], now))
    parts = [_STREAM.fullmatch(stream) for stream in read["stream"].to_pylist()]
    if None in parts:
        raise Unusual("another name of an inbox")
    columns = {
        **dict(zip(read.schema.names, read.columns, strict=True)),
        "inbox": pa.array([part and part[2] for part in parts], pa.string()),
        "key_version": pa.array([part and int(part[1]) for part in parts], pa.int32()),
    }
    rows = pa.table({name: columns[name] for name in INBOX.names})
    return rows.sort_by([("inbox", "ascending"), ("seq", "ascending")])


def take_inbox_here(piece: Piece) -> int | None:
    """Take in a small piece without Spark; `None` if Spark has to do it."""
    if piece.kinds.isdisjoint(bodies.INBOX.kinds):
        return piece.record_here()
    try:
        return piece.append_here(inbox_here(piece.decoded(bodies.INBOX, bodies.INBOX.kinds)))
    except Unusual:
        return None


def take_inbox(piece: SparkPiece) -> int:
    """Take in one piece."""
    if piece.kinds.isdisjoint(bodies.INBOX.kinds):
        return piece.record()
    # Sorted, so that a page of an inbox is in one place of a file.
    rows = inbox(piece.bodies(bodies.INBOX))
    return piece.append(rows.sortWithinPartitions("inbox", "seq"))


_REDRIVEN: Final = "redriven"
_POSITION: Final = ("shard", "epoch", "offset")


def dead_letters(read: DataFrame) -> DataFrame:
    """Return the rows for decoded dead letters."""
    return (
        # Dead letters of a mailbox name no subscription.
        read.withColumn("source", F.when(F.col("subscription") == "", "mailbox").otherwise("topic"))
        .withColumn("payload", F.try_parse_json("payload_json"))
        .withColumn("redriven_at", F.lit(None).cast("timestamp"))
        .select(*DEAD_LETTERS.names)
    )


def dead_letters_here(read: pa.Table) -> pa.Table:
    """Return the same rows of a few dead letters; raises `Unusual`."""
    is_mail = pc.equal(read["subscription"], "")
    columns = {
        **dict(zip(read.schema.names, read.columns, strict=True)),
        "source": pc.if_else(is_mail, "mailbox", "topic"),
        "payload": variants(read["payload_json"].to_pylist()),
        "redriven_at": pa.nulls(read.num_rows, TIME),
    }
    return pa.table({name: columns[name] for name in DEAD_LETTERS.names})


def take_dead_letters_here(piece: Piece) -> int | None:
    """Take in a small piece without Spark; `None` if Spark has to, as for what is redriven."""
    if "removed" in piece.kinds:
        return None
    if piece.kinds.isdisjoint(bodies.DEAD_LETTERS.kinds):
        return piece.record_here()
    read = piece.decoded(bodies.DEAD_LETTERS, bodies.DEAD_LETTERS.kinds)
    try:
        return piece.append_here(dead_letters_here(read)) if read.num_rows else piece.record_here()
    except Unusual:
        return None


def put_back(piece: SparkPiece) -> DataFrame:
    """Return what was redriven, as ranges of streams of dead letters."""
    return piece.bodies(bodies.CHANGES, "removed").where(F.col("reason") == _REDRIVEN)


def redriven(back: DataFrame, letters: DataFrame) -> DataFrame:
    """Return the positions of dead letters that were redriven, and when.

    `letters` are the entries that contain these letters.
    """
    back = back.alias("back")
    published = letters.where(F.col("kind") == "published").alias("letter")
    is_in = (
        (F.col("letter.stream") == F.col("back.stream"))
        & (F.col("letter.stream_epoch") == F.col("back.stream_epoch"))
        & (F.col("letter.seq") > F.col("back.floor"))
        & (F.col("letter.seq") <= F.col("back.last"))
    )
    return (
        published.join(F.broadcast(back), is_in)
        .groupBy(*(F.col(f"letter.{name}") for name in _POSITION))
        .agg(F.min("back.accepted_at").alias("redriven_at"))
    )


def take_dead_letters(piece: SparkPiece) -> int:
    """Take in one piece; letters first, because redriven ones may be among them."""
    has_letters = not piece.kinds.isdisjoint(bodies.DEAD_LETTERS.kinds)
    letters_read = piece.bodies(bodies.DEAD_LETTERS)
    if "removed" not in piece.kinds or (what := put_back(piece)).isEmpty():
        if not has_letters or (piece.is_small and letters_read.isEmpty()):
            return piece.record()
        return piece.append(dead_letters(letters_read))
    rows = _add(piece, dead_letters(letters_read))
    # Letters are a small part of the entries, and the table has their positions.
    letters = piece.read(DEAD_LETTERS.name).where(F.col("redriven_at").isNull())
    back = redriven(what, piece.standing().where(within(letters))).persist()
    try:
        bounds = within(back, "t.")
        merging = Merging(
            on=_is_same(),
            updated={"redriven_at": "s.redriven_at"},
            update_if="t.redriven_at IS NULL",
        )
        return rows + piece.merge(back, merging, bounds=bounds)
    finally:
        back.unpersist()


def _add(piece: SparkPiece, rows: DataFrame) -> int:
    """Add letters without recording the position yet; skip those that already exist."""
    bounds = f"t.epoch = {piece.epoch} AND t.offset BETWEEN {piece.after + 1} AND {piece.to}"
    merging = Merging(on=_is_same(), inserted={name: f"s.{name}" for name in DEAD_LETTERS.names})
    return piece.merge(rows, merging, bounds=bounds, records=False)


def _is_same() -> str:
    return " AND ".join(f"t.{name} = s.{name}" for name in _POSITION)
