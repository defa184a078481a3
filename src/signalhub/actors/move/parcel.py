"""All rows of one actor: read from one store and written to another.

Each host counts its own time, so in a parcel times are those of the wall clock, which two hosts
have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import apsw
import msgspec

from signalhub.actors import wire
from signalhub.actors.api.schedules import WALL_TYPES, is_of_wall
from signalhub.actors.api.state import authorizer, check_definition, table_prefix
from signalhub.actors.kernel.outbox import FROZEN
from signalhub.actors.store.host_time import HostTime
from signalhub.actors.store.schema import HELD_MS, VERSION
from signalhub.actors.store.store import HostStore
from signalhub.ids import is_ulid, time_of

# Tables with a column `actor` whose rows are moved unchanged.
_PLAIN: Final = ("pending", "keys", "deferred", "offloads", "alarms", "dead", "state")
# SQLite keeps a value of any type in any column, so the types are checked here.
_Ms = Annotated[int, msgspec.Meta(ge=-HELD_MS, le=HELD_MS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Blob = bytes | None
# The columns of the rows of a parcel; the first one is always the actor.
_ROWS: Final[dict[str, Any]] = {
    "pending": tuple[str, str, str, str, _Blob, _Blob, _Count, bytes, _Ms | None, str | None],
    "keys": tuple[str, str, str, _Ms],
    "deferred": tuple[str, str, str, str],
    "offloads": tuple[str, str, str, bytes],
    "alarms": tuple[str, str, str, _Ms, _Ms, str, bytes, _Count, _Count, str, str, str | None],
    "dead": tuple[str, str, str, str, bytes, str, _Count, _Ms],
    "state": tuple[str, str, bytes],
    "inbox": tuple[str, str, wire.Kind, str, str, bytes, _Count, _Ms],
    "outbox": tuple[str, str, str, wire.Kind, str, str, _Count, bytes, _Count, _Ms | None],
    "done": tuple[str, str, _Ms],
}
# Columns of the host's own time, except those of `alarms` and `inbox`.
_OWN_TIMES: Final = {"pending": 8, "keys": 3, "outbox": 9}
# Without `since_ms`, which 0.1.0 does not have.
_OUTBOX: Final = (
    "actor, dest, msg_id, kind, call_id, host, is_ordered, payload, attempts, expires_ms"
)
# A parcel that this host has refused is evidence of the host, not a row of the actor.
REFUSED: Final = "refused"
PARCEL_BYTES_MAX: Final = 256 * 2**20
_OWN: Final = {"dead": f" AND origin != '{REFUSED}'"}
# Clocks of hosts differ, and ids stay ahead of one that was set back; ids from further ahead
# would be forced on all other actors.
_AHEAD_MS_MAX: Final = 30 * 24 * 3_600_000
# Names of the row id, unless the table is WITHOUT ROWID.
_ROW_IDS: Final = ("rowid", "_rowid_", "oid")
_EVERY: Final = (*_PLAIN, "inbox", "outbox", "done")

Columns = list[Any]


class ParcelRefused(ValueError):
    """The parcel contains more than one actor's rows and tables; the text says what."""


class ActorTable(msgspec.Struct):
    """A table of the actor's own, made with `state.sql`."""

    statements: list[str]
    name: str
    # The columns to insert: the row id if there is one, but no generated columns.
    columns: list[str]
    rows: list[Columns]
    # The highest id given by AUTOINCREMENT, if used.
    sequence: int | None = None


