"""A seeded world of hosts with durable actors around one hub, in which everything goes wrong.

Kernels and their stores are real. The hub is a model that keeps the promises of the real one: it
accepts a batch once per id within a window, checks fences when it accepts, and gives each host
what is in its mailbox in order, again after every reconnect until that is settled. Hosts crash at
any statement, messages and receipts get lost or come twice, connections break, the hub is out for a
while, clocks differ and are set back. The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import apsw
import msgspec

from signalhub.actors.api.actor import Actor
from signalhub.actors.api.config import DurableConfig
from signalhub.actors.host.offload import run_offloaded
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    CommandAnswer,
    Commanded,
    Connected,
    DeliveryArrived,
    Effect,
    Event,
    GiveAway,
    LocateActors,
    Moved,
    Offload,
    OffloadEnded,
    PlacesFound,
    PlacingFailed,
    Receipted,
    SendBatch,
    SettleDelivery,
)
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.store.store import StorageFailed
from signalhub.clock import SteadyClock
from signalhub.testing.store import Crash, FragileStore


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong, each as a chance per occasion."""

    crash: float = 0.06  # At each point a turn passes, and before each of its effects.
    only_at: str = ""  # The one point where hosts crash, if it is not all of them.
    statement: float = 0.03  # That a turn ends at one of its statements.
    storage: float = 0.01  # That the disk fails instead, and the host lives on.
    loss: float = 0.15
    duplication: float = 0.15
    stall: float = 0.04  # That a message takes longer than its sender waits.
    refusal: float = 0.03
    disconnect: float = 0.04
    jump: float = 0.0  # That a clock is set back, once, while its host is down.


CALM = Faults(0, "", 0, 0, 0, 0, 0, 0, 0, 0)


class Shelf:
    """Stores in memory that many worlds use, one after the other."""

    def __init__(self) -> None:
        self._stores: list[FragileStore] = []

    def take(self, number: int) -> FragileStore:
        while len(self._stores) <= number:
            self._stores.append(FragileStore(":memory:"))
        store = self._stores[number]
        store.countdown = -1
        store.empty()
        return store


NEVER = 1 << 62


class Mail(msgspec.Struct):
    """Something in a mailbox."""

    number: int
    type: str
    data: bytes
    sender: str
    accepted_ms: int
    expires_ms: int | None
    is_settled: bool = False


class ModelHub:
    """What the hub knows. All of it is on disk when it answers."""

    def __init__(self, window_ms: int) -> None:
        self.mailboxes: dict[str, list[Mail]] = {}
        self.places: dict[str, ActorPlace] = {}
        self.repeats = 0
        self.stale = 0
        self._window_ms = window_ms
        self._accepted: dict[tuple[str, str], int] = {}

    def send(
        self, sender: str, send: SendBatch, sent_ms: int, now_ms: int
    ) -> Receipted | BatchRefused:
        """An ask: accepted once, and repeated ones get the first answer."""
        before = self._accepted.get((sender, send.batch))
        if before is not None and now_ms - before <= self._window_ms:
            self.repeats += 1
            return Receipted(send.batch)
        expires_ms = None if send.ttl_ms is None else sent_ms + send.ttl_ms
        if expires_ms is not None and expires_ms < now_ms:
            return BatchRefused(send.batch, "message_expired")
        stale = [one for one, token in send.fences.items() if self._token(one) != token]
        if stale:
            self.stale += 1
            return BatchRefused(send.batch, "stale_placement", stale)
        self._accepted[sender, send.batch] = now_ms
        self.put(send.to, send.type, send.data, sender, now_ms, expires_ms)
        return Receipted(send.batch)

    def _token(self, actor: str) -> int | None:
        place = self.places.get(actor)
        return None if place is None else place.token

    def put(
        self,
        to: str,
        type: str,
        data: bytes,
        sender: str,
        now_ms: int,
        expires_ms: int | None = None,
    ) -> None:
        box = self.mailboxes.setdefault(to, [])
        box.append(Mail(len(box), type, data, sender, now_ms, expires_ms))

    def place(self, actor: str, host: str, token: int = 1) -> ActorPlace:
        """Where it lives; there, if it lives nowhere."""
        known = self.places.get(actor)
        if known is None or (known.host == host and known.token < token):
            known = self.places[actor] = ActorPlace(actor, host, token)
        return known

    def move(self, actor: str, token: int, to: str) -> Moved:
        known = self.places[actor]
        if (known.host, known.token) == (to, token + 1):
            return Moved(actor, known.token)
        if known.token != token:
            return Moved(actor, None, "stale_placement", is_final=True)
        self.places[actor] = ActorPlace(actor, to, token + 1)
        return Moved(actor, token + 1)


