"""Which part of history is where: stretches of log and lake, in the order of positions.

Positions are ordered by epoch, then by offset. What the log holds is read from the log, everything
else from the lake: what retention has deleted, and what an epoch has lost but the lake had landed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from signalhub.log.disk import SystemDisk
from signalhub.log.errors import LogDamaged
from signalhub.log.folder import Folder
from signalhub.log.reader import Reader
from signalhub.server.history.answers import Tier
from signalhub.server.history.reader.rows import KINDS, SHARD
from signalhub.wire.entry import StoredEntry
from signalhub.wire.errors import SignalHubError

if TYPE_CHECKING:
    # Loaded only for hubs that have a lake: it takes more memory than everything else here.
    import pyarrow as pa

    from signalhub.pipeline.lake import Lake

T = TypeVar("T")

ENTRIES: Final = "entries"
MESSAGES: Final = "messages"

_HOUR_MS: Final = 3_600_000
# How far back a time is looked for before all of an epoch is.
_WITHIN_MS: Final = (_HOUR_MS, 24 * _HOUR_MS, 30 * 24 * _HOUR_MS)
_ENTRY: Final = (
    'SELECT "offset", kind, stream, stream_epoch, seq, accepted_at, body, removed_reason'
    " FROM entries WHERE shard = {shard} AND epoch = {epoch}"
)


class LakeFailed(SignalHubError):
    """The lake cannot be read; the log can be all the same."""

    code = "lake_unreachable"


class Stretch(NamedTuple):
    """Offsets of one epoch that are read from one place; `end` is after the last."""

    epoch: int
    first: int
    end: int
    tier: Tier


class LakeEntry(NamedTuple):
    """An entry of the lake, and why its content was removed if it was."""

    stored: StoredEntry
    removed: str | None


class Sources:
    """The log of a hub, and its lake if it has one; both are only read."""

    def __init__(self, disk: SystemDisk, lake: Lake | None) -> None:
        self.folder = Folder(disk)
        self.log = Reader(self.folder)
        self.lake = lake
        self._known_epochs: set[int] = set()
        self._known_version = -1
        self._landed: dict[tuple[str, int], int] = {}
        self._lake_epochs: set[int] | None = None

    def begin(self) -> None:
        """Before each question: files may have been replaced by erased ones since."""
        self.log.close()
        self.look_again()

    def look_again(self) -> None:
        """The log has lost entries: what has landed is asked again."""
        self._landed.clear()
        self._lake_epochs = None

    def close(self) -> None:
        self.log.close()

    def stretches(self) -> list[Stretch]:
        """Everything there is now, the newest stretch first."""
        head = self.folder.head
        kept = _epochs_of(self.folder, head)
        if self._lake_epochs is None:
            self._lake_epochs = self._epochs()
        epochs = sorted({*kept, *self._lake_epochs}, reverse=True)
        found: list[Stretch] = []
        for epoch in epochs:
            landed = self.landed(ENTRIES, epoch)
            if epoch not in kept:
                found.append(Stretch(epoch, 0, landed, "lake"))
                continue
            first, end = kept[epoch]
            if epoch != epochs[0]:
                # What the log has lost, the lake may have.
                found.append(Stretch(epoch, end, landed, "lake"))
            found.append(Stretch(epoch, first, end, "log"))
            found.append(Stretch(epoch, 0, min(first, landed), "lake"))
        return [one for one in found if one.first < one.end]

    def _epochs(self) -> set[int]:
        """The epochs in the lake, from the statistics of its files."""
        lake = self.lake
        table = None if lake is None else self.reading(lambda: lake.open(ENTRIES))
        if table is None:
            return set()
        import pyarrow as pa

        if table.version() != self._known_version:
            actions = pa.table(table.get_add_actions(flatten=True))
            ends = [actions[name].to_pylist() for name in ("min.epoch", "max.epoch")]
            found = {one for some in ends for one in some}
            if None in found or any(low != high for low, high in zip(*ends, strict=True)):
                # A file of several epochs may hold one that is neither its first nor its last.
                rows = self.query(ENTRIES, "SELECT DISTINCT epoch FROM entries")
                found = set() if rows is None else set(rows.column(0).to_pylist())
            self._known_epochs, self._known_version = found, table.version()
        return self._known_epochs

    def landed(self, table: str, epoch: int) -> int:
        """The offset of an epoch before which a table holds everything."""
        lake = self.lake
        if lake is None:
            return 0
        known = self._landed.get((table, epoch))
        if known is None:
            committed = self.reading(lambda: lake.committed(table, SHARD, epoch))
            known = self._landed[table, epoch] = 0 if committed is None else committed + 1
        return known

    def find(self, epoch: int, offset: int) -> tuple[StoredEntry, Tier, str | None] | None:
        """One entry, where it is, and why its content was removed if it was."""
        for one in self.stretches():
            if one.epoch != epoch or not one.first <= offset < one.end:
                continue
            if one.tier == "log":
                return next(iter(self.log.scan(offset, offset + 1))), "log", None
            found = next(iter(self.entries(epoch, f'"offset" = {offset}', 1)), None)
            return None if found is None else (found.stored, "lake", found.removed)
        return None

    def position_at(self, at_ms: int) -> tuple[int, int] | None:
        """The position before which everything was accepted at or before a time."""
        for one in self.stretches():
            found = (
                self._log_position(one, at_ms)
                if one.tier == "log"
                else self._lake_position(one, at_ms)
            )
            if found is not None:
                return one.epoch, found
        return None

    def _log_position(self, stretch: Stretch, at_ms: int) -> int | None:
        low, high = stretch.first, stretch.end
        while low < high:
            middle = (low + high) // 2
            try:
                is_before = next(iter(self.log.scan(middle, middle + 1))).at_ms <= at_ms
            except LogDamaged:
                # Its time is unknown; look on below, where nothing is skipped.
                is_before = False
            if is_before:
                low = middle + 1
            else:
                high = middle
        return low if low > stretch.first else None

    def _lake_position(self, stretch: Stretch, at_ms: int) -> int | None:
        bounds = f'"offset" >= {stretch.first} AND "offset" < {stretch.end}'
        before = f"accepted_at <= {sql_time(at_ms)}"
        for within_ms in (*_WITHIN_MS, None):
            after = "" if within_ms is None else f" AND accepted_at > {sql_time(at_ms - within_ms)}"
            found = self.query(
                ENTRIES,
                f'SELECT max("offset") FROM entries WHERE shard = {SHARD}'  # noqa: S608
                f" AND epoch = {stretch.epoch} AND {bounds} AND {before}{after}",
            )
            last = None if found is None else found.column(0)[0].as_py()
            if last is not None:
                return int(last) + 1
        return None

    def entries(
        self, epoch: int, where: str, count: int, *, newest_first: bool = True
    ) -> Iterator[LakeEntry]:
        """Rows of the table `entries`, as entries."""
        order = "DESC" if newest_first else "ASC"
        query = _ENTRY.format(shard=SHARD, epoch=epoch)
        found = self.query(ENTRIES, f'{query} AND {where} ORDER BY "offset" {order} LIMIT {count}')
        if found is None:
            return
        columns = [
            milliseconds(column) if name == "accepted_at" else column.to_pylist()
            for name, column in zip(found.schema.names, found.columns, strict=True)
        ]
        for offset, kind, stream, stream_epoch, seq, at_ms, body, removed in zip(
            *columns, strict=True
        ):
            stored = StoredEntry(
                offset,
                KINDS.get(kind, 0),
                stream,
                stream_epoch,
                seq,
                at_ms,
                body or b"",
                body is None,
            )
            yield LakeEntry(stored, removed if body is None else None)

    def query(self, table: str, query: str) -> pa.Table | None:
        """Rows of a table; `None` if there is none. Raises `LakeFailed`."""
        lake = self.lake
        return None if lake is None else self.reading(lambda: lake.select(table, query))

    def reading(self, read: Callable[[], T]) -> T:
        """Read the lake; what goes wrong is a `LakeFailed`."""
        from signalhub.pipeline.lake import LakeUnreachable

        try:
            return read()
        except LakeUnreachable as error:
            raise LakeFailed(str(error)) from error


def _epochs_of(folder: Folder, head: int) -> dict[int, tuple[int, int]]:
    """The epochs in the log: the first offset of each, and the one after its last."""
    kept: dict[int, tuple[int, int]] = {}
    for info in folder.segments:
        first = kept.get(info.epoch, (info.base, 0))[0]
        kept[info.epoch] = (first, min(info.end, head))
    return kept


def sql_time(at_ms: int) -> str:
    """A time as a query has it."""
    moment = datetime.fromtimestamp(min(max(at_ms, 0), 2**43) / 1000, UTC).replace(tzinfo=None)
    text = moment.isoformat(timespec="milliseconds")
    return f"arrow_cast('{text}', 'Timestamp(Microsecond, Some(\"UTC\"))')"


def sql_text(text: str) -> str:
    """A text as a query has it."""
    from signalhub.pipeline.lake import literal

    return literal(text)


def milliseconds(times: pa.ChunkedArray) -> list[Any]:
    """Times of a table as milliseconds since the Unix epoch."""
    import pyarrow as pa

    whole = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return list(whole.cast(pa.int64()).to_pylist())
