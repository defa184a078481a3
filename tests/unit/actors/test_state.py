"""The state of an actor: values by key, and SQL on tables of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from signalhub.actors import Actor, RemoteError, remote
from signalhub.actors.api.state import State, table_of, table_prefix
from signalhub.testing.local_actors import LocalActors


class Keeper(Actor):
    @remote
    def put(self, key: Any, value: Any) -> None:
        self.state.put(key, value)

    @remote
    def put_and_raise(self, key: str, value: Any) -> None:
        self.state.put(key, value)
        self.state.delete("before")
        raise ValueError("no")

    @remote
    def sql(self, *statements: Any) -> Any:
        rows: Any = None
        for statement in statements:
            if isinstance(statement, list):
                rows = self.state.sql(statement[0], statement[1])
            else:
                rows = self.state.sql(statement)
        return rows

    @remote
    def sql_and_raise(self, *statements: str) -> None:
        self.sql(*statements)
        raise ValueError("no")

    @remote
    def try_sql(self, statement: str) -> str:
        try:
            self.state.sql(statement)
        except Exception as error:
            return str(error)
        return "it was run"


@pytest.fixture
def local() -> LocalActors:
    return LocalActors(Keeper)


def state(local: LocalActors, key: str = "1") -> State:
    return local.state(f"keeper/{key}")


@pytest.mark.parametrize(
    "value",
    [None, 0, "", [1, [2]], (1, 2), {"a": {3}}, b"x", Decimal("1.10"), datetime.now(UTC), 2**80],
)
def test_a_value_is_the_same_after_storing(local: LocalActors, value: Any) -> None:
    local.call("keeper/1", "put", "k", value)

    assert state(local).get("k", "absent") == value


def test_an_absent_key_has_a_default(local: LocalActors) -> None:
    assert state(local).get("k") is None
    assert state(local).get("k", 7) == 7


def test_a_value_is_stored_by_copy() -> None:
    class Careless(Actor):
        @remote
        def go(self) -> Any:
            items = [1]
            self.state.put("items", items)
            items.append(2)
            self.state.get("items").append(3)
            return self.state.get("items")

    assert LocalActors(Careless).call("careless/1", "go") == [1]


def test_deleting_says_whether_there_was_something() -> None:
    class Deleting(Actor):
        @remote
        def go(self) -> list[bool]:
            self.state.put("k", None)
            return [self.state.delete("k"), self.state.delete("k")]

    assert LocalActors(Deleting).call("deleting/1", "go") == [True, False]


def test_keys_are_listed_in_order_by_prefix_and_up_to_a_limit(local: LocalActors) -> None:
    for key in ("b", "a:2", "a:10", "a", "ä", "a:\uffff"):
        local.call("keeper/1", "put", key, key)

    assert list(state(local).list()) == ["a", "a:10", "a:2", "a:\uffff", "b", "ä"]
    assert state(local).list("a:") == {"a:10": "a:10", "a:2": "a:2", "a:\uffff": "a:\uffff"}
    assert list(state(local).list("a", limit=2)) == ["a", "a:10"]
    assert state(local).list("c") == {}


def test_actors_do_not_see_each_others_values(local: LocalActors) -> None:
    local.call("keeper/1", "put", "k", 1)

    assert state(local, "2").list() == {}


def test_a_key_is_a_text(local: LocalActors) -> None:
    with pytest.raises(TypeError, match="keys of the state must be strings, not int"):
        local.call("keeper/1", "put", 7, 1)


@pytest.mark.parametrize("value", ["x" * 1_000, [[[[]]]]])
def test_what_is_too_large_or_too_deep_is_refused(value: Any) -> None:
    class Small(Keeper):
        config_overrides: ClassVar = {"max_depth": 3, "max_payload_bytes": 1_000}

    local = LocalActors(Keeper, Small)
    with pytest.raises(RemoteError):
        local.call("small/1", "put", "k", value)

    assert local.state("small/1").list() == {}


def test_a_handler_that_raises_has_changed_nothing(local: LocalActors) -> None:
    local.call("keeper/1", "put", "before", 1)
    with pytest.raises(ValueError, match="no"):
        local.call("keeper/1", "put_and_raise", "k", 2)

    assert state(local).list() == {"before": 1}


CREATE = "CREATE TABLE IF NOT EXISTS {items} (name TEXT, count INTEGER)"


def test_tables_named_in_braces_are_the_actors_own(local: LocalActors) -> None:
    for key in ("1", "2"):
        rows = local.call(
            f"keeper/{key}",
            "sql",
            CREATE,
            ["INSERT INTO {items} VALUES (?, ?)", ["mug", int(key)]],
            ["INSERT INTO {Items} VALUES (:name, :count)", {"name": "cup", "count": 0}],
            "SELECT * FROM {items} ORDER BY name",
        )
        assert rows == [("cup", 0), ("mug", int(key))]


def test_sql_is_part_of_the_handlers_transaction(local: LocalActors) -> None:
    local.call("keeper/1", "sql", CREATE)
    with pytest.raises(ValueError, match="no"):
        local.call(
            "keeper/1", "sql_and_raise", "INSERT INTO {items} VALUES ('x', 1)", "DROP TABLE {items}"
        )

    assert local.call("keeper/1", "sql", "SELECT * FROM {items}") == []


def test_tables_survive_a_restart(tmp_path: Any) -> None:
    local = LocalActors(Keeper, path=tmp_path / "a.db")
    local.call("keeper/1", "sql", CREATE, "INSERT INTO {items} VALUES ('mug', 1)")
    local.restart()

    assert local.call("keeper/1", "sql", "SELECT count FROM {items}") == [(1,)]


def test_joins_indexes_and_subqueries_work(local: LocalActors) -> None:
    rows = local.call(
        "keeper/1",
        "sql",
        CREATE,
        "CREATE TABLE {prices} (name TEXT PRIMARY KEY, price INTEGER)",
        "CREATE INDEX {by_count} ON {items} (count)",
        "INSERT INTO {items} VALUES ('mug', 3)",
        "INSERT INTO {prices} VALUES ('mug', 5)",
        "WITH some AS (SELECT * FROM {items} WHERE count > 1)"
        " SELECT price * count FROM some JOIN {prices} USING (name)",
    )

    assert rows == [(15,)]
    assert local.call("keeper/2", "sql", CREATE, "CREATE INDEX {by_count} ON {items} (count)") == []
    assert local.call("keeper/1", "sql", "DROP INDEX {by_count}") == []


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "  rollback",
        "SAVEPOINT x",
        "PRAGMA user_version = 7",
        "ATTACH 'x.db' AS x",
        "VACUUM",
        "/* */ COMMIT",
        "SELECT 1; COMMIT",
        "-- x\nPRAGMA journal_mode = DELETE",
        "SELECT * FROM state",
        "SELECT count(*) FROM pending",
        "SELECT value FROM state WHERE actor = ? AND key = ?",
        "DELETE FROM outbox",
        "UPDATE meta SET value = 1",
        "INSERT INTO {items} SELECT actor, 1 FROM inbox",
        "DROP TABLE state",
        "CREATE TABLE mine (x)",
        "CREATE INDEX by_name ON {items} (name)",
        "CREATE VIEW {v} AS SELECT 1",
        "CREATE TRIGGER {t} AFTER INSERT ON {items} BEGIN SELECT 1; END",
        "ALTER TABLE {items} RENAME TO state2",
        "CREATE TEMP TABLE t (x)",
        'SELECT * FROM "state:keeper/2:items"',
    ],
)
def test_sql_cannot_leave_the_transaction_or_the_actor(local: LocalActors, statement: str) -> None:
    local.call("keeper/1", "sql", CREATE)
    local.call("keeper/2", "sql", CREATE)

    text = local.call("keeper/1", "try_sql", statement)

    assert "cannot begin, end or leave it" in text or "others are not accessible" in text
    assert local.call("keeper/1", "sql", "SELECT * FROM {items}") == []


COUNTED = "CREATE TABLE IF NOT EXISTS {items} (id INTEGER PRIMARY KEY AUTOINCREMENT, name UNIQUE)"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sqlite_sequence SET seq = 1000",
        "DELETE FROM main.sqlite_sequence",
        "INSERT INTO Sqlite_Sequence VALUES ('x', 1)",
        "SELECT name FROM sqlite_schema",
        "SELECT count(*) FROM SQLITE_MASTER",
        'SELECT * FROM "sqlite_master"',
        "SELECT * FROM 'sqlite_master'",
        "SELECT * FROM [sqlite_master]",
        "SELECT * FROM `sqlite_master`",
        "SELECT * FROM/**/sqlite_temp_schema",
        "SELECT * FROM sqlite_temp_master",
        "SELECT * FROM sqlite_stat1",
        "DROP TABLE sqlite_stat1",
        "INSERT INTO {items} (name) SELECT name FROM sqlite_schema",
        "CREATE TABLE {copy} AS SELECT * FROM sqlite_schema",
        "DROP TABLE {items}; DELETE FROM sqlite_sequence",
        # To SQLite the first quote is part of a parameter's name, and nothing here is a comment.
        "SELECT $a('), \"' -- \", name FROM sqlite_schema",
    ],
)
def test_sql_cannot_name_what_sqlite_keeps_of_all_actors(
    local: LocalActors, statement: str
) -> None:
    add = "INSERT INTO {items} (name) VALUES ('mug')"
    local.kernel.store.execute("ANALYZE")
    for key in ("1", "2"):
        local.call(f"keeper/{key}", "sql", COUNTED, add)

    text = local.call("keeper/1", "try_sql", statement)

    assert "write the actor's tables in braces" in text
    for key in ("1", "2"):
        again = add.replace("mug", "cup")
        assert local.call(f"keeper/{key}", "sql", again, "SELECT max(id) FROM {items}") == [(2,)]


def test_tables_can_be_made_changed_and_dropped_though_sqlite_keeps_books_of_it(
    local: LocalActors,
) -> None:
    local.kernel.store.execute("ANALYZE")
    rows = local.call(
        "keeper/1",
        "sql",
        COUNTED,
        COUNTED,
        "CREATE UNIQUE INDEX {by_name} ON {items} (name)",
        "INSERT INTO {items} (name) VALUES ('mug'), ('cup')",
        "DELETE FROM {items}",
        "INSERT INTO {items} (name) VALUES ('pot') ON CONFLICT (name) DO UPDATE SET name = 'pan'",
        "CREATE TABLE {copy} AS SELECT * FROM {items}",
        "CREATE TABLE {plain} (name TEXT PRIMARY KEY) WITHOUT ROWID",
        "DROP INDEX {by_name}",
        "DROP TABLE {items}",
        "DROP TABLE {plain}",
        "SELECT * FROM {copy}",
    )

    assert rows == [(3, "pot")]
    assert local.call("keeper/1", "sql", COUNTED, "SELECT * FROM {items}") == []


def test_a_table_in_braces_and_a_parameter_may_be_called_like_one_of_sqlite(
    local: LocalActors,
) -> None:
    rows = local.call(
        "keeper/1",
        "sql",
        "CREATE TABLE {sqlite_schema} (my_sqlite_column)",
        ["INSERT INTO {sqlite_schema} VALUES (?)", ["sqlite_schema"]],
        "SELECT my_sqlite_column FROM {sqlite_schema}",
    )

    assert rows == [("sqlite_schema",)]


def test_a_wrong_statement_is_an_error_of_the_handler_and_harms_nobody(local: LocalActors) -> None:
    with pytest.raises(RemoteError, match="syntax error"):
        local.call("keeper/1", "sql", "SELEKT 1")
    with pytest.raises(RemoteError, match="no such table"):
        local.call("keeper/1", "sql", "SELECT * FROM {absent}")

    assert local.call("keeper/1", "sql", "SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    ("one", "other"), [("A", "a"), ("x", "x:y"), ("^a", "A"), ("x^", "x"), ('a"b', "ab")]
)
def test_tables_of_actors_with_similar_keys_are_different(one: str, other: str) -> None:
    local = LocalActors(Keeper)
    local.call(f"keeper/{one}", "sql", CREATE, "INSERT INTO {items} VALUES ('x', 1)")

    assert local.call(f"keeper/{other}", "sql", CREATE, "SELECT * FROM {items}") == []
    prefixes = [table_prefix(f"keeper/{key}").lower() for key in (one, other)]
    assert not prefixes[0].startswith(prefixes[1])
    assert not prefixes[1].startswith(prefixes[0])


def test_no_actor_can_name_a_table_of_one_whose_key_begins_like_its_own() -> None:
    local = LocalActors(Keeper)
    local.call("keeper/x:y", "sql", CREATE)
    name = table_of("keeper/x:y", "items")

    assert "not accessible" in local.call("keeper/x", "try_sql", f'SELECT * FROM "{name}"')