@dataclass(eq=False)
class Host:
    """A process with a kernel, or one that is down at the moment."""

    number: int
    name: str
    store: FragileStore
    skew_ms: int = 0
    clock: SteadyClock | None = None
    kernel: Kernel | None = None
    boots: int = 0
    # Which connection it has, or had last.
    connection: int = 0
    is_connected: bool = False
    events: list[Event] = field(default_factory=list)
    turn_at_ms: int = NEVER
    spins: int = 0
    # Requests without an answer, by their number.
    open: dict[int, SendBatch | LocateActors | GiveAway] = field(default_factory=dict)
    # No message overtakes an earlier one on its way.
    sent_ms: dict[str, int] = field(default_factory=dict)
    answered_ms: int = 0
    delivered_ms: int = 0
    # Mail that was handed over on the present connection, and the newest of all.
    next_mail: int = 0
    newest_ms: int = 0


class HostClock:
    """The clocks of a host's machine."""

    def __init__(self, world: ActorWorld, host: Host) -> None:
        self._world = world
        self._host = host

    def now_ms(self) -> int:
        return self._world.now_ms + self._host.skew_ms

    def mono_s(self) -> float:
        return self._world.now_ms / 1000


START_MS = 1_760_000_000_000
JUMP_MS = 3_600_000
_STEPS_MAX = 300_000
_SPINS_MAX = 100
_STATEMENTS = 60


MakeKernel = Callable[["ActorWorld", Host], Kernel]
Action = Callable[..., None]


