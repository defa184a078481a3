"""Snapshots in the store: whole or not at all, and safe before anybody cuts the log behind them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import apsw

from signalhub.core.messages.dedup import Remembered
from signalhub.core.streams.recovery import Snapshot
from signalhub.state.store import KnownIdsWindow, SnapshotRow, StateStore
from tests.support.memory.rival import Rival

WINDOW = KnownIdsWindow(300_000, 7 * 86_400_000, 2**20)
RECORD = b"r" * 32
PATIENCE_S = 20.0
FIRST, SECOND = ("order/1", "@(h/a)", 1, 10, "", 1), ("order/2", "@(h/a)", 1, 11, "ann", 1)
MOVED = ("order/1", "@(h/b)", 2, 12, "ann", 2)

Placement = tuple[str, str, int, int, str, int]


def hand_over(
    store: StateStore, offset: int, *placements: Placement, is_whole: bool = False
) -> None:
    """A snapshot with one stream and some ids that were accepted at the time `offset`."""
    remembered = Remembered(offset, RECORD, {})
    streams: dict[int, bytes | None] = {offset: b"%d" % offset}
    subscriptions: dict[tuple[int, str], bytes | None] = {(1, "s"): b"state"}
    snapshot = Snapshot(
        offset, is_whole, 2, streams, subscriptions, remembered, placements=list(placements)
    )
    store.save_snapshot(snapshot, 1, 0, WINDOW)


def save(store: StateStore, offset: int, *placements: Placement, is_whole: bool = False) -> None:
    hand_over(store, offset, *placements, is_whole=is_whole)
    store.flush()


def loaded(store: StateStore) -> SnapshotRow:
    found = store.load_snapshot(WINDOW.ids_ms, WINDOW)
    assert found is not None
    return found


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


def while_locked(store: StateStore, rival: Rival, work: Callable[[], None]) -> None:
    """Do something while the store cannot write."""
    store._connection.set_busy_timeout(1)
    rival.lock()
    work()
    rival.let_go()


def test_snapshots_are_loaded_as_they_were_saved_and_add_up(store: StateStore) -> None:
    save(store, 10)
    save(store, 20)

    found = loaded(store)

    assert (found.epoch, found.offset, found.next_id) == (1, 20, 2)
    assert (found.streams, found.subscriptions) == ([b"10", b"20"], [b"state"])
    assert [one.records for one in found.remembered] == [RECORD, RECORD]


def test_ids_of_several_snapshots_add_up_within_the_window(store: StateStore) -> None:
    for at_ms in (0, 200_000, 400_000, 500_000):
        save(store, at_ms)

    assert [one.newest_ms for one in loaded(store).remembered] == [200_000, 400_000, 500_000]


def test_placements_add_up_in_the_order_of_their_entries_until_a_snapshot_is_whole(
    store: StateStore,
) -> None:
    save(store, 10, FIRST, SECOND)
    save(store, 20, MOVED)
    save(store, 30)
    assert loaded(store).placements == [SECOND, MOVED]

    save(store, 40, FIRST, is_whole=True)
    assert loaded(store).placements == [FIRST]


def test_a_forgotten_snapshot_takes_its_ids_and_placements_along(store: StateStore) -> None:
    """They may be those of messages that are lost with the end of the log."""
    save(store, 10, FIRST)

    store.forget_snapshot()
    save(store, 20, is_whole=True)

    assert [one.newest_ms for one in loaded(store).remembered] == [20]
    assert loaded(store).placements == []


def test_a_store_of_the_version_before_durable_actors_is_brought_up_to_date(path: Path) -> None:
    StateStore(path).close()
    connection = apsw.Connection(str(path))
    connection.execute("DROP TABLE placement; PRAGMA user_version = 4")
    connection.close()

    store = StateStore(path)
    save(store, 10, FIRST)
    found = loaded(store)
    store.close()

    assert found.placements == [FIRST]


def test_ids_do_not_gather_without_end_while_nothing_can_be_written(
    store: StateStore, rival: Rival
) -> None:
    end = 4 * WINDOW.ids_ms

    def fail() -> None:
        for at_ms in range(0, end, WINDOW.ids_ms // 4):
            save(store, at_ms)

    while_locked(store, rival, fail)
    assert 1 < len(store._remembered) <= 5
    save(store, end, is_whole=True)

    assert (loaded(store).offset, len(loaded(store).remembered)) == (end, 5)


def test_after_a_failure_only_a_whole_snapshot_is_written(store: StateStore, rival: Rival) -> None:
    save(store, 10)
    while_locked(store, rival, lambda: save(store, 20))
    save(store, 30)
    assert loaded(store).offset == 10
    assert store.is_snapshot_broken

    save(store, 40, is_whole=True)
    assert not store.is_snapshot_broken
    save(store, 50)
    assert (store.saved_offset, store.errors) == (50, 1)


def test_a_snapshot_that_is_still_being_written_is_not_a_broken_one(
    store: StateStore, rival: Rival
) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    def wait(tries: int) -> bool:
        has_begun.set()
        return may_go_on.wait(PATIENCE_S)

    store._connection.set_busy_handler(wait)
    rival.lock()
    hand_over(store, 10)
    assert has_begun.wait(PATIENCE_S)
    while_writing = store.is_snapshot_broken
    heard = made_safe(store)
    hand_over(store, 20)
    rival.let_go()
    may_go_on.set()
    store.flush()

    assert (while_writing, store.is_snapshot_broken) == (False, False)
    assert (loaded(store).offset, loaded(store).streams) == (20, [b"10", b"20"])
    assert heard.result(PATIENCE_S) == 10, "what came after the request is not reported as safe"


def test_what_is_reported_as_safe_needs_nothing_beside_the_file(
    store: StateStore, path: Path
) -> None:
    save(store, 10)
    assert in_the_file_alone(path) is None

    assert made_safe(store).result(PATIENCE_S) == 10
    assert in_the_file_alone(path) == 10


def test_what_was_not_written_or_cannot_be_synced_is_not_reported(
    store: StateStore, rival: Rival, path: Path
) -> None:
    save(store, 10)
    while_locked(store, rival, lambda: save(store, 20))
    assert made_safe(store).result(PATIENCE_S) == 10
    rival.read()
    save(store, 30, is_whole=True)
    heard = made_safe(store)
    store.flush()

    assert not heard.done()
    rival.let_go()
    assert made_safe(store).result(PATIENCE_S) == 30
    assert in_the_file_alone(path) == 30