class Parcel(msgspec.Struct):
    """Everything an actor has."""

    actor: str
    last_id: str
    plain: dict[str, list[Columns]]
    inbox: list[Columns]
    outbox: list[Columns]
    done: list[Columns]
    tables: list[ActorTable]
    # Rows are moved unchanged, so both hosts must have the same tables.
    version: int = VERSION
    # When messages to send were made, by their ids; 0.1.0 knows only the time in the id.
    since: dict[str, _Ms] = {}

    @property
    def is_empty(self) -> bool:
        """Does it contain nothing worth keeping?"""
        rows = any(rows for table, rows in self.plain.items() if table != "keys")
        return not (rows or self.outbox or self.inbox or self.tables)

    @classmethod
    def collect(cls, store: HostStore, actor: str, last_id: str, time: HostTime) -> Parcel:
        execute = store.execute
        ahead_ms = time.ahead_ms
        plain = {
            table: [
                _shifted(table, list(row), ahead_ms)
                for row in execute(
                    f"SELECT * FROM {table} WHERE actor = ?{_OWN.get(table, '')}",  # noqa: S608
                    (actor,),
                )
            ]
            for table in _PLAIN
        }
        return cls(
            actor,
            last_id,
            plain,
            [_shifted("inbox", row, ahead_ms) for row in _inbox(store, actor)],
            [
                _shifted("outbox", list(row), ahead_ms)
                for row in execute(
                    f"SELECT {_OUTBOX} FROM outbox WHERE actor = ? ORDER BY msg_id",  # noqa: S608
                    (actor,),
                )
            ],
            cls.done_of(store, actor),
            _tables(store, actor),
            since={
                str(msg_id): time.shown(since_ms)
                for msg_id, since_ms in execute(
                    "SELECT msg_id, since_ms FROM outbox WHERE actor = ?", (actor,)
                )
            },
        )

    def check(self, actor: str, wall_ms: int) -> None:
        """Check row by row that everything belongs to this actor; raises `ParcelRefused`."""
        if self.actor != actor:
            raise ParcelRefused(f"it contains {self.actor!r:.100}")
        if unknown := self.plain.keys() - set(_PLAIN):
            raise ParcelRefused(f"it contains rows of the table {min(unknown)!r:.100}")
        every = self.plain | {"inbox": self.inbox, "outbox": self.outbox, "done": self.done}
        for name, rows in every.items():
            for row in rows:
                try:
                    # Without `builtin_types` text would do for bytes, if it were base64.
                    msgspec.convert(row, _ROWS[name], builtin_types=(bytes,))
                except msgspec.ValidationError as error:
                    raise ParcelRefused(f"a row of the table {name}: {error}") from None
                if row[0] != actor:
                    raise ParcelRefused(f"a row of the table {name} belongs to {row[0]!r:.100}")
        for name, address, rows in (("inbox", 0, self.inbox), ("outbox", 1, self.outbox)):
            for row in rows:
                _check_message(name, row, row[address])
        if not is_ulid(self.last_id) or time_of(self.last_id) > wall_ms + _AHEAD_MS_MAX:
            raise ParcelRefused(f"its last id is {self.last_id!r:.100}")
        if any(not is_ulid(row[2]) or row[2] > self.last_id for row in self.outbox):
            raise ParcelRefused("the id of a message to send is none, or greater than its last id")
        prefix = table_prefix(actor)
        for table in self.tables:
            if not table.name.startswith(prefix):
                raise ParcelRefused(f"the table {table.name!r:.100} belongs to somebody else")
            for statement in table.statements:
                try:
                    check_definition(actor, statement)
                except ValueError as error:
                    raise ParcelRefused(str(error)) from error

    def insert(self, store: HostStore, new_id: Callable[[], str], time: HostTime) -> None:
        """Write all rows; raises `ParcelRefused` for statements that reach beyond the actor."""
        behind_ms = -time.ahead_ms
        for name in _PLAIN:
            for given in self.plain.get(name, []):
                row = _shifted(name, given, behind_ms)
                marks = ", ".join("?" * len(row))
                store.execute(f"INSERT OR REPLACE INTO {name} VALUES ({marks})", tuple(row))  # noqa: S608
        for row in self.inbox:
            self.put_inbox(store, _shifted("inbox", row, behind_ms), new_id())
        for given in self.outbox:
            row = _shifted("outbox", given, behind_ms)
            made_ms = time.own(self.since.get(row[2], time_of(row[2])))
            store.execute(
                "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                # Not in the future, or it would be tried for longer than others remember it.
                (*row[:5], FROZEN, *row[6:], min(made_ms, time.own_ms)),
            )
        self.put_done(store, self.done)
        for table in self.tables:
            _define(store, self.actor, table)
            _fill(store, table)

    @staticmethod
    def delete(store: HostStore, actor: str) -> None:
        """Delete everything of the actor except what the host knows about its place."""
        for name in _EVERY:
            store.execute(f"DELETE FROM {name} WHERE actor = ?{_OWN.get(name, '')}", (actor,))  # noqa: S608
        for table in _tables(store, actor, with_rows=False):
            store.execute(f'DROP TABLE "{_quoted(table.name)}"')

    @staticmethod
    def take_inbox(store: HostStore, actor: str) -> list[Columns]:
        """Remove and return, in order, the messages that came while the actor was moving."""
        rows = _inbox(store, actor)
        store.execute("DELETE FROM inbox WHERE actor = ?", (actor,))
        return rows

    @staticmethod
    def done_of(store: HostStore, actor: str) -> list[Columns]:
        """The requests the actor has accepted."""
        rows = store.execute(
            "SELECT actor, call_id, accepted_ms FROM done WHERE actor = ?", (actor,)
        )
        return [list(row) for row in rows]

    @staticmethod
    def put_done(store: HostStore, rows: list[Columns]) -> None:
        store.executemany(
            "INSERT OR IGNORE INTO done (actor, call_id, accepted_ms) VALUES (?, ?, ?)",
            [tuple(row) for row in rows],
        )

    @staticmethod
    def put_inbox(store: HostStore, row: Columns, arrival_id: str) -> None:
        """Append held messages; duplicates are ignored."""
        actor, _, kind, call_id, sender, payload, attempts, not_before_ms = row
        held = not_before_ms if not_before_ms < 0 else HELD_MS
        store.execute(
            "INSERT OR IGNORE INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (actor, arrival_id, kind, call_id, sender, payload, attempts, held),
        )


