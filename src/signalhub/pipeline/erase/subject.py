"""The subject of an erasure, and the entries of the lake that belong to it.

The selection follows the same rule as the hub's in its log. The search may name the subject;
nothing that is written to a table does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from signalhub.core.erasure import Wanted
from signalhub.pipeline.erase.certificate import Subject as SubjectKind
from signalhub.pipeline.lake import Lake, literal
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.tables.piece import columns_of
from signalhub.pipeline.tables.tables import DEAD_LETTERS, ENTRIES, MESSAGES
from signalhub.ranges import Ranges
from signalhub.wire.entry import Kind, StoredEntry

_POSITION: Final = ("shard", "epoch", "offset")
_READ: Final = (*_POSITION, "kind", "stream", "stream_epoch", "seq", "body")
FOUND: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("is_named", pa.bool_()),
    ]
)
_ALSO: Final = ((MESSAGES.name, "sender"), (DEAD_LETTERS.name, "topic"))
_FEW_BYTES: Final = 8 * 2**20
"""Tables up to this size together are searched in this process: Spark takes seconds."""
_OF_TOPICS: Final = ("published", "subscription_created", "subscription_deleted")


class Subject(msgspec.Struct, frozen=True):
    """An actor by its address, or an inbox by its id and the name of its stream."""

    kind: SubjectKind
    name: str
    stream: str
    """The name in entries; for an inbox a hash, empty if the hub never had one."""


def find(spark: SparkSession, lake: Lake, subject: Subject, through: LogPosition) -> pa.Table:
    """Return the entries of the lake up to a position that are to be erased, in order, each once.

    Entries after it were written after the erasure and are not affected.
    """
    if lake.bytes(ENTRIES.name, MESSAGES.name, DEAD_LETTERS.name) <= _FEW_BYTES:
        return _find_few(lake, subject, through)
    entries = _until(_read(spark, lake, ENTRIES.name), through)
    found = _chosen(entries, subject, _wanted(entries, subject))
    if subject.kind == "actor":
        # Entries whose body was removed long ago may still be recognised here.
        for name, column in _ALSO:
            if lake.exists(name):
                rows = _until(_read(spark, lake, name), through)
                rows = rows.where(F.col(column) == subject.name)
                found = found.unionByName(rows.select(*_POSITION, F.lit(False).alias("is_named")))
    once = found.groupBy(*_POSITION).agg(F.max("is_named").alias("is_named"))
    table: pa.Table = once.orderBy(*_POSITION).toArrow()
    return table.cast(FOUND)


def _find_few(lake: Lake, subject: Subject, through: LogPosition) -> pa.Table:
    """Return the same, read without Spark."""
    epoch, offset = through.epoch, through.offset
    until = f'(epoch < {epoch} OR epoch = {epoch} AND "offset" < {offset})'
    entries = columns_of(lake, ENTRIES.name, _READ, until)
    stream, kind = entries["stream"], entries["kind"]
    may_be = pc.equal(stream, subject.stream)
    if subject.kind == "actor":
        of_topics = pc.and_(may_be, pc.is_in(kind, pa.array(_OF_TOPICS)))
        wanted = Wanted(subject.name, None, None, pc.any(of_topics).as_py() or False, Ranges())
        may_be = pc.or_(may_be, _contains(entries["body"], subject.name))
    else:
        is_bound = pc.equal(kind, "room_bound")
        bound = entries.filter(pc.and_(is_bound, _contains(entries["body"], subject.stream)))
        last = bound.sort_by([("epoch", "descending"), ("offset", "descending")])["stream"][:1]
        room = next(iter(last.to_pylist()), None)
        wanted = Wanted(None, subject.stream, room, False, Ranges())
        may_be = pc.or_(may_be, pc.equal(stream, room or subject.stream))
    rows = [
        row
        for batch in entries.filter(may_be).to_batches()
        for row in chosen(batch, wanted).to_pylist()
    ]
    for name, column in _ALSO if subject.kind == "actor" else ():
        if lake.exists(name):
            where = f"{until} AND {column} = {literal(subject.name)}"
            others = columns_of(lake, name, _POSITION, where).to_pylist()
            rows += [row | {"is_named": False} for row in others]
    # Of several rows at one position, the one that is named comes last and is kept.
    rows.sort(key=lambda row: tuple(row.values()))
    once = {tuple(row[name] for name in _POSITION): row for row in rows}
    return pa.Table.from_pylist(list(once.values()), schema=FOUND)


def _contains(bodies: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    return pc.fill_null(pc.match_substring(bodies, text), False)


def ranges(found: pa.Table) -> list[tuple[int, int, int]]:
    """Return positions as ranges (epoch, first, last)."""
    result: list[tuple[int, int, int]] = []
    columns = found["epoch"].to_pylist(), found["offset"].to_pylist()
    for epoch, offset in zip(*columns, strict=True):
        if result and result[-1][0] == epoch and result[-1][2] == offset - 1:
            result[-1] = (epoch, result[-1][1], offset)
        else:
            result.append((epoch, offset, offset))
    return result


def _read(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    return spark.read.format("delta").load(lake.location(name))


def _until(rows: DataFrame, through: LogPosition) -> DataFrame:
    epoch, offset = F.col("epoch"), F.col("offset")
    return rows.where(
        (epoch < through.epoch) | ((epoch == through.epoch) & (offset < through.offset))
    )


def _wanted(entries: DataFrame, subject: Subject) -> Wanted:
    stream = F.col("stream") == subject.stream
    if subject.kind == "actor":
        topics = entries.where(stream & F.col("kind").isin(*_OF_TOPICS))
        return Wanted(subject.name, None, None, not topics.isEmpty(), Ranges())
    return Wanted(None, subject.stream, _room_of(entries, subject.stream), False, Ranges())


def _room_of(entries: DataFrame, inbox: str) -> str | None:
    """Return the room that was last bound to an inbox."""
    bound = entries.where(
        (F.col("kind") == "room_bound") & F.contains("body", F.lit(inbox.encode()))
    )
    last = bound.orderBy(F.desc("epoch"), F.desc("offset")).select("stream").head()
    return None if last is None else str(last["stream"])


def _chosen(entries: DataFrame, subject: Subject, wanted: Wanted) -> DataFrame:
    """Few bodies contain the name, and only those are decoded."""
    may_be = F.col("stream").isin(*{subject.stream, wanted.room or subject.stream})
    if subject.kind == "actor":
        may_be |= F.contains("body", F.lit(subject.name.encode()))

    def choose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (chosen(batch, wanted) for batch in batches)

    rows = entries.where(may_be).select(*_READ)
    return rows.mapInArrow(choose, from_arrow_schema(FOUND))


def chosen(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """Return the positions of the wanted entries among some entries."""
    found = []
    for row in batch.to_pylist():
        stored = StoredEntry(
            row["offset"],
            Kind[row["kind"].upper()] if row["kind"].upper() in Kind.__members__ else 0,
            row["stream"],
            row["stream_epoch"],
            row["seq"],
            0,
            row["body"] or b"",
            row["body"] is None,
        )
        try:
            match = wanted.choose(stored)
        except (msgspec.MsgspecError, ValueError):
            # Its owner cannot be determined, so it is erased if it contains the name.
            match = None
            is_named = False
        else:
            if match is None:
                continue
            is_named = match.is_named
        found.append({name: row[name] for name in _POSITION} | {"is_named": is_named})
    return pa.RecordBatch.from_pylist(found, schema=FOUND)
