"""Several hosts around a hub of a few lines, which can lose, repeat and delay what it is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from signalhub.actors.api.actor import Actor
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.api.operation import Operation, op
from signalhub.actors.api.state import State
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    DeliveryArrived,
    Effect,
    Event,
    LocateActors,
    PlacesFound,
    Receipted,
    SendBatch,
    SettleDelivery,
)
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.store.store import HostStore
from signalhub.actors.wire import CALL
from signalhub.clock import Clock, SteadyClock
from signalhub.testing.clock import FakeClock
from signalhub.testing.local_actors import request_body
from tests.support.actors.scripted import QUICK, Script, number_of


class Crash(BaseException):
    """The end of a process, for which nobody is prepared."""


class Fuse:
    """Ends the process at a point of a turn, as often as there are charges."""

    def __init__(self, charges: int, is_wanted: Callable[[str], bool]) -> None:
        self.charges = charges
        self.burnt = 0
        self._is_wanted = is_wanted

    def __call__(self, point: str) -> None:
        if self.burnt < self.charges and self._is_wanted(point):
            self.burnt += 1
            raise Crash(point)


class Side:
    """One host: its kernel, and what it has not been told yet."""

    def __init__(
        self,
        name: str,
        path: Path,
        classes: list[type[Actor]],
        foreign: list[str],
        clock: Clock,
    ) -> None:
        self.name = name
        self.foreign = foreign
        self.path = path
        self.classes = classes
        self.reached: Callable[[str], None] = lambda point: None
        self.events: list[Event] = []
        self.clock = SteadyClock(clock)

    def open(self, config: DurableConfig) -> None:
        self.kernel = Kernel(
            HostStore(os.fspath(self.path), durability=config.durability),
            self.classes,
            host=self.name,
            config=config,
            foreign=self.foreign,
            jitter=lambda: 0.5,
            reached=lambda point: self.reached(point),
        )
        self.kernel.time.resume(self.clock)
        self.kernel.start(self.clock.now_ms(), self.clock.ahead_ms)

    def turn(self) -> list[Effect]:
        events, self.events = self.events, []
        return self.kernel.turn(events, self.clock.now_ms(), self.clock.ahead_ms)


class Hosts:
    """Hosts by their kinds; each actor lives where its kind is served.

    `lose` decides about every batch whether it gets lost on its way, `lose_receipt` whether only
    its receipt does, `repeat` whether it is delivered twice, `refuse` what the hub says about it.
    """

    def __init__(
        self, folder: Path, *kinds: list[type[Actor]], config: DurableConfig = QUICK
    ) -> None:
        self.clock = FakeClock()
        self._hub_clock = SteadyClock(self.clock)
        self.config = config
        self.sent: list[SendBatch] = []
        self.lose: Callable[[SendBatch], bool] = lambda send: False
        self.lose_receipt: Callable[[SendBatch], bool] = lambda send: False
        self.repeat: Callable[[SendBatch], bool] = lambda send: False
        self.refuse: Callable[[SendBatch], BatchRefused | None] = lambda send: None
        self._mailboxes: dict[str, dict[int, DeliveryArrived]] = {}
        self._deliveries = 0
        self._homes: dict[str, str] = {}
        self.sides: list[Side] = []
        every = [cls.kind for classes in kinds for cls in classes]
        for number, classes in enumerate(kinds):
            path = folder / f"{number}.db"
            side = Side(f"@(actors/{number})", path, classes, every, self.clock)
            side.open(config)
            self.sides.append(side)
            self._homes.update({cls.kind: side.name for cls in classes})
            self._mailboxes[side.name] = {}

    @property
    def _now_ms(self) -> int:
        """The time of the hub, and of the hosts."""
        return self._hub_clock.now_ms()

    def state(self, address: str) -> State:
        (side,) = [
            side for side in self.sides if side.name == self._homes[address.partition("/")[0]]
        ]
        return State(side.kernel.store, address, 50, 2**20)

    def count(self, number: int, table: str) -> Any:
        return self.sides[number].kernel.store.execute(f"SELECT count(*) FROM {table}").get

    def call(self, target: str, operation: Operation | str, *args: Any) -> None:
        """From outside; nobody hears of the outcome."""
        wanted = operation if isinstance(operation, Operation) else op(operation, *args)
        home = self._homes[target.partition("/")[0]]
        call_id = f"outside-{self._deliveries}"
        self.deliver(home, CALL, request_body(call_id, target, wanted), "@(test/caller)")

    def do(self, target: str, script: Script, *args: Any) -> None:
        """Run a function of the test as a handler."""
        self.call(target, "run", number_of(script), *args)

    def notes(self, address: str = "caller/1") -> list[Any]:
        found: list[Any] = self.state(address).get("notes", [])
        return found

    def crash(self, side: Side) -> None:
        """The process ends and starts again; the hub delivers what was not settled."""
        side.kernel.store.close()
        side.open(self.config)
        side.events = [*self._mailboxes[side.name].values()]

    def run(self, turns_max: int = 10_000) -> None:
        """Turn all hosts until none has anything left to do; those that crash start again."""
        for _ in range(turns_max):
            busy = [side for side in self.sides if self._is_busy(side)]
            if not busy:
                return
            for side in busy:
                self.turn(side)
        raise AssertionError(f"still busy after {turns_max} turns")

    def turn(self, side: Side) -> None:
        try:
            for effect in side.turn():
                self._perform(side, effect)
        except Crash:
            self.crash(side)

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping wherever something is due."""
        end_ms = self._now_ms + round(seconds * 1000)
        self.run()
        while True:
            due = [side.kernel.next_due_ms() for side in self.sides]
            due_ms = min((one for one in due if one is not None), default=end_ms + 1)
            if due_ms > end_ms:
                break
            self.clock.advance(max(0, due_ms - self._now_ms) / 1000)
            self.run()
        self.clock.advance(max(0, end_ms - self._now_ms) / 1000)
        self.run()

    def be_unreliable(self, seed: int, loss: float = 0.15, repetition: float = 0.15) -> None:
        random = Random(seed)
        self.lose = lambda send: random.random() < loss
        self.lose_receipt = lambda send: random.random() < loss
        self.repeat = lambda send: random.random() < repetition

    def _is_busy(self, side: Side) -> bool:
        due_ms = side.kernel.next_due_ms()
        is_due = due_ms is not None and due_ms <= side.clock.now_ms()
        return bool(side.events or side.kernel.has_work or is_due)

    def _perform(self, side: Side, effect: Effect) -> None:
        match effect:
            case LocateActors():
                places = [
                    ActorPlace(one, self._homes[one.partition("/")[0]], 1) for one in effect.actors
                ]
                side.events.append(PlacesFound(places))
            case SendBatch():
                side.events.append(self._send(side, effect))
            case SettleDelivery():
                self._mailboxes[side.name].pop(effect.delivery, None)
            case _:
                raise AssertionError(f"no test here wants {effect!r}")

    def _send(self, side: Side, send: SendBatch) -> Receipted | BatchRefused:
        self.sent.append(send)
        refusal = self.refuse(send)
        if refusal is not None:
            return refusal
        if self.lose(send):
            return BatchRefused(send.batch, "no receipt in time")
        if send.to in self._mailboxes:
            for _ in range(2 if self.repeat(send) else 1):
                self.deliver(send.to, send.type, send.data, side.name)
        if self.lose_receipt(send):
            return BatchRefused(send.batch, "no receipt in time")
        return Receipted(send.batch)

    def deliver(self, home: str, type: str, data: bytes, sender: str) -> None:
        self._deliveries += 1
        arrived = DeliveryArrived(type, data, sender, self._now_ms, self._deliveries)
        self._mailboxes[home][self._deliveries] = arrived
        (side,) = [side for side in self.sides if side.name == home]
        side.events.append(arrived)
