"""An actor's state: keys and values, and SQL on its own tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from signalhub.actors.api import payload
from signalhub.actors.store.store import HostStore

_TABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,62})\}")
# Statements that would affect the transaction around the handler.
_FORBIDDEN = re.compile(
    r"\s*(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|DETACH|PRAGMA|VACUUM|ANALYZE|REINDEX)\b",
    re.IGNORECASE,
)
# On a conflict this would, too, and without an error that ends the turn.
_ROLLS_BACK = re.compile(r"\b(OR|CONFLICT)\s+ROLLBACK\b", re.IGNORECASE)
_QUOTED_OR_COMMENT = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL
)

# SQLite accesses these tables itself when a table is created or dropped, and the authorizer cannot
# tell that from an access by the statement; so the text must not name them. Not even in quotes or
# comments: a name may be quoted in several ways, and finding comments would need a tokenizer.
_OF_SQLITE = re.compile(r"\bsqlite_", re.IGNORECASE)

_DEFINITION = re.compile(r"CREATE\s+(TABLE|(UNIQUE\s+)?INDEX)\s", re.IGNORECASE)

_SPECIAL = re.compile("[A-Z:^]")


Rows = list[tuple[Any, ...]]
Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]


def table_of(actor: str, name: str) -> str:
    """The name of an actor's table in the host's file."""
    return f"{table_prefix(actor)}{name.lower()}"


def table_prefix(actor: str) -> str:
    """The prefix of the names of an actor's tables, unique to this actor.

    Names in SQLite are case-insensitive, keys of actors are case-sensitive; and a key may contain
    a colon.
    """
    return f"state:{_SPECIAL.sub(lambda found: f'^{found[0].lower()}', actor)}:"


class State:
    """Reads and writes within the running handler's transaction."""

    def __init__(self, store: HostStore, actor: str, max_depth: int, max_bytes: int) -> None:
        self._store = store
        self._execute = store.execute
        self._actor = actor
        self._max_depth = max_depth
        self._max_bytes = max_bytes

    def get(self, key: str, default: Any = None) -> Any:
        found = self._execute(
            "SELECT value FROM state WHERE actor = ? AND key = ?", (self._actor, key)
        ).fetchone()
        return default if found is None else payload.decode(found[0])

    def put(self, key: str, value: Any) -> None:
        """Store a copy of a value; raises `PayloadError` if it cannot be encoded."""
        if not isinstance(key, str):
            raise TypeError(f"keys of the state must be strings, not {type(key).__name__}")
        data = payload.encode(value, max_depth=self._max_depth, max_bytes=self._max_bytes)
        self._execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (self._actor, key, data))

    def delete(self, key: str) -> bool:
        """Delete a key; returns whether it existed."""
        self._execute("DELETE FROM state WHERE actor = ? AND key = ?", (self._actor, key))
        return bool(self._store.connection.changes())

    def list(self, prefix: str = "", *, limit: int | None = None) -> dict[str, Any]:
        """Keys with this prefix, in order, and their values."""
        rows = self._execute(
            "SELECT key, value FROM state WHERE actor = ? AND key >= ? ORDER BY key",
            (self._actor, prefix),
        )
        found: dict[str, Any] = {}
        for key, data in rows:
            if not key.startswith(prefix) or (limit is not None and len(found) >= limit):
                break
            found[key] = payload.decode(data)
        return found

    def sql(self, statement: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> Rows:
        """Run one statement on tables of this actor, written in braces: `SELECT * FROM {items}`.

        Returns the rows, if any.
        """
        _check(statement)
        text = _TABLE.sub(lambda found: f'"{self._quoted(found[1])}"', statement)
        # The actor may not execute what the host has to do before.
        self._store.settle()
        connection = self._store.connection
        connection.authorizer = authorizer(self._actor)
        try:
            return list(
                self._execute(
                    text, tuple(parameters) if isinstance(parameters, list) else parameters
                )
            )
        except apsw.AuthError as error:
            raise ValueError(
                f"{error}: write the actor's own tables in braces, such as {{items}}; others are "
                "not accessible"
            ) from error
        except apsw.NoMemError as error:
            # As a storage failure, the turn would run the same statement again and again.
            raise MemoryError("not enough memory for the statement") from error
        finally:
            connection.authorizer = None

    def _quoted(self, name: str) -> str:
        return table_of(self._actor, name).replace('"', '""')


def authorizer(actor: str) -> Authorizer:
    """Allow an actor's own tables and indexes, and SQLite's, see `_OF_SQLITE`."""
    prefix = table_prefix(actor)

    def authorize(
        operation: int,
        first: str | None,
        second: str | None,
        database: str | None,
        trigger: str | None,
    ) -> int:
        if operation in _ON_TABLES:
            # Index names share one namespace in the file, too.
            names = [first, second] if operation in _ON_INDEXES else [first]
            for name in names:
                if name and not name.startswith((prefix, "sqlite_")):
                    return apsw.SQLITE_DENY
        elif operation in _NEVER:
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK

    return authorize


def check_definition(actor: str, statement: str) -> None:
    """Check the definition of one of an actor's tables or indexes, as SQLite has stored it."""
    if not _DEFINITION.match(statement):
        raise ValueError(f"not the definition of a table or an index: {statement!r:.100}")
    # The names of its own tables may contain anything: the key of an actor is chosen freely.
    _check(statement.replace(table_prefix(actor).replace('"', '""'), " "))


def _check(statement: str) -> None:
    """Refuse what the authorizer is not asked about, or asked too late."""
    if _FORBIDDEN.match(statement):
        raise ValueError(
            "state.sql runs in the handler's transaction and cannot begin, end or leave it"
        )
    if _ROLLS_BACK.search(_QUOTED_OR_COMMENT.sub(" ", statement)):
        raise ValueError(
            "state.sql runs in the handler's transaction, which a conflict cannot roll back; "
            "use ABORT, which raises, instead of ROLLBACK"
        )
    if _OF_SQLITE.search(_TABLE.sub(" ", statement)):
        raise ValueError(
            "state.sql cannot use names that begin with sqlite_, shared by all actors of the host: "
            "write the actor's tables in braces, such as {items}, and pass strings as parameters"
        )


_ON_INDEXES = frozenset({apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_DROP_INDEX})
_ON_TABLES = _ON_INDEXES | frozenset(
    {
        apsw.SQLITE_READ,
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_DROP_TABLE,
    }
)
_NEVER = frozenset(
    {
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
        apsw.SQLITE_TRANSACTION,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_CREATE_VIEW,
        apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_CREATE_VTABLE,
        apsw.SQLITE_DROP_VTABLE,
        apsw.SQLITE_CREATE_TEMP_TABLE,
        apsw.SQLITE_CREATE_TEMP_VIEW,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_INDEX,
    }
)
