"""Publishing to durable topics."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, AppendRun, Effect, FanOut, Reply, ReplyRuns
from signalhub.core.messages.ask import FanReceipt
from signalhub.core.messages.dedup import KnownAck
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.streams import Held, Topic
from signalhub.core.subscriptions import send
from signalhub.wire import envelope as wire
from signalhub.wire.entry import (
    Entry,
    EntryRun,
    Kind,
    MessageBody,
    Outcome,
    decode_body,
    encode_body,
)
from signalhub.wire.envelope import NULL, Envelope
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.clock import Ids
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.ask import Pending
    from signalhub.core.messages.audience import Topics
    from signalhub.core.messages.dedup import Dedup
    from signalhub.core.messages.runs import PublishRun
    from signalhub.core.patterns.patterns import Patterns
    from signalhub.core.replies import Replies
    from signalhub.core.streams.retention import Pruning
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.counters import Tally
    from signalhub.settings.model import Settings

KEY_CHARS_MAX = 256
HEADERS_MAX = 64
HEADER_CHARS_MAX = 1_024
_QUOTES_MAX = 4 * HEADERS_MAX

_decode_headers: Callable[[bytes], dict[str, str] | None]
_decode_headers = msgspec.json.Decoder(dict[str, str] | None).decode


class PublishReceipt(msgspec.Struct, eq=False):
    """A durable publish that is being written to the log."""

    publisher: Publisher
    message: Envelope | None
    askers: list[Session]
    topic: Topic
    seq: int
    stored: MessageBody
    at_ms: int
    size: int
    key: bytes = b""
    offset: int = -1

    def committed(self, offset: int, now: int) -> list[Effect]:
        """The message is on disk."""
        return self.publisher.committed(self, offset, now)

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        """The log rejected the message."""
        return self.publisher.refused(self, refusal, now)


class RunReceipt(msgspec.Struct, eq=False):
    """Durable publishes of runs that are being written to the log as one run of entries."""

    publisher: Publisher
    sessions: list[Session]
    runs: list[PublishRun]
    # How many messages each of them has.
    counts: list[int]
    topic: Topic
    entry: EntryRun
    keys: list[bytes]
    # Whoever repeated one of them meanwhile, by its key.
    repeated: dict[bytes, list[Session]] | None = None
    offset: int = -1

    def askers_of(self, key: bytes) -> list[Session]:
        """The sessions to answer, for a repeat."""
        if self.repeated is None:
            self.repeated = {}
        if key not in self.repeated:
            ends = list(accumulate(self.counts))
            self.repeated[key] = [self.sessions[bisect_right(ends, self.keys.index(key))]]
        return self.repeated[key]

    def singly(self) -> list[PublishReceipt]:
        """Its messages, each for itself."""
        repeated = self.repeated or {}
        receipts = []
        messages = [
            (session, text)
            for session, run in zip(self.sessions, self.runs, strict=True)
            for text in run.messages()
        ]
        for at, (key, (session, text)) in enumerate(zip(self.keys, messages, strict=True)):
            body = self.entry.body.body(at)
            receipts.append(
                PublishReceipt(
                    self.publisher,
                    wire.decode(text),
                    repeated.get(key, [session]),
                    self.topic,
                    self.entry.seq + at,
                    decode_body(MessageBody, body),
                    self.entry.at_ms,
                    len(body),
                    key,
                )
            )
        return receipts

    def committed(self, offset: int, now: int) -> list[Effect]:
        """The messages are on disk."""
        return self.publisher.committed_runs([self], offset, now)

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        """The log rejected the messages."""
        refused = self.publisher.refused
        return [effect for one in self.singly() for effect in refused(one, refusal, now)]


def _are_some_known(keys: list[bytes], pending: Pending) -> bool:
    """Is one of them pending, or there twice?"""
    return len(set(keys)) < len(keys) or not pending.keys().isdisjoint(keys)


class Publisher:
    """Writes messages of durable topics to the log."""

    def __init__(
        self,
        pending: Pending,
        dedup: Dedup,
        topics: Topics,
        streams: Streams,
        dispatcher: Dispatcher,
        patterns: Patterns,
        retention: Pruning,
        storage: LogState,
        replies: Replies,
        ids: Ids,
        settings: Settings,
        tally: Tally,
    ) -> None:
        self._pending = pending
        self._dedup = dedup
        self._topics = topics
        self._streams = streams
        self._dispatcher = dispatcher
        self._patterns = patterns
        self._index = patterns.index
        self._retention = retention
        self._storage = storage
        self._replies = replies
        self._next_id = ids.next
        self._many_ids = ids.many
        self._fanout_batch = settings.fanout_batch
        self._tally = tally
        self._durability = storage.durability.encode()

    def publish(
        self,
        session: Session,
        message: Envelope,
        request: requests.PublishRequest,
        topic: Topic,
        key: bytes,
        expires_at: float | None,
        now: int,
    ) -> list[Effect]:
        """Append a message to a topic; the sender is answered once it is on disk."""
        self._storage.check()
        headers = check(request)
        for subscription in topic.subscriptions.values():
            if subscription.definition.backlog_max and subscription.is_full:
                raise refusals.backlog_full(topic.name, subscription.name)
        deliver_at = request.deliver_at
        due_ms = None if deliver_at is None else int(self._replies.wall.own(deliver_at))
        stored = MessageBody(
            message.id,
            self._next_id(),
            message.sender,
            request.type,
            bytes(request.data),
            b"",
            message.ttl or None,
            expires_at,
            request.key,
            headers,
            due_ms,
        )
        self._tally.published += 1
        # Searched now and not at the commit of many messages, so that its sender pays for it.
        made: list[Effect] = []
        if topic.fitted != self._index.version:
            made += self.fit(topic, now)
        if self._topics.audience(topic.name).visited:
            made += self._topics.charged(session, topic.name, now)[1]
        return [*made, self.append(topic, stored, now, message, session, key)]

    def fit(self, topic: Topic, now: int) -> list[Append]:
        """Make the parts of patterns that a message to this topic needs, before it is appended."""
        return self._patterns.fit(topic, now)

    def append(
        self,
        topic: Topic,
        stored: MessageBody,
        now: int,
        message: Envelope | None = None,
        session: Session | None = None,
        key: bytes = b"",
    ) -> Append:
        """Append a message at the next position; `message` is the request behind it.

        The topic must be fit for it.
        """
        # Nothing may fail between assigning a position and appending: that would leave a gap.
        body = encode_body(stored)
        seq = topic.assign()
        askers = [] if session is None else [session]
        receipt = PublishReceipt(self, message, askers, topic, seq, stored, now, len(body), key)
        if message is not None:
            self._pending[key] = receipt
        entry = Entry(Kind.PUBLISHED, topic.name, topic.id, seq, now, body)
        return Append(entry, receipt.committed, receipt.refused)

    def publish_runs(
        self, sessions: list[Session], runs: list[PublishRun], topic: Topic, now: int
    ) -> tuple[int, list[Effect]]:
        """Append messages of sessions, as `publish` does with each.

        Returns of how many runs, the first ones; the next one may need more. The caller has checked
        all but repeats, the log and subscriptions, and charges nothing before.
        """
        storage, pending, name = self._storage, self._pending, topic.name
        if storage.fault is not None or storage.is_behind():
            return 0, []
        for subscription in topic.subscriptions.values():
            if subscription.definition.backlog_max:
                return 0, []
        if self._topics.audience(name).visited:
            # The first one pays for a search.
            sessions, runs = sessions[:1], runs[:1]
        keys = runs[0].keys(runs)
        if _are_some_known(keys, pending) or self._dedup.knows_any(keys, now):
            return self._publish_each(sessions, runs, topic, now) if len(runs) > 1 else (0, [])
        counts = [one.count for one in runs]
        taken = 0
        for session, count in zip(sessions, counts, strict=True):
            bucket = session.bucket
            if bucket.rate_s and (count > bucket.burst or bucket.take_many(count, now)):
                break
            taken += 1
        if taken < len(runs):
            if not taken:
                return 0, []
            sessions, runs, counts = sessions[:taken], runs[:taken], counts[:taken]
            del keys[sum(counts) :]
        count = len(keys)
        self._tally.published += count
        pauses: list[Effect] = []
        if topic.fitted != self._index.version:
            pauses += self.fit(topic, now)
        if self._topics.audience(name).visited:
            pauses += self._topics.charged(sessions[0], name, now)[1]
        wall = self._replies.wall
        ahead_ms = [one.own_ahead_ms(wall) for one in sessions]
        bodies = runs[0].bodies(runs, self._many_ids(count), ahead_ms)
        first_seq = topic.assign_many(count)
        entry = EntryRun(Kind.PUBLISHED, name, topic.id, first_seq, now, bodies, count)
        receipt = RunReceipt(self, sessions, runs, counts, topic, entry, keys)
        pending.update(dict.fromkeys(keys, receipt))
        append = AppendRun(entry, receipt.committed, receipt.refused, receipt=receipt)
        return taken, [*pauses, append]

    def _publish_each(
        self, sessions: list[Session], runs: list[PublishRun], topic: Topic, now: int
    ) -> tuple[int, list[Effect]]:
        """Append each run alone, until one may need more."""
        effects: list[Effect] = []
        for at, (session, run) in enumerate(zip(sessions, runs, strict=True)):
            taken, some = self.publish_runs([session], [run], topic, now)
            if not taken:
                return at, effects
            effects += some
        return len(runs), effects

    def committed_runs(self, receipts: list[RunReceipt], offset: int, now: int) -> list[Effect]:
        """Runs are on disk, one after the other."""
        effects: list[Effect] = []
        begin = 0
        while begin < len(receipts):
            topic = receipts[begin].topic
            end = begin + 1
            while end < len(receipts) and receipts[end].topic is topic:
                end += 1
            some = receipts[begin:end]
            effects += self._committed_to(topic, some, offset, now)
            offset += sum([one.entry.count for one in some])
            begin = end
        return effects

    def _committed_to(
        self, topic: Topic, receipts: list[RunReceipt], offset: int, now: int
    ) -> list[Effect]:
        """Runs to one topic are on disk."""
        subscriptions = topic.subscriptions.values()
        if (
            self._topics.audience(topic.name).recipients
            or any([one.definition.backlog_max for one in subscriptions])
            or any([one.repeated for one in receipts])
        ):
            singly = enumerate([one for run in receipts for one in run.singly()], offset)
            return [effect for at, one in singly for effect in self.committed(one, at, now)]
        self._streams.committed_runs(topic, [one.entry for one in receipts], offset)
        for subscription in subscriptions:
            self._dispatcher.published(subscription)
        self._remember(topic, receipts, now)
        sessions: list[Session] = []
        runs: list[PublishRun] = []
        counts: list[int] = []
        seqs: list[int] = []
        seq = receipts[0].entry.seq
        for one in receipts:
            for session, run, count in zip(one.sessions, one.runs, one.counts, strict=True):
                if session.state is SessionState.CONNECTED:
                    sessions.append(session)
                    runs.append(run)
                    counts.append(count)
                    seqs.append(seq)
                seq += count
        if not runs:
            return []
        answers = runs[0].answers(
            runs,
            seqs,
            self._many_ids(sum(counts)),
            topic.answer_head,
            b',"durability":"%b","subscriberCount":%d}' % (self._durability, len(subscriptions)),
            self._replies.wall.shown(now),
        )
        return [ReplyRuns(sessions, answers, counts)]

    def _remember(self, topic: Topic, receipts: list[RunReceipt], now: int) -> None:
        """Remember the ids of the messages, those of the same time together."""
        pending = self._pending
        keys: list[bytes] = []
        at_ms, seq = receipts[0].entry.at_ms, receipts[0].entry.seq
        for one in receipts:
            entry = one.entry
            if entry.at_ms != at_ms:
                self._dedup.remember_queued(keys, now, at_ms, seq, topic.id)
                keys, at_ms, seq = [], entry.at_ms, entry.seq
            keys += one.keys
        self._dedup.remember_queued(keys, now, at_ms, seq, topic.id)
        for one in receipts:
            for key in one.keys:
                pending.pop(key, None)

    def committed(self, receipt: PublishReceipt, offset: int, now: int) -> list[Effect]:
        """The message is on disk: wake subscriptions, send live copies, answer the sender."""
        topic, stored = receipt.topic, receipt.stored
        held = Held(receipt.seq, offset, receipt.at_ms, stored, receipt.size)
        self._streams.committed(topic, held)
        trimmed: list[Effect] = []
        only_for = stored.only_for
        for subscription in topic.subscriptions.values():
            is_meant = only_for is None or only_for == subscription.name
            if not is_meant and not subscription.position.is_settled(receipt.seq):
                # Now, and not when it is read, so that it is not counted as a backlog.
                subscription.settle_unread(receipt.seq, offset, Outcome.FILTERED)
            self._dispatcher.published(subscription)
            if subscription.definition.backlog_max:
                trimmed += self._retention.trim(subscription, now)
        message = receipt.message
        answer = b""
        if message is not None:
            self._pending.pop(receipt.key, None)
            ack = KnownAck(receipt.at_ms, "queued", seq=receipt.seq, stream=topic.id)
            self._dedup.remember_by(receipt.key, now, ack)
            answer = b'%b%d,"durability":"%b"' % (topic.answer_head, receipt.seq, self._durability)
        audience = self._topics.audience(topic.name)
        is_due = stored.deliver_at is None or stored.deliver_at <= now
        # A replay into one subscription does not go to plain listeners.
        is_live = is_due and (stored.replay is None or stored.only_for is None)
        if audience.recipients and is_live:
            head, tail = send.live(topic, held, self._replies.wall.shown(now))
            fan = FanReceipt(
                None, message, topic.name, now, stored.expires_at, topic, receipt.askers, answer
            )
            return [*trimmed, FanOut(audience, head, tail, self._fanout_batch, fan)]
        if message is None:
            return trimmed
        return trimmed + self.answers(topic, receipt.askers, message, answer, 0, now)

    def answers(
        self,
        topic: Topic,
        askers: list[Session],
        message: Envelope,
        answer: bytes,
        listeners: int,
        now: int,
    ) -> list[Effect]:
        """Answer everyone who published this message; repeats are marked as duplicates."""
        payload = b'%b,"subscriberCount":%d' % (answer, len(topic.subscriptions) + listeners)
        if len(askers) == 1:
            (asker,) = askers
            if asker.state is not SessionState.CONNECTED:
                return []
            return [self._replies.reply(asker, message, "hub:published", payload + b"}", now)]
        return [
            self._replies.reply(
                asker,
                message,
                "hub:published",
                payload + (b',"duplicate":true}' if index else b"}"),
                now,
            )
            for index, asker in enumerate(askers)
            if asker.state is SessionState.CONNECTED
        ]

    def published_before(
        self, session: Session, message: Envelope, ack: KnownAck, now: int
    ) -> Reply:
        """Repeat the original answer."""
        name = requests.parse(requests.PublishRequest, message.payload).topic
        topic = self._streams.topics.get(name)
        answer = {
            "topic": name,
            "subscriberCount": 0 if topic is None else len(topic.subscriptions),
            "epoch": self._streams.epoch_of(ack.stream),
            "seq": ack.seq,
            "durability": self._storage.durability,
            "duplicate": True,
        }
        return self._replies.reply(session, message, "hub:published", wire.encode(answer), now)

    def refused(self, receipt: PublishReceipt, refusal: Refusal, now: int) -> list[Effect]:
        """The log rejected the message."""
        message = receipt.message
        if message is None:
            return []
        self._pending.pop(receipt.key, None)
        return [
            self._replies.refuse(asker, message, refusal, now)
            for asker in receipt.askers
            if asker.state is SessionState.CONNECTED
        ]


def check(request: requests.PublishRequest) -> dict[str, str] | None:
    """Refuse a request that does not fit a message of a durable topic; return the headers."""
    headers = None if request.headers == NULL else headers_of(request.headers)
    check_parts(request.key, headers)
    return headers


def headers_of(given: Raw) -> dict[str, str] | None:
    """Decode headers, unless there are far too many of them.

    A member has four quotes that are no part of a name or value, at least two of which do not
    follow a backslash.
    """
    text = bytes(given)
    if text.count(b'"') - text.count(b'\\"') > _QUOTES_MAX:
        raise _too_many_headers()
    try:
        return _decode_headers(text)
    except requests.UNFIT as error:
        raise requests.unfit(error, "payload.headers") from None


def _too_many_headers() -> Refusal:
    return refusals.structural(f"payload.headers has more than {HEADERS_MAX} members")


def check_parts(key: str | None, headers: dict[str, str] | None) -> None:
    """Check the key and the headers."""
    if key is not None and len(key) > KEY_CHARS_MAX:
        raise refusals.structural(f"payload.key is longer than {KEY_CHARS_MAX} characters")
    if headers is None:
        return
    if len(headers) > HEADERS_MAX:
        raise _too_many_headers()
    if any(len(name) + len(value) > HEADER_CHARS_MAX for name, value in headers.items()):
        raise refusals.structural(f"a header is longer than {HEADER_CHARS_MAX} characters")
