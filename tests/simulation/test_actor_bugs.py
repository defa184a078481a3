"""Every bug planted in the kernel of actors must be found and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from signalhub.actors.kernel.calls import Calls, WaitingCall
from signalhub.actors.kernel.events import BatchRefused, DeliveryArrived, SendBatch, SettleDelivery
from signalhub.actors.kernel.inbox import HostInbox, Item
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.kernel.outbox import Lane, Outbox, Row
from signalhub.actors.kernel.receive import Arriving
from signalhub.actors.kernel.send import BatchesUnderWay
from tests.simulation.actor_runs import ActorRun
from tests.simulation.actor_world import ActorWorld, Faults, Host

SEEDS = 80
CALLS = 24
AT_COMMITS = Faults(crash=0.1, only_at="commit", statement=0, storage=0)
OFTEN = Faults(crash=0.1)

Plant = Callable[[Kernel, ActorWorld, Host], None]


def becoming(part: str, cls: type[object]) -> Plant:
    """A part of the kernel is of another class."""

    def plant(kernel: Kernel, world: ActorWorld, host: Host) -> None:
        getattr(kernel, part).__class__ = cls

    return plant


class SendsAndForgets(BatchesUnderWay):
    """Removes what it sends at once, as if every request arrived."""

    def _send(
        self, batch: str, lane: Lane, rows: list[Row], fences: dict[str, int], now_ms: int
    ) -> SendBatch:
        self._kernel.outbox.remove(rows)
        return super()._send(batch, lane, rows, fences, now_ms)


class Believing(Arriving):
    """Takes every copy of a request for the first one."""

    def _is_new(self, item: Item, accepted_ms: int) -> bool:
        return True


class Impatient(BatchesUnderWay):
    """Sends the next batch of a lane although the one before has no receipt."""

    def run(self, now_ms: int) -> None:
        outbox = self._kernel.outbox
        assert isinstance(outbox, Skipping)
        outbox.under_way = {row.msg_id for trip in self._trips.values() for row in trip.rows}
        super().run(now_ms)
        self._busy.clear()

    def refused(self, event: BatchRefused, now_ms: int) -> None:
        trip = self._trips.get(event.batch)
        super().refused(event, now_ms)
        if trip is not None:
            self.wake(trip.lane)


class Skipping(Outbox):
    """Leaves out what is under way."""

    under_way: set[str]

    def head(self, lane: Lane, limit: int) -> list[Row]:
        rows = super().head(lane, 1_000)
        return [row for row in rows if row.msg_id not in self.under_way][:limit]


def without_head_of_line(kernel: Kernel, world: ActorWorld, host: Host) -> None:
    kernel.outbox.__class__ = Skipping
    kernel.dispatch.__class__ = Impatient


def settling_before_the_commit(kernel: Kernel, world: ActorWorld, host: Host) -> None:
    arrived = kernel.arriving.arrived

    def settled_and_arrived(event: DeliveryArrived) -> None:
        world.perform(host, SettleDelivery(event.delivery))
        arrived(event)

    kernel.arriving.arrived = settled_and_arrived  # type: ignore[method-assign]


def sending_before_the_commit(kernel: Kernel, world: ActorWorld, host: Host) -> None:
    reached = kernel.reached

    def sent_and_reached(point: str) -> None:
        if point == "commit":
            for effect in kernel.effects:
                if isinstance(effect, SendBatch):
                    world.perform(host, effect)
        reached(point)

    kernel.reached = sent_and_reached


class Careless(Calls):
    """Says that a request was taken back, and leaves it where it is."""

    def withdraw(self, actor: str, waiting: WaitingCall) -> bool:
        return bool(waiting.dest)


class Hasty(HostInbox):
    """Writes what is left before the dispatcher had its turn, and what that brings not at all."""

    def flush(self) -> None:
        pass

    def flush_early(self) -> None:
        super().flush()


def flushing_too_early(kernel: Kernel, world: ActorWorld, host: Host) -> None:
    inbox, run = kernel.inbox, kernel.dispatch.run
    inbox.__class__ = Hasty
    assert isinstance(inbox, Hasty)
    flush = inbox.flush_early

    def flushed_and_run(now_ms: int) -> None:
        flush()
        run(now_ms)

    kernel.dispatch.run = flushed_and_run  # type: ignore[method-assign]


class Overtaking(Outbox):
    """Does not look for what waits already before it chooses a lane."""

    def lane_of(self, actor: str, dest: str, *, is_ordered: bool) -> Lane | None:
        return None

    def has_for(self, actor: str, dest: str) -> bool:
        return False


class Purging(Arriving):
    """Forgets tombstones after a while, whatever may still come."""

    def purge(self) -> int:
        self._kernel.store.execute("DELETE FROM done")
        return self._kernel.store.connection.changes()


@dataclass(frozen=True)
class Bug:
    """Something wrong with a kernel, and the complaint it must raise."""

    complaint: str
    plant: Plant
    # What shows it soon, unless everything does.
    faults: Faults | None = None
    moves: int = 0


BUGS = {
    "removes the row before the receipt": Bug("lost: ", becoming("dispatch", SendsAndForgets)),
    "has no tombstones": Bug(" times", becoming("arriving", Believing)),
    "has no head-of-line rule": Bug("order: ", without_head_of_line),
    "settles before the commit": Bug("is lost", settling_before_the_commit),
    "sends before the commit": Bug("duplicated: ", sending_before_the_commit, AT_COMMITS),
    "withdraws nothing": Bug("before it left, and it was done", becoming("calls", Careless)),
    "writes too early what is left": Bug("lost: ", flushing_too_early, OFTEN),
    "lets calls overtake": Bug("order: ", becoming("outbox", Overtaking), moves=12),
    "forgets without evidence": Bug("without evidence", becoming("arriving", Purging)),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_and_named(name: str) -> None:
    bug = BUGS[name]

    def make_kernel(world: ActorWorld, host: Host) -> Kernel:
        kernel = ActorWorld.new_kernel(world, host)
        bug.plant(kernel, world, host)
        return kernel

    complaints = []
    for seed in range(SEEDS):
        try:
            ActorRun(
                seed, faults=bug.faults, make_kernel=make_kernel, calls=CALLS, moves=bug.moves
            ).run()
        except AssertionError as error:
            complaints.append(str(error))
            if bug.complaint in complaints[-1]:
                return
    pytest.fail(f"only {complaints}")
