"""The dispatch loop: which subscriptions get a pass, when, and what follows from a pass.

Waking a subscription marks it: that cannot fail or block, and waking twice is like waking once.
Each tick runs a pass for every marked subscription; a pass drains it, so merged wakes lose nothing.
Exact deadlines wake subscriptions that wait for a time. The heartbeat is a watchdog: it checks all
subscriptions and runs a pass only where one should have run and has not.

After a pass, messages to send become frames, settlements become one entry, dead letters are
published, and messages that are not in memory are fetched.
"""

from __future__ import annotations

import heapq
import math
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from signalhub.core import refusals
from signalhub.core.effects import Append, Dispatch, DispatchRun, Effect, Fetch, Note
from signalhub.core.messages.ask import release
from signalhub.core.replies import error_payload
from signalhub.core.streams.streams import Mailbox
from signalhub.core.subscriptions import progress, send
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import SENT, Attempt, Flight, Series
from signalhub.wire.entry import Outcome, StoredEntry

if TYPE_CHECKING:
    from signalhub.core.erasure import Erasures
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.ask import Asks
    from signalhub.core.patterns.pattern import PatternConsumer
    from signalhub.core.replies import Replies
    from signalhub.core.streams.dead_letters import DeadLetters
    from signalhub.core.streams.retention import Pruning
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.consumers import Consumer
    from signalhub.core.wall_time import WallTime
    from signalhub.settings import model
    from signalhub.wire.errors import Refusal

FETCH_MESSAGES: Final = 256
FETCH_SPARE: Final = 8
FETCH_BYTES: Final = 2**18
# There may be many mailboxes, and their settlements are in the log anyway.
_MAILBOX_CURSOR_MS: Final = 60_000
_GRAIN_MS: Final = 10
_RETRY_MS: Final = 1_000
# Damage stays until a restart, but the disk may have failed only for a moment.
_OBSTACLE_MS: Final = 30_000
_SPARE_DEADLINES: Final = 64
# Passes over parts of patterns at once, so that no tick takes long.
_PARTS_MAX: Final = 256


