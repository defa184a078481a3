"""The state of an actor: values by key, and SQL on tables of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from signalhub.actors import RemoteError
from signalhub.actors.api.state import table_of, table_prefix
from tests.support.actors.scripted import Scripted, Stage, stored


class Keeper(Scripted):
    """Keeps what it is given."""


class Small(Scripted):
    config_overrides: ClassVar = {"max_depth": 3, "max_payload_bytes": 1_000}


@pytest.fixture
def local() -> Stage:
    return Stage(Keeper, Small)


def put(local: Stage, key: Any, value: Any, address: str = "keeper/1") -> None:
    local.do(address, lambda self: self.state.put(key, value))


def sql(local: Stage, address: str, *statements: Any) -> Any:
    """Run statements, some with parameters; the rows of the last."""

    def run(self: Keeper) -> Any:
        made = [one if isinstance(one, tuple) else (one,) for one in statements]
        return [self.state.sql(*one) for one in made][-1]

    return local.do(address, run)


@pytest.mark.parametrize(
    "value",
    [None, 0, "", [1, [2]], (1, 2), {"a": {3}}, b"x", Decimal("1.10"), datetime.now(UTC), 2**80],
)
def test_a_value_is_the_same_after_storing(local: Stage, value: Any) -> None:
    put(local, "k", value)

    assert local.state("keeper/1").get("k", "absent") == value


def test_values_are_stored_by_copy_deleted_and_have_defaults(local: Stage) -> None:
    def use(self: Keeper) -> list[Any]:
        items = [1]
        self.state.put("items", items)
        items.append(2)
        self.state.get("items").append(3)
        kept = self.state.get("items")
        return [kept, self.state.delete("items"), self.state.delete("items")]

    assert local.do("keeper/1", use) == [[1], True, False]
    state = local.state("keeper/1")
    assert (state.get("items"), state.get("items", 7)) == (None, 7)


def test_keys_are_listed_in_order_by_prefix_and_up_to_a_limit(local: Stage) -> None:
    for key in ("b", "a:2", "a:10", "a", "ä", "a:\uffff"):
        put(local, key, key)
    state = local.state("keeper/1")

    assert list(state.list()) == ["a", "a:10", "a:2", "a:\uffff", "b", "ä"]
    assert state.list("a:") == {"a:10": "a:10", "a:2": "a:2", "a:\uffff": "a:\uffff"}
    assert list(state.list("a", limit=2)) == ["a", "a:10"]
    assert state.list("c") == local.state("keeper/2").list() == {}


def test_a_wrong_key_and_a_value_that_is_too_large_or_too_deep_are_refused(local: Stage) -> None:
    with pytest.raises(TypeError, match="keys of the state must be strings, not int"):
        put(local, 7, 1)
    values: list[Any] = ["x" * 1_000, [[[[]]]]]
    for value in values:
        with pytest.raises(RemoteError):
            put(local, "k", value, "small/1")
    assert local.state("small/1").list() == {}


CREATE = "CREATE TABLE IF NOT EXISTS {items} (name TEXT, count INTEGER)"


def test_a_handler_that_raises_has_changed_nothing(local: Stage) -> None:
    def change_and_raise(self: Keeper) -> None:
        self.state.put("k", 2)
        self.state.delete("before")
        raise ValueError("no")

    put(local, "before", 1)
    with pytest.raises(ValueError, match="no"):
        local.do("keeper/1", change_and_raise)

    assert local.state("keeper/1").list() == {"before": 1}


def test_sql_is_part_of_the_handlers_transaction(tmp_path: Path) -> None:
    def drop_and_raise(self: Keeper) -> None:
        self.state.sql("INSERT INTO {items} VALUES ('x', 1)")
        self.state.sql("DROP TABLE {items}")
        raise ValueError("no")

    local = stored(tmp_path, Keeper)
    sql(local, "keeper/1", CREATE, "INSERT INTO {items} VALUES ('mug', 1)")
    with pytest.raises(ValueError, match="no"):
        local.do("keeper/1", drop_and_raise)
    local.restart()

    assert sql(local, "keeper/1", "SELECT * FROM {items}") == [("mug", 1)]


def test_tables_named_in_braces_are_the_actors_own(local: Stage) -> None:
    for key in (1, 2):
        rows = sql(
            local,
            f"keeper/{key}",
            CREATE,
            ("INSERT INTO {items} VALUES (?, ?)", ["mug", key]),
            ("INSERT INTO {Items} VALUES (:name, :count)", {"name": "cup", "count": 0}),
            "SELECT * FROM {items} ORDER BY name",
        )
        assert rows == [("cup", 0), ("mug", key)]


COUNTED = "CREATE TABLE IF NOT EXISTS {items} (id INTEGER PRIMARY KEY AUTOINCREMENT, name UNIQUE)"


def test_tables_can_be_joined_indexed_changed_and_dropped(local: Stage) -> None:
    # SQLite keeps books of it in tables that no statement may name.
    local.kernel.store.execute("ANALYZE")
    rows = sql(
        local,
        "keeper/1",
        *(COUNTED, COUNTED, "CREATE UNIQUE INDEX {by_name} ON {items} (name)"),
        "INSERT INTO {items} (name) VALUES ('mug'), ('cup')",
        "DELETE FROM {items}",
        "INSERT INTO {items} (name) VALUES ('pot') ON CONFLICT (name) DO UPDATE SET name = 'pan'",
        "CREATE TABLE {copy} AS SELECT * FROM {items}",
        "CREATE TABLE {plain} (name TEXT PRIMARY KEY, price INTEGER) WITHOUT ROWID",
        "INSERT INTO {plain} VALUES ('pot', 5)",
        "WITH some AS (SELECT * FROM {items} WHERE id > 1)"
        " SELECT id * price FROM some JOIN {plain} USING (name)",
    )
    assert rows == [(15,)]
    drops = [f"DROP {one}" for one in ("INDEX {by_name}", "TABLE {items}", "TABLE {plain}")]
    assert sql(local, "keeper/1", *drops, "SELECT * FROM {copy}") == [(3, "pot")]
    assert sql(local, "keeper/1", COUNTED, "SELECT * FROM {items}") == []
    # Names in braces and parameters may be those of SQLite.
    named = (
        "CREATE TABLE {sqlite_schema} (my_sqlite_column)",
        ("INSERT INTO {sqlite_schema} VALUES (?)", ["sqlite_schema"]),
        "SELECT my_sqlite_column FROM {sqlite_schema}",
    )
    assert sql(local, "keeper/2", *named) == [("sqlite_schema",)]


OUTSIDE = [
    *["COMMIT", "  rollback", "SAVEPOINT x", "/* */ COMMIT", "SELECT 1; COMMIT", "VACUUM"],
    *["PRAGMA user_version = 7", "ATTACH 'x.db' AS x", "-- x\nPRAGMA journal_mode = DELETE"],
    *["SELECT * FROM state", "SELECT count(*) FROM pending", "DROP TABLE state"],
    *["SELECT value FROM state WHERE actor = ? AND key = ?", "DELETE FROM outbox"],
    *["UPDATE meta SET value = 1", "INSERT INTO {items} SELECT actor, 1 FROM inbox"],
    *["CREATE TABLE mine (x)", "CREATE INDEX by_name ON {items} (name)"],
    *["CREATE VIEW {v} AS SELECT 1", "CREATE TEMP TABLE t (x)"],
    "CREATE TRIGGER {t} AFTER INSERT ON {items} BEGIN SELECT 1; END",
    *["ALTER TABLE {items} RENAME TO state2", 'SELECT * FROM "state:keeper/2:items"'],
]
OF_SQLITE = [
    *["UPDATE sqlite_sequence SET seq = 1000", "DELETE FROM main.sqlite_sequence"],
    *["INSERT INTO Sqlite_Sequence VALUES ('x', 1)", "SELECT name FROM sqlite_schema"],
    *["SELECT count(*) FROM SQLITE_MASTER", 'SELECT * FROM "sqlite_master"'],
    *["SELECT * FROM 'sqlite_master'", "SELECT * FROM [sqlite_master]"],
    *["SELECT * FROM `sqlite_master`", "SELECT * FROM/**/sqlite_temp_schema"],
    *["SELECT * FROM sqlite_temp_master", "SELECT * FROM sqlite_stat1"],
    *["DROP TABLE sqlite_stat1", "INSERT INTO {items} (name) SELECT name FROM sqlite_schema"],
    "CREATE TABLE {copy} AS SELECT * FROM sqlite_schema",
    "DROP TABLE {items}; DELETE FROM sqlite_sequence",
    # To SQLite the first quote is part of a parameter's name, and nothing here is a comment.
    "SELECT $a('), \"' -- \", name FROM sqlite_schema",
]
ROLLED_BACK = [
    "INSERT OR ROLLBACK INTO {items} (name) VALUES ('mug')",
    "insert or\n\trollback into {items} (name) values ('mug')",
    "UPDATE OR/* 'x' */ROLLBACK {items} SET name = 'mug'",
    "REPLACE INTO {items} (name) VALUES ('it''s');"
    " INSERT OR -- x\n ROLLBACK INTO {items} (name) VALUES ('')",
    "CREATE TABLE {others} (name TEXT PRIMARY KEY ON CONFLICT ROLLBACK)",
    'CREATE TABLE {others} ("\'" TEXT, b UNIQUE ON CONFLICT ROLLBACK, "\'x")',
]
REFUSED = [
    *[(one, "cannot begin, end or leave it|others are not accessible") for one in OUTSIDE],
    *[(one, "write the actor's tables in braces") for one in OF_SQLITE],
    *[(one, "a conflict cannot roll back") for one in ROLLED_BACK],
]


@pytest.mark.parametrize(("statement", "expected"), REFUSED, ids=[row[0] for row in REFUSED])
def test_sql_stays_in_the_transaction_and_the_actor(
    local: Stage, statement: str, expected: str
) -> None:
    add = "INSERT INTO {items} (name) VALUES ('mug')"
    local.kernel.store.execute("ANALYZE")
    for key in ("1", "2"):
        sql(local, f"keeper/{key}", COUNTED, add)

    def try_it(self: Keeper) -> None:
        with pytest.raises(Exception, match=expected):
            self.state.sql(statement)

    local.do("keeper/1", try_it)

    for key in ("1", "2"):
        again = add.replace("mug", "cup")
        assert sql(local, f"keeper/{key}", again, "SELECT max(id) FROM {items}") == [(2,)]


@pytest.mark.parametrize(
    "text",
    ["'OR ROLLBACK'", "'it''s on CONFLICT ROLLBACK'", '1 AS "or rollback"', "1 -- or rollback"],
)
def test_texts_may_say_what_statements_may_not(local: Stage, text: str) -> None:
    assert sql(local, "keeper/1", f"SELECT {text}")


def test_a_wrong_statement_is_an_error_of_the_handler(local: Stage) -> None:
    with pytest.raises(RemoteError, match="syntax error"):
        sql(local, "keeper/1", "SELEKT 1")
    with pytest.raises(RemoteError, match="no such table"):
        sql(local, "keeper/1", "SELECT * FROM {absent}")

    assert sql(local, "keeper/1", "SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    ("one", "other"), [("A", "a"), ("x", "x:y"), ("^a", "A"), ("x^", "x"), ('a"b', "ab")]
)
def test_tables_of_actors_with_similar_keys_differ(local: Stage, one: str, other: str) -> None:
    sql(local, f"keeper/{one}", CREATE, "INSERT INTO {items} VALUES ('x', 1)")

    assert sql(local, f"keeper/{other}", CREATE, "SELECT * FROM {items}") == []
    prefixes = [table_prefix(f"keeper/{key}").lower() for key in (one, other)]
    assert not prefixes[0].startswith(prefixes[1])
    assert not prefixes[1].startswith(prefixes[0])
    name = table_of(f"keeper/{other}", "items").replace('"', '""')
    with pytest.raises(RemoteError, match="not accessible"):
        sql(local, f"keeper/{one}", f'SELECT * FROM "{name}"')
