"""A named reader of a stream: what is sent to whom, when again, and when it is settled.

`next_seq` is the next position to be read. Everything between the floor and it is in the window, in
exactly one phase, or settled above the floor. `lag` is what people look at; `is_behind` is what
dispatch looks at.

What is sent is decided in `send.py`; here is what becomes of it after that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final
from zlib import crc32

from signalhub.core.streams.streams import Held, Mailbox, Stream, Topic, blank
from signalhub.core.subscriptions.consumers import FAILOVER, KEY_SHARED, Consumer, Consumers
from signalhub.core.subscriptions.window import EXHAUSTED, SENT, Flight, Window, pause_ms
from signalhub.counters import SubscriptionTally
from signalhub.pacing import TokenBucket
from signalhub.ranges import Ranges
from signalhub.wire.entry import (
    CursorBody,
    MessageBody,
    Outcome,
    SettledBody,
    Settlement,
    SubscriptionDefinitionBody,
)
from signalhub.wire.envelope import encode

if TYPE_CHECKING:
    from signalhub.core.effects import Append
    from signalhub.core.subscriptions.progress import Waiter


class Position:
    """Invariant: every position up to `floor` is settled or in `parked`."""

    __slots__ = (
        "above",
        "dead_lettered",
        "doubtful",
        "failures",
        "floor",
        "generation",
        "is_paused",
        "parked",
        "reserved",
    )

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.above = Ranges()
        # Delayed messages by the time they are due.
        self.parked: dict[int, int] = {}
        # Failed attempts of messages that are not settled.
        self.failures: dict[int, int] = {}
        self.reserved = floor
        # What another process may have sent.
        self.doubtful = 0
        # A seek begins a new one; acks for an older one mean nothing.
        self.generation = 1
        self.is_paused = False
        # How many of its messages became dead letters, ever.
        self.dead_lettered = 0

    def is_settled(self, seq: int) -> bool:
        """Parked ones are not."""
        return (seq <= self.floor or seq in self.above) and seq not in self.parked

    def unsettled(self, head: int) -> int:
        """How many positions up to the head are neither settled nor parked."""
        parked_above = sum(seq > self.floor for seq in self.parked)
        return head - self.floor - self.above.count - parked_above

    def settle(self, seq: int) -> None:
        """Done with it. Harmless when repeated."""
        if self.parked:
            self.parked.pop(seq, None)
        if self.failures:
            self.failures.pop(seq, None)
        if seq == self.floor + 1 and not self.above.count and not self.parked:
            # The common case: everything is settled in its order.
            self.floor = seq
        elif seq > self.floor:
            self.above.add(seq)
            self._advance()

    def park(self, seq: int, due_ms: int) -> None:
        """It is delivered later, and nothing waits for it."""
        self.parked[seq] = due_ms
        self._advance()

    def _advance(self) -> None:
        floor = self.floor
        while True:
            reached = self.above.end_from(floor + 1)
            while reached + 1 in self.parked:
                reached += 1
            if reached == floor:
                break
            floor = reached
        if floor != self.floor:
            self.floor = floor
            self.above.drop_through(floor)

    def skip_to(self, last: int, kept: Sequence[int] = ()) -> None:
        """Nothing up to `last` can be read any more; only those kept, in order, are unsettled."""
        low = self.floor + 1
        for seq in (*kept, last + 1):
            if low < seq:
                self.above.add_range(low, seq - 1)
            low = max(low, seq + 1)
        self._advance()

    def seek(self, floor: int, generation: int) -> None:
        """Begin again behind `floor`."""
        self.generation = generation
        self.floor = floor
        self.above = Ranges()
        self.parked.clear()
        self.failures.clear()
        self.doubtful = 0

    def replay(self, one: Settlement) -> None:
        """Apply what the log says about one delivery."""
        if one.outcome == Outcome.FAILED:
            self.failures[one.seq] = one.failures
        elif one.outcome != Outcome.HANDED_OVER and not self.is_settled(one.seq):
            self.dead_lettered += one.outcome == Outcome.DEAD_LETTERED
            self.settle(one.seq)

    def cursor(self, name: str) -> CursorBody:
        """All of it, to be written."""
        return CursorBody(
            name,
            self.generation,
            self.floor,
            self.reserved,
            list(self.above),
            dict(self.parked),
            dict(self.failures),
            self.is_paused,
            self.dead_lettered,
        )

    def restore(self, cursor: CursorBody) -> None:
        """Stand where an earlier process stood."""
        self.generation = cursor.generation
        self.floor = cursor.floor
        self.reserved = cursor.reserved
        self.above = Ranges(cursor.above)
        self.parked = dict(cursor.parked)
        self.failures = dict(cursor.failures)
        self.is_paused = cursor.is_paused
        self.dead_lettered = cursor.dead_lettered


class Backlog:
    """Messages read ahead, and the position that is wanted next from the log."""

    __slots__ = ("_ahead", "_stream", "is_asked", "wanted")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ahead: deque[Held] = deque()
        self.wanted: int | None = None
        # The log has been asked for it.
        self.is_asked = False

    @property
    def ahead(self) -> Iterable[Held]:
        """What was read ahead."""
        return self._ahead

    def get(self, seq: int) -> Held | None:
        """The message, if it is at hand; else it is wanted."""
        held = self._stream.recent.get(seq)
        if held is not None:
            return held
        ahead = self._ahead
        while ahead and ahead[0].seq < seq:
            ahead.popleft()
        if ahead and ahead[0].seq == seq:
            return ahead[0]
        if self.wanted is None:
            self.wanted = seq
        return None

    def answered(self, seq: int) -> bool:
        """The log has answered; `False` if nobody waits for that any more."""
        if self.wanted != seq:
            return False
        self.wanted = None
        self.is_asked = False
        return True

    def extend(self, found: list[Held]) -> None:
        """Keep what was read until it is needed."""
        self._ahead.extend(found)

    def clear(self) -> None:
        self._ahead.clear()
        self.wanted = None
        self.is_asked = False


_EMPTY_READ_MS: Final = 2
_EMPTY_READ_MS_MAX: Final = 500

BLOCK: Final = "block"
DROP: Final = "drop"
DEAD_LETTER: Final = "dead_letter"


class Subscription:
    """One subscription of a topic, or the only one of a mailbox.

    What it wants done it leaves in `sends`, `settlements` and `letters`, for the dispatcher to take
    after each turn. What it wants read from the log is `backlog.wanted`.
    """

    __slots__ = (
        "backlog",
        "bucket",
        "consumers",
        "copy_delivery",
        "cursor_at_ms",
        "definition",
        "due_ms",
        "empty_reads",
        "given_back",
        "heartbeat_default_ms",
        "heartbeat_slot",
        "is_cursor_dirty",
        "is_deleted",
        "is_deleting",
        "is_dirty",
        "last_generation",
        "letters",
        "making",
        "next_seq",
        "not_before_ms",
        "outdated",
        "parked_due",
        "pauses",
        "pausing",
        "position",
        "reserving",
        "seeking",
        "sends",
        "settled_since_cursor",
        "settlements",
        "stats",
        "stored_definition",
        "stream",
        "tag",
        "waiters",
        "window",
        "writing",
        "writing_cursors",
    )

    def __init__(
        self,
        stream: Topic | Mailbox,
        definition: SubscriptionDefinitionBody,
        heartbeat_default_ms: int,
        now_ms: int,
        stats: SubscriptionTally | None = None,
    ) -> None:
        self.stream = stream
        self.definition = definition
        # The definition that is on disk; a snapshot holds no other.
        self.stored_definition = definition
        self.position = Position(definition.start)
        self.next_seq = definition.start + 1
        self.consumers = Consumers(definition.mode)
        self.backlog = Backlog(stream)
        self.window = Window(definition.mode == KEY_SHARED)
        self.bucket = TokenBucket(definition.rate_s, max(1.0, definition.rate_s), now_ms)
        # What all its copies have in common, as JSON, and what their names begin with.
        self.copy_delivery = b',"delivery":{"subscription":%b,"epoch":%b,"seq":' % (
            encode(definition.name),
            encode(stream.epoch),
        )
        self.tag = f"{crc32(definition.name.encode()):08x}"
        self.heartbeat_default_ms = heartbeat_default_ms
        self.not_before_ms = 0
        self.empty_reads = 0  # In a row.
        # The dispatcher's notes: when it looks again, and who waits for the next write.
        self.due_ms = math.inf
        self.heartbeat_slot = -1
        self.waiters: list[Waiter] = []
        # Entries with settlements, and with cursors, that are on their way to the log.
        self.writing = self.writing_cursors = 0
        # What puts it on disk for the first time, until it is there.
        self.making: Append | None = None
        self.is_deleted = False
        self.is_deleting = False  # Its end is on the way to the log.
        # The position up to which it may send once that is on disk; 0: none is on its way.
        self.reserving = 0
        # What was reserved before the cursor that gives it back, which is on its way to the log.
        self.given_back = 0
        self.last_generation = 1  # Of the latest seek, done or on its way.
        self.is_cursor_dirty = False
        self.is_dirty = True
        self.cursor_at_ms = now_ms
        self.settled_since_cursor = 0
        self.sends: list[tuple[Consumer, Flight]] = []
        self.settlements: list[Settlement] = []
        # Settlements of generations that have ended since.
        self.outdated: list[tuple[int, list[Settlement]]] = []
        # What was asked for and is on its way to the log: to pause or not, floor and generation.
        self.pausing: bool | None = None
        self.pauses = 0  # How often that was asked for.
        self.seeking: tuple[int, int] | None = None
        self.letters: list[Flight] = []
        self.stats = stats or SubscriptionTally()
        self.parked_due: list[tuple[int, int]] = []

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
            and self.backlog.wanted is None
            and not self.reserving
            and not self.is_blocked
            and self.has_room
            and self.consumers.have_room
            and not self.bucket.rate_s
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

    def redefine(self, definition: SubscriptionDefinitionBody, now: int) -> None:
        """Other options, from now on; its start stays what it was."""
        self.definition = definition
        if definition.rate_s != self.bucket.rate_s:
            self.bucket = TokenBucket(definition.rate_s, max(1.0, definition.rate_s), now)
        self.policy_changed()
        self.is_dirty = True

    @property
    def has_room(self) -> bool:
        """May one more unsettled message be in the window?"""
        return len(self.window) < (1 if self.definition.strict else self.consumers.capacity)

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
        self.window.keyed.extend(consumer.waiting)
        consumer.waiting.clear()
        for flight in self.window.of(consumer):
            self.window.back(flight)
        if not self.consumers:
            self._give_back()
            self.backlog.clear()
            self.write_cursor_soon()
        elif grace_ms and self.definition.mode == FAILOVER:
            self.not_before_ms = now + grace_ms

    def _give_back(self) -> None:
        """Reserve no more than what may have been sent, unless a reservation is on its way."""
        position = self.position
        if not self.reserving:
            sent = max(self.next_seq - 1, position.doubtful)
            self.given_back = max(self.given_back, position.reserved)
            position.reserved = max(position.floor, min(position.reserved, sent))

    # Settling.

    def settle(self, flight: Flight, outcome: Outcome, consumer: str = "") -> None:
        """Done with this message."""
        self.window.remove(flight)
        self._note(flight, outcome, consumer)
        self._settled(flight.seq)
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
            self.window.wait(flight, int(now + pause_ms(self.definition, flight, delay_ms)))

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
        self._settled(seq)
        self.changed()

    def erase(self, seq: int, offset: int) -> bool:
        """Its content is gone; `False` if it was settled before."""
        if self.position.is_settled(seq):
            return False
        flight = self.window.flights.get(seq)
        if flight is not None and flight.held is not None:
            self.settle(flight, Outcome.ERASED)
            return True
        if flight is not None:
            self.window.remove(flight)
        self.settlements.append(Settlement(seq, offset, Outcome.ERASED, 0))
        self._settled(seq)
        self.changed()
        return True

    def erase_all(self, is_meant: Callable[[MessageBody], bool]) -> int:
        """Take the content out of what it has read; how many were settled because of that."""
        for ahead in self.backlog.ahead:
            if is_meant(ahead.message):
                blank(ahead)
        settled = 0
        for flight in list(self.window.flights.values()):
            held = flight.held
            if held is not None and (held.is_erased or is_meant(held.message)):
                blank(held)
                self.settle(flight, Outcome.ERASED)
                settled += 1
        return settled

    def policy_changed(self) -> None:
        """Look again at what the poison policy had stopped until now."""
        for flight in list(self.window.flights.values()):
            if flight.phase is EXHAUSTED:
                self._apply_poison_policy(flight)

    def _settled(self, seq: int) -> None:
        self.position.settle(seq)
        if isinstance(self.stream, Mailbox) and self.stream.expiries:
            self.stream.settled(seq)

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

    def buried(self, flight: Flight, generation: int) -> bool:
        """Its dead letter is on disk; `False` if it was settled otherwise meanwhile."""
        if self.position.generation != generation or flight.phase is not EXHAUSTED:
            return False
        self.stats.dead_lettered += 1
        self.settle(flight, Outcome.DEAD_LETTERED)
        return True

    def not_buried(self, flight: Flight) -> None:
        """Its dead letter could not be written; the next pass tries again."""
        flight.is_burying = False

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
        if self.settlements:
            # They belong to what was, and are written as such.
            self.outdated.append((self.position.generation, self.settlements))
            self.settlements = []
        self._drop_window()
        self.letters.clear()
        self.position.seek(floor, generation)
        self.next_seq = floor + 1
        self.parked_due.clear()
        self.changed()

    def restore(self, cursor: CursorBody, *, is_saved: bool = False) -> None:
        """Stand where the log says, or a snapshot, in which it is saved."""
        self.position.restore(cursor)
        self.is_dirty = not is_saved

    def replay(self, settled: SettledBody) -> None:
        """Apply what the log says about deliveries of the present generation."""
        self.is_dirty = True
        for one in settled.deliveries:
            self.position.replay(one)

    def lost_through(self, last: int) -> None:
        """The log says that nothing up to here can be read any more."""
        self.position.skip_to(last)
        self.is_dirty = True

    def stored(self, definition: SubscriptionDefinitionBody) -> None:
        """This definition is on disk."""
        self.stored_definition = definition
        self.is_dirty = True

    def take_cursor(self, *, is_whole: bool) -> CursorBody | None:
        """Where it stands, for a snapshot; `None` if that has not changed or is not on disk."""
        if self.making is not None or not (self.is_dirty or is_whole):
            return None
        self.is_dirty = False
        return self.position.cursor(self.name)

    def recovered(self) -> None:
        """The log has been replayed: what may have been sent is sent again, marked."""
        self.next_seq = self.position.floor + 1
        self.last_generation = self.position.generation
        # What was committed later than the log's end cannot have been sent.
        self.position.doubtful = min(self.position.reserved, self.stream.head)
        self.parked_due = sorted((due, seq) for seq, due in self.position.parked.items())

    def revive(self) -> None:
        """After a fault in a pass: start over from what is known, as if restarted."""
        self.position.doubtful = max(self.position.doubtful, self.next_seq - 1)
        self.sends.clear()
        self._drop_window()
        self.next_seq = self.position.floor + 1
        self.parked_due = sorted((due, seq) for seq, due in self.position.parked.items())

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
        lost = before - self.position.unsettled(self.stream.head)
        self.stats.lost += max(0, lost)
        return lost

    def _drop_window(self) -> None:
        self.window.clear()
        for consumer in self.consumers:
            consumer.waiting.clear()
        self.backlog.clear()

    # Reading.

    def found(self, flight: Flight, held: Held) -> None:
        """A delayed message that has become due was read."""
        flight.held = held
        self.window.add(flight)

    def fetched(self, asked: int, found: list[Held], now: int) -> None:
        """What was asked for has been read, as far as it could be."""
        if not self.backlog.answered(asked):
            return
        flight = self.window.flights.get(asked)
        is_found = bool(found) and found[0].seq == asked
        if flight is not None and flight.held is None:
            if is_found:
                self.found(flight, found[0])
            elif asked < self.stream.first:
                self.settle(flight, Outcome.EXPIRED)
        elif is_found:
            self.backlog.extend(found)
        if not is_found and asked >= self.stream.first:
            # The head says there is more than can be read yet: look again in a moment.
            self.stats.empty_reads += 1
            self.empty_reads += 1
            pause_ms = _EMPTY_READ_MS * 2 ** min(self.empty_reads, 10)
            self.not_before_ms = now + min(pause_ms, self.heartbeat_ms or _EMPTY_READ_MS_MAX)
        else:
            self.empty_reads = 0

    def clock_jumped(self, by_ms: int) -> None:
        """Everything that waits for a span of time; delayed messages wait for a time of day."""
        self.window.shift(by_ms)
        self.cursor_at_ms += by_ms
        if self.due_ms < math.inf:
            self.due_ms += by_ms
        if self.not_before_ms:
            self.not_before_ms += by_ms

    def next_due_ms(self, now: int) -> float:
        """When it has to be looked at again if nothing happens until then."""
        due = self.window.next_due_ms()
        if self.parked_due and self.has_room:
            due = min(due, self.parked_due[0][0])
        if self.not_before_ms > now:
            due = min(due, self.not_before_ms)
        if self.bucket.rate_s and (self.is_behind or self.window.ready or self.window.keyed):
            wait_ms = self.bucket.retry_after_ms(now)
            due = min(due, now + wait_ms if wait_ms else math.inf)
        return due
