"""Snapshots in the store: whole or not at all, and accepted ids no longer than they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from signalhub.core.messages.dedup import Remembered
from signalhub.core.streams.recovery import Snapshot
from signalhub.state.store import KnownIdsWindow, StateStore

WINDOW = KnownIdsWindow(300_000, 7 * 86_400_000, 2**20)
RECORD = b"r" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[StateStore]:
    opened = StateStore(path)
    yield opened
    opened.close()


def snapshot(offset: int, at_ms: int, *, is_whole: bool = False) -> Snapshot:
    """One stream and some accepted ids."""
    remembered = Remembered(at_ms, RECORD, {})
    return Snapshot(offset, is_whole, 2, {1: b"stream"}, {(1, "s"): b"state"}, remembered)


def save(store: StateStore, one: Snapshot) -> None:
    store.save_snapshot(one, 1, 0, WINDOW)
    store.flush()


def test_a_snapshot_is_loaded_as_it_was_saved(store: StateStore) -> None:
    save(store, snapshot(10, 1_000))

    found = store.load_snapshot(WINDOW.ids_ms, WINDOW)

    assert found is not None
    assert (found.epoch, found.offset, found.next_id) == (1, 10, 2)
    assert (found.streams, found.subscriptions) == ([b"stream"], [b"state"])
    assert [one.records for one in found.remembered] == [RECORD]


def test_ids_of_several_snapshots_add_up_within_the_window(store: StateStore) -> None:
    for at_ms in (0, 200_000, 400_000, 500_000):
        save(store, snapshot(at_ms, at_ms))

    found = store.load_snapshot(WINDOW.ids_ms, WINDOW)

    assert found is not None
    assert [one.newest_ms for one in found.remembered] == [200_000, 400_000, 500_000]


def test_a_forgotten_snapshot_takes_its_ids_along(store: StateStore) -> None:
    """They may be those of messages that are lost with the end of the log."""
    save(store, snapshot(10, 1_000))

    store.forget_snapshot()
    save(store, snapshot(20, 2_000, is_whole=True))

    found = store.load_snapshot(WINDOW.ids_ms, WINDOW)
    assert found is not None
    assert [one.newest_ms for one in found.remembered] == [2_000]


def test_ids_do_not_gather_without_end_while_nothing_can_be_written(
    store: StateStore, path: Path
) -> None:
    other = apsw.Connection(str(path))
    store._connection.set_busy_timeout(1)
    other.execute("begin exclusive")
    for at_ms in range(0, 4 * WINDOW.ids_ms, WINDOW.ids_ms // 4):
        save(store, snapshot(at_ms, at_ms))

    waiting = len(store._remembered)
    other.execute("rollback")
    other.close()
    save(store, snapshot(4 * WINDOW.ids_ms, 4 * WINDOW.ids_ms, is_whole=True))

    assert 1 < waiting <= 5
    found = store.load_snapshot(WINDOW.ids_ms, WINDOW)
    assert found is not None
    assert found.offset == 4 * WINDOW.ids_ms
    assert len(found.remembered) == 5


def test_a_snapshot_that_builds_on_an_unwritten_one_is_not_written(
    store: StateStore, path: Path
) -> None:
    save(store, snapshot(10, 1_000))
    other = apsw.Connection(str(path))
    store._connection.set_busy_timeout(1)
    other.execute("begin exclusive")
    save(store, snapshot(20, 2_000))
    other.execute("rollback")
    other.close()

    save(store, snapshot(30, 3_000))

    found = store.load_snapshot(WINDOW.ids_ms, WINDOW)
    assert found is not None
    assert found.offset == 10
    assert store.is_snapshot_broken
