"""A seeded world of durable actors, topics and subscriptions around one hub that keeps crashing.

The disk takes its time and is full now and then. The same seed gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from signalhub.core.subscriptions.consumers import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from signalhub.settings.model import DispatchSettings, LogSettings, MailboxSettings, Settings
from signalhub.testing import FakeClock
from tests.simulation.checkers import Check
from tests.simulation.durable_checkers import (
    Acceptance,
    Copies,
    Delivery,
    Disk,
    Keys,
    Order,
    delivery_of,
)
from tests.simulation.events import Exchange, Handed, RecordingShell
from tests.simulation.world import Plant, nothing
from tests.support.memory.shell import HELLO, SETTLING_HELLO, Message, Peer, envelope

TOPICS = ["orders", "payments"]
SUBSCRIPTIONS = [("audit", EXCLUSIVE), ("work", SHARED), ("spare", FAILOVER), ("keyed", KEY_SHARED)]
KEYS = ["a", "b", "c"]
ROUNDS_MAX = 80
RETRIED_MAX = 20

Choice = tuple[Callable[[], None], int]


class Member:
    """A durable actor, with a socket or without one at the moment."""

    def __init__(self, number: int) -> None:
        self.name = f"@(sim/{number})"
        self.is_durable = number % 4 != 3
        self.settles = number % 2 == 0
        self.peer: Peer | None = None
        self.parts: dict[tuple[str, str], str] = {}
        self.held: list[Delivery] = []

    @property
    def is_there(self) -> bool:
        return self.peer is not None and self.peer.closed is None


class DurableWorld:
    """Everything that can happen to durable messages, in an order the seed decides."""

    def __init__(
        self,
        seed: int,
        *,
        shell_type: type[RecordingShell] = RecordingShell,
        plant: Plant | None = None,
    ) -> None:
        self.random = Random(seed)
        self.clock = FakeClock()
        self.steps = 0
        self.crashes = 0
        self._serial = 0
        self._recent: list[tuple[str, str, Message]] = []
        self._authors: dict[str, Member] = {}
        self._asked_for: dict[str, Delivery] = {}
        planted = type("Planted", (shell_type,), {"plant": staticmethod(plant or nothing)})
        self.shell: RecordingShell = planted(self._choose_settings(), clock=self.clock)
        self.members = [Member(number) for number in range(8)]
        self.disk = Disk()
        self.acceptance = Acceptance(self.disk)
        self.copies = Copies(self.disk)
        keyed = {(topic, "keyed") for topic in TOPICS}
        self.checks: list[Check] = [
            self.acceptance.check,
            self.copies.check,
            Order().check,
            Keys(self.disk, self.copies, keyed).check,
        ]
        self._found()

    def _choose_settings(self) -> Settings:
        pick = self.random.choice
        mailbox = MailboxSettings(
            limit=30, window=pick([2, 256]), ack_timeout_ms=2_000, backoff_ms=100, max_deliveries=4
        )
        dispatch = DispatchSettings(
            cursor_ms=pick([100, 1_000]),
            heartbeat_ms=pick([50, 500]),
            window=pick([1, 4, 256]),
            ack_timeout_ms=2_000,
            backoff_ms=100,
            backoff_cap_ms=1_000,
            max_deliveries=4,
        )
        log = LogSettings(cache_bytes=pick([1, 2_000, 2**20]))
        return Settings(message_rate=0.0, mailbox=mailbox, dispatch=dispatch, log=log)

    def _found(self) -> None:
        """Topics and subscriptions are there from the beginning."""
        founder = self.members[0]
        self._arrive_as(founder)
        for topic in TOPICS:
            payload = {"topic": topic, "durable": True, "poison": "dead_letter"}
            self._request(founder, "hub:topic_create", payload)
            for name, mode in SUBSCRIPTIONS:
                self._join_as(founder, topic, name, mode)
                self._leave_as(founder, topic, name)

    # One thing after another.

    def run(self, steps: int) -> None:
        self._come_back()
        actions, weights = zip(*self._actions(), strict=True)
        for action in self.random.choices(actions, weights, k=steps):
            self.steps += 1
            action()
        self._wind_down()

    def _actions(self) -> list[Choice]:
        return [
            (self._arrive, 6),
            (self._vanish, 3),
            (self._stall, 2),
            (self._read_on, 4),
            (self._tell, 4),
            (self._chatter, 2),
            (self._ask, 12),
            (self._publish, 14),
            (self._try_again, 6),
            (self._join, 8),
            (self._leave, 2),
            (self._settle, 26),
            (self._reject, 2),
            (self._breathe, 10),
            (self._slow_down, 3),
            (self._commit, 12),
            (self._speed_up, 3),
            (self._fill, 1),
            (self._empty, 3),
            (self._snapshot, 1),
            (self._crash, 1),
        ]

    def _happen(
        self, act: Callable[[], None], peer: Peer | None = None, request: Message | None = None
    ) -> Exchange:
        exchange = Exchange(self.shell, self.shell.now, 0, peer, request)
        self.shell.log = exchange.events
        act()
        for check in self.checks:
            check(exchange)
        for event in exchange.events:
            if isinstance(event, Handed):
                self._handed(event.peer, event.message)
        return exchange

    def _handed(self, peer: Peer, message: Message) -> None:
        delivery = delivery_of(message)
        member = next((one for one in self.members if one.peer is peer), None)
        if member is None:
            return
        if delivery is not None and (delivery[1] or member.settles):
            member.held.append(delivery)
        elif message["type"] == "hub:subscribed":
            payload = message["payload"]
            member.parts[payload["topic"], payload["subscription"]] = payload["subscriptionId"]
        elif message["type"] == "hub:acked" and message["correlationId"] in self._asked_for:
            delivery = self._asked_for.pop(message["correlationId"])
            if not message["payload"]["ignored"]:
                self.copies.confirmed.add(delivery)

    def _request(self, member: Member, type: str, payload: object, **members: Any) -> None:
        if not member.is_there:
            return
        peer = member.peer
        assert peer is not None
        self._serial += 1
        request: Message = {
            "id": f"m{self._serial}",
            "payload": payload,
            "pattern": "ask",
            "timestamp": self.shell.now,
        } | members
        frame = envelope(type, sender=member.name, **request)
        self._happen(lambda: peer.write(frame), peer, {"type": type} | request)

    def _somebody(self) -> Member:
        return self.random.choice(self.members)

    # Coming and going.

    def _arrive(self) -> None:
        self._arrive_as(self._somebody())

    def _arrive_as(self, member: Member) -> None:
        if member.is_there:
            return
        member.peer = self.shell.open()
        member.parts.clear()
        member.held.clear()
        hello = SETTLING_HELLO if member.settles else HELLO
        self._request(member, "hub:connect", None, metadata=hello)
        payload = {"actorAddress": member.name, "capabilities": [], "ttlSeconds": 3_600}
        if member.is_durable:
            payload["durable"] = True
        self._request(member, "hub:register", payload)

    def _vanish(self) -> None:
        member = self._somebody()
        if member.is_there and member.peer is not None:
            self._happen(member.peer.drop)

    def _stall(self) -> None:
        member = self._somebody()
        if member.is_there and member.peer is not None:
            if self.random.random() < 0.5:
                member.peer.stall()
            else:
                member.peer.block()

    def _read_on(self) -> None:
        for member in self.members:
            if member.is_there and member.peer is not None and member.peer.is_stalled:
                self._happen(member.peer.read_on)

    # Talking.

    def _data(self, member: Member, *, is_ask: bool) -> Message:
        assert member.peer is not None
        return {
            "serial": self._serial + 1,
            "session": member.peer.session.id,
            "isAsk": is_ask,
        }

    def _tell(self) -> None:
        self._send("tell")

    def _ask(self) -> None:
        self._send("ask")

    def _chatter(self) -> None:
        """A burst from one to another, tells and asks mixed."""
        member, target = self._somebody(), self._somebody()
        for _ in range(6):
            self._send(self.random.choice(["tell", "ask"]), member, target)

    def _send(
        self, pattern: str, member: Member | None = None, target: Member | None = None
    ) -> None:
        member, to = member or self._somebody(), (target or self._somebody()).name
        if member.is_there:
            data = self._data(member, is_ask=pattern == "ask")
            payload = {"to": to, "type": "news", "data": data}
            self._remember(member, "hub:send", payload, pattern)

    def _publish(self) -> None:
        member = self._somebody()
        if member.is_there:
            payload: Message = {
                "topic": self.random.choice(TOPICS),
                "type": "news",
                "data": self._data(member, is_ask=True),
                "key": self.random.choice(KEYS),
            }
            self._remember(member, "hub:publish", payload, "ask")

    def _remember(self, member: Member, type: str, payload: Message, pattern: str) -> None:
        message_id = f"m{self._serial + 1}"
        if pattern == "ask":
            self._recent.append((message_id, type, payload))
            self._authors[message_id] = member
            del self._recent[:-RETRIED_MAX]
        self._request(member, type, payload, pattern=pattern)

    def _try_again(self) -> None:
        """The same id again, perhaps on another socket than the first time."""
        if not self._recent:
            return
        message_id, type, payload = self.random.choice(self._recent)
        member = self._authors[message_id]
        if member.is_there:
            fresh = payload | {"data": self._data(member, is_ask=True)}
            self._request(member, type, fresh, id=message_id)

    # Subscriptions.

    def _join(self) -> None:
        topic = self.random.choice(TOPICS)
        name, mode = self.random.choice(SUBSCRIPTIONS)
        self._join_as(self._somebody(), topic, name, mode)

    def _join_as(self, member: Member, topic: str, name: str, mode: str) -> None:
        payload = {"topic": topic, "subscription": name, "mode": mode, "from": "earliest"}
        if (topic, name) not in member.parts:
            self._request(member, "hub:subscribe", payload)

    def _leave(self) -> None:
        member = self._somebody()
        if member.parts:
            self._leave_as(member, *self.random.choice(list(member.parts)))

    def _leave_as(self, member: Member, topic: str, name: str) -> None:
        part = member.parts.pop((topic, name), None)
        if part is not None:
            self._request(member, "hub:unsubscribe", {"subscriptionId": part})

    def _settle(self) -> None:
        member = self._somebody()
        if member.held and member.is_there:
            self._settle_as(member, member.held.pop(self.random.randrange(len(member.held))))

    def _settle_as(self, member: Member, delivery: Delivery, type: str = "hub:ack") -> None:
        stream, name, seq = delivery
        payload: Message = {"seq": seq}
        if not name:
            payload["stream"] = stream
        elif (stream, name) in member.parts:
            payload["subscriptionId"] = member.parts[stream, name]
        else:
            return
        if type == "hub:ack":
            self.copies.said.add(delivery)
            self._asked_for[f"m{self._serial + 1}"] = delivery
        self._request(member, type, payload)

    def _reject(self) -> None:
        member = self._somebody()
        if member.held and member.is_there:
            self._settle_as(member, member.held.pop(), "hub:nack")

    # Time and the disk.

    def _breathe(self) -> None:
        self._pass_time(self.random.choice([1, 20, 300, 2_500]))

    def _pass_time(self, ms: int) -> None:
        def pass_time() -> None:
            self.shell.advance(ms)
            self.shell.tick()

        self._happen(pass_time)

    def _slow_down(self) -> None:
        self.shell.engine.is_prompt = False

    def _commit(self) -> None:
        def commit() -> None:
            self.shell.engine.commit(self.random.randint(1, 8))
            self.shell.settle()

        if not self.shell.engine.is_prompt:
            self._happen(commit)

    def _speed_up(self) -> None:
        self.shell.engine.is_prompt = True
        self._happen(self.shell.settle)

    def _fill(self) -> None:
        self.shell.engine.is_full = True

    def _empty(self) -> None:
        self.shell.engine.is_full = False

    def _snapshot(self) -> None:
        self.shell.save_snapshot()

    def _crash(self) -> None:
        """The process dies; some of what was on its way may be on disk all the same."""
        self.crashes += 1
        self._asked_for.clear()
        self.shell = self.shell.restarted(self.random.randint(0, self.shell.engine.pending))
        self._come_back()

    def _come_back(self) -> None:
        """Most of them, in any order."""
        for member in self.random.sample(self.members, 6):
            self._arrive_as(member)
            for _ in range(self.random.randint(0, 3)):
                name, mode = self.random.choice(SUBSCRIPTIONS)
                self._join_as(member, self.random.choice(TOPICS), name, mode)

    # The end.

    def _wind_down(self) -> None:
        """Everybody comes and does its work; then nothing may be left to do."""
        self._empty()
        self._speed_up()
        self._read_on()
        self._pass_time(2_000)
        for _ in range(ROUNDS_MAX):
            for member in self.members:
                self._arrive_as(member)
            for number, (topic, (name, mode)) in enumerate(
                (topic, one) for topic in TOPICS for one in SUBSCRIPTIONS
            ):
                self._join_as(self.members[number], topic, name, mode)
            for member in self.members:
                while member.held and member.is_there:
                    self._settle_as(member, member.held.pop(0))
            if self._is_quiet():
                break
            self._pass_time(500)
        self._check_end()

    def _is_quiet(self) -> bool:
        streams = self.shell.hub.streams
        lags = [one.lag for topic in TOPICS for one in streams.topics[topic].subscriptions.values()]
        return not any(lags) and not any(
            box.waiting(self.shell.now) for box in streams.mailboxes.values()
        )

    def _check_end(self) -> None:
        assert self._is_quiet(), "something was never delivered"
        settlers = {member.name for member in self.members if member.settles}
        for asked, (stream, seq) in self.acceptance.accepted.items():
            names = [name for name, _ in SUBSCRIPTIONS] if stream in TOPICS else [""]
            for name in names:
                delivery = (stream, name, seq)
                if delivery in self.disk.letters:
                    continue
                assert delivery in self.copies.heard, f"{asked} was accepted and never came"
                if name or stream in settlers:
                    assert delivery in self.copies.said, f"nobody settled {delivery}"
        assert not self.shell.hub.pending, "somebody still waits"
