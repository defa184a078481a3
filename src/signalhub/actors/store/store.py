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
from urllib.parse import quote

import apsw

from signalhub.actors.store import schema
from signalhub.wire.errors import SettingsError, SignalHubError

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
BUSY_MS = 5_000
_CACHE_KIB = 65_536

Durability = Literal["power", "process"]


class StorageFailed(SignalHubError):
    """The disk failed during a transaction; all of it was rolled back."""

    code = "storage_failed"


class Store:
    """The open file. `path` may be `:memory:` for tests without crashes."""

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "power") -> None:
        self.path = os.fspath(path)
        self.connection = _open(self.path, durability)
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
        store.connection = _open_read_only(store.path)
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


def _open(path: str, durability: Durability) -> apsw.Connection:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        connection = apsw.Connection(path, statementcachesize=300)
    except (apsw.Error, OSError) as error:
        raise _unusable(path, str(error)) from error
    try:
        connection.set_busy_timeout(BUSY_MS)
        _check(connection, path)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "FULL" if durability == "power" else "NORMAL")
        connection.pragma("temp_store", "MEMORY")
        connection.pragma("cache_size", -_CACHE_KIB)
        # Plans must not depend on bound values, or every statement is compiled again.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    except apsw.Error as error:
        connection.close()
        raise _unusable(path, str(error)) from error
    except SettingsError:
        connection.close()
        raise
    return connection


def _open_read_only(path: str) -> apsw.Connection:
    # Without a write-ahead log no process has it open; then leave no new files beside it.
    is_at_rest = not os.path.exists(f"{path}-wal")
    options = "immutable=1" if is_at_rest else "mode=ro"
    try:
        connection = apsw.Connection(
            f"file:{quote(os.path.abspath(path))}?{options}",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )
    except apsw.Error as error:
        raise _unusable(path, str(error)) from error
    try:
        connection.set_busy_timeout(BUSY_MS)
        _check_owner(connection, path)
    except apsw.Error as error:
        connection.close()
        raise _unusable(path, str(error)) from error
    except SettingsError:
        connection.close()
        raise
    return connection


def _check(connection: apsw.Connection, path: str) -> None:
    """Check that the file is a host's store; create the tables if it is new."""
    if not connection.execute("SELECT count(*) FROM sqlite_schema").get:
        with connection:
            connection.execute(schema.CREATE)
        return
    _check_owner(connection, path)


def _check_owner(connection: apsw.Connection, path: str) -> None:
    if connection.pragma("application_id") != schema.APPLICATION_ID:
        raise _unusable(path, "it is a database of another program")
    version = connection.pragma("user_version")
    if version > schema.VERSION:
        raise _unusable(path, f"its version is {version}, this program knows {schema.VERSION}")


def _unusable(path: str, reason: str) -> SettingsError:
    return SettingsError(
        f"{path} cannot be used: {reason}. It was left unchanged; choose another data folder"
    )
