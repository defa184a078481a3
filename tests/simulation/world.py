"""A seeded world of actors around one hub: they connect, talk, stall, and have wrong clocks.

The same seed gives the same run. Days pass in a fraction of a second, because nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from signalhub.settings.model import RegistrySettings, Settings
from signalhub.testing import FakeClock
from tests.simulation.checkers import Asks, Bounds, Check, Order, assert_nothing_is_left
from tests.simulation.events import Exchange, Lived, RecordingShell
from tests.simulation.reference import Reference
from tests.support.memory.shell import HELLO, Message, Peer, envelope

HOUR_S = 3_600
TOPICS = ["prices", "prices/eu", "prices/us", "prices/eu/de", "orders", "orders/1"]
WILDCARDS = ["#", "+", "prices/#", "prices/+", "+/eu", "+/+/#", "orders/+"]

Plant = Callable[[RecordingShell], None]


def nothing(shell: RecordingShell) -> None:
    """The hub as it is."""


@dataclass(frozen=True)
class Bug:
    """Something wrong with the shell or the hub, and the complaint it must raise."""

    complaint: str
    shell_type: type[RecordingShell] = RecordingShell
    plant: Plant | None = None

    def assert_found(self, world_type: Callable[..., Lived], seeds: int, steps: int) -> None:
        complaints = []
        for seed in range(seeds):
            try:
                world_type(seed, shell_type=self.shell_type, plant=self.plant).run(steps)
            except AssertionError as error:
                complaints.append(str(error))
        assert any(self.complaint in one for one in complaints), complaints


class Actor:
    """An owner of a socket and a few addresses, with its own clock."""

    def __init__(self, peer: Peer, name: str, skew_ms: int) -> None:
        self.peer = peer
        self.name = name
        self.skew_ms = skew_ms
        self.addresses = [name]
        self.asked: list[tuple[str, str, str]] = []


class World:
    """Everything that can happen to a hub, in an order the seed decides."""

    def __init__(
        self,
        seed: int,
        *,
        shell_type: type[RecordingShell] = RecordingShell,
        plant: Plant | None = None,
    ) -> None:
        self.random = Random(seed)
        self.settings = self._choose_settings()
        self.clock = FakeClock()
        self.elapsed_ms = 0
        self.steps = 0
        self.actors: list[Actor] = []
        self._crowd = self.random.choice([8, 20, 40, 100, 300])
        self._serial = 0
        self._true_ms = self.clock.now_ms()
        self._asked: list[tuple[str, str, str]] = []
        self.reference = Reference(self.settings)
        self.asks = Asks()
        self.checks: list[Check] = [
            self.reference.check,
            self.asks.check,
            Order().check,
            Bounds(self.settings).check,
        ]
        planted = type("Planted", (shell_type,), {"plant": staticmethod(plant or nothing)})
        self.shell: RecordingShell = planted(self.settings, clock=self.clock)

    def _choose_settings(self) -> Settings:
        pick = self.random.choice
        rate, burst = pick([(0.0, 1_000), (0.0, 1_000), (1.0, 5), (20.0, 40)])
        limits = RegistrySettings(limit=pick([10, 50, 50_000]), lease_s=pick([60.0, 300.0, 300.0]))
        return Settings(message_rate=rate, message_burst=burst, registry=limits)

    # One thing after another.

    def run(self, steps: int) -> None:
        """Actors arrive, act for a while, and leave."""
        for _ in range(self._crowd * 2 // 3):
            self._arrive()
        actions, weights = zip(*self._actions(), strict=True)
        for action in self.random.choices(actions, weights, k=steps):
            self.steps += 1
            action()
        self._wind_down()

    def _actions(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self._arrive, 6),
            (self._register, 5),
            (self._tell, 10),
            (self._chatter, 2),
            (self._ask, 12),
            (self._ask_again, 8),
            (self._publish, 6),
            (self._subscribe, 6),
            (self._unsubscribe, 2),
            (self._broadcast, 1),
            (self._discover, 3),
            (self._renew, 1),
            (self._unregister, 1),
            (self._leave, 1),
            (self._vanish, 2),
            (self._stall, 2),
            (self._read_on, 4),
            (self._breathe, 18),
            (self._everybody_speaks, 2),
            (self._sleep, 2),
            (self._set_clock, 1),
            (self._restart, 1) if self.random.random() < 0.2 else (self._breathe, 1),
        ]

    def _happen(
        self, act: Callable[[], None], peer: Peer | None = None, request: Message | None = None
    ) -> Exchange:
        """Do something to the hub and check the consequences."""
        exchange = Exchange(self.shell, self.shell.now, self.elapsed_ms, peer, request)
        self.shell.log = exchange.events
        act()
        for check in self.checks:
            check(exchange)
        if exchange.closed():
            self.actors = [actor for actor in self.actors if actor.peer.closed is None]
        return exchange

    def _request(self, actor: Actor, type: str, payload: object, **members: Any) -> Exchange:
        self._serial += 1
        request: Message = {
            "id": f"m{self._serial}",
            "from": actor.name,
            "type": type,
            "payload": payload,
            "pattern": "ask",
            "timestamp": self._true_ms - actor.skew_ms,
            "ttl": None,
        } | members
        sender = {key: value for key, value in request.items() if key not in ("from", "type")}
        frame = envelope(type, sender=request["from"], **sender)
        return self._happen(lambda: actor.peer.write(frame), actor.peer, request)

    def _somebody(self) -> Actor | None:
        return self.random.choice(self.actors) if self.actors else None

    def _any_address(self) -> str:
        return f"@(sim/{self.random.randrange(self._crowd)})"

    def _target(self) -> str:
        actor = self._somebody()
        if actor is None or self.random.random() < 0.2:
            return self._any_address()
        return actor.name

    def _data(self, actor: Actor) -> Message:
        return {"serial": self._serial + 1, "session": actor.peer.session.id}

    def _ttl(self) -> int | None:
        return self.random.choice([None, None, None, None, 0, 100, 10_000])

    # Coming and going.

    def _arrive(self) -> None:
        if len(self.actors) >= self._crowd:
            return
        skew_ms = self.random.choice([0, 0, 1_000, 60_000, 600_000, -60_000])
        actor = Actor(self.shell.open(), self._any_address(), skew_ms)
        self.actors.append(actor)
        self._request(actor, "hub:connect", None, metadata=HELLO)
        if self.random.random() < 0.8:
            self._register_as(actor, actor.name)

    def _register(self) -> None:
        if actor := self._somebody():
            self._register_as(actor, self._any_address())

    def _register_as(self, actor: Actor, address: str) -> None:
        lease_s = self.random.choice([None, None, 1, 30, HOUR_S, 10 * HOUR_S])
        payload: Message = {"actorAddress": address, "capabilities": [], "ttlSeconds": lease_s}
        exchange = self._request(actor, "hub:register", payload)
        if exchange.refusal() is None:
            actor.name = address
            actor.addresses.append(address)

    def _unregister(self) -> None:
        if actor := self._somebody():
            address = self.random.choice(actor.addresses)
            self._request(actor, "hub:unregister", {"actorAddress": address}, pattern="tell")

    def _renew(self) -> None:
        if actor := self._somebody():
            self._request(actor, "hub:renew", None, pattern="tell")

    def _leave(self) -> None:
        if actor := self._somebody():
            self._request(actor, "hub:disconnect", None)

    def _vanish(self) -> None:
        if actor := self._somebody():
            self._happen(actor.peer.drop)

    def _stall(self) -> None:
        if actor := self._somebody():
            actor.peer.stall()

    def _read_on(self) -> None:
        if actor := self._somebody():
            self._happen(actor.peer.read_on)

    def _restart(self) -> None:
        self.actors = []
        self.shell = self.shell.restarted()
        self.reference.restarted(self.shell.rows)

    # Talking.

    def _tell(self) -> None:
        if actor := self._somebody():
            payload = {"to": self._target(), "type": "news", "data": self._data(actor)}
            self._request(actor, "hub:send", payload, pattern="tell", ttl=self._ttl())

    def _chatter(self) -> None:
        """A burst from one to another, tells and asks mixed."""
        actor, to = self._somebody(), self._target()
        if actor is None:
            return
        for _ in range(12):
            payload = {"to": to, "type": "news", "data": self._data(actor)}
            pattern = self.random.choice(["tell", "ask"])
            self._request(actor, "hub:send", payload, pattern=pattern)

    def _ask(self) -> None:
        if actor := self._somebody():
            to, message_id = self._target(), f"ask{self._serial}"
            self._asked.append((actor.name, to, message_id))
            self._transmit(actor, actor.name, to, message_id)

    def _ask_again(self) -> None:
        """A retry with the same id, perhaps on another socket than the first time."""
        actor = self._somebody()
        if actor is None or not self._asked:
            return
        recent = self._asked[-30:]
        mine = [one for one in recent if one[0] in actor.addresses]
        self._transmit(actor, *self.random.choice(mine or recent))

    def _transmit(self, actor: Actor, sender: str, to: str, message_id: str) -> None:
        payload = {"to": to, "type": "news", "data": self._data(actor)}
        members = {"id": message_id, "from": sender, "ttl": self._ttl()}
        self._request(actor, "hub:send", payload, **members)

    def _publish(self) -> None:
        if actor := self._somebody():
            topic = self.random.choice(TOPICS)
            payload = {"topic": topic, "type": "news", "data": self._data(actor)}
            self._request(actor, "hub:publish", payload, pattern="tell", ttl=self._ttl())

    def _broadcast(self) -> None:
        if actor := self._somebody():
            payload = {"type": "news", "data": self._data(actor)}
            self._request(actor, "hub:broadcast", payload, pattern="tell")

    def _subscribe(self) -> None:
        if actor := self._somebody():
            topic = self.random.choice(TOPICS + WILDCARDS)
            sender = self.random.choice(actor.addresses)
            self._request(actor, "hub:subscribe", {"topic": topic}, **{"from": sender})

    def _unsubscribe(self) -> None:
        if actor := self._somebody():
            topic = self.random.choice(TOPICS + WILDCARDS)
            self._request(actor, "hub:unsubscribe", {"topic": topic}, pattern="tell")

    def _discover(self) -> None:
        if actor := self._somebody():
            self._request(actor, "hub:discover", {"pattern": "*"})

    # Time.

    def _breathe(self) -> None:
        self._pass_time(self.random.choice([0.001, 0.1, 1.0, 5.0, 40.0]))

    def _sleep(self) -> None:
        self._pass_time(self.random.randrange(60, 3 * HOUR_S))

    def _everybody_speaks(self) -> None:
        for actor in list(self.actors):
            if actor.peer.closed is None:
                self._request(actor, "hub:heartbeat", None, pattern="tell")

    def _set_clock(self) -> None:
        self.clock.jump(self.random.choice([-HOUR_S, HOUR_S]))

    def _pass_time(self, seconds: float) -> None:
        while seconds > 0:
            stride = min(seconds, 60.0)
            seconds -= stride
            self.clock.advance(stride)
            self._true_ms += round(stride * 1000)
            self.elapsed_ms += round(stride * 1000)
            self._happen(self.shell.tick)

    def _wind_down(self) -> None:
        """All actors read what waits, then leave; after a while nothing may be left."""
        for actor in list(self.actors):
            self._happen(actor.peer.read_on)
        assert self.asks.unanswered() == [], "asks were never answered"
        for actor in list(self.actors):
            self._happen(actor.peer.drop)
        self.clock.advance(24 * HOUR_S)
        for _ in range(130):
            self._pass_time(1)
        assert_nothing_is_left(self.shell)
