"""Checks that every entry is in the lake, once, in the order of its stream."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from signalhub.pipeline.audit.hours import Hours
from signalhub.pipeline.tables.piece import frame

NUMBERED: Final = ("mail", "published", "room_message")
"""Kinds whose entries have a seq in their stream, unless it is 0."""


def count_rows(entries: DataFrame, hours: Hours) -> None:
    """Count the entries of each hour, and how many are missing or duplicated."""
    rows = (
        hours.place(entries)
        .groupBy("number")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_distinct("offset").alias("distinct"),
            F.count_if(F.col("removed_at").isNotNull()).alias("removed"),
        )
        .collect()
    )
    found = {row.number: row for row in rows}
    for hour in hours.all:
        row = found.get(hour.number)
        hour.distinct_rows = row.distinct if row else 0
        hour.duplicates = row.rows - row.distinct if row else 0
        hour.removed = row.removed if row else 0
        hour.gaps = hour.entries - hour.distinct_rows


def name_gaps(spark: SparkSession, entries: DataFrame, hours: Hours) -> None:
    """Find missing entries; only where the count differs."""
    bad = [one for one in hours.all if one.gaps]
    if not bad:
        return
    # A row after the last one of each hour, so that a gap at its end is found like any other.
    schema = "number INT, offset BIGINT, low BIGINT"
    ends = frame(spark, [(one.number, one.to_offset + 1, one.from_offset) for one in bad], schema)
    begins = F.broadcast(ends.select("number", "low"))
    there = hours.place(entries).select("number", "offset").join(begins, "number")
    window = Window.partitionBy("number").orderBy("offset")
    first = F.coalesce(F.lag("offset").over(window) + 1, F.col("low"))
    last = F.col("offset") - 1
    gaps = (
        there.unionByName(ends)
        .select("number", "offset", first.alias("first"), last.alias("last"))
        .where(F.col("first") <= F.col("last"))
    )
    one = F.format_string("entry %d is missing", "first")
    many = F.format_string("entries %d to %d are missing", "first", "last")
    text = F.when(F.col("first") == F.col("last"), one).otherwise(many)
    hours.name(gaps.select("number", F.col("first").alias("offset"), text.alias("text")))


def name_duplicates(entries: DataFrame, hours: Hours) -> None:
    """Find entries that exist more than once."""
    bad = [one.number for one in hours.all if one.duplicates]
    if not bad:
        return
    copies = (
        hours.place(entries)
        .where(F.col("number").isin(*bad))
        .groupBy("number", "offset")
        .agg(F.count(F.lit(1)).alias("copies"))
        .where(F.col("copies") > 1)
    )
    text = F.format_string("entry %d exists %d times", "offset", "copies")
    hours.name(copies.select("number", "offset", text.alias("text")))


def name_reorders(
    entries: DataFrame, hours: Hours, lineage: Column, first_epoch: int, *, is_complete: bool
) -> None:
    """Find entries whose seq does not follow that of the previous entry of their stream.

    Only if the lake is complete from the beginning, the first seq of a stream must be 1. Inboxes
    skip positions in an epoch that follows a loss.
    """
    window = Window.partitionBy(lineage, "stream", "stream_epoch").orderBy("epoch", "offset")
    rows = (
        entries.where(F.col("kind").isin(*NUMBERED) & (F.col("seq") > 0))
        .select("kind", "epoch", "offset", "accepted_at", "stream", "stream_epoch", "seq")
        .withColumn("previous", F.lag("seq").over(window))
        .withColumn("previous_offset", F.lag("offset").over(window))
        .withColumn("previous_epoch", F.lag("epoch").over(window))
    )
    is_first = F.col("previous").isNull()
    is_repeated = F.col("offset").eqNullSafe(F.col("previous_offset"))
    is_of_room = F.col("kind") == "room_message"
    is_late = F.lit(False)
    if is_complete:
        is_late = is_first & (F.col("seq") != 1) & ~(is_of_room & (F.col("epoch") > first_epoch))
    is_skip = is_of_room & (F.col("epoch") > F.col("previous_epoch"))
    is_next = F.col("seq") == F.col("previous") + 1
    is_beyond = is_skip & (F.col("seq") > F.col("previous"))
    is_astray = ~is_first & ~is_repeated & ~is_next & ~is_beyond
    # Streams are not named: reports are stored, and mailboxes may be named after people.
    text = F.when(
        is_first,
        F.format_string("entry %d is the first of its stream, with seq %d", "offset", "seq"),
    ).otherwise(
        F.format_string("entry %d has seq %d in its stream, after %d", "offset", "seq", "previous")
    )
    astray = hours.place(rows.where(is_late | is_astray))
    hours.name(astray.select("number", "offset", text.alias("text")), "reorders")


def name_missing_messages(entries: DataFrame, messages: DataFrame, hours: Hours) -> None:
    """Find messages in `entries` that have no row in `messages`."""
    keys = entries.where(F.col("kind").isin(*NUMBERED, "broadcast")).select("epoch", "offset")
    key = ["epoch", "offset"]
    missing = keys.join(messages.select(*key), key, "left_anti").distinct()
    text = F.format_string("entry %d has no row in messages", "offset")
    hours.name(hours.place_few(missing).select("number", "offset", text.alias("text")))
