"""One host's SQLite file: opening it, transactions, and a few facts about the host itself.

One thread uses it. A turn is one transaction; each message in it has a savepoint. `StorageFailed`
means that the whole transaction was rolled back.

Rows that are only added or deleted can wait for each other (`add_later`): they are written before
the next statement, or with the commit, so that many of a turn share one statement. A savepoint
begins with the first statement after it, because most messages execute none.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, Self

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
_BEGIN: Final = "SAVEPOINT message"
_KEEP: Final = "RELEASE message"

Durability = Literal["power", "process"]


class StorageFailed(SignalHubError):
    """The disk failed during a transaction; all of it was rolled back."""

    code = "storage_failed"


class HostStore:
    """The open file. `path` may be `:memory:` for tests without crashes."""

    # Rows that wait, with their statements, in the order in which they were given.
    _waiting: list[tuple[str, tuple[Any, ...]]]
    # For each savepoint, how many rows waited before it; the first ones have begun.
    _levels: list[int]
    _begun: int
    # Why waiting rows could not be written: the turn must end.
    _fault: BaseException | None

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "power") -> None:
        self.path = os.fspath(path)
        self.connection = open_file(
            self.path, SCHEMA, lambda opened: _prepare(opened, durability), statements=_STATEMENTS
        )
        # After a failure that rolled back the transaction, SQLite would commit every statement
        # by itself; a handler that ignored the failure must not get that far.
        self._is_commit_refused = False
        self.connection.set_commit_hook(lambda: self._is_commit_refused)
        self._run, self._run_each = self.connection.execute, self.connection.executemany
        self._forget_waiting()

    @classmethod
    def read_only(cls, path: str | os.PathLike[str]) -> Self:
        """Open the file of a running or stopped host read-only."""
        store = cls.__new__(cls)
        store.path = os.fspath(path)
        store.connection = open_read_only(store.path, SCHEMA)
        store._run, store._run_each = store.connection.execute, store.connection.executemany
        store._forget_waiting()
        return store

    def close(self) -> None:
        self.connection.close()

    def execute(self, statement: str, values: Any = None) -> apsw.Cursor:
        if self._waiting or self._begun < len(self._levels):
            self.settle()
        return self._run(statement, values)

    def executemany(self, statement: str, rows: Iterable[Any]) -> apsw.Cursor:
        if self._waiting or self._begun < len(self._levels):
            self.settle()
        return self._run_each(statement, rows)

    def add_later(self, statement: str, row: tuple[Any, ...]) -> None:
        """Execute a statement that adds one row, before the next other one.

        What `delete_later` deletes is deleted after all is added: settle before a row with the
        same key is added again.
        """
        self._waiting.append((statement, row))

    delete_later = add_later

    def settle(self) -> None:
        """Begin the savepoints that have not begun, and write the rows that wait."""
        self._raise_fault()
        written = 0
        try:
            for mark in self._levels[self._begun :]:
                self._write(self._waiting[written:mark])
                written = mark
                self._run(_BEGIN)
                self._begun += 1
            self._write(self._waiting[written:] if written else self._waiting)
        except BaseException as fault:
            # Rows of other messages may be missing now, even if a handler ignores the failure.
            self._fault = fault
            raise
        self._waiting.clear()

    def _write(self, waiting: list[tuple[str, tuple[Any, ...]]]) -> None:
        by_statement: dict[str, list[tuple[Any, ...]]] = {}
        for statement, row in waiting:
            rows = by_statement.get(statement)
            if rows is None:
                by_statement[statement] = [row]
            else:
                rows.append(row)
        for statement in sorted(by_statement, key=_is_deletion):
            self._run_each(statement, by_statement[statement])

    def _forget_waiting(self) -> None:
        """There is no transaction."""
        self._waiting, self._levels, self._begun = [], [], 0
        self._fault = None

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

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
            self.settle()
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
        self._forget_waiting()
        # Some failures, such as a full disk, have already rolled back.
        if self.connection.in_transaction:
            self._run("ROLLBACK")

    def begin(self) -> None:
        """Start the savepoint of one message."""
        self._levels.append(len(self._waiting))

    def keep(self) -> None:
        """Keep the message's changes."""
        if self._end():
            self._run(_KEEP)

    def undo(self) -> None:
        """Roll the message's changes back."""
        mark = self._levels[-1]
        if not self._end():
            del self._waiting[mark:]
            return
        # What waits was given after the savepoint began.
        self._waiting.clear()
        self._run("ROLLBACK TO message")
        self._run(_KEEP)

    def _end(self) -> bool:
        """The last savepoint ends; has it begun?"""
        self._raise_fault()
        if self._begun < len(self._levels):
            self._levels.pop()
            return False
        self._check_transaction()
        self._levels.pop()
        self._begun -= 1
        return True

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


def _is_deletion(statement: str) -> bool:
    return statement.startswith("DELETE")


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
