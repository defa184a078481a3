"""The window of a subscription: its messages that have been read and are not settled.

Such a message is a flight. It is in one phase:

* ready: it may be sent; new flights start here;
* sent: a consumer has it and has not settled it; at its deadline the attempt fails;
* waiting: an attempt failed; at its deadline it is ready again;
* exhausted: it is not sent again; the poison policy drops, buries or keeps it;
* settled: final, and no longer in the window.

`TRANSITIONS` lists the events and the phases they lead to; anything else is a bug. A message can be
settled in every phase, because a consumer may answer late, and a waiting message may expire, be
erased or be lost.

Unless it is sent or exhausted, a flight is in exactly one place: among the ready ones, oldest
first; in the queue of its key; or waiting for a time.

Deadlines of attempts come in the order of sending, so they are kept in a queue; pauses and extended
deadlines are kept in a heap. Entries that no longer count are skipped there, and dropped when they
are the majority, because they keep settled messages in memory.

Most messages are sent once, with their neighbours, to a consumer that acknowledges them in order.
Such neighbours are one series as long as nothing else happens to them; it becomes flights as soon
as somebody asks for those.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from enum import Enum
from heapq import nsmallest
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.streams.streams import Held
from signalhub.core.subscriptions.consumers import Consumer, KeyQueue
from signalhub.pacing import grown, spread
from signalhub.wire.entry import Outcome, Settlement, SubscriptionDefinitionBody

if TYPE_CHECKING:
    from signalhub.core.messages.ask import AskReceipt
    from signalhub.core.subscriptions.subscription import Subscription

_JITTER: Final = 0.2
_SPARE_DEADLINES: Final = 64


class Phase(Enum):
    """The phase of a flight."""

    READY = "ready"
    SENT = "sent"
    WAITING = "waiting"
    EXHAUSTED = "exhausted"
    SETTLED = "settled"

    # Hashing by name would be slow, and every message uses the table below.
    __hash__ = object.__hash__


READY, SENT, WAITING = Phase.READY, Phase.SENT, Phase.WAITING
EXHAUSTED, SETTLED = Phase.EXHAUSTED, Phase.SETTLED

TRANSITIONS: Final[dict[str, dict[Phase, Phase]]] = {
    # A pass sends it.
    "sent": {READY: SENT},
    # Its consumer left, or its pause is over.
    "back": {SENT: READY, WAITING: READY},
    # An attempt failed, but not too often.
    "wait": {SENT: WAITING},
    # It failed too often, or a consumer terminated it.
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
        "key_queue",
        "last_failure",
        "last_sent",
        "phase",
        "reason",
        "receipt",
        "seq",
    )

    def __init__(self, seq: int, held: Held | None, failures: int, is_doubtful: bool) -> None:
        self.seq = seq
        # `None` for a parked message that is due and not read yet.
        self.held = held
        self.phase = READY
        self.consumer: Consumer | None = None
        self.key_queue: KeyQueue | None = None
        # A message that may have been sent before a restart counts as sent.
        self.deliveries = max(failures, 1) if is_doubtful else failures
        self.failures = failures
        self.deadline_ms = 0
        self.first_sent = 0
        self.last_sent = 0
        self.first_failure = 0
        self.last_failure = 0
        self.reason = ""
        # Its dead letter is being written.
        self.is_burying = False
        self.consumers: list[str] = []
        self.receipt: AskReceipt | None = None


def pause_ms(definition: SubscriptionDefinitionBody, flight: Flight, delay_ms: float = 0) -> float:
    """The pause before the next attempt: doubles each time, up to the cap."""
    policy = grown(definition.backoff_ms, math.inf, flight.failures - 1)
    # The core has no random numbers; a hash of the attempt serves as one.
    chance = (flight.seq * 2_654_435_761 + flight.failures * 40_503 & 0xFFFF) / 0xFFFF
    return min(max(spread(policy, _JITTER, chance), delay_ms), definition.backoff_cap_ms)


class Series(msgspec.Struct, eq=False):
    """Messages with consecutive positions, sent together in their first attempt; never empty."""

    first: int
    """The position of the first one that is not settled."""
    held: list[Held]
    consumer: Consumer
    sent_ms: int
    deadline_ms: int

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq < self.first + len(self.held)

    def take(self, count: int) -> list[Held]:
        """Take the first messages off."""
        held = self.held
        if count >= len(held):
            self.held = []
            taken = held
        else:
            taken = held[:count]
            del held[:count]
        self.first += len(taken)
        return taken

    def flights(self) -> list[Flight]:
        """Its messages, each as a flight."""
        flights = []
        for seq, held in enumerate(self.held, self.first):
            flight = Flight(seq, held, 0, False)
            flight.phase = SENT
            flight.consumer = self.consumer
            flight.deliveries = 1
            flight.first_sent = flight.last_sent = self.sent_ms
            flight.deadline_ms = self.deadline_ms
            flights.append(flight)
        return flights


class Acked(msgspec.Struct, eq=False):
    """Messages of a series that were acknowledged together, for the log."""

    first: int
    offsets: list[int]
    sent_ms: int
    consumer: str

    def precedes(self, first: int, sent_ms: int, consumer: str) -> bool:
        """May the message at a position be added?"""
        return (
            first == self.first + len(self.offsets)
            and sent_ms == self.sent_ms
            and consumer == self.consumer
        )

    def settlements(self) -> list[Settlement]:
        """What the log says about each."""
        sent_ms, consumer = self.sent_ms, self.consumer
        return [
            Settlement(seq, offset, Outcome.ACKED, 1, 0, sent_ms, sent_ms, consumer)
            for seq, offset in enumerate(self.offsets, self.first)
        ]


def bytes_of(held: list[Held]) -> int:
    """The bytes of messages, as a consumer's credit counts them."""
    return sum(map(_size_of, held))


