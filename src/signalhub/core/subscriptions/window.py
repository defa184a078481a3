"""The unsettled messages of a subscription that have been read.

A message that has been read is a flight until it is settled. It is in one phase:

* ready: it may be sent; new ones begin here;
* sent: a consumer has it and has not settled it; its deadline is when the attempt has failed;
* waiting: an attempt failed; its deadline is when it is ready again;
* exhausted: it is not sent any more; the poison policy drops it, buries it, or lets it stand;
* settled: done with, and in no window any more. There is no way back.

`TRANSITIONS` says which event leads from where to where; anything else is an error of the program.
A message may be settled in every phase, because a consumer may answer late, its content may be
erased, and it may expire or be lost while it waits.

Unless it is sent or exhausted, a flight is in exactly one place: among the ready ones, oldest
first; in the queue of its key; or waiting until a time.

Deadlines of attempts come in the order of sending, so they wait in a queue; pauses and extended
deadlines wait in a heap. Entries there are not removed when a message is settled, only passed over.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.streams.streams import Held
from signalhub.core.subscriptions.consumers import Consumer, KeyLane
from signalhub.wire.entry import SubscriptionDefinitionBody

if TYPE_CHECKING:
    from signalhub.core.messages.ask import AskReceipt
    from signalhub.core.subscriptions.subscription import Subscription

_JITTER: Final = 0.2


class Phase(Enum):
    """Where a message is."""

    READY = "ready"
    SENT = "sent"
    WAITING = "waiting"
    EXHAUSTED = "exhausted"
    SETTLED = "settled"

    # Every message passes through the table below, and a hash of the name would be slow.
    __hash__ = object.__hash__


READY, SENT, WAITING = Phase.READY, Phase.SENT, Phase.WAITING
EXHAUSTED, SETTLED = Phase.EXHAUSTED, Phase.SETTLED

TRANSITIONS: Final[dict[str, dict[Phase, Phase]]] = {
    # A pass sends it.
    "sent": {READY: SENT},
    # Its consumer has left, or its pause is over.
    "back": {SENT: READY, WAITING: READY},
    # Its attempt has failed, but not too often.
    "wait": {SENT: WAITING},
    # Its attempt has failed too often, or a consumer has terminated it.
    "exhaust": {READY: EXHAUSTED, SENT: EXHAUSTED, WAITING: EXHAUSTED, EXHAUSTED: EXHAUSTED},
    # Whatever the outcome.
    "remove": {READY: SETTLED, SENT: SETTLED, WAITING: SETTLED, EXHAUSTED: SETTLED},
}
_SENT, _BACK, _WAIT = TRANSITIONS["sent"], TRANSITIONS["back"], TRANSITIONS["wait"]
_EXHAUST, _REMOVE = TRANSITIONS["exhaust"], TRANSITIONS["remove"]


class Flight:
    """One unsettled message of a subscription. Every flight of a window is in one phase."""

    __slots__ = (
        "consumer",
        "consumers",
        "deadline_ms",
        "deliveries",
        "failures",
        "first_failure",
        "first_sent",
        "held",
        "is_burying",
        "lane",
        "last_failure",
        "last_sent",
        "phase",
        "reason",
        "receipt",
        "seq",
    )

    def __init__(self, seq: int, held: Held | None, failures: int, is_doubtful: bool) -> None:
        self.seq = seq
        # Not read yet when a parked message has just become due.
        self.held = held
        self.phase = READY
        self.consumer: Consumer | None = None
        self.lane: KeyLane | None = None
        # What may have been sent before a restart counts as sent.
        self.deliveries = max(failures, 1) if is_doubtful else failures
        self.failures = failures
        self.deadline_ms = 0
        self.first_sent = 0
        self.last_sent = 0
        self.first_failure = 0
        self.last_failure = 0
        self.reason = ""
        # Its dead letter is on the way to the log.
        self.is_burying = False
        self.consumers: list[str] = []
        self.receipt: AskReceipt | None = None


def pause_ms(definition: SubscriptionDefinitionBody, flight: Flight, delay_ms: float = 0) -> float:
    """How long to wait before the next attempt: twice as long each time, up to the cap."""
    policy = definition.backoff_ms * 2.0 ** min(flight.failures - 1, 40)
    # Spread by up to a fifth either way, so that what failed together is not tried together.
    share = (flight.seq * 2_654_435_761 + flight.failures * 40_503 & 0xFFFF) / 0xFFFF
    policy *= 1 - _JITTER + 2 * _JITTER * share
    return min(max(policy, delay_ms), definition.backoff_cap_ms)


class Attempt(msgspec.Struct, eq=False):
    """A delivery whose hand-over somebody waits for: it settles the message, or answers an ask."""

    subscription: Subscription
    flight: Flight
    deliveries: int
    generation: int


class Window:
    """Invariant: `exhausted` counts the flights in that phase, a consumer's `flights` the sent."""

    __slots__ = (
        "due",
        "exhausted",
        "flights",
        "is_keyed",
        "keyed",
        "lanes",
        "ready",
        "timeouts",
        "unread",
    )

    def __init__(self, is_keyed: bool) -> None:
        self.is_keyed = is_keyed
        self.flights: dict[int, Flight] = {}
        self.exhausted = 0
        self.ready: list[int] = []
        # Delayed messages that have become due, until they are read again.
        self.unread: dict[int, Flight] = {}
        self.lanes: dict[str, KeyLane] = {}
        # Keys whose first message may be sent.
        self.keyed: deque[KeyLane] = deque()
        self.due: list[tuple[int, int]] = []
        self.timeouts: deque[tuple[int, Flight, int]] = deque()

    def __len__(self) -> int:
        return len(self.flights)

    def count(self, phase: object) -> int:
        """How many are in a phase."""
        return sum(flight.phase is phase for flight in self.flights.values())

    def add(self, flight: Flight) -> None:
        """A message was read; one whose content is not at hand waits for it."""
        self.flights[flight.seq] = flight
        held = flight.held
        if held is None:
            self.unread[flight.seq] = flight
            return
        self.unread.pop(flight.seq, None)
        if not self.is_keyed:
            heapq.heappush(self.ready, flight.seq)
            return
        key = held.message.key or held.message.sender
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = KeyLane(key, deque())
        flight.lane = lane
        lane.queue.append(flight)
        if len(lane.queue) == 1:
            self.keyed.append(lane)

    def next_ready(self) -> Flight | None:
        """The oldest that may be sent again."""
        ready = self.ready
        while ready:
            flight = self.flights.get(ready[0])
            if flight is not None and flight.phase is READY and flight.lane is None:
                return flight
            heapq.heappop(ready)
        return None

    def sent(self, flight: Flight, consumer: Consumer, now: int, deadline_ms: int) -> None:
        """It is on its way to a consumer."""
        assert flight.held is not None
        flight.phase = _SENT[flight.phase]
        flight.consumer = consumer
        flight.deliveries += 1
        flight.last_sent = now
        flight.first_sent = flight.first_sent or now
        flight.deadline_ms = deadline_ms
        consumer.flights += 1
        consumer.bytes += flight.held.size
        if self.timeouts and self.timeouts[-1][0] > deadline_ms:
            # Deadlines have become shorter, so this one does not come in order.
            heapq.heappush(self.due, (deadline_ms, flight.seq))
        else:
            self.timeouts.append((deadline_ms, flight, flight.deliveries))

    def back(self, flight: Flight) -> None:
        """It may be sent again; within its key it is still the first."""
        self.release(flight)
        flight.phase = _BACK[flight.phase]
        if flight.lane is not None:
            self.keyed.append(flight.lane)
        else:
            heapq.heappush(self.ready, flight.seq)

    def wait(self, flight: Flight, until_ms: int) -> None:
        """It is ready again at a time."""
        self.release(flight)
        flight.phase = _WAIT[flight.phase]
        self.set_deadline(flight, until_ms)

    def set_deadline(self, flight: Flight, at_ms: int) -> None:
        """When its attempt has failed, or its pause is over."""
        flight.deadline_ms = at_ms
        heapq.heappush(self.due, (at_ms, flight.seq))

    def exhaust(self, flight: Flight) -> None:
        """It is not sent again; the poison policy decides."""
        self.release(flight)
        self.exhausted += flight.phase is not EXHAUSTED
        flight.phase = _EXHAUST[flight.phase]

    def remove(self, flight: Flight) -> None:
        """It is settled; the next one of its key may go."""
        self.release(flight)
        self.exhausted -= flight.phase is EXHAUSTED
        flight.phase = _REMOVE[flight.phase]
        self.flights.pop(flight.seq, None)
        self.unread.pop(flight.seq, None)
        lane = flight.lane
        if lane is None:
            return
        was_first = lane.queue[0] is flight
        lane.queue.remove(flight)
        if not lane.queue:
            self.lanes.pop(lane.key, None)
        elif was_first:
            self.keyed.append(lane)

    def release(self, flight: Flight) -> None:
        """Its consumer has it no longer."""
        consumer = flight.consumer
        if flight.phase is SENT and consumer is not None:
            assert flight.held is not None
            consumer.flights -= 1
            consumer.bytes -= flight.held.size

    def of(self, consumer: Consumer) -> list[Flight]:
        """What a consumer has not settled."""
        return [
            flight
            for flight in self.flights.values()
            if flight.phase is SENT and flight.consumer is consumer
        ]

    def overdue(self, now: int) -> Iterator[Flight]:
        """Sent ones whose attempt has failed, and waiting ones whose pause is over."""
        timeouts = self.timeouts
        while timeouts and timeouts[0][0] <= now:
            _, flight, deliveries = timeouts.popleft()
            if flight.phase is not SENT or flight.deliveries != deliveries:
                continue
            if flight.deadline_ms <= now:
                yield flight
        while self.due and self.due[0][0] <= now:
            _, seq = heapq.heappop(self.due)
            found = self.flights.get(seq)
            if found is not None and found.deadline_ms <= now and found.phase in (SENT, WAITING):
                yield found

    def next_due_ms(self) -> float:
        """When `overdue` has something again; too early is harmless."""
        timeouts = self.timeouts
        while timeouts:
            when, flight, deliveries = timeouts[0]
            if flight.phase is SENT and flight.deliveries == deliveries:
                return min(when, self.due[0][0]) if self.due else when
            timeouts.popleft()
        return self.due[0][0] if self.due else math.inf

    def shift(self, by_ms: int) -> None:
        """All deadlines and pauses come so much later."""
        for flight in self.flights.values():
            flight.deadline_ms += by_ms
        self.due = [(due + by_ms, seq) for due, seq in self.due]
        self.timeouts = deque((due + by_ms, one, number) for due, one, number in self.timeouts)

    def clear(self) -> None:
        """Forget everything; consumers have nothing in flight any more."""
        for flight in self.flights.values():
            self.release(flight)
            flight.phase = SETTLED
        self.flights.clear()
        self.exhausted = 0
        self.ready.clear()
        self.unread.clear()
        self.lanes.clear()
        self.keyed.clear()
        self.due.clear()
        self.timeouts.clear()
