"""Every bug planted in the durable part must be found and named."""

from __future__ import annotations

from itertools import count
from typing import TypeVar

import pytest

from signalhub.core.effects import Append, Effect
from signalhub.core.messages.dedup import Dedup
from signalhub.core.sessions.session import Session
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import Flight, Window
from signalhub.wire.entry import Outcome
from tests.simulation.durable_world import DurableWorld
from tests.simulation.events import RecordingShell
from tests.simulation.world import Bug
from tests.support.memory.engine import MemoryEngine

SEEDS = 14
STEPS = 400

Shell = TypeVar("Shell", bound=RecordingShell)


def subscriptions(shell: RecordingShell) -> list[Subscription]:
    streams = shell.hub.streams
    topics = [one for topic in streams.topics.values() for one in topic.subscriptions.values()]
    return [*topics, *(box.subscription for box in streams.mailboxes.values())]


class HastyEngine(MemoryEngine):
    """Calls entries committed that are still on their way."""

    def flush(self) -> None:
        taken = list(self._taken)
        super().flush()
        if taken and not self.is_prompt and not self.is_full:
            hasty = [one for one in taken if one.entry.seq]
            for one in hasty:
                self._pending.remove(one)
            self._outcomes.committed(hasty, self.head)


def with_a_hasty_disk(shell: RecordingShell) -> None:
    shell.engine.__class__ = HastyEngine


def settling_on_disconnect(shell: RecordingShell) -> None:
    closed = shell.hub.closed

    def closed_for_good(session: Session, now: int, code: int | None = None) -> list[Effect]:
        for consumer in [part for one in session.consumers.values() for part in one.parts()]:
            for flight in consumer.subscription.window.of(consumer):
                consumer.subscription.settle(flight, Outcome.ACKED)
        return closed(session, now, code)

    shell.hub.closed = closed_for_good  # type: ignore[method-assign]


class Restarting(RecordingShell):
    """Something goes wrong with every restart."""

    def restarted(self: Shell, written: int = 0) -> Shell:
        successor = super().restarted(written)
        assert isinstance(successor, Restarting)
        successor.damage()
        return successor

    def damage(self) -> None:
        raise NotImplementedError


class ForgetsTheFloor(Restarting):
    def damage(self) -> None:
        for one in subscriptions(self):
            one.position.floor = 0
            one.position.above.drop_through(one.stream.head)
            one.recovered()


class SkipsOne(Restarting):
    def damage(self) -> None:
        for one in subscriptions(self):
            if one.lag:
                one.position.settle(one.position.floor + 1)
                one.recovered()


class ForgetsWhatItSent(Restarting):
    def damage(self) -> None:
        for one in subscriptions(self):
            one.position.doubtful = 0


class ForgetsWhatItAccepted(Restarting):
    def damage(self) -> None:
        Dedup.__init__(self.hub.dedup, 300_000, 2**26)


class LosesTheLastEntry(RecordingShell):
    """A restart cuts off what was committed last."""

    def restarted(self: Shell, written: int = 0) -> Shell:
        for index in range(len(self.engine.entries) - 1, 0, -1):
            one = self.engine.entries[index]
            if one.seq:
                self.engine.entries = self.engine.entries[:index]
                self.engine._streams[one.stream, one.stream_epoch].pop()
                break
        return super().restarted(0)


class KeyBlind(Window):
    """Every message has a key of its own."""

    __slots__ = ()
    serial = count()

    def add(self, flight: Flight) -> None:
        if flight.held is not None:
            message = flight.held.message
            key, message.key = message.key, f"{next(self.serial)}"
            super().add(flight)
            message.key = key
        else:
            super().add(flight)


class WithoutKeys(RecordingShell):
    def _turn(self) -> bool:
        for one in subscriptions(self):
            if one.definition.mode == "key-shared":
                one.window.__class__ = KeyBlind
        return super()._turn()


def overtaking(shell: RecordingShell) -> None:
    received = shell.hub.received

    def received_in_no_order(session: Session, frame: bytes, now: int) -> list[Effect]:
        session.unsynced.clear()
        return received(session, frame, now)

    shell.hub.received = received_in_no_order  # type: ignore[method-assign]


class BuriesTooSoon(RecordingShell):
    """Settles a message when its dead letter is on its way, not when it is on disk."""

    def _perform_one(self, effect: Effect) -> None:
        super()._perform_one(effect)
        if isinstance(effect, Append) and effect.entry.stream.endswith(".dlq"):
            for one in subscriptions(self):
                for flight in list(one.window.flights.values()):
                    if flight.is_burying:
                        one.settle(flight, Outcome.DEAD_LETTERED)


class RenamesCopies(RecordingShell):
    """A copy read back from the log gets another id."""

    def _turn(self) -> bool:
        for one in subscriptions(self):
            for flight in one.window.flights.values():
                if flight.deliveries and flight.held is not None:
                    flight.held.message.copy_id = self.hub.ids.next()
        return super()._turn()


BUGS = {
    "acks before the commit": Bug("before it was on disk", plant=with_a_hasty_disk),
    "settles on disconnect": Bug("nobody settled", plant=settling_on_disconnect),
    "forgets the floor": Bug("was settled and came again", ForgetsTheFloor),
    "skips one on recovery": Bug("nobody settled", SkipsOne),
    "forgets what it sent": Bug("came again and was not marked", ForgetsWhatItSent),
    "forgets what it accepted": Bug("was appended twice", ForgetsWhatItAccepted),
    "loses the last entry": Bug("what was committed is gone", LosesTheLastEntry),
    "mixes up keys": Bug("which has the same key", WithoutKeys),
    "lets tells overtake": Bug("overtaken by a later", plant=overtaking),
    "buries too soon": Bug("was settled before its letter was safe", BuriesTooSoon),
    "renames copies": Bug("under another id", RenamesCopies),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_and_named(name: str) -> None:
    BUGS[name].assert_found(DurableWorld, SEEDS, STEPS)
