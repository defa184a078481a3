"""A subscription: a named reader of a stream, its position and its unsettled messages.

`next_seq` is the next position to read. Every position between the floor and `next_seq` is in the
window, in exactly one phase, or settled above the floor. `lag` is for people; dispatch uses
`is_behind`. What to send is decided in `send.py`; this module handles what follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from zlib import crc32

from signalhub.core.limits.quotas import NOBODY
from signalhub.core.streams.streams import Held, Mailbox, Topic, blank
from signalhub.core.subscriptions.backlog import Backlog
from signalhub.core.subscriptions.consumers import FAILOVER, KEY_SHARED, Consumer, Consumers
from signalhub.core.subscriptions.position import Position
from signalhub.core.subscriptions.window import (
    EXHAUSTED,
    SENT,
    Acked,
    Flight,
    Series,
    Window,
    pause_ms,
)
from signalhub.counters import SubscriptionTally
from signalhub.pacing import TokenBucket, grown
from signalhub.wire.entry import (
    CursorBody,
    DeadLetterOrigin,
    MessageBody,
    Outcome,
    SettledBody,
    Settlement,
    SubscriptionDefinitionBody,
)
from signalhub.wire.envelope import encode

if TYPE_CHECKING:
    from signalhub.core.effects import Append
    from signalhub.core.patterns.pattern import Pattern
    from signalhub.core.subscriptions.progress import Waiter


# What the log is to say of one delivery, or of several.
Settled = Settlement | Acked

_EMPTY_READ_MS: Final = 2
_EMPTY_READ_MS_MAX: Final = 500

_offset_of = attrgetter("offset")

BLOCK: Final = "block"
DROP: Final = "drop"
DEAD_LETTER: Final = "dead_letter"

DROP_OLDEST: Final = "drop_oldest"
REFUSE: Final = "refuse"


class Subscription:
    """One subscription of a topic, or the only one of a mailbox.

    The dispatcher takes `sends`, `settlements` and `letters` after each pass. `backlog.wanted` is
    the position to fetch from the log.
    """

    __slots__ = (
        "backlog",
        "bucket",
        "consumers",
        "copy_delivery",
        "cursor_at_ms",
        "definition",
        "deleting",
        "due_ms",
        "empty_reads",
        "given_back",
        "heartbeat_default_ms",
        "heartbeat_slot",
        "holder",
        "idle_since_ms",
        "is_cursor_dirty",
        "is_deleted",
        "is_dirty",
        "is_hungry",
        "last_generation",
        "letters",
        "making",
        "next_seq",
        "not_before_ms",
        "outdated",
        "parked_due",
        "pattern",
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
        # The definition on disk, which is the one that snapshots contain.
        self.stored_definition = definition
        self.position = Position(definition.start)
        self.next_seq = definition.start + 1
        self.consumers = Consumers(definition.mode)
        self.backlog = Backlog(stream)
        self.window = Window(definition.mode == KEY_SHARED)
        self.bucket = TokenBucket(definition.rate_s, max(1.0, definition.rate_s), now_ms)
        # The common part of all copies, as JSON, and the prefix of their ids.
        self.copy_delivery = b',"delivery":{"subscription":%b,"epoch":%b,"seq":' % (
            encode(definition.name),
            encode(stream.epoch),
        )
        self.tag = f"{crc32(definition.name.encode()):08x}"
        self.heartbeat_default_ms = heartbeat_default_ms
        # Whose quota it counts for.
        self.holder = NOBODY
        self.not_before_ms = 0
        self.empty_reads = 0  # In a row.
        # Kept for the dispatcher: the next deadline, and the answers that wait for the next write.
        self.due_ms = math.inf
        self.heartbeat_slot = -1
        self.waiters: list[Waiter] = []
        # The number of pending entries with settlements, and with cursors.
        self.writing = self.writing_cursors = 0
        # The pending entry that creates it.
        self.making: Append | None = None
        self.is_deleted = False
        # The pending entry that deletes it.
        self.deleting: Append | None = None
        # The pending reservation: the position up to which it may send once on disk, or 0.
        self.reserving = 0
        # The reservation before a pending cursor lowers it.
        self.given_back = 0
        self.last_generation = 1  # Of the latest seek, done or pending.
        self.is_cursor_dirty = False
        self.is_dirty = True
        self.cursor_at_ms = now_ms
        # When the last consumer left; 0 while there is one.
        self.idle_since_ms = now_ms
        self.settled_since_cursor = 0
        self.sends: list[tuple[Consumer, Flight] | Series] = []
        self.settlements: list[Settled] = []
        # Settlements of earlier generations.
        self.outdated: list[tuple[int, list[Settled]]] = []
        # Pending changes: paused or not; floor and generation of a seek.
        self.pausing: bool | None = None
        self.pauses = 0  # The number of such requests.
        self.seeking: tuple[int, int] | None = None
        self.letters: list[Flight] = []
        self.stats = stats or SubscriptionTally()
        self.parked_due: list[tuple[int, int]] = []
        # The pattern that it is a part of.
        self.pattern: Pattern | None = None
        # Did the last pass stop because no consumer had room?
        self.is_hungry = False

    # Queries.

    def is_abandoned(self, now: int) -> bool:
        """Has it been without a consumer for longer than it may?"""
        expiry_ms = 0 if self.pattern is not None else self.definition.idle_expiry_ms
        return bool(expiry_ms and self.idle_since_ms and now - self.idle_since_ms >= expiry_ms)

    @property
    def is_deleting(self) -> bool:
        """Is its deletion being written?"""
        return self.deleting is not None

    @property
    def is_full(self) -> bool:
        """Does its backlog refuse further messages?"""
        definition = self.definition
        return definition.backlog_policy == REFUSE and self.lag >= definition.backlog_max

    @property
    def first_within_backlog(self) -> int:
        """The oldest position that its limited backlog keeps; 0 if it has room.

        It is cut by a tenth at a time, so that a consumer that stays behind costs little.
        """
        definition = self.definition
        most = definition.backlog_max
        if definition.backlog_policy != DROP_OLDEST or self.lag <= most + most // 10:
            return 0
        return self.stream.head - most + 1

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def lag(self) -> int:
        """Committed messages that are neither settled nor parked."""
        return self.position.unsettled(self.stream.head)

    @property
    def next_to_send(self) -> int:
        """The next position to deliver: a redelivery, or the next one to read."""
        ready = self.window.next_ready()
        return self.next_seq if ready is None else min(ready.seq, self.next_seq)

    @property
    def is_behind(self) -> bool:
        """Are there positions left to read?"""
        return self.stream.head >= self.next_seq

    @property
    def heartbeat_ms(self) -> int:
        """The period of the watchdog; 0: never."""
        own, stream = self.definition.heartbeat_ms, self.stream
        if own is None and isinstance(stream, Topic):
            own = stream.definition.heartbeat_ms
        return self.heartbeat_default_ms if own is None else own

    @property
    def is_paused(self) -> bool:
        """Is it paused, alone or with its pattern?"""
        return self.position.is_paused or (self.pattern is not None and self.pattern.is_paused)

    @property
    def is_missing_a_pass(self) -> bool:
        """Is there something to send that a pass should have sent?"""
        return (
            self.is_behind
            and not self.is_paused
            and self.backlog.wanted is None
            and not self.reserving
            and not self.is_blocked
            and self.has_room
            and self.consumers.have_room
            and not self.bucket.rate_s
        )

    @property
    def poison_policy(self) -> str:
        """The policy for messages that failed too often."""
        stream, policy = self.stream, self.definition.poison
        if isinstance(stream, Mailbox):
            return policy or DEAD_LETTER
        policy = policy or stream.definition.poison or BLOCK
        return BLOCK if policy == DEAD_LETTER and stream.is_letters else policy

    @property
    def is_blocked(self) -> bool:
        """Does a poisoned message block all later ones? In key-shared mode only its key waits."""
        return (
            self.window.exhausted > 0
            and self.definition.mode != KEY_SHARED
            and self.poison_policy == BLOCK
        )

    def oldest_ms(self) -> int | None:
        """When the oldest unsettled message was accepted; `None` if it is not in memory."""
        seq = self.position.first_unsettled
        held = self.window.held_at(seq) or self.stream.recent.get(seq)
        return None if held is None else held.at_ms

    def redefine(self, definition: SubscriptionDefinitionBody, now: int) -> None:
        """Change the options; the start stays."""
        self.definition = definition
        if definition.rate_s != self.bucket.rate_s:
            self.bucket = TokenBucket(definition.rate_s, max(1.0, definition.rate_s), now)
        self.policy_changed()
        self.touch()

    @property
    def has_room(self) -> bool:
        """Is there room in the window?"""
        return len(self.window) < (1 if self.definition.strict else self.consumers.capacity)

    # Consumers.

    def joined(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self.consumers.add(consumer)
        self.idle_since_ms = 0
        self.touch()

    def left(self, consumer: Consumer, now: int, grace_ms: int = 0) -> None:
        """Remove a consumer; its messages are ready again, and no failure is counted."""
        if not self.consumers.remove(consumer):
            return
        for queue in self.window.key_queues.values():
            if queue.owner is consumer:
                queue.owner = None
        self.window.keyed.extend(consumer.waiting)
        consumer.waiting.clear()
        for flight in self.window.of(consumer):
            self.window.back(flight)
        if not self.consumers:
            self.idle_since_ms = now
            self._give_back()
            self.backlog.clear()
            self.write_cursor_soon()
        elif grace_ms and self.definition.mode == FAILOVER:
            self.not_before_ms = now + grace_ms

    def _give_back(self) -> None:
        """Lower the reservation to what may have been sent, unless one is pending."""
        position = self.position
        if not self.reserving:
            sent = max(self.next_seq - 1, position.doubtful)
            self.given_back = max(self.given_back, position.reserved)
            position.reserved = max(position.floor, min(position.reserved, sent))

    # Settling.

    def settle(self, flight: Flight, outcome: Outcome, consumer: str = "") -> None:
        """Settle a message."""
        self.window.remove(flight)
        self._note(flight, outcome, consumer)
        self._settled(flight.seq)
        self.settled_since_cursor += 1
        self.changed()

    def ack_first(self, first: int, last: int, consumer: str) -> int:
        """Settle these positions as far as they are the oldest of a series; return how many are."""
        done = self.window.settle_first(first, last)
        if done is None:
            return 0
        series, held = done
        offsets = list(map(_offset_of, held))
        last_one = self.settlements[-1] if self.settlements else None
        if type(last_one) is Acked and last_one.precedes(first, series.sent_ms, consumer):
            last_one.offsets += offsets
        else:
            self.settlements.append(Acked(first, offsets, series.sent_ms, consumer))
        self.position.settle_through(first, first + len(held) - 1)
        self.settled_since_cursor += len(held)
        self.changed()
        return len(held)

    def fail(self, flight: Flight, reason: str, now: int, delay_ms: float = 0) -> None:
        """An attempt failed: redeliver later, or apply the poison policy."""
        self._failed(flight, reason, now)
        self._note(flight, Outcome.FAILED)
        if flight.failures >= self.definition.max_deliveries:
            self.stats.exhausted += 1
            self.window.exhaust(flight)
            self._apply_poison_policy(flight)
        else:
            self.window.wait(flight, int(now + pause_ms(self.definition, flight, delay_ms)))

    def terminate(self, flight: Flight, reason: str, now: int) -> None:
        """Never redeliver: dead-letter the message if the policy says so, otherwise drop it."""
        self._failed(flight, reason or "terminated", now)
        self.window.exhaust(flight)
        if self.poison_policy == DEAD_LETTER:
            self._bury(flight)
        else:
            self.settle(flight, Outcome.DROPPED)

    def expire(self, seq: int, offset: int) -> bool:
        """Settle an expired message; `False` if it is in flight and may still be acked."""
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
        """Settle a message that expired before it was read."""
        self.stats.expired += 1
        self.settle_unread(seq, offset, Outcome.EXPIRED)

    def settle_unread(self, seq: int, offset: int, outcome: Outcome) -> None:
        """Settle a message that was never sent."""
        self.settlements.append(Settlement(seq, offset, outcome, 0))
        self._settled(seq)
        self.changed()

    def erase(self, seq: int, offset: int) -> bool:
        """Settle an erased message; `False` if it was already settled."""
        if self.position.is_settled(seq):
            return False
        flight = self.window.flights.get(seq)
        if flight is not None and flight.held is not None:
            self.settle(flight, Outcome.ERASED)
            return True
        if flight is not None:
            self.window.remove(flight)
        self.settle_unread(seq, offset, Outcome.ERASED)
        return True

    def erase_all(self, is_meant: Callable[[MessageBody], bool]) -> int:
        """Erase matching messages that were read, and return how many that settled."""
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
        """Apply the new poison policy to exhausted messages."""
        for flight in list(self.window.flights.values()):
            if flight.phase is EXHAUSTED:
                self._apply_poison_policy(flight)

    def _settled(self, seq: int) -> None:
        self.position.settle(seq)
        if isinstance(self.stream, Mailbox) and self.stream.expiries:
            self.stream.settled(seq)

    def note_handed_over(self, flight: Flight, now: int) -> None:
        """Note that an ask was answered as delivered, for the log."""
        flight.last_sent = now
        self._note(flight, Outcome.HANDED_OVER)

    def changed(self) -> None:
        """The position must be written again."""
        self.is_cursor_dirty = True
        if not self.is_dirty:
            self.touch()

    def touch(self) -> None:
        """It has changed: the next snapshot must contain it."""
        self.is_dirty = True
        self.stream.note_change()

    def write_cursor_soon(self) -> None:
        """Write the cursor in the next pass."""
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
        """Queue a dead letter; the message is settled once that is on disk."""
        if not flight.is_burying:
            flight.is_burying = True
            self.letters.append(flight)

    def buried(self, flight: Flight, generation: int, offset: int) -> bool:
        """The dead letter is on disk; `False` if the message was settled in the meantime."""
        self.position.count_letter(offset)
        self.stats.dead_lettered += 1
        self.changed()
        if self.position.generation != generation or flight.phase is not EXHAUSTED:
            return False
        self.settle(flight, Outcome.DEAD_LETTERED)
        return True

    def was_buried(self, dead: DeadLetterOrigin) -> None:
        """The hub ended between the dead letter and its settlement, which is written now.

        Otherwise the message would be delivered again, and become a second dead letter.
        """
        if self.position.is_settled(dead.seq):
            return
        if dead.offset:
            one = Settlement(dead.seq, dead.offset, Outcome.DEAD_LETTERED, dead.attempts)
            one.reason = dead.reason
            self.settlements.append(one)
        self._settled(dead.seq)
        self.changed()

    def not_buried(self, flight: Flight) -> None:
        """The dead letter could not be written; the next pass retries."""
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
        """Start again after `floor`; acks of earlier deliveries are ignored."""
        if self.settlements:
            # They belong to the old generation and are written with it.
            self.outdated.append((self.position.generation, self.settlements))
            self.settlements = []
        self._drop_window()
        self.letters.clear()
        self.backlog.obstacle = None
        self.position.seek(floor, generation)
        self.next_seq = floor + 1
        self.parked_due.clear()
        self.changed()

    def restore(self, cursor: CursorBody, *, is_saved: bool = False) -> None:
        """Restore the position from the log, or from a snapshot (`is_saved`)."""
        self.position.restore(cursor)
        if is_saved:
            self.is_dirty = False
        else:
            self.touch()

    def replay(self, settled: SettledBody) -> None:
        """Apply settlements of the present generation read from the log."""
        self.touch()
        for one in settled.deliveries:
            self.position.replay(one)

    def lost_through(self, last: int) -> None:
        """Positions up to `last` are gone."""
        self.position.skip_to(last)
        self.touch()

    def stored(self, definition: SubscriptionDefinitionBody) -> None:
        """A definition is on disk."""
        self.stored_definition = definition
        self.touch()

    def take_cursor(self, *, is_whole: bool) -> CursorBody | None:
        """The position for a snapshot; `None` if it has not changed or is not on disk."""
        if self.making is not None or not (self.is_dirty or is_whole):
            return None
        self.is_dirty = False
        return self.position.cursor(self.name)

    def recovered(self) -> None:
        """The log was replayed: messages that may have been sent are redelivered, marked."""
        self.next_seq = self.position.floor + 1
        self.last_generation = self.position.generation
        # Nothing beyond the end of the log can have been sent.
        self.position.doubtful = min(self.position.reserved, self.stream.head)
        self.parked_due = sorted((due, seq) for seq, due in self.position.parked.items())

    def revive(self) -> None:
        """Start over after an exception in a pass, as after a restart."""
        self.position.doubtful = max(self.position.doubtful, self.next_seq - 1)
        self.sends.clear()
        self.letters.clear()
        self._drop_window()
        self.next_seq = self.position.floor + 1
        self.parked_due = sorted((due, seq) for seq, due in self.position.parked.items())

    def lose_before(self, first: int) -> int:
        """Messages before `first` are gone; return the number of unsettled ones among them."""
        before = self.position.unsettled(self.stream.head)
        for flight in [one for seq, one in self.window.flights.items() if seq < first]:
            if flight.phase is not SENT:
                self.window.remove(flight)
        # Consumers may still settle what is in flight.
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
        """A delayed message that is due was read."""
        flight.held = held
        self.window.add(flight)

    def fetched(self, asked: int, found: list[Held], now: int) -> None:
        """A fetch has finished; `found` may be incomplete."""
        if not self.backlog.answered(asked):
            return
        flight = self.window.unread.get(asked)
        is_found = bool(found) and found[0].seq == asked
        if flight is not None:
            if is_found:
                self.found(flight, found[0])
            elif asked < self.stream.first:
                self.settle(flight, Outcome.EXPIRED)
        elif is_found:
            self.backlog.extend(found)
        if not is_found and asked >= self.stream.first:
            # The head is ahead of what can be read: try again shortly.
            self.stats.empty_reads += 1
            self.empty_reads += 1
            longest_ms = min(self.heartbeat_ms or _EMPTY_READ_MS_MAX, _EMPTY_READ_MS * 2**10)
            self.not_before_ms = now + int(grown(_EMPTY_READ_MS, longest_ms, self.empty_reads))
        else:
            self.empty_reads = 0

    def overslept(self, by_ms: int) -> None:
        """Shift everything that waits for a duration; delayed messages wait for a point in time."""
        self.window.shift(by_ms)
        self.cursor_at_ms += by_ms
        if self.due_ms < math.inf:
            self.due_ms += by_ms
        if self.not_before_ms:
            self.not_before_ms += by_ms

    def next_due_ms(self, now: int) -> float:
        """When the next pass is due if nothing happens."""
        due = self.window.next_due_ms()
        if self.parked_due and self.has_room:
            due = min(due, self.parked_due[0][0])
        if self.not_before_ms > now:
            due = min(due, self.not_before_ms)
        if self.bucket.rate_s and (self.is_behind or self.window.ready or self.window.keyed):
            wait_ms = self.bucket.retry_after_ms(now)
            due = min(due, now + wait_ms if wait_ms else math.inf)
        return due
