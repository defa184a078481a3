"""Whatever the kernel, the clock and the peers do, the write path keeps its promises.

A schedule is a list of steps drawn from a seed: messages of all kinds, sockets that take little,
nothing or break, peers that leave in every way, clocks that jump. Then everybody who is left reads
on, and the counts must add up. A schedule that fails is cut down before it is shown.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from picows import WSMsgType

from signalhub.core.sessions.session import SessionState
from signalhub.settings.model import OutboundSettings
from signalhub.wire.frames import Opcode
from tests.property.cutting import check
from tests.support.memory.shell import Message, decoded
from tests.support.memory.write_path import EVERYTHING, Peer, Stage
from tests.support.volume import SEEDS, volume

LIVES = volume(SEEDS, 1_500)
GROUPS = 6
# In every second group, transports are given so little that connections hold parts of frames.
HELD_BYTES = 50
STEPS_MIN, STEPS_MAX = 20, 110
NAMES = [f"@(a/{number})" for number in range(5)]
TOPICS = ["news/a", "news/b", "sport"]
# Who hears what; the audiences overlap.
HEARS = [("news/a", "sport"), ("news/+",), ("news/b", "news/a"), ("#",), ()]
ANSWERS = {"hub:delivery_ack", "hub:error", "hub:unknown_actor"}
EXPECTED_ERRORS = {"message_expired", "queue_full"}

Step = tuple[str, int, int, int]


def drawn(seed: int) -> list[Step]:
    """The schedule of a seed."""
    dice = random.Random(seed)
    length = dice.randint(STEPS_MIN, STEPS_MAX)
    weights = [weight for weight, _ in STEPS.values()]
    names = dice.choices(list(STEPS), weights, k=length)
    return [(name, dice.randrange(5), dice.randrange(5), dice.randrange(1_000)) for name in names]


class Run:
    """One schedule on one stage, with its own counts."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.serial = 0
        self.tells = 0
        self.asks: dict[str, tuple[Peer, int]] = {}
        self.present = [
            stage.join(name, *topics) for name, topics in zip(NAMES, HEARS, strict=True)
        ]

    def play(self, steps: list[Step]) -> None:
        for name, first, second, number in steps:
            # No two moments are quite the same.
            self.stage.clock.advance(0.000_001)
            peer, other = self.present[first], self.present[second]
            STEPS[name][1](self, peer, other, number)
        self.let_everybody_read()

    def let_everybody_read(self) -> None:
        stage = self.stage
        for _ in range(50):
            for peer in stage.peers:
                peer.socket.short = None
                peer.socket.breaks_after_write = False
                peer.read()
                self.answer(peer, peer, 0)
            stage.loop.run_dry()
            stage.writer.sweep()
            if not stage.loop.ready:
                break
        stage.pass_time(7)

    # Steps.

    def now(self) -> int:
        """What the hub takes for the present: a tick has one time, whatever the clock does."""
        return self.stage.writer.tick_ms or self.stage.steady.now_ms()

    def wall_time(self) -> int:
        """The time for which the hub takes the present of its clients."""
        stage = self.stage
        if stage.writer.tick_ms:
            return stage.hub.wall.shown(stage.writer.tick_ms)
        return stage.clock.now_ms()

    def next_data(self, peer: Peer) -> list[object]:
        self.serial += 1
        return [self.stage.peers.index(peer), self.serial]

    def tell(self, peer: Peer, other: Peer, number: int) -> None:
        if peer.connection.session.state is not SessionState.CONNECTED or not peer.is_open:
            return
        self.tells += not peer.connection.is_closing
        data = [*self.next_data(peer), "x" * (number % 7 * 40)]
        peer.tell(other.address, data, ttl=_ttl(number))

    def ask(self, peer: Peer, other: Peer, number: int) -> None:
        is_served = peer.is_open and not peer.connection.is_closing
        message_id = peer.ask(other.address, self.next_data(peer), ttl=_ttl(number))
        if is_served:
            self.asks[message_id] = (peer, self.serial)

    def publish(self, peer: Peer, other: Peer, number: int) -> None:
        topic = TOPICS[number % len(TOPICS)]
        data = self.next_data(peer)
        if peer.is_open and not peer.connection.is_closing:
            self.tells += len(self.stage.hub.topics.audience(topic).recipients)
        peer.publish(topic, data, ttl=_ttl(number), timestamp=self.wall_time())

    def broadcast(self, peer: Peer, other: Peer, number: int) -> None:
        stage = self.stage
        data = self.next_data(peer)
        if peer.is_open and not peer.connection.is_closing:
            # The message itself renews the sender's lease first.
            peer.connection.session.last_seen_ms = self.now()
            self.tells += len(stage.hub.registry.live(None, self.now()))
        peer.broadcast(data)

    def shorten(self, peer: Peer, other: Peer, number: int) -> None:
        peer.socket.short = number % 3 * number // 2

    def break_later(self, peer: Peer, other: Peer, number: int) -> None:
        peer.socket.short = number % 50
        peer.socket.breaks_after_write = True

    def arrive(self, peer: Peer, other: Peer, number: int) -> None:
        """A newcomer under a known name; its owner is evicted."""
        at = self.present.index(peer)
        self.present[at] = self.stage.arrive(NAMES[at], *HEARS[at])

    def alias(self, peer: Peer, other: Peer, number: int) -> None:
        """One more address behind the same socket, which hears a topic too."""
        alias = f"@(alias/{self.stage.peers.index(peer)})"
        peer.request("hub:register", {"actorAddress": alias, "capabilities": []})
        peer.request("hub:subscribe", {"topic": TOPICS[number % len(TOPICS)]}, sender=alias)

    def toggle(self, peer: Peer, other: Peer, number: int) -> None:
        verb = "hub:subscribe" if number % 2 else "hub:unsubscribe"
        peer.request(verb, {"topic": TOPICS[number % len(TOPICS)]})

    def answer(self, peer: Peer, other: Peer, number: int) -> None:
        """A peer that has read the hub's close frame answers it."""
        if any(opcode == Opcode.CLOSE for opcode, _, _ in peer.socket.taken.frames()):
            peer.say_close()

    def sweep(self, peer: Peer, other: Peer, number: int) -> None:
        self.stage.clock.advance(0.25)
        self.stage.writer.sweep()

    # What must hold in the end.

    def check(self) -> None:
        self.check_frames()
        self.check_order()
        self.check_asks()
        self.check_rest()
        self.check_counters()

    def check_frames(self) -> None:
        for peer in self.stage.peers:
            frames = peer.socket.taken.frames()
            whole = frames[-1][2] if frames else 0
            opcodes = [opcode for opcode, _, _ in frames]
            assert Opcode.CLOSE not in opcodes[:-1], "something follows the close frame"
            if not peer.transport.is_gone:
                assert whole == len(peer.socket.taken.data), "a live socket holds half a frame"
            for message in peer.messages():
                if message["type"] == "hub:error":
                    assert message["payload"]["code"] in EXPECTED_ERRORS, message

    def check_order(self) -> None:
        """Sends among themselves, and fan-outs behind all before them.

        A fan-out does not wait for an ask that is on its way to the disk.
        """
        for peer in self.stage.peers:
            newest: dict[tuple[int, str], int] = {}
            newest_send: dict[tuple[int, str], int] = {}
            for message in _news(peer):
                sender, serial, *_ = message["payload"]
                key = (sender, message["to"])
                is_send = "originalMessageId" in message["metadata"]
                before = newest_send if is_send else newest
                assert before.get(key, 0) < serial, f"{serial} of {key} came late or twice"
                newest[key] = max(serial, newest.get(key, 0))
                if is_send:
                    newest_send[key] = serial

    def check_asks(self) -> None:
        arrived = dict(self.arrivals())
        answers: Counter[str] = Counter()
        for peer in self.stage.peers:
            for message, start in _accepted(peer):
                if message["type"] in ANSWERS and message["correlationId"] in self.asks:
                    asker, serial = self.asks[message["correlationId"]]
                    assert asker is peer, "somebody else was answered"
                    answers[message["correlationId"]] += 1
                    if message["type"] == "hub:delivery_ack":
                        said_at = peer.transport.accepted.moment_of(start)
                        assert serial in arrived, f"{serial} was acknowledged and never written"
                        assert arrived[serial] < said_at, f"{serial} was acknowledged too early"
        for message_id, (asker, serial) in self.asks.items():
            assert answers[message_id] <= 1, f"{serial} was answered twice"
            if asker.connection.session.state is SessionState.CONNECTED and asker.is_open:
                assert answers[message_id] == 1, f"{serial} was never answered"

    def arrivals(self) -> Iterator[tuple[int, int]]:
        """Serial and moment of every message of an actor the kernel has taken whole."""
        for peer in self.stage.peers:
            for opcode, payload, end in peer.socket.taken.frames():
                if opcode == Opcode.TEXT and b'"news"' in payload:
                    yield decoded(payload)["payload"][1], peer.socket.taken.moment_of(end - 1)

    def check_rest(self) -> None:
        stage = self.stage
        writer, runner = stage.writer, stage.runner
        for peer in stage.peers:
            connection = peer.connection
            assert not connection.queue
            assert not connection.marks
            assert not connection.held
            assert not connection.waiting
            assert not connection.is_dirty
            assert not connection.is_in_bulk
            assert connection.fan is None
            assert connection.session.outbound is None
            assert peer.transport.is_gone == (connection not in runner.connections)
            assert not peer.transport.is_gone or connection.session.state is SessionState.CLOSED
        assert not writer.dirty
        assert not writer._bulk
        assert not writer._handed_over
        assert not writer._blocked
        assert not writer._closing
        assert writer.tick_ms == 0
        assert writer.depth() == 0
        assert not runner._open_fans
        assert not stage.hub.pending
        assert not stage.hub.asks.loose
        assert not stage.engine.pending
        assert stage.tally.paused == stage.tally.resumed, "a sender was paused and never resumed"

    def check_counters(self) -> None:
        tally = self.stage.tally
        texts = written = 0
        asks = {serial for _, serial in self.asks.values()}
        for peer in self.stage.peers:
            for message, start in _accepted(peer):
                if start < peer.transport.lost_from:
                    texts += 1
                    written += message["type"] == "news" and message["payload"][1] not in asks
        assert tally.sent == texts, "messages_sent is not what was written"
        unknown = tally.unknown_targets - tally.errors.get("unknown_actor", 0)
        accounts = {
            "written": written,
            "dropped": tally.dropped_tells,
            "expired": tally.expired_tells,
            "unknown": unknown,
        }
        assert min(accounts.values()) >= 0, accounts
        assert sum(accounts.values()) == self.tells, f"{self.tells} tells, but {accounts}"


