"""The loop around the subscriptions: who is woken, who is looked at when, and what comes of it.

Waking is marking: it cannot fail or block, and twice is once. Every turn of the shell's loop runs a
pass for each one marked; a pass drains, so a merged wake loses nothing. Exact deadlines bring back
subscriptions that wait for a time. The heartbeat is a watchdog behind all that: it looks at every
subscription and runs a pass only where one should have run and has not.

After each pass the messages to send become frames, settlements become one entry, dead letters are
published, and what is not in memory is asked for.
"""

from __future__ import annotations

import heapq
import math
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from signalhub.core.effects import Append, Dispatch, Effect, Fetch, Note
from signalhub.core.messages import ask
from signalhub.core.streams import dead_letters
from signalhub.core.streams.streams import Mailbox
from signalhub.core.subscriptions import progress, send
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import Attempt, Flight
from signalhub.wire.entry import Stored

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.subscriptions.consumers import Consumer

FETCH_MESSAGES: Final = 256
FETCH_SPARE: Final = 8
FETCH_BYTES: Final = 2**18
# Mailboxes are many and their settlements are in the log anyway.
_MAILBOX_CURSOR_MS: Final = 60_000
_GRAIN_MS: Final = 10
_RETRY_MS: Final = 1_000


class Dispatcher:
    """Marks, deadlines and heartbeats of every subscription."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._settings = hub.settings.dispatch
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
        if self._settings.wakes:
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
        self._schedule(subscription, now + _RETRY_MS)

    def next_due_ms(self) -> float:
        """When `run` has to be called again if nothing happens."""
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
        streams = self._hub.streams
        boxes = [box.subscription for box in streams.mailboxes.values()]
        for subscription in chain(
            boxes, *(topic.subscriptions.values() for topic in streams.topics.values())
        ):
            subscription.clock_jumped(by_ms)
            self.wake(subscription)

    # Running.

    def run(self, now: int) -> list[Effect]:
        """Everything that is woken, due or to be watched."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            _, _, subscription = heapq.heappop(deadlines)
            subscription.due_ms = math.inf
            if not subscription.is_deleted:
                self.woken[subscription] = None
        self._watch(now)
        effects: list[Effect] = []
        woken, self.woken = self.woken, {}
        for subscription in woken:
            if not subscription.is_deleted:
                effects += self._turn(subscription, now)
        return effects

    def _turn(self, subscription: Subscription, now: int) -> list[Effect]:
        subscription.stats.wake_polls += 1
        try:
            if send.run(subscription, now):
                self.woken[subscription] = None
            effects = self._harvest(subscription, now)
        except Exception as fault:
            # The supervisor's part: whatever went wrong, the subscription goes on from its floor.
            subscription.stats.restarts += 1
            subscription.revive()
            self._schedule(subscription, now + _RETRY_MS)
            facts = {"stream": subscription.stream.name, "subscription": subscription.name}
            return [Note("a dispatch pass failed and was started over", dict(facts), fault)]
        due = subscription.next_due_ms(now)
        if subscription.is_cursor_dirty:
            due = min(due, subscription.cursor_at_ms + self._cursor_ms(subscription))
        self._schedule(subscription, due)
        return effects

    def _schedule(self, subscription: Subscription, due_ms: float) -> None:
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

    # What a pass leaves behind.

    def _harvest(self, subscription: Subscription, now: int) -> list[Effect]:
        effects: list[Effect] = []
        stream = subscription.stream
        if subscription.sends:
            sends, subscription.sends = subscription.sends, []
            subscription.stats.delivered += len(sends)
            if isinstance(stream, Mailbox) and stream.fresh:
                effects += _sent_asks(subscription, stream, sends, now)
            else:
                effects += [_sent(subscription, one, flight, now) for one, flight in sends]
        appends: list[Append] = []
        if subscription.settlements or subscription.outdated:
            appends += progress.write_settlements(self, subscription, now)
        buried, subscription.letters = subscription.letters, []
        for flight in buried:
            appends += dead_letters.bury(self._hub, subscription, flight, now)
        if self._is_cursor_due(subscription, now):
            appends.append(progress.write_cursor(self, subscription, now))
        if subscription.waiters:
            waiters, subscription.waiters = subscription.waiters, []
            # Everything settled so far is in these entries, or in earlier ones.
            for waiter in waiters:
                waiter.stand_at(subscription.position.floor)
            if appends:
                committed = progress.answer_all
                if buried:
                    committed = partial(dead_letters.answer_after_burial, self, subscription)
                appends[-1].follow(
                    partial(committed, waiters), partial(progress.refuse_all, waiters)
                )
            else:
                effects += progress.answer_all(waiters, 0, now)
        effects += appends
        backlog = subscription.backlog
        if backlog.wanted is not None and not backlog.is_asked:
            backlog.is_asked = True
            effects.append(self._fetch(subscription, backlog.wanted))
        if isinstance(stream, Mailbox) and stream.fresh:
            effects += ask.answer_fresh(self._hub, stream, now)
        return effects

    def _cursor_ms(self, subscription: Subscription) -> int:
        if isinstance(subscription.stream, Mailbox):
            return _MAILBOX_CURSOR_MS
        # A cursor names all its delayed messages, so where these are many it is written less often.
        return self._settings.cursor_ms + len(subscription.position.parked)

    def _is_cursor_due(self, subscription: Subscription, now: int) -> bool:
        if subscription.wants_reserve:
            return True
        if not subscription.is_cursor_dirty:
            return False
        return now - subscription.cursor_at_ms >= self._cursor_ms(
            subscription
        ) or subscription.settled_since_cursor >= self._settings.cursor_settles + len(
            subscription.position.parked
        )

    def _fetch(self, subscription: Subscription, seq: int) -> Fetch:
        stream = subscription.stream

        def then(found: list[Stored] | None, now: int) -> list[Effect]:
            effects: list[Effect] = []
            # What could not be read is asked for again, like what cannot be read yet.
            found = found or []
            first = found[0].seq if found else stream.first
            if first > seq:
                effects = dead_letters.lose_before(self._hub, stream, first, now)
                found = []
            held_of = self._hub.erasures.held_of
            subscription.fetched(seq, [held_of(one) for one in found], now)
            self.wake(subscription)
            return effects

        # What is read ahead takes memory, so it is no more than can be sent soon.
        room = subscription.consumers.capacity - len(subscription.window)
        count = min(FETCH_MESSAGES, max(1, room) + FETCH_SPARE)
        return Fetch(stream.name, stream.id, seq, count, FETCH_BYTES, then)


def _sent(subscription: Subscription, consumer: Consumer, flight: Flight, now: int) -> Dispatch:
    attempt = None
    if consumer.auto_ack or flight.receipt is not None:
        generation = subscription.position.generation
        attempt = Attempt(subscription, flight, flight.deliveries, generation)
    return Dispatch(consumer.session, send.of(subscription, consumer, flight, now), attempt)


def _sent_asks(
    subscription: Subscription,
    box: Mailbox,
    sends: list[tuple[Consumer, Flight]],
    now: int,
) -> list[Effect]:
    """Some senders wait to hear of their asks, and some tells wait behind those."""
    effects: list[Effect] = []
    for consumer, flight in sends:
        receipt = box.fresh.pop(flight.seq, None)
        # One that is sent again may still have its own from the first time.
        flight.receipt = flight.receipt if receipt is None else receipt
        effects.append(_sent(subscription, consumer, flight, now))
        if receipt is not None:
            effects += ask.sent(receipt)
    return effects
