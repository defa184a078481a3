"""Snapshots are whole only after a failure, and safe before anybody cuts the log behind them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import apsw
import pytest

from signalhub.core.messages.dedup import Remembered
from signalhub.core.streams.recovery import Snapshot
from signalhub.state.store import KnownIdsWindow, StateStore

WINDOW = KnownIdsWindow(300_000, 7 * 86_400_000, 2**20)
PATIENCE_S = 20.0


class Rival:
    """Another user of the file, who locks it for as long as a test wants."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))

    def lock(self) -> None:
        """Nobody else can write."""
        self._connection.execute("begin exclusive")

    def read(self) -> None:
        """Look at the file as it is, and go on looking at that."""
        self._connection.execute("begin")
        assert self._connection.execute("select count(*) from snapshot").get is not None

    def let_go(self) -> None:
        self._connection.execute("rollback")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[StateStore]:
    opened = StateStore(path)
    yield opened
    opened.close()


@pytest.fixture
def rival(store: StateStore, path: Path) -> Iterator[Rival]:
    opened = Rival(path)
    yield opened
    opened.close()


def save(store: StateStore, offset: int, *, is_whole: bool = False) -> None:
    """Hand a snapshot over."""
    nothing = Remembered(0, b"", {})
    states: dict[int, bytes | None] = {offset: b"%d" % offset}
    store.save_snapshot(Snapshot(offset, is_whole, 2, states, {}, nothing), 1, 0, WINDOW)


def made_safe(store: StateStore) -> Future[int]:
    """What the store says is safe, once it is."""
    heard: Future[int] = Future()
    store.make_safe(heard.set_result)
    return heard


def in_the_file_alone(path: Path) -> int | None:
    """The offset of the snapshot that a power cut leaves if it takes all that was not synced."""
    copied = path.with_name("copied.db")
    shutil.copyfile(path, copied)
    found = StateStore(copied)
    try:
        row = found.load_snapshot(0, WINDOW)
    finally:
        found.close()
        copied.unlink()
    return None if row is None else row.offset


def test_a_snapshot_that_is_still_being_written_is_not_a_broken_one(
    store: StateStore, rival: Rival
) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    def wait(tries: int) -> bool:
        has_begun.set()
        return may_go_on.wait(PATIENCE_S)

    store._connection.set_busy_handler(wait)
    rival.lock()
    save(store, 10)
    assert has_begun.wait(PATIENCE_S)
    while_writing = store.is_snapshot_broken
    save(store, 20)
    rival.let_go()
    may_go_on.set()
    store.flush()

    assert (while_writing, store.is_snapshot_broken) == (False, False)
    found = store.load_snapshot(0, WINDOW)
    assert found is not None
    assert (found.offset, found.streams) == (20, [b"10", b"20"])


def test_only_a_failure_makes_the_next_snapshot_whole_and_only_until_that_is_written(
    store: StateStore, rival: Rival
) -> None:
    store._connection.set_busy_timeout(1)
    rival.lock()
    save(store, 10)
    store.flush()
    assert store.is_snapshot_broken
    rival.let_go()

    save(store, 20, is_whole=True)
    store.flush()

    assert not store.is_snapshot_broken
    save(store, 30)
    store.flush()
    assert (store.saved_offset, store.errors) == (30, 1)


def test_what_is_reported_as_safe_needs_nothing_beside_the_file(
    store: StateStore, path: Path
) -> None:
    save(store, 10)
    store.flush()
    assert in_the_file_alone(path) is None

    assert made_safe(store).result(PATIENCE_S) == 10
    assert in_the_file_alone(path) == 10


def test_a_snapshot_handed_over_after_the_sync_was_asked_for_is_not_reported(
    store: StateStore, rival: Rival
) -> None:
    may_go_on = threading.Event()
    rival.lock()
    store._connection.set_busy_handler(lambda tries: may_go_on.wait(PATIENCE_S))
    save(store, 10)
    heard = made_safe(store)
    save(store, 20)
    rival.let_go()
    may_go_on.set()
    store.flush()

    assert (heard.result(PATIENCE_S), store.saved_offset) == (10, 20)


def test_a_snapshot_that_was_not_written_is_not_reported(store: StateStore, rival: Rival) -> None:
    save(store, 10)
    store.flush()
    store._connection.set_busy_timeout(1)
    rival.lock()
    save(store, 20)
    store.flush()
    rival.let_go()

    assert made_safe(store).result(PATIENCE_S) == 10


def test_what_cannot_be_synced_is_not_reported_until_it_can(
    store: StateStore, rival: Rival, path: Path
) -> None:
    save(store, 10)
    store.flush()
    store._connection.set_busy_timeout(1)
    rival.read()
    save(store, 20)
    heard = made_safe(store)
    store.flush()

    assert not heard.done()
    rival.let_go()
    assert made_safe(store).result(PATIENCE_S) == 20
    assert in_the_file_alone(path) == 20