class Dispatcher:
    """Marks, deadlines and heartbeats of every subscription."""

    def __init__(self, streams: Streams, *, wakes: bool) -> None:
        self._streams = streams
        self._wakes = wakes
        self.woken: dict[Subscription, None] = {}
        # Consumers of patterns that have room for parts that wait.
        self.serving: dict[PatternConsumer, None] = {}
        # A heap; only the earliest deadline of a subscription counts, which is its `due_ms`.
        self._deadlines: list[tuple[float, int, Subscription]] = []
        self._deadlines_max = _SPARE_DEADLINES
        self._order = count()
        # Subscriptions by the time slot of their next heartbeat, and the slots as a heap.
        self._heartbeats: dict[int, list[Subscription]] = {}
        self._slots: list[int] = []

    # Waking.

    def wake(self, subscription: Subscription) -> None:
        """Mark a subscription for a pass."""
        self.woken[subscription] = None

    def serve(self, consumer: PatternConsumer) -> None:
        """Let the parts of a pattern send that wait for room."""
        self.serving[consumer] = None

    def published(self, subscription: Subscription) -> None:
        """A message was committed to the subscription's stream."""
        if self._wakes:
            self.woken[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        """The subscription was deleted."""
        subscription.heartbeat_slot = -1
        subscription.is_deleted = True
        self.woken.pop(subscription, None)

    def watch(self, subscription: Subscription, now: int) -> None:
        """Start the heartbeat of a subscription that got a consumer or another period."""
        self._expect_heartbeat(subscription, now)
        self.wake(subscription)

    def retry(self, subscription: Subscription, now: int) -> None:
        """The log rejected its entries; try again later."""
        self.schedule(subscription, now + _RETRY_MS)

    def next_due_ms(self) -> float:
        """When to call `take_woken` again if nothing happens."""
        if self.woken or self.serving:
            return 0
        slot = self._slots[0] * _GRAIN_MS if self._slots else math.inf
        return min(slot, self._deadlines[0][0] if self._deadlines else math.inf)

    def overslept(self, by_ms: int, now: int) -> None:
        """The hub did not run for a while: everything that waits for a duration waits longer.

        Otherwise messages would be sent again whose acks are still unread.
        """
        self._deadlines = [(due + by_ms, order, one) for due, order, one in self._deadlines]
        watched = [one for some in self._heartbeats.values() for one in some]
        self._heartbeats, self._slots = {}, []
        for subscription in dict.fromkeys(watched):
            subscription.heartbeat_slot = -1
            self._expect_heartbeat(subscription, now)
        for subscription in self._streams.readers():
            subscription.overslept(by_ms)
            self.wake(subscription)

    def take_woken(self, now: int) -> list[Subscription]:
        """Take the subscriptions that are woken, due, or missed a pass."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            due_ms, _, subscription = heapq.heappop(deadlines)
            if due_ms == subscription.due_ms:
                subscription.due_ms = math.inf
                if not subscription.is_deleted:
                    self.woken[subscription] = None
        self._watch(now)
        woken, self.woken = self.woken, {}
        return list(woken)

    def schedule(self, subscription: Subscription, due_ms: float) -> None:
        """Run a pass at this time at the latest."""
        if due_ms < subscription.due_ms:
            subscription.due_ms = due_ms
            heapq.heappush(self._deadlines, (due_ms, next(self._order), subscription))
            if len(self._deadlines) > self._deadlines_max:
                self._drop_outdated()

    def _drop_outdated(self) -> None:
        """Drop deadlines that were replaced; every pass sets the deadline of the next one."""
        current: dict[Subscription, tuple[float, int, Subscription]] = {}
        for deadline in self._deadlines:
            due_ms, _, subscription = deadline
            if due_ms == subscription.due_ms and not subscription.is_deleted:
                current.setdefault(subscription, deadline)
        self._deadlines = list(current.values())
        heapq.heapify(self._deadlines)
        self._deadlines_max = 2 * len(self._deadlines) + _SPARE_DEADLINES

    # The watchdog.

    def _expect_heartbeat(self, subscription: Subscription, now: int) -> None:
        """Plan the next heartbeat, unless an earlier one is planned, which plans the next."""
        period_ms = subscription.heartbeat_ms
        if subscription.pattern is not None:
            # There may be many, so `Patterns` looks at some of them at a time.
            period_ms = 0
        if not period_ms or not len(subscription.consumers) or subscription.is_deleted:
            subscription.heartbeat_slot = -1
            return
        slot = max(now + period_ms, now + _GRAIN_MS) // _GRAIN_MS
        if 0 <= subscription.heartbeat_slot <= slot:
            return
        subscription.heartbeat_slot = slot
        if slot not in self._heartbeats:
            self._heartbeats[slot] = []
            heapq.heappush(self._slots, slot)
        self._heartbeats[slot].append(subscription)

    def _watch(self, now: int) -> None:
        while self._slots and self._slots[0] * _GRAIN_MS <= now:
            slot = heapq.heappop(self._slots)
            for subscription in self._heartbeats.pop(slot):
                if subscription.heartbeat_slot == slot:
                    subscription.heartbeat_slot = -1
                    self._expect_heartbeat(subscription, now)
                    if subscription.is_missing_a_pass:
                        self.poll(subscription, now)

    def poll(self, subscription: Subscription, now: int) -> None:
        """Wake a subscription whose stream has grown without a pass."""
        if subscription in self.woken:
            return
        stats = subscription.stats
        stats.heartbeat_polls += 1
        # The pass that follows counts for the watchdog, not for a wake.
        stats.wake_polls -= 1
        held = subscription.stream.recent.get(subscription.next_seq)
        if held is not None and now - held.at_ms > subscription.heartbeat_ms:
            stats.recovered_wakes += 1
        self.woken[subscription] = None


class Passes:
    """Runs a pass for every subscription that the dispatcher returns."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        asks: Asks,
        letters: DeadLetters,
        retention: Pruning,
        erasures: Erasures,
        storage: LogState,
        replies: Replies,
        wall: WallTime,
        settings: model.DispatchSettings,
    ) -> None:
        self._storage = storage
        self._replies = replies
        self._dispatcher = dispatcher
        self._asks = asks
        self._letters = letters
        self._retention = retention
        self._erasures = erasures
        self._wall = wall
        self._settings = settings

    def run(self, now: int) -> list[Effect]:
        """Run all passes that are due; called once per tick."""
        effects: list[Effect] = []
        parts = 0
        for subscription in self._dispatcher.take_woken(now):
            if subscription.is_deleted:
                continue
            if subscription.pattern is None:
                effects += self._run_one(subscription, now)
            elif parts < _PARTS_MAX:
                parts += 1
                on_turn = subscription.pattern.before_pass(subscription)
                effects += self._run_part(subscription, on_turn, now)
            else:
                self._dispatcher.wake(subscription)
        serving, self._dispatcher.serving = self._dispatcher.serving, {}
        for consumer in serving:
            effects += self._serve(consumer, now)
        return effects

    def _serve(self, consumer: PatternConsumer, now: int) -> list[Effect]:
        """Give the parts of a pattern that wait for room their turns, each at most once."""
        effects: list[Effect] = []
        for _ in range(min(len(consumer.queue), _PARTS_MAX)):
            part = consumer.begin_turn()
            if part is None:
                return effects
            if part.is_deleted or part.pattern is None:
                consumer.end_turn(part)
                continue
            part.pattern.attach(part)
            effects += self._run_part(part, consumer, now)
        return effects

    def _run_part(
        self, part: Subscription, on_turn: PatternConsumer | None, now: int
    ) -> list[Effect]:
        effects = self._run_one(part, now)
        if part.pattern is not None:
            part.pattern.after_pass(part, on_turn)
        return effects

    def _run_one(self, subscription: Subscription, now: int) -> list[Effect]:
        subscription.stats.wake_polls += 1
        try:
            # Every copy may fail at once, and every failure is written to the log.
            is_behind = self._storage.is_behind()
            if is_behind:
                self._dispatcher.retry(subscription, now)
            if send.run(subscription, now, may_send_again=not is_behind):
                self._dispatcher.wake(subscription)
            effects = self._harvest(subscription, now)
        except Exception as fault:
            # Like a supervisor: whatever failed, the subscription restarts from its floor.
            subscription.stats.restarts += 1
            subscription.revive()
            self._dispatcher.retry(subscription, now)
            facts = {"stream": subscription.stream.name, "subscription": subscription.name}
            return [Note("a dispatch pass failed and was started over", dict(facts), fault)]
        due = subscription.next_due_ms(now)
        if subscription.is_cursor_dirty:
            due = min(due, subscription.cursor_at_ms + self._cursor_ms(subscription))
        self._dispatcher.schedule(subscription, due)
        return effects

    def _harvest(self, subscription: Subscription, now: int) -> list[Effect]:
        effects: list[Effect] = []
        stream = subscription.stream
        if subscription.sends:
            sends, subscription.sends = subscription.sends, []
            stamp_ms = self._wall.shown(now)
            if isinstance(stream, Mailbox):
                effects += _mailed(subscription, stream, sends, stamp_ms)
            else:
                effects += [_sent(subscription, one, stamp_ms) for one in sends]
        appends: list[Append] = []
        if subscription.settlements or subscription.outdated:
            appends += progress.write_settlements(self._dispatcher, subscription, now)
        buried, subscription.letters = subscription.letters, []
        for flight in buried:
            appends += self._letters.bury(subscription, flight, now)
        is_reservation = _wants_reserve(subscription)
        if is_reservation or self._is_cursor_due(subscription, now):
            cursor = progress.write_cursor(
                self._dispatcher, subscription, now, is_reservation=is_reservation
            )
            appends.append(cursor)
        if subscription.waiters:
            waiters, subscription.waiters = subscription.waiters, []
            # These entries, or earlier ones, contain everything settled so far.
            for _, facts in waiters:
                facts["floor"] = subscription.position.floor
            if appends:
                committed = progress.answer_all
                if buried:
                    committed = partial(self._answer_after_burial, subscription)
                appends[-1].follow(
                    partial(committed, waiters), partial(progress.refuse_all, waiters)
                )
            else:
                effects += progress.answer_all(waiters, 0, now)
        effects += appends
        backlog = subscription.backlog
        if backlog.obstacle is not None:
            effects += self._tell_obstacle(subscription, backlog.obstacle, now)
        if backlog.wanted is not None and not backlog.is_asked and now >= backlog.not_before_ms:
            backlog.is_asked = True
            effects.append(self._fetch(subscription, backlog.wanted))
        if isinstance(stream, Mailbox) and stream.fresh:
            effects += self._asks.answer_fresh(stream, now)
        return effects

    def _answer_after_burial(
        self,
        subscription: Subscription,
        waiters: list[progress.Waiter],
        offset: int,
        now: int,
    ) -> list[Effect]:
        """Answer settlements that turned messages into dead letters.

        The letters are on disk and the originals are settled now, so the answers wait for one more
        entry: the one that says so.
        """
        if subscription.is_deleted:
            return progress.answer_all(waiters, offset, now)
        subscription.waiters[:0] = waiters
        self._dispatcher.wake(subscription)
        return []

    def _cursor_ms(self, subscription: Subscription) -> int:
        if isinstance(subscription.stream, Mailbox):
            return _MAILBOX_CURSOR_MS
        # A cursor lists all delayed messages, so it is written less often if there are many.
        return self._settings.cursor_ms + len(subscription.position.parked)

    def _is_cursor_due(self, subscription: Subscription, now: int) -> bool:
        if not subscription.is_cursor_dirty:
            return False
        parked = len(subscription.position.parked)
        return (
            now - subscription.cursor_at_ms >= self._cursor_ms(subscription)
            or subscription.settled_since_cursor >= self._settings.cursor_settles + parked
        )

    def _fetch(self, subscription: Subscription, seq: int) -> Fetch:
        stream = subscription.stream

        def then(found: list[StoredEntry] | None, now: int) -> list[Effect]:
            effects: list[Effect] = []
            if found is None and self._storage.is_damaged:
                assert self._storage.fault is not None
                retry_ms = now + _OBSTACLE_MS
                subscription.backlog.hold_up(seq, self._storage.fault, retry_ms)
                self._dispatcher.schedule(subscription, retry_ms)
                self._dispatcher.wake(subscription)
                return []
            if found:
                subscription.backlog.obstacle = None
            # Other failed reads are retried like empty ones.
            found = found or []
            first = found[0].seq if found else stream.first
            if first > seq:
                effects = self._retention.lose_before(stream, first, now)
                found = []
            held_of = self._erasures.held_of
            subscription.fetched(seq, [held_of(one) for one in found], now)
            self._dispatcher.wake(subscription)
            return effects

        # Reading ahead takes memory, so read no more than can be sent soon.
        room = subscription.consumers.capacity - len(subscription.window)
        if subscription.pattern is not None:
            rooms = [one.room_for(subscription) for one in subscription.pattern.consumers]
            room = min(room, max(rooms, default=1))
        count = min(FETCH_MESSAGES, max(1, room) + FETCH_SPARE)
        return Fetch(stream.name, stream.id, seq, count, FETCH_BYTES, then)

    def _tell_obstacle(
        self, subscription: Subscription, obstacle: Refusal, now: int
    ) -> list[Effect]:
        """Tell the consumers why they get nothing more, each once."""
        untold = [one for one in subscription.consumers if one.told != obstacle.message]
        if not untold:
            return []
        stream, name, seq = subscription.stream, subscription.name, subscription.next_seq
        topic = None if isinstance(stream, Mailbox) else stream.name
        payload = error_payload(refusals.held_up(topic, name, seq, obstacle))
        effects: list[Effect] = []
        for consumer in untold:
            consumer.told = obstacle.message
            effects.append(self._replies.notice(consumer.session, "hub:error", payload, now))
        return effects

    # Outcomes of deliveries.

    def handed_over(self, attempt: Attempt, now: int) -> list[Effect]:
        """A message was written to its socket."""
        subscription, flight = attempt.subscription, attempt.flight
        effects: list[Effect] = []
        receipt, flight.receipt = flight.receipt, None
        if receipt is not None:
            effects = self._asks.delivered(receipt, now)
        is_current = flight.phase is SENT and flight.deliveries == attempt.deliveries
        if is_current and subscription.position.generation == attempt.generation:
            assert flight.consumer is not None
            if receipt is not None:
                subscription.note_handed_over(flight, now)
            if flight.consumer.auto_ack:
                subscription.settle(flight, Outcome.WRITTEN)
            self._dispatcher.wake(subscription)
        return effects

    def lost(self, attempt: Attempt, now: int) -> list[Effect]:
        """The socket closed first; the message stays, and an ask waits in its mailbox."""
        receipt, attempt.flight.receipt = attempt.flight.receipt, None
        return [] if receipt is None else self._asks.queued(receipt, now)


