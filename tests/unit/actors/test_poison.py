"""Methods that exit or are cancelled: they have failed, and nobody else has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signalhub.actors import RemoteError
from tests.support.actors.scripted import Scripted, Stage

EXITS: dict[str, type[BaseException]] = {
    one.__name__: one for one in (SystemExit, GeneratorExit, asyncio.CancelledError)
}


class Fragile(Scripted):
    """Healthy, until it is told to exit."""


class Unwilling(Scripted):
    def on_start(self) -> None:
        raise EXITS[self.key]("2")


def leave(self: Fragile, name: str, *outcome: Any) -> None:
    self.note("left")
    raise EXITS[name]("2")


@pytest.fixture
def local() -> Stage:
    return Stage(Fragile, Unwilling)


@pytest.mark.parametrize("name", EXITS)
def test_whatever_exits_has_failed_like_anything_that_raises(local: Stage, name: str) -> None:
    def go(self: Fragile) -> None:
        self.call("fragile/other", "note", then=self.script(leave, name))
        self.alarms.schedule(1, self.script(leave, name))

    with pytest.raises(RemoteError) as raised:
        local.do("fragile/1", leave, name)
    assert raised.value.name == name
    local.do("fragile/1", go)
    local.start(f"unwilling/{name}", lambda self: None)
    local.advance(600)

    (letter,) = local.kernel.letters.of("fragile/1")
    assert letter.error.startswith(name)
    (alarm,) = local.kernel.alarms.of("fragile/1")
    assert str(alarm.last_error).startswith(name)
    assert local.kernel.counters.unstarted > 0
    assert local.state("fragile/1").list() == {}
    assert local.call("fragile/1", "note", "done") == "done"


def test_an_interrupt_ends_the_turn(local: Stage) -> None:
    def interrupt(self: Fragile) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.do("fragile/1", interrupt)
