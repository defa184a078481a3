"""Actors for tests of hosts: one is called, one calls, one has everything that can be moved."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from signalhub.actors import Actor, CallError, CallTimeout, Token, op, ref, remote

QUICK: dict[str, Any] = {
    "retry_base_ms": 20,
    "retry_cap_ms": 100,
    "outbound_timeout_ms": 1_000,
    "durability": "process",
}


class Refusing(Exception):
    """An error with something to tell."""

    def __init__(self, why: str, limit: int) -> None:
        super().__init__(why)
        self.limit = limit


class Adder(Actor):
    """Keeps what it is given, in order."""

    @remote
    def add(self, number: int) -> int:
        seen = [*self.state.get("seen", []), number]
        self.state.put("seen", seen)
        return sum(seen)

    @remote
    def seen(self) -> list[int]:
        seen: list[int] = self.state.get("seen", [])
        return seen

    @remote
    def refuse(self) -> None:
        raise Refusing("not today", 3)

    @remote
    def think(self) -> Token:
        """Never answered by itself."""
        token = self.defer()
        self.state.put("thinking", token.id)
        return token

    @remote
    def decide(self, answer: Any) -> bool:
        return self.resolve(Token(self.state.get("thinking", "")), answer)


class Asker(Actor):
    """Asks the adder of its key, and tells whoever asked it."""

    @remote
    def ask(self, number: int) -> Token:
        token = self.defer()
        target = ref(Adder, self.key)
        self.call(target, op(Adder.add, number), then=partial(self.told, token.id))
        return token

    @remote
    def ask_for_trouble(self) -> Token:
        token = self.defer()
        target = ref(Adder, self.key)
        self.call(target, op(Adder.refuse), then=partial(self.told, token.id))
        return token

    def told(self, token: str, outcome: Any) -> None:
        if isinstance(outcome, CallError):
            self.reject(Token(token), outcome)
        else:
            self.resolve(Token(token), outcome)

    @remote
    def pass_on(self, first: int, count: int, timeout_s: float | None = None) -> None:
        """Numbered calls that nobody waits for here; `heard` tells what came of them."""
        for number in range(first, first + count):
            self.call(
                ref(Adder, self.key),
                op(Adder.add, number),
                then=partial(self.heard_of, number),
                timeout=timeout_s,
            )

    @remote
    def spread(self, count: int) -> Token:
        """A call to each of so many adders; answered when all have answered."""
        token = self.defer()
        self.state.put("missing", count)
        for number in range(count):
            target = ref(Adder, f"{self.key}-{number % 50}")
            self.call(target, op(Adder.add, 1), then=partial(self.one_less, token.id))
        return token

    def one_less(self, token: str, outcome: Any) -> None:
        assert not isinstance(outcome, CallError), outcome
        missing = self.state.get("missing") - 1
        self.state.put("missing", missing)
        if not missing:
            self.resolve(Token(token), True)

    def heard_of(self, number: int, outcome: Any) -> None:
        shown = outcome.executed if isinstance(outcome, CallTimeout) else "heard"
        self.state.put("heard", [*self.state.get("heard", []), [number, shown]])

    @remote
    def heard(self) -> list[list[Any]]:
        heard: list[list[Any]] = self.state.get("heard", [])
        return heard

    @remote
    def ring(self, delay_s: float, number: int) -> None:
        self.alarms.schedule(delay_s, self.rang, number)

    def rang(self, number: int) -> None:
        """Something to do here and something to do elsewhere, without anybody asking."""
        self.state.put("rung", [*self.state.get("rung", []), number])
        self.call(ref(Adder, self.key), op(Adder.add, number), then=self.one_rang, timeout=None)

    def one_rang(self, outcome: Any) -> None:
        self.state.put("answered", self.state.get("answered", 0) + 1)


# Offloaded work ends when a test says so.
work_may_end = asyncio.Event()


async def work() -> str:
    await work_may_end.wait()
    return "work"


class Mover(Actor):
    """Has a state, a table, alarms, calls under way, and a log of what it was told."""

    def on_start(self) -> None:
        self.state.sql("CREATE TABLE IF NOT EXISTS {entries} (n INTEGER PRIMARY KEY, word TEXT)")

    @remote
    def note(self, number: int) -> int:
        self.state.put("seen", [*self.state.get("seen", []), number])
        self.state.sql("INSERT INTO {entries} VALUES (?, ?)", (number, f"word {number}"))
        return number

    @remote
    def fill(self, chars: int) -> None:
        """Become so large that a move takes several parts."""
        self.state.put("ballast", "x" * chars)

    @remote
    def ring(self, delay_s: float) -> None:
        self.alarms.schedule(delay_s, self.rang)

    def rang(self) -> None:
        self.state.put("rung", self.state.get("rung", 0) + 1)

    @remote
    def consult(self) -> None:
        """A call whose answer comes when the adder of its key decides."""
        self.call(ref(Adder, self.key), op(Adder.think), then=self.consulted, timeout=None)

    def consulted(self, outcome: Any) -> None:
        self.state.put("advice", [*self.state.get("advice", []), outcome])

    @remote
    def delegate(self) -> None:
        """Work outside the actor; when it has ended, the adder of its key hears of it."""
        self.offload(work, then=self.delegated)

    def delegated(self, outcome: Any) -> None:
        self.state.put("advice", [*self.state.get("advice", []), outcome])
        self.send(ref(Adder, self.key), op(Adder.add, 1))

    @remote
    def show(self) -> dict[str, Any]:
        rows = self.state.sql("SELECT n, word FROM {entries} ORDER BY n")
        return {
            "seen": self.state.get("seen", []),
            "entries": [list(row) for row in rows],
            "rung": self.state.get("rung", 0),
            "advice": self.state.get("advice", []),
            "pending": len(self.pending_calls()),
            "alarms": len(self.alarms.list()),
            "ballast": len(self.state.get("ballast", "")),
        }


class Feeder(Actor):
    """Tells the mover of its key one number after the other."""

    @remote
    def feed(self, first: int, count: int) -> Token:
        """Answered when the mover has answered all."""
        token = self.defer()
        self.state.put("missing", count)
        for number in range(first, first + count):
            self.call(
                ref(Mover, self.key),
                op(Mover.note, number),
                then=partial(self.fed, token.id, number),
                timeout=None,
            )
        return token

    def fed(self, token: str, number: int, outcome: Any) -> None:
        self.state.put("fed", [*self.state.get("fed", []), number if outcome == number else None])
        missing = self.state.get("missing") - 1
        self.state.put("missing", missing)
        if not missing:
            self.resolve(Token(token), self.state.get("fed"))
