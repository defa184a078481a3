"""The table `inbox`: messages of rooms, as long as they may be read."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from signalhub.pipeline import bodies
from signalhub.pipeline.piece import Piece
from signalhub.pipeline.tables import INBOX


def inbox(entries: DataFrame, now: Column | None = None) -> DataFrame:
    """Rows for the room messages among some entries that have not expired by now."""
    is_served = F.col("expires_at") > (F.current_timestamp() if now is None else now)
    # The stream is called inbox.<version of the key>.<keyed hash>.
    parts = F.split("stream", r"\.", 3)
    return (
        bodies.read_bodies(entries.where(is_served), bodies.INBOX)
        .withColumn("inbox", parts[2])
        .withColumn("key_version", parts[1].try_cast("int"))
        .where(F.col("inbox").isNotNull())
        .select(*INBOX.names)
    )


def take(piece: Piece) -> int:
    """Take in one piece."""
    # Whoever reads a page then finds it in one place of a file.
    return piece.append(inbox(piece.entries()).sortWithinPartitions("inbox", "seq"))
