"""What must hold of one subscription at every moment, whatever happens to it.

The watch reads the log as it grows, sees every copy that is sent, and after each event looks at
where the subscription stands. It keeps its own record and compares the hub's state with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from signalhub.core.effects import Dispatch, DispatchRun, Effect
from signalhub.core.sessions.session import Session
from signalhub.core.streams.streams import Topic
from signalhub.core.subscriptions.consumers import EXCLUSIVE, FAILOVER, KEY_SHARED
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import EXHAUSTED, READY, SENT
from signalhub.wire.entry import CursorBody, Kind, MessageBody, Outcome, SettledBody, decode_body
from signalhub.wire.frames import text_frames
from tests.support.memory.shell import MemoryShell
from tests.support.memory.shell import Message as Wire

TOPIC = "t"
NAME = "s"


class WatchedShell(MemoryShell):
    """A shell that shows its watch every copy before it is sent."""

    watch: Watch | None = None

    def _perform_one(self, effect: Effect) -> None:
        if isinstance(effect, Dispatch) and self.watch is not None:
            self.watch.sending(effect.session, effect.frame)
        elif isinstance(effect, DispatchRun) and self.watch is not None:
            for frame in text_frames(effect.frames):
                self.watch.sending(effect.session, frame)
        super()._perform_one(effect)


class Watch:
    """The record of one subscription, over all processes that had it."""

    def __init__(self, shell: WatchedShell) -> None:
        self.shell = shell
        shell.watch = self
        # From the log.
        self._read = 0
        self.published: dict[int, MessageBody] = {}
        self.letters: set[int] = set()
        self.written: set[int] = set()
        self.cursor: CursorBody | None = None
        # From the wire, of the present generation.
        self.generation = 1
        self.copies: Counter[int] = Counter()
        self.sent_here: set[int] = set()
        self.ids: dict[int, str] = {}
        self.arrived: set[int] = set()
        self.newest = 0
        # What somebody said.
        self.acked: set[int] = set()
        self.termed: set[int] = set()
        # Since the last look.
        self.settled: set[int] = set()
        self.floor = 0
        self.max_deliveries_min = 1_000
        self.deliveries = 0
        self.redeliveries = 0
        self.sent_at: list[int] = []

    @property
    def topic(self) -> Topic:
        return self.shell.hub.streams.topics[TOPIC]

    @property
    def subscription(self) -> Subscription:
        return self.topic.subscriptions[NAME]

    def holder_of(self, seq: int) -> str | None:
        """Who has been sent a message and has not settled it."""
        flight = self.subscription.window.seen().get(seq)
        if flight is None or flight.phase is not SENT or flight.consumer is None:
            return None
        return flight.consumer.name

    # What is sent.

    def sending(self, session: Session, frame: bytes) -> None:
        """One copy is about to leave."""
        copy = msgspec.json.decode(frame)
        delivery = copy["metadata"]["delivery"]
        if delivery.get("subscription") != NAME or copy["metadata"].get("topic") != TOPIC:
            return
        self.read_log()
        self._follow_generation()
        seq, attempt = delivery["seq"], delivery["attempt"]
        self.deliveries += 1
        assert seq in self.published, "a message was sent that is not on disk"
        assert copy["payload"] == msgspec.json.decode(self.published[seq].data), "another message"
        assert delivery["redelivered"] is (attempt > 1)
        assert attempt > 1 or not self.copies[seq], f"a repeat of {seq} is not marked"
        assert self.cursor is not None, "sent before it was reserved"
        assert seq <= self.cursor.reserved, f"{seq} was sent before it was reserved"
        assert seq not in self.settled, f"{seq} was settled and sent again"
        self._check_receiver(session, seq)
        self._check_rate()
        if seq not in self.sent_here and self.published[seq].deliver_at is None:
            self._check_order(seq)
        self.redeliveries += seq in self.copies
        self.copies[seq] += 1
        self.sent_here.add(seq)
        # Any attempt of this generation names it.
        self.ids.setdefault(seq, delivery["id"])

    def _check_receiver(self, session: Session, seq: int) -> None:
        subscription = self.subscription
        mode, flights = subscription.definition.mode, subscription.window.seen()
        flight = flights[seq]
        consumer = flight.consumer
        assert consumer is not None
        assert consumer.session is session, "sent to somebody else than it says"
        assert not subscription.is_paused, "sent while it is paused"
        assert consumer in list(subscription.consumers), "sent to somebody who has left"
        whole = consumer.group or consumer
        assert whole.flights <= whole.window, "more in flight than the consumer takes"
        assert session.outbound is None, "sent to a socket that does not read"
        sent = [other for other in flights.values() if other.phase is SENT]
        if mode in (EXCLUSIVE, FAILOVER):
            active = next(iter(subscription.consumers))
            assert consumer is active, "sent to somebody who stands by"
            assert all(other.consumer is active for other in sent), "two receive at a time"
        if subscription.definition.strict:
            assert len(sent) == 1, "strict, and more than one in flight"
        if mode == KEY_SHARED:
            self._check_key(seq)

    def _check_order(self, seq: int) -> None:
        """A message that was not sent before comes behind all that were, and that may be again."""
        if self.subscription.definition.mode == KEY_SHARED:
            return
        assert seq > self.newest, f"{seq} was sent for the first time after {self.newest}"
        self.newest = seq
        waiting = [
            other.seq
            for other in self.subscription.window.seen().values()
            if other.phase is READY and other.held is not None and other.seq < seq
        ]
        assert not waiting, f"{seq} was sent before {waiting}, which were ready"

    def _check_rate(self) -> None:
        rate_s, now = self.subscription.definition.rate_s, self.shell.now
        if rate_s:
            self.sent_at.append(now)
            for count, then in enumerate(reversed(self.sent_at), start=1):
                allowed = rate_s + rate_s * (now - then) / 1000
                assert count <= allowed + 1, "more than the rate allows"

    def _check_key(self, seq: int) -> None:
        key = self.published[seq].key
        flights = self.subscription.window.seen()
        for other, message in self.published.items():
            if other == seq or message.key != key or other in self.settled:
                continue
            flight = flights.get(other)
            if flight is not None:
                assert flight.phase is not SENT, f"two messages of {key} are in flight"
            is_plain = message.deliver_at is None and self.published[seq].deliver_at is None
            if other < seq and is_plain and not self.subscription.position.is_settled(other):
                raise AssertionError(f"{seq} overtook {other}, which has the same key")

    # What is on disk.

    def read_log(self) -> None:
        """Look at the entries that were committed since."""
        engine = self.shell.engine
        for entry in engine.entries[max(0, self._read - engine.first) :]:
            if entry.kind == Kind.PUBLISHED:
                self._published(entry.stream, entry.seq, decode_body(MessageBody, entry.body))
            elif entry.kind == Kind.SETTLED and entry.stream == TOPIC:
                self._settled(decode_body(SettledBody, entry.body))
            elif entry.kind == Kind.CURSOR and entry.stream == TOPIC:
                self._cursor(decode_body(CursorBody, entry.body))
        self._read = engine.head

    def _published(self, stream: str, seq: int, message: MessageBody) -> None:
        if stream == TOPIC:
            assert seq == len(self.published) + 1, "a position was left out or used twice"
            self.published[seq] = message
        elif message.dead is not None and message.dead.topic == TOPIC:
            assert message.dead.reason, "nobody knows why it died"
            assert message.key == self.published[message.dead.seq].key
            self.letters.add(message.dead.seq)

    def _settled(self, body: SettledBody) -> None:
        if body.generation != self.generation:
            return
        for one in body.deliveries:
            if one.outcome == Outcome.DEAD_LETTERED:
                assert one.seq in self.letters, f"{one.seq} was settled before its letter was safe"
            if one.outcome not in (Outcome.FAILED, Outcome.HANDED_OVER):
                self.written.add(one.seq)

    def _cursor(self, cursor: CursorBody) -> None:
        if self.cursor is not None and cursor.generation == self.cursor.generation:
            assert cursor.floor >= self.cursor.floor, "a cursor went back"
        if cursor.generation == self.generation:
            for seq in range(1, cursor.floor + 1):
                if seq not in cursor.parked:
                    self.written.add(seq)
            for first, last in cursor.above:
                self.written.update(range(first, last + 1))
        self.cursor = cursor

    # What somebody says.

    def must_accept(self, seq: int) -> bool:
        """Does an ack of this message count? It does if a copy of it is out and unsettled."""
        flight = self.subscription.window.seen().get(seq)
        is_burying = flight is not None and flight.is_burying
        is_open = not self.subscription.position.is_settled(seq)
        # What an earlier process may have sent can be acknowledged once it is read again.
        is_out = seq in self.sent_here or (flight is not None and flight.deliveries > 0)
        return is_out and is_open and not is_burying

    # Where the subscription stands.

    def look(self) -> None:
        """After every event."""
        self.read_log()
        if TOPIC not in self.shell.hub.streams.topics or NAME not in self.topic.subscriptions:
            return
        self._follow_generation()
        self._check_positions()
        self._check_window()
        self._check_settled()

    def _follow_generation(self) -> None:
        position = self.subscription.position
        if position.generation != self.generation:
            self._begin(position.generation)
            self.floor = position.floor
            self.settled = self._settled_now()

    def _begin(self, generation: int) -> None:
        self.generation = generation
        self.copies.clear()
        self.sent_here.clear()
        self.ids.clear()
        self.arrived.clear()
        self.newest = 0
        self.acked.clear()
        self.termed.clear()
        self.written.clear()

    def _settled_now(self) -> set[int]:
        position = self.subscription.position
        return {seq for seq in range(1, self.topic.head + 1) if position.is_settled(seq)}

    def arrive(self, message: Wire) -> None:
        """A peer has read something."""
        if message["metadata"].get("delivery", {}).get("subscription") == NAME:
            self.arrived.add(message["metadata"]["delivery"]["seq"])

    def _check_positions(self) -> None:
        subscription, topic = self.subscription, self.topic
        position, flights = subscription.position, subscription.window.seen()
        assert position.floor >= self.floor, "the floor went back"
        self.floor = position.floor
        assert position.floor < subscription.next_seq <= topic.head + 1, "read beyond the head"
        for seq in range(position.floor + 1, subscription.next_seq):
            is_open = seq in flights or seq in position.parked
            assert (seq in position.above) is not is_open, f"{seq} is in no state, or in two"
        assert all(seq >= subscription.next_seq or seq > 0 for seq in flights)
        unsettled = [
            seq
            for seq in range(1, topic.head + 1)
            if not position.is_settled(seq) and seq not in position.parked
        ]
        assert subscription.lag == len(unsettled), "the lag is not what is unsettled"

    def _check_window(self) -> None:
        window, consumers = self.subscription.window, self.subscription.consumers
        by_consumer: dict[str, int] = defaultdict(int)
        for seq, flight in window.seen().items():
            assert flight.seq == seq
            if flight.phase is SENT:
                assert flight.consumer in list(consumers), "in flight to somebody who has left"
                by_consumer[flight.consumer.id] += 1
            queue = flight.key_queue
            if queue is not None and queue.flights[0] is flight and flight.phase is READY:
                known = queue in window.keyed or any(queue in one.waiting for one in consumers)
                assert known, f"{seq} is ready and nobody knows"
        for consumer in consumers:
            assert consumer.flights == by_consumer[consumer.id], "flights are miscounted"
            if consumer.group is not None:
                shares = consumer.group.shares.values()
                assert consumer.group.flights == sum(one.flights for one in shares), "miscounted"
        assert window.exhausted == sum(
            flight.phase is EXHAUSTED for flight in window.seen().values()
        )

    def _check_settled(self) -> None:
        settled = self._settled_now()
        for seq in settled - self.settled:
            assert self._is_explained(seq), f"nothing explains why {seq} is settled"
        again = self.settled - settled
        assert not again, f"{again} were settled and are not any more"
        self.settled = settled

    def _is_explained(self, seq: int) -> bool:
        message, now = self.published[seq], self.shell.now
        subscription = self.subscription
        has_failed = self.copies[seq] >= self.max_deliveries_min
        return (
            seq in self.acked
            or seq in self.letters
            or seq < self.topic.first
            or (message.expires_at is not None and message.expires_at < now)
            or (subscription.definition.auto_ack and seq in self.arrived)
            or (seq in self.termed and subscription.poison_policy != "dead_letter")
            or (has_failed and subscription.poison_policy == "drop")
        )

    # Starting again.

    def restarted(self, shell: WatchedShell) -> None:
        """Another process has taken over; what was written is known, the rest may come again."""
        self.shell = shell
        shell.watch = self
        # A new process has a full bucket.
        self.sent_at.clear()
        generation = self.generation
        self.read_log()
        self.sent_here.clear()
        self.ids.clear()
        self.arrived.clear()
        self.newest = 0
        if TOPIC not in shell.hub.streams.topics or NAME not in self.topic.subscriptions:
            return
        position = self.subscription.position
        settled = self._settled_now()
        if position.generation != generation:
            # A seek that never reached the disk did not happen, but its copies were sent.
            copies = Counter(self.copies)
            self._begin(position.generation)
            self.copies = copies
            self.settled = settled
        forgotten = {seq for seq in self.written if seq <= self.topic.head} - settled
        assert not forgotten, f"{forgotten} were settled on disk and are not any more"
        told = self.settled | self.written | self.letters
        unsaid = {seq for seq in settled - told if seq >= self.topic.first}
        assert not unsaid, f"{unsaid} were recovered as settled, and nobody said so"
        self.settled = settled
        self.floor = position.floor
