"""Messages of the lake to send again: selected by a predicate, in the order of the log.

A predicate is a condition over the columns of `messages`. Messages that cannot be sent again are
left out of the selection: those of rooms, calls, commands, broadcasts, and those whose content was
removed. Copies made by replays are left out unless requested.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from signalhub.client.answers import Original, OriginalPosition
from signalhub.core.replay import CALL_TYPE_PREFIXES
from signalhub.log.disk import SystemDisk
from signalhub.log.head import read_head
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.query import QueryRefused, QueryWrong, query, query_session, values
from signalhub.pipeline.replay.job import Bound
from signalhub.pipeline.source.plan import LOG_FOLDER
from signalhub.pipeline.tables.tables import MESSAGES

SHARD: Final = 0
EXAMPLES: Final = 5
PARTITION_BYTES: Final = 16 * 2**20
"""About how much of the selection is in memory at once."""

SENDABLE: Final = "sendable"
_ORDER: Final = ("shard", "epoch", "offset")
_COLUMNS: Final = (
    *_ORDER,
    *("id", "type", "sender", "key", "headers", "payload_json", "stream", "accepted_at", "bytes"),
)
_LINE: Final = re.compile(r"\(line (\d+),")


class LeftOut(msgspec.Struct, frozen=True):
    """Messages that were selected but are not sent, by reason."""

    rooms: int = 0
    broadcasts: int = 0
    calls: int = 0
    removed: int = 0
    replays: int = 0


class SelectionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a predicate selects."""

    count: int
    bytes: int
    first: OriginalPosition | None
    last: OriginalPosition | None
    streams: dict[str, int]
    """Messages by the topic or mailbox they were accepted for."""
    left_out: LeftOut


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One of the first messages, for display."""

    epoch: int
    offset: int
    accepted_at: str
    stream: str
    type: str
    key: str | None
    data: str


def landed(spark: SparkSession, lake: Lake, data: str | Path) -> Bound | None:
    """Return the committed position of `messages`, or its last row; `None` if it is empty."""
    newest = head_of(data)
    if newest is not None:
        offset = lake.committed(MESSAGES.name, SHARD, newest.epoch)
        if offset is not None:
            return Bound(newest.epoch, offset)
    # The log is elsewhere, or its epoch has not landed yet; then use the rows.
    rows = spark.read.format("delta").load(lake.location(MESSAGES.name))
    (found,) = rows.agg(F.max(F.struct("epoch", "offset")).alias("last")).collect()
    return None if found.last is None else Bound(found.last.epoch, found.last.offset)


def head_of(data: str | Path) -> Bound | None:
    """Return the last entry of the log, if the log is here."""
    folder = Path(data) / LOG_FOLDER
    head = read_head(SystemDisk(folder, read_only=True)) if folder.is_dir() else None
    return None if head is None else Bound(head.epoch, head.durable - 1)


def behind(last: Bound, head: Bound | None) -> int:
    """Return how many entries of the log are not in the lake yet, as far as is known."""
    if head is None or head <= last:
        return 0
    return head.offset - last.offset if head.epoch == last.epoch else head.offset + 1


def select(
    spark: SparkSession, lake: Lake, where: str, until: Bound, *, include_replays: bool = False
) -> DataFrame:
    """Return what a predicate selects up to a position, each row with its `verdict`.

    Raises `QueryError` if it is not a predicate.
    """
    session = query_session(spark, lake)
    rows = _chosen(session, where)
    is_within = (F.col("epoch") < until.epoch) | (
        (F.col("epoch") == until.epoch) & (F.col("offset") <= until.offset)
    )
    return rows.where(is_within).withColumn("verdict", _verdict(include_replays))


def _chosen(session: SparkSession, where: str) -> DataFrame:
    # A name in single brackets would be parsed as a column of an alias `where`.
    text = f"SELECT * FROM {MESSAGES.name} WHERE ((\n{where}\n))"  # noqa: S608
    try:
        query(session, text)
    except (QueryRefused, QueryWrong) as error:
        # The condition starts in the second line of the query.
        moved = _LINE.sub(lambda line: f"(line {int(line[1]) - 1},", str(error))
        raise type(error)(moved) from None
    try:
        return session.table(MESSAGES.name).where(where)
    except PySparkException:
        # It closes the brackets around it and continues.
        raise QueryRefused("this is more than one condition; write one over `messages`") from None


def _verdict(include_replays: bool) -> Column:
    is_call = reduce(or_, (F.col("type").startswith(prefix) for prefix in CALL_TYPE_PREFIXES))
    is_gone = F.col("type").isNull() | F.col("payload_json").isNull()
    is_copy = F.lit(False) if include_replays else F.col("replay_job").isNotNull()
    return (
        F.when(F.col("kind") == "room_message", "rooms")
        .when(F.col("kind") == "broadcast", "broadcasts")
        .when(is_gone, "removed")
        .when(is_call, "calls")
        .when(is_copy, "replays")
        .otherwise(SENDABLE)
    )


def summarise(selected: DataFrame) -> SelectionSummary:
    """Return how many messages of which kind are selected; raises `QueryError`."""
    position = F.struct(*_ORDER)
    grouped = selected.groupBy(
        "verdict", F.when(F.col("verdict") == SENDABLE, F.col("stream")).alias("stream")
    ).agg(
        F.count("*").alias("count"),
        F.sum("bytes").alias("bytes"),
        F.min(position).alias("first"),
        F.max(position).alias("last"),
    )
    found: list[Row] = [row for row in values(grouped) if isinstance(row, Row)]
    good = [row for row in found if row.verdict == SENDABLE]
    others = {row.verdict: row["count"] for row in found if row.verdict != SENDABLE}
    return SelectionSummary(
        count=sum(row["count"] for row in good),
        bytes=sum(row.bytes or 0 for row in good),
        first=_position(min((row["first"] for row in good), default=None)),
        last=_position(max((row["last"] for row in good), default=None)),
        streams={row.stream: row["count"] for row in sorted(good, key=lambda row: row.stream)},
        left_out=LeftOut(**others),
    )


def _position(row: Row | None) -> OriginalPosition | None:
    return None if row is None else OriginalPosition(row.shard, row.epoch, row.offset)


def examples(selected: DataFrame) -> list[Example]:
    """Return the first few messages that would be sent."""
    rows = selected.where(F.col("verdict") == SENDABLE).orderBy(*_ORDER).limit(EXAMPLES)
    moment = F.date_format("accepted_at", "yyyy-MM-dd HH:mm:ss").alias("accepted_at")
    chosen = rows.select("epoch", "offset", moment, "stream", "type", "key", "payload_json")
    return [
        Example(
            epoch=row.epoch,
            offset=row.offset,
            accepted_at=row.accepted_at or "",
            stream=row.stream,
            type=row.type,
            key=row.key,
            data=row.payload_json,
        )
        for row in values(chosen)
        if isinstance(row, Row)
    ]


def rest(selected: DataFrame, after: OriginalPosition | None) -> DataFrame:
    """Return the part of the selection that can be sent and comes after a position."""
    good = selected.where(F.col("verdict") == SENDABLE).select(*_COLUMNS)
    if after is None:
        return good
    position = F.struct(*_ORDER)
    reached = F.struct(
        F.lit(after.shard).cast("int").alias("shard"),
        F.lit(after.epoch).cast("bigint").alias("epoch"),
        F.lit(after.offset).cast("bigint").alias("offset"),
    )
    return good.where(position > reached)


def in_order(rows: DataFrame, size: int) -> Iterator[Original]:
    """Yield the messages in the order of the log; `size` is their expected total in bytes."""
    pieces = max(1, math.ceil(size / PARTITION_BYTES))
    # Ranges of positions are fetched one after the other, so the selection does not have to fit in
    # memory.
    ranged = rows.repartitionByRange(pieces, *_ORDER).sortWithinPartitions(*_ORDER)
    for row in values(ranged):
        assert isinstance(row, Row)
        yield Original(
            shard=row.shard,
            epoch=row.epoch,
            offset=row.offset,
            id=row.id or "",
            type=row.type,
            sender=row.sender,
            key=row.key,
            headers=row.headers,
            data=msgspec.Raw(row.payload_json.encode()),
        )
