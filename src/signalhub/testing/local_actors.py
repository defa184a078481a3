"""Durable actors without a hub, for tests: one host, a manual clock, no network."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from signalhub.actors import wire
from signalhub.actors.api import outcome
from signalhub.actors.api.actor import Actor
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.api.names import Ref
from signalhub.actors.api.operation import Operation, encode_operation, op
from signalhub.actors.api.state import State
from signalhub.actors.host.offload import run_offloaded
from signalhub.actors.kernel.events import (
    ActorPlace,
    DeliveryArrived,
    Effect,
    Event,
    LocateActors,
    Offload,
    OffloadEnded,
    PlacesFound,
    Receipted,
    SendBatch,
    SettleDelivery,
)
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.store.store import HostStore, StorageFailed
from signalhub.clock import SteadyClock
from signalhub.testing.clock import FakeClock

HOST = "@(actors/local)"
CALLER = "@(test/caller)"

What = Operation | Callable[..., Any] | str


class Unanswered(AssertionError):
    """A call has no outcome although nothing is left to do."""


class LocalActors:
    """Runs actors in the test's own thread until nothing is left to do.

    Calls work as in a real host, store included; only the hub is replaced. With a path the store is
    a file, and `restart` opens it again, as after a crash.
    """

    def __init__(
        self,
        *classes: type[Actor],
        path: str | os.PathLike[str] = ":memory:",
        clock: FakeClock | None = None,
        config: DurableConfig | None = None,
        foreign: Iterable[str] = (),
        reached: Callable[[str], None] = lambda point: None,
    ) -> None:
        self.clock = clock or FakeClock()
        self._steady = SteadyClock(self.clock)
        self._classes = classes
        self._path = path
        self._config = config
        self._foreign = tuple(foreign)
        self._reached = reached
        self._calls = 0
        self._outcomes: dict[str, Any] = {}
        self._events: list[Event] = []
        self._unsettled: dict[int, DeliveryArrived] = {}
        self._deliveries = 0
        self.kernel = self._open(classes)

    def _open(self, classes: Iterable[type[Actor]]) -> Kernel:
        config = self._config or DurableConfig()
        kernel = Kernel(
            HostStore(self._path, durability=config.durability),
            classes,
            host=HOST,
            config=config,
            foreign=self._foreign,
            jitter=lambda: 0.5,
            reached=lambda point: self._reached(point),
        )
        kernel.time.resume(self._steady)
        kernel.start(self.own_ms, self._steady.ahead_ms)
        return kernel

    @property
    def own_ms(self) -> int:
        """The host's own time, which `clock.jump` does not change."""
        return self._steady.now_ms()

    def close(self) -> None:
        self.kernel.store.close()

    def restart(self, *classes: type[Actor]) -> None:
        """Open the store again, optionally with changed classes; nothing runs before `run`.

        Unsettled calls from outside are redelivered.
        """
        self.close()
        self._events = [*self._unsettled.values()]
        self.kernel = self._open(classes or self._classes)

    def call(self, target: Ref | str, operation: What, *args: Any) -> Any:
        """Call from outside and run; returns the value or raises the `CallError`."""
        call_id = self.begin(target, operation, *args)
        self.run()
        return self.outcome(call_id)

    def begin(self, target: Ref | str, operation: What, *args: Any) -> str:
        """Call from outside without running anything yet."""
        self._calls += 1
        call_id = f"call-{self._calls}"
        wanted = operation if isinstance(operation, Operation) else op(operation, *args)
        data = request_body(call_id, str(target), wanted)
        self.deliver(wire.CALL, data)
        return call_id

    def deliver(self, type: str, data: bytes, sender: str = CALLER) -> None:
        """Deliver any message, as the hub would."""
        self._deliveries += 1
        accepted_ms = self.own_ms
        arrived = DeliveryArrived(type, data, sender, accepted_ms, self._deliveries)
        self._unsettled[self._deliveries] = arrived
        self._events.append(arrived)

    def outcome(self, call_id: str) -> Any:
        """The value a call from outside returned; raises its error, or `Unanswered`."""
        if call_id not in self._outcomes:
            raise Unanswered(f"{call_id} has no outcome")
        value = self._outcomes[call_id]
        if outcome.is_error(value):
            raise value
        return value

    def run(self, turns_max: int = 10_000) -> None:
        """Run turns until nothing is left to do at this time."""
        for _ in range(turns_max):
            self.turn()
            due_ms = self.kernel.next_due_ms()
            is_due = due_ms is not None and due_ms <= self.own_ms
            if not (self._events or self.kernel.has_work or is_due):
                return
        raise AssertionError(f"still busy after {turns_max} turns")

    def turn(self) -> None:
        """Run one turn and perform its effects."""
        events, self._events = self._events, []
        try:
            effects = self.kernel.turn(events, self.own_ms, self._steady.ahead_ms)
        except StorageFailed:
            # Rolled back; the hub redelivers what was not settled.
            self._events = [*self._unsettled.values()]
            raise
        for effect in effects:
            self._perform(effect)

    def advance(self, seconds: float) -> None:
        """Let time pass, running turns whenever something is due."""
        end_ms = self.own_ms + round(seconds * 1000)
        self.run()
        while True:
            due_ms = self.kernel.next_due_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.clock.advance(max(0, due_ms - self.own_ms) / 1000)
            self.run()
        self.clock.advance(max(0, end_ms - self.own_ms) / 1000)
        self.run()

    def state(self, target: Ref | str) -> State:
        """The state of an actor, for inspection."""
        config = self.kernel.config
        return State(self.kernel.store, str(target), config.max_depth, config.max_payload_bytes)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case LocateActors():
                places = [ActorPlace(one, HOST, effect.claims.get(one, 1)) for one in effect.actors]
                self._events.append(PlacesFound(places))
            case SendBatch():
                for message, _ in wire.split(effect.data):
                    self._outcomes[message.call] = outcome.read(bytes(message.body), message.call)
                self._events.append(Receipted(effect.batch))
            case Offload():
                body = asyncio.run(run_offloaded(effect.function, effect.arguments))
                self._events.append(OffloadEnded(effect.actor, effect.call_id, body))
            case SettleDelivery():
                self._unsettled.pop(effect.delivery, None)
            case _:
                raise AssertionError(f"unexpected effect of a single host: {effect!r}")


def request_body(call_id: str, target: str, operation: Operation) -> bytes:
    """The body of a call from outside."""
    message = wire.ActorMessage(
        "request", call_id, target, msgspec.Raw(encode_operation(operation))
    )
    return wire.join([wire.encode(message)])
