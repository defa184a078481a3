"""What is too old leaves the tables: expired messages of rooms, and whatever retention ends.

A row of `entries` stays behind without its content, so that counting still proves that everything
was there. Other tables lose their rows. Statements are bounded by times that files state, and run
only if something is due, because even an empty one would cost a commit.
"""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import SparkSession

from signalhub.entry import Kind
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.tables import (
    DEAD_LETTERS,
    DELIVERIES,
    ENTRIES,
    INBOX,
    MESSAGES,
    QUARANTINE,
    TRAFFIC,
)

_SLACK_MS: Final = 86_400_000
"""So much earlier a quick look begins than the last one ended: entries may be landed late."""

# Who reads what since when must be known as long as anything does; these hold nothing else.
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
"""By what the rows of a table are as old as they are."""


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """From when to when something has come due, in milliseconds."""

    now_ms: int
    retention_ms: int
    since_ms: int = 0
    """Up to here a look was taken before; 0: everything is looked at."""

    @property
    def oldest_ms(self) -> int:
        """What is older is not kept."""
        return self.now_ms - self.retention_ms

    def expired(self, column: str) -> str:
        """The condition that a time of a row has come."""
        return _between(column, self.since_ms, self.now_ms)

    def outlived(self, column: str) -> str:
        """The condition that retention has ended for a row."""
        return _between(column, self.since_ms and self.since_ms - self.retention_ms, self.oldest_ms)


def _between(column: str, since_ms: int, to_ms: int) -> str:
    due = f"{column} <= timestamp_millis({to_ms})"
    if since_ms > _SLACK_MS:
        due += f" AND {column} > timestamp_millis({since_ms - _SLACK_MS})"
    return due


def expire(spark: SparkSession, lake: Lake, ages: Ages) -> dict[str, int]:
    """Remove what is due; how many rows of each table that concerned."""
    kinds = ", ".join(f"'{one}'" for one in _CONTENT)
    expired = f"kind = '{_ROOM_MESSAGE}' AND {ages.expired('expires_at')}"
    outlived = f"kind IN ({kinds}) AND {ages.outlived('accepted_at')}"
    found = {
        INBOX.name: _delete(spark, lake, INBOX.name, ages.expired("expires_at")),
        ENTRIES.name: _strip(spark, lake, expired, "expired", ages.now_ms)
        + _strip(spark, lake, outlived, "retention", ages.now_ms),
    }
    for name, age in _AGES.items():
        found[name] = _delete(spark, lake, name, ages.outlived(age))
    return {name: rows for name, rows in found.items() if rows}


def _delete(spark: SparkSession, lake: Lake, name: str, condition: str) -> int:
    if not _is_due(spark, lake, name, condition):
        return 0
    statement = f"DELETE FROM delta.`{lake.location(name)}` WHERE {condition}"  # noqa: S608
    return _changed(spark, statement)


def _strip(spark: SparkSession, lake: Lake, condition: str, reason: str, now_ms: int) -> int:
    """Take their content from entries."""
    condition += " AND removed_at IS NULL"
    if not _is_due(spark, lake, ENTRIES.name, condition):
        return 0
    target = f"delta.`{lake.location(ENTRIES.name)}`"
    values = f"removed_at = timestamp_millis({now_ms}), removed_reason = '{reason}'"
    statement = f"UPDATE {target} SET body = NULL, id = NULL, {values} WHERE {condition}"  # noqa: S608
    return _changed(spark, statement)


def _is_due(spark: SparkSession, lake: Lake, name: str, condition: str) -> bool:
    if not lake.exists(name):
        return False
    rows = spark.read.format("delta").load(lake.location(name))
    return not rows.where(condition).isEmpty()


def _changed(spark: SparkSession, statement: str) -> int:
    (row,) = spark.sql(statement).collect()
    return int(row["num_affected_rows"])
