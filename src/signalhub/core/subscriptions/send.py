"""One pass of dispatch over a subscription.

A pass handles deadlines, then redeliveries, then new messages, until the stream is read to its
head, the window is full or no consumer has room. It never waits: messages that are not in memory
are fetched, and their arrival wakes the subscription again.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

from msgspec import Raw

from signalhub import native
from signalhub.core.streams.streams import Held, Mailbox, Stream, Topic
from signalhub.core.subscriptions.consumers import SHARED, Consumer, KeyQueue
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import READY, SENT, Flight, Series
from signalhub.wire import envelope as wire
from signalhub.wire.entry import (
    DeadLetterOrigin,
    MessageBody,
    Outcome,
    RedrivenOrigin,
    ReplayOrigin,
)
from signalhub.wire.frames import text_header

if native.IS_ON:
    from signalhub_native import first_copies

PASS_MESSAGES_MAX: Final = 512
# Its copies are written as one piece.
SERIES_BYTES_MAX: Final = 2**18


def run(subscription: Subscription, now: int, *, may_send_again: bool = True) -> bool:
    """Run one pass; `True` if it stopped only because its budget was used up."""
    window = subscription.window
    subscription.is_hungry = False
    _meet_deadlines(subscription, now)
    if subscription.is_paused or not subscription.consumers.all or now < subscription.not_before_ms:
        return False
    if window.unread:
        _read_due(subscription)
    budget = PASS_MESSAGES_MAX
    if window.ready and may_send_again:
        budget = _send_again(subscription, now, budget)
    if window.is_keyed and may_send_again:
        budget = _send_keyed(subscription, now, budget)
    if subscription.next_seq <= subscription.stream.head:
        budget = _send_new(subscription, now, budget)
    return budget <= 0


def _meet_deadlines(subscription: Subscription, now: int) -> None:
    """Fail attempts that timed out, end pauses, and add delayed messages that are due."""
    window = subscription.window
    if window.exhausted:
        subscription.policy_changed()
    for flight in window.overdue(now) if window.is_due(now) else ():
        if flight.phase is SENT and _may_be_acked(flight, now):
            window.set_deadline(flight, now + subscription.definition.ack_timeout_ms)
        elif flight.phase is SENT:
            subscription.stats.timeouts += 1
            subscription.fail(flight, "ack timeout", now)
        else:
            window.back(flight)
    due = subscription.parked_due
    while due and due[0][0] <= now and subscription.has_room:
        _, seq = heapq.heappop(due)
        if seq in subscription.position.parked and seq not in window:
            window.add(_flight(subscription, seq, None))


def _may_be_acked(flight: Flight, now: int) -> bool:
    """Was its ack perhaps not read, because its consumer has sent more than the disk takes?"""
    return flight.consumer is not None and flight.consumer.session.is_unheard(now)


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
        if consumer is None:
            subscription.is_hungry = True
            break
        if not subscription.bucket.take(now):
            break
        _send(subscription, flight, consumer, now)
        budget -= 1
    return budget


def _send_keyed(subscription: Subscription, now: int, budget: int) -> int:
    """Send the first message of each key that has none in flight."""
    keyed = subscription.window.keyed
    for consumer in subscription.consumers.all:
        if consumer.waiting and not consumer.has_room:
            subscription.is_hungry = True
        # Keys whose owner has no room wait with the owner, so that passes do not revisit them.
        while consumer.waiting and consumer.has_room and budget > 0:
            if not _send_first(subscription, consumer.waiting.popleft(), now):
                return budget
            budget -= 1
    for _ in range(len(keyed)):
        if budget <= 0 or not _send_first(subscription, keyed.popleft(), now):
            break
        budget -= 1
    return budget


def _send_first(subscription: Subscription, queue: KeyQueue, now: int) -> bool:
    """Send the first message of a key if possible; `False` if the rate limit is reached."""
    if not queue.flights or queue.flights[0].phase is not READY:
        return True
    flight = queue.flights[0]
    if _is_over(subscription, flight, now):
        return True
    owner = subscription.consumers.owner_of(queue)
    if owner is None:
        subscription.window.keyed.append(queue)
    elif not owner.has_room:
        subscription.is_hungry = True
        owner.waiting.append(queue)
    elif subscription.bucket.take(now):
        _send(subscription, flight, owner, now)
    else:
        subscription.window.keyed.appendleft(queue)
        return False
    return True


def _send_new(subscription: Subscription, now: int, budget: int) -> int:
    definition, position, window = (
        subscription.definition,
        subscription.position,
        subscription.window,
    )
    above, bucket = position.above, subscription.bucket
    stream, head = subscription.stream, subscription.stream.head
    capacity = 1 if definition.strict else subscription.consumers.capacity
    has_series = _has_series(subscription)
    is_part = subscription.pattern is not None
    while budget > 0 and subscription.next_seq <= head and len(window) < capacity:
        if is_part and not subscription.consumers.have_room:
            # There may be many parts, and none reads ahead without having its turn.
            subscription.is_hungry = True
            break
        if has_series:
            sent = _send_series(subscription, now, min(budget, capacity - len(window)))
            if sent:
                budget -= sent
                continue
        seq = subscription.next_seq
        if seq <= position.floor or (above.count and seq in above) or seq in position.parked:
            subscription.next_seq += 1
            continue
        if seq > position.reserved or (window.exhausted and subscription.is_blocked):
            break
        held = stream.recent.get(seq) or subscription.backlog.get(seq)
        if held is None:
            break
        if _is_skipped(subscription, held, now):
            subscription.next_seq += 1
            continue
        if window.is_keyed:
            subscription.next_seq += 1
            flight = _flight(subscription, seq, held)
            window.add(flight)
            budget -= 1
            queue = flight.key_queue
            if queue is not None and queue.flights[0] is flight:
                window.keyed.pop()
                if not _send_first(subscription, queue, now):
                    break
            continue
        consumer = subscription.consumers.choose()
        if consumer is None:
            subscription.is_hungry = True
            break
        if bucket.rate_s and not bucket.take(now):
            break
        subscription.next_seq += 1
        flight = _flight(subscription, seq, held)
        window.add_first(flight)
        _send(subscription, flight, consumer, now)
        budget -= 1
    if is_part and subscription.next_seq <= head and not subscription.consumers.have_room:
        subscription.is_hungry = True
    return budget


def _has_series(subscription: Subscription) -> bool:
    """Does one consumer get every message, without a receipt for each or a limited rate?"""
    consumers = subscription.consumers.all
    return (
        isinstance(subscription.stream, Topic)
        and not subscription.window.is_keyed
        and not subscription.bucket.rate_s
        and (subscription.definition.mode != SHARED or len(consumers) == 1)
        and not consumers[0].auto_ack
    )


def _send_series(subscription: Subscription, now: int, count_max: int) -> int:
    """Send the next messages as a series; 0 if each has to be looked at for itself."""
    position, window, stream = subscription.position, subscription.window, subscription.stream
    first = subscription.next_seq
    if window.exhausted or first <= position.doubtful:
        return 0
    consumer = subscription.consumers.all[0]
    if not consumer.has_room:
        return 0
    count = min(
        count_max,
        consumer.room,
        position.reserved - first + 1,
        stream.head - first + 1,
    )
    seqs = range(first, first + count)
    if position.above.last >= first or stream.removed.last >= first:
        return 0
    if not (position.parked.keys().isdisjoint(seqs) and position.failures.keys().isdisjoint(seqs)):
        return 0
    room = min(consumer.bytes_room, SERIES_BYTES_MAX)
    found: list[Held] = []
    recent, backlog, name = stream.recent.get, subscription.backlog.get, subscription.name
    for seq in seqs:
        held = recent(seq) or backlog(seq)
        if held is None or held.is_erased:
            break
        message = held.message
        if (
            (message.expires_at is not None and message.expires_at < now)
            or (message.deliver_at is not None and message.deliver_at > now)
            or (message.only_for is not None and message.only_for != name)
        ):
            break
        found.append(held)
        room -= held.size
        if room <= 0:
            break
    if found:
        # It is the only choice; others that join later have their turn after it.
        subscription.consumers.choose()
        deadline_ms = now + subscription.definition.ack_timeout_ms
        series = Series(first, found, consumer, now, deadline_ms)
        window.begin(series)
        subscription.next_seq = first + len(found)
        subscription.sends.append(series)
    return len(found)


def _send(subscription: Subscription, flight: Flight, consumer: Consumer, now: int) -> None:
    subscription.window.sent(flight, consumer, now, now + subscription.definition.ack_timeout_ms)
    subscription.stats.redelivered += flight.deliveries > 1
    subscription.sends.append((consumer, flight))


def _is_skipped(subscription: Subscription, held: Held, now: int) -> bool:
    """Skip a message that must not be sent, or not yet; `True` if skipped."""
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
    elif (message.only_for is not None and message.only_for != subscription.name) or (
        subscription.stream.removed.count and seq in subscription.stream.removed
    ):
        outcome = Outcome.FILTERED
    if outcome is None:
        return False
    if outcome is Outcome.EXPIRED:
        subscription.expire_unread(seq, held.offset)
        return True
    subscription.settle_unread(seq, held.offset, outcome)
    return True


def _is_over(subscription: Subscription, flight: Flight, now: int) -> bool:
    """Settle a message that expired or was erased while it waited; `True` if so."""
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
    """Read delayed messages that are due, one after the other."""
    for flight in list(subscription.window.unread.values()):
        held = subscription.backlog.get(flight.seq)
        if held is None:
            break
        subscription.found(flight, held)


def frames_of(subscription: Subscription, series: Series, stamp_ms: int) -> bytes:
    """The frames of a series, complete with their headers."""
    pieces: list[bytes] = []
    done, count = 0, len(series.held)
    while done < count:
        if native.IS_ON:
            frames, composed = first_copies(
                series.held,
                done,
                series.first + done,
                series.consumer.address_json,
                subscription.stream.copy_head,
                subscription.copy_delivery,
                delivery_prefix(subscription).encode(),
                stamp_ms,
            )
            if composed == count:
                return frames
            pieces.append(frames)
            done += composed
        if done < count:
            frame = frame_of(subscription, series.consumer, series.held[done], 1, stamp_ms)
            pieces += text_header(len(frame)), frame
            done += 1
    return b"".join(pieces)


def frame_of(
    subscription: Subscription, consumer: Consumer, held: Held, attempt: int, stamp_ms: int
) -> bytes:
    """The frame of one attempt to deliver a message to a consumer."""
    if isinstance(subscription.stream, Mailbox):
        metadata = _mail_metadata(subscription.stream, held, attempt)
    else:
        metadata = _topic_metadata(subscription, held, attempt)
    head, tail = _split(held.message, metadata, stamp_ms)
    return b"".join((head, consumer.address_json, tail))


def delivery_id(subscription: Subscription, seq: int, attempt: int) -> str:
    """A unique id of one delivery attempt."""
    return f"{delivery_prefix(subscription)}{seq}.{attempt}"


def delivery_prefix(subscription: Subscription) -> str:
    """What these ids begin with in the present generation."""
    return f"{subscription.tag}.{subscription.position.generation}."


def is_attempt(
    subscription: Subscription, seq: int, deliveries: int, given: str, *, is_latest: bool = False
) -> bool:
    """Is this the id of a delivery attempt in the present generation, or of the latest one?"""
    if is_latest:
        return given == delivery_id(subscription, seq, deliveries)
    name, _, attempt = given.rpartition(".")
    return (
        name == f"{delivery_prefix(subscription)}{seq}"
        and attempt.isdecimal()
        and len(attempt) < 10
        and 1 <= int(attempt) <= deliveries
    )


def live(topic: Stream, held: Held, stamp_ms: int) -> tuple[bytes, bytes]:
    """Head and tail of live copies for plain listeners, who settle nothing."""
    return _split(held.message, _unsettled_metadata(topic, held) + b"}", stamp_ms)


def replayed(topic: Stream, held: Held, to: str, stamp_ms: int) -> bytes:
    """A copy sent by `hub:replay`."""
    metadata = _unsettled_metadata(topic, held) + b',"replay":true}'
    head, tail = _split(held.message, metadata, stamp_ms)
    return b"".join((head, wire.encode(to), tail))


def _unsettled_metadata(topic: Stream, held: Held) -> bytes:
    delivery = {"epoch": topic.epoch, "seq": held.seq, "publishedAt": held.at_ms}
    more = b',"delivery":' + wire.encode(delivery)
    return b"".join((topic.copy_head, _added(held.message), more))


def _topic_metadata(subscription: Subscription, held: Held, attempt: int) -> bytes:
    message = held.message
    return b"".join(
        (
            subscription.stream.copy_head,
            b"" if _is_plain(message) else _added(message),
            subscription.copy_delivery,
            b'%d,"attempt":%d,"redelivered":%b,"publishedAt":%d,"id":"%b"}}'
            % (
                held.seq,
                attempt,
                b"true" if attempt > 1 else b"false",
                held.at_ms,
                delivery_id(subscription, held.seq, attempt).encode(),
            ),
        )
    )


def _mail_metadata(mailbox: Mailbox, held: Held, attempt: int) -> bytes:
    delivery: dict[str, object] = {
        "stream": mailbox.name,
        "epoch": mailbox.epoch,
        "seq": held.seq,
        "attempt": attempt,
        "redelivered": attempt > 1,
    }
    if mailbox.is_host:
        delivery["acceptedAt"] = held.at_ms
    message = held.message
    start = wire.forwarded_metadata(message.metadata, message.id)
    is_copy = message.replay is not None or message.redriven is not None
    more = _added(message) if is_copy else b""
    return b"".join((start, more, b',"delivery":', wire.encode(delivery), b"}"))


def _is_plain(message: MessageBody) -> bool:
    """Does the message have no optional metadata?"""
    return (
        message.key is None
        and message.headers is None
        and message.dead is None
        and message.replay is None
        and message.redriven is None
    )


def _added(message: MessageBody) -> bytes:
    """Optional metadata, as JSON members."""
    added: dict[str, Any] = {}
    if message.key is not None:
        added["key"] = message.key
    if message.headers is not None:
        added["headers"] = message.headers
    if message.dead is not None:
        added["deadLetter"] = dead_letter(message.dead)
    if message.replay is not None:
        # `replay` alone marks answers to `hub:replay`, which clients do not take for deliveries.
        added["original"] = original(message.replay)
    if message.redriven is not None:
        added["redriven"] = redriven(message.redriven)
    return b"," + wire.encode(added)[1:-1] if added else b""


def dead_letter(dead: DeadLetterOrigin) -> dict[str, Any]:
    """`metadata.deadLetter`."""
    return {
        "topic": dead.topic,
        "subscription": dead.subscription,
        "epoch": dead.epoch,
        "seq": dead.seq,
        "attempts": dead.attempts,
        "reason": dead.reason,
        "firstFailure": dead.first_failure,
        "lastFailure": dead.last_failure,
        "consumers": dead.consumers,
    }


def original(replay: ReplayOrigin) -> dict[str, Any]:
    """`metadata.original`: the replay job and the position of the original."""
    return {
        "job": replay.job,
        "shard": replay.shard,
        "epoch": replay.epoch,
        "offset": replay.offset,
        "id": replay.id,
    }


def redriven(origin: RedrivenOrigin) -> dict[str, Any]:
    """`metadata.redriven`: the message that became a dead letter before."""
    found = {"id": origin.id, "epoch": origin.epoch, "seq": origin.seq}
    return found | {"edited": True} if origin.is_edited else found


def _split(message: MessageBody, metadata: bytes, stamp_ms: int) -> tuple[bytes, bytes]:
    return wire.copies(
        message_id=message.copy_id,
        sender=message.sender,
        type=message.type,
        data=Raw(message.data),
        now_ms=stamp_ms,
        correlation_id=None,
        metadata=metadata,
        ttl=message.ttl,
    )
