"""A look at every subscription and mailbox in turn, a few at a time.

Looking at all of them takes too long for one turn of the loop, so a round is divided into steps.
Totals are those of the last complete round, rates are between two looks at the same subscription.
While people look, a round is made every second, or takes several if there is very much to look at.
Otherwise a few subscriptions are looked at per second, so that there are totals when somebody
comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import nlargest
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core.streams.streams import Mailbox, Topic

if TYPE_CHECKING:
    from signalhub.core.sessions.session import Session
    from signalhub.core.sessions.sessions import Sessions
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.subscription import Subscription
    from signalhub.settings.model import Settings

# Names listed in totals.
NAMED_MAX: Final = 50
BUSIEST_MAX: Final = 10
# A chart of the last 15 minutes is kept for the subscriptions that are furthest behind.
KEPT_MAX: Final = 200
KEPT_EVERY_MS: Final = 10_000
KEPT_POINTS: Final = 90
MINUTE_MS: Final = 60_000
# It grows if its lag was larger each minute, for this many minutes.
GROWN_MINUTES: Final = 5

CURRENT: Final = "current"
BEHIND: Final = "behind"
BLOCKED: Final = "blocked"
PAUSED: Final = "paused"
IDLE: Final = "idle"
HELD_UP: Final = "held_up"
STATES: Final = (CURRENT, BEHIND, BLOCKED, PAUSED, IDLE, HELD_UP)


def state_of(subscription: Subscription) -> str:
    """What a subscription does, in one word; the first that fits."""
    if subscription.backlog.obstacle is not None:
        return HELD_UP
    if subscription.is_blocked:
        return BLOCKED
    if subscription.is_paused:
        return PAUSED
    if not len(subscription.consumers):
        return IDLE
    return BEHIND if subscription.is_behind else CURRENT


class Seen:
    """What was seen of a subscription at the last look, and how it has changed."""

    __slots__ = (
        "at_ms",
        "before",
        "delivered",
        "delivered_rate",
        "history",
        "lag",
        "minutes",
        "redelivered",
        "redelivered_rate",
        "settled",
        "settled_rate",
        "since_ms",
        "state",
        "trend",
    )

    def __init__(self, subscription: Subscription, now: int) -> None:
        stats = subscription.stats
        self.at_ms = now
        self.lag = self.before = subscription.lag
        self.delivered = stats.delivered
        self.settled = stats.settled
        self.redelivered = stats.redelivered
        self.delivered_rate: float | None = None
        self.settled_rate: float | None = None
        self.redelivered_rate: float | None = None
        self.trend: float | None = None
        self.state = state_of(subscription)
        # Since when it is in this state, as far as was seen.
        self.since_ms = now
        # Its lag each minute, as (time, lag), while it has any.
        self.minutes: deque[tuple[int, int]] = deque(maxlen=GROWN_MINUTES + 1)
        if self.lag:
            self.minutes.append((now, self.lag))
        # (time, lag, settled) of the last minutes, if it is one of those furthest behind.
        self.history: deque[tuple[int, int, int]] | None = None

    def look(self, subscription: Subscription, now: int) -> None:
        """Look again."""
        stats, lag = subscription.stats, subscription.lag
        elapsed_s = (now - self.at_ms) / 1000
        if elapsed_s > 0:
            self.delivered_rate = (stats.delivered - self.delivered) / elapsed_s
            self.settled_rate = (stats.settled - self.settled) / elapsed_s
            self.redelivered_rate = (stats.redelivered - self.redelivered) / elapsed_s
            self.trend = (lag - self.before) / elapsed_s
            self.at_ms, self.before = now, lag
            self.delivered, self.settled = stats.delivered, stats.settled
            self.redelivered = stats.redelivered
        self.lag = lag
        state = state_of(subscription)
        if state != self.state:
            self.state, self.since_ms = state, now
        if not lag:
            self.minutes.clear()
        elif not self.minutes or now - self.minutes[-1][0] >= MINUTE_MS:
            self.minutes.append((now, lag))

    @property
    def is_growing(self) -> bool:
        """Was its lag larger in each of the last minutes?"""
        lags = [lag for _, lag in self.minutes]
        return len(lags) > GROWN_MINUTES and all(old < new for old, new in pairwise(lags))


class Totals(msgspec.Struct):
    """Sums over all subscriptions and mailboxes, and the names of those somebody should look at."""

    lag: int = 0
    worst_lag: int = 0
    worst: tuple[str, str] | None = None
    oldest_ms: int | None = None
    in_flight: int = 0
    redelivered: int = 0
    nacked: int = 0
    timeouts: int = 0
    dead_lettered: int = 0
    mailbox_waiting: int = 0
    blocked: int = 0
    alarming: list[tuple[Subscription, Seen]] = []
    """Blocked, held up or growing ones."""
    alarming_total: int = 0
    letters: list[tuple[Topic, int]] = []
    """Topics of dead letters, and how many wait there."""
    letters_total: int = 0
    full: list[Mailbox] = []
    full_total: int = 0
    pausing: list[tuple[Session, int]] = []
    """Sessions that make senders wait, and how many."""
    pausing_total: int = 0
    behind: list[tuple[int, Subscription]] = []
    """Those with the largest lag, the largest first."""
    busy_topics: list[tuple[float, str]] = []
    busy_sessions: list[tuple[float, str]] = []


class Survey:
    """All subscriptions as they were at the last look."""

    def __init__(self, streams: Streams, sessions: Sessions, settings: Settings) -> None:
        self._streams = streams
        self._sessions = sessions
        self._mailbox_limit = settings.mailbox.limit
        self._host_limit = settings.actors.mailbox_limit
        self.totals = Totals()
        self.rounds = 0
        self.steps = 0
        self._seen: dict[Subscription, Seen] = {}
        self._fresh: dict[Subscription, Seen] = {}
        self._heads: dict[Topic, tuple[int, int]] = {}
        self._sent: dict[Session, tuple[int, int]] = {}
        self._rates: dict[str, float] = {}
        self._worst: dict[str, int] = {}
        self._round: Iterator[None] | None = None
        self._now = 0
        self._kept_at_ms = 0
        self._kept: list[Seen] = []

    def seen(self, subscription: Subscription) -> Seen | None:
        """What is known of a subscription; `None` before the first look."""
        return self._fresh.get(subscription) or self._seen.get(subscription)

    def rate_of(self, topic: str) -> float | None:
        """Messages per second stored in a topic, if anybody has looked twice."""
        return self._rates.get(topic)

    def worst_lag_of(self, topic: str) -> int:
        """The largest lag of its subscriptions at the last look."""
        return self._worst.get(topic, 0)

    def step(self, count: int, now: int, *, with_sessions: bool) -> bool:
        """Look at so many things; `True` at the end of a round."""
        self.steps += 1
        if self._round is None:
            self._round = self._look_at_all(with_sessions)
        self._now = now
        for _ in range(count):
            try:
                next(self._round)
            except StopIteration:
                self._round = None
                self.rounds += 1
                return True
        return False

    def _look_at_all(self, with_sessions: bool) -> Iterator[None]:
        totals = Totals(alarming=[], letters=[], full=[], pausing=[])
        rates: list[tuple[float, str]] = []
        all_rates: dict[str, float] = {}
        worst: dict[str, int] = {}
        behind: list[tuple[int, Subscription]] = []
        heads: dict[Topic, tuple[int, int]] = {}
        for topic in list(self._streams.topics.values()):
            rate = self._rate(topic, heads)
            if rate is not None:
                all_rates[topic.name] = rate
            if rate:
                rates.append((rate, topic.name))
            if topic.is_letters:
                _count_letters(totals, topic)
            yield
            for subscription in list(topic.subscriptions.values()):
                lag = self._look_at(subscription, totals)
                if lag > worst.get(topic.name, 0):
                    worst[topic.name] = lag
                behind.append((lag, subscription))
                if len(behind) >= 4 * NAMED_MAX:
                    behind = nlargest(NAMED_MAX, behind, key=_first)
                yield
            if len(rates) > 4 * BUSIEST_MAX:
                rates = nlargest(BUSIEST_MAX, rates)
        self._rates = {
            name: rate for name, rate in self._rates.items() if name in self._streams.topics
        }
        for box in list(self._streams.mailboxes.values()):
            self._look_at_box(box, totals)
            yield
        totals.behind = nlargest(NAMED_MAX, behind, key=_first)
        totals.busy_topics = nlargest(BUSIEST_MAX, rates)
        if with_sessions:
            yield from self._look_at_sessions(totals)
        self._heads, self._rates, self._worst = heads, all_rates, worst
        self._seen, self._fresh = self._fresh, {}
        self.totals = totals
        self._keep()

    def _rate(self, topic: Topic, heads: dict[Topic, tuple[int, int]]) -> float | None:
        now, head = self._now, topic.head
        before = self._heads.get(topic)
        if before is None or now <= before[0]:
            heads[topic] = before or (now, head)
            return self._rates.get(topic.name)
        heads[topic] = (now, head)
        return (head - before[1]) * 1000 / (now - before[0])

    def _look_at(self, subscription: Subscription, totals: Totals) -> int:
        now = self._now
        seen = self._seen.get(subscription)
        if seen is None:
            seen = Seen(subscription, now)
        else:
            seen.look(subscription, now)
        self._fresh[subscription] = seen
        lag, stats = seen.lag, subscription.stats
        totals.lag += lag
        if lag > totals.worst_lag:
            totals.worst_lag = lag
            totals.worst = (subscription.stream.name, subscription.name)
        if lag:
            oldest = subscription.oldest_ms()
            if oldest is not None and (totals.oldest_ms is None or oldest < totals.oldest_ms):
                totals.oldest_ms = oldest
        totals.in_flight += in_flight(subscription)
        totals.redelivered += stats.redelivered
        totals.nacked += stats.nacked
        totals.timeouts += stats.timeouts
        totals.dead_lettered += stats.dead_lettered
        is_stuck = seen.state in (BLOCKED, HELD_UP)
        totals.blocked += seen.state == BLOCKED
        if is_stuck or seen.is_growing:
            totals.alarming_total += 1
            if len(totals.alarming) < NAMED_MAX:
                totals.alarming.append((subscription, seen))
        return lag

    def _look_at_box(self, box: Mailbox, totals: Totals) -> None:
        subscription = box.subscription
        waiting = subscription.lag
        totals.mailbox_waiting += waiting
        totals.in_flight += in_flight(subscription)
        limit = self._host_limit if box.is_host else self._mailbox_limit
        if waiting >= limit:
            totals.full_total += 1
            if len(totals.full) < NAMED_MAX:
                totals.full.append(box)

    def _look_at_sessions(self, totals: Totals) -> Iterator[None]:
        sent: dict[Session, tuple[int, int]] = {}
        rates: list[tuple[float, str]] = []
        for session in list(self._sessions):
            if not session.has_socket:
                continue
            now, before = self._now, self._sent.get(session)
            sent[session] = (now, session.sent)
            if before is not None and now > before[0] and session.sent > before[1]:
                rate = (session.sent - before[1]) * 1000 / (now - before[0])
                rates.append((rate, session.address))
            if len(rates) > 4 * BUSIEST_MAX:
                rates = nlargest(BUSIEST_MAX, rates)
            waiting = session.outbound
            if waiting is not None and waiting.paused:
                totals.pausing_total += 1
                if len(totals.pausing) < NAMED_MAX:
                    totals.pausing.append((session, len(waiting.paused)))
            yield
        self._sent = sent
        totals.busy_sessions = nlargest(BUSIEST_MAX, rates)

    def _keep(self) -> None:
        """Add a point to the charts of those furthest behind."""
        if self._now - self._kept_at_ms < KEPT_EVERY_MS:
            return
        self._kept_at_ms = self._now
        behind = nlargest(KEPT_MAX, (one for one in self._seen.values() if one.lag), key=_lag)
        known = {id(one) for one in behind}
        # One that has caught up keeps its chart until it is over.
        for one in self._kept:
            if id(one) not in known and one.history:
                if one.history[-1][1] == 0 or len(behind) >= KEPT_MAX:
                    one.history.popleft()
                if one.history and len(behind) < KEPT_MAX:
                    behind.append(one)
                else:
                    one.history = None
        for one in behind:
            if one.history is None:
                one.history = deque(maxlen=KEPT_POINTS)
            one.history.append((one.at_ms, one.lag, one.settled))
        self._kept = behind


def in_flight(subscription: Subscription) -> int:
    """The number of messages that were sent and are not settled; costs little."""
    return sum(one.flights for one in subscription.consumers)


def letters_in(topic: Topic) -> int:
    """The number of dead letters that wait in a topic."""
    return max(0, topic.head - topic.first + 1 - topic.removed.count)


def _count_letters(totals: Totals, topic: Topic) -> None:
    waiting = letters_in(topic)
    if waiting:
        totals.letters_total += waiting
        totals.letters.append((topic, waiting))
        if len(totals.letters) > NAMED_MAX:
            totals.letters.sort(key=lambda one: -one[1])
            totals.letters.pop()


def _lag(seen: Seen) -> int:
    return seen.lag


def _first(pair: tuple[int, Subscription]) -> int:
    return pair[0]
