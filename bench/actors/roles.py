"""The measured actors."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, ClassVar

from signalhub.actors import Actor, CallError, Token, op, ref, remote

TIMEOUT_S = 600.0
"""The timeout of every measured call: a lost one must fail the run, not slow it down."""


class Callee(Actor):
    """Does as little as possible, like the tasks of the peers."""

    @remote
    def add(self, number: int) -> int:
        return number + 1


class Caller(Actor):
    """Makes calls and answers when the last of them has returned."""

    _times: list[float]

    @remote
    def keep_in_flight(self, chains: int, length: int) -> Token:
        """Keep this many calls in flight, each chain making its calls one after the other.

        Each call gets the result of the previous one, so the answer, the sum of the last numbers,
        equals the number of calls if every one ran exactly once.
        """
        token = self.defer()
        self.state.put("left", chains)
        self.state.put("sum", 0)
        for _ in range(chains):
            self._call(length, token.id, 0)
        return token

    def _call(self, left: int, token: str, number: int) -> None:
        then = partial(self.came_back, left - 1, token)
        self.call(ref("callee", self.key), op(Callee.add, number), then=then, timeout=TIMEOUT_S)

    def came_back(self, left: int, token: str, outcome: Any) -> None:
        if isinstance(outcome, CallError):
            self.reject(Token(token), outcome)
        elif left:
            self._call(left, token, outcome)
        else:
            self._chain_ended(token, outcome)

    def _chain_ended(self, token: str, number: int) -> None:
        left, total = self.state.get("left") - 1, self.state.get("sum") + number
        self.state.put("left", left)
        self.state.put("sum", total)
        if not left:
            self.resolve(Token(token), total)

    @remote
    def one_by_one(self, count: int) -> Token:
        """Make one call after the other; answer with the seconds each took, ascending."""
        token = self.defer()
        self._times = []
        self._call_timed(count, token.id)
        return token

    def _call_timed(self, left: int, token: str) -> None:
        began = time.monotonic()
        then = partial(self.timed, left - 1, token, began)
        self.call(ref("callee", self.key), op(Callee.add, left), then=then, timeout=TIMEOUT_S)

    def timed(self, left: int, token: str, began: float, outcome: Any) -> None:
        # Kept in memory only, so that measuring costs no row.
        self._times.append(time.monotonic() - began)
        if isinstance(outcome, CallError):
            self.reject(Token(token), outcome)
        elif left:
            self._call_timed(left, token)
        else:
            self.resolve(Token(token), sorted(self._times))

    @remote
    def all_at_once(self, count: int, prefix: str) -> Token:
        """Make one call to each of this many actors; answer with the sum of the results."""
        token = self.defer()
        self.state.put("left", count)
        self.state.put("sum", 0)
        for number in range(count):
            then = partial(self.one_ended, token.id)
            to = ref("callee", f"{prefix}-{number}")
            self.call(to, op(Callee.add, 0), then=then, timeout=TIMEOUT_S)
        return token

    def one_ended(self, token: str, outcome: Any) -> None:
        if isinstance(outcome, CallError):
            self.reject(Token(token), outcome)
        else:
            self._chain_ended(token, outcome)

    @remote
    def timed_calls(self, count: int, kind: str) -> None:
        """Measures the time of `call` itself, in a handler."""
        to, operation = ref(kind, self.key), op(Callee.add, 1)
        for _ in range(count):
            began = time.perf_counter()
            self.call(to, operation, then=self.ignored, timeout=TIMEOUT_S)
            TOOK_S.append(time.perf_counter() - began)

    def ignored(self, outcome: Any) -> None:
        """The continuation of calls whose outcome does not matter."""


TOOK_S: list[float] = []
"""What `timed_calls` has measured, in the process that runs the kernel."""


class Neighbour(Callee):
    """A callee in the same host as its caller."""


class Keeper(Actor):
    """An actor with alarms."""

    fired: ClassVar[int] = 0
    first_at: ClassVar[float] = 0.0
    last_at: ClassVar[float] = 0.0

    @remote
    def schedule(self, count: int, after_s: float) -> int:
        for _ in range(count):
            self.alarms.schedule(after_s, self.ring)
        return count

    @remote
    def ping(self) -> str:
        return self.key

    def ring(self) -> None:
        now = time.monotonic()
        if not Keeper.fired:
            Keeper.first_at = now
        Keeper.fired += 1
        Keeper.last_at = now
