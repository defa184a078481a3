"""One pass of dispatch over a subscription.

In this order: deadlines, messages that may be sent again, new messages; until the stream is read to
its head, the window is full or no consumer has room. A pass never waits for anything: what is not
in memory is asked for, and the answer wakes the subscription again.
"""

from __future__ import annotations

import heapq
from typing import Final

from signalhub.core.consumers import KEY_SHARED, Consumer, Lane
from signalhub.core.flight import READY, SENT, Flight
from signalhub.core.streams import Held
from signalhub.core.subscription import Subscription
from signalhub.entry import Outcome, Settlement

PASS_MESSAGES_MAX: Final = 512


def run(subscription: Subscription, now: int) -> bool:
    """One pass; `True` if it stopped only because it had done enough for one turn."""
    _look_at_the_clock(subscription, now)
    if (
        subscription.position.is_paused
        or not subscription.consumers
        or now < subscription.not_before_ms
    ):
        return False
    _read_due(subscription)
    budget = _send_again(subscription, now, PASS_MESSAGES_MAX)
    budget = _send_keyed(subscription, now, budget)
    budget = _send_new(subscription, now, budget)
    return budget <= 0


def _look_at_the_clock(subscription: Subscription, now: int) -> None:
    if subscription.window.exhausted:
        subscription.policy_changed()
    for flight in subscription.window.overdue(now):
        if flight.phase is SENT:
            subscription.stats.timeouts += 1
            subscription.fail(flight, "ack timeout", now)
        else:
            subscription.window.back(flight)
    due = subscription.parked_due
    while due and due[0][0] <= now and subscription.has_room:
        _, seq = heapq.heappop(due)
        if seq in subscription.position.parked and seq not in subscription.window.flights:
            subscription.window.add(_flight(subscription, seq, None))


def _flight(subscription: Subscription, seq: int, held: Held | None) -> Flight:
    position = subscription.position
    return Flight(seq, held, position.failures.get(seq, 0), seq <= position.doubtful)


def _send_again(subscription: Subscription, now: int, budget: int) -> int:
    while budget > 0:
        flight = subscription.window.next_ready()
        if flight is None:
            break
        if _is_over(subscription, flight, now):
            continue
        consumer = subscription.consumers.choose(avoid=flight.consumer)
        if consumer is None or not subscription.bucket.take(now):
            break
        _send(subscription, flight, consumer, now)
        budget -= 1
    return budget


def _send_keyed(subscription: Subscription, now: int, budget: int) -> int:
    """The first message of each key that has none in flight."""
    keyed = subscription.window.keyed
    for consumer in subscription.consumers:
        # Keys whose owner had no room wait with the owner, so that nobody looks at them in vain.
        while consumer.waiting and consumer.has_room and budget > 0:
            if not _send_first(subscription, consumer.waiting.popleft(), now):
                return budget
            budget -= 1
    for _ in range(len(keyed)):
        if budget <= 0 or not _send_first(subscription, keyed.popleft(), now):
            break
        budget -= 1
    return budget


def _send_first(subscription: Subscription, lane: Lane, now: int) -> bool:
    """The first message of one key, if it may go; `False` if nothing may go at all now."""
    if not lane.queue or lane.queue[0].phase is not READY:
        return True
    flight = lane.queue[0]
    if _is_over(subscription, flight, now):
        return True
    owner = subscription.consumers.owner_of(lane)
    if owner is None:
        subscription.window.keyed.append(lane)
    elif not owner.has_room:
        owner.waiting.append(lane)
    elif subscription.bucket.take(now):
        _send(subscription, flight, owner, now)
    else:
        subscription.window.keyed.appendleft(lane)
        return False
    return True


def _send_new(subscription: Subscription, now: int, budget: int) -> int:
    definition, position, window = (
        subscription.definition,
        subscription.position,
        subscription.window,
    )
    is_keyed, head = definition.mode == KEY_SHARED, subscription.stream.head
    capacity = 1 if definition.strict else subscription.consumers.capacity
    while budget > 0 and subscription.next_seq <= head and len(window) < capacity:
        seq = subscription.next_seq
        if seq <= position.floor or seq in position.above or seq in position.parked:
            subscription.next_seq += 1
            continue
        if seq > position.reserved or subscription.is_blocked:
            break
        held = subscription.backlog.get(seq)
        if held is None:
            break
        if _is_skipped(subscription, held, now):
            subscription.next_seq += 1
            continue
        if is_keyed:
            subscription.next_seq += 1
            flight = _flight(subscription, seq, held)
            window.add(flight)
            budget -= 1
            lane = flight.lane
            if lane is not None and lane.queue[0] is flight:
                window.keyed.pop()
                if not _send_first(subscription, lane, now):
                    break
            continue
        consumer = subscription.consumers.choose()
        if consumer is None or not subscription.bucket.take(now):
            break
        subscription.next_seq += 1
        flight = window.flights[seq] = _flight(subscription, seq, held)
        _send(subscription, flight, consumer, now)
        budget -= 1
    return budget


def _send(subscription: Subscription, flight: Flight, consumer: Consumer, now: int) -> None:
    subscription.window.sent(flight, consumer, now, now + subscription.definition.ack_timeout_ms)
    subscription.stats.redelivered += flight.deliveries > 1
    subscription.sends.append((consumer, flight))


def _is_skipped(subscription: Subscription, held: Held, now: int) -> bool:
    """Must the message not be sent, or not yet?"""
    message, seq = held.message, held.seq
    if message.deliver_at is not None and message.deliver_at > now:
        subscription.position.park(seq, message.deliver_at)
        heapq.heappush(subscription.parked_due, (message.deliver_at, seq))
        subscription.changed()
        return True
    outcome = None
    if held.is_erased:
        outcome = Outcome.ERASED
    elif message.expires_at is not None and message.expires_at < now:
        outcome = Outcome.EXPIRED
    elif message.only_for not in (None, subscription.name) or seq in subscription.stream.removed:
        outcome = Outcome.FILTERED
    if outcome is None:
        return False
    if outcome is Outcome.EXPIRED:
        subscription.expire_unread(seq, held.offset)
        return True
    subscription.settlements.append(Settlement(seq, held.offset, outcome, 0))
    subscription.position.settle(seq)
    subscription.changed()
    return True


def _is_over(subscription: Subscription, flight: Flight, now: int) -> bool:
    """Has its time passed, or was it erased, while it waited to be sent again?"""
    assert flight.held is not None
    if flight.held.is_erased:
        subscription.settle(flight, Outcome.ERASED)
        return True
    expires_at = flight.held.message.expires_at
    if expires_at is None or expires_at >= now:
        return False
    subscription.stats.expired += 1
    subscription.settle(flight, Outcome.EXPIRED)
    return True


def _read_due(subscription: Subscription) -> None:
    """The content of delayed messages that have become due, one after the other."""
    for flight in list(subscription.window.unread.values()):
        held = subscription.backlog.get(flight.seq)
        if held is None:
            break
        subscription.found(flight, held)
