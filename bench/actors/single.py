"""A kernel in this process, without threads and hub: the cost of the store alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from signalhub.actors import Actor, wire
from signalhub.actors.api.operation import Operation
from signalhub.actors.host.host import FILE
from signalhub.actors.kernel.events import (
    ActorPlace,
    DeliveryArrived,
    Event,
    LocateActors,
    PlacesFound,
    Receipted,
    SendBatch,
)
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.store.store import HostStore
from signalhub.testing.local_actors import request_body

HERE = "@(actors/here)"
THERE = "@(actors/there)"
_CALLER = "@(bench/caller)"


class Single:
    """Runs requests from outside; messages to other hosts only get their receipt."""

    def __init__(self, kernel: Kernel, foreign: frozenset[str], now_ms: int | None) -> None:
        self.kernel = kernel
        self._foreign = foreign
        self._now_ms = now_ms
        self._asked = 0

    @property
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 if self._now_ms is None else self._now_ms

    def request(self, target: str, operation: Operation) -> None:
        """Make a call from outside and run turns until nothing is left to do."""
        self._asked += 1
        body = request_body(f"bench-{self._asked}", target, operation)
        events: list[Event] = [DeliveryArrived(wire.CALL, body, _CALLER, self.now_ms, None)]
        while events or self.kernel.has_work:
            effects = self.kernel.turn(events, self.now_ms)
            events = [event for effect in effects for event in self._perform(effect)]

    def _perform(self, effect: Any) -> Iterator[Event]:
        if isinstance(effect, LocateActors):
            yield PlacesFound([ActorPlace(one, self._home(one), 1) for one in effect.actors])
        elif isinstance(effect, SendBatch):
            yield Receipted(effect.batch)

    def _home(self, actor: str) -> str:
        return THERE if actor.partition("/")[0] in self._foreign else HERE


@contextmanager
def single(
    data: Path, classes: Iterable[type[Actor]], foreign: Iterable[str] = (), *, now_ms: int | None
) -> Iterator[Single]:
    """Open a synced store; without `now_ms`, use the real time."""
    names = frozenset(foreign)
    kernel = Kernel(HostStore(data / FILE, durability="power"), classes, host=HERE, foreign=names)
    try:
        made = Single(kernel, names, now_ms)
        kernel.start(made.now_ms)
        yield made
    finally:
        kernel.store.close()
