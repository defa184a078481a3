"""Clients that send each other requests through a hub whose links, process and disk fail.

The hub is the real core, the clients are the real protocol; what lies between them is in the hands
of the seed: frames wait, links are cut with everything on them, the hub is killed and starts again.
"""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import msgspec

from signalhub.client.message import Message
from signalhub.client.protocol.effects import (
    Arrived,
    Concluded,
    Drop,
    Effect,
    Failed,
    Instant,
    Replied,
    SendFrame,
    Stop,
)
from signalhub.client.protocol.frame import FrameWriter
from signalhub.client.protocol.protocol import LinkPhase, Protocol
from signalhub.client.protocol.restore import Membership
from signalhub.client.requests import Ask, Broadcast, Register, Tell
from signalhub.client.stream_requests import Ack, Source
from signalhub.clock import Ids
from signalhub.settings.model import Settings
from signalhub.testing import FakeClock
from signalhub.wire.errors import ClientError
from tests.support.memory.shell import MemoryShell, Peer

ASKER, HELPER, KEEPER = "@(demo/alice)", "@(demo/bob)", "@(demo/carol)"
TIMEOUTS_S = (1.0, 5.0, 20.0, 60.0)
STEPS = 80


class Client:
    """One client and its link, if it has one."""

    def __init__(self, clock: FakeClock, address: str, number: int, *, keeps: bool) -> None:
        self.address = address
        self.clock = clock
        membership = Membership(acknowledges=keeps)
        registration = Register(address, [], {}, None, True if keeps else None)
        membership.registered(registration, is_done=False)
        frames = FrameWriter(address, Ids(f"{number:020}"))
        self.protocol = Protocol(frames, membership, self.now)
        self.peer: Peer | None = None
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.ends: dict[str, list[Effect]] = {}
        self.values: dict[str, list[object]] = {}
        self.held: list[Message] = []
        self.handed: Counter[tuple[str, str]] = Counter()

    @property
    def now(self) -> Instant:
        return Instant.of(self.clock)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame(frame=frame):
                    self.up.append(frame)
                case Arrived(message=message) if message.expects_reply:
                    self.held.append(message)
                    self.handed[message.sender, str(message.request_id)] += 1
                case Replied(id=message_id, message=message, is_last=is_last):
                    self.values.setdefault(message_id, []).append(message.payload)
                    if is_last:
                        self.ends.setdefault(message_id, []).append(effect)
                case Failed(id=message_id) | Concluded(id=message_id):
                    if message_id in self.ends:
                        self.ends[message_id].append(effect)
                case Drop():
                    self.cut()
                    return
                case Stop(error=error):
                    raise AssertionError(f"{self.address} gave up: {error}")

    def cut(self) -> None:
        """The link is lost with everything on it."""
        if self.peer is None:
            return
        peer, self.peer = self.peer, None
        self.up.clear()
        self.down.clear()
        if peer.closed is None:
            peer.drop()
        self.perform(self.protocol.lost("cut", self.now))
        if self.protocol.membership.acknowledges:
            # As the queues of the client do.
            self.held.clear()

    def reconnect(self, shell: MemoryShell) -> None:
        if self.peer is None:
            self.peer = shell.open()
            self.perform(self.protocol.opened(None, self.now))

    def write(self, most: int) -> None:
        """Some frames reach the hub."""
        for _ in range(min(most, len(self.up))):
            if self.peer is not None and self.up:
                self.peer.write(self.up.popleft())

    def read(self, most: int) -> None:
        """Some frames of the hub reach the client."""
        if self.peer is not None:
            self.down.extend(msgspec.json.encode(one) for one in self.peer.take())
        for _ in range(min(most, len(self.down))):
            if self.down:
                self.perform(self.protocol.received(self.down.popleft(), self.now))

    def request(self, to: str, timeout_s: float, number: int) -> None:
        payload = Ask(to, "work", number) if to else Broadcast("work", number, True)
        frames, now = self.protocol.frames, self.now
        own = None if to else f"request-{frames.new_id()}"
        metadata = {"expectsReply": True}
        request = frames.request(
            payload,
            now.wall_ms,
            message_id=own,
            metadata=metadata,
            ttl_ms=timeout_s * 1000,
            timeout_s=timeout_s,
        )
        self.ends[request.id] = []
        most = 1 if to else 100
        try:
            effects = self.protocol.submit_request(request, to, most, timeout_s, now)
        except ClientError as error:
            self.ends[request.id].append(Failed(request.id, error))
        else:
            self.perform(effects)

    def answer(self, message: Message) -> None:
        """Reply as the program would, and settle what comes from a mailbox."""
        replies, frames, now = self.protocol.replies, self.protocol.frames, self.now
        if replies.is_answered(message):
            return
        metadata = {"inReplyTo": message.request_id}
        reply = frames.request(
            Tell(message.sender, "work.reply", message.payload), now.wall_ms, metadata=metadata
        )
        replies.answered(message, reply)
        self.perform(self.protocol.submit(reply, now))
        if message.delivery is not None and message.delivery.stream is not None:
            ack = Ack.of(Source(message.delivery.stream), [message.delivery])
            self.perform(self.protocol.submit(frames.request(ack, now.wall_ms, wait=False), now))


