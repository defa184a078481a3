"""The file of a host, and what operators ask of it: whatever they send, it answers and goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import apsw
import msgspec
import pytest

from signalhub.actors.kernel.control import ANSWER_BYTES_MAX, look
from signalhub.actors.kernel.events import CommandAnswer, Commanded
from signalhub.actors.store.store import HostStore
from signalhub.wire.errors import SettingsError
from tests.support.actors.scripted import Scripted, Stage, Target, calling, stored


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
def test_a_file_that_is_no_hosts_is_refused_and_left_alone(
    tmp_path: Path, make: Any, expected: str
) -> None:
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


def ask(local: Stage, name: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a whole turn."""
    effects = local.kernel.turn([Commanded(name, arguments, "who")], 1_760_000_000_000)
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
def test_a_command_that_makes_no_sense_is_answered_with_an_error(
    local: Stage, name: str, arguments: dict[str, Any]
) -> None:
    assert set(ask(local, name, **arguments)) == {"error"}
    assert local.call("desk/1", "note", 2) == 2


@pytest.mark.parametrize("bounds", [{"limit": -1}, {"offset": 2**70}, {"limit": 0}])
def test_bounds_beyond_all_measure_find_nothing(local: Stage, bounds: Any) -> None:
    assert ask(local, "actors", **bounds) == {"result": []}


def set_alarms(self: Desk, size: int, count: int) -> None:
    for number in range(count):
        self.alarms.schedule(3600, self.note, "x" * size, id=f"n-{number:03}")


def test_an_answer_is_as_long_as_a_message_may_be_and_the_rest_has_an_offset(
    local: Stage,
) -> None:
    local.do("desk/1", set_alarms, 50_000, 12)
    seen: list[str] = []
    pages = 0
    while page := ask(local, "alarms", offset=len(seen))["result"]:
        assert len(msgspec.json.encode(page)) <= ANSWER_BYTES_MAX
        seen += [row["id"] for row in page]
        pages += 1

    assert seen == [f"n-{number:03}" for number in range(12)]
    assert pages > 2


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
