"""The core of a host: `turn(events, now, ahead)` takes events and returns effects.

One turn is one transaction. It takes the events, ends calls that have timed out, runs what is ready
up to a limit, and chooses what to send; then it commits and returns its effects. No work exists
only in memory: a kernel loaded from its tables continues after the last commit. `StorageFailed`
means that the turn was rolled back and the kernel has reloaded its tables.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import assert_never

import msgspec

from signalhub.actors.api.actor import Actor
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.api.deferred import Deferred
from signalhub.actors.api.kinds import Kinds
from signalhub.actors.api.names import parse_ref
from signalhub.actors.kernel import commands
from signalhub.actors.kernel.alarms import AlarmTable
from signalhub.actors.kernel.calls import Calls, FinishedCalls
from signalhub.actors.kernel.dead_letters import ActorDeadLetters
from signalhub.actors.kernel.events import (
    BatchRefused,
    Commanded,
    Connected,
    DeliveryArrived,
    Effect,
    Event,
    Moved,
    OffloadEnded,
    PlacesFound,
    PlacingFailed,
    Receipted,
)
from signalhub.actors.kernel.execute import Executor, Instances
from signalhub.actors.kernel.inbox import HostInbox, Item
from signalhub.actors.kernel.outbox import Outbox, Row
from signalhub.actors.kernel.receive import Arriving
from signalhub.actors.kernel.recovery import HostRecovery
from signalhub.actors.kernel.send import BatchesUnderWay
from signalhub.actors.move.leave import Moving
from signalhub.actors.move.moves import Moves
from signalhub.actors.move.places import Places
from signalhub.actors.move.take_over import TakingOver
from signalhub.actors.store.host_time import HostTime
from signalhub.actors.store.store import STORAGE_ERRORS, HostStore, StorageFailed
from signalhub.ids import Ulids

log = logging.getLogger("signalhub.actors")


class Counters(msgspec.Struct):
    """Counters since the start of the host."""

    requests: int = 0
    request_errors: int = 0
    continuations: int = 0
    alarms: int = 0
    timeouts: int = 0
    duplicates: int = 0
    late_results: int = 0
    skipped: int = 0
    dead: int = 0
    gone: int = 0
    unreadable: int = 0
    unstarted: int = 0
    slow: int = 0
    turns: int = 0
    failed_turns: int = 0


def _nothing(point: str) -> None:
    """Default for `reached`: ignore the points of a turn."""


class Kernel:
    """The actors of one host. Not thread-safe; one thread owns it."""

    def __init__(
        self,
        store: HostStore,
        classes: Iterable[type[Actor]],
        *,
        host: str,
        config: DurableConfig | None = None,
        foreign: Iterable[str] = (),
        randomness: Callable[[int], bytes] = os.urandom,
        jitter: Callable[[], float] = random.random,
        reached: Callable[[str], None] = _nothing,
    ) -> None:
        """`reached` is called at points of a turn where tests may kill the process."""
        self.store = store
        self.kinds = Kinds(classes, config or DurableConfig(), foreign)
        self.config = self.kinds.host_config
        self.ids = Ulids(randomness)
        self.counters = Counters()
        self.reached = reached
        self.time = HostTime(store)
        self.effects: list[Effect] = []
        # Does memory still reflect a turn that was rolled back?
        self._is_unread = False
        self.places = Places(store, host)
        self.inbox = HostInbox(store, self.new_id)
        self.outbox = Outbox(store)
        self.calls = Calls(self)
        self.deferred = Deferred(store)
        self.finished = FinishedCalls(store)
        self.alarms = AlarmTable(self)
        self.letters = ActorDeadLetters(self)
        self.instances = Instances(self)
        self.executor = Executor(self)
        self.arriving = Arriving(self)
        self.dispatch = BatchesUnderWay(self, jitter)
        self.moves = Moves(store)
        self.moving = Moving(self)
        self.taking_over = TakingOver(self)
        self.recovery = HostRecovery(self)

    def start(self, now_ms: int, ahead_ms: int = 0) -> None:
        """Read the tables; raises `StorageFailed`.

        `now_ms` is the host's own time, and `ahead_ms` how far the wall clock is ahead of it.
        """
        self.time.set(now_ms, ahead_ms)
        with self.store.transaction():
            self.recovery.begin()
            self._load()

    def _load_again(self) -> None:
        """Reload after a turn was rolled back; if the disk fails again, retry later."""
        self._is_unread = True
        with self.store.transaction():
            self._load()
            self.recovery.again()
        self._is_unread = False

    def _load(self) -> None:
        self.time.load()
        self.places.load()
        self.inbox.load()
        self.calls.load()
        self.finished.load()
        self.instances.load()
        self.arriving.load()
        self.moves.load()
        self.moving.load()
        self.dispatch.load()

    @property
    def now_ms(self) -> int:
        """The own time of this turn."""
        return self.time.own_ms

    def turn(
        self,
        events: Iterable[Event],
        now_ms: int,
        ahead_ms: int = 0,
        late: Callable[[], Iterable[Event]] = tuple,
    ) -> list[Effect]:
        """Do everything that can be done now; the caller performs the effects.

        The times are those of `start`. `late` is called if lane batches in flight hold up new rows:
        it returns receipts that have arrived since, so that the next lane batch is sent now and not
        a turn later.
        """
        self.time.set(now_ms, ahead_ms)
        self.effects = []
        self.counters.turns += 1
        if self._is_unread:
            self._load_again()
        try:
            with self.store.transaction():
                if self.time.set_back_ms:
                    self.alarms.set_back(self.time.set_back_ms)
                for event in events:
                    self._take(event)
                self.recovery.step(now_ms)
                self.calls.expire(now_ms)
                self._work(now_ms)
                self.moving.run(now_ms)
                if self.dispatch.is_held_up:
                    for event in late():
                        self._take(event)
                self.dispatch.run(now_ms)
                # Last, because returned and undeliverable messages also go into the inbox.
                self.inbox.flush()
                self.arriving.write()
                self.finished.write()
                self.store.settle()
                self.time.write()
                self.recovery.end_turn()
                self.reached("commit")
        except BaseException as error:
            self.counters.failed_turns += 1
            self.effects = []
            if isinstance(error, StorageFailed):
                with suppress(StorageFailed):
                    self._load_again()
            raise
        self.reached("committed")
        effects, self.effects = self.effects, []
        return effects

    def _take(self, event: Event) -> None:
        now_ms = self.now_ms
        match event:
            case DeliveryArrived():
                self._deliver(event)
            case Receipted():
                self.dispatch.receipted(event)
            case BatchRefused():
                self.dispatch.refused(event, now_ms)
            case PlacesFound():
                self.dispatch.placed(event, now_ms)
            case PlacingFailed():
                self.dispatch.placing_failed(event, now_ms)
            case OffloadEnded():
                self._offload_ended(event)
            case Moved():
                self.moving.moved(event, now_ms)
            case Connected():
                self.dispatch.connected()
                self.moving.connected()
            case Commanded():
                commands.obey(self, event)
            case _:
                assert_never(event)

    def _deliver(self, event: DeliveryArrived) -> None:
        """A delivery must not stop the host, because it would be redelivered and stop it again."""
        fault = self.attempt(lambda: self.arriving.arrived(event))
        if fault is not None:
            log.error("a delivery from %s is set aside", event.sender, exc_info=fault)
            self.arriving.set_aside(event, repr(fault))

    def attempt(self, work: Callable[[], None]) -> Exception | None:
        """Run an action that may fail; if it does, roll it back and continue the turn.

        Disk errors end the turn, as everywhere.
        """
        waiting = len(self.inbox.fresh)
        self.store.begin()
        try:
            work()
            self.store.keep()
        except (*STORAGE_ERRORS, StorageFailed):
            raise
        except Exception as fault:
            self.store.undo()
            self.outbox.forget_known()
            self.calls.forget_known()
            while len(self.inbox.fresh) > waiting:
                self.inbox.fresh.pop()
            self.inbox.reread()
            self.places.load()
            self.moves.load()
            return fault
        return None

    def _offload_ended(self, event: OffloadEnded) -> None:
        if not self.places.is_here(event.actor):
            return  # It is moving, perhaps packed already; its new host does the work again.
        self.store.execute(
            "DELETE FROM offloads WHERE actor = ? AND call_id = ?", (event.actor, event.call_id)
        )
        if self.store.connection.changes():
            self.calls.ended(event.actor, event.call_id, event.outcome)

    def _work(self, now_ms: int) -> None:
        """Run stored messages, then new ones, then alarms; each gets its share."""
        budget = self.config.inbound_batch_size
        due = self.alarms.due(self.alarms.share(budget))
        budget = max(1, budget - len(due))
        for item in self.inbox.take(now_ms, budget):
            self.executor.item(item)
            budget -= 1
        budget = self._fresh(budget)
        for row in due:
            self.executor.alarm(row)
        self._fresh(budget)

    def _fresh(self, budget: int) -> int:
        while self.inbox.fresh and budget > 0:
            self.executor.item(self.inbox.fresh.popleft())
            budget -= 1
        return budget

    @property
    def has_work(self) -> bool:
        """Is there work that does not wait for an event or a time?"""
        return self.inbox.is_ready or self.recovery.is_unfinished

    def next_due_ms(self) -> int | None:
        """When to call `turn` if nothing happens, by the host's own time; `None` for never."""
        times = (
            self.calls.next_due_ms(),
            self.inbox.next_due_ms(),
            self.alarms.next_due_ms(),
            self.dispatch.next_due_ms(),
            self.moving.next_due_ms(),
        )
        return min((one for one in times if one is not None), default=None)

    # Used by the parts of the kernel.

    def adopted(self, actor: str) -> None:
        """An actor has arrived from another host, with its calls and offloaded work."""
        self.calls.load()
        self.recovery.adopt(actor)
        self.dispatch.wake_nowhere()

    def new_id(self) -> str:
        return self.ids.next(self.time.wall_ms)

    def config_of(self, address: str) -> DurableConfig:
        kind = parse_ref(address).kind
        return self.config if self.kinds.find(kind) is None else self.kinds.config(kind)

    def post(
        self,
        actor: str,
        dest: str,
        msg_id: str,
        kind: str,
        call_id: str,
        payload: bytes,
        expires_ms: int | None = None,
        *,
        is_ordered: bool = True,
        is_held_back: bool = False,
    ) -> Item | None:
        """Send a message: into the inbox for an actor here, otherwise into the outbox.

        With `is_held_back` a message for an actor here is returned instead, because its run may
        still fail.
        """
        if self.places.is_here(dest) and not self.outbox.has_for(actor, dest):
            item = Item(dest, kind, call_id, actor, payload)
            if is_held_back:
                return item
            self.inbox.put(item)
            return None
        row = Row(actor, dest, msg_id, kind, call_id, payload, 0, expires_ms, self.now_ms)
        self.post_row(row, is_ordered=is_ordered)
        return None

    def post_row(self, row: Row, *, is_ordered: bool) -> None:
        # After what already waits, even if the destination is known to have moved.
        lane = self.outbox.lane_of(row.actor, row.dest, is_ordered=is_ordered)
        if lane is None:
            lane = self.dispatch.lane_for(row.dest, is_ordered=is_ordered)
        self.outbox.add(row, lane)
        self.dispatch.wake(lane)

    def take_back(self, dest: str, call_id: str) -> bool:
        """Withdraw a request that waits in the inbox of this host and was not tried."""
        return self.places.is_here(dest) and self.inbox.withdraw(dest, "request", call_id)
