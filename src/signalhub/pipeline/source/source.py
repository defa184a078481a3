"""`format("signalhub")`: the log as a Spark source, read as a batch or as a stream.

    spark.read.format("signalhub").load("data")
    spark.readStream.format("signalhub").option("maxEntriesPerBatch", 100_000).load("data")

Spark finds it automatically if this package is installed (`pyspark_signalhub`). Nothing beyond the
published durable head is read, unless `beyondPublished` says that the hub is stopped.

A row that cannot be decoded is still a row: `fault` gives the reason. Damage to a segment is not a
row: a stream delivers everything before it, and stops there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from signalhub.log.errors import EntriesGone
from signalhub.pipeline.source.plan import (
    SLICE_BYTES,
    LogPosition,
    ReadPlan,
    Segments,
    Slice,
    log_of,
)
from signalhub.pipeline.tables.tables import SOURCE_COLUMNS
from signalhub.wire.errors import SettingsError

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table
    from pyspark.sql.types import StructType

FORMAT: Final = "signalhub"
SCHEMA: Final = ", ".join(f"{one.name} {one.type}" for one in SOURCE_COLUMNS)

Offsets = dict[str, dict[str, int]]
"""Position by shard, as Spark stores it in checkpoints."""


class LogPartition(InputPartition):
    """One slice for one task."""

    def __init__(self, one: Slice) -> None:
        super().__init__(one.from_offset)
        self.slice = one


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a reader; their names in Spark have no underscores."""

    path: str
    shard: int = 0
    starting_offset: str = "earliest"
    """`earliest`, `latest`, or an epoch and the next offset: `1:500`."""
    max_entries_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    min_entries_per_batch: int = 1
    """A batch of a stream starts when this many entries wait, or one has waited `max_delay_ms`."""
    max_delay_ms: int = 0
    slice_bytes: int = SLICE_BYTES
    beyond_published: bool = False
    """Read to the last valid batch: only for a log whose hub is stopped."""
    until: str = ""
    """Where to end, as an epoch and the offset after the last entry; empty means no end."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Raises `SettingsError` for missing, unknown and invalid options."""
        names = {name.replace("_", ""): name for name in cls.__struct_fields__}
        known: dict[str, str] = {}
        for key, value in given.items():
            name = names.get(key.lower())
            if name is None:
                raise SettingsError(
                    f"the source {FORMAT!r} has no option {key!r}; its options are"
                    f" {', '.join(_spelled(one) for one in cls.__struct_fields__)}"
                )
            known[name] = value
        if not known.get("path"):
            raise SettingsError(f"the source {FORMAT!r} needs the data folder: .load('data')")
        # Tasks may run in another working directory than the program.
        known["path"] = str(Path(known["path"]).absolute())
        try:
            return msgspec.convert(known, cls, strict=False)
        except msgspec.ValidationError as error:
            raise SettingsError(f"invalid option of the source {FORMAT!r}: {error}") from error


def _spelled(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


class SignalHubSource(DataSource):
    """The log of one data folder."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(Options.of(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(Options.of(self.options))


class _Reader:
    """The common part of both readers; it is sent to the tasks, so it contains only its options."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        # Spark asks for schema and plan in separate processes, which do not need Arrow.
        from signalhub.pipeline.source.columns import read_columns

        assert isinstance(partition, LogPartition)
        return read_columns(log_of(self._options.path), self._options.shard, partition.slice)


class BatchReader(_Reader, DataSourceReader):
    """Reads everything that exists now."""

    def partitions(self) -> Sequence[InputPartition]:
        log = _Log(self._options)
        head = log.head()
        found: list[InputPartition] = []
        position = log.begin()
        while True:
            plan = log.plan(position, head)
            if plan.end == position:
                return found
            found += map(LogPartition, plan.slices)
            position = plan.end

    def read_here(self) -> Table:
        """Return everything, read in this process: Spark starts several others for a few rows."""
        from signalhub.pipeline.source.columns import table_of

        return table_of(batch for one in self.partitions() for batch in self.read(one))


class StreamReader(_Reader, DataSourceStreamReader):
    """Reads everything, now and later, in batches that never mix two epochs."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._log: _Log | None = None
        self._plan: tuple[LogPosition, ReadPlan] | None = None
        self._waiting_since: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**{"options": state["_options"]})  # type: ignore[misc]

    def initialOffset(self) -> Offsets:
        return self._offsets(self._opened().begin())

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_entries_per_batch is not None:
            return ReadMaxRows(options.max_entries_per_batch)
        if options.max_bytes_per_batch is not None:
            return ReadMaxBytes(options.max_bytes_per_batch)
        return ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        log, begin = self._opened(), self._position(start)
        head = log.head()
        if not self._is_due(begin, head):
            return start
        plan = log.plan(
            begin,
            head,
            entries_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            bytes_max=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
        )
        self._plan = begin, plan
        return self._offsets(plan.end)

    def reportLatestOffset(self) -> Offsets:
        return self._offsets(self._opened().head())

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        begin, to = self._position(start), self._position(end)
        if self._plan is None or self._plan[0] != begin or self._plan[1].end != to:
            self._plan = begin, self._opened().plan(begin, to)
            if self._plan[1].end != to:
                raise EntriesGone(to.offset)
        return list(map(LogPartition, self._plan[1].slices))

    def _is_due(self, begin: LogPosition, head: LogPosition) -> bool:
        """Return whether enough entries wait, or they have waited long enough."""
        options = self._options
        if head <= begin:
            self._waiting_since = None
            return False
        waiting = head.offset - begin.offset
        if head.epoch != begin.epoch or waiting >= options.min_entries_per_batch:
            self._waiting_since = None
            return True
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        is_due = (now - self._waiting_since) * 1000 >= options.max_delay_ms
        if is_due:
            self._waiting_since = None
        return is_due

    def _opened(self) -> _Log:
        if self._log is None:
            self._log = _Log(self._options)
        return self._log

    def _offsets(self, position: LogPosition) -> Offsets:
        shard = str(self._options.shard)
        return {shard: {"epoch": position.epoch, "offset": position.offset}}

    def _position(self, offsets: Offsets) -> LogPosition:
        return LogPosition(**offsets[str(self._options.shard)])


class _Log:
    """The part of a log that the options select."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._segments = Segments(log_of(options.path))
        self._until = _parsed(options.until) if options.until else None

    def head(self) -> LogPosition:
        options, head = self._options, None
        if not options.beyond_published:
            head = self._segments.published()
        head = head or self._segments.valid()
        return min(head, self._until) if self._until else head

    def begin(self) -> LogPosition:
        wanted = self._options.starting_offset
        if wanted == "latest":
            return self.head()
        return self._segments.first if wanted == "earliest" else _parsed(wanted)

    def plan(
        self,
        start: LogPosition,
        head: LogPosition,
        *,
        entries_max: int | None = None,
        bytes_max: int | None = None,
    ) -> ReadPlan:
        return self._segments.plan(
            start,
            head,
            entries_max=entries_max,
            bytes_max=bytes_max,
            slice_bytes=self._options.slice_bytes,
        )


def _parsed(text: str) -> LogPosition:
    epoch, _, offset = text.partition(":")
    try:
        return LogPosition(int(epoch), int(offset))
    except ValueError:
        raise SettingsError(
            f"invalid position {text!r}; use earliest, latest, or an epoch and an offset like 1:500"
        ) from None
