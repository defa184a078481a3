"""What the hub asks the tables of the lake, answered without Spark.

Everything here waits for the lake's storage and belongs to one thread. Results are taken over by
pyarrow, which lets the other threads run while it waits; deltalake's own readers would stop the
hub for as long as a query takes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
from deltalake import QueryBuilder

from signalhub.core.rooms.requests import Archived
from signalhub.log.segment import SegmentInfo
from signalhub.pipeline.lake import Lake, LakeUnreachable

SHARD: Final = 0

_INBOX: Final = "inbox"
_ENTRIES: Final = "entries"
# Only what looks like this becomes part of a query.
_STREAM: Final = re.compile(r"inbox\.(\d{1,9})\.([A-Za-z0-9_-]{22})")
_CONFIG: Final = {
    # The hub has better uses for the other cores.
    "datafusion.execution.target_partitions": "1",
    # Ciphertext is most of a file: only that of the rows that are wanted is decoded.
    "datafusion.execution.parquet.pushdown_filters": "true",
}
_WIDER: Final = 8

_PAGE: Final = (
    "SELECT seq, message_id, ciphertext, created_at, expires_at FROM inbox"
    " WHERE inbox = '{inbox}' AND key_version = {version} AND seq BETWEEN {first} AND {last}"
    " AND expires_at > to_timestamp_millis({now_ms}){older} ORDER BY seq, epoch DESC LIMIT {count}"
)
_OLDER: Final = ' AND (epoch <> {epoch} OR "offset" < {offset})'
_COUNT: Final = (
    'SELECT count(*), count(DISTINCT "offset") FROM entries'
    ' WHERE shard = {shard} AND epoch = {epoch} AND "offset" >= {base} AND "offset" < {end}'
)


class LakeReader:
    """The tables of one lake. Whatever it is asked, it raises `LakeUnreachable`."""

    def __init__(self, lake: Lake, *, is_needed: bool = False) -> None:
        """If it is needed, the table `inbox` cannot just not be there yet."""
        self._lake = lake
        self._seen = {_INBOX} if is_needed else set[str]()

    def reopen(self) -> None:
        """Trust nothing that is known of the tables: one may have been made again meanwhile."""
        for name in (_INBOX, _ENTRIES):
            self._lake.forget(name)

    def inbox_position(self, epoch: int) -> int:
        """The table `inbox` holds everything of this epoch of the log before this offset."""
        return self._position(_INBOX, epoch)

    def page(
        self,
        stream: str,
        from_seq: int,
        to_seq: int,
        count_max: int,
        now_ms: int,
        before: tuple[int, int] | None = None,
        needed: tuple[int, int] | None = None,
    ) -> list[Archived]:
        """The lowest messages of an inbox in a stretch of positions that have not expired.

        The table must hold everything of the epoch in `needed` before its offset, or it is away.
        Of the epoch in `before` only messages before its offset are wanted, so that the many small
        files with what came last need not be opened for what the log has long forgotten.

        Positions are dense, so a stretch of `count_max` mostly is the page, in one file or two;
        where messages have expired or were erased, ever wider ones are looked at.
        """
        name = _STREAM.fullmatch(stream)
        if needed is not None and self._position(_INBOX, needed[0]) < needed[1]:
            # It is being made again; what it does not hold yet is not gone.
            raise LakeUnreachable(self._lake.location(_INBOX), "it does not hold everything yet")
        older = "" if before is None else _OLDER.format(epoch=before[0], offset=before[1])
        found: dict[int, Archived] = {}
        first, width = from_seq, count_max
        while name is not None and first <= to_seq and len(found) < count_max:
            last, count = min(to_seq, first + width - 1), count_max - len(found)
            wanted = {"version": int(name[1]), "inbox": name[2], "now_ms": now_ms, "older": older}
            rows = self._page(first, last, count, wanted)
            for one in rows:
                # A log that lost entries gives their positions out again; the later epoch is first.
                found.setdefault(one.seq, one)
            # Behind the last of as many rows as were asked for nothing has been looked at.
            first = rows[-1].seq + 1 if len(rows) == count else last + 1
            width *= _WIDER
        return list(found.values())

    def holds(self, segment: SegmentInfo) -> bool | None:
        """Is every entry of the segment in `entries`, once? None: the table is not so far yet."""
        if self._position(_ENTRIES, segment.epoch) < segment.end:
            return None
        place = {"shard": SHARD, "epoch": segment.epoch, "base": segment.base, "end": segment.end}
        table = self._query(_ENTRIES, _COUNT.format(**place))
        count = segment.end - segment.base
        return table is not None and [one[0].as_py() for one in table.columns] == [count, count]

    def _position(self, table: str, epoch: int) -> int:
        self._check_seen(table, is_there=self._lake.exists(table))
        committed = self._lake.committed(table, SHARD, epoch)
        return 0 if committed is None else committed + 1

    def _page(self, first: int, last: int, count: int, wanted: dict[str, object]) -> list[Archived]:
        sql = _PAGE.format(first=first, last=last, count=count, **wanted)
        table = self._query(_INBOX, sql)
        if table is None:
            return []
        seqs, ids, ciphertexts, created, expires = table.columns
        columns = (
            seqs.to_pylist(),
            ids.to_pylist(),
            ciphertexts.to_pylist(),
            _milliseconds(created),
            _milliseconds(expires),
        )
        return [Archived(*row) for row in zip(*columns, strict=True)]

    def _query(self, name: str, sql: str) -> pa.Table | None:
        """The rows of a query; None if there is no such table yet."""
        try:
            return self._try(name, sql)
        except LakeUnreachable:
            # Files that were replaced go after a while; what a newer state names is there.
            self._lake.forget(name)
            return self._try(name, sql)

    def _try(self, name: str, sql: str) -> pa.Table | None:
        table = self._lake.open(name)
        self._check_seen(name, is_there=table is not None)
        if table is None:
            return None
        try:
            rows = QueryBuilder(_CONFIG).register(name, table).execute(sql)
            return pa.RecordBatchReader.from_stream(rows).read_all()
        except Exception as error:
            # Storage, formats and queries all fail in ways of their own.
            raise LakeUnreachable(self._lake.location(name), str(error)) from error

    def _check_seen(self, name: str, *, is_there: bool) -> None:
        """A table that is not there yet is empty; one that is gone is not."""
        if is_there:
            self._seen.add(name)
        elif name in self._seen:
            raise LakeUnreachable(self._lake.location(name), "it is not there")


def _milliseconds(times: pa.ChunkedArray) -> list[Any]:
    whole = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return list(whole.cast(pa.int64()).to_pylist())
