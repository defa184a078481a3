"""An actor that moves from one host to another, through a hub of a few lines."""

from __future__ import annotations

from typing import Any

import msgspec

from signalhub.actors import wire
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    Commanded,
    Connected,
    DeliveryArrived,
    Effect,
    Event,
    GiveAway,
    LocateActors,
    Moved,
    PlacesFound,
    Receipted,
    SendBatch,
)
from signalhub.actors.move.leave import PART_BYTES
from signalhub.testing.local_actors import HOST
from tests.support.actors.scripted import Caller, Stage, Target

OLD, NEW = "@(actors/old)", "@(actors/new)"
ACTOR = "target/1"


def turn(actors: Stage, *events: Event) -> list[Effect]:
    return actors.kernel.turn(events, actors.own_ms, actors.clock.now_ms() - actors.own_ms)


def delivered(actors: Stage, type: str, data: bytes, sender: str) -> list[Effect]:
    return turn(actors, DeliveryArrived(type, data, sender, actors.clock.now_ms(), "it"))


def located(actors: Stage, actor: str, host: str, token: int = 1) -> list[Effect]:
    return turn(actors, PlacesFound([ActorPlace(actor, host, token)]))


def sent(effects: list[Effect], type: str) -> list[SendBatch]:
    return [one for one in effects if isinstance(one, SendBatch) and one.type == type]


def asked_about(effects: list[Effect]) -> list[str]:
    return [one for effect in effects if isinstance(effect, LocateActors) for one in effect.actors]


def move(actors: Stage, actor: str = ACTOR) -> list[Effect]:
    return turn(actors, Commanded("move", {"actor": actor, "to": NEW}, None))


class Journey:
    """An actor that is leaving, and a hub that takes messages up to a limit."""

    def __init__(self, chars: int = 2 * PART_BYTES, old: Stage | None = None) -> None:
        self.old = old or Stage(Target, Caller)
        self.old.call(ACTOR, "note", "x" * chars)
        self.bytes_max = 2**20
        self.receipts_max = 1_000
        self.withheld: list[Event] = []
        self.parts: list[dict[str, Any]] = []
        self._next = move(self.old)

    def begin_again(self) -> None:
        """The connection to the hub is a new one."""
        self.parts = []
        self._next = turn(self.old, Connected())

    def hear_the_rest(self) -> None:
        """Receipts come that were withheld."""
        self.receipts_max = 1_000
        self._next = turn(self.old, *self.withheld)

    def run(self) -> Journey:
        """Until nothing is left to send."""
        for _ in range(10_000):
            events = [event for effect in self._next for event in self._perform(effect)]
            if not events and not self.old.kernel.has_work:
                return self
            self._next = turn(self.old, *events)
        raise AssertionError("it does not end")

    def _perform(self, effect: Effect) -> list[Event]:
        match effect:
            case GiveAway():
                return [Moved(ACTOR, 2)]
            case SendBatch(type=wire.MARK):
                now_ms = self.old.clock.now_ms()
                mark = DeliveryArrived(wire.MARK, effect.data, HOST, now_ms, "mark")
                return [Receipted(effect.batch), mark]
            case SendBatch(type=wire.MOVE):
                if len(effect.data) > self.bytes_max:
                    return [BatchRefused(effect.batch, "too large", is_too_large=True)]
                self.parts.append(msgspec.json.decode(effect.data))
                if len(self.parts) > self.receipts_max:
                    self.withheld.append(Receipted(effect.batch))
                    return []
                return [Receipted(effect.batch)]
            case _:
                return []


def take_in(new: Stage, parts: list[dict[str, Any]]) -> list[Effect]:
    """Parts come to the new host."""
    found = [delivered(new, wire.MOVE, msgspec.json.encode(part), OLD) for part in parts]
    return [effect for effects in found for effect in effects]


def arrive(new: Stage, parts: list[dict[str, Any]]) -> list[Effect]:
    """And the hub says that the actor lives there now."""
    take_in(new, parts)
    return located(new, ACTOR, HOST, 2)
