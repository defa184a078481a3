"""`hub:erase`: remove the messages of an actor, or the content of an inbox, from the log.

First the messages are hidden and the mailbox is dropped. A mark in the log says how far the erasure
reaches: everything before the mark. Then the log is searched page by page; what is found is settled
where necessary, and its offsets are written to the log. Finally the segments are rewritten, and the
request is answered. A restart finishes what was written; the rest must be requested again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, EraseEntries, Forget, Locate, Located, Match
from signalhub.core.jobs import Jobs, Phase
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.streams import Held, Mailbox, Topic, blank, held_of
from signalhub.ranges import Ranges
from signalhub.wire import envelope as wire
from signalhub.wire.entry import (
    PSEUDONYM_PREFIX,
    BroadcastBody,
    Entry,
    ErasedBody,
    Kind,
    MessageBody,
    OperatedBody,
    Outcome,
    Range,
    SettledBody,
    Settlement,
    StoredEntry,
    decode_body,
    encode_body,
)
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal
from signalhub.wire.names import is_address

if TYPE_CHECKING:
    from signalhub.clock import Ids
    from signalhub.core.log_state import LogState
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.rooms.rooms import Rooms
    from signalhub.core.sessions.registry import Registry
    from signalhub.core.streams.mailboxes import Mailboxes
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher

RETRY_MS: Final = 60_000
# Kinds of entries that may hold data of an actor or a room.
CONTENT: Final = frozenset(
    (Kind.MAIL, Kind.PUBLISHED, Kind.BROADCAST, Kind.ROOM_MESSAGE, Kind.OPERATED)
)

Then = Callable[[int | Refusal, int], list[Effect]]


class PendingErasure(msgspec.Struct, eq=False):
    """An ERASED entry whose offsets may not have been rewritten yet."""

    body: ErasedBody
    offset: float = inf
    """Where it is in the log; unknown while it is on its way there."""
    is_claimed: bool = False
    """A request or a retry is working on it."""


class Erasures:
    """Hidden messages, and pending erasures."""

    def __init__(self) -> None:
        # Senders whose messages are hidden, each before an offset, by request.
        self._actors: dict[str, dict[object, float]] = {}
        self._offsets = Ranges()
        self._pending: list[PendingErasure] = []
        self._retry_at_ms = 0
        # Set when something was erased, so that copies outside the log are removed, too.
        self.has_news = False

    # Hiding.

    def hide(self, actor: str, by: object, before: float = inf) -> None:
        """Hide everything this actor sent before an offset."""
        self._actors.setdefault(actor, {})[by] = before

    def show(self, actor: str, by: object) -> None:
        """Stop hiding: the erasure is complete, or could not start."""
        wishes = self._actors.get(actor, {})
        wishes.pop(by, None)
        if not wishes:
            self._actors.pop(actor, None)

    @property
    def hidden_offsets(self) -> tuple[Range, ...]:
        """Ranges of the entries that are hidden."""
        return tuple(self._offsets)

    @property
    def hidden_senders(self) -> dict[str, float]:
        """Whose messages are hidden, those before an offset."""
        return {actor: max(wishes.values()) for actor, wishes in self._actors.items()}

    def hides(self, offset: int) -> bool:
        """Must this entry be hidden?"""
        return offset in self._offsets

    def hides_message(self, message: MessageBody, offset: int) -> bool:
        """Must this message be hidden because of its sender or its recipient?"""
        if not self._actors:
            return False
        names = (message.sender, message.dead.topic if message.dead is not None else "")
        return any(offset < max(self._actors[one].values()) for one in names if one in self._actors)

    def held_of(self, stored: StoredEntry) -> Held:
        """Decode a message read from the log, blank if it is hidden."""
        held = held_of(stored)
        if self.hides(stored.offset) or self.hides_message(held.message, stored.offset):
            blank(held)
        return held

    # Pending erasures.

    def oldest(self, offset: int) -> int:
        """The offset of the oldest pending erasure, `offset` at most."""
        return int(min([offset, *(one.offset for one in self._pending)]))

    def add(self, body: ErasedBody, offset: float = inf) -> PendingErasure:
        """Add an erasure that is in the log or being written: its offsets are hidden."""
        pending = PendingErasure(body, offset, is_claimed=offset == inf)
        self._pending.append(pending)
        self._hide(pending)
        return pending

    def remove(self, some: list[PendingErasure]) -> None:
        """Remove erasures that are complete, or could not be written."""
        self._pending = [one for one in self._pending if one not in some]
        self._offsets = Ranges()
        for one in self._pending:
            self._hide(one)

    def _hide(self, pending: PendingErasure) -> None:
        for first, last in pending.body.ranges:
            for offset in range(first, last + 1):
                self._offsets.add(offset)

    def erase(self, some: list[PendingErasure], then: Then) -> EraseEntries:
        """Rewrite the segments; failures are retried later."""
        for one in some:
            one.is_claimed = True

        def done(result: int | Refusal, now: int) -> list[Effect]:
            if isinstance(result, Refusal):
                self._retry_at_ms = now + RETRY_MS
                for one in some:
                    one.is_claimed = False
            else:
                self.remove(some)
                self.has_news = True
            return then(result, now)

        return EraseEntries([one.body for one in some], done)

    def take_news(self) -> bool:
        """Was anything erased since the last call?"""
        has_news, self.has_news = self.has_news, False
        return has_news

    def tick(self, now: int) -> list[Effect]:
        """Finish erasures that an earlier process or a full disk left behind."""
        left = [one for one in self._pending if not one.is_claimed]
        # Later than one pause from now: the clock was set back.
        is_early = now < self._retry_at_ms <= now + RETRY_MS
        if not left or is_early:
            return []
        return [self.erase(left, lambda result, now: [])]


OPERATION: Final = "erase"
PAGE_ENTRIES: Final = 1_000
# Kinds of entries that name a mailbox; topics have the same kinds.
_ABOUT: Final = frozenset(
    (Kind.SETTLED, Kind.CURSOR, Kind.STREAM_CREATED, Kind.STREAM_DELETED, Kind.LOST)
)


class Eraser:
    """Erases the data of an actor or an inbox from memory and from the log."""

    def __init__(
        self,
        erasures: Erasures,
        streams: Streams,
        mailboxes: Mailboxes,
        registry: Registry,
        rooms: Rooms,
        dispatcher: Dispatcher,
        storage: LogState,
        replies: Replies,
        ids: Ids,
        jobs: Jobs,
    ) -> None:
        self.erasures = erasures
        self.streams = streams
        self.mailboxes = mailboxes
        self.registry = registry
        self.rooms = rooms
        self.dispatcher = dispatcher
        self.storage = storage
        self.replies = replies
        self.ids = ids
        self.jobs = jobs

    def handlers(self) -> dict[str, Handler]:
        return {"hub:erase": self.erase}

    def erase(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:erase`: hide the data at once; answered once nothing is left in the log."""
        request = requests.parse(requests.EraseRequest, message.payload)
        if not session.allowance.may_administer(OPERATION):
            raise refusals.unauthorized("admin", OPERATION)
        self._check(request)
        self.storage.check()
        return _Erasing(self, session, message, request).begin(now)

    def _check(self, request: requests.EraseRequest) -> None:
        if (request.actor is None) == (request.inbox is None):
            raise refusals.structural("the payload needs either actor or inbox")
        if request.actor is not None and not is_address(request.actor):
            raise refusals.structural("payload.actor must be an address such as @(scope/name)")
        log_epoch = self.streams.log_epoch
        if request.offsets and request.epoch != log_epoch:
            raise refusals.structural(
                f"payload.offsets need payload.epoch, and the log has epoch {log_epoch}"
            )