def _check_message(table: str, row: Columns, address: str) -> None:
    """A message that cannot be read would end every turn it is part of."""
    kind, payload = (row[2], row[5]) if table == "inbox" else (row[3], row[7])
    try:
        message = wire.decode(payload)
    except (ValueError, RecursionError) as error:
        raise ParcelRefused(f"a message of the table {table} cannot be read: {error}") from None
    if (message.kind, message.to) != (kind, address):
        raise ParcelRefused(
            f"a message of the table {table} is a {message.kind} to {message.to!r:.100}"
        )


def _inbox(store: HostStore, actor: str) -> list[Columns]:
    found = store.execute("SELECT * FROM inbox WHERE actor = ? ORDER BY arrival_id", (actor,))
    return [list(row) for row in found]


def _shifted(table: str, row: Columns, by_ms: int) -> Columns:
    """A row whose own times are later by so much; times of the wall clock stay."""
    if not by_ms:
        return row
    row = list(row)
    if table == "alarms":
        kind, due_ms, occurrence_ms = row[2:5]
        if not is_of_wall(kind, due_ms, occurrence_ms):
            row[3] += by_ms
        if kind not in WALL_TYPES:
            row[4] += by_ms
    elif table == "inbox":
        pause_ms = row[7]
        if pause_ms and abs(pause_ms) < HELD_MS:
            row[7] += by_ms if pause_ms > 0 else -by_ms
    elif (column := _OWN_TIMES.get(table)) is not None and row[column] is not None:
        row[column] += by_ms
    return row


def _tables(store: HostStore, actor: str, *, with_rows: bool = True) -> list[ActorTable]:
    prefix = table_prefix(actor)
    found = store.execute(
        "SELECT tbl_name, type, sql FROM sqlite_schema WHERE substr(tbl_name, 1, ?) = ?"
        " AND sql IS NOT NULL ORDER BY type DESC",
        (len(prefix), prefix),
    ).fetchall()
    tables: dict[str, ActorTable] = {}
    for name, _, sql in found:
        tables.setdefault(str(name), ActorTable([], str(name), [], [])).statements.append(str(sql))
    if with_rows:
        for table in tables.values():
            table.columns = _columns(store, table.name)
            rows = store.execute(f'SELECT {_listed(table.columns)} FROM "{_quoted(table.name)}"')  # noqa: S608
            table.rows = [list(row) for row in rows]
            if _has_sequences(store):
                table.sequence = store.execute(
                    "SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,)
                ).get
    return list(tables.values())


def _columns(store: HostStore, table: str) -> list[str]:
    found = store.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
    columns = [str(name) for name, hidden in found if not hidden]
    if store.execute("SELECT wr FROM pragma_table_list WHERE name = ?", (table,)).get:
        return columns
    # A column may shadow a name of the row id; if all names are shadowed, it is inaccessible.
    taken = {str(name).lower() for name, _ in found}
    return [*[name for name in _ROW_IDS if name not in taken][:1], *columns]


def _define(store: HostStore, actor: str, table: ActorTable) -> None:
    """Create a table and its indexes, with no more rights than the actor's own statements."""
    allowed = authorizer(actor)

    def authorize(operation: int, *names: str | None) -> int:
        # A definition with a query could read, or run for ever.
        return apsw.SQLITE_DENY if operation == apsw.SQLITE_SELECT else allowed(operation, *names)

    store.settle()
    connection = store.connection
    connection.authorizer = authorize
    try:
        for statement in table.statements:
            store.execute(statement)
    except apsw.AuthError as error:
        raise ParcelRefused(f"{error}: {statement!r:.200}") from error
    finally:
        connection.authorizer = None


def _fill(store: HostStore, table: ActorTable) -> None:
    if table.rows:
        marks = ", ".join("?" * len(table.columns))
        store.executemany(
            f'INSERT INTO "{_quoted(table.name)}" ({_listed(table.columns)}) VALUES ({marks})',  # noqa: S608
            [tuple(row) for row in table.rows],
        )
    if table.sequence is not None:
        store.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table.name,))
        store.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table.name, table.sequence))


def _has_sequences(store: HostStore) -> bool:
    """The table exists after the first use of AUTOINCREMENT."""
    return bool(store.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'").get)


def _listed(columns: list[str]) -> str:
    return ", ".join(f'"{_quoted(column)}"' for column in columns)


def _quoted(name: str) -> str:
    return name.replace('"', '""')


pack = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parcel).decode


def unpack(data: bytes) -> Parcel:
    """Raises `ValidationError` for what is no parcel, another `DecodeError` for part of one."""
    try:
        return _decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.ValidationError(str(error)) from None
