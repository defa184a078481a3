"""Methods that exit, are cancelled or roll back: they have failed, and nobody else has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors import Actor, RemoteError, remote
from signalhub.testing.local_actors import LocalActors

EXITS: dict[str, type[BaseException]] = {
    "SystemExit": SystemExit,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
}
CREATE = "CREATE TABLE {items} (name TEXT PRIMARY KEY)"
INSERT = "INSERT INTO {items} VALUES ('mug')"


class Fragile(Actor):
    @remote
    def leave(self, name: str) -> None:
        self.state.put("left", True)
        raise EXITS[name]("2")

    @remote
    def ask(self, name: str) -> None:
        self.call("fragile/other", "work", then=leaving_with(self, name))

    @remote
    def wait(self, name: str) -> None:
        self.alarms.schedule(1, self.ring, name, id="only")

    @remote
    def work(self) -> str:
        return "done"

    @remote
    def sql(self, *statements: str) -> Any:
        return [self.state.sql(statement) for statement in statements][-1]

    def ring(self, name: str) -> None:
        raise EXITS[name]("2")

    def leave_system(self, outcome: Any) -> None:
        raise SystemExit(2)

    def leave_generator(self, outcome: Any) -> None:
        raise GeneratorExit

    def leave_cancelled(self, outcome: Any) -> None:
        raise asyncio.CancelledError


def leaving_with(actor: Fragile, name: str) -> Any:
    """The continuation that raises what is named."""
    return {
        "SystemExit": actor.leave_system,
        "GeneratorExit": actor.leave_generator,
        "CancelledError": actor.leave_cancelled,
    }[name]


class Unwilling(Actor):
    def on_start(self) -> None:
        raise EXITS[str(self.ref).rpartition("/")[2]]("2")

    @remote
    def work(self) -> None:
        pass


@pytest.fixture
def local() -> LocalActors:
    return LocalActors(Fragile, Unwilling)


@pytest.mark.parametrize("name", EXITS)
def test_a_method_that_exits_is_answered_like_any_that_raises(
    local: LocalActors, name: str
) -> None:
    with pytest.raises(RemoteError) as raised:
        local.call("fragile/1", "leave", name)

    assert raised.value.name == name
    assert local.state("fragile/1").get("left") is None
    assert local.call("fragile/1", "work") == "done"


@pytest.mark.parametrize("name", EXITS)
def test_a_continuation_that_exits_is_set_aside_in_the_end(local: LocalActors, name: str) -> None:
    local.call("fragile/1", "ask", name)
    local.advance(600)

    (letter,) = local.kernel.letters.of("fragile/1")
    assert letter.error.startswith(name)


@pytest.mark.parametrize("name", EXITS)
def test_an_alarm_that_exits_is_tried_again_and_set_aside(local: LocalActors, name: str) -> None:
    local.call("fragile/1", "wait", name)
    local.advance(600)

    (error,) = local.kernel.store.execute("SELECT last_error FROM alarms").fetchall()[0]
    assert str(error).startswith(name)
    assert local.call("fragile/1", "work") == "done"


@pytest.mark.parametrize("name", EXITS)
def test_an_actor_that_exits_when_it_starts_waits(local: LocalActors, name: str) -> None:
    local.begin(f"unwilling/{name}", "work")
    local.run()

    assert local.kernel.counters.unstarted == 1
    assert local.call("fragile/1", "work") == "done"


def test_an_interrupt_ends_the_turn() -> None:
    class Interrupted(Actor):
        @remote
        def work(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalActors(Interrupted).call("interrupted/1", "work")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR ROLLBACK INTO {items} VALUES ('mug')",
        "insert or\n\trollback into {items} values ('mug')",
        "UPDATE OR/* 'x' */ROLLBACK {items} SET name = 'mug'",
        "REPLACE INTO {items} VALUES ('it''s'); INSERT OR -- x\n ROLLBACK INTO {items} VALUES ('')",
        "CREATE TABLE {others} (name TEXT PRIMARY KEY ON CONFLICT ROLLBACK)",
        'CREATE TABLE {others} ("\'" TEXT, b UNIQUE ON CONFLICT ROLLBACK, "\'x")',
    ],
)
def test_no_statement_takes_the_turn_back(tmp_path: Path, statement: str) -> None:
    local = LocalActors(Fragile, path=tmp_path / "host.db")

    with pytest.raises(ValueError, match="a conflict cannot roll back"):
        local.call("fragile/1", "sql", CREATE, INSERT, statement)
    assert local.call("fragile/1", "work") == "done"


@pytest.mark.parametrize(
    "text",
    ["'OR ROLLBACK'", "'it''s on CONFLICT ROLLBACK'", '1 AS "or rollback"', "1 -- or rollback"],
)
def test_texts_may_say_what_statements_may_not(local: LocalActors, text: str) -> None:
    assert local.call("fragile/1", "sql", f"SELECT {text}")