class Wanted(msgspec.Struct, frozen=True):
    """Selects the entries to erase; called on another thread, so it holds no hub state."""

    actor: str | None
    inbox: str | None
    room: str | None
    is_topic: bool
    """There is a topic of the actor's name, and entries about that stay."""
    offsets: Ranges

    def choose(self, stored: StoredEntry) -> Match | None:
        """How to erase an entry; `None` to keep it."""
        is_named = self._is_named(stored)
        if not is_named and (stored.is_erased or not self._is_wanted(stored)):
            return None
        return Match(
            stored.offset, stored.kind, stored.stream, stored.stream_epoch, stored.seq, is_named
        )

    def _is_named(self, stored: StoredEntry) -> bool:
        if stored.stream != self.actor:
            return False
        return stored.kind == Kind.MAIL or (stored.kind in _ABOUT and not self.is_topic)

    def _is_wanted(self, stored: StoredEntry) -> bool:
        kind = stored.kind
        if kind == Kind.ROOM_PROPOSAL:
            return stored.stream == self.room
        if kind not in CONTENT:
            return False
        if stored.offset in self.offsets and kind != Kind.OPERATED:
            return True
        if kind == Kind.ROOM_MESSAGE:
            return stored.stream == self.inbox
        return self.actor is not None and self._is_told_by(stored, self.actor)

    def _is_told_by(self, stored: StoredEntry, actor: str) -> bool:
        try:
            if stored.kind == Kind.OPERATED:
                record = decode_body(OperatedBody, stored.body)
                return actor in (record.address, record.over, record.by, f"@({record.by})")
            if stored.kind == Kind.BROADCAST:
                return decode_body(BroadcastBody, stored.body).sender == actor
            return _is_of(decode_body(MessageBody, stored.body), actor)
        except (msgspec.MsgspecError, ValueError):
            # The owner cannot be determined, so a matching name decides.
            return actor.encode() in stored.body


