"""A hub's life as a list of steps: requests of all kinds, and what disks, sockets and time do.

Frames of several peers arrive in one turn of the loop, and commits, refusals and snapshots fall
between them. The same seed gives the same life. In the end everybody reads, the log takes
everything, and then `Life.check` must hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from signalhub.core import refusals
from signalhub.core.hub import Hub
from signalhub.core.sessions.session import SessionState
from signalhub.settings.model import MailboxSettings, Settings
from signalhub.wire.names import HUB_ADDRESS
from tests.support.memory.engine import Shelf
from tests.support.memory.shell import HELLO, SETTLING_HELLO, Message, Peer, envelope
from tests.support.memory.turns import TurningShell

STEPS_MIN, STEPS_MAX = 40, 120
NUMBERS = 10_000
TOPICS = ["t", "u", "dead"]
NAMES = ["s", "v"]
BOXES = ["@(a/d)", "@(a/e)"]
MAIL_MAX = 4
QUIET_S = 20

Step = tuple[str, int]
Picture = dict[tuple[str, ...], object]


def drawn(seed: int) -> list[Step]:
    """What happens in the life of a seed."""
    dice = random.Random(seed)
    weights = [weight for weight, _ in STEPS.values()]
    names = dice.choices(list(STEPS), weights, k=dice.randint(STEPS_MIN, STEPS_MAX))
    return [(name, dice.randrange(NUMBERS)) for name in names]


class Numbers:
    """One number of a step, used up choice by choice."""

    def __init__(self, number: int) -> None:
        self._dice = random.Random(number)

    def of(self, choices: list[Any]) -> Any:
        return self._dice.choice(choices)

    def below(self, share: float) -> bool:
        return self._dice.random() < share


class Life:
    """One hub and its peers."""

    def __init__(self) -> None:
        settings = Settings(message_rate=0.0, mailbox=MailboxSettings(limit=MAIL_MAX))
        self.shell = TurningShell(settings)
        self.shell.engine.is_prompt = False
        # Requests by id: who asked, and for what.
        self.asked: dict[str, tuple[Peer, str, object]] = {}
        self.refused = 0
        self.peers: list[Peer] = []
        for number in range(3):
            self.come(Numbers(number))

    def play(self, steps: list[Step]) -> None:
        for name, number in steps:
            self.shell.is_turning = name not in ("end_turn", "moment", "while_")
            STEPS[name][1](self, Numbers(number))
        self.wind_down()
        self.check()

    # Who, and how.

    def somebody(self, numbers: Numbers) -> Peer:
        living = [one for one in self.peers if is_living(one)]
        if not living:
            self.come(numbers)
            living = self.peers[-1:]
        peer: Peer = numbers.of(living)
        return peer

    def request(self, peer: Peer, type: str, payload: Message, **members: Any) -> None:
        """Send a request; if it is refused at once, it must have changed nothing."""
        message_id = members.pop("id", None) or self.shell.next_id()
        self.asked[message_id] = (peer, type, payload)
        before, seen = outline(self.shell.hub), len(peer.received)
        frame = envelope(
            type, payload, id=message_id, sender=peer.address, timestamp=self.shell.now, **members
        )
        self.shell.receive(peer, frame)
        replies = {one["type"] for one in peer.received[seen:] if is_answer(one, message_id)}
        if "hub:error" in replies:
            self.refused += 1
            changes = differences(before, outline(self.shell.hub))
            assert not changes, f"{type} {payload} was refused and changed {changes}"

    # Topics.

    def publish(self, numbers: Numbers) -> None:
        payload: Message = {"topic": numbers.of(TOPICS), "type": "news", "data": 1, "durable": True}
        if numbers.below(0.5):
            payload["key"] = numbers.of(["a", "b"])
        if numbers.below(0.1):
            payload["deliverAt"] = self.shell.now + 3_000
        ttl = 1_000 if numbers.below(0.1) else None
        self.request(self.somebody(numbers), "hub:publish", payload, ttl=ttl)

    def publish_badly(self, numbers: Numbers) -> None:
        payload = {"topic": numbers.of(TOPICS), "type": "news", "durable": True, "key": "k" * 300}
        self.request(self.somebody(numbers), "hub:publish", payload)

    def create(self, numbers: Numbers) -> None:
        topic = numbers.of(TOPICS)
        payload: Message = {"topic": topic, "durable": True, "poison": "dead_letter"}
        if topic != "dead":
            payload["deadLetter"] = "dead"
        self.request(self.somebody(numbers), "hub:topic_create", payload)

    def delete(self, numbers: Numbers) -> None:
        self.request(self.somebody(numbers), "hub:topic_delete", {"topic": numbers.of(TOPICS)})

    def update_topic(self, numbers: Numbers) -> None:
        retention_s = {"ageSeconds": numbers.of([100, 200])}
        payload = {"topic": numbers.of(TOPICS), "retention": retention_s}
        self.request(self.somebody(numbers), "hub:topic_update", payload)

    # Subscriptions.

    def subscribe(self, numbers: Numbers) -> None:
        name = numbers.of(NAMES)
        modes = ["exclusive"] if name == "s" else ["shared", "key-shared"]
        start = numbers.of(["earliest", "latest", {"time": self.shell.now - 1_000}, {"seq": 2}])
        payload: Message = {
            "topic": numbers.of(TOPICS),
            "subscription": name,
            "mode": numbers.of(modes),
            "from": start,
        }
        if numbers.below(0.3):
            payload["ackTimeoutMs"] = numbers.of([500, 2_000])
        if numbers.below(0.3):
            payload["consumer"] = numbers.of(["one", "two"])
        self.request(self.somebody(numbers), "hub:subscribe", payload)

    def about(self, numbers: Numbers, type: str, **payload: Any) -> None:
        """A request about a subscription."""
        named = {"topic": numbers.of(TOPICS), "subscription": numbers.of(NAMES)}
        self.request(self.somebody(numbers), type, named | payload)

    def seek(self, numbers: Numbers) -> None:
        places = ["earliest", "latest", {"seq": 2}, {"last": 1}, {"time": self.shell.now - 2_000}]
        self.about(numbers, "hub:seek", to=numbers.of(places))

    def update(self, numbers: Numbers) -> None:
        self.about(numbers, "hub:sub_update", ackTimeoutMs=numbers.of([700, 3_000]))

    def settle(self, numbers: Numbers) -> None:
        """One of the messages that somebody has."""
        held = [
            (consumer, flight.seq)
            for topic in self.shell.hub.streams.topics.values()
            for subscription in topic.subscriptions.values()
            for flight in subscription.window.flights.values()
            if (consumer := flight.consumer) is not None
            and consumer.id in consumer.session.consumers
        ]
        if not held:
            return
        consumer, seq = numbers.of(held)
        peer = next(one for one in self.peers if one.session is consumer.session)
        type = numbers.of(["hub:ack", "hub:ack", "hub:ack", "hub:nack", "hub:term"])
        self.request(peer, type, {"subscriptionId": consumer.id, "seq": seq})

    def redrive(self, numbers: Numbers) -> None:
        self.request(self.somebody(numbers), "hub:redrive", {"topic": "dead", "all": True})

    def purge(self, numbers: Numbers) -> None:
        self.request(self.somebody(numbers), "hub:purge", {"topic": "dead", "all": True})

    # Mailboxes.

    def register(self, numbers: Numbers) -> None:
        payload: Message = {"actorAddress": numbers.of(BOXES), "capabilities": []}
        payload |= numbers.of([{"durable": True}, {"durable": True}, {"durable": False}, {}])
        self.request(self.somebody(numbers), "hub:register", payload)

    def unregister(self, numbers: Numbers) -> None:
        peer = self.somebody(numbers)
        self.request(peer, "hub:unregister", {"actorAddress": numbers.of(BOXES)})

    def ask(self, numbers: Numbers) -> None:
        payload = {"to": numbers.of(BOXES), "type": "news", "data": 1}
        ttl = 2_000 if numbers.below(0.3) else None
        self.request(self.somebody(numbers), "hub:send", payload, ttl=ttl)

    def ask_again(self, numbers: Numbers) -> None:
        """A message that was asked before, by the same peer with the same id."""
        sent = [
            (message_id, peer, payload)
            for message_id, (peer, type, payload) in self.asked.items()
            if type == "hub:send" and is_living(peer) and not peer.is_stalled
        ]
        if sent:
            message_id, peer, payload = numbers.of(sent)
            frame = envelope(
                "hub:send", payload, id=message_id, sender=peer.address, timestamp=self.shell.now
            )
            self.shell.receive(peer, frame)

    # Sockets, disk and time.

    def come(self, numbers: Numbers) -> None:
        is_turning, self.shell.is_turning = self.shell.is_turning, False
        hello = numbers.of([HELLO, SETTLING_HELLO])
        self.peers.append(self.shell.connect(f"@(a/p{len(self.peers)})", metadata=hello))
        self.shell.is_turning = is_turning

    def anchor(self, numbers: Numbers) -> None:
        shell = self.shell
        shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))

    # The end.

    def wind_down(self) -> None:
        """Everybody reads and the log takes everything."""
        self.shell.is_turning = False
        for peer in self.peers:
            if peer.closed is None:
                peer.read_on()
        self.calm_down()

    def calm_down(self) -> None:
        for _ in range(QUIET_S):
            self.shell.settle()
            self.shell.engine.commit()
            self.shell.pass_time(1)

    def check(self) -> None:
        """One answer each, nothing pending, no holes, and a restart finds what memory holds."""
        self.check_answers()
        assert not self.shell.hub.pending, (
            f"never answered: {list(self.shell.hub.pending.values())}"
        )
        for peer in self.peers:
            assert not peer.session.unsynced, f"{peer.address} waits for the disk forever"
            if peer.closed is None:
                peer.drop()
        self.calm_down()
        for stream in self.shell.hub.streams.every():
            assert stream.next_seq == stream.head + 1, f"{stream.name} has a hole"
        self.check_restarts()

    def check_answers(self) -> None:
        for message_id, (peer, type, payload) in self.asked.items():
            if not is_living(peer):
                continue
            answers = [one["type"] for one in peer.received if is_answer(one, message_id)]
            told = f"{type} {payload} ({message_id} of {peer.address}) was answered {answers}"
            assert answers, told
            assert len(answers) == 1 or type == "hub:send", told

    def check_restarts(self) -> None:
        remembered = described(self.shell.hub)
        found = described(self.shell.restarted().hub)
        assert found == remembered, f"snapshot and log: {differences(remembered, found)}"
        self.shell.shelf = Shelf()
        found = described(self.shell.restarted().hub)
        assert found == remembered, f"the log alone: {differences(remembered, found)}"


# How often each step comes, and what it does.
STEPS: dict[str, tuple[int, Callable[[Life, Numbers], object]]] = {
    "publish": (16, Life.publish),
    "publish_badly": (1, Life.publish_badly),
    "create": (5, Life.create),
    "delete": (2, Life.delete),
    "update_topic": (3, Life.update_topic),
    "subscribe": (10, Life.subscribe),
    "unsubscribe": (2, lambda life, numbers: life.about(numbers, "hub:unsubscribe")),
    "delete_subscription": (3, lambda life, numbers: life.about(numbers, "hub:sub_delete")),
    "seek": (5, Life.seek),
    "pause": (3, lambda life, numbers: life.about(numbers, "hub:sub_pause")),
    "resume": (3, lambda life, numbers: life.about(numbers, "hub:sub_resume")),
    "update": (4, Life.update),
    "settle": (16, Life.settle),
    "redrive": (3, Life.redrive),
    "purge": (2, Life.purge),
    "register": (6, Life.register),
    "unregister": (3, Life.unregister),
    "ask": (10, Life.ask),
    "ask_again": (2, Life.ask_again),
    "end_turn": (45, lambda life, numbers: life.shell.settle()),
    "commit": (20, lambda life, numbers: life.shell.engine.commit(numbers.of([1, 2]))),
    "commit_all": (12, lambda life, numbers: life.shell.engine.commit()),
    "refuse": (2, lambda life, numbers: life.shell.engine.refuse(refusals.storage_full())),
    "moment": (8, lambda life, numbers: life.shell.advance(numbers.of([50, 500]))),
    "while_": (3, lambda life, numbers: life.shell.pass_time(2)),
    "snapshot": (3, lambda life, numbers: life.shell.save_snapshot()),
    "anchor": (1, Life.anchor),
    "come": (2, Life.come),
    "drop": (3, lambda life, numbers: life.somebody(numbers).drop()),
    "stall": (3, lambda life, numbers: life.somebody(numbers).stall()),
    "read_on": (3, lambda life, numbers: life.somebody(numbers).read_on()),
}


def is_living(peer: Peer) -> bool:
    return peer.closed is None and peer.session.state is SessionState.CONNECTED


def is_answer(message: Message, message_id: str) -> bool:
    return (message["correlationId"], message["from"]) == (message_id, HUB_ADDRESS)


def described(hub: Hub) -> Picture:
    """Everything that must survive a crash once it is quiet."""
    found: Picture = {}
    for name, topic in hub.streams.topics.items():
        found["topic", name] = (
            *(topic.id, topic.head, topic.first, topic.bytes),
            *(list(topic.removed), topic.definition),
        )
        for subscription in topic.subscriptions.values():
            position = subscription.position
            found["subscription", name, subscription.name] = (
                *(position.floor, list(position.above), position.parked, position.failures),
                *(position.generation, position.is_paused, position.dead_lettered),
                subscription.definition,
            )
    for name, box in hub.streams.mailboxes.items():
        position = box.subscription.position
        found["mailbox", name] = (
            *(box.id, box.head, position.floor, list(position.above)),
            *(position.failures, dict(box.expiries)),
        )
    return found


def outline(hub: Hub) -> Picture:
    """What a refused request must leave as it is."""
    found: Picture = {}
    for name, topic in hub.streams.topics.items():
        found["topic", name] = (topic.id, topic.next_seq, topic.definition, topic.is_deleting)
        for one in topic.subscriptions.values():
            consumers = [consumer.id for consumer in one.consumers]
            found["subscription", name, one.name] = (
                *(one.definition, consumers, one.is_deleting),
                *(one.pausing, one.seeking, one.position.generation, one.position.is_paused),
            )
    for name, box in hub.streams.mailboxes.items():
        owners = [consumer.id for consumer in box.subscription.consumers]
        found["mailbox", name] = (box.id, box.next_seq, owners)
    for session in hub.sessions:
        found["session", session.id] = (session.identity, list(session.registrations))
    found["asks",] = len(hub.pending)
    return found


def differences(before: Picture, after: Picture) -> list[object]:
    """What is not the same in both."""
    names = before.keys() | after.keys()
    return [
        (name, before.get(name), after.get(name))
        for name in sorted(names)
        if before.get(name) != after.get(name)
    ]
