"""Files of `entries`, written by the tasks that decode the log.

The rows do not pass through Java: each task writes its slice as one file and returns what a commit
has to say about it. A file is part of the table once a commit names it, so files of tasks that
failed, were killed or ran twice are only leftovers, which upkeep deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, InputPartition

from signalhub.log.disk import Disk
from signalhub.pipeline.commit import transaction
from signalhub.pipeline.lake import Lake, Position, application
from signalhub.pipeline.source.plan import Slice, log_of
from signalhub.pipeline.source.source import LogPartition, Options, StreamReader
from signalhub.pipeline.tables.tables import ENTRIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import Row, StructType

FORMAT: Final = "signalhub_files"


class WrittenFile(msgspec.Struct, frozen=True, array_like=True):
    """A file with some entries of the log, in order."""

    first: int
    """Its first offset."""
    rows: int
    body_bytes: int
    faults: int
    added: str
    """What a commit says about it, as JSON."""


SCHEMA: Final = "first BIGINT, rows BIGINT, body_bytes BIGINT, faults BIGINT, added STRING"


class FileOptions(Options, frozen=True, kw_only=True):
    """Options of the source, and the folder to write to."""

    into: str


class FileSource(DataSource):
    """The log of one data folder; a row is a file that was written."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> FileReader:
        return FileReader(FileOptions.of(self.options))


class FileReader(StreamReader):
    """Plans as the source does; its tasks write."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        assert isinstance(options, FileOptions)
        assert isinstance(partition, LogPartition)
        disk = log_of(options.path)
        yield msgspec.structs.astuple(
            write_slice(disk, options.shard, partition.slice, Path(options.into))
        )


def write_slice(disk: Disk, shard: int, one: Slice, into: Path) -> WrittenFile:
    """Write the entries of a slice as a file of the table in this folder."""
    # Spark asks for schema and plan in separate processes, which do not need Arrow.
    import pyarrow.compute as pc

    from signalhub.pipeline.commit import write_file
    from signalhub.pipeline.land.here import entries_here
    from signalhub.pipeline.source.columns import read_columns, table_of

    rows = table_of(read_columns(disk, shard, one))
    added = write_file(into, entries_here(rows), ENTRIES.statistics)
    return WrittenFile(
        first=rows["offset"][0].as_py(),
        rows=rows.num_rows,
        body_bytes=pc.sum(pc.binary_length(rows["body"])).as_py() or 0,
        faults=rows.num_rows - rows["fault"].null_count,
        added=msgspec.json.encode(added).decode(),
    )


def can_write(lake: Lake) -> bool:
    """Return whether files of ours can become part of the table as it is."""
    if lake.is_for_spark:
        return False
    table = lake.open(ENTRIES.name)
    if table is None:
        return False
    features = table.protocol().writer_features or ()
    return (
        set(features).issubset(ENTRIES.writer_features)
        and [field.name for field in table.schema().fields] == ENTRIES.names
        and not table.metadata().partition_columns
    )


def are_in(batch: DataFrame) -> bool:
    """Return whether the rows of a micro-batch are files."""
    return tuple(batch.columns) == WrittenFile.__struct_fields__


def written(rows: Sequence[Row]) -> list[WrittenFile]:
    """Return the files of a micro-batch in the order of their entries."""
    return sorted((WrittenFile(*row) for row in rows), key=lambda one: one.first)


def are_complete(files: Sequence[WrittenFile], last: int) -> bool:
    """Return whether files hold every entry from the first of them to the last one, once."""
    if not files:
        return False
    expected = files[0].first
    for one in files:
        if one.first != expected:
            return False
        expected += one.rows
    return expected == last + 1


def delete(lake: Lake, files: Sequence[WrittenFile]) -> None:
    """Delete files that will not be committed."""
    for one in _added(files):
        with suppress(OSError):
            (Path(lake.location(ENTRIES.name)) / one["path"]).unlink()


def commit(
    spark: SparkSession,
    lake: Lake,
    files: Sequence[WrittenFile],
    position: Position,
    committed: int | None,
) -> None:
    """Make files part of the table, in one transaction that records the position.

    `committed` is the last offset it has; if it has another one meanwhile, this fails.
    """
    if not lake.add(ENTRIES.name, _added(files), position, committed):
        _commit_by_spark(spark, lake, _added(files), position, committed)


def _added(files: Sequence[WrittenFile]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(one.added) for one in files]


def _commit_by_spark(
    spark: SparkSession,
    lake: Lake,
    added: Sequence[Mapping[str, Any]],
    position: Position,
    committed: int | None,
) -> None:
    """Commit with Delta's own library: it resolves conflicts, and writes checkpoints when due."""
    jvm: Any = spark.sparkContext._jvm
    delta = "org.apache.spark.sql.delta"
    # By their whole names: for `jvm.org` and `jvm.org.apache`, Java would look into all JARs.
    log = getattr(jvm, f"{delta}.DeltaLog").forTable(
        spark._jsparkSession, lake.location(ENTRIES.name)
    )
    action = getattr(jvm, f"{delta}.actions.Action")
    operation = getattr(getattr(jvm, f"{delta}.DeltaOperations$ManualUpdate$"), "MODULE$")
    sequence = getattr(jvm, "org.apache.spark.api.python.PythonUtils").toSeq
    begun = log.startTransaction()
    by = application(position.shard, position.epoch)
    # Having asked for it makes another commit under the same id, in the meantime, a conflict.
    if begun.txnVersion(by) != (-1 if committed is None else committed):
        raise RuntimeError("the table has been changed by another process; landing starts again")
    actions = [transaction(by, position.last), *({"add": one} for one in added)]
    lines = [action.fromJson(msgspec.json.encode(one).decode()) for one in actions]
    begun.commit(sequence(lines), operation)
