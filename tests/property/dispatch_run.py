"""One subscription's life as a list of steps: consumers come, go, settle, stall and err.

In some lives it is a part of a pattern, whose consumers get messages of other topics, too.

The same seed gives the same run. In the end everybody behaves for a while, and then everything that
could be delivered must have been.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from signalhub.core.subscriptions.consumers import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import EXHAUSTED, SENT
from signalhub.settings.model import DispatchSettings, LogSettings, Settings
from tests.property.dispatch_watch import NAME, TOPIC, Watch, WatchedShell
from tests.support.memory.shell import Message, Peer

STEPS_MIN, STEPS_MAX = 10, 45
SEATS = 3
KEYS = ["a", "b", "c", None]
MODES = [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED]
ROUNDS_MAX = 60

NAMED: dict[str, Any] = {"topic": TOPIC, "subscription": NAME}
PATTERN = f"{TOPIC}/#"
OTHERS = (f"{TOPIC}/a", f"{TOPIC}/b")

Step = tuple[str, int, int]


def drawn(seed: int) -> tuple[dict[str, Any], list[Step]]:
    """What the subscription is like, and what happens to it."""
    dice = random.Random(seed)
    pick = dice.choice
    mode = MODES[seed % len(MODES)]
    traits: dict[str, Any] = {
        "mode": mode,
        "from": pick(["earliest", "earliest", "latest"]),
        "window": pick([1, 2, 3, 256]),
        "strict": mode in (EXCLUSIVE, FAILOVER) and dice.random() < 0.25,
        "autoAck": dice.random() < 0.1,
        "ackTimeoutMs": pick([50, 1_000, 30_000]),
        "maxDeliveries": pick([1, 2, 6]),
        "backoffMs": pick([0, 10, 500]),
        "backoffCapMs": pick([1, 1_000]),
        "poison": pick(["block", "drop", "dead_letter", "dead_letter"]),
        "ratePerSecond": pick([0, 0, 0, 20]),
        "heartbeatMs": pick([0, 50, 500]),
        "wakes": dice.random() < 0.9,
        "cache": pick([1, 700, 2**20]),
        "failover": pick([0, 100]),
    }
    if not traits["wakes"]:
        traits["heartbeatMs"] = 50
    traits["pattern"] = seed // len(MODES) % 4 == 3
    length = dice.randint(STEPS_MIN, STEPS_MAX)
    weights = [weight for weight, _ in STEPS.values()]
    names = dice.choices(list(STEPS), weights, k=length)
    return traits, [(name, dice.randrange(SEATS), dice.randrange(1_000)) for name in names]


class Run:
    """One life."""

    def __init__(self, traits: dict[str, Any]) -> None:
        self.options = {
            name: value
            for name, value in traits.items()
            if name not in ("wakes", "cache", "failover", "pattern")
        }
        dispatch = DispatchSettings(
            wakes=traits["wakes"],
            cursor_ms=200,
            cursor_settles=5,
            failover_ms=traits["failover"],
            heartbeat_ms=50,
        )
        settings = Settings(
            message_rate=0.0, dispatch=dispatch, log=LogSettings(cache_bytes=traits["cache"])
        )
        self.shell = WatchedShell(settings)
        self.watch = Watch(self.shell)
        self.watch.max_deliveries_min = traits["maxDeliveries"]
        self.seats: list[Peer | None] = [None] * SEATS
        self.serial = 0
        self.accepted: dict[int, int] = {}
        self.acks: dict[str, tuple[int, set[int], set[int]]] = {}
        self.crashes = 0
        self.is_part = bool(traits["pattern"])
        # Messages of other topics that were sent to somebody: who, and the request that settles it.
        self.others: list[tuple[Peer, Message]] = []
        self.writer = self.shell.connect("@(a/writer)")
        self.writer.ask("hub:topic_create", {"topic": TOPIC, "durable": True})
        self.join(0, 0)
        if self.is_part:
            # It begins with its first message.
            self.publish(0, 1)
            self.listen()

    def play(self, steps: list[Step]) -> None:
        self.watch.look()
        for name, seat, number in steps:
            STEPS[name][1](self, seat, number)
            self.listen()
            self.watch.look()
        self.wind_down()

    def listen(self) -> None:
        """What anybody was told must be true on disk."""
        self.watch.read_log()
        for peer in self.shell.peers:
            for message in peer.take():
                self.watch.arrive(message)
                self.note_other(peer, message)
                if message["type"] == "hub:published" and message["correlationId"][0] == "p":
                    self.check_published(message)
                elif message["correlationId"] in self.acks:
                    self.check_acked(message)

    def note_other(self, peer: Peer, message: Message) -> None:
        topic = message["metadata"].get("topic")
        if topic in OTHERS and "delivery" in message["metadata"]:
            seq = message["metadata"]["delivery"]["seq"]
            self.others.append((peer, {"topic": topic, "subscription": NAME, "seq": seq}))

    def settle_others(self) -> None:
        """Whoever got messages of other topics acknowledges them."""
        others, self.others = self.others, []
        for peer, payload in others:
            if peer.can_be_written and self.consumer_of(peer) is not None:
                peer.request("hub:ack", payload, pattern="tell")

    def check_published(self, message: Message) -> None:
        seq, serial = message["payload"]["seq"], int(message["correlationId"][1:])
        assert message["payload"]["durability"] == "fsync"
        stored = self.watch.published.get(seq)
        assert stored is not None, "acknowledged before it was on disk"
        assert int(stored.data) == serial, "acknowledged with another position"
        self.accepted[seq] = serial

    def check_acked(self, message: Message) -> None:
        generation, asked, expected = self.acks.pop(message["correlationId"])
        if message["type"] == "hub:error":
            assert message["payload"]["code"] == "storage_full"
            return
        payload = message["payload"]
        assert message["type"] == "hub:acked"
        assert payload["accepted"] == len(expected)
        assert sorted(payload["ignored"]) == sorted(asked - expected)
        if generation == self.watch.generation:
            assert expected <= self.watch.written, "an ack was confirmed before it was on disk"

    # Whom and what.

    def consumer_of(self, peer: Peer) -> str | None:
        consumers = peer.session.consumers
        return next(iter(consumers), None)

    def settle(self, seat: int, type: str, seqs: list[int], number: int, **more: Any) -> None:
        peer = self.seats[seat]
        if peer is None or not peer.can_be_written or not seqs:
            return
        name = self.consumer_of(peer)
        if name is None:
            return
        payload: dict[str, Any] = {"subscriptionId": name, **more}
        if self.is_part:
            payload["topic"] = TOPIC
        if len(seqs) == 1 and seqs[0] in self.watch.sent_here and number % 3 == 0:
            payload["id"] = self.watch.ids[seqs[0]]
        if "upTo" not in more:
            payload |= {"seq": seqs[0]} if len(seqs) == 1 else {"seqs": seqs}
        watch = self.watch
        position = watch.subscription.position
        expected = {seq for seq in seqs if watch.must_accept(seq)}
        generation = position.generation
        ignored = watch.subscription.stats.ignored
        if type == "hub:ack":
            watch.acked |= expected
        elif type == "hub:term":
            watch.termed |= expected
        message_id = self.shell.next_id()
        if type == "hub:ack" and number % 2:
            self.acks[message_id] = (generation, set(seqs), expected)
        peer.request(type, payload, pattern="ask" if number % 2 else "tell", id=message_id)
        if type == "hub:ack":
            missing = {seq for seq in expected if not position.is_settled(seq)}
            assert not missing or position.generation != generation, f"{missing} were not settled"
            assert watch.subscription.stats.ignored - ignored == len(seqs) - len(expected)

    def unsettled(self) -> list[int]:
        return sorted(self.watch.subscription.window.seen())

    def held_by(self, seat: int) -> list[int]:
        """What a seat has been sent and has not settled."""
        peer = self.seats[seat]
        return [
            seq
            for seq, flight in self.watch.subscription.window.seen().items()
            if flight.phase is SENT
            and flight.consumer is not None
            and flight.consumer.session.link is peer
        ]

    # Steps.

    def publish(self, seat: int, number: int) -> None:
        for _ in range(1 + number % 3):
            self.serial += 1
            payload: Message = {"topic": TOPIC, "type": "news", "data": self.serial}
            key = KEYS[(number + self.serial) % len(KEYS)]
            if key is not None:
                payload["key"] = key
            if number % 11 == 0:
                payload["deliverAt"] = self.shell.now + number
            ttl = 400 if number % 13 == 0 else None
            if self.is_part:
                other = payload | {"topic": OTHERS[self.serial % 2], "durable": True}
                self.writer.request("hub:publish", other, id=f"o{self.serial}")
            self.writer.request("hub:publish", payload, id=f"p{self.serial}", ttl=ttl)

    def ack(self, seat: int, number: int) -> None:
        self.settle_others()
        held = self.held_by(seat)
        if held:
            self.settle(seat, "hub:ack", [held[number % len(held)]], number)

    def ack_up_to(self, seat: int, number: int) -> None:
        held = self.held_by(seat)
        if held and self.options["mode"] in (EXCLUSIVE, FAILOVER):
            up_to = held[number % len(held)]
            parked = self.watch.subscription.position.parked
            meant = [seq for seq in self.unsettled() if seq <= up_to and seq not in parked]
            self.settle(seat, "hub:ack", meant, number, upTo=up_to)

    def ack_of_another(self, seat: int, number: int) -> None:
        """Late, of something that came back or went to somebody else."""
        seqs = self.unsettled()
        if seqs:
            self.settle(seat, "hub:ack", [seqs[number % len(seqs)]], number)

    def ack_of_nothing(self, seat: int, number: int) -> None:
        self.settle(seat, "hub:ack", [self.watch.topic.head + 1 + number], number)

    def nack(self, seat: int, number: int) -> None:
        held = self.held_by(seat)
        if held:
            delay_ms = number if number % 3 else 0
            self.settle(seat, "hub:nack", [held[number % len(held)]], number, delayMs=delay_ms)

    def extend(self, seat: int, number: int) -> None:
        self.settle(seat, "hub:extend", self.held_by(seat)[:1], number, ms=1 + number * 50)

    def term(self, seat: int, number: int) -> None:
        self.settle(seat, "hub:term", self.held_by(seat)[:1], number, reason="no")

    def join(self, seat: int, number: int) -> None:
        peer = self.seats[seat]
        if peer is None or not peer.can_be_written:
            peer = self.seats[seat] = self.shell.connect(f"@(a/{seat})")
        if not peer.is_stalled and self.consumer_of(peer) is None:
            self.subscribe(peer, f"seat {seat}")

    @property
    def named(self) -> dict[str, Any]:
        """What is subscribed to."""
        return {"pattern": PATTERN, "subscription": NAME} if self.is_part else NAMED

    def subscribe(self, peer: Peer, consumer: str) -> None:
        given = self.named | {"consumer": consumer}
        has_it = NAME in self.watch.topic.subscriptions
        if self.is_part:
            has_it = self.shell.hub.patterns.index.find(PATTERN, NAME) is not None
        options = {"mode": self.options["mode"]} if has_it else self.options
        peer.request("hub:subscribe", given | options)

    def drop(self, seat: int, number: int) -> None:
        peer = self.seats[seat]
        if peer is not None and peer.can_be_written:
            peer.drop()

    def leave(self, seat: int, number: int) -> None:
        peer = self.seats[seat]
        if peer is not None and peer.can_be_written and not peer.is_stalled:
            peer.request("hub:unsubscribe", self.named)

    def take_over(self, seat: int, number: int) -> None:
        """Another session comes with the same consumer's name."""
        if self.seats[seat] is not None:
            self.seats[seat] = self.shell.connect(f"@(b/{seat}/{self.shell.next_id()})")
            self.subscribe(self.seats[seat], f"seat {seat}")  # type: ignore[arg-type]

    def credit(self, seat: int, number: int) -> None:
        peer = self.seats[seat]
        if peer is not None and peer.can_be_written and (name := self.consumer_of(peer)):
            payload: Message = {"subscriptionId": name, "messages": number % 4}
            peer.request("hub:credit", payload)

    def block(self, seat: int, number: int) -> None:
        peer = self.seats[seat]
        if peer is not None and peer.can_be_written and not peer.is_stalled:
            peer.block()

    def read_on(self, seat: int, number: int) -> None:
        peer = self.seats[seat]
        if peer is not None and peer.can_be_written:
            peer.read_on()

    def seek(self, seat: int, number: int) -> None:
        to: object = ["earliest", "latest", {"seq": 1 + number % 9}, {"last": 1 + number % 5}][
            number % 4
        ]
        where = self.named if number % 2 else NAMED
        self.writer.request("hub:seek", where | {"to": to})

    def pause(self, seat: int, number: int) -> None:
        self.writer.request("hub:sub_pause", self.named if number % 2 else NAMED)

    def resume(self, seat: int, number: int) -> None:
        for where in (self.named, NAMED):
            self.writer.request("hub:sub_resume", where)

    def update(self, seat: int, number: int) -> None:
        changes: list[Message] = [
            {"window": 1 + number % 5},
            {"poison": "drop"},
            {"maxDeliveries": 3},
        ]
        change = changes[number % 3]
        if "poison" in change and self.watch.subscription.poison_policy == "dead_letter":
            return
        if "maxDeliveries" in change:
            self.watch.max_deliveries_min = min(3, self.watch.max_deliveries_min)
        payload = (self.named if number % 2 else NAMED) | change
        self.writer.request("hub:sub_update", payload)

    def lose(self, seat: int, number: int) -> None:
        """Retention gives up the oldest messages."""
        topic = self.watch.topic
        if topic.head < 3:
            return
        first = topic.first + 1 + number % (topic.head - 1)
        if first <= topic.head + 1:
            self.shell.perform(self.shell.hub.retention.lose_before(topic, first, self.shell.now))

    def cut(self, seat: int, number: int) -> None:
        """Old segments are deleted behind a snapshot, and the hub hears of it."""
        shell, topic = self.shell, self.watch.topic
        shell.save_snapshot()
        kept = 1 + number % (topic.head + 1)
        entries = shell.engine.entries
        offsets = [one.offset for one in entries if one.stream == TOPIC and one.seq >= kept]
        shell.engine.cut(min([shell.engine.head, *offsets]))
        topic.recent.clear()
        firsts = {topic.id: kept if offsets else 0}
        for part in self.other_parts(is_any=True):
            name = part.stream.name
            seqs = [one.seq for one in shell.engine.entries if one.stream == name and one.seq]
            firsts[part.stream.id] = min(seqs, default=0)
            part.stream.recent.clear()
        shell.perform(shell.hub.retention.cut(firsts, shell.now))
        shell.save_snapshot()

    # The disk.

    def hold(self, seat: int, number: int) -> None:
        self.shell.engine.is_prompt = False

    def commit(self, seat: int, number: int) -> None:
        if not self.shell.engine.is_prompt:
            self.shell.engine.commit(1 + number % 4)
            self.shell.settle()

    def release(self, seat: int, number: int) -> None:
        self.shell.engine.is_prompt = True
        self.shell.settle()

    def fill(self, seat: int, number: int) -> None:
        self.shell.engine.is_full = True

    def empty(self, seat: int, number: int) -> None:
        self.shell.engine.is_full = False

    def blind(self, seat: int, number: int) -> None:
        self.shell.engine.is_readable = False

    def see(self, seat: int, number: int) -> None:
        self.shell.engine.is_readable = True
        self.shell.settle()

    def crash(self, seat: int, number: int) -> None:
        pending = self.shell.engine.pending
        self.crashes += 1
        self.acks.clear()
        self.others.clear()
        self.shell = self.shell.restarted(number % (pending + 1))
        self.watch.restarted(self.shell)
        self.seats = [None] * SEATS
        self.writer = self.shell.connect("@(a/writer)")

    # The end.

    def wind_down(self) -> None:
        """Everybody behaves; then everything that could be delivered must have been."""
        engine = self.shell.engine
        engine.is_prompt = engine.is_readable = True
        engine.is_full = False
        self.shell.advance(2_000)
        self.listen()
        self.watch.look()
        for peer in self.seats:
            if peer is not None and peer.can_be_written:
                peer.drop()
        self.acks.clear()
        self.shell.settle()
        self.writer.request("hub:sub_resume", NAMED)
        self.writer.request("hub:sub_resume", self.named)
        self.seats = [None] * SEATS
        self.join(0, 0)
        self.credit_all()
        for _ in range(ROUNDS_MAX):
            self.listen()
            self.watch.look()
            if self.is_done():
                break
            self.settle(0, "hub:ack", self.held_by(0), 1)
            self.settle(0, "hub:ack", self.stuck(), 1)
            self.settle_others()
            self.listen()
            self.watch.look()
            self.shell.advance(1_500)
            if self.is_part:
                self.shell.tick()
        self.check_end()

    def credit_all(self) -> None:
        peer = self.seats[0]
        assert peer is not None
        payload = {"subscriptionId": self.consumer_of(peer), "messages": 100}
        peer.request("hub:credit", payload)

    def stuck(self) -> list[int]:
        """What the poison policy holds; an operator acknowledges it."""
        flights = self.watch.subscription.window.seen().values()
        return [one.seq for one in flights if one.phase is EXHAUSTED and not one.is_burying]

    def is_done(self) -> bool:
        subscription = self.watch.subscription
        is_over = not subscription.lag and not subscription.position.parked
        return is_over and not any(one.lag for one in self.other_parts())

    def other_parts(self, *, is_any: bool = False) -> list[Subscription]:
        """The other parts of the pattern; unless `is_any`, none if one message may block them."""
        topics = self.shell.hub.streams.topics
        if not self.is_part or (self.options["poison"] == "block" and not is_any):
            return []
        return [topics[name].subscriptions[NAME] for name in OTHERS if name in topics]

    def check_end(self) -> None:
        subscription, topic = self.watch.subscription, self.watch.topic
        position = subscription.position
        assert self.is_done(), (
            f"{subscription.lag} were never delivered: floor {position.floor}, head {topic.head},"
            f" next {subscription.next_seq}, parked {position.parked},"
            f" window { {s: f.phase.value for s, f in subscription.window.seen().items()} }"
        )
        assert position.floor == topic.head
        assert not len(subscription.window)
        assert not subscription.settlements
        assert not subscription.letters
        for part in self.other_parts():
            assert not part.lag, f"{part.lag} of {part.stream.name} were never delivered"
        assert not self.acks, "an ack was never confirmed"
        assert topic.head == len(self.watch.published)
        for seq, serial in self.accepted.items():
            assert int(self.watch.published[seq].data) == serial, "an acknowledged message is gone"


