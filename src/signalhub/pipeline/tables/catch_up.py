"""The derived tables follow `entries` by position.

Like `entries`, each of them records the last offset of every epoch it contains, in the same
transaction as the rows. Catching up reads the entries after that offset. No other progress is
stored, and a deleted table is rebuilt from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from signalhub.pipeline.lake import Lake
from signalhub.pipeline.tables import deliveries, messages, subscriptions, traffic
from signalhub.pipeline.tables.create import ensure_table, ensure_table_here
from signalhub.pipeline.tables.piece import Piece, SparkPiece, epoch_begins
from signalhub.pipeline.tables.tables import (
    DEAD_LETTERS,
    DELIVERIES,
    ENTRIES,
    INBOX,
    MESSAGES,
    SUBSCRIPTIONS,
    TRAFFIC,
)

PIECE_ENTRIES: Final = 1_000_000
"""The most entries per transaction, so that progress is kept."""

_HERE: Final[dict[str, Callable[[Piece], int | None]]] = {
    INBOX.name: messages.take_inbox_here,
    MESSAGES.name: messages.take_messages_here,
    SUBSCRIPTIONS.name: subscriptions.take_here,
    DELIVERIES.name: deliveries.take_here,
    DEAD_LETTERS.name: messages.take_dead_letters_here,
    TRAFFIC.name: traffic.take_here,
}
"""What takes in a small piece without Spark; `None` if Spark has to do it."""
_TAKERS: Final[dict[str, Callable[[SparkPiece], int]]] = {
    INBOX.name: messages.take_inbox,
    MESSAGES.name: messages.take_messages,
    SUBSCRIPTIONS.name: subscriptions.take,
    DELIVERIES.name: deliveries.take,
    DEAD_LETTERS.name: messages.take_dead_letters,
    TRAFFIC.name: traffic.take,
}
ORDER: Final = tuple(_TAKERS)
"""Every derived table, after those it is derived from; `inbox` needs no other."""
_MADE_FROM: Final = {
    DELIVERIES.name: (SUBSCRIPTIONS.name,),
    TRAFFIC.name: (MESSAGES.name, DELIVERIES.name),
}


class TableProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The result of catching up; offsets are inclusive, `None` means none."""

    table: str
    rows: int
    start: int | None
    to: int | None
    ms: int


def catch_up(
    spark: Callable[[], SparkSession],
    lake: Lake,
    table: str,
    shard: int,
    epoch: int,
    to: int,
    *,
    piece_entries: int = PIECE_ENTRIES,
    pieces_max: int | None = None,
) -> TableProgress:
    """Take in new entries up to an offset of an epoch; existing rows stay unchanged.

    `spark` is called if it is needed. A table does not go further than `entries` and the tables it
    is derived from, and in one call no further than `pieces_max` pieces.
    """
    began = time.monotonic()
    if not ensure_table_here(lake, table):
        ensure_table(spark(), lake, table)
    start = at = lake.committed(table, shard, epoch)
    for other in (ENTRIES.name, *_MADE_FROM.get(table, ())):
        reached = lake.committed(other, shard, epoch)
        to = min(to, -1 if reached is None else reached)
    rows = 0
    if to > (-1 if at is None else at):
        # The position of a merge is set in the session's configuration, so use a separate session.
        session = cache(lambda: spark().newSession())
        begins = epoch_begins(session, lake, shard, epoch)
        # An epoch may have a position but no entry yet.
        first = begins.setdefault(epoch, to + 1)
        last = first - 1 if at is None else at
        pieces = 0
        while last < to and (pieces_max is None or pieces < pieces_max):
            pieces += 1
            end = min(last + piece_entries, to)
            piece = Piece(lake, table, shard, epoch, last, end, begins)
            is_for_spark = lake.is_for_spark or not piece.is_small
            taken = None if is_for_spark else _HERE[table](piece)
            rows += _TAKERS[table](SparkPiece(session(), piece)) if taken is None else taken
            last = at = end
    ms = int((time.monotonic() - began) * 1000)
    return TableProgress(table=table, rows=rows, start=start, to=at, ms=ms)