def _wants_reserve(subscription: Subscription) -> bool:
    """Is the position up to which it may send nearly reached?"""
    return (
        not subscription.reserving
        and bool(subscription.consumers.all)
        and subscription.next_seq + progress.RESERVE // 2 > subscription.position.reserved
    )


def _sent(
    subscription: Subscription, one: tuple[Consumer, Flight] | Series, stamp_ms: int
) -> Dispatch | DispatchRun:
    if type(one) is Series:
        frames = send.frames_of(subscription, one, stamp_ms)
        subscription.stats.delivered += len(one.held)
        return DispatchRun(one.consumer.session, frames, len(one.held))
    assert type(one) is tuple
    consumer, flight = one
    subscription.stats.delivered += 1
    attempt = None
    if consumer.auto_ack or flight.receipt is not None:
        generation = subscription.position.generation
        attempt = Attempt(subscription, flight, flight.deliveries, generation)
    assert flight.held is not None
    frame = send.frame_of(subscription, consumer, flight.held, flight.deliveries, stamp_ms)
    return Dispatch(consumer.session, frame, attempt)


def _mailed(
    subscription: Subscription,
    box: Mailbox,
    sends: list[tuple[Consumer, Flight] | Series],
    stamp_ms: int,
) -> list[Effect]:
    """Dispatch from a mailbox with asks whose senders wait, and tells held back behind them."""
    effects: list[Effect] = []
    for one in sends:
        assert type(one) is tuple, "mail is never sent as a series"
        flight = one[1]
        receipt = box.sent(flight.seq) if box.fresh else None
        # A redelivered message may still have the receipt of its first attempt.
        flight.receipt = flight.receipt if receipt is None else receipt
        effects.append(_sent(subscription, one, stamp_ms))
        if receipt is not None:
            effects += release(receipt)
    return effects