def _is_of(message: MessageBody, actor: str) -> bool:
    """Did the actor send it, or is it a dead letter of the actor's mailbox?"""
    dead = message.dead
    return message.sender == actor or (dead is not None and dead.topic == actor)


def _merged(ranges: list[Range]) -> Ranges:
    """The offsets sorted, without duplicates."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        elif first <= last:
            merged.append((first, last))
    return Ranges(merged)


class _Erasing:
    """One request: mark, search, rewrite."""

    def __init__(
        self, eraser: Eraser, session: Session, message: Envelope, request: requests.EraseRequest
    ) -> None:
        rooms = eraser.rooms
        self._eraser = eraser
        self._session = session
        self._message = message
        self._actor = request.actor
        self._inbox = None if request.inbox is None else rooms.directory.names.inbox(request.inbox)
        inbox = rooms.directory.inboxes.get(self._inbox or "")
        room = None if inbox is None else inbox.room
        self._wanted = Wanted(
            self._actor,
            self._inbox,
            None if room is None else room.name,
            self._actor in eraser.streams.topics,
            _merged(request.offsets),
        )
        self._reason = "actor" if self._inbox is None else "inbox"
        made = PSEUDONYM_PREFIX + eraser.ids.secret().replace("-", "")
        self._pseudonym = request.pseudonym or made
        self._job = eraser.ids.next().decode()
        self._box: Mailbox | None = None
        self._through = 0
        self._pending: list[PendingErasure] = []
        self._unwritten = 0
        self._is_searched = self._is_over = False
        self._entries = self._settled = self._torn = 0

    def begin(self, now: int) -> list[Effect]:
        eraser = self._eraser
        effects: list[Effect] = []
        mark = ErasedBody(self._reason)
        if self._actor is not None:
            eraser.erasures.hide(self._actor, self)
            self._box = eraser.streams.mailboxes.get(self._actor)
            if self._box is not None:
                effects += eraser.mailboxes.drop(self._box, now)
            if eraser.registry.forget_away(self._actor):
                effects.append(Forget([self._actor]))
        inbox = eraser.rooms.directory.inboxes.get(self._inbox or "")
        if inbox is not None:
            mark.through = inbox.next_seq - 1
        self._clear(mark.through)
        append = Append(self._entry(mark, now), partial(self._marked, mark), self._not_begun)
        eraser.jobs.drive(self._job)
        return [self._record("begin", now), *effects, append]

    def _record(self, phase: Phase, now: int, detail: str = "") -> Append:
        """The record of an erasure must not keep the name that was erased."""
        session = self._session
        subject = session.allowance.subject
        is_named = self._actor not in (session.address, subject, f"@({subject})")
        return self._eraser.jobs.record(
            session,
            self._message.type,
            OPERATION,
            self._job,
            phase,
            now,
            is_named=is_named,
            detail=detail,
        )

    def _entry(self, body: ErasedBody, now: int) -> Entry:
        return Entry(Kind.ERASED, self._inbox or "", 0, 0, now, encode_body(body))

    # Memory.

    def _clear(self, through: int) -> None:
        """Erase the data in memory and settle unsettled deliveries."""
        eraser = self._eraser
        inbox = eraser.rooms.directory.inboxes.get(self._inbox or "")
        if inbox is not None:
            eraser.rooms.erase(inbox, through)
        if self._actor is None:
            return
        eraser.jobs.forget(self._actor)
        streams, actor = eraser.streams, self._actor
        for stream in streams.every():
            stream.blank(lambda message: _is_of(message, actor))
        for subscription in streams.readers():
            settled = subscription.erase_all(lambda message: _is_of(message, actor))
            if settled:
                self._settled += settled
                eraser.dispatcher.wake(subscription)

    # The mark, and the search for everything before it.

    def _marked(self, mark: ErasedBody, offset: int, now: int) -> list[Effect]:
        """The mark is on disk, and so is everything before it."""
        self._through = offset
        if self._actor is not None:
            self._eraser.erasures.hide(self._actor, self, offset)
        self._clear(mark.through)
        needle = (self._actor or self._inbox or "").encode()
        return [self._search(0, needle)]

    def _search(self, from_offset: int, needle: bytes = b"") -> Locate:
        choose = self._wanted.choose
        return Locate(choose, from_offset, self._through, PAGE_ENTRIES, needle, self._located)

    def _located(self, located: Located | None, now: int) -> list[Effect]:
        if located is None:
            return self._give_up(refusals.storage_unreadable(), now)
        self._torn += located.torn
        effects = self._note(located.found, now) if located.found else []
        if located.end < self._through:
            return [*effects, self._search(located.end)]
        self._is_searched = True
        return effects or self._rewrite(now)

    def _note(self, found: list[Match], now: int) -> list[Effect]:
        """Settle what was found, and write its offsets to the log."""
        self._entries += len(found)
        ranges, renamed = Ranges(), Ranges()
        mail: list[Settlement] = []
        for one in found:
            ranges.add(one.offset)
            if one.is_named:
                renamed.add(one.offset)
            if one.seq:
                mail += self._settle(one)
        name = self._pseudonym if renamed else ""
        body = ErasedBody(self._reason, list(ranges), list(renamed), name)
        pending = self._eraser.erasures.add(body)
        self._unwritten += 1
        effects: list[Effect] = [
            Append(
                self._entry(body, now),
                partial(self._noted, pending),
                partial(self._not_noted, pending),
            )
        ]
        if mail and self._box is not None:
            settled = encode_body(SettledBody("", self._box.subscription.position.generation, mail))
            entry = Entry(Kind.SETTLED, self._pseudonym, self._box.id, 0, now, settled)
            effects.insert(0, Append(entry, refused=self._give_up))
        return effects

    def _settle(self, one: Match) -> list[Settlement]:
        """Settle the entries wherever they are unsettled; return those of a dropped mailbox."""
        eraser, box = self._eraser, self._box
        if one.kind == Kind.ROOM_MESSAGE:
            inbox = eraser.rooms.directory.inboxes.get(one.stream)
            if inbox is not None:
                eraser.rooms.messages.buffer.blank(inbox, one.seq)
            return []
        if box is not None and box.id == one.stream_epoch:
            if box.subscription.position.is_settled(one.seq):
                return []
            self._settled += 1
            return [Settlement(one.seq, one.offset, Outcome.ERASED, 0)]
        for stream in (
            eraser.streams.topics.get(one.stream),
            eraser.streams.mailboxes.get(one.stream),
        ):
            if stream is not None and stream.id == one.stream_epoch:
                self._settle_in(stream, one)
        return []

    def _settle_in(self, stream: Topic | Mailbox, one: Match) -> None:
        eraser = self._eraser
        stream.blank_at(one.seq)
        for subscription in stream.readers():
            if subscription.erase(one.seq, one.offset):
                self._settled += 1
                eraser.dispatcher.wake(subscription)

    # The segments.

    def _noted(self, pending: PendingErasure, offset: int, now: int) -> list[Effect]:
        """One of its entries is in the log, so it survives a restart."""
        pending.offset = offset
        self._pending.append(pending)
        pending.is_claimed = not self._is_over
        self._unwritten -= 1
        return self._rewrite(now)

    def _not_noted(self, pending: PendingErasure, refusal: Refusal, now: int) -> list[Effect]:
        self._eraser.erasures.remove([pending])
        return self._give_up(refusal, now)

    def _rewrite(self, now: int) -> list[Effect]:
        if not self._is_searched or self._unwritten or self._is_over:
            return []
        if not self._pending:
            return self._erased(0, now)
        return [self._eraser.erasures.erase(self._pending, self._erased)]

    def _erased(self, result: int | Refusal, now: int) -> list[Effect]:
        if isinstance(result, Refusal):
            return self._give_up(result, now)
        if self._actor is not None:
            self._eraser.erasures.show(self._actor, self)
            self._eraser.erasures.has_news = True
        self._is_over = True
        payload = {
            "entries": self._entries,
            "settled": self._settled,
            "mailbox": self._box is not None,
            "segments": result,
            "torn": self._torn,
            "epoch": self._eraser.streams.log_epoch,
            "through": self._through,
            "at": now,
        }
        record = self._record("end", now)
        if self._session.state is not SessionState.CONNECTED:
            return [record]
        encoded = wire.encode(payload)
        reply = self._eraser.replies.reply
        return [record, reply(self._session, self._message, "hub:erased", encoded, now)]

    def _not_begun(self, refusal: Refusal, now: int) -> list[Effect]:
        """The mark was rejected; stop hiding, or later messages would be hidden, too."""
        if self._actor is not None:
            self._eraser.erasures.show(self._actor, self)
        return self._give_up(refusal, now)

    def _give_up(self, refusal: Refusal, now: int) -> list[Effect]:
        """The data stays hidden; written offsets are erased later, the rest on a new request."""
        if self._is_over:
            return []
        self._is_over = True
        for one in self._pending:
            one.is_claimed = False
        record = self._record("failed", now, str(refusal.code))
        if self._session.state is not SessionState.CONNECTED:
            return [record]
        return [record, self._eraser.replies.refuse(self._session, self._message, refusal, now)]
