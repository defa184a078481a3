"""A named reader of a stream: what is sent to whom, when again, and when it is settled.

`next_seq` is the next position to be read. Everything between the floor and it is in the window, in
exactly one phase, or settled above the floor. `lag` is what people look at; `is_behind` is what
dispatch looks at.

A pass does, in this order: deadlines, messages that may be sent again, new messages; until the
stream is read to its head, the window is full or no consumer has room. It never waits for anything:
what is not in memory is asked for, and the answer wakes the subscription again.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from signalhub.core.consumers import FAILOVER, KEY_SHARED, Consumer, Consumers
from signalhub.core.flight import EXHAUSTED, READY, SENT, Flight
from signalhub.core.limits import TokenBucket
from signalhub.core.position import Position
from signalhub.core.streams import Held, Mailbox, Topic
from signalhub.core.tally import SubscriptionTally
from signalhub.core.window import Window
from signalhub.entry import Outcome, Settlement, SubscriptionDefinition

if TYPE_CHECKING:
    from signalhub.core.effects import Appending

RESERVE: Final = 4_096
PASS_MESSAGES_MAX: Final = 512
_EMPTY_READ_MS: Final = 5
_JITTER: Final = 0.2

BLOCK: Final = "block"
DROP: Final = "drop"
DEAD_LETTER: Final = "dead_letter"


class Subscription:
    """One subscription of a topic, or the only one of a mailbox.

    What it wants done it leaves in `sends`, `settlements` and `letters`, for the dispatcher to take
    after each turn. `fetching` is the position it wants read from the log, if any.
    """

    __slots__ = (
        "_ahead",
        "_parked_due",
        "bucket",
        "consumers",
        "cursor_at_ms",
        "definition",
        "due_ms",
        "fetching",
        "heartbeat_default_ms",
        "heartbeat_slot",
        "is_cursor_dirty",
        "is_deleted",
        "is_dirty",
        "is_fetch_sent",
        "last_generation",
        "letters",
        "next_seq",
        "not_before_ms",
        "position",
        "reserving",
        "sends",
        "settled_since_cursor",
        "settlements",
        "stats",
        "stream",
        "waiters",
        "window",
    )

    def __init__(
        self,
        stream: Topic | Mailbox,
        definition: SubscriptionDefinition,
        heartbeat_default_ms: int,
        now_ms: int,
    ) -> None:
        self.stream = stream
        self.definition = definition
        self.position = Position(definition.start)
        self.next_seq = definition.start + 1
        self.consumers = Consumers(definition.mode)
        self.window = Window(definition.mode == KEY_SHARED)
        self.bucket = TokenBucket(definition.rate_s, max(1.0, definition.rate_s), now_ms)
        self.heartbeat_default_ms = heartbeat_default_ms
        self.not_before_ms = 0
        # The dispatcher's notes: when it looks again, and who waits for the next write.
        self.due_ms = math.inf
        self.heartbeat_slot = -1
        self.waiters: list[Appending] = []
        self.is_deleted = False
        self.fetching: int | None = None
        self.is_fetch_sent = False
        # The position up to which it may send once that is on disk; 0: none is on its way.
        self.reserving = 0
        # The generation of the latest seek, done or on its way.
        self.last_generation = 1
        self.is_cursor_dirty = False
        self.is_dirty = True
        self.cursor_at_ms = now_ms
        self.settled_since_cursor = 0
        self.sends: list[tuple[Consumer, Flight]] = []
        self.settlements: list[Settlement] = []
        self.letters: list[Flight] = []
        self.stats = SubscriptionTally()
        self._ahead: deque[Held] = deque()
        self._parked_due: list[tuple[int, int]] = []

    # What people and the dispatcher ask.

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def lag(self) -> int:
        """Committed messages that are neither settled nor parked."""
        return self.position.unsettled(self.stream.head)

    @property
    def next_to_send(self) -> int:
        """The next position to be delivered: one that came back, or one not read yet."""
        ready = self.window.next_ready()
        return self.next_seq if ready is None else min(ready.seq, self.next_seq)

    @property
    def is_behind(self) -> bool:
        """Is there anything left to read?"""
        return self.stream.head >= self.next_seq

    @property
    def heartbeat_ms(self) -> int:
        """How often the watchdog looks; 0: never."""
        own, stream = self.definition.heartbeat_ms, self.stream
        if own is None and isinstance(stream, Topic):
            own = stream.definition.heartbeat_ms
        return self.heartbeat_default_ms if own is None else own

    @property
    def is_missing_a_pass(self) -> bool:
        """Could something be sent that no pass has sent?"""
        return (
            self.is_behind
            and not self.position.is_paused
            and self.fetching is None
            and not self.reserving
            and not self.is_blocked
            and self._has_room
            and self.consumers.have_room
            and not self.bucket.rate_s
        )

    @property
    def wants_reserve(self) -> bool:
        """Is the position up to which it may send about to be reached?"""
        return (
            not self.reserving
            and len(self.consumers) > 0
            and self.next_seq + RESERVE // 2 > self.position.reserved
        )

    @property
    def poison_policy(self) -> str:
        """What happens to a message that failed too often."""
        stream, policy = self.stream, self.definition.poison
        if isinstance(stream, Mailbox):
            return policy or DEAD_LETTER
        policy = policy or stream.definition.poison or BLOCK
        return BLOCK if policy == DEAD_LETTER and stream.is_letters else policy

    @property
    def is_blocked(self) -> bool:
        """Does a poisoned message stop everything behind it? With keys only its own key waits."""
        return (
            self.window.exhausted > 0
            and self.definition.mode != KEY_SHARED
            and self.poison_policy == BLOCK
        )

    def oldest_ms(self) -> int | None:
        """When the oldest unsettled message was accepted; `None` if it is not in memory."""
        position = self.position
        seq = position.above.end_from(position.floor + 1) + 1
        flight = self.window.flights.get(seq)
        held = self.stream.recent.get(seq) if flight is None else flight.held
        return None if held is None else held.at_ms

    def redefine(self, definition: SubscriptionDefinition, now: int) -> None:
        """Other options, from now on; its start stays what it was."""
        self.definition = definition
        if definition.rate_s != self.bucket.rate_s:
            self.bucket = TokenBucket(definition.rate_s, max(1.0, definition.rate_s), now)
        self.policy_changed()
        self.is_dirty = True

    # Consumers.

    def joined(self, consumer: Consumer) -> None:
        """One more may receive."""
        self.consumers.add(consumer)

    def left(self, consumer: Consumer, now: int, grace_ms: int = 0) -> None:
        """Its messages are ready again, oldest first; nothing is settled and no failure counted."""
        if not self.consumers.remove(consumer):
            return
        for lane in self.window.lanes.values():
            if lane.owner is consumer:
                lane.owner = None
        for flight in self.window.of(consumer):
            self.window.back(flight)
        if not self.consumers:
            self._give_back()
            self.write_cursor_soon()
        elif grace_ms and self.definition.mode == FAILOVER:
            self.not_before_ms = now + grace_ms

    def _give_back(self) -> None:
        """Reserve no more than what may have been sent, unless a reservation is on its way."""
        position = self.position
        if not self.reserving:
            sent = max(self.next_seq - 1, position.doubtful)
            position.reserved = max(position.floor, min(position.reserved, sent))

    # Settling.

    def settle(self, flight: Flight, outcome: Outcome, consumer: str = "") -> None:
        """Done with this message."""
        self.window.remove(flight)
        self._note(flight, outcome, consumer)
        self.position.settle(flight.seq)
        self.position.dead_lettered += outcome is Outcome.DEAD_LETTERED
        self.settled_since_cursor += 1
        self.changed()

    def fail(self, flight: Flight, reason: str, now: int, delay_ms: float = 0) -> None:
        """An attempt failed: try again later, or let the poison policy decide."""
        self._failed(flight, reason, now)
        self._note(flight, Outcome.FAILED)
        if flight.failures >= self.definition.max_deliveries:
            self.stats.exhausted += 1
            self.window.exhaust(flight)
            self._apply_poison_policy(flight)
        else:
            self.window.wait(flight, int(now + self._pause_ms(flight, delay_ms)))

    def terminate(self, flight: Flight, reason: str, now: int) -> None:
        """Never again: into the dead letters if there are any, else dropped."""
        self._failed(flight, reason or "terminated", now)
        self.window.exhaust(flight)
        if self.poison_policy == DEAD_LETTER:
            self._bury(flight)
        else:
            self.settle(flight, Outcome.DROPPED)

    def expire(self, seq: int, offset: int) -> bool:
        """Its time has passed; `False` if it is at a consumer, who may still settle it."""
        flight = self.window.flights.get(seq)
        if flight is None:
            self.expire_unread(seq, offset)
            return True
        if flight.phase is SENT:
            return False
        self.stats.expired += 1
        self.settle(flight, Outcome.EXPIRED)
        return True

    def expire_unread(self, seq: int, offset: int) -> None:
        """Its time passed before it was read."""
        self.stats.expired += 1
        self.settlements.append(Settlement(seq, offset, Outcome.EXPIRED, 0))
        self.position.settle(seq)
        self.changed()

    def policy_changed(self) -> None:
        """Look again at what the poison policy had stopped until now."""
        for flight in list(self.window.flights.values()):
            if flight.phase is EXHAUSTED:
                self._apply_poison_policy(flight)

    def note_handed_over(self, flight: Flight, now: int) -> None:
        """The log shall know that an ask was answered as delivered, and when."""
        flight.last_sent = now
        self._note(flight, Outcome.HANDED_OVER)

    def changed(self) -> None:
        """Its position has to be written again."""
        self.is_cursor_dirty = self.is_dirty = True

    def write_cursor_soon(self) -> None:
        """With the next turn, whether it is time or not."""
        self.cursor_at_ms = 0
        self.changed()

    def _failed(self, flight: Flight, reason: str, now: int) -> None:
        flight.failures += 1
        flight.reason = reason
        flight.first_failure = flight.first_failure or now
        flight.last_failure = now
        if flight.consumer is not None and flight.consumer.name not in flight.consumers:
            flight.consumers.append(flight.consumer.name)
        self.position.failures[flight.seq] = flight.failures
        self.changed()

    def _apply_poison_policy(self, flight: Flight) -> None:
        policy = self.poison_policy
        if policy == DROP:
            self.settle(flight, Outcome.DROPPED)
        elif policy == DEAD_LETTER:
            self._bury(flight)

    def _bury(self, flight: Flight) -> None:
        """It is settled only when the dead letter is on disk."""
        if not flight.is_burying:
            flight.is_burying = True
            self.letters.append(flight)

    def _pause_ms(self, flight: Flight, delay_ms: float) -> float:
        definition = self.definition
        policy = definition.backoff_ms * 2.0 ** min(flight.failures - 1, 40)
        # Spread by up to a fifth either way, so that what failed together is not tried together.
        share = (flight.seq * 2_654_435_761 + flight.failures * 40_503 & 0xFFFF) / 0xFFFF
        policy *= 1 - _JITTER + 2 * _JITTER * share
        return min(max(policy, delay_ms), definition.backoff_cap_ms)

    def _note(self, flight: Flight, outcome: Outcome, consumer: str = "") -> None:
        held = flight.held
        self.settlements.append(
            Settlement(
                flight.seq,
                held.offset if held is not None else 0,
                outcome,
                flight.deliveries,
                flight.failures,
                flight.first_sent,
                flight.last_sent,
                consumer or (flight.consumer.name if flight.consumer is not None else ""),
                flight.reason,
            )
        )

    # Positions.

    def seek(self, floor: int, generation: int) -> None:
        """Begin again behind `floor`; acks for what was sent before mean nothing now."""
        self._drop_window()
        self.letters.clear()
        self.position.seek(floor, generation)
        self.next_seq = floor + 1
        self._parked_due.clear()
        self.changed()

    def recovered(self) -> None:
        """The log has been replayed: what may have been sent is sent again, marked."""
        self.next_seq = self.position.floor + 1
        self.last_generation = self.position.generation
        # What was committed later than the log's end cannot have been sent.
        self.position.doubtful = min(self.position.reserved, self.stream.head)
        self._parked_due = sorted((due, seq) for seq, due in self.position.parked.items())

    def revive(self) -> None:
        """After a fault in a pass: start over from what is known, as if restarted."""
        self.position.doubtful = max(self.position.doubtful, self.next_seq - 1)
        self._drop_window()
        self.next_seq = self.position.floor + 1
        self._parked_due = sorted((due, seq) for seq, due in self.position.parked.items())

    def lose_before(self, first: int) -> int:
        """Nothing before `first` can be read any more; how many unsettled ones that costs."""
        before = self.position.unsettled(self.stream.head)
        for flight in [one for seq, one in self.window.flights.items() if seq < first]:
            if flight.phase is not SENT:
                self.window.remove(flight)
        # What consumers have got they may still settle.
        kept = sorted(seq for seq in self.window.flights if seq < first)
        for seq in [seq for seq in self.position.parked if seq < first and seq not in kept]:
            del self.position.parked[seq]
            before += 1
        self.position.skip_to(first - 1, kept)
        self.next_seq = max(self.next_seq, first, self.position.floor + 1)
        self.changed()
        return before - self.position.unsettled(self.stream.head)

    def _drop_window(self) -> None:
        self.window.clear()
        self._ahead.clear()
        self.fetching = None
        self.is_fetch_sent = False

    # The pass.

    def run(self, now: int) -> bool:
        """One pass; `True` if it stopped only because it had done enough for one turn."""
        self._look_at_the_clock(now)
        if self.position.is_paused or not self.consumers or now < self.not_before_ms:
            return False
        budget = self._send_again(now, PASS_MESSAGES_MAX)
        budget = self._send_keyed(now, budget)
        budget = self._send_new(now, budget)
        return budget <= 0

    def _look_at_the_clock(self, now: int) -> None:
        if self.window.exhausted:
            self.policy_changed()
        for flight in self.window.overdue(now):
            if flight.phase is SENT:
                self.stats.timeouts += 1
                self.fail(flight, "ack timeout", now)
            else:
                self.window.back(flight)
        while self._parked_due and self._parked_due[0][0] <= now and self._has_room:
            _, seq = heapq.heappop(self._parked_due)
            if seq in self.position.parked and seq not in self.window.flights:
                self.window.add(self._flight(seq, None))

    @property
    def _has_room(self) -> bool:
        return len(self.window) < (1 if self.definition.strict else self.consumers.capacity)

    def _flight(self, seq: int, held: Held | None) -> Flight:
        position = self.position
        return Flight(seq, held, position.failures.get(seq, 0), seq <= position.doubtful)

    def _send_again(self, now: int, budget: int) -> int:
        while budget > 0:
            flight = self.window.next_ready()
            if flight is None or not self._is_at_hand(flight):
                break
            if flight.lane is not None or self._is_over(flight, now):
                continue
            consumer = self.consumers.choose(avoid=flight.consumer)
            if consumer is None or not self.bucket.take(now):
                break
            self._send(flight, consumer, now)
            budget -= 1
        return budget

    def _send_keyed(self, now: int, budget: int) -> int:
        """The first message of each key that has none in flight."""
        keyed = self.window.keyed
        for _ in range(len(keyed)):
            if budget <= 0:
                break
            lane = keyed.popleft()
            if not lane.queue or lane.queue[0].phase is not READY:
                continue
            flight = lane.queue[0]
            if self._is_over(flight, now):
                continue
            owner = self.consumers.owner_of(lane)
            if owner is None or not owner.has_room or not self.bucket.take(now):
                keyed.append(lane)
                continue
            self._send(flight, owner, now)
            budget -= 1
        return budget

    def _send_new(self, now: int, budget: int) -> int:
        definition, position, window = self.definition, self.position, self.window
        is_keyed, head = definition.mode == KEY_SHARED, self.stream.head
        capacity = 1 if definition.strict else self.consumers.capacity
        while budget > 0 and self.next_seq <= head and len(window) < capacity:
            seq = self.next_seq
            if seq <= position.floor or seq in position.above or seq in position.parked:
                self.next_seq += 1
                continue
            if seq > position.reserved or self.is_blocked:
                break
            held = self._read(seq)
            if held is None:
                break
            if self._is_skipped(held, now):
                self.next_seq += 1
                continue
            if is_keyed:
                self.next_seq += 1
                window.add(self._flight(seq, held))
                budget = self._send_keyed(now, budget)
                continue
            consumer = self.consumers.choose()
            if consumer is None or not self.bucket.take(now):
                break
            self.next_seq += 1
            flight = window.flights[seq] = self._flight(seq, held)
            self._send(flight, consumer, now)
            budget -= 1
        return budget

    def _send(self, flight: Flight, consumer: Consumer, now: int) -> None:
        self.window.sent(flight, consumer, now, now + self.definition.ack_timeout_ms)
        self.stats.redelivered += flight.deliveries > 1
        self.sends.append((consumer, flight))

    def _is_skipped(self, held: Held, now: int) -> bool:
        """Must the message not be sent, or not yet?"""
        message, seq = held.message, held.seq
        if message.deliver_at is not None and message.deliver_at > now:
            self.position.park(seq, message.deliver_at)
            heapq.heappush(self._parked_due, (message.deliver_at, seq))
            self.changed()
            return True
        outcome = None
        if message.expires_at is not None and message.expires_at < now:
            outcome = Outcome.EXPIRED
        elif message.only_for not in (None, self.name) or seq in self.stream.removed:
            outcome = Outcome.FILTERED
        if outcome is None:
            return False
        if outcome is Outcome.EXPIRED:
            self.expire_unread(seq, held.offset)
            return True
        self.settlements.append(Settlement(seq, held.offset, outcome, 0))
        self.position.settle(seq)
        self.changed()
        return True

    def _is_over(self, flight: Flight, now: int) -> bool:
        """Has its time passed while it waited to be sent again?"""
        assert flight.held is not None
        expires_at = flight.held.message.expires_at
        if expires_at is None or expires_at >= now:
            return False
        self.stats.expired += 1
        self.settle(flight, Outcome.EXPIRED)
        return True

    # Reading.

    def _read(self, seq: int) -> Held | None:
        """The message, if it is at hand; else it is asked for."""
        held = self.stream.recent.get(seq)
        if held is not None:
            return held
        ahead = self._ahead
        while ahead and ahead[0].seq < seq:
            ahead.popleft()
        if ahead and ahead[0].seq == seq:
            return ahead[0]
        if self.fetching is None:
            self.fetching = seq
        return None

    def _is_at_hand(self, flight: Flight) -> bool:
        if flight.held is None:
            held = self.stream.recent.get(flight.seq)
            if held is not None:
                self._found(flight, held)
            elif self.fetching is None:
                self.fetching = flight.seq
        return flight.held is not None

    def _found(self, flight: Flight, held: Held) -> None:
        flight.held = held
        if self.definition.mode == KEY_SHARED:
            self.window.add(flight)

    def fetched(self, asked: int, found: list[Held], now: int) -> None:
        """What was asked for has been read, as far as it could be."""
        if self.fetching != asked:
            return
        self.fetching = None
        self.is_fetch_sent = False
        flight = self.window.flights.get(asked)
        if flight is not None and flight.held is None:
            if found and found[0].seq == asked:
                self._found(flight, found[0])
            elif asked < self.stream.first:
                self.settle(flight, Outcome.EXPIRED)
        elif found and found[0].seq == asked:
            self._ahead.extend(found)
        elif asked >= self.stream.first:
            # The head says there is more than can be read yet: look again in a moment.
            self.stats.empty_reads += 1
            self.not_before_ms = now + _EMPTY_READ_MS

    def next_due_ms(self, now: int) -> float:
        """When it has to be looked at again if nothing happens until then."""
        due = self.window.next_due_ms()
        if self._parked_due and self._has_room:
            due = min(due, self._parked_due[0][0])
        if self.not_before_ms > now:
            due = min(due, self.not_before_ms)
        if self.bucket.rate_s and (self.is_behind or self.window.ready or self.window.keyed):
            wait_ms = self.bucket.retry_after_ms(now)
            due = min(due, now + wait_ms if wait_ms else math.inf)
        return due
