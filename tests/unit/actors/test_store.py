"""The file of a host: what operators ask of it, what it forgets and what it finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import apsw
import msgspec
import pytest

from signalhub.actors import wire
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.api.operation import op
from signalhub.actors.kernel.commands import ANSWER_BYTES_MAX, look
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    CommandAnswer,
    Commanded,
    DeliveryArrived,
    Offload,
    PlacesFound,
    SendBatch,
)
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.kernel.outbox import DESTS_MIN, FROZEN, Outbox, Row
from signalhub.actors.move.places import PlaceStatus
from signalhub.actors.store.store import HostStore, StorageFailed
from signalhub.actors.store.views import SEARCHED_MAX, call
from signalhub.testing.local_actors import request_body
from signalhub.testing.store import FragileStore
from signalhub.wire.errors import SettingsError
from tests.support.actors.offload import Fetcher, Unhurried
from tests.support.actors.scripted import QUICK, Scripted, Stage, Target, calling, stored


def other_program(path: Path) -> None:
    other = apsw.Connection(os.fspath(path))
    other.execute("CREATE TABLE t (x)")
    other.close()


def later_version(path: Path) -> None:
    store = HostStore(path)
    with store.transaction():
        store.connection.pragma("user_version", 99)
    store.close()


def no_database(path: Path) -> None:
    path.write_bytes(b"nothing of ours" * 100)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (other_program, "a database of another program"),
        (later_version, "its version is 99"),
        (no_database, "cannot be used"),
    ],
)
def test_a_file_of_somebody_else_is_refused(tmp_path: Path, make: Any, expected: str) -> None:
    path = tmp_path / "a.db"
    make(path)
    before = path.read_bytes()

    with pytest.raises(SettingsError, match=expected):
        HostStore(path)
    with pytest.raises(SettingsError, match="cannot be used"):
        HostStore.read_only(path)
    assert path.read_bytes() == before


def test_a_path_that_cannot_be_opened_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path / "empty" / "a.db", tmp_path):
        with pytest.raises(SettingsError, match="cannot be used"):
            HostStore(path)
    for name in ("empty", "absent"):
        with pytest.raises(SettingsError, match="cannot be used"):
            HostStore.read_only(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize(("durability", "level"), [("power", 2), ("process", 1)])
def test_durability_decides_whether_a_commit_waits_for_the_disk(
    tmp_path: Path, durability: Any, level: int
) -> None:
    store = HostStore(tmp_path / "a.db", durability=durability)

    assert store.connection.pragma("synchronous") == level
    assert store.connection.pragma("journal_mode") == "wal"
    store.close()


class Desk(Scripted):
    config_overrides: ClassVar = {"handler_max_attempts": 1}

    def give_up(self, outcome: Any) -> None:
        raise RuntimeError("given up")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Stage]:
    local = stored(tmp_path, Desk, Target)
    local.call("desk/1", "note")
    yield local
    local.close()


def names(store: HostStore) -> list[str]:
    return [row["actor"] for row in look(store, "actors", {})]


def test_a_file_can_be_read_while_it_is_written_and_at_rest(local: Stage, tmp_path: Path) -> None:
    store = HostStore.read_only(tmp_path / "a.db")
    assert names(store) == ["desk/1"]
    local.call("desk/2", "note")
    assert names(store) == ["desk/1", "desk/2"]
    with pytest.raises(apsw.ReadOnlyError):
        store.execute("DELETE FROM actors")
    store.close()

    local.close()
    store = HostStore.read_only(tmp_path / "a.db")
    assert names(store) == ["desk/1", "desk/2"]
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"], "no trace is left beside it"


def ask(
    local: Stage, name: str, *, shows_contents: bool = True, **arguments: Any
) -> dict[str, Any]:
    """The answer of a whole turn."""
    command = Commanded(name, arguments, "who", shows_contents)
    effects = local.kernel.turn([command], 1_760_000_000_000)
    (answer,) = (effect for effect in effects if isinstance(effect, CommandAnswer))
    return answer.result


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *[
            ("", {}),
            ("sing", {}),
            ("actor", {}),
            ("actor", {"actor": None}),
            ("call", {"call": ""}),
        ],
        *[("actors", {"limit": "many"}), ("actors", {"limit": True}), ("actors", {"kind": 5})],
        *[("calls", {"address": {}}), ("calls", {"offset": []}), ("alarms", {"status": 1})],
        *[("dead", {"id": 7}), ("letter", {"actor": "desk/1"}), ("purge", {"actor": 3, "id": "x"})],
        ("redrive", {"actor": "desk/unknown", "id": "x"}),
        *[("move", {"actor": "desk/1"}), ("move", {"actor": "desk/1", "to": "nowhere"})],
        ("move", {"actor": "desk/unknown", "to": "@(actors/b)"}),
    ],
)
def test_a_wrong_command_is_an_error(local: Stage, name: str, arguments: dict[str, Any]) -> None:
    assert set(ask(local, name, **arguments)) == {"error"}
    assert local.call("desk/1", "note", 2) == 2


@pytest.mark.parametrize("origin", ["continuation", "send", "alarm"])
@pytest.mark.parametrize("name", ["letter", "redrive"])
def test_a_letter_that_cannot_be_decoded_is_an_error(local: Stage, name: str, origin: str) -> None:
    local.kernel.store.execute(
        "INSERT INTO dead VALUES ('desk/1', 'x', ?, 'c', x'c1', 'no', 1, 1)", (origin,)
    )

    assert "cannot be decoded" in ask(local, name, actor="desk/1", id="x")["error"]
    assert not local.kernel.letters.add_outcome("desk/1", "c", b"{}")
    assert local.count("dead") == 1


@pytest.mark.parametrize("bounds", [{"limit": -1}, {"offset": 2**70}, {"limit": 0}])
def test_bounds_beyond_all_measure_find_nothing(local: Stage, bounds: Any) -> None:
    assert ask(local, "actors", **bounds) == {"result": []}


def set_alarms(self: Desk, size: int, count: int) -> None:
    for number in range(count):
        self.alarms.schedule(3600, self.note, "x" * size, id=f"n-{number:03}")


def test_an_answer_is_as_long_as_a_message_may_be_and_the_rest_has_an_offset(local: Stage) -> None:
    local.do("desk/1", set_alarms, 50_000, 12)
    seen: list[str] = []
    pages = 0
    while page := ask(local, "alarms", offset=len(seen))["result"]:
        assert len(msgspec.json.encode(page)) <= ANSWER_BYTES_MAX
        seen += [row["id"] for row in page]
        pages += 1

    assert seen == [f"n-{number:03}" for number in range(12)]
    assert pages > 2


def test_an_operator_who_may_not_read_sees_rows_without_contents(local: Stage) -> None:
    local.do("desk/1", set_alarms, 5, 1)
    call_id = local.do("desk/1", calling("later", key="secret-key"))
    local.kernel.store.execute(
        "INSERT INTO dead VALUES ('desk/1', 'x', 'alarm', ?, x'c1', 'secret-error', 1, 1)",
        (call_id,),
    )
    local.kernel.store.execute(
        "INSERT INTO finished (call_id, actor, caller, method, error, ended_ms)"
        " VALUES ('c', 'desk/1', '', 'm', 'secret-error', 1)"
    )
    hidden = ("secret", "xxxxx", "notes")

    for name, arguments in (
        ("actor", {"actor": "desk/1"}),
        ("alarms", {}),
        ("calls", {}),
        ("call", {"call": call_id}),
        ("dead", {}),
        ("finished", {}),
    ):
        shown = msgspec.json.encode(ask(local, name, **arguments)).decode()
        answer = ask(local, name, shows_contents=False, **arguments)["result"]
        withheld = msgspec.json.encode(answer).decode()
        assert any(one in shown for one in hidden), name
        assert not any(one in withheld for one in hidden), name
        assert '"withheld":true' in withheld
        assert len(answer) >= len(ask(local, name, **arguments)["result"]), name
    (alarm,) = ask(local, "alarms", shows_contents=False)["result"]
    assert (alarm["id"], alarm["continuation"]) == ("n-000", '{"m":"note"}')
    assert "error" in ask(local, "letter", actor="desk/1", id="x")
    assert ask(local, "dead", id="x", shows_contents=False)["result"][0]["error"] is None
    newest = ask(local, "finished", shows_contents=False)["result"][0]
    assert newest["outcome"] == "failed"


def test_the_content_of_a_letter_is_not_shown_to_whoever_may_not_read(local: Stage) -> None:
    local.kernel.store.execute(
        "INSERT INTO dead VALUES ('desk/1', 'x', 'unreadable', 'c', x'736563726574', 'no', 1, 1)"
    )

    assert ask(local, "letter", actor="desk/1", id="x")["result"] == {"data": "secret"}
    shown = ask(local, "letter", shows_contents=False, actor="desk/1", id="x")
    assert shown == {"result": None}
    # What is no view is as it was.
    assert ask(local, "purge", shows_contents=False, actor="desk/1", id="x") == {"result": True}


def test_a_row_that_is_too_long_by_itself_is_cut(local: Stage) -> None:
    local.do("desk/1", set_alarms, 400_000, 1)
    (row,) = ask(local, "alarms")["result"]
    shown = ask(local, "actor", actor="desk/1")["result"]

    assert row["id"] == "n-000"
    assert row["continuation"].endswith("…")
    assert len(msgspec.json.encode(shown)) <= ANSWER_BYTES_MAX


def test_a_call_within_one_host_is_known_on_both_sides(local: Stage) -> None:
    call_id = local.do("desk/1", calling("later"))
    known = ask(local, "call", call=call_id)["result"]

    assert known["caller"]["target"] == "target/1"
    assert known["callee"] == {"actor": "target/1", "state": "deferred"}
    assert ask(local, "call", call="never") == {"result": None}


def test_what_was_given_up_can_be_read(local: Stage) -> None:
    call_id = local.do("desk/1", calling("note", then="give_up"))
    (letter,) = ask(local, "dead", id=ask(local, "dead")["result"][0]["id"])["result"]

    assert letter["call"] == call_id
    contents = ask(local, "letter", actor="desk/1", id=letter["id"])["result"]
    assert contents["method"] == "note"
    assert ask(local, "letter", actor="desk/1", id="none") == {"result": None}


HOST = "@(actors/a)"
START_MS = 1_760_000_000_000
CONFIG = DurableConfig(
    durability="process",
    tombstone_ttl_ms=60_000,
    max_request_age_ms=30_000,
    idempotency_ttl_ms=60_000,
)
INSERTS = {
    "done": "INSERT INTO done (actor, call_id, accepted_ms) VALUES ('target/1', ?, ?)",
    "keys": "INSERT INTO keys VALUES ('target/1', ?, 'c', ?)",
}


@pytest.fixture
def kernel() -> Kernel:
    made = Kernel(HostStore(":memory:"), [Target], host=HOST, config=CONFIG)
    made.start(START_MS)
    return made


def arrived() -> DeliveryArrived:
    data = request_body("c1", "target/2", op("note", "x" * 100))
    return DeliveryArrived(wire.CALL, data, "@(test/caller)", START_MS, 1)


@pytest.mark.parametrize("table", INSERTS)
def test_much_that_has_had_its_time_is_forgotten_in_parts(kernel: Kernel, table: str) -> None:
    def left() -> int:
        query = f"SELECT count(*) FROM {table} WHERE actor = 'target/1'"
        found: int = kernel.store.execute(query).get
        return found

    rows = [(f"c{number}", START_MS - 100_000) for number in range(25_000)]
    kernel.store.executemany(INSERTS[table], [*rows, ("new", START_MS + 100_000)])
    kernel.turn([arrived()], START_MS)
    for turns, expected in ((49, 15_001), (3, 1)):
        for _ in range(turns):
            kernel.turn([], START_MS)
        assert left() == expected
    plan = "EXPLAIN QUERY PLAN SELECT actor, idem_key FROM keys WHERE until_ms < 5"
    assert "keys_until" in str(kernel.store.execute(plan).fetchall())


def test_work_of_an_actor_that_is_not_here_is_not_started(tmp_path: Path) -> None:
    local = Unhurried(Fetcher, path=tmp_path / "a.db", config=QUICK)
    local.call("fetcher/1", "fetch")
    for status, is_started in ((PlaceStatus.HERE, True), (PlaceStatus.GONE, False)):
        local.kernel.places.put("fetcher/1", 1, status)
        local.restart()
        effects = local.kernel.turn([], START_MS)
        assert any(isinstance(one, Offload) for one in effects) == is_started


def test_a_result_that_is_too_large_is_replaced_under_the_callers_id(kernel: Kernel) -> None:
    kernel.turn([arrived()], START_MS)
    effects = kernel.turn([PlacesFound([ActorPlace("target/2", HOST, 1)])], START_MS)
    (sent,) = [one for one in effects if isinstance(one, SendBatch)]
    effects = kernel.turn([BatchRefused(sent.batch, "too large", is_too_large=True)], START_MS)

    (sent,) = [one for one in effects if isinstance(one, SendBatch)]
    ((message, _),) = wire.split(sent.data)
    assert message.call == "c1"
    assert b"TooLarge" in bytes(message.body)


def test_what_an_actor_has_to_send_is_frozen_row_by_row() -> None:
    store = HostStore(":memory:")
    outbox = Outbox(store)
    for number in range(3):
        outbox.add(Row("busy/1", f"busy/x{number}", "m1", "request", "m1", b"{}"), ("", True))
    statements: list[str] = []
    store.connection.set_profile(lambda statement, _: statements.append(statement))
    outbox.freeze("busy/1")
    store.connection.set_profile(None)

    assert store.execute("SELECT count(*) FROM outbox WHERE host = ?", (FROZEN,)).get == 3
    (update,) = {one for one in statements if one.startswith("UPDATE")}
    plan = store.execute(f"EXPLAIN QUERY PLAN {update}", ("!", 0, "a", "b", "c")).fetchall()
    assert "actor=? AND dest=? AND msg_id=?" in str(plan)


def test_destinations_without_waiting_messages_are_forgotten() -> None:
    outbox = Outbox(HostStore(":memory:"))
    waiting = Row("busy/1", "busy/here", "m0", "request", "m0", b"{}")
    outbox.add(waiting, ("", True))
    for number in range(3 * DESTS_MIN):
        row = Row("busy/1", f"busy/x{number}", "m1", "request", "m1", b"{}")
        outbox.add(row, ("", True))
        outbox.remove([row])

    assert len(outbox._dests) <= DESTS_MIN
    assert outbox.has_for("busy/1", "busy/here")


def test_a_request_that_has_run_is_looked_for_among_the_newest() -> None:
    store = HostStore(":memory:")
    for number, call_id in ((1, "old"), (SEARCHED_MAX, "newer"), (SEARCHED_MAX + 1, "newest")):
        store.execute("INSERT INTO done VALUES (?, 'busy/1', ?, 5)", (number, call_id))

    found = {"callee": {"actor": "busy/1", "state": "executed", "acceptedMs": 5}}
    assert call(store, "newest") == call(store, "newer") == found
    assert call(store, "old") is None
    # If its caller lives here, its actor is known.
    store.execute(
        "INSERT INTO pending VALUES ('busy/2', 'old', 'busy/1', 'm', NULL, NULL, 0, x'', 1, NULL)"
    )
    known = call(store, "old")
    assert known is not None
    assert known["callee"] == found["callee"]


ADD = "INSERT INTO state VALUES (?, ?, ?)"
DELETE = "DELETE FROM state WHERE actor = ? AND key = ?"


def keys_in(store: HostStore) -> list[Any]:
    return [key for (key,) in store.connection.execute("SELECT key FROM state ORDER BY key")]


def test_waiting_rows_are_written_before_the_next_statement_or_with_the_commit() -> None:
    store = HostStore(":memory:")
    with store.transaction():
        store.add_later(ADD, ("a/1", "one", b""))
        assert keys_in(store) == []
        assert store.execute("SELECT count(*) FROM state").get == 1
        store.add_later(ADD, ("a/1", "two", b""))

    assert keys_in(store) == ["one", "two"]


def test_what_is_added_and_deleted_meanwhile_is_gone() -> None:
    store = HostStore(":memory:")
    with store.transaction():
        store.delete_later(DELETE, ("a/1", "other"))
        store.add_later(ADD, ("a/1", "one", b""))
        store.delete_later(DELETE, ("a/1", "one"))

    assert keys_in(store) == []


@pytest.mark.parametrize("has_statement", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
def test_waiting_rows_are_undone_with_their_message_and_no_others(
    has_statement: bool, is_nested: bool
) -> None:
    store = HostStore(":memory:")
    with store.transaction():
        store.add_later(ADD, ("a/1", "before", b""))
        if is_nested:
            store.begin()
            store.add_later(ADD, ("a/1", "around", b""))
        store.begin()
        store.add_later(ADD, ("a/1", "undone 1", b""))
        if has_statement:
            store.execute(ADD, ("a/1", "undone 2", b""))
            store.add_later(ADD, ("a/1", "undone 3", b""))
        store.undo()
        if is_nested:
            store.add_later(ADD, ("a/1", "around 2", b""))
            store.keep()
        store.add_later(ADD, ("a/1", "later", b""))

    assert keys_in(store) == (["around", "around 2"] if is_nested else []) + ["before", "later"]


def test_a_message_without_a_statement_needs_no_savepoint() -> None:
    store = HostStore(":memory:")
    statements: list[str] = []
    with store.transaction():
        store.connection.set_profile(lambda statement, _: statements.append(statement))
        for number in range(3):
            store.begin()
            store.add_later(ADD, ("a/1", str(number), b""))
            store.keep()

    store.connection.set_profile(None)
    assert set(statements) == {ADD, "COMMIT"}


def test_waiting_rows_that_cannot_be_written_end_the_transaction_even_if_that_is_ignored(
    tmp_path: Path,
) -> None:
    store = FragileStore(tmp_path / "a.db")
    store.fault = apsw.FullError("full, but only once")

    def ignoring() -> None:
        with store.transaction():
            store.add_later(ADD, ("a/1", "lost", b""))
            store.begin()
            store.countdown = 0
            with suppress(apsw.FullError):
                store.execute("SELECT 1")
            store.keep()

    with pytest.raises(StorageFailed):
        ignoring()
    assert keys_in(store) == []
    with store.transaction():
        store.add_later(ADD, ("a/1", "next", b""))
    assert keys_in(store) == ["next"]
    store.close()
