"""Moving an actor through a hub that takes smaller messages than was thought."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec

from signalhub.actors import Actor, remote
from signalhub.actors import message as wire
from signalhub.actors.effects import Effect, GiveAway, Send
from signalhub.actors.events import (
    Arrived,
    Commanded,
    Event,
    Moved,
    Place,
    Placed,
    Receipted,
    Refused,
)
from signalhub.actors.moving import PART_BYTES
from signalhub.testing.local_actors import HOST, LocalActors

NEW = "@(actors/new)"
ACTOR = "chest/1"


class Chest(Actor):
    @remote
    def fill(self, chars: int) -> None:
        self.state.put("content", "x" * chars)


class Journey:
    """An actor whose parts are about to leave, and a hub that takes so many bytes at once."""

    def __init__(self, chars: int = 2 * PART_BYTES) -> None:
        self.old = LocalActors(Chest)
        self.old.call(ACTOR, "fill", chars)
        self.bytes_max = 2**20
        self.parts: list[dict[str, Any]] = []
        self._next = self._turn(Commanded("move", {"actor": ACTOR, "to": NEW}, None))

    def _turn(self, *events: Event) -> list[Effect]:
        return self.old.kernel.turn(events, self.old.clock.now_ms())

    def begin_again(self) -> None:
        """The connection to the hub is a new one."""
        self.parts = []
        self.old.kernel.moving.connected()
        self._next = self._turn()

    def run(self) -> None:
        """Until nothing is left to send."""
        for _ in range(10_000):
            events = [event for effect in self._next for event in self._perform(effect)]
            if not events and not self.old.kernel.has_work:
                return
            self._next = self._turn(*events)
        raise AssertionError("it does not end")

    def _perform(self, effect: Effect) -> list[Event]:
        now_ms = self.old.clock.now_ms()
        match effect:
            case GiveAway():
                return [Moved(ACTOR, 2)]
            case Send(type=wire.MARK):
                mark = Arrived(wire.MARK, effect.data, HOST, now_ms, "mark")
                return [Receipted(effect.batch), mark]
            case Send(type=wire.MOVE):
                if len(effect.data) > self.bytes_max:
                    return [Refused(effect.batch, "too large", is_too_large=True)]
                self.parts.append(msgspec.json.decode(effect.data))
                return [Receipted(effect.batch)]
            case _:
                return []


def arrive(new: LocalActors, parts: list[dict[str, Any]]) -> None:
    now_ms = new.clock.now_ms()
    for number, part in enumerate(parts):
        data = msgspec.json.encode(part)
        new.kernel.turn([Arrived(wire.MOVE, data, NEW, now_ms, number)], now_ms)
    new.kernel.turn([Placed([Place(ACTOR, HOST, 2)])], now_ms)


def content(actors: LocalActors) -> Any:
    return actors.state(ACTOR).get("content")


def test_a_parcel_is_cut_until_its_parts_fit() -> None:
    journey, new = Journey(), LocalActors(Chest)
    journey.bytes_max = 20_000

    journey.run()

    assert max(len(b64decode(part["body"])) for part in journey.parts) < 20_000
    arrive(new, journey.parts)
    assert content(new) == content(journey.old)


def test_parts_of_two_sizes_are_not_taken_for_one_set() -> None:
    journey, new = Journey(), LocalActors(Chest)
    journey.run()
    large = journey.parts
    journey.bytes_max = 20_000
    journey.begin_again()
    journey.run()
    small = journey.parts

    # The first of the large ones comes once more when half of the others are there.
    half = len(small) // 2
    arrive(new, [large[0], *small[:half], large[0], large[1]])
    assert content(new) is None
    arrive(new, small[half:])

    assert content(new) == content(journey.old)


def test_an_actor_that_fits_in_no_message_waits_with_a_pause() -> None:
    journey = Journey(chars=10)
    journey.bytes_max = 10

    journey.run()

    assert not journey.parts
    due_ms = journey.old.kernel.next_due_ms()
    assert due_ms is not None
    assert due_ms > journey.old.clock.now_ms()
