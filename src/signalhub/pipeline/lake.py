"""Where the tables are, and what they contain, determined without Spark.

A table records in its own transactions which entries it contains: one application id per shard and
epoch, whose version is the last offset. This is the only record of progress that counts, so hub,
commands and pipeline all read it here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    Transaction,
    WriterProperties,
)
from deltalake.exceptions import DeltaError, TableNotFoundError

from signalhub.pipeline.commit import LOG, add_files, append_rows, create_table, transaction
from signalhub.pipeline.tables.tables import CHECKPOINT_INTERVAL, TABLES, Table
from signalhub.privacy import FILE_MODE
from signalhub.wire.errors import SignalHubError

FOLDER: Final = "lake"
_QUERIES: Final = {
    # The other cores are for the hub.
    "datafusion.execution.target_partitions": "1",
    # Bodies are most of a file, so decode only those of the wanted rows.
    "datafusion.execution.parquet.pushdown_filters": "true",
}


_READING_ERRORS: Final = (DeltaError, OSError, ValueError)
_REWRITTEN_BYTES_MAX: Final = 8 * 2**20
"""A table up to this size is merged into without Spark: all of it may be rewritten."""
_WRITER: Final = WriterProperties(compression="ZSTD")
# Spark does both: it leaves out what it need not know, and upkeep deletes commits by its own rule.
_NOTHING: Final = pa.table({})
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class LakeUnreachable(SignalHubError):
    """The tables cannot be read now; nothing is known about their content."""

    code = "lake_unreachable"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the table {where} cannot be read: {reason}; check the lake's storage")


def application(shard: int, epoch: int) -> str:
    """Return the application id under which tables record their position in an epoch of a shard."""
    return f"signalhub-{shard}-{epoch}"


class Position(msgspec.Struct, frozen=True):
    """What a commit contains of the log."""

    shard: int
    epoch: int
    last: int

    @property
    def transaction(self) -> Transaction:
        return Transaction(application(self.shard, self.epoch), self.last)


class Merging(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge of rows `s` into a table `t` does; both Spark and delta-rs understand it."""

    on: str
    updated: Mapping[str, str] = {}
    inserted: Mapping[str, str] = {}
    update_if: str = "true"
    insert_if: str = "true"


def literal(text: str) -> str:
    """Return a text as it is written in a query."""
    return "'" + text.replace("'", "''") + "'"


def lake_of(data: str | Path, uri: str = "", *, is_for_spark: bool = False) -> Lake:
    """Return the lake of a data folder, unless another location is configured."""
    return Lake(uri or str(Path(data).absolute() / FOLDER), is_for_spark=is_for_spark)


