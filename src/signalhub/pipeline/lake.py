"""Where the tables are and how far they have come, found out without Spark.

A table records in its own transactions which entries it holds: one application per shard and epoch,
whose version is the last offset that is in. That is the only memory of progress that counts, so
hub, commands and pipeline all read it here.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from signalhub.clock import SystemClock
from signalhub.pipeline.tables.tables import CHECKPOINT_INTERVAL, TABLES
from signalhub.wire.errors import SignalHubError

FOLDER: Final = "lake"
LOG: Final = "_delta_log"
"""The folder of a table's commits and checkpoints."""
_QUERIES: Final = {
    # Whoever asks has better uses for the other cores.
    "datafusion.execution.target_partitions": "1",
    # Bodies are most of a file: only those of the rows that are wanted are decoded.
    "datafusion.execution.parquet.pushdown_filters": "true",
}


class LakeUnreachable(SignalHubError):
    """The tables cannot be read now; that says nothing about what they hold."""

    code = "lake_unreachable"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the table {where} cannot be read: {reason}; check the lake's storage")


def application(shard: int, epoch: int) -> str:
    """Under which name tables record what they hold of an epoch of a shard."""
    return f"signalhub-{shard}-{epoch}"


def lake_of(data: str | Path, uri: str = "") -> Lake:
    """The lake of a data folder, unless it is told to be elsewhere."""
    return Lake(uri or str(Path(data).absolute() / FOLDER))


class Lake:
    """A folder, or any address Spark and delta-rs both understand, with a table per name."""

    def __init__(self, uri: str) -> None:
        self.uri: Final = uri if "://" in uri else str(Path(uri).absolute())
        self._tables: dict[str, tuple[DeltaTable, int]] = {}
        self._lock = threading.Lock()

    def location(self, name: str) -> str:
        """Where Spark finds a table."""
        return f"{self.uri.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        return self.open(name) is not None

    def committed(self, name: str, shard: int, epoch: int) -> int | None:
        """The last offset of an epoch that a table holds; None if it holds nothing of it."""
        table = self.open(name)
        return None if table is None else table.transaction_version(application(shard, epoch))

    def record(self, name: str, shard: int, epoch: int, last: int) -> bool:
        """Note that a table holds everything up to an offset, in a commit without rows.

        That takes milliseconds, where Spark takes a second. False if Spark has to do it: on storage
        other than a local folder, where only Spark may know how to commit, when somebody else
        commits at the same time, and when a checkpoint is due.
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
        """The newest state of a table; None if there is none. Raises `LakeUnreachable`."""
        with self._lock:
            known = self._tables.get(name)
            place = self._place(name)
            try:
                if known is None or known[1] != place:
                    table = DeltaTable(self._address(name))
                else:
                    table = known[0]
                    table.update_incremental()
            except TableNotFoundError:
                self._tables.pop(name, None)
                return None
            except (DeltaError, OSError, ValueError) as error:
                self._tables.pop(name, None)
                raise LakeUnreachable(self.location(name), str(error)) from error
            self._tables[name] = table, place
            return table

    def select(self, name: str, query: str) -> pa.Table | None:
        """The rows of a query over one table, read without Spark; None if there is no such table.

        A thousand rows take milliseconds, where Spark takes a second. Raises `LakeUnreachable`.
        """
        try:
            return self._select(name, query)
        except LakeUnreachable:
            # Files that were replaced go after a while; what a newer state names is there.
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
            # Storage, formats and queries all fail in ways of their own.
            raise LakeUnreachable(self.location(name), str(error)) from error

    def _place(self, name: str) -> int:
        """Changes when a table was deleted or made again, which one that is open does not see."""
        try:
            return os.stat(Path(self.location(name)) / LOG).st_ino
        except OSError:
            return 0

    def files(self) -> int:
        """How many data files all tables have together."""
        found = [self.open(name) for name in TABLES]
        return sum(len(table.file_uris()) for table in found if table is not None)

    def bytes(self, *names: str) -> int:
        """The size of the data files of some tables, all unless some are named."""
        found = [self.open(name) for name in names or TABLES]
        sizes = [pa.table(one.get_add_actions())["size_bytes"] for one in found if one is not None]
        return sum(sum(size.to_pylist()) for size in sizes)

    def forget(self, name: str) -> None:
        """Open a table anew next time: what is known of it may be older than its files."""
        with self._lock:
            self._tables.pop(name, None)

    def _address(self, name: str) -> str:
        """Hadoop calls object storage `s3a`, delta-rs calls it `s3`."""
        return self.location(name).replace("s3a://", "s3://", 1)


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all; raises `FileExistsError` if it is there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
