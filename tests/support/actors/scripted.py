"""Actors whose handlers are functions of a test, and ways to see what they did."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from signalhub.actors import Actor, CallError, CallTimeout, Retry, Token, remote
from signalhub.actors.api.config import DurableConfig
from signalhub.testing.local_actors import LocalActors

# Without waiting for the disk: these tests end processes, not power.
QUICK = DurableConfig(durability="process")

Script = Callable[..., Any]

# A message cannot hold a function, but its number.
_numbers: dict[Script, int] = {}
_scripts: list[Script] = []


def number_of(script: Script) -> int:
    if script not in _numbers:
        _numbers[script] = len(_scripts)
        _scripts.append(script)
    return _numbers[script]


def shown(outcome: Any) -> Any:
    """An outcome as a value that can be stored."""
    if isinstance(outcome, CallTimeout):
        return ["timeout", outcome.executed]
    if isinstance(outcome, CallError):
        return f"{outcome.name}: {outcome.message}"
    return outcome


class Scripted(Actor):
    """Runs the functions it is given, and keeps what it is told to note."""

    @remote
    def run(self, number: int, *args: Any) -> Any:
        return _scripts[number](self, *args)

    def script(self, script: Script, *args: Any) -> partial[Any]:
        """A continuation or an alarm that runs a function of the test."""
        return partial(self.run, number_of(script), *args)

    @remote
    def note(self, value: Any = None) -> Any:
        """Keep a value or an outcome."""
        self.state.put("notes", [*self.state.get("notes", []), shown(value)])
        return value


class Caller(Scripted):
    """Makes calls."""


class Target(Scripted):
    """Answers at once, later, or not at all."""

    @remote
    def fail(self) -> None:
        raise ValueError("no")

    @remote
    def put_off(self) -> None:
        raise Retry(after=3_600)

    @remote
    def later(self) -> Token:
        """Answered by `answer`."""
        token = self.defer()
        self.state.put("tokens", [*self.state.get("tokens", []), token])
        return token

    @remote
    def answer(self, value: Any = "late") -> list[bool]:
        return [self.resolve(token, value) for token in self.state.get("tokens")]


def calling(method: str, *args: Any, target: str = "target/1", **options: Any) -> Script:
    """A handler that makes one call and notes its outcome."""
    return lambda self: self.call(target, method, *args, **({"then": self.note} | options))


class Stage(LocalActors):
    """A host of one test, with words for what tests do to its actors."""

    def do(self, address: str, script: Script, *args: Any) -> Any:
        """Run a function as a handler of an actor; its value or its error."""
        return self.call(address, "run", number_of(script), *args)

    def start(self, address: str, script: Script, *args: Any) -> str:
        """The same without running anything yet."""
        return self.begin(address, "run", number_of(script), *args)

    def ask(self, method: str, *args: Any, **options: Any) -> str:
        """Have `caller/1` call a method of the target and note the outcome; the id of the call."""
        call_id: str = self.do("caller/1", calling(method, *args, **options))
        return call_id

    def notes(self, address: str = "caller/1") -> list[Any]:
        found: list[Any] = self.state(address).get("notes", [])
        return found

    def count(self, *tables: str) -> int:
        """The rows of these tables of the host."""
        rows = self.kernel.store.execute
        return sum(rows(f"SELECT count(*) FROM {table}").get for table in tables)


def stored(path: os.PathLike[str], *classes: type[Actor], **options: Any) -> Stage:
    """A host that can be restarted, with its file in this folder."""
    options = {"config": QUICK} | options
    return Stage(*(classes or (Caller, Target)), path=f"{path}/a.db", **options)