_size_of = attrgetter("size")
_seq_of = attrgetter("seq")


class Attempt(msgspec.Struct, eq=False):
    """A delivery whose write to the socket settles the message, or answers an ask."""

    subscription: Subscription
    flight: Flight
    deliveries: int
    generation: int


class Window:
    """Invariant: `exhausted` counts exhausted flights, a consumer's `flights` its sent ones.

    Series are in the order of positions and of deadlines, and were sent after all flights that were
    sent; no position is both in one and a flight.
    """

    __slots__ = (
        "_flights",
        "_in_series",
        "due",
        "exhausted",
        "is_keyed",
        "key_queues",
        "keyed",
        "ready",
        "series",
        "timeouts",
        "unread",
    )

    def __init__(self, is_keyed: bool) -> None:
        self.is_keyed = is_keyed
        self._flights: dict[int, Flight] = {}
        self.series: deque[Series] = deque()
        self._in_series = 0
        self.exhausted = 0
        self.ready: list[int] = []
        # Delayed messages that are due and not read yet.
        self.unread: dict[int, Flight] = {}
        self.key_queues: dict[str, KeyQueue] = {}
        # Keys whose first message may be sent.
        self.keyed: deque[KeyQueue] = deque()
        self.due: list[tuple[int, int]] = []
        self.timeouts: deque[tuple[int, Flight, int]] = deque()

    def __len__(self) -> int:
        return len(self._flights) + self._in_series

    @property
    def flights(self) -> dict[int, Flight]:
        """All messages, each as a flight."""
        if self.series:
            self._separate()
        return self._flights

    def seen(self) -> dict[int, Flight]:
        """The same for looking only: what is in a series stays there."""
        return self._flights | {
            flight.seq: flight for series in self.series for flight in series.flights()
        }

    def first(self, count: int) -> list[Flight]:
        """The first of them by position, for looking only; what is in a series stays there."""
        found = [self._flights[seq] for seq in nsmallest(count, self._flights)]
        left = count
        for series in self.series:
            if left <= 0:
                break
            some = msgspec.structs.replace(series, held=series.held[:left]).flights()
            left -= len(some)
            found += some
        found.sort(key=_seq_of)
        return found[:count]

    def __contains__(self, seq: int) -> bool:
        return seq in self._flights or any(seq in one for one in self.series)

    def held_at(self, seq: int) -> Held | None:
        """The message at a position, if it is in the window and was read."""
        flight = self._flights.get(seq)
        if flight is not None:
            return flight.held
        return next((one.held[seq - one.first] for one in self.series if seq in one), None)

    def consumer_at(self, seq: int) -> Consumer | None:
        """Who was sent the message at a position last."""
        flight = self._flights.get(seq)
        if flight is not None:
            return flight.consumer
        return next((one.consumer for one in reversed(self.series) if seq in one), None)

    def count(self, phase: object) -> int:
        """The number of messages in a phase."""
        found = sum(flight.phase is phase for flight in self._flights.values())
        return found + self._in_series if phase is SENT else found

    # Series.

    def begin(self, series: Series) -> None:
        """Messages are sent together for the first time."""
        if self.series and self.series[-1].deadline_ms > series.deadline_ms:
            # The timeout was shortened.
            self._separate()
        self.series.append(series)
        count = len(series.held)
        self._in_series += count
        series.consumer.took(count, bytes_of(series.held))

    def settle_first(self, first: int, last: int) -> tuple[Series, list[Held]] | None:
        """Settle these positions as far as they are the oldest of a series; `None` if they are not.

        Returns the series with the messages that it lost.
        """
        if not self.series or self.series[0].first != first:
            return None
        series = self.series[0]
        taken = series.take(last - first + 1)
        if not series.held:
            self.series.popleft()
        self._in_series -= len(taken)
        series.consumer.gave(len(taken), bytes_of(taken))
        return series, taken

    def _separate(self) -> None:
        """Make flights of all series."""
        every, self.series, self._in_series = self.series, deque(), 0
        for series in every:
            for flight in series.flights():
                self._flights[flight.seq] = flight
                self._expect(flight)

    # Flights.

    def add(self, flight: Flight) -> None:
        """Add a flight; one without content waits until it is read."""
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
        queue = self.key_queues.get(key)
        if queue is None:
            queue = self.key_queues[key] = KeyQueue(key, deque())
        flight.key_queue = queue
        queue.flights.append(flight)
        if len(queue.flights) == 1:
            self.keyed.append(queue)

    def next_ready(self) -> Flight | None:
        """The oldest flight to redeliver."""
        ready = self.ready
        while ready:
            flight = self._flights.get(ready[0])
            if flight is not None and flight.phase is READY and flight.key_queue is None:
                return flight
            heapq.heappop(ready)
        return None

    def add_first(self, flight: Flight) -> None:
        """Add a flight that is sent at once."""
        self.flights[flight.seq] = flight

    def sent(self, flight: Flight, consumer: Consumer, now: int, deadline_ms: int) -> None:
        """A flight is sent to a consumer."""
        assert flight.held is not None
        if self.series:
            self._separate()
        flight.phase = _SENT[flight.phase]
        flight.consumer = consumer
        flight.deliveries += 1
        flight.last_sent = now
        flight.first_sent = flight.first_sent or now
        flight.deadline_ms = deadline_ms
        consumer.took(1, flight.held.size)
        self._expect(flight)

    def _expect(self, flight: Flight) -> None:
        """Note when the attempt fails."""
        deadline_ms = flight.deadline_ms
        if self.timeouts and self.timeouts[-1][0] > deadline_ms:
            # The timeout was shortened, so this deadline is out of order.
            heapq.heappush(self.due, (deadline_ms, flight.seq))
        else:
            self.timeouts.append((deadline_ms, flight, flight.deliveries))

    def back(self, flight: Flight) -> None:
        """A flight is ready again; within its key it stays first."""
        self.release(flight)
        flight.phase = _BACK[flight.phase]
        if flight.key_queue is not None:
            self.keyed.append(flight.key_queue)
        else:
            heapq.heappush(self.ready, flight.seq)

    def wait(self, flight: Flight, until_ms: int) -> None:
        """A flight waits until a time."""
        self.release(flight)
        flight.phase = _WAIT[flight.phase]
        self.set_deadline(flight, until_ms)

    def set_deadline(self, flight: Flight, at_ms: int) -> None:
        """Set when the attempt fails, or the pause ends."""
        flight.deadline_ms = at_ms
        heapq.heappush(self.due, (at_ms, flight.seq))

    def exhaust(self, flight: Flight) -> None:
        """A flight is not sent again; the poison policy decides."""
        self.release(flight)
        self.exhausted += flight.phase is not EXHAUSTED
        flight.phase = _EXHAUST[flight.phase]

    def remove(self, flight: Flight) -> None:
        """A flight is settled; the next one of its key may be sent."""
        self.release(flight)
        self.exhausted -= flight.phase is EXHAUSTED
        flight.phase = _REMOVE[flight.phase]
        self._flights.pop(flight.seq, None)
        self.unread.pop(flight.seq, None)
        queue = flight.key_queue
        if queue is None:
            return
        was_first = queue.flights[0] is flight
        queue.flights.remove(flight)
        if not queue.flights:
            self.key_queues.pop(queue.key, None)
        elif was_first:
            self.keyed.append(queue)

    def release(self, flight: Flight) -> None:
        """Take a sent flight off its consumer's account."""
        consumer = flight.consumer
        if flight.phase is SENT and consumer is not None:
            assert flight.held is not None
            consumer.gave(1, flight.held.size)

    def of(self, consumer: Consumer) -> list[Flight]:
        """The flights sent to a consumer."""
        return [
            flight
            for flight in self.flights.values()
            if flight.phase is SENT and flight.consumer is consumer
        ]

    def is_due(self, now: int) -> bool:
        """May an attempt have timed out, or a pause be over?"""
        timeouts, due, series = self.timeouts, self.due, self.series
        return bool(
            (timeouts and timeouts[0][0] <= now)
            or (due and due[0][0] <= now)
            or (series and series[0].deadline_ms <= now)
        )

    def overdue(self, now: int) -> Iterator[Flight]:
        """Flights whose attempt has timed out, or whose pause is over."""
        if self.series and self.series[0].deadline_ms <= now:
            self._separate()
        timeouts = self.timeouts
        while timeouts and timeouts[0][0] <= now:
            _, flight, deliveries = timeouts.popleft()
            if flight.phase is not SENT or flight.deliveries != deliveries:
                continue
            if flight.deadline_ms <= now:
                yield flight
        while self.due and self.due[0][0] <= now:
            _, seq = heapq.heappop(self.due)
            found = self._flights.get(seq)
            if found is not None and found.deadline_ms <= now and found.phase in (SENT, WAITING):
                yield found

    def next_due_ms(self) -> float:
        """When to call `overdue` again; too early is harmless."""
        if len(self.timeouts) + len(self.due) > 2 * len(self._flights) + _SPARE_DEADLINES:
            self._drop_outdated()
        when = self.series[0].deadline_ms if self.series else math.inf
        if self.due:
            when = min(when, self.due[0][0])
        timeouts = self.timeouts
        while timeouts:
            timeout_ms, flight, deliveries = timeouts[0]
            if flight.phase is SENT and flight.deliveries == deliveries:
                return min(when, timeout_ms)
            timeouts.popleft()
        return when

    def _drop_outdated(self) -> None:
        """Drop deadlines of settled messages, and those that were replaced by another one."""
        self.timeouts = deque(
            one
            for one in self.timeouts
            if one[1].phase is SENT and one[1].deliveries == one[2] and one[1].deadline_ms == one[0]
        )
        self.due = [
            (due_ms, seq)
            for due_ms, seq in set(self.due)
            if (flight := self._flights.get(seq)) is not None
            and flight.deadline_ms == due_ms
            and flight.phase in (SENT, WAITING)
        ]
        heapq.heapify(self.due)

    def shift(self, by_ms: int) -> None:
        """Move all deadlines and pauses."""
        for series in self.series:
            series.deadline_ms += by_ms
        for flight in self._flights.values():
            flight.deadline_ms += by_ms
        self.due = [(due + by_ms, seq) for due, seq in self.due]
        self.timeouts = deque((due + by_ms, one, number) for due, one, number in self.timeouts)

    def clear(self) -> None:
        """Remove all flights."""
        flights = self.flights
        for flight in flights.values():
            self.release(flight)
            flight.phase = SETTLED
        flights.clear()
        self.exhausted = 0
        self.ready.clear()
        self.unread.clear()
        self.key_queues.clear()
        self.keyed.clear()
        self.due.clear()
        self.timeouts.clear()