class Lake:
    """A folder, or any URI that both Spark and delta-rs support, with one table per name."""

    def __init__(self, uri: str, *, is_for_spark: bool = False) -> None:
        """If it `is_for_spark`, only Spark writes rows; on other storage than a folder it is."""
        self.is_local: Final = "://" not in uri
        self.is_for_spark: Final = is_for_spark or not self.is_local
        self.uri: Final = str(Path(uri).absolute()) if self.is_local else uri
        self._tables: dict[str, tuple[DeltaTable, int]] = {}
        self._lock = threading.Lock()

    def location(self, name: str) -> str:
        """Return the location of a table for Spark."""
        return f"{self.uri.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        return self.open(name) is not None

    def committed(self, name: str, shard: int, epoch: int) -> int | None:
        """Return the last offset of an epoch in a table; `None` if it contains none."""
        table = self.open(name)
        if table is None:
            return None
        with self._reading(name):
            version: int | None = table.transaction_version(application(shard, epoch))
            return version

    def record(self, name: str, shard: int, epoch: int, last: int) -> bool:
        """Record that a table contains everything up to an offset, in a commit without rows.

        This takes milliseconds; Spark takes a second. Returns `False` if Spark has to do it: on
        storage other than a local folder, where only Spark may know how to commit; if another
        process commits at the same time; and if a checkpoint is due.
        """
        table = self.open(name)
        if table is None or not self.is_local:
            return False
        # First, so that a commit between the two is noticed: its version is taken.
        version = table.version() + 1
        committed = table.transaction_version(application(shard, epoch))
        if committed is not None and committed >= last:
            return True
        if version % CHECKPOINT_INTERVAL == 0:
            return False
        return append_rows(
            self._folder(name), version, _NOTHING, (), [_transaction(Position(shard, epoch, last))]
        )

    def append(self, name: str, rows: pa.Table, position: Position | None = None) -> bool:
        """Append a few rows without Spark, and record a position in the same commit.

        Returns `False` if Spark has to do it, for the reasons that `record` has.
        """
        table = self._writable(name)
        if table is None:
            return False
        transactions = [] if position is None else [_transaction(position)]
        version, statistics = table.version() + 1, TABLES[name].statistics
        return append_rows(self._folder(name), version, rows, statistics, transactions)

    def add(
        self,
        name: str,
        files: Sequence[Mapping[str, Any]],
        position: Position,
        committed: int | None,
    ) -> bool:
        """Add files that hold everything from the recorded position, `committed`, to this one.

        Returns `False` if another one is recorded, and if Spark has to do it; see `record`.
        """
        table = self._writable(name)
        if table is None:
            return False
        # First, so that a commit between the two is noticed: its version is taken.
        version = table.version() + 1
        if table.transaction_version(application(position.shard, position.epoch)) != committed:
            return False
        return add_files(self._folder(name), version, files, [_transaction(position)])

    def create(self, table: Table, properties: Mapping[str, str]) -> bool:
        """Create an empty table without Spark, as Spark would; `False` if Spark has to do it."""
        if self.is_for_spark:
            return False
        try:
            return create_table(
                self._folder(table.name),
                about=table.about,
                schema=table.schema,
                properties=properties,
                cluster_by=table.cluster_by,
                readers=table.reader_features,
                writers=table.writer_features,
            )
        except OSError:
            return False

    def _folder(self, name: str) -> Path:
        return Path(self.location(name))

    def merge(
        self, name: str, rows: pa.Table, merging: Merging, position: Position | None
    ) -> int | None:
        """Merge a few rows without Spark; return how many were inserted or updated.

        This takes a tenth of a second of a core; Spark takes several. Returns `None` if Spark has
        to do it: for the reasons that `record` has, for tables that are large or have rows that
        are only marked as deleted, and if anything fails. The position is recorded in any case.
        """
        table = self._writable(name)
        if table is None:
            return None
        transactions = None if position is None else [position.transaction]
        try:
            if pa.table(table.deletion_vectors()).num_rows:
                return None
            if sum(self.sizes(name)) > _REWRITTEN_BYTES_MAX:
                return None
            merger = table.merge(
                rows,
                merging.on,
                source_alias="s",
                target_alias="t",
                writer_properties=_WRITER,
                commit_properties=CommitProperties(
                    max_commit_retries=0, app_transactions=transactions
                ),
                post_commithook_properties=_NO_HOOKS,
            )
            if merging.updated:
                merger = merger.when_matched_update(dict(merging.updated), merging.update_if)
            if merging.inserted:
                merger = merger.when_not_matched_insert(dict(merging.inserted), merging.insert_if)
            before = table.version()
            done = merger.execute()
        except _READING_ERRORS:
            self.forget(name)
            return None
        if table.version() > before:
            self._make_private(name, table.version())
        elif position is not None and not self.record(
            name, position.shard, position.epoch, position.last
        ):
            return None
        return int(done["num_target_rows_inserted"] + done["num_target_rows_updated"])

    def _writable(self, name: str) -> DeltaTable | None:
        """Return a table if this process may commit to it; see `record`."""
        table = self.open(name)
        if table is None or self.is_for_spark:
            return None
        return None if (table.version() + 1) % CHECKPOINT_INTERVAL == 0 else table

    def _make_private(self, name: str, version: int) -> None:
        """Let nobody else read the files of a commit, whatever the umask."""
        folder = Path(self.location(name))
        commit = folder / LOG / f"{version:020d}.json"
        for line in commit.read_bytes().splitlines():
            added = msgspec.json.decode(line).get("add")
            if added is not None:
                (folder / unquote(added["path"])).chmod(FILE_MODE)
        commit.chmod(FILE_MODE)

    def open(self, name: str) -> DeltaTable | None:
        """Open the newest version of a table; `None` if there is none. Raises `LakeUnreachable`."""
        with self._lock:
            known = self._tables.get(name)
            identity = self._identity(name)
            try:
                if known is None or known[1] != identity:
                    table = DeltaTable(self._address(name))
                else:
                    table = known[0]
                    table.update_incremental()
            except TableNotFoundError:
                self._tables.pop(name, None)
                return None
            except _READING_ERRORS as error:
                self._tables.pop(name, None)
                raise LakeUnreachable(self.location(name), str(error)) from error
            self._tables[name] = table, identity
            return table

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Read more of an open table: its storage may have become unreachable meanwhile."""
        try:
            yield
        except _READING_ERRORS as error:
            self.forget(name)
            raise LakeUnreachable(self.location(name), str(error)) from error

    def select(self, name: str, query: str) -> pa.Table | None:
        """Query one table without Spark; return the rows, or `None` if it does not exist.

        A thousand rows take milliseconds; Spark takes a second. Raises `LakeUnreachable`.
        """
        try:
            return self._select(name, query)
        except LakeUnreachable:
            # Replaced files are deleted after a while, so read the newest version.
            self.forget(name)
            return self._select(name, query)

    def _select(self, name: str, query: str) -> pa.Table | None:
        table = self.open(name)
        if table is None:
            return None
        try:
            rows = QueryBuilder(_QUERIES).register(name, table).execute(query)
            return pa.RecordBatchReader.from_stream(rows).read_all()
        except Exception as error:
            # Storage, formats and queries raise many different errors.
            raise LakeUnreachable(self.location(name), str(error)) from error

    def _identity(self, name: str) -> int:
        """Return a value that changes when a table is recreated: an open table does not notice."""
        try:
            return os.stat(Path(self.location(name)) / LOG).st_ino
        except OSError:
            return 0

    def sizes(self, name: str) -> list[int]:
        """Return the size of each data file of a table; none if it does not exist."""
        table = self.open(name)
        if table is None:
            return []
        with self._reading(name):
            found: list[int] = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
            return found

    def files(self) -> int:
        """Return how many data files all tables have together."""
        return sum(len(self.sizes(name)) for name in TABLES)

    def bytes(self, *names: str) -> int:
        """Return the size of the data files of the named tables, or of all."""
        return sum(sum(self.sizes(name)) for name in names or TABLES)

    def forget(self, name: str) -> None:
        """Open a table again next time: the cached version may be older than its files."""
        with self._lock:
            self._tables.pop(name, None)

    def _address(self, name: str) -> str:
        """Hadoop uses the scheme `s3a` for object storage, delta-rs uses `s3`."""
        return self.location(name).replace("s3a://", "s3://", 1)


def _transaction(position: Position) -> dict[str, Any]:
    return transaction(application(position.shard, position.epoch), position.last)
