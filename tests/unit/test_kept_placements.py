"""Places of durable actors in the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from signalhub.core.messages.dedup import Remembered
from signalhub.core.streams.recovery import Snapshot
from signalhub.state.store import KnownIdsWindow, StateStore

WINDOW = KnownIdsWindow(300_000, 7 * 86_400_000, 2**20)
FIRST, SECOND = ("order/1", "@(h/a)", 1, 10), ("order/2", "@(h/a)", 1, 11)
MOVED = ("order/1", "@(h/b)", 2, 12)

Row = tuple[str, str, int, int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[StateStore]:
    opened = StateStore(path)
    yield opened
    opened.close()


def save(store: StateStore, *rows: Row, is_whole: bool = False) -> None:
    nothing = Remembered(0, b"", {})
    snapshot = Snapshot(20, is_whole, 1, {}, {}, nothing, placements=list(rows))
    store.save_snapshot(snapshot, 1, 0, WINDOW)
    store.flush()


def kept(store: StateStore) -> list[Row] | None:
    found = store.load_snapshot(0, WINDOW)
    return None if found is None else found.placements


def test_places_add_up_and_come_back_in_the_order_of_their_entries(store: StateStore) -> None:
    save(store, FIRST, SECOND)
    save(store, MOVED)
    save(store)

    assert kept(store) == [SECOND, MOVED]


def test_a_whole_snapshot_replaces_all_places(store: StateStore) -> None:
    save(store, FIRST, SECOND)
    save(store, MOVED, is_whole=True)

    assert kept(store) == [MOVED]


def test_a_snapshot_that_is_forgotten_takes_its_places_along(store: StateStore) -> None:
    save(store, FIRST)
    store.forget_snapshot()
    save(store)

    assert kept(store) == []


def test_a_store_of_the_version_before_durable_actors_is_brought_up_to_date(path: Path) -> None:
    StateStore(path).close()
    connection = apsw.Connection(str(path))
    connection.execute("DROP TABLE placement; PRAGMA user_version = 4")
    connection.close()

    store = StateStore(path)
    try:
        save(store, FIRST)
        found = kept(store)
    finally:
        store.close()

    assert found == [FIRST]
