"""Ids of room messages in a real store: kept as long as a repeat must be known."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import apsw
import pytest

from signalhub.core.messages.dedup import (
    RECORD_BYTES,
    Dedup,
    KnownAck,
    Recalled,
    Remembered,
    fingerprint,
)
from signalhub.core.streams.recovery import Snapshot
from signalhub.state import schema
from signalhub.state.schema import RoomIds
from signalhub.state.store import KnownIdsWindow, StateStore
from tests.support.memory.rival import Rival

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
NOW = 20_000 * DAY_MS + DAY_MS // 2
WINDOW = KnownIdsWindow(300_000, WEEK_MS, 2**22)
NOTHING = Remembered(0, b"", {})


@pytest.fixture
def room_ids() -> RoomIds:
    connection = apsw.Connection(":memory:")
    connection.execute(schema.CREATE)
    return RoomIds(connection)


def key_of(message_id: str, inbox: str = "inbox") -> bytes:
    return fingerprint(inbox, message_id)


def recorded(*accepted: tuple[str, int, int]) -> Remembered:
    """What a hub remembers of messages: id, time, position."""
    dedup = Dedup(WEEK_MS, 2**22)
    dedup.keep_fresh()
    for message_id, at_ms, seq in accepted:
        dedup.remember_by(key_of(message_id), at_ms, KnownAck(at_ms, seq=seq))
    return dedup.take_fresh()


def save(
    store: StateStore,
    remembered: Remembered,
    rooms: dict[str, bytes | None] | None = None,
    *,
    is_whole: bool = False,
) -> None:
    one = Snapshot(1, is_whole, 1, {}, {}, NOTHING, rooms or {}, remembered)
    store.save_snapshot(one, 1, 0, WINDOW)
    store.flush()


def recall(store: StateStore, message_id: str, oldest_ms: int = NOW - WEEK_MS) -> int | None:
    found: Future[list[Recalled] | None] = Future()
    store.recall([key_of(message_id)], oldest_ms, found.set_result)
    recalled = found.result(timeout=20)
    return None if recalled is None else recalled[0].seq


# The table.


def test_an_id_is_found_with_its_position_on_each_day_of_the_week(room_ids: RoomIds) -> None:
    assert room_ids.recall(key_of("a"), NOW - WEEK_MS).seq == 0
    assert room_ids.load(NOW - WEEK_MS, 2**20) == []
    week = [(f"day{day}", NOW - day * DAY_MS, 2**40 - 1 - day) for day in range(7, -1, -1)]
    room_ids.add(recorded(*week).records)

    found = [
        room_ids.recall(key_of(name), NOW - WEEK_MS).seq for name, _, _ in (*week, ("c", 0, 0))
    ]

    assert found == [*(seq for _, _, seq in week), 0]
    assert room_ids.recall(key_of("day1", "another"), NOW - WEEK_MS).seq == 0, "ids are per inbox"


@pytest.mark.parametrize(("oldest_ms", "seq"), [(NOW - 1, 5), (NOW, 5), (NOW + 1, 0)])
def test_what_was_accepted_too_long_ago_is_not_found(
    room_ids: RoomIds, oldest_ms: int, seq: int
) -> None:
    room_ids.add(recorded(("a", NOW, 5)).records)

    assert room_ids.recall(key_of("a"), oldest_ms).seq == seq


@pytest.mark.parametrize("later_ms", [1, 250, 3_600_000])
def test_of_an_id_accepted_twice_in_a_day_the_later_one_is_found(
    room_ids: RoomIds, later_ms: int
) -> None:
    """With a window shorter than a day an id can be accepted again."""
    for first in range(0, 2_000, 97):
        at_ms = NOW + first
        name = f"a{first}"
        for seq, accepted_ms in ((1, at_ms), (2, at_ms + later_ms)):
            room_ids.add(recorded((name, accepted_ms, seq)).records)

        assert room_ids.recall(key_of(name), at_ms + 1).seq == 2


def test_an_id_from_a_clock_that_was_ahead_is_found(room_ids: RoomIds) -> None:
    room_ids.add(recorded(("a", NOW + DAY_MS, 5)).records)

    assert room_ids.recall(key_of("a"), NOW - WEEK_MS).seq == 5
    assert [len(one.records) for one in room_ids.load(NOW - WEEK_MS, 2**20)] == [27]


def test_writing_the_same_records_again_changes_nothing(room_ids: RoomIds) -> None:
    records = recorded(("a", NOW, 1), ("b", NOW, 2)).records
    for _ in range(2):
        room_ids.add(records)

    (day,) = room_ids.load(NOW - WEEK_MS, 2**20)
    assert sorted(day.records) == sorted(records)


def test_days_are_loaded_oldest_first_and_each_in_the_order_of_time(room_ids: RoomIds) -> None:
    for number in (3, 1, 2):
        at_ms = NOW - number * DAY_MS
        room_ids.add(recorded((f"x{number}", at_ms, number), (f"y{number}", at_ms + 1, 1)).records)

    days = room_ids.load(NOW - WEEK_MS, 2**20)

    assert [one.newest_ms for one in days] == [NOW - number * DAY_MS + 1 for number in (3, 2, 1)]
    assert all(one.records.startswith(key_of(f"x{3 - at}")) for at, one in enumerate(days))


def test_no_more_days_are_loaded_than_memory_can_hold(room_ids: RoomIds) -> None:
    for number in range(5):
        at_ms = NOW - number * DAY_MS
        room_ids.add(recorded(*[(f"{number}-{one}", at_ms, 1) for one in range(10)]).records)

    found = [len(room_ids.load(NOW - WEEK_MS, size)) for size in (1, 270, 271, 540, 2**20)]

    assert found == [1, 2, 2, 3, 5]


def test_whole_days_are_forgotten(room_ids: RoomIds) -> None:
    for number in range(5):
        room_ids.add(recorded((f"x{number}", NOW - number * DAY_MS, 1)).records)

    room_ids.forget(NOW - 2 * DAY_MS)

    found = [room_ids.recall(key_of(f"x{number}"), NOW - WEEK_MS).seq for number in range(5)]
    assert found == [1, 1, 1, 0, 0]


# The store.


def test_ids_are_written_with_the_snapshot_and_loaded_with_it(
    store: StateStore, path: Path
) -> None:
    save(store, recorded(("a", NOW - 5, 1), ("b", NOW, 2)))
    save(store, recorded(("c", NOW, 3)))
    store.close()

    again = StateStore(path)
    snapshot = again.load_snapshot(NOW, WINDOW)
    recalled = [recall(again, name) for name in "abcd"]
    again.close()

    assert snapshot is not None
    dedup = Dedup(WEEK_MS, 2**22)
    dedup.load(snapshot.room_ids)
    acks = [dedup.find_by(key_of(name), NOW) for name in "abcd"]
    assert [ack and ack.seq for ack in acks] == [1, 2, 3, None]
    assert recalled == [1, 2, 3, 0]


def rooms(store: StateStore) -> dict[str, bytes]:
    found = store.load_snapshot(NOW, WINDOW)
    assert found is not None
    return found.rooms


def test_states_of_rooms_are_replaced_and_dropped_and_ids_stay_until_all_is_forgotten(
    store: StateStore,
) -> None:
    save(store, recorded(("a", NOW, 1)), {"room.a": b"one", "room.b": b"one"})
    save(store, NOTHING, {"room.a": b"two", "room.b": None, "room.c": None})
    assert rooms(store) == {"room.a": b"two"}

    save(store, recorded(("b", NOW, 2)), {"room.b": b"two"}, is_whole=True)
    assert rooms(store) == {"room.b": b"two"}
    assert [recall(store, name) for name in "ab"] == [1, 2]

    store.forget_snapshot()
    save(store, recorded(("c", NOW, 3)), is_whole=True)
    assert rooms(store) == {}
    assert [recall(store, name) for name in "abc"] == [0, 0, 3]


def test_ids_older_than_the_window_are_forgotten_in_time(store: StateStore) -> None:
    save(store, recorded(("old", NOW - WEEK_MS - DAY_MS, 1), ("edge", NOW - WEEK_MS, 2)))
    save(store, recorded(("new", NOW, 3)))

    assert [recall(store, name, 0) for name in ("old", "edge", "new")] == [0, 2, 3]


def test_ids_of_a_snapshot_that_was_not_written_come_with_the_next_one(
    store: StateStore, rival: Rival
) -> None:
    save(store, recorded(("a", NOW, 1)))
    store._connection.set_busy_timeout(1)
    rival.lock()
    save(store, recorded(("b", NOW, 2)))
    rival.let_go()
    save(store, recorded(("c", NOW, 3)))
    before = [recall(store, name) for name in "abc"]
    save(store, recorded(("d", NOW, 4)), is_whole=True)

    assert before == [1, 0, 0]
    assert [recall(store, name) for name in "abcd"] == [1, 2, 3, 4]


def test_ids_that_cannot_be_written_do_not_pile_up(store: StateStore, rival: Rival) -> None:
    store._connection.set_busy_timeout(1)
    rival.lock()
    window = KnownIdsWindow(300_000, WEEK_MS, 3 * RECORD_BYTES)
    for number in range(20):
        one = Snapshot(1, False, 1, {}, {}, NOTHING, {}, recorded((f"m{number}", NOW, number + 1)))
        store.save_snapshot(one, 1, 0, window)
        store.flush()
    rival.let_go()

    assert sum(map(len, store._unwritten_ids)) <= 3 * RECORD_BYTES
    save(store, recorded(("new", NOW, 21)), is_whole=True)
    assert [recall(store, name) for name in ("m0", "m19", "new")] == [0, 20, 21]


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE room_id",
        # Records that are too short to be read.
        "UPDATE room_id SET record = substr(record, 1, 12)",
    ],
    ids=["no table", "short records"],
)
def test_a_look_up_that_fails_says_so_and_is_counted(
    store: StateStore, caplog: pytest.LogCaptureFixture, sql: str
) -> None:
    save(store, recorded(("a", NOW, 1)))
    store._submit(lambda: store._connection.execute(sql))

    assert recall(store, "a") is None
    store.flush()
    assert store.errors == 1


def test_look_ups_see_every_snapshot_handed_over_before_them(store: StateStore) -> None:
    found: list[Future[list[Recalled] | None]] = []
    for number in range(1, 50):
        records = recorded((f"x{number}", NOW, number))
        one = Snapshot(number, False, 1, {}, {}, NOTHING, {}, records)
        store.save_snapshot(one, 1, 0, WINDOW)
        found.append(Future())
        store.recall([key_of(f"x{number}")], NOW - WEEK_MS, found[-1].set_result)

    positions = [[Recalled(number, 0)] for number in range(1, 50)]
    assert [one.result(timeout=20) for one in found] == positions


def test_a_store_of_the_version_before_rooms_is_brought_up_to_date(path: Path) -> None:
    StateStore(path).close()
    connection = apsw.Connection(str(path))
    later = ("room_id", "room_state", "replay", "placement")
    connection.execute("".join(f"DROP TABLE {name};" for name in later))
    connection.execute("PRAGMA user_version = 2")
    connection.close()

    store = StateStore(path)
    save(store, recorded(("a", NOW, 1)), {"room.a": b"one"})
    found = (recall(store, "a"), rooms(store))
    store.close()

    assert found == (1, {"room.a": b"one"})
