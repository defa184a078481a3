"""`hub:replay` sends a range of a topic again; `hub:republish` appends what a job selected."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, Fetch, Reply
from signalhub.core.jobs import Jobs, Phase
from signalhub.core.messages import publish
from signalhub.core.replies import DeferredAnswer
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.catalog import check_may_read
from signalhub.core.streams.streams import Mailbox, Topic
from signalhub.core.subscriptions import send
from signalhub.wire import envelope as wire
from signalhub.wire.entry import (
    Entry,
    Kind,
    MessageBody,
    ReplayOrigin,
    ReplaysStandBody,
    StoredEntry,
    decode_body,
    encode_body,
)
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal
from signalhub.wire.names import HUB_TYPE_PREFIX, is_address

if TYPE_CHECKING:
    from signalhub.core.erasure import Erasures
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.ask import Asks
    from signalhub.core.messages.publish import Publisher
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.streams.dead_letters import DeadLetters
    from signalhub.core.streams.retention import Pruning
    from signalhub.core.streams.streams import Streams

LIMIT_MAX = 10_000
PAGE_MESSAGES = 256
PAGE_BYTES = 2**20


class Replayer:
    """Replays topics, and appends copies that a job selected in the lake."""

    def __init__(
        self,
        replays: Replays,
        streams: Streams,
        publisher: Publisher,
        letters: DeadLetters,
        asks: Asks,
        retention: Pruning,
        erasures: Erasures,
        storage: LogState,
        replies: Replies,
    ) -> None:
        self._replays = replays
        self._streams = streams
        self._publisher = publisher
        self._letters = letters
        self._asks = asks
        self.retention = retention
        self.erasures = erasures
        self._storage = storage
        self.replies = replies

    def handlers(self) -> dict[str, Handler]:
        return {"hub:replay": self.replay, "hub:republish": self.republish}

    def replay(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:replay`: send copies in order, then `hub:replayed` with the position reached."""
        request = requests.parse(requests.ReplayRequest, message.payload)
        if not session.allowance.may_read(request.topic):
            check_may_read(session, request.topic)
        topic = self._streams.find(request.topic)
        if request.epoch is not None and request.epoch != topic.epoch:
            raise refusals.wrong_epoch(topic.name, request.epoch, topic.epoch)
        first = int(request.from_seq)
        last = topic.head if request.to_seq is None else min(int(request.to_seq), topic.head)
        limit = min(request.limit or LIMIT_MAX, LIMIT_MAX)
        reading = _Reading(self, session, message, topic, first, last, limit)
        return reading.go_on(now)

    def republish(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:republish`: append the copies that are new; answered once all are on disk."""
        request = requests.parse(requests.RepublishRequest, message.payload)
        _check_permission(session, request.to)
        target = self._find(request.to)
        _check(request, len(message.payload))
        bound = (request.until.epoch, request.until.offset)
        self._replays.check(request.job, bound)
        newest = self._replays.newest(request.job)
        fresh = [one for one in request.messages if newest is None or _original(one) > newest]
        answer = self._answer(session, message, request, len(fresh))
        ending: list[Append] = []
        if request.ended and (fresh or newest is not None):
            ending = [self._record(session, message, request.job, "end", now)]
        if not fresh and ending:
            self._storage.check()
            ending[0].follow(answer.committed, answer.refused)
            return [*ending]
        if not fresh:
            pending = self._replays.on_its_way.get(request.job)
            if pending is None:
                return answer.committed(0, now)
            pending.waiters.append(answer)
            return []
        self._storage.check()
        self._check_room(target, len(fresh), now)
        stream = target.stream
        appends = [] if isinstance(stream, Mailbox) else self._publisher.fit(stream, now)
        appends += [
            self._append(target, _copy(request, one, target, message.sender), now) for one in fresh
        ]
        on_its_way = OnItsWay(_replay(request, fresh[-1]), [answer])
        appends[-1].follow(on_its_way.committed, on_its_way.refused)
        self._replays.on_its_way[request.job] = on_its_way
        self._replays.jobs.drive(request.job, session)
        if newest is None:
            appends.insert(0, self._record(session, message, request.job, "begin", now))
        return [*appends, *ending]

    def _record(
        self, session: Session, message: Envelope, job: str, phase: Phase, now: int
    ) -> Append:
        return self._replays.jobs.record(session, message.type, OPERATION, job, phase, now)

    def _answer(
        self, session: Session, message: Envelope, request: requests.RepublishRequest, appended: int
    ) -> DeferredAnswer:
        def payload() -> dict[str, object]:
            last = self._replays.last(request.job)
            position = None
            if last is not None:
                position = {"shard": last.shard, "epoch": last.epoch, "offset": last.offset}
            skipped = len(request.messages) - appended
            return {
                "job": request.job,
                "position": position,
                "appended": appended,
                "skipped": skipped,
            }

        return self.replies.answer(session, message, "hub:republished", payload)

    # Checking.

    def _find(self, to: requests.Destination) -> CopyTarget:
        if (to.topic is None) is (to.actor is None) or (to.actor is not None and to.subscription):
            raise refusals.structural(
                "payload.to needs a topic, a topic and subscription, or an actor"
            )
        if to.actor is not None:
            mailbox = self._streams.mailboxes.get(to.actor)
            if mailbox is None:
                raise refusals.no_mailbox(to.actor)
            return CopyTarget(mailbox)
        assert to.topic is not None
        topic = self._streams.find(to.topic)
        if to.subscription is not None:
            subscription = topic.subscriptions.get(to.subscription)
            if subscription is None or subscription.is_deleting:
                raise refusals.unknown_subscription(to.topic, to.subscription)
        return CopyTarget(topic, to.subscription)

    def _check_room(self, target: CopyTarget, count: int, now: int) -> None:
        """Refuse if the mailbox of an absent owner is full."""
        box = target.stream
        if not isinstance(box, Mailbox) or box.subscription.consumers:
            return
        self._asks.check_room(box, count, now)

    # Appending.

    def _append(self, target: CopyTarget, copy: MessageBody, now: int) -> Append:
        stream = target.stream
        if isinstance(stream, Mailbox):
            append = self._letters.mail_again(stream, copy, now)
        else:
            append = self._publisher.append(stream, copy, now)
        assert copy.replay is not None
        copied = partial(self._replays.copied, copy.replay)
        append.follow(copied, partial(self._replays.not_copied, copy.replay))
        return append

    def anchored(self) -> int | None:
        """The log from this offset on contains all progress; `None` if there is none."""
        return self._replays.anchor_offset if self._replays.is_known else None

    def anchor(self, end: int, now: int) -> list[Effect]:
        """Rewrite the progress of jobs that the log is about to lose."""
        replays = self._replays
        # With copies pending the progress would be outdated; a later call writes it.
        if not replays.is_known or replays.anchor_offset >= end or replays.on_its_way:
            return []
        entry = Entry(Kind.REPLAYS_STAND, "", 0, 0, now, replays.state(is_named=False))
        return [Append(entry, self._anchored)]

    def _anchored(self, offset: int, now: int) -> list[Effect]:
        self._replays.anchored(offset)
        return []


class _Reading:
    """One replay, page by page; it ends early if the reader is too slow."""

    def __init__(
        self,
        replayer: Replayer,
        session: Session,
        message: Envelope,
        topic: Topic,
        first: int,
        last: int,
        limit: int,
    ) -> None:
        self._replayer = replayer
        self._session = session
        self._message = message
        self._topic = topic
        self._asked = first
        self._next = max(first, topic.first)
        self._last = last
        self._left = limit
        self._count = 0
        # Messages need `subscribe`, dead letters `read`; the rest is left out.
        allowance = session.allowance
        self._sees_messages = allowance.may_subscribe(topic.name)
        self._sees_letters = allowance.may_read(topic.name)
        self._withheld = 0

    def go_on(self, now: int) -> list[Effect]:
        """The next page, or the end."""
        is_blocked = self._session.outbound is not None and self._count > 0
        if self._next > self._last or self._left <= 0 or is_blocked:
            return [self._end(now)]
        count = min(PAGE_MESSAGES, self._left, self._last - self._next + 1)
        topic = self._topic
        return [Fetch(topic.name, topic.id, self._next, count, PAGE_BYTES, self._fetched)]

    def _fetched(self, found: list[StoredEntry] | None, now: int) -> list[Effect]:
        if self._session.state is not SessionState.CONNECTED:
            return []
        if found is None:
            unread = refusals.storage_unreadable()
            return [self._replayer.replies.refuse(self._session, self._message, unread, now)]
        if not found:
            return [self._end(now)]
        copied: list[Effect] = []
        if found[0].seq > self._next:
            copied += self._replayer.retention.lose_before(self._topic, found[0].seq, now)
        for stored in found:
            if stored.seq > self._last or self._left <= 0:
                break
            self._next = stored.seq + 1
            held = self._replayer.erasures.held_of(stored)
            if stored.seq in self._topic.removed or held.is_erased:
                continue
            message = held.message
            if not (self._sees_messages if message.dead is None else self._sees_letters):
                self._withheld += 1
                continue
            if message.expires_at is not None and message.expires_at < now:
                continue
            if message.deliver_at is not None and message.deliver_at > now:
                continue
            stamp_ms = self._replayer.replies.wall.shown(now)
            frame = send.replayed(self._topic, held, self._message.sender, stamp_ms)
            copied.append(Reply(self._session, frame))
            self._count += 1
            self._left -= 1
        return [*copied, *self.go_on(now)]

    def _end(self, now: int) -> Reply:
        is_first_page = self._asked <= self._topic.first
        if self._withheld and not self._count and is_first_page:
            verb = "read" if self._sees_messages else "subscribe"
            refusal = refusals.unauthorized(verb, self._topic.name)
            return self._replayer.replies.refuse(self._session, self._message, refusal, now)
        is_complete = self._next > self._last and self._asked >= self._topic.first
        payload: dict[str, object] = {
            "topic": self._topic.name,
            "epoch": self._topic.epoch,
            "count": self._count,
            "complete": is_complete,
            "next": self._next,
        }
        if self._withheld:
            payload["withheld"] = self._withheld
        if self._asked < self._topic.first:
            payload |= {"lostFrom": self._asked, "lostTo": self._topic.first - 1}
        return self._replayer.replies.reply(
            self._session, self._message, "hub:replayed", wire.encode(payload), now
        )


JOBS_MAX: Final = 1_000

Original = tuple[int, int, int]  # Shard, epoch and offset of an original.
Bound = tuple[int, int]  # Epoch, offset.

_NOTHING: Final[Bound] = (-1, -1)


def original_of(replay: ReplayOrigin) -> Original:
    """The position of the original of a copy."""
    return (replay.shard, replay.epoch, replay.offset)


def bound_of(replay: ReplayOrigin) -> Bound:
    """The bound of the job that sent a copy."""
    return (replay.until_epoch, replay.until_offset)


class OnItsWay(msgspec.Struct):
    """Pending copies of a job: the last one, and the answers that wait for it."""

    last: ReplayOrigin
    waiters: list[DeferredAnswer]

    def committed(self, offset: int, now: int) -> list[Effect]:
        return [one for each in self.waiters for one in each.committed(offset, now)]

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        return [one for each in self.waiters for one in each.refused(refusal, now)]


class Replays:
    """The progress of replays, the last copy of each, and with it the state of all jobs."""

    def __init__(self, jobs_max: int = JOBS_MAX) -> None:
        self.jobs = Jobs()
        self._jobs_max = jobs_max
        self._last: dict[str, ReplayOrigin] = {}
        self._forgotten = _NOTHING
        self.on_its_way: dict[str, OnItsWay] = {}
        self.is_dirty = False
        # The log from this offset on contains all copies that count.
        self._defined_at = 0

    def __len__(self) -> int:
        return len(self._last)

    @property
    def is_known(self) -> bool:
        """Is there any progress to keep?"""
        return self._has_copies or bool(self.jobs)

    @property
    def _has_copies(self) -> bool:
        return bool(self._last) or self._forgotten != _NOTHING

    @property
    def anchor_offset(self) -> int:
        """The log from this offset on contains all of this."""
        known = [self._defined_at] if self._has_copies else []
        return min(known + ([self.jobs.defined_at] if self.jobs else []))

    def anchored(self, offset: int) -> None:
        """All of it was written again at this offset."""
        self._defined_at = self.jobs.defined_at = offset

    def last(self, job: str) -> ReplayOrigin | None:
        """The last copy of a job that is on disk."""
        return self._last.get(job)

    def newest(self, job: str) -> Original | None:
        """The original of the last copy of a job, on disk or pending."""
        pending = self.on_its_way.get(job)
        known = self._last.get(job) if pending is None else pending.last
        return None if known is None else original_of(known)

    def check(self, job: str, bound: Bound) -> None:
        """Refuse a job that may have been forgotten, or that differs from the known one."""
        pending = self.on_its_way.get(job)
        known = self._last.get(job) if pending is None else pending.last
        if known is not None:
            if bound_of(known) != bound:
                raise refusals.replay_conflict(job, *bound_of(known))
            return
        is_full = len(self._last) >= self._jobs_max
        oldest = min(map(bound_of, self._last.values())) if is_full else _NOTHING
        if bound <= max(self._forgotten, oldest):
            raise refusals.replay_forgotten(job, self._jobs_max)

    def note(self, replay: ReplayOrigin, offset: int) -> None:
        """A copy is on disk, at this offset of the log."""
        if bound_of(replay) <= self._forgotten:
            return
        known = self._last.get(replay.job)
        if known is not None and original_of(known) >= original_of(replay):
            return
        if not self._has_copies:
            self._defined_at = offset
        self._last[replay.job] = replay
        self.is_dirty = True
        if len(self._last) > self._jobs_max:
            self._forget_through(min(map(bound_of, self._last.values())))

    def copied(self, replay: ReplayOrigin, offset: int, now: int) -> list[Effect]:
        """A pending copy is on disk."""
        self.note(replay, offset)
        pending = self.on_its_way.get(replay.job)
        if pending is not None and original_of(pending.last) == original_of(replay):
            del self.on_its_way[replay.job]
        return []

    def not_copied(self, replay: ReplayOrigin, refusal: Refusal, now: int) -> list[Effect]:
        """The log rejected a pending copy, and all later ones with it."""
        self.on_its_way.pop(replay.job, None)
        return []

    def _forget_through(self, bound: Bound) -> None:
        self._forgotten = max(self._forgotten, bound)
        self._last = {
            job: last for job, last in self._last.items() if bound_of(last) > self._forgotten
        }
        self.is_dirty = True

    # Across restarts.

    def state(self, *, is_named: bool = True) -> bytes:
        """The progress of all jobs, for a snapshot or an anchor."""
        jobs = self.jobs.state(is_named=is_named)
        return encode_body(ReplaysStandBody([*self._last.values()], *self._forgotten, jobs))

    def take_state(self, *, is_whole: bool) -> bytes | None:
        """The progress of all jobs if it changed since the last call, or if `is_whole`."""
        if not (self.is_dirty or self.jobs.is_dirty or is_whole):
            return None
        self.is_dirty = self.jobs.is_dirty = False
        return self.state()

    def restore(self, state: bytes, offset: int = 0, *, is_saved: bool = False) -> None:
        """Add progress read from an anchor, or a snapshot (`is_saved`).

        Raises `msgspec.MsgspecError`.
        """
        stands = decode_body(ReplaysStandBody, state)
        self.jobs.restore(stands.jobs, offset, is_saved=is_saved)
        for one in stands.last:
            self.note(one, offset)
        forgotten = (stands.forgotten_epoch, stands.forgotten_offset)
        if forgotten > self._forgotten:
            self._forget_through(forgotten)
        self.is_dirty = self.is_dirty and not is_saved


MESSAGES_MAX: Final = 100
# A single message may be larger, since everything accepted once can be sent again.
BYTES_MAX: Final = 512 * 2**10
# Calls have answers and must not be made twice; hosts believe what other hosts and operators send.
CALL_TYPE_PREFIXES: Final = ("call:", "actors:")
OPERATION: Final = "republish"


class CopyTarget(msgspec.Struct, frozen=True):
    """The target of copies."""

    stream: Topic | Mailbox
    only_for: str | None = None


def _check_permission(session: Session, to: requests.Destination) -> None:
    allowance = session.allowance
    if allowance is EVERYTHING:
        return
    if not allowance.may_administer(OPERATION):
        raise refusals.unauthorized("admin", OPERATION)
    if to.topic is not None and not allowance.may_publish(to.topic):
        raise refusals.unauthorized("publish", to.topic)
    if to.actor is not None and not allowance.may_send(to.actor):
        raise refusals.unauthorized("send", to.actor)


def _check(request: requests.RepublishRequest, size: int) -> None:
    """Refuse the whole request if any message cannot be sent again."""
    messages = request.messages
    if len(messages) > MESSAGES_MAX:
        raise refusals.structural(f"payload.messages has more than {MESSAGES_MAX} members")
    if len(messages) > 1 and size > BYTES_MAX:
        raise refusals.too_large(size, BYTES_MAX)
    before: Original | None = None
    for one in messages:
        if before is not None and _original(one) <= before:
            raise refusals.structural("payload.messages is not in the order of positions")
        before = _original(one)
        if (one.epoch, one.offset) > (request.until.epoch, request.until.offset):
            raise refusals.structural("a message is beyond payload.until")
        if one.type.startswith(HUB_TYPE_PREFIX):
            raise refusals.structural("a type begins with `hub:`, which is the hub's own")
        if one.type.startswith(CALL_TYPE_PREFIXES):
            raise refusals.structural(
                f"a message has the type {one.type}: calls and commands must not be repeated"
            )
        if one.sender is not None and not is_address(one.sender):
            raise refusals.structural("`from` of a message is not an address")
        publish.check_parts(one.key, one.headers)


def _original(one: requests.OriginalMessage) -> Original:
    return (one.shard, one.epoch, one.offset)


def _replay(request: requests.RepublishRequest, one: requests.OriginalMessage) -> ReplayOrigin:
    until = request.until
    return ReplayOrigin(request.job, *_original(one), one.id, until.epoch, until.offset)


def _copy(
    request: requests.RepublishRequest,
    one: requests.OriginalMessage,
    target: CopyTarget,
    sender: str,
) -> MessageBody:
    copy_id = copy_id_of(request.job, _original(one))
    copy = MessageBody(copy_id, copy_id.encode(), one.sender or sender, one.type, bytes(one.data))
    copy.key, copy.headers = one.key, one.headers
    copy.only_for = target.only_for
    copy.replay = _replay(request, one)
    return copy


def copy_id_of(job: str, original: Original) -> str:
    """The id of a copy as a UUID; the same copy always gets the same id."""
    text = " ".join(map(str, (*original, job)))
    digits = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
