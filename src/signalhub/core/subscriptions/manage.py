"""Durable subscriptions: show, change, pause, seek and delete.

Options change at once, everything else once it is on disk. A change that the log rejects is undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, Fetch, Reply
from signalhub.core.limits.scans import Scans, Steps, steps_of
from signalhub.core.operations import operated_unless_owned
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.catalog import check_may_read
from signalhub.core.streams.streams import Topic
from signalhub.core.subscriptions import progress
from signalhub.core.subscriptions.join import (
    changed,
    check_options,
    find_start,
)
from signalhub.core.subscriptions.position import Position
from signalhub.core.subscriptions.settle import OPEN, REASON_CHARS_MAX, find
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import SENT, WAITING
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Kind, Outcome, StoredEntry
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.log_state import LogState
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.core.subscriptions.join import Subscriptions

PAGE_MAX = 100
# What the details of an obstacle say about its place.
_WHERE = ("segment", "position")


class Management:
    """Shows and changes subscriptions on request."""

    def __init__(
        self,
        streams: Streams,
        subscriptions: Subscriptions,
        dispatcher: Dispatcher,
        scans: Scans,
        storage: LogState,
        replies: Replies,
    ) -> None:
        self._streams = streams
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._scans = scans
        self._storage = storage
        self._replies = replies

    def handlers(self) -> dict[str, Handler]:
        return {
            "hub:sub_info": self.info,
            "hub:sub_update": self.update,
            "hub:sub_pause": self.pause,
            "hub:sub_resume": self.resume,
            "hub:sub_delete": self.delete,
            "hub:list_subs": self.list_subscriptions,
            "hub:sub_settle": self.settle,
            "hub:seek": self.seek,
        }

    def _named(self, session: Session, message: Envelope) -> Subscription:
        request = requests.parse(requests.SubscriptionNameRequest, message.payload)
        check_may_read(session, request.topic)
        return self._subscriptions.named(request.topic, request.subscription)

    def _changed(self, session: Session, message: Envelope, verb: str) -> Subscription:
        """The subscription to change: its owner may, others need a permission."""
        request = requests.parse(requests.SubscriptionNameRequest, message.payload)
        allowance, with_deleted = session.allowance, verb == "delete"
        if allowance is EVERYTHING:
            return self._subscriptions.named(
                request.topic, request.subscription, with_deleted=with_deleted
            )
        topic = self._streams.topics.get(request.topic)
        found = None if topic is None else topic.subscriptions.get(request.subscription)
        owner = "" if found is None else found.definition.owner
        may = allowance.may_delete if verb == "delete" else allowance.may_manage
        # That there is none may be told to those who could list it.
        is_told = found is None and allowance.may_subscribe(request.topic)
        if not is_told and not may(request.topic, owner):
            raise refusals.unauthorized(verb, request.topic)
        return self._subscriptions.named(
            request.topic, request.subscription, with_deleted=with_deleted
        )

    def info(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_info`."""
        return self._shown(session, message, self._named(session, message), now)

    def _shown(
        self, session: Session, message: Envelope, subscription: Subscription, now: int
    ) -> list[Effect]:
        """Answer with its state; the age of the oldest message may have to be read from the log."""

        def reply(oldest_ms: int | None, later: int) -> Reply:
            payload = wire.encode(describe(subscription, oldest_ms, later))
            return self._replies.reply(session, message, "hub:sub_info_response", payload, later)

        oldest_ms = subscription.oldest_ms()
        if oldest_ms is not None or not subscription.lag:
            return [reply(oldest_ms, now)]

        def then(found: list[StoredEntry] | None, later: int) -> list[Effect]:
            if session.state is not SessionState.CONNECTED:
                return []
            return [reply(found[0].at_ms if found else None, later)]

        stream = subscription.stream
        seq = subscription.position.first_unsettled
        return [Fetch(stream.name, stream.id, seq, 1, 1, then)]

    def list_subscriptions(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:list_subs`: one page of the subscriptions of one topic or of all topics."""
        request = requests.parse_or_empty(requests.ListSubscriptionsRequest, message.payload)
        limit = requests.page(request.limit, PAGE_MAX)
        offset = max(0, int(request.offset or 0))
        if request.topic is not None:
            check_may_read(session, request.topic)
        if request.topic is None:
            size = len(self._streams.topics) + self._streams.count_subscriptions()
        else:
            size = len(self._streams.find(request.topic).subscriptions)
        steps = self._list(session, request.topic, offset, limit, now)
        return self._scans.run(session, message, steps, now, size=size)

    def _list(self, session: Session, only: str | None, offset: int, limit: int, now: int) -> Steps:
        topics, allowance = self._streams.topics, session.allowance
        cost = allowance.subscribe_cost
        shown: list[Subscription] = []
        before = 0
        for name in self._streams.names() if only is None else [only]:
            yield cost
            topic = topics.get(name)
            if topic is None or not allowance.may_subscribe(name):
                continue
            for part, examined in steps_of(topic.names()):
                found = [topic.subscriptions[one] for one in part if one in topic.subscriptions]
                shown += found[max(0, offset - before) :]
                before += len(found)
                yield examined
                if len(shown) > limit:
                    break
            if len(shown) > limit:
                break
        return "hub:sub_info_response", {
            "subscriptions": [describe(one, one.oldest_ms(), now) for one in shown[:limit]],
            "offset": offset,
            "limit": limit,
            "hasMore": len(shown) > limit,
        }

    def pause(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_pause`: send nothing until resumed; acks still count."""
        return self._set_paused(session, message, now, is_paused=True)

    def resume(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_resume`."""
        return self._set_paused(session, message, now, is_paused=False)

    def _set_paused(
        self, session: Session, message: Envelope, now: int, *, is_paused: bool
    ) -> list[Effect]:
        subscription = self._changed(session, message, "manage")
        self._storage.check()

        def done(offset: int, later: int) -> list[Effect]:
            subscription.position.is_paused = is_paused
            if subscription.pauses == number:
                subscription.pausing = None
            subscription.touch()
            self._dispatcher.wake(subscription)
            return []

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            subscription.pausing = None
            return []

        subscription.pausing = is_paused
        subscription.pauses += 1
        number = subscription.pauses
        entry = subscription.stream.entry(Kind.CURSOR, progress.cursor(subscription), now)
        answer = self._replies.answer(
            session,
            message,
            "hub:sub_info_response",
            lambda: describe(subscription, subscription.oldest_ms(), now),
        )
        append = Append(entry, done, undo)
        append.follow(answer.committed, answer.refused)
        return [*_record(session, message, "manage", subscription, now), append]

    def update(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_update`: change the options of a running subscription."""
        subscription = self._changed(session, message, "manage")
        given = requests.parse(requests.SubscriptionOptions, message.payload)
        check_options(session, subscription.stream.name, given)
        definition = changed(subscription.definition, given)
        append = self._subscriptions.redefine(subscription, definition, now)
        self._dispatcher.wake(subscription)
        before = [(one, one.window, one.auto_ack) for one in subscription.consumers]
        for consumer, _, _ in before:
            if given.window is not None and consumer.group is None:
                consumer.window = definition.window
            consumer.auto_ack = definition.auto_ack
        answer = self._replies.answer(
            session,
            message,
            "hub:sub_info_response",
            lambda: describe(subscription, subscription.oldest_ms(), now),
        )

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            for consumer, window, auto_ack in before:
                consumer.window, consumer.auto_ack = window, auto_ack
            return answer.refused(refusal, later)

        append.follow(answer.committed, undo)
        return [*_record(session, message, "manage", subscription, now), append]

    def settle(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_settle`: settle what was sent to somebody; answered once that is on disk."""
        subscription = self._changed(session, message, "manage")
        request = requests.parse(requests.SettleForRequest, message.payload)
        if request.generation not in (None, subscription.last_generation):
            raise _outdated(subscription, request.generation)
        self._storage.check()
        phases = (SENT,) if request.verdict == "nack" else OPEN
        seqs = dict.fromkeys(request.seqs)
        found = [find(subscription, seq, phases) for seq in seqs]
        flights = [flight for flight in found if flight is not None]
        reason = (request.reason or f"{request.verdict} by an operator")[:REASON_CHARS_MAX]
        for flight in flights:
            if request.verdict == "ack":
                subscription.settle(flight, Outcome.ACKED)
            elif request.verdict == "nack":
                subscription.stats.nacked += 1
                subscription.fail(flight, reason, now, max(0, request.delay_ms or 0))
            else:
                subscription.terminate(flight, reason, now)
        facts: dict[str, object] = {
            "floor": subscription.position.floor,
            "accepted": len(flights),
            "ignored": [seq for seq, one in zip(seqs, found, strict=True) if one is None],
        }
        answer = self._replies.answer(session, message, "hub:sub_settled", facts)
        self._dispatcher.wake(subscription)
        if flights:
            subscription.waiters.append((answer, facts))
            return [*_record(session, message, "manage", subscription, now)]
        return answer.committed(0, now)

    def delete(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:sub_delete`."""
        subscription = self._changed(session, message, "delete")
        if subscription.pattern is not None:
            topic, name = subscription.stream.name, subscription.name
            raise refusals.part_of_pattern(topic, name, subscription.definition.pattern)
        if subscription.deleting is not None:
            # Whether it is gone is known once that entry is on disk.
            return self._replies.after(subscription.deleting, self.delete, session, message)
        self._storage.check()
        payload = describe(subscription, subscription.oldest_ms(), now) | {"deleted": True}
        answer = self._replies.answer(session, message, "hub:sub_info_response", payload)
        append = self._subscriptions.delete(subscription, now)
        append.follow(answer.committed, answer.refused)
        return [*_record(session, message, "delete", subscription, now), append]

    def seek(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:seek`: continue from another position; acks of earlier deliveries are ignored."""
        subscription = self._changed(session, message, "manage")
        request = requests.parse(requests.SeekRequest, message.payload)
        topic = subscription.stream
        assert isinstance(topic, Topic)
        self._storage.check()

        def refuse(refusal: Refusal, later: int) -> list[Effect]:
            if session.state is not SessionState.CONNECTED:
                return []
            return [self._replies.refuse(session, message, refusal, later)]

        def then(floor: int, later: int) -> list[Effect]:
            if session.state is not SessionState.CONNECTED:
                return []
            if subscription.is_deleted or subscription.is_deleting:
                return refuse(refusals.unknown_subscription(topic.name, subscription.name), later)
            if request.generation not in (None, subscription.last_generation):
                return refuse(_outdated(subscription, request.generation), later)
            old = subscription.position
            will_replay, will_skip = moved(old, floor, topic.head)
            payload: dict[str, object] = {
                "epoch": topic.epoch,
                "next": floor + 1,
                "willReplay": will_replay,
                "willSkip": will_skip,
                "generation": subscription.last_generation,
            }
            if request.dry_run:
                encoded = wire.encode(payload)
                return [self._replies.reply(session, message, "hub:sought", encoded, later)]
            answer = self._replies.answer(session, message, "hub:sought", payload)
            append = sought(self._dispatcher, subscription, floor, later)
            payload["generation"] = subscription.last_generation
            append.follow(answer.committed, answer.refused)
            return [*_record(session, message, "manage", subscription, later), append]

        def unread(later: int) -> list[Effect]:
            return refuse(refusals.storage_unreadable(), later)

        return find_start(topic, request.to, then, unread, now)


def _outdated(subscription: Subscription, planned: int | None) -> Refusal:
    return refusals.other_generation(subscription.name, planned or 0, subscription.last_generation)


def _record(
    session: Session, message: Envelope, verb: str, subscription: Subscription, now: int
) -> list[Append]:
    over, owner = f"{subscription.stream.name}/{subscription.name}", subscription.definition.owner
    return operated_unless_owned(session, message.type, verb, over, owner, now)


def describe(subscription: Subscription, oldest_ms: int | None, now: int) -> dict[str, object]:
    """The facts that `hub:sub_info` shows."""
    definition, position = subscription.definition, subscription.position
    stream, window, stats = subscription.stream, subscription.window, subscription.stats
    lag = subscription.lag
    obstacle = subscription.backlog.obstacle
    lag_s: float | None = 0
    if lag and oldest_ms is not None:
        lag_s = max(0, now - oldest_ms) / 1000
    elif lag and obstacle is not None:
        # The message cannot be read, and so neither can its age.
        lag_s = None
    return {
        "topic": stream.name,
        "subscription": subscription.name,
        "mode": definition.mode,
        "epoch": stream.epoch,
        "generation": position.generation,
        "consumers": [
            {
                "consumer": one.name,
                "subscriptionId": one.id,
                "session": one.session.id,
                "inFlight": one.flights,
                "window": one.window,
            }
            for one in subscription.consumers
        ],
        "floor": position.floor,
        "next": subscription.next_to_send,
        "head": stream.head,
        "first": stream.first,
        "lag": lag,
        "lagSeconds": lag_s,
        "inFlight": window.count(SENT),
        "waitingRetry": window.count(WAITING),
        "exhausted": window.exhausted,
        "settledAboveFloor": position.above.count,
        "parked": len(position.parked),
        "deadLettered": position.dead_lettered,
        "redelivered": stats.redelivered,
        "lost": stats.lost,
        "paused": subscription.is_paused,
        "blocked": subscription.is_blocked,
        "heldUp": None if obstacle is None else held_up(subscription, obstacle),
        "window": definition.window,
        "strict": definition.strict,
        "ackTimeoutMs": definition.ack_timeout_ms,
        "maxDeliveries": definition.max_deliveries,
        "backoffMs": definition.backoff_ms,
        "backoffCapMs": definition.backoff_cap_ms,
        "heartbeatMs": subscription.heartbeat_ms,
        "autoAck": definition.auto_ack,
        "poison": subscription.poison_policy,
        "deadLetter": definition.dead_letter,
        "ratePerSecond": definition.rate_s,
        "idleExpiryMs": definition.idle_expiry_ms,
        "backlogMax": definition.backlog_max,
        "backlogPolicy": definition.backlog_policy or None,
    } | ({"pattern": definition.pattern} if definition.pattern else {})


def held_up(subscription: Subscription, obstacle: Refusal) -> dict[str, object]:
    """Where a subscription waits, and why."""
    where = {name: obstacle.details[name] for name in _WHERE if name in obstacle.details}
    why = {"code": obstacle.code, "reason": obstacle.message}
    return {"seq": subscription.next_seq, **why, **where}


def sought(dispatcher: Dispatcher, subscription: Subscription, floor: int, now: int) -> Append:
    """Move a subscription once that is on disk."""
    subscription.last_generation += 1
    generation = subscription.last_generation
    subscription.seeking = (floor, generation)

    def done(offset: int, later: int) -> list[Effect]:
        if subscription.seeking == (floor, generation):
            subscription.seeking = None
        subscription.seek(floor, generation)
        dispatcher.wake(subscription)
        return []

    def undo(refusal: Refusal, later: int) -> list[Effect]:
        subscription.seeking = None
        return []

    entry = subscription.stream.entry(Kind.CURSOR, progress.cursor(subscription), now)
    return Append(entry, done, undo)


def moved(old: Position, floor: int, head: int) -> tuple[int, int]:
    """The number of settled positions a seek redelivers, and of unsettled ones it skips."""
    parked = [seq for seq in old.parked if seq > old.floor]
    if floor < old.floor:
        return old.floor - floor + old.above.count, 0
    settled_within = old.above.count_within(old.floor + 1, floor)
    parked_within = sum(seq <= floor for seq in parked)
    skipped = min(floor, head) - old.floor - settled_within - parked_within
    return old.above.count - settled_within, max(0, skipped)