class ExchangeWorld:
    """What happens, in an order the seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.shell = MemoryShell(Settings(message_rate=0.0))
        self.clock = self.shell.clock
        self.is_slow = self.random.random() < 0.3
        self.shell.engine.is_prompt = not self.is_slow
        self.asker = Client(self.clock, ASKER, 1, keeps=False)
        self.helper = Client(self.clock, HELPER, 2, keeps=False)
        self.keeper = Client(self.clock, KEEPER, 3, keeps=True)
        self.clients = [self.asker, self.helper, self.keeper]
        self.numbers = 0
        self.restarts = 0

    def run(self) -> None:
        for client in self.clients:
            client.reconnect(self.shell)
        self.flow()
        returns = self.random.choice([2, 10])
        acts = [
            *((self.ask, 10), (self.answer, 12), (self.flow, 14), (self.trickle, 20)),
            *((self.cut, 4), (self.come_back, returns), (self.restart, 1), (self.wait, 12)),
            (self.commit, 8),
        ]
        actions, weights = zip(*acts, strict=True)
        for act in self.random.choices(actions, weights, k=STEPS):
            act()
        self.wind_down()
        self.check()

    def somebody(self) -> Client:
        return self.random.choice(self.clients)

    def ask(self) -> None:
        self.numbers += 1
        to = self.random.choice([HELPER, HELPER, KEEPER, "@(demo/nobody)", ""])
        self.asker.request(to, self.random.choice(TIMEOUTS_S), self.numbers)

    def answer(self) -> None:
        client = self.somebody()
        if client.held:
            client.answer(client.held.pop(self.random.randrange(len(client.held))))

    def trickle(self) -> None:
        client = self.somebody()
        client.write(self.random.randint(0, 3))
        client.read(self.random.randint(0, 3))

    def flow(self) -> None:
        """Everything that is on its way arrives."""
        for _ in range(6):
            for client in self.clients:
                client.write(1_000)
            self.shell.settle()
            for client in self.clients:
                client.read(1_000)

    def cut(self) -> None:
        self.somebody().cut()

    def come_back(self) -> None:
        self.somebody().reconnect(self.shell)

    def commit(self) -> None:
        if self.is_slow:
            self.shell.engine.commit()

    def restart(self) -> None:
        self.restarts += 1
        self.shell = self.shell.restarted(self.random.randint(0, 2))
        self.shell.engine.is_prompt = not self.is_slow
        for client in self.clients:
            client.cut()

    def wait(self) -> None:
        self.pass_time(self.random.choice([10, 300, 1_000, 3_000]))

    def pass_time(self, ms: int) -> None:
        self.shell.advance(ms)
        self.shell.tick()
        for client in self.clients:
            client.perform(client.protocol.tick(client.now))

    def wind_down(self) -> None:
        """The world is whole again, and time goes by until every request must have ended."""
        for _ in range(80):
            for client in self.clients:
                client.reconnect(self.shell)
            self.commit()
            self.flow()
            for client in self.clients:
                while client.held and self.random.random() < 0.8:
                    client.answer(client.held.pop())
            self.pass_time(1_000)

    def check(self) -> None:
        asker = self.asker
        for message_id, ends in asker.ends.items():
            assert len(ends) == 1, f"{message_id} ended {len(ends)} times: {ends}"
            values = asker.values.get(message_id, [])
            assert len(set(map(str, values))) <= 1, f"replies of others: {values}"
            if isinstance(ends[0], Failed):
                assert not values, "a request has both failed and been answered"
            assert message_id not in asker.protocol.exchanges
        for message, count in self.helper.handed.items():
            assert count == 1, f"{message} was handed out {count} times"
        assert all(client.protocol.phase is LinkPhase.READY for client in self.clients)
