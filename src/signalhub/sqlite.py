"""Open the SQLite files of Signal Hub.

The `application_id` identifies them, and `user_version` is the version of the schema: older ones
are migrated, newer ones refused. A file that cannot be used is left unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from signalhub.privacy import claim_file, make_folder
from signalhub.wire.errors import SettingsError

BUSY_MS = 5_000


class Schema(NamedTuple):
    """The schema of a file, and how to identify it."""

    application_id: int
    version: int
    create: str  # Also sets `application_id` and `user_version`.
    advice: str  # For the error if a file cannot be used.
    migrations: Mapping[int, str] = {}
    is_checked: bool = False  # Check the integrity before use.

    def unusable(self, path: str, reason: str) -> SettingsError:
        return SettingsError(
            f"{path} cannot be used: {reason}. It was left unchanged; {self.advice}"
        )


def open_file(
    path: str,
    schema: Schema,
    prepare: Callable[[apsw.Connection], object],
    *,
    statements: int = 100,
) -> apsw.Connection:
    """Open or create a file; `prepare` configures the connection, `statements` are cached."""

    def ready(connection: apsw.Connection) -> None:
        if connection.execute("SELECT count(*) FROM sqlite_schema").get:
            _check(connection, path, schema)
            _migrate(connection, path, schema)
        else:
            with connection:
                connection.execute(schema.create)
        prepare(connection)

    try:
        make_folder(Path(path).parent)
        if path != ":memory:":
            claim_file(path)
    except OSError as error:
        raise schema.unusable(path, str(error)) from error
    return _opened(
        path, schema, lambda: apsw.Connection(path, statementcachesize=statements), ready
    )


def open_read_only(path: str, schema: Schema) -> apsw.Connection:
    """Open a file read-only, even while another process uses it."""
    # Without a write-ahead log no process has it open; `immutable` then creates no new files.
    options = "mode=ro" if os.path.exists(f"{path}-wal") else "immutable=1"
    name = f"file:{quote(os.path.abspath(path))}?{options}"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return _opened(
        path,
        schema,
        lambda: apsw.Connection(name, flags=flags),
        lambda connection: _check(connection, path, schema),
    )


class PinnedFile:
    """A file as it was at one moment, to be copied while its owner goes on."""

    def __init__(self, path: str | os.PathLike[str], application_id: int) -> None:
        """Pin the last commit; raises `SettingsError` if it is no file of this kind."""
        self.path = os.fspath(path)
        try:
            self._connection = _connected(self.path)
            try:
                self._connection.execute("BEGIN")
                # The first read chooses the commit that all later ones see.
                self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
                found = self._connection.pragma("application_id")
                if found != application_id:
                    raise SettingsError(f"{self.path} is a database of another program")
            except BaseException:
                self._connection.close()
                raise
        except apsw.Error as error:
            raise SettingsError(f"{self.path} cannot be read: {error}") from error

    def get(self, query: str) -> object:
        """The first value of a query."""
        return self._connection.execute(query).get

    def copy_to(self, target: str | os.PathLike[str]) -> None:
        """Write a checked copy that only its owner can read; raises `SettingsError`."""
        name = os.fspath(target)
        claim_file(name)
        copy = apsw.Connection(name)
        try:
            with copy.backup("main", self._connection, "main") as running:
                running.step()
        except apsw.Error as error:
            raise SettingsError(f"{self.path} cannot be copied: {error}") from error
        finally:
            copy.close()
        if fault := damage_of(name):
            raise SettingsError(f"{self.path} is damaged: {fault}")

    def close(self) -> None:
        self._connection.close()


def damage_of(path: str | os.PathLike[str]) -> str | None:
    """The first fault of a file that no process uses; `None` if there is none."""
    name = f"file:{quote(os.path.abspath(path))}?immutable=1"
    try:
        connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            found = connection.execute("PRAGMA integrity_check(1)").get
        finally:
            connection.close()
    except apsw.Error as error:
        return str(error)
    return None if found == "ok" else str(found)


@contextmanager
def frozen(path: str | os.PathLike[str], wait_ms: int) -> Iterator[None]:
    """Let no process commit to a file while the block runs; raises `SettingsError`."""
    try:
        connection = _connected(os.fspath(path))
        try:
            connection.set_busy_timeout(wait_ms)
            connection.execute("BEGIN IMMEDIATE")
            yield
        finally:
            connection.close()
    except apsw.Error as error:
        raise SettingsError(f"{os.fspath(path)} cannot be locked: {error}") from error


def _connected(path: str) -> apsw.Connection:
    return apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)


def _opened(
    path: str,
    schema: Schema,
    connect: Callable[[], apsw.Connection],
    ready: Callable[[apsw.Connection], None],
) -> apsw.Connection:
    try:
        connection = connect()
        try:
            connection.set_busy_timeout(BUSY_MS)
            ready(connection)
        except BaseException:
            connection.close()
            raise
    except apsw.Error as error:
        raise schema.unusable(path, str(error)) from error
    return connection


def _check(connection: apsw.Connection, path: str, schema: Schema) -> None:
    if connection.pragma("application_id") != schema.application_id:
        raise schema.unusable(path, "it is a database of another program")
    version = connection.pragma("user_version")
    if version > schema.version:
        reason = f"its version is {version}, but this program supports only up to {schema.version}"
        raise schema.unusable(path, reason)


def _migrate(connection: apsw.Connection, path: str, schema: Schema) -> None:
    while (version := connection.pragma("user_version")) in schema.migrations:
        with connection:
            connection.execute(schema.migrations[version])
    if schema.is_checked:
        fault = connection.execute("PRAGMA integrity_check(1)").get
        if fault != "ok":
            raise schema.unusable(path, f"it is damaged: {fault}")