class ActorWorld:
    """Hosts, their hub, and a line of things that are going to happen."""

    def __init__(
        self,
        seed: int,
        classes: Iterable[type[Actor]],
        *,
        hosts: int = 2,
        faults: Faults | None = None,
        config: DurableConfig | None = None,
        window_ms: int = 300_000,
        shelf: Shelf | None = None,
        folder: str | os.PathLike[str] | None = None,
        make_kernel: MakeKernel | None = None,
    ) -> None:
        """With a `folder` the stores are files there, opened anew by every restart."""
        self.random = Random(seed)
        self.faults = faults or Faults()
        self.config = config or DurableConfig()
        self.classes = tuple(classes)
        self.hub = ModelHub(window_ms)
        self.now_ms = START_MS
        self.steps = 0
        self.history: list[tuple[int, int, int, int]] = []
        self.crashes: dict[str, int] = {}
        self.answers: list[dict[str, Any]] = []
        self.counts = dict.fromkeys(("lost", "broken", "outages", "failed", "jumps", "purged"), 0)
        self._make_kernel = make_kernel or ActorWorld.new_kernel
        self._line: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._serial = 0
        self._is_out = False
        self._folder = folder
        shelf = shelf or Shelf()
        self.hosts = [
            Host(number, f"@(actors/{number})", self._open(number, shelf))
            for number in range(hosts)
        ]
        self._by_name = {host.name: host for host in self.hosts}
        for host in self.hosts:
            host.skew_ms = self.random.randrange(-2_000, 2_000)
            self.after(self.random.randrange(50), self._boot, host)

    def _open(self, number: int, shelf: Shelf) -> FragileStore:
        if self._folder is None:
            return shelf.take(number)
        return FragileStore(os.path.join(self._folder, f"host-{number}.db"))

    # One thing after another.

    def after(self, delay_ms: int, action: Action, *args: Any) -> None:
        """Have something happen later."""
        self._serial += 1
        heapq.heappush(self._line, (self.now_ms + delay_ms, self._serial, action, args))

    def run(self, chaos_ms: int) -> None:
        """Until everything is quiet; what goes wrong ends after a while."""
        self.after(chaos_ms, self.heal)
        log = logging.getLogger("signalhub.actors")
        before, log.disabled = log.disabled, True
        try:
            while self._line:
                self.steps += 1
                assert self.steps < _STEPS_MAX, "it never becomes quiet"
                self.now_ms, _, action, args = heapq.heappop(self._line)
                action(*args)
        finally:
            log.disabled = before

    def heal(self) -> None:
        """From now on nothing goes wrong any more."""
        self.faults = CALM

    def strikes(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance

    def clock_of(self, host: Host) -> SteadyClock:
        """The own time of a host, which a jump of its wall clock does not change."""
        if host.clock is None:
            host.clock = SteadyClock(HostClock(self, host))
        return host.clock

    def _latency_ms(self) -> int:
        if self.strikes(self.faults.stall):
            return self.random.randrange(2_000, 9_000)
        return self.random.randrange(1, 25)

    # Hosts.

    @staticmethod
    def new_kernel(world: ActorWorld, host: Host, kernel_type: type[Kernel] = Kernel) -> Kernel:
        """The one that is really used."""
        return kernel_type(
            host.store,
            world.classes,
            host=host.name,
            config=world.config,
            randomness=world.random.randbytes,
            jitter=world.random.random,
            reached=world._reached,
        )

    def _boot(self, host: Host) -> None:
        if self._folder is not None and host.boots:
            host.store = FragileStore(host.store.path)
        host.boots += 1
        if host.boots > 1 and host.skew_ms > -JUMP_MS // 2 and self.strikes(self.faults.jump):
            host.skew_ms -= JUMP_MS
            self.counts["jumps"] += 1
        host.kernel = self._make_kernel(self, host)
        self._arm(host)
        try:
            host.clock = None
            host.kernel.time.resume(self.clock_of(host))
            host.kernel.start(self.clock_of(host).now_ms(), self.clock_of(host).ahead_ms)
        except (Crash, StorageFailed, apsw.Error):
            self._crash(host, "start")
            return
        host.store.countdown = -1
        self._wake(host, 0)
        if not host.is_connected:
            self.after(self._latency_ms(), self._connect, host)

    def _crashes_at(self, point: str, chance: float) -> bool:
        return self.faults.only_at in ("", point) and self.strikes(chance)

    def _reached(self, point: str) -> None:
        if self._crashes_at(point, self.faults.crash):
            raise Crash(point)
        if point != "committed" and self.strikes(self.faults.storage):
            FragileStore.is_full()

    def _arm(self, host: Host) -> None:
        """Choose the statement at which the next turn ends."""
        host.store.countdown = -1
        if self.strikes(self.faults.statement):
            host.store.countdown = self.random.randrange(_STATEMENTS)
            is_crash = self.random.random() < 0.7
            host.store.fault = Crash("statement") if is_crash else apsw.IOError("no disk")

    def _crash(self, host: Host, point: str) -> None:
        """All that is not committed is gone, and all that only memory knew."""
        self.crashes[point] = self.crashes.get(point, 0) + 1
        host.kernel = None
        host.store.countdown = -1
        if self._folder is not None:
            host.store.close()
        host.events.clear()
        host.open.clear()
        host.is_connected = False
        host.turn_at_ms = NEVER
        is_long = self.random.random() < 0.1
        down_ms = self.random.randrange(5_000, 40_000) if is_long else self.random.randrange(500)
        self.after(down_ms, self._boot, host)

    def _wake(self, host: Host, delay_ms: int) -> None:
        at_ms = self.now_ms + max(0, delay_ms)
        if at_ms < host.turn_at_ms:
            host.turn_at_ms = at_ms
            self.after(max(0, delay_ms), self._turn, host, at_ms)

    def _turn(self, host: Host, at_ms: int) -> None:
        kernel = host.kernel
        if kernel is None or host.turn_at_ms != at_ms:
            return
        host.turn_at_ms = NEVER
        events, host.events = host.events, []
        self._arm(host)
        # In every second turn, receipts come when it is nearly over.
        receipts: list[Event] = [
            event
            for event in events
            if len(self.history) % 2
            and isinstance(event, Receipted)
            and kernel.dispatch.is_under_way(event.batch)
        ]
        early = [event for event in events if event not in receipts]
        waiting = [*receipts]

        def late() -> list[Event]:
            waiting.clear()
            return receipts

        try:
            clock = self.clock_of(host)
            effects = kernel.turn(early, clock.now_ms(), clock.ahead_ms, late)
        except Crash as crash:
            self._crash(host, str(crash))
            return
        except StorageFailed:
            # None of it has happened; the same is tried again.
            self.counts["failed"] += 1
            host.store.countdown = -1
            host.events[:0] = events
            self._wake(host, 1_000)
            return
        except apsw.Error:
            # The disk failed again while the kernel read its tables anew: the host ends.
            self._crash(host, "reload")
            return
        host.store.countdown = -1
        if waiting:
            host.events[:0] = waiting
            self._wake(host, 0)
        self.history.append((self.now_ms, host.number, len(events), len(effects)))
        for effect in effects:
            if self._crashes_at("performing", self.faults.crash / 2):
                self._crash(host, "performing")
                return
            self.perform(host, effect)
        self._plan(host, is_idle=not events and not effects)

    def _plan(self, host: Host, *, is_idle: bool) -> None:
        """When the next turn has to be."""
        kernel = host.kernel
        assert kernel is not None
        if kernel.has_work:
            self._wake(host, self.random.randrange(3))
            return
        due_ms = kernel.next_due_ms()
        if due_ms is None:
            return
        wait_ms = due_ms - self.clock_of(host).now_ms()
        host.spins = host.spins + 1 if is_idle and wait_ms <= 0 else 0
        assert host.spins < _SPINS_MAX, f"{host.name} spins: it is always due and does nothing"
        self._wake(host, wait_ms)

    def _happen(self, host: Host, connection: int, *events: Event) -> None:
        """Something reaches a host, if it is still the one that was meant."""
        if host.kernel is not None and host.is_connected and host.connection == connection:
            host.events.extend(events)
            self._wake(host, self.random.randrange(12))

    # Connections.

    def _connect(self, host: Host) -> None:
        if host.kernel is None or host.is_connected:
            return
        if self._is_out:
            self.after(500, self._connect, host)
            return
        host.connection += 1
        host.is_connected = True
        host.sent_ms.clear()
        host.answered_ms = host.delivered_ms = 0
        host.next_mail = 0
        host.events.append(Connected())
        self._wake(host, 0)
        self._deliver(host)

    def disconnect(self, host: Host) -> None:
        """Break a connection; what was under way in either direction may be lost."""
        if not host.is_connected:
            return
        self.counts["broken"] += 1
        host.is_connected = False
        for number in list(host.open):
            self._unanswered(host, number)
        self.after(self.random.randrange(5, 3_000), self._connect, host)

    def outage(self, lasting_ms: int) -> None:
        """The hub is gone for a while, with all it has not answered; what it accepted it has."""
        self.counts["outages"] += 1
        self._is_out = True
        for host in self.hosts:
            self.disconnect(host)
        self.after(lasting_ms, self._return)

    def _return(self) -> None:
        self._is_out = False

    # From hosts to the hub.

    def perform(self, host: Host, effect: Effect) -> None:
        match effect:
            case SendBatch() | LocateActors() | GiveAway():
                self._request(host, effect)
            case SettleDelivery():
                if not self.strikes(self.faults.loss):
                    mail, connection = effect.delivery
                    self.after(self._latency_ms(), self._settle, host, connection, mail)
            case Offload():
                delay_ms = self.random.randrange(1, 2_000)
                self.after(delay_ms, self._offloaded, host, host.boots, effect)
            case CommandAnswer():
                self.answers.append(effect.result)

    def _request(self, host: Host, request: SendBatch | LocateActors | GiveAway) -> None:
        self._serial += 1
        number = self._serial
        host.open[number] = request
        if not host.is_connected:
            self.after(1, self._unanswered, host, number)
            return
        to = request.to if isinstance(request, SendBatch) else ""
        copies = 1 + self.strikes(self.faults.duplication)
        for _ in range(copies):
            at_ms = max(host.sent_ms.get(to, 0), self.now_ms + self._latency_ms())
            host.sent_ms[to] = at_ms
            if self.strikes(self.faults.loss):
                self.counts["lost"] += 1
                continue
            delay_ms = at_ms - self.now_ms
            self.after(delay_ms, self._accept, host, host.connection, number, request, self.now_ms)
        self.after(self.config.outbound_timeout_ms, self._unanswered, host, number)

    def _unanswered(self, host: Host, number: int) -> None:
        request = host.open.pop(number, None)
        if request is None:
            return
        if isinstance(request, SendBatch):
            host.events.append(BatchRefused(request.batch, "no receipt"))
        elif isinstance(request, LocateActors):
            host.events.append(PlacingFailed(request.actors))
        else:
            host.events.append(Moved(request.actor, None, "no answer"))
        self._wake(host, 0)

    def _accept(
        self,
        host: Host,
        connection: int,
        number: int,
        request: SendBatch | LocateActors | GiveAway,
        sent_ms: int,
    ) -> None:
        """The hub has got a request. Of a connection that was replaced it takes nothing more."""
        if self._is_out or host.connection != connection:
            return
        answer: Event
        if isinstance(request, SendBatch):
            if self.strikes(self.faults.refusal):
                answer = BatchRefused(request.batch, "queue_full")
            else:
                answer = self.hub.send(host.name, request, sent_ms, self.now_ms)
                target = self._by_name.get(request.to)
                if target is not None:
                    self._deliver(target)
        elif isinstance(request, LocateActors):
            answer = self._locate(host, request)
        else:
            answer = self.hub.move(request.actor, request.token, request.to)
        if self.strikes(self.faults.loss):
            self.counts["lost"] += 1
            return
        at_ms = host.answered_ms = max(host.answered_ms, self.now_ms + self._latency_ms())
        self.after(at_ms - self.now_ms, self._answered, host, connection, number, answer)

    def _answered(self, host: Host, connection: int, number: int, answer: Event) -> None:
        # One that comes after its sender has given up is passed on, too.
        host.open.pop(number, None)
        self._happen(host, connection, answer)

    def _locate(self, host: Host, request: LocateActors) -> PlacesFound:
        places = []
        unplaced: dict[str, str] = {}
        for actor in request.actors:
            if actor in request.claims:
                places.append(self.hub.place(actor, host.name, request.claims[actor]))
            elif actor not in self.hub.places and self.strikes(self.faults.refusal):
                unplaced[actor] = "no_host"
            else:
                places.append(self.home_of(actor))
        return PlacesFound(places, unplaced)

    def home_of(self, actor: str) -> ActorPlace:
        """Where an actor lives; one without a place gets it on any host."""
        assert not actor.startswith("@"), f"{actor} is no durable actor and lives nowhere"
        return self.hub.place(actor, self.random.choice(self.hosts).name)

    # From the hub to hosts.

    def tell(self, to: str, type: str, data: bytes, sender: str) -> None:
        """Somebody outside has sent something, and the hub has accepted it."""
        self.hub.put(to, type, data, sender, self.now_ms)
        self._deliver(self._by_name[to])

    def _deliver(self, host: Host) -> None:
        """Hand over what was not handed over on this connection, in order."""
        if not host.is_connected:
            return
        box = self.hub.mailboxes.get(host.name, [])
        while host.next_mail < len(box):
            mail = box[host.next_mail]
            host.next_mail += 1
            if mail.is_settled:
                continue
            at_ms = max(host.delivered_ms, self.now_ms + self._latency_ms())
            host.delivered_ms = at_ms
            self.after(at_ms - self.now_ms, self._hand_over, host, host.connection, mail)

    def _hand_over(self, host: Host, connection: int, mail: Mail) -> None:
        if host.connection != connection or not host.is_connected or mail.is_settled:
            return
        if mail.expires_ms is not None and mail.expires_ms < self.now_ms:
            mail.is_settled = True
            return
        if self.strikes(self.faults.disconnect):
            self.disconnect(host)
            return
        host.newest_ms = max(host.newest_ms, mail.accepted_ms)
        delivery = (mail, connection)
        event = DeliveryArrived(mail.type, mail.data, mail.sender, mail.accepted_ms, delivery)
        self._happen(host, connection, event)
        # Unless it is settled by then it comes again; sometimes it comes again anyhow.
        again_ms = 10_000
        if self.strikes(self.faults.duplication):
            again_ms = self.random.randrange(50)
        self.after(again_ms, self._hand_over, host, connection, mail)

    def _settle(self, host: Host, connection: int, mail: Mail) -> None:
        if host.connection == connection and not self._is_out:
            mail.is_settled = True

    def command(self, host: Host, name: str, **arguments: str) -> None:
        """Somebody asks something of a host; if it is not there, nothing happens."""
        self._happen(host, host.connection, Commanded(name, arguments, None))

    def move(self, actor: str, attempts: int = 20) -> None:
        """Have an actor go to another host, as soon as it has a home that can hear it."""
        place = self.hub.places.get(actor)
        home = None if place is None else self._by_name[place.host]
        if home is not None and home.is_connected:
            others = [host.name for host in self.hosts if host is not home]
            self.command(home, "move", actor=actor, to=self.random.choice(others))
        elif attempts:
            self.after(200, self.move, actor, attempts - 1)

    def _offloaded(self, host: Host, boots: int, effect: Offload) -> None:
        if host.kernel is None or host.boots != boots:
            return
        work = run_offloaded(effect.function, effect.arguments)
        try:
            work.send(None)
        except StopIteration as end:
            host.events.append(OffloadEnded(effect.actor, effect.call_id, end.value))
            self._wake(host, 0)
        else:
            raise AssertionError("work in this world does not wait for anything")

    # Tombstones.

    def sweep(self, host: Host) -> None:
        """Forget tombstones now; none may go without evidence that no repeat can come."""
        kernel = host.kernel
        if kernel is None:
            return
        query = "SELECT actor, call_id, accepted_ms FROM done"
        before = set(host.store.connection.execute(query))
        with kernel.store.transaction():
            kernel.arriving.purge()
        gone = before - set(host.store.connection.execute(query))
        self.counts["purged"] += len(gone)
        for actor, call_id, accepted_ms in gone:
            is_proven = accepted_ms + self.config.tombstone_ttl_ms <= host.newest_ms
            assert is_proven, f"the tombstone of {call_id} for {actor} went without evidence"
