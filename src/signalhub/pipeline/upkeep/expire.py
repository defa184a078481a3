"""Expiry: removes expired messages of rooms, and everything whose retention has ended.

A row of `entries` remains without its content, so that counting still proves completeness. Other
tables lose their rows. Statements are limited by times from the files' statistics and run only if
something is due, because even an empty one would cost a commit.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from signalhub.pipeline.lake import Lake
from signalhub.pipeline.tables.tables import (
    DEAD_LETTERS,
    DELIVERIES,
    ENTRIES,
    INBOX,
    MESSAGES,
    QUARANTINE,
    TRAFFIC,
)
from signalhub.wire.entry import Kind

_SLACK_MS: Final = 86_400_000
"""A quick round starts this much before the end of the last one: entries may land late."""

_STATED_US: Final = 1_000
"""File statistics have times in whole milliseconds."""

# Definitions say who reads what since when. They are needed as long as any entry is, and have no
# content.
_DEFINITIONS: Final = frozenset(
    (
        Kind.CURSOR,
        Kind.STREAM_CREATED,
        Kind.STREAM_DELETED,
        Kind.SUBSCRIPTION_CREATED,
        Kind.SUBSCRIPTION_DELETED,
        Kind.REMOVED,
        Kind.LOST,
        Kind.INBOX_STANDS,
        Kind.ROOM_BOUND,
        Kind.INBOX_KEY,
        Kind.ERASED,
        Kind.REPLAYS_STAND,
        Kind.PLACED,
        Kind.OPERATED,
    )
)
_CONTENT: Final = tuple(sorted(one.name.lower() for one in Kind if one not in _DEFINITIONS))
_ROOM_MESSAGE: Final = Kind.ROOM_MESSAGE.name.lower()
_AGES: Final = {
    MESSAGES.name: "accepted_at",
    DELIVERIES.name: "accepted_at",
    DEAD_LETTERS.name: "coalesce(last_failure, first_failure)",
    QUARANTINE.name: "at",
    TRAFFIC.name: "minute",
}
"""The time that determines the age of a row, by table."""


class Due(msgspec.Struct, frozen=True):
    """The condition that a time of a row is in a range."""

    time: str
    """A column or an expression."""
    since_ms: int
    to_ms: int

    @property
    def condition(self) -> str:
        due = f"{self.time} <= timestamp_millis({self.to_ms})"
        if self.since_ms > 0:
            due += f" AND {self.time} > timestamp_millis({self.since_ms})"
        return due

    def may_be_in(self, files: pa.Table) -> bool:
        """Return whether a file may contain such a row, according to its statistics."""
        least, greatest = f"min.{self.time}", f"max.{self.time}"
        if least not in files.column_names:
            return bool(files.num_rows)
        since, to = self.since_ms * 1000, self.to_ms * 1000
        return any(
            first is not None and first <= to and last + _STATED_US > since
            for first, last in zip(_micros(files[least]), _micros(files[greatest]), strict=True)
        )


def _micros(times: pa.ChunkedArray) -> list[Any]:
    return list(times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_pylist())


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """Determines the ranges of times in which something is due, in milliseconds."""

    now_ms: int
    retention_ms: int
    since_ms: int = 0
    """Where the last round ended; 0 checks everything."""

    def expired(self, time: str) -> Due:
        """The row has expired."""
        return Due(time, self.since_ms - _SLACK_MS, self.now_ms)

    def outlived(self, time: str) -> Due:
        """Its retention has ended."""
        since_ms = self.since_ms - self.retention_ms - _SLACK_MS
        return Due(time, since_ms, self.now_ms - self.retention_ms)


def expire(spark: SparkSession, lake: Lake, ages: Ages) -> dict[str, int]:
    """Remove what is due; return the number of rows by table."""
    kinds = ", ".join(f"'{one}'" for one in _CONTENT)
    expired, outlived = ages.expired("expires_at"), ages.outlived("accepted_at")
    found = {
        INBOX.name: _delete(spark, lake, INBOX.name, expired),
        ENTRIES.name: _strip(spark, lake, expired, f"kind = '{_ROOM_MESSAGE}'", "expired", ages)
        + _strip(spark, lake, outlived, f"kind IN ({kinds})", "retention", ages),
    }
    for name, time in _AGES.items():
        found[name] = _delete(spark, lake, name, ages.outlived(time))
    return {name: rows for name, rows in found.items() if rows}


def _delete(spark: SparkSession, lake: Lake, name: str, due: Due) -> int:
    if not _is_there(lake, name, due):
        return 0
    statement = f"DELETE FROM delta.`{lake.location(name)}` WHERE {due.condition}"  # noqa: S608
    return _changed(spark, statement)


def _strip(spark: SparkSession, lake: Lake, due: Due, which: str, reason: str, ages: Ages) -> int:
    """Remove the content of entries."""
    which += " AND removed_at IS NULL"
    if not _is_there(lake, ENTRIES.name, due, which):
        return 0
    target = f"delta.`{lake.location(ENTRIES.name)}`"
    values = f"removed_at = timestamp_millis({ages.now_ms}), removed_reason = '{reason}'"
    where = f"{due.condition} AND {which}"
    statement = f"UPDATE {target} SET body = NULL, id = NULL, {values} WHERE {where}"  # noqa: S608
    return _changed(spark, statement)


def _is_there(lake: Lake, name: str, due: Due, which: str = "true") -> bool:
    """Usually the statistics of the files are enough, and nothing is read."""
    table = lake.open(name)
    if table is None or not due.may_be_in(pa.table(table.get_add_actions(flatten=True))):
        return False
    where = f"{due.condition} AND {which}".replace("timestamp_millis", "to_timestamp_millis")
    found = lake.select(name, f"SELECT 1 FROM {name} WHERE {where} LIMIT 1")  # noqa: S608
    return found is not None and found.num_rows > 0


def _changed(spark: SparkSession, statement: str) -> int:
    (row,) = spark.sql(statement).collect()
    return int(row["num_affected_rows"])
