"""The table `messages`: one row per accepted message."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from signalhub.pipeline import bodies
from signalhub.pipeline.piece import Piece
from signalhub.pipeline.tables import MESSAGES


def messages(entries: DataFrame) -> DataFrame:
    """Rows for the messages among some entries; what was removed leaves its place and times."""
    read = bodies.read_bodies(entries, bodies.MESSAGES)
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


def take(piece: Piece) -> int:
    """Take in one piece."""
    return piece.append(messages(piece.entries()))
