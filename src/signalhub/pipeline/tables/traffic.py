"""The table `traffic_1m`: what was accepted in each minute, and how soon it was settled."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from signalhub.pipeline.tables.piece import Piece, collected
from signalhub.pipeline.tables.tables import DELIVERIES, MESSAGES, TRAFFIC

_KEY: Final = ("minute", "shard", "kind", "topic")
_POWERS: Final = 42  # The last bucket ends after more than a lifetime.
_PLACE: Final = ("shard", "epoch", "offset")


def traffic(messages: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Rows for the minutes of some messages, of which these are all deliveries."""
    timed = messages.withColumn("minute", F.date_trunc("minute", "accepted_at"))
    took_ms = F.unix_millis("settled_at") - F.unix_millis("accepted_at")
    over = deliveries.where(F.col("settled_at").isNotNull()).select(
        # Clocks may be set back, and no time is below none.
        *_PLACE,
        F.greatest(took_ms, F.lit(0)).alias("ms"),
    )
    nothing = F.lit(None).cast("bigint")
    accepted = timed.select(*_KEY, F.lit(1).alias("message"), "bytes", nothing.alias("ms"))
    settled = timed.join(over, list(_PLACE)).select(
        *_KEY, F.lit(0).alias("message"), nothing.alias("bytes"), "ms"
    )
    return (
        accepted.unionByName(settled)
        .groupBy(*_KEY)
        .agg(
            F.sum("message").alias("accepted"),
            F.count("ms").alias("settled"),
            F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
            _buckets().alias("buckets"),
            F.percentile("ms", F.lit(0.5)).alias("p50_ms"),
            F.percentile("ms", F.lit(0.99)).alias("p99_ms"),
        )
        .withColumn("latency_histogram", F.filter("buckets", lambda one: one["count"] > 0))
        .select(*TRAFFIC.names)
    )


def _buckets() -> Column:
    """How many took up to 1, 2, 4, … ms and longer than the bucket before."""
    power = F.ceil(F.log2(F.greatest(F.col("ms"), F.lit(1))))
    # A message has no time, and `greatest` would give it one.
    le_ms = F.when(F.col("ms").isNotNull(), F.pow(F.lit(2), power).cast("bigint"))
    return F.array(
        *(
            F.struct(
                F.lit(2**exponent).cast("bigint").alias("le_ms"),
                F.count_if(le_ms == 2**exponent).alias("count"),
            )
            for exponent in range(_POWERS)
        )
    )


def take(piece: Piece) -> int:
    """Make the minutes again that the messages and settlements of a piece belong to."""
    minutes = _minutes(piece)
    if not minutes:
        return piece.record()
    times = piece.frame([(one,) for one in minutes], "touched TIMESTAMP")
    bounds = f">= timestamp_micros({min(minutes)})", f"<= timestamp_micros({max(minutes)})"

    def touched(name: str) -> DataFrame:
        end = max(minutes) + 60_000_000
        rows = piece.read(name).where(
            f"accepted_at {bounds[0]} AND accepted_at < timestamp_micros({end})"
        )
        is_touched = F.date_trunc("minute", "accepted_at") == F.col("touched")
        return rows.join(F.broadcast(times), is_touched).drop("touched")

    rows = traffic(touched(MESSAGES.name), touched(DELIVERIES.name))
    is_same = " AND ".join(f"t.{name} <=> s.{name}" for name in _KEY)
    merging = (
        piece.target()
        .alias("t")
        .merge(rows.alias("s"), f"{is_same} AND t.minute {bounds[0]} AND t.minute {bounds[1]}")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
    )
    return piece.merge(merging)


def _minutes(piece: Piece) -> list[int]:
    offset, settle = F.col("offset"), F.col("settle_offset")
    accepted = piece.read(MESSAGES.name).where(
        (F.col("epoch") == piece.epoch) & (offset > piece.after) & (offset <= piece.to)
    )
    # A settlement may be of another epoch than its message; to look at too many does no harm.
    settled = piece.read(DELIVERIES.name).where((settle > piece.after) & (settle <= piece.to))
    both = accepted.select("accepted_at").unionByName(settled.select("accepted_at"))
    minutes = both.select(F.date_trunc("minute", "accepted_at").alias("minute")).distinct()
    return [row["minute"] for row in collected(minutes)]