def _ttl(number: int) -> int | None:
    return 200 if number % 5 == 0 else None


def _accepted(peer: Peer) -> Iterator[tuple[Message, int]]:
    """Every message the kernel or the transport was given, and where it begins."""
    start = 0
    for opcode, payload, end in peer.transport.accepted.frames():
        if opcode == Opcode.TEXT:
            yield decoded(payload), start
        start = end


def _news(peer: Peer) -> Iterator[Message]:
    return (message for message in peer.messages() if message["type"] == "news")


def play(steps: list[Step], held_bytes: int | None = None) -> None:
    bounds = OutboundSettings(pause_messages=6, resume_messages=3, messages_max=12, bytes_max=6_000)
    with Stage(outbound=bounds, broadcast_batch=2, fanout_batch=2, held_bytes=held_bytes) as stage:
        run = Run(stage)
        run.play(steps)
        run.check()
        assert stage.writer.ledger.bytes == 0, "memory is counted that nobody holds"


def play_with_little_in_transports(steps: list[Step]) -> None:
    play(steps, held_bytes=HELD_BYTES)


# How often each step comes, and what it does.
STEPS: dict[str, tuple[int, Callable[[Run, Peer, Peer, int], object]]] = {
    "tell": (14, Run.tell),
    "ask": (10, Run.ask),
    "publish": (14, Run.publish),
    "broadcast": (3, Run.broadcast),
    "turn": (22, lambda run, peer, other, number: run.stage.loop.turn()),
    "stall": (7, lambda run, peer, other, number: peer.stall(number % 3 * number)),
    "read": (9, lambda run, peer, other, number: peer.read(EVERYTHING if number % 2 else number)),
    "short": (6, Run.shorten),
    "break_later": (1, Run.break_later),
    "ping": (3, lambda run, peer, other, number: peer.frame(WSMsgType.PING, b"p" * (number % 100))),
    "say_close": (1, lambda run, peer, other, number: peer.say_close()),
    "hang_up": (1, lambda run, peer, other, number: peer.hang_up()),
    "reset": (1, lambda run, peer, other, number: peer.reset()),
    "goodbye": (1, lambda run, peer, other, number: peer.request("hub:disconnect")),
    "arrive": (3, Run.arrive),
    "alias": (2, Run.alias),
    "toggle": (3, Run.toggle),
    "answer": (3, Run.answer),
    "sweep": (5, Run.sweep),
    "wait": (1, lambda run, peer, other, number: run.stage.pass_time(11)),
    "jump": (1, lambda run, peer, other, number: run.stage.clock.jump([-3_600, 3_600][number % 2])),
}


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_schedule_leaves_whole_frames_order_answers_and_balanced_books(
    group: int, caplog: pytest.LogCaptureFixture
) -> None:
    # A slow reader that is closed is logged, and the schedules close thousands.
    caplog.set_level(logging.ERROR, "signalhub.server")
    for seed in range(group, LIVES, GROUPS):
        check(seed, drawn(seed), play_with_little_in_transports if group % 2 else play)
    assert not caplog.records
