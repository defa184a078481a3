"""The values behind the metrics.

Most values are read directly. There can be many subscriptions and mailboxes, so they are examined
in slices before a scrape is answered. The time of an oldest unsettled message that is not in memory
is read from the log, for a limited number of subscriptions per scrape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.clock import Clock
from signalhub.core.effects import Fetch
from signalhub.core.hub import Hub
from signalhub.core.subscriptions.consumers import KEY_SHARED
from signalhub.core.subscriptions.progress import is_progress_unwritten
from signalhub.core.subscriptions.subscription import BLOCK, Subscription
from signalhub.core.subscriptions.window import EXHAUSTED, SENT, WAITING
from signalhub.engine.local import LocalEngine
from signalhub.observe.subscriptions import SubscriptionReading
from signalhub.server.port.listener import Listener
from signalhub.server.runner import HubRunner
from signalhub.state.store import StateStore
from signalhub.wire.entry import StoredEntry

if TYPE_CHECKING:
    from signalhub.server.admin.desk import Desk
    from signalhub.server.lake import Lakeside

_SUBSCRIPTIONS_SLICE: Final = 64
_MAILBOXES_SLICE: Final = 1_024
# Reads of the log per scrape; the other subscriptions follow at the next scrapes.
_LOOKUPS_MAX: Final = 64


class _Noted(msgspec.Struct):
    """What is kept of a subscription between two scrapes."""

    cursors: int
    unwritten_since_ms: int
    """When a scrape first saw progress that was not in the log."""
    oldest_seq: int = 0
    oldest_ms: int | None = None
    """When the message at `oldest_seq` was accepted, if that was read from the log."""


class Gauges:
    """The hub's parts, and the values computed by the last `refresh`."""

    def __init__(
        self,
        hub: Hub,
        runner: HubRunner,
        store: StateStore,
        engine: LocalEngine,
        clock: Clock,
        listener: Listener,
        lakeside: Lakeside | None = None,
        desk: Desk | None = None,
    ) -> None:
        self.hub = hub
        self.tally = hub.tally
        self.runner = runner
        self.store = store
        self.engine = engine
        self.log = engine.log
        self.listener = listener
        self.lakeside = lakeside
        self.desk = desk
        self.now_ms = clock.now_ms
        self.subscriptions: Sequence[SubscriptionReading] = []
        self.cursor_age_ms = 0
        self.mailbox_waiting = 0
        self._noted: dict[Subscription, _Noted] = {}

    async def refresh(self) -> None:
        """Compute the values of subscriptions and mailboxes."""
        await self._look_at_subscriptions(self.now_ms())
        waiting = 0
        for number, box in enumerate(list(self.hub.streams.mailboxes.values()), 1):
            waiting += box.subscription.lag
            if number % _MAILBOXES_SLICE == 0:
                await asyncio.sleep(0)
        self.mailbox_waiting = waiting

    async def _look_at_subscriptions(self, now: int) -> None:
        topics = list(self.hub.streams.topics.values())
        found = [one for topic in topics for one in topic.subscriptions.values()]
        readings: list[SubscriptionReading] = []
        noted: dict[Subscription, _Noted] = {}
        unknown: list[tuple[_Noted, Subscription, SubscriptionReading]] = []
        cursor_age_ms = 0
        for number, subscription in enumerate(found, 1):
            note = noted[subscription] = self._note(subscription, now)
            reading = _read(subscription, note, now)
            readings.append(reading)
            if reading.lag_s is None and len(unknown) < _LOOKUPS_MAX:
                unknown.append((note, subscription, reading))
            cursor_age_ms = max(cursor_age_ms, now - note.unwritten_since_ms)
            if number % _SUBSCRIPTIONS_SLICE == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*(self._look_up(*one, now) for one in unknown))
        self.subscriptions, self._noted = readings, noted
        self.cursor_age_ms = cursor_age_ms

    def _note(self, subscription: Subscription, now: int) -> _Noted:
        cursors = subscription.stats.cursors
        note = self._noted.get(subscription) or _Noted(cursors, now)
        if not is_progress_unwritten(subscription) or cursors != note.cursors:
            note.unwritten_since_ms = now
        note.cursors = cursors
        return note

    async def _look_up(
        self, note: _Noted, subscription: Subscription, reading: SubscriptionReading, now: int
    ) -> None:
        """Read when the oldest unsettled message was accepted; cached until another is oldest."""
        answered: asyncio.Future[list[StoredEntry]] = asyncio.get_running_loop().create_future()

        def done(found: list[StoredEntry] | None) -> None:
            if not answered.done():
                answered.set_result(found or [])

        stream, seq = subscription.stream, subscription.position.first_unsettled
        self.engine.fetch(Fetch(stream.name, stream.id, seq, 1, 1, lambda *_: []), done)
        for one in await answered:
            note.oldest_seq, note.oldest_ms = seq, one.at_ms
            reading.lag_s = max(0, now - one.at_ms) / 1000


def _read(subscription: Subscription, note: _Noted, now: int) -> SubscriptionReading:
    window, consumers = subscription.window, subscription.consumers
    capacity = 1 if subscription.definition.strict else consumers.capacity
    sent = [
        flight.first_sent
        for flight in window.seen().values()
        if flight.phase in (SENT, WAITING) and flight.first_sent
    ]
    return SubscriptionReading(
        subscription.stream.name,
        subscription.name,
        subscription.definition.mode,
        subscription.stats,
        lag=subscription.lag,
        lag_s=_lag_s(subscription, note, now),
        unacked_s=max(0, now - min(sent, default=now)) / 1000,
        utilization=min(1.0, len(window) / capacity) if capacity else 0.0,
        is_blocked=int(subscription.is_blocked),
        blocked_keys=_blocked_keys(subscription),
        consumers=len(consumers),
        is_held_up=int(subscription.backlog.obstacle is not None),
    )


def _lag_s(subscription: Subscription, note: _Noted, now: int) -> float | None:
    if not subscription.lag:
        return 0.0
    oldest_ms = subscription.oldest_ms()
    if oldest_ms is None and note.oldest_seq == subscription.position.first_unsettled:
        oldest_ms = note.oldest_ms
    return None if oldest_ms is None else max(0, now - oldest_ms) / 1000


def _blocked_keys(subscription: Subscription) -> int:
    is_possible = subscription.definition.mode == KEY_SHARED and subscription.window.exhausted
    if not is_possible or subscription.poison_policy != BLOCK:
        return 0
    queues = subscription.window.key_queues.values()
    return sum(one.flights[0].phase is EXHAUSTED for one in queues if one.flights)
