"""The table `traffic_1m`: what was accepted in each minute, and how soon it was settled."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from signalhub.pipeline.lake import Merging
from signalhub.pipeline.source.columns import TIME, TYPES
from signalhub.pipeline.tables.piece import Piece, SparkPiece, listed, selected
from signalhub.pipeline.tables.tables import DELIVERIES, MESSAGES, TRAFFIC

_KEY: Final = ("minute", "shard", "kind", "topic")
_POSITION: Final = ("shard", "epoch", "offset")
_NEEDED: Final = {
    MESSAGES.name: (*_POSITION, "kind", "topic", "accepted_at", "bytes"),
    DELIVERIES.name: (*_POSITION, "accepted_at", "settled_at"),
}
_MINUTE: Final = 60_000_000
_BUCKETS: Final = pa.list_(pa.struct([("le_ms", pa.int64()), ("count", pa.int64())]))
_TYPES: Final = [TYPES.get(one.type, _BUCKETS) for one in TRAFFIC.columns]

Key = tuple[int, int, str, str | None]
"""Minute, shard, kind, topic."""


def traffic(messages: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the rows for the minutes of these messages; `deliveries` must be complete for them."""
    timed = messages.withColumn("minute", F.date_trunc("minute", "accepted_at"))
    took_ms = F.unix_millis("settled_at") - F.unix_millis("accepted_at")
    over = deliveries.where(F.col("settled_at").isNotNull()).select(
        # Clocks may be set back; no time is negative.
        *_POSITION,
        F.greatest(took_ms, F.lit(0)).alias("ms"),
    )
    nothing = F.lit(None).cast("bigint")
    accepted = timed.select(*_KEY, F.lit(1).alias("message"), "bytes", nothing.alias("ms"))
    settled = timed.join(over, list(_POSITION)).select(
        *_KEY, F.lit(0).alias("message"), nothing.alias("bytes"), "ms"
    )
    # Many deliveries take the same time, so count equal times first.
    times = (
        accepted.unionByName(settled)
        .groupBy(*_KEY, "ms")
        .agg(
            F.sum("message").alias("messages"),
            F.count("ms").alias("count"),
            F.sum("bytes").alias("bytes"),
        )
    )
    bucket = F.struct(_bucket_end().alias("le_ms"), "count")
    return (
        times.groupBy(*_KEY)
        .agg(
            F.sum("messages").alias("accepted"),
            F.sum("count").alias("settled"),
            F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
            F.collect_list(F.when(F.col("count") > 0, bucket)).alias("buckets"),
            F.percentile("ms", F.lit(0.5), F.col("count")).alias("p50_ms"),
            F.percentile("ms", F.lit(0.99), F.col("count")).alias("p99_ms"),
        )
        .withColumn("latency_histogram", _histogram(F.col("buckets")))
        .select(*TRAFFIC.names)
    )


def _bucket_end() -> Column:
    """Return the upper end of the bucket of a time: 1, 2, 4, … ms."""
    power = F.ceil(F.log2(F.greatest(F.col("ms"), F.lit(1))))
    return F.pow(F.lit(2), power).cast("bigint")


def _histogram(buckets: Column) -> Column:
    """Add up the counts of equal buckets, in order."""

    def total(end: Column) -> Column:
        same = F.filter(buckets, lambda one: one["le_ms"] == end)
        count = F.aggregate(same, F.lit(0).cast("bigint"), lambda sum, one: sum + one["count"])
        return F.struct(end.alias("le_ms"), count.alias("count"))

    ends = F.array_sort(F.array_distinct(F.transform(buckets, lambda one: one["le_ms"])))
    return F.transform(ends, total)


def traffic_here(messages: pa.Table, deliveries: pa.Table) -> pa.Table:
    """Return the same rows for a few messages."""
    accepted: Counter[Key] = Counter()
    sizes: Counter[Key] = Counter()
    times: dict[Key, Counter[int]] = defaultdict(Counter)
    keys: dict[tuple[object, ...], Key] = {}
    for row in listed(messages):
        minute = row["accepted_at"] // _MINUTE * _MINUTE
        key = minute, row["shard"], row["kind"], row["topic"]
        keys[tuple(row[name] for name in _POSITION)] = key
        accepted[key] += 1
        sizes[key] += row["bytes"] or 0
    for row in listed(deliveries):
        its_key = keys.get(tuple(row[name] for name in _POSITION))
        if its_key is not None and row["settled_at"] is not None:
            took_ms = row["settled_at"] // 1_000 - row["accepted_at"] // 1_000
            times[its_key][max(0, took_ms)] += 1
    rows = [(*key, count, *_timing(times[key], sizes[key])) for key, count in accepted.items()]
    columns = zip(*rows, strict=True)
    fields = zip(TRAFFIC.names, columns, _TYPES, strict=True)
    return pa.table({name: _column(values, type) for name, values, type in fields})


