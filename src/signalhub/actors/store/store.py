"""One host's SQLite file: opening it, transactions, and a few facts about the host itself.

One thread uses it. A turn is one transaction; each message in it has a savepoint. `StorageFailed`
means that the whole transaction was rolled back.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import apsw

from signalhub.actors.store.schema import ADDED, SCHEMA
from signalhub.sqlite import open_file, open_read_only
from signalhub.wire.errors import SignalHubError

# These end a turn; any other SQLite error is caused by the statement.
STORAGE_ERRORS = (
    apsw.FullError,
    apsw.IOError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.NoMemError,
    apsw.BusyError,
    apsw.LockedError,
)
_STATEMENTS = 300
_CACHE_KIB = 65_536

Durability = Literal["power", "process"]


class StorageFailed(SignalHubError):
    """The disk failed during a transaction; all of it was rolled back."""

    code = "storage_failed"


class HostStore:
    """The open file. `path` may be `:memory:` for tests without crashes."""

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "power") -> None:
        self.path = os.fspath(path)
        self.connection = open_file(
            self.path, SCHEMA, lambda opened: _prepare(opened, durability), statements=_STATEMENTS
        )
        # After a failure that rolled back the transaction, SQLite would commit every statement
        # by itself; a handler that ignored the failure must not get that far.
        self._is_commit_refused = False
        self.connection.set_commit_hook(lambda: self._is_commit_refused)
        self.execute = self.connection.execute
        self.executemany = self.connection.executemany

    @classmethod
    def read_only(cls, path: str | os.PathLike[str]) -> Self:
        """Open the file of a running or stopped host read-only."""
        store = cls.__new__(cls)
        store.path = os.fspath(path)
        store.connection = open_read_only(store.path, SCHEMA)
        store.execute = store.connection.execute
        store.executemany = store.connection.executemany
        return store

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction; raises `StorageFailed` if the disk fails."""
        try:
            self.execute("BEGIN IMMEDIATE")
        except STORAGE_ERRORS as error:
            raise StorageFailed(f"{self.path}: {error}") from error
        try:
            self._is_commit_refused = True
            yield
            self._is_commit_refused = False
            self.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, STORAGE_ERRORS):
                raise StorageFailed(f"{self.path}: {error}") from error
            raise
        finally:
            self._is_commit_refused = False

    def _roll_back(self) -> None:
        # Some failures, such as a full disk, have already rolled back.
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def begin(self) -> None:
        """Start the savepoint of one message."""
        self.execute("SAVEPOINT message")

    def keep(self) -> None:
        """Keep the message's changes."""
        self._check_transaction()
        self.execute("RELEASE message")

    def undo(self) -> None:
        """Roll the message's changes back."""
        self._check_transaction()
        self.execute("ROLLBACK TO message")
        self.execute("RELEASE message")

    def _check_transaction(self) -> None:
        """Check that no failure has rolled back the whole transaction, with the savepoint.

        If so, the turn ends, even if the handler ignored the failure.
        """
        if not self.connection.in_transaction:
            raise StorageFailed(f"{self.path}: the transaction was rolled back")

    def get_meta(self, key: str) -> Any:
        return self.execute("SELECT value FROM meta WHERE key = ?", (key,)).get

    def put_meta(self, key: str, value: object) -> None:
        self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def is_of_disk(error: BaseException) -> bool:
    """Has the host's own file failed, rather than a database used by a method?"""
    return isinstance(error, STORAGE_ERRORS) and _is_raised_here(error)


def _is_raised_here(error: BaseException) -> bool:
    """Was SQLite called by this package, not by the code of an actor?"""
    module = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # APSW adds frames for its C code, which have no module.
        module = frame.f_globals.get("__name__", module)
    return module.partition(".")[0] == __name__.partition(".")[0]


def _prepare(connection: apsw.Connection, durability: Durability) -> None:
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL" if durability == "power" else "NORMAL")
    connection.execute(ADDED)
    # SQLite cannot add a column only if it does not exist.
    if not connection.execute(
        "SELECT 1 FROM pragma_table_info('outbox') WHERE name = 'since_ms'"
    ).get:
        connection.execute("ALTER TABLE outbox ADD COLUMN since_ms INTEGER")
    connection.pragma("temp_store", "MEMORY")
    connection.pragma("cache_size", -_CACHE_KIB)
    # Plans must not depend on bound values, or every statement is compiled again.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