# How often each step comes, and what it does.
STEPS: dict[str, tuple[int, Callable[[Run, int, int], object]]] = {
    "publish": (20, Run.publish),
    "ack": (20, Run.ack),
    "ack_many": (
        5,
        lambda run, seat, number: run.settle(seat, "hub:ack", run.held_by(seat), number),
    ),
    "ack_up_to": (3, Run.ack_up_to),
    "ack_of_another": (3, Run.ack_of_another),
    "ack_of_nothing": (2, Run.ack_of_nothing),
    "nack": (8, Run.nack),
    "extend": (3, Run.extend),
    "term": (3, Run.term),
    "moment": (12, lambda run, seat, number: run.shell.advance(1 + number % 97)),
    "while_": (4, lambda run, seat, number: run.shell.advance(number * 40)),
    "join": (10, Run.join),
    "drop": (5, Run.drop),
    "leave": (3, Run.leave),
    "take_over": (2, Run.take_over),
    "credit": (3, Run.credit),
    "block": (4, Run.block),
    "read_on": (5, Run.read_on),
    "pause": (2, Run.pause),
    "resume": (4, Run.resume),
    "seek": (2, Run.seek),
    "update": (2, Run.update),
    "lose": (1, Run.lose),
    "cut": (1, Run.cut),
    "hold": (4, Run.hold),
    "commit": (8, Run.commit),
    "release": (5, Run.release),
    "fill": (2, Run.fill),
    "empty": (4, Run.empty),
    "blind": (2, Run.blind),
    "see": (4, Run.see),
    "snapshot": (3, lambda run, seat, number: run.shell.save_snapshot()),
    "crash": (4, Run.crash),
}
