"""Actors that count what happens to them, and name the points at which their host is killed."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from signalhub.actors import Actor, CallError, CallTimeout, Token, op, ref, remote
from signalhub.testing.process import at

QUICK: dict[str, Any] = {
    "retry_base_ms": 50,
    "retry_cap_ms": 200,
    "outbound_timeout_ms": 500,
    "durability": "process",
}


class Callee(Actor):
    """Called in order, or answering when it is told to."""

    @remote
    def hit(self, number: int) -> int:
        self.state.put("hits", [*self.state.get("hits", []), number])
        at("hit")
        return number * 10

    @remote
    def hold(self, number: int) -> Token:
        """Answered by `release`."""
        token = self.defer()
        self.state.put(f"held/{number:06}", token.id)
        return token

    @remote
    def release(self) -> int:
        held = self.state.list("held/")
        for key, token in held.items():
            self.state.delete(key)
            self.resolve(Token(token), int(key.removeprefix("held/")) * 10)
        return len(held)

    @remote
    def hits(self) -> list[int]:
        hits: list[int] = self.state.get("hits", [])
        return hits


class Caller(Actor):
    """Makes calls to the callee of its key, numbered from 0, and keeps what it hears."""

    callee: ClassVar[type[Callee]] = Callee

    @remote
    def go(self, round: int, count: int, held_s: float | None = None) -> None:
        """Once per round, so that whoever asks may ask again.

        With `held_s` the callee does not answer by itself, and there is so much time.
        """
        if round <= self.state.get("round", 0):
            return
        self.state.put("round", round)
        first = self.state.get("asked", 0)
        for number in range(first, first + count):
            self.call(
                ref(self.callee, self.key),
                op(Callee.hit if held_s is None else Callee.hold, number),
                then=partial(self.heard, number),
                timeout=held_s or 100.0,
            )
        self.state.put("asked", first + count)
        at("go")

    def heard(self, number: int, outcome: Any) -> None:
        shown = type(outcome).__name__ if isinstance(outcome, CallError) else outcome
        if isinstance(outcome, CallTimeout):
            shown = "timeout"
        self._count(f"heard/{number:06}", shown)
        at("heard")

    @remote
    def ring(self, round: int, count: int) -> None:
        """Alarms instead of calls; all are due at the same time."""
        if round <= self.state.get("round", 0):
            return
        self.state.put("round", round)
        first = self.state.get("asked", 0)
        for number in range(first, first + count):
            self.alarms.schedule(0.01, self.rang, number)
        self.state.put("asked", first + count)

    def rang(self, number: int) -> None:
        self.state.put("rung", [*self.state.get("rung", []), number])
        self._count(f"heard/{number:06}", number * 10)
        at("rang")

    def _count(self, key: str, shown: Any) -> None:
        """How often something was heard, and what: once is right."""
        self.state.put(key, [*self.state.get(key, []), shown])
        if len(self.state.list("heard/")) == self.state.get("asked", 0):
            for waiting in self.state.get("waiting", []):
                self.resolve(Token(waiting), self._heard())
            self.state.delete("waiting")

    @remote
    def all_heard(self) -> Token | dict[int, list[Any]]:
        """Answered when every call has an outcome; outcomes by number."""
        if len(self.state.list("heard/")) == self.state.get("asked", 0):
            return self._heard()
        token = self.defer()
        self.state.put("waiting", [*self.state.get("waiting", []), token.id])
        return token

    @remote
    def heard_so_far(self) -> dict[int, list[Any]]:
        return self._heard()

    @remote
    def rung(self) -> list[int]:
        rung: list[int] = self.state.get("rung", [])
        return rung

    def _heard(self) -> dict[int, list[Any]]:
        return {int(k.removeprefix("heard/")): v for k, v in self.state.list("heard/").items()}


class NarrowCaller(Caller):
    """Of a host that does one thing a turn, so that outcomes have to wait in its store."""


class NearCallee(Callee):
    """Lives where its caller lives."""


class NearCaller(Caller):
    """Has its callee in its own host: their messages never leave it."""

    callee: ClassVar[type[Callee]] = NearCallee
