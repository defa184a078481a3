"""Where the tables are, and what they contain, determined without Spark.

A table records in its own transactions which entries it contains: one application id per shard and
epoch, whose version is the last offset. This is the only record of progress that counts, so hub,
commands and pipeline all read it here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from signalhub.clock import SystemClock
from signalhub.pipeline.tables.tables import CHECKPOINT_INTERVAL, TABLES
from signalhub.privacy import opener
from signalhub.wire.errors import SignalHubError

FOLDER: Final = "lake"
LOG: Final = "_delta_log"
"""The folder of a table's commits and checkpoints."""
_QUERIES: Final = {
    # The other cores are for the hub.
    "datafusion.execution.target_partitions": "1",
    # Bodies are most of a file, so decode only those of the wanted rows.
    "datafusion.execution.parquet.pushdown_filters": "true",
}


_READING_ERRORS: Final = (DeltaError, OSError, ValueError)


class LakeUnreachable(SignalHubError):
    """The tables cannot be read now; nothing is known about their content."""

    code = "lake_unreachable"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the table {where} cannot be read: {reason}; check the lake's storage")


def application(shard: int, epoch: int) -> str:
    """Return the application id under which tables record their position in an epoch of a shard."""
    return f"signalhub-{shard}-{epoch}"


def literal(text: str) -> str:
    """Return a text as it is written in a query."""
    return "'" + text.replace("'", "''") + "'"


def lake_of(data: str | Path, uri: str = "") -> Lake:
    """Return the lake of a data folder, unless another location is configured."""
    return Lake(uri or str(Path(data).absolute() / FOLDER))


class Lake:
    """A folder, or any URI that both Spark and delta-rs support, with one table per name."""

    def __init__(self, uri: str) -> None:
        self.uri: Final = uri if "://" in uri else str(Path(uri).absolute())
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
        if table is None or "://" in self.uri:
            return False
        committed = table.transaction_version(application(shard, epoch))
        if committed is not None and committed >= last:
            return True
        version = table.version() + 1
        if version % CHECKPOINT_INTERVAL == 0:
            return False
        now_ms = SystemClock().now_ms()
        done = {"appId": application(shard, epoch), "version": last, "lastUpdated": now_ms}
        info = {"timestamp": now_ms, "operation": "WRITE", "engineInfo": "signalhub"}
        lines = [{"commitInfo": info | {"operationParameters": {}}}, {"txn": done}]
        log = Path(self.location(name)) / LOG
        try:
            _write_new(log / f"{version:020d}.json", msgspec.json.Encoder().encode_lines(lines))
        except OSError:
            return False
        return True

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


def _write_new(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; raises `FileExistsError` if it exists."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb", opener=opener) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
