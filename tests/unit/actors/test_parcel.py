"""An actor's own tables, taken out of one store and put into another."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.actors.api.state import State
from signalhub.actors.move.parcel import Parcel, pack, unpack
from signalhub.actors.store.store import HostStore

ACTOR = "keeper/1"


@pytest.fixture
def before() -> State:
    return state_of(HostStore(":memory:"))


def state_of(store: HostStore) -> State:
    return State(store, ACTOR, 50, 2**20)


def moved(state: State) -> State:
    """The same in another store, which has something of its own already."""
    store = HostStore(":memory:")
    parcel = unpack(pack(Parcel.collect(state._store, ACTOR, "")))
    Parcel.delete(state._store, ACTOR)
    assert not state._store.execute(
        "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'state:%'"
    ).get
    parcel.insert(store, lambda: "id")
    return state_of(store)


def test_columns_that_are_generated_are_generated_again(before: State) -> None:
    before.sql(
        "CREATE TABLE {items} (a INTEGER, b GENERATED ALWAYS AS (a + 1),"
        " c GENERATED ALWAYS AS (a + 2) STORED, d)"
    )
    before.sql("CREATE INDEX {by_b} ON {items} (b)")
    before.sql("INSERT INTO {items} (a, d) VALUES (1, 'x'), (5, NULL)")

    after = moved(before)

    assert after.sql("SELECT * FROM {items}") == [(1, 2, 3, "x"), (5, 6, 7, None)]
    after.sql("INSERT INTO {items} (a) VALUES (9)")
    assert after.sql("SELECT a FROM {items} WHERE b = 10") == [(9,)]


@pytest.mark.parametrize("removed", ["id = 3", "TRUE"])
def test_ids_are_not_given_a_second_time(before: State, removed: str) -> None:
    before.sql("CREATE TABLE {items} (id INTEGER PRIMARY KEY AUTOINCREMENT, a)")
    before.sql("INSERT INTO {items} (a) VALUES (1), (2), (3)")
    before.sql(f"DELETE FROM {{items}} WHERE {removed}")

    after = moved(before)

    assert after.sql("INSERT INTO {items} (a) VALUES (4) RETURNING id") == [(4,)]
    assert moved(after).sql("INSERT INTO {items} (a) VALUES (5) RETURNING id") == [(5,)]


@pytest.mark.parametrize(
    ("columns", "row_id"),
    [
        ("a", "rowid"),
        ("a, RowId TEXT", "_rowid_"),
        ("a, rowid, _rowid_", "oid"),
        ("a, b INTEGER PRIMARY KEY DESC", "rowid"),
    ],
)
def test_rows_keep_their_ids(before: State, columns: str, row_id: str) -> None:
    before.sql(f"CREATE TABLE {{items}} ({columns})")
    before.sql("INSERT INTO {items} (a) VALUES ('x'), ('y'), ('z')")
    before.sql("DELETE FROM {items} WHERE a = 'x'")
    query = f"SELECT {row_id}, a FROM {{items}} ORDER BY a"

    assert moved(before).sql(query) == [(2, "y"), (3, "z")]


@pytest.mark.parametrize(
    "definition",
    [
        "(a, b INTEGER PRIMARY KEY)",
        "(a, b, PRIMARY KEY (b, a)) WITHOUT ROWID",
        "(a, b, rowid GENERATED ALWAYS AS (b + 1), _rowid_, oid)",
        '(a, b, "c ""d""" DEFAULT 3)',
        "(a TEXT, b INTEGER) STRICT",
    ],
)
def test_tables_of_all_kinds_go_along(before: State, definition: str) -> None:
    before.sql(f"CREATE TABLE {{items}} {definition}")
    before.sql("INSERT INTO {items} (a, b) VALUES ('x', 7), ('y', 5)")
    query = "SELECT * FROM {items} ORDER BY a"
    rows: list[Any] = before.sql(query)

    assert moved(before).sql(query) == rows
