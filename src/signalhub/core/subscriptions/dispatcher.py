"""The loop around the subscriptions: who is woken, and who is looked at when.

Waking is marking: it cannot fail or block, and twice is once. Every turn of the shell's loop runs a
pass for each one marked; a pass drains, so a merged wake loses nothing. Exact deadlines bring back
subscriptions that wait for a time. The heartbeat is a watchdog behind all that: it looks at every
subscription and runs a pass only where one should have run and has not.
"""

from __future__ import annotations

import heapq
import math
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.subscription import Subscription

_GRAIN_MS: Final = 10
_RETRY_MS: Final = 1_000


class Dispatcher:
    """Marks, deadlines and heartbeats of every subscription."""

    def __init__(self, streams: Streams, *, wakes: bool) -> None:
        self._streams = streams
        self._wakes = wakes
        self.woken: dict[Subscription, None] = {}
        self._deadlines: list[tuple[float, int, Subscription]] = []
        self._order = count()
        # Subscriptions by the slot of time their heartbeat is due in, and these slots in order.
        self._heartbeats: dict[int, list[Subscription]] = {}
        self._slots: list[int] = []

    # Waking.

    def wake(self, subscription: Subscription) -> None:
        """Something may be new."""
        self.woken[subscription] = None

    def published(self, subscription: Subscription) -> None:
        """A message was committed to its stream."""
        if self._wakes:
            self.woken[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        """It is deleted."""
        subscription.heartbeat_slot = -1
        subscription.is_deleted = True
        self.woken.pop(subscription, None)

    def watch(self, subscription: Subscription, now: int) -> None:
        """It has a consumer, or another heartbeat than before; without a consumer nobody looks."""
        self._expect_heartbeat(subscription, now)
        self.wake(subscription)

    def retry(self, subscription: Subscription, now: int) -> None:
        """The log refused what it had to write; try again in a while."""
        self.schedule(subscription, now + _RETRY_MS)

    def next_due_ms(self) -> float:
        """When `take_woken` has to be called again if nothing happens."""
        if self.woken:
            return 0
        slot = self._slots[0] * _GRAIN_MS if self._slots else math.inf
        return min(slot, self._deadlines[0][0] if self._deadlines else math.inf)

    def clock_jumped(self, by_ms: int, now: int) -> None:
        """The wall clock was set: what waits for a span of time waits for the rest of it."""
        self._deadlines = [(due + by_ms, order, one) for due, order, one in self._deadlines]
        watched = [one for some in self._heartbeats.values() for one in some]
        self._heartbeats, self._slots = {}, []
        for subscription in dict.fromkeys(watched):
            self._expect_heartbeat(subscription, now)
        for subscription in self._streams.readers():
            subscription.clock_jumped(by_ms)
            self.wake(subscription)

    def take_woken(self, now: int) -> list[Subscription]:
        """Everything that is woken, due, or was missed; each gets a pass."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            _, _, subscription = heapq.heappop(deadlines)
            subscription.due_ms = math.inf
            if not subscription.is_deleted:
                self.woken[subscription] = None
        self._watch(now)
        woken, self.woken = self.woken, {}
        return list(woken)

    def schedule(self, subscription: Subscription, due_ms: float) -> None:
        """Look at it then at the latest."""
        if due_ms < subscription.due_ms:
            subscription.due_ms = due_ms
            heapq.heappush(self._deadlines, (due_ms, next(self._order), subscription))

    # The watchdog.

    def _expect_heartbeat(self, subscription: Subscription, now: int) -> None:
        period_ms = subscription.heartbeat_ms
        if period_ms and len(subscription.consumers) and not subscription.is_deleted:
            slot = max(now + period_ms, now + _GRAIN_MS) // _GRAIN_MS
            subscription.heartbeat_slot = slot
            if slot not in self._heartbeats:
                self._heartbeats[slot] = []
                heapq.heappush(self._slots, slot)
            self._heartbeats[slot].append(subscription)
        else:
            subscription.heartbeat_slot = -1

    def _watch(self, now: int) -> None:
        while self._slots and self._slots[0] * _GRAIN_MS <= now:
            slot = heapq.heappop(self._slots)
            for subscription in self._heartbeats.pop(slot):
                if subscription.heartbeat_slot == slot:
                    self._expect_heartbeat(subscription, now)
                    if subscription.is_missing_a_pass:
                        self._poll(subscription, now)

    def _poll(self, subscription: Subscription, now: int) -> None:
        """Its stream has moved on and no pass has seen it."""
        if subscription in self.woken:
            return
        stats = subscription.stats
        stats.heartbeat_polls += 1
        # The turn that follows is the watchdog's, not a wake's.
        stats.wake_polls -= 1
        held = subscription.stream.recent.get(subscription.next_seq)
        if held is not None and now - held.at_ms > subscription.heartbeat_ms:
            stats.recovered_wakes += 1
        self.woken[subscription] = None