def _column(values: tuple[Any, ...], type: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(type) if type == TIME else pa.array(values, type)


def _timing(times: Counter[int], size: int) -> tuple[Any, ...]:
    """Return the columns of a row from `settled` on."""
    buckets: Counter[int] = Counter()
    for ms, count in times.items():
        # The same arithmetic as Spark's, which rounds.
        buckets[2 ** math.ceil(math.log(max(ms, 1)) / math.log(2))] += count
    histogram = [{"le_ms": end, "count": buckets[end]} for end in sorted(buckets)]
    ordered = sorted(times.elements())
    return len(ordered), size, histogram, _percentile(ordered, 0.5), _percentile(ordered, 0.99)


def _percentile(ordered: list[int], share: float) -> float | None:
    if not ordered:
        return None
    place = (len(ordered) - 1) * share
    below, above = math.floor(place), math.ceil(place)
    low, high = ordered[below], ordered[above]
    return float(low) if low == high else (above - place) * low + (place - below) * high


def take_here(piece: Piece) -> int | None:
    """Take in a small piece without Spark; `None` if Spark has to do it."""
    minutes = _minutes(piece)
    if not minutes:
        return piece.record_here()
    messages, deliveries = (_few(piece, name, minutes) for name in (MESSAGES.name, DELIVERIES.name))
    if messages is None or deliveries is None or not messages.num_rows:
        return None
    return piece.merge_here(traffic_here(messages, deliveries), _merging())


def _merging() -> Merging:
    every = {name: f"s.{name}" for name in TRAFFIC.names}
    # Without parentheses delta-rs reads AND first.
    is_same = " AND ".join(f"(t.{name} IS NOT DISTINCT FROM s.{name})" for name in _KEY)
    return Merging(on=is_same, updated=every, inserted=every)


def take(piece: SparkPiece) -> int:
    """Compute again the minutes that have messages or settlements in this piece."""
    minutes = _minutes(piece)
    if not minutes:
        return piece.record()
    messages, deliveries = (_few(piece, name, minutes) for name in (MESSAGES.name, DELIVERIES.name))
    are_few = messages is not None and deliveries is not None
    rows = traffic(
        _many(piece, MESSAGES.name, minutes) if messages is None else piece.shown(messages),
        _many(piece, DELIVERIES.name, minutes) if deliveries is None else piece.shown(deliveries),
    )
    # A merge reads its source twice.
    with piece.held(rows, are_few=are_few) as held:
        if held.here is not None:
            merged = piece.merge_here(held.here, _merging())
            if merged is not None:
                return merged
        if are_few and piece.is_free(f"shard = {piece.shard} AND {_between('minute', minutes)}"):
            return piece.append(held.rows)
        bounds = (
            f"t.minute >= timestamp_micros({min(minutes)})"
            f" AND t.minute <= timestamp_micros({max(minutes)})"
        )
        return piece.merge(held.rows, _merging(), bounds=bounds)


def _between(column: str, minutes: list[int]) -> str:
    """Return an SQL condition, not for Spark: a time is between the first and last minute."""
    first, end = (
        f"arrow_cast({at}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
        for at in (min(minutes), max(minutes) + _MINUTE)
    )
    return f"{column} >= {first} AND {column} < {end}"


def _few(piece: Piece, name: str, minutes: list[int]) -> pa.Table | None:
    """Return the rows of a table for messages of these minutes; `None` if there are many."""
    found = piece.few(name, _NEEDED[name], _between("accepted_at", minutes))
    if found is None:
        return None
    its_minutes = pc.floor_temporal(found["accepted_at"], unit="minute")
    is_touched = pc.is_in(its_minutes, pa.array(minutes, TIME))
    return found.filter(is_touched)


def _many(piece: SparkPiece, name: str, minutes: list[int]) -> DataFrame:
    """Return the same rows, read by Spark."""
    times = piece.frame([(one,) for one in minutes], "touched TIMESTAMP")
    rows = piece.read(name).where(
        f"accepted_at >= timestamp_micros({min(minutes)})"
        f" AND accepted_at < timestamp_micros({max(minutes) + _MINUTE})"
    )
    is_touched = F.date_trunc("minute", "accepted_at") == F.col("touched")
    return rows.join(F.broadcast(times), is_touched).drop("touched")


def _minutes(piece: Piece) -> list[int]:
    minute = "DISTINCT date_trunc('minute', accepted_at) AS minute"
    accepted = selected(piece.lake, MESSAGES.name, minute, piece.condition)
    # A settlement may be in another epoch than its message; selecting too many is harmless.
    is_settled = f"settle_offset > {piece.after} AND settle_offset <= {piece.to}"
    is_ours = f"shard = {piece.shard} AND {is_settled}"
    settled = selected(piece.lake, DELIVERIES.name, minute, is_ours)
    return sorted({row["minute"] for row in (*accepted, *settled)})
