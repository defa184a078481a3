"""What people ask of a host: whatever they send, it answers and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from signalhub.actors import Actor, cont, remote
from signalhub.actors.kernel.control import ANSWER_BYTES_MAX, look
from signalhub.actors.kernel.events import CommandAnswer, Commanded
from signalhub.actors.store.store import HostStore
from signalhub.testing.local_actors import LocalActors
from signalhub.wire.errors import SettingsError


class Desk(Actor):
    config_overrides: ClassVar = {"handler_max_attempts": 1}

    @remote
    def remember(self, size: int, count: int) -> None:
        for number in range(count):
            self.alarms.schedule(3600, cont(self.recall, "x" * size), id=f"n-{number:03}")

    @remote
    def recall(self, text: str) -> int:
        return len(text)

    @remote
    def fail(self) -> str:
        return self.call("desk/other", "recall", "text", then=self.give_up)

    def give_up(self, outcome: Any) -> None:
        raise RuntimeError("given up")

    @remote
    def defer_to(self, other: str) -> str:
        return self.call(other, "wait", then=self.give_up)

    @remote
    def wait(self) -> object:
        return self.defer()


@pytest.fixture
def actors(tmp_path: Path) -> Iterator[LocalActors]:
    one = LocalActors(Desk, path=tmp_path / "actors.db")
    yield one
    one.close()


def ask(actors: LocalActors, name: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a whole turn."""
    (answer,) = (
        effect
        for effect in actors.kernel.turn([Commanded(name, arguments, "who")], 1_760_000_000_000)
        if isinstance(effect, CommandAnswer)
    )
    return answer.result


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("", {}),
        ("sing", {}),
        ("actors", {"limit": "many"}),
        ("actors", {"limit": True}),
        ("actors", {"kind": 5}),
        ("calls", {"address": {}}),
        ("calls", {"offset": []}),
        ("alarms", {"status": 1}),
        ("dead", {"id": 7}),
        ("actor", {}),
        ("actor", {"actor": None}),
        ("call", {"call": ""}),
        ("letter", {"actor": "desk/1"}),
        ("redrive", {"actor": "desk/unknown", "id": "x"}),
        ("purge", {"actor": 3, "id": "x"}),
        ("move", {"actor": "desk/1"}),
        ("move", {"actor": "desk/1", "to": "nowhere"}),
        ("move", {"actor": "desk/unknown", "to": "@(actors/b)"}),
    ],
)
def test_a_command_that_makes_no_sense_is_answered_with_an_error(
    actors: LocalActors, name: str, arguments: dict[str, Any]
) -> None:
    actors.call("desk/1", "recall", "")

    assert set(ask(actors, name, **arguments)) == {"error"}
    assert actors.call("desk/1", "recall", "ab") == 2


@pytest.mark.parametrize("bounds", [{"limit": -1}, {"offset": 2**70}, {"limit": 0}])
def test_bounds_beyond_all_measure_find_nothing(
    actors: LocalActors, bounds: dict[str, int]
) -> None:
    actors.call("desk/1", "recall", "")

    assert ask(actors, "actors", **bounds) == {"result": []}


def test_an_answer_is_as_long_as_a_message_may_be_and_the_rest_has_an_offset(
    actors: LocalActors,
) -> None:
    actors.call("desk/1", "remember", 50_000, 12)
    seen: list[str] = []
    pages = 0
    while page := ask(actors, "alarms", offset=len(seen))["result"]:
        assert len(msgspec.json.encode(page)) <= ANSWER_BYTES_MAX
        seen += [row["id"] for row in page]
        pages += 1

    assert seen == [f"n-{number:03}" for number in range(12)]
    assert pages > 2


def test_a_row_that_is_too_long_by_itself_is_cut(actors: LocalActors) -> None:
    actors.call("desk/1", "remember", 400_000, 1)

    (row,) = ask(actors, "alarms")["result"]
    shown = ask(actors, "actor", actor="desk/1")["result"]

    assert row["id"] == "n-000"
    assert row["continuation"].endswith("…")
    assert len(msgspec.json.encode(shown)) <= ANSWER_BYTES_MAX


def test_a_call_within_one_host_is_known_on_both_sides(actors: LocalActors) -> None:
    call_id = actors.call("desk/1", "defer_to", "desk/2")

    known = ask(actors, "call", call=call_id)["result"]

    assert known["caller"]["target"] == "desk/2"
    assert known["callee"] == {"actor": "desk/2", "state": "deferred"}
    assert ask(actors, "call", call="never") == {"result": None}


def test_what_was_given_up_can_be_read(actors: LocalActors) -> None:
    call_id = actors.call("desk/1", "fail")

    (letter,) = ask(actors, "dead", id=ask(actors, "dead")["result"][0]["id"])["result"]
    contents = ask(actors, "letter", actor="desk/1", id=letter["id"])["result"]

    assert letter["call"] == call_id
    assert contents["method"] == "recall"
    assert ask(actors, "letter", actor="desk/1", id="none") == {"result": None}


def test_a_file_can_be_looked_at_while_it_is_written(actors: LocalActors, tmp_path: Path) -> None:
    actors.call("desk/1", "recall", "")
    store = HostStore.read_only(tmp_path / "actors.db")
    before = look(store, "actors", {})
    actors.call("desk/2", "recall", "")
    after = look(store, "actors", {})
    with pytest.raises(Exception, match="readonly"):
        store.execute("DELETE FROM actors")
    store.close()

    assert [row["actor"] for row in before] == ["desk/1"]
    assert [row["actor"] for row in after] == ["desk/1", "desk/2"]


def test_looking_at_a_file_at_rest_leaves_nothing_beside_it(tmp_path: Path) -> None:
    one = LocalActors(Desk, path=tmp_path / "actors.db")
    one.call("desk/1", "recall", "")
    one.close()

    store = HostStore.read_only(tmp_path / "actors.db")
    found = look(store, "actors", {})
    store.close()

    assert [row["actor"] for row in found] == ["desk/1"]
    assert [path.name for path in tmp_path.iterdir()] == ["actors.db"]


@pytest.mark.parametrize("content", [None, b"", b"nothing of ours" * 100])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "actors.db"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SettingsError, match="cannot be used"):
        HostStore.read_only(path)

    assert path.exists() == (content is not None)
