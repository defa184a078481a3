"""Redriving and purging: dead letters are chosen, put back where they came from, or deleted.

The work goes page by page up to a bound, the head of the topic when it began, so that letters that
arrive meanwhile are left alone. A preview (`dryRun`) goes the same way and changes nothing.
Redriven and purged letters are marked as removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import msgspec

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, Fetch
from signalhub.core.messages import publish
from signalhub.core.operations import operated
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.streams import Held, Mailbox, Topic
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Kind, MessageBody, RedrivenOrigin, RemovedBody, StoredEntry
from signalhub.wire.envelope import Envelope
from signalhub.wire.names import HUB_TYPE_PREFIX

if TYPE_CHECKING:
    from signalhub.core.streams.dead_letters import DeadLetters

T = TypeVar("T")

PAGE_MESSAGES: Final = 256
PAGE_BYTES: Final = 2**20
# Of a preview.
FIRST_MAX: Final = 20
REASONS_MAX: Final = 100
_REASONS_COUNTED_MAX: Final = 10_000
# So many letters are read at the price of one message.
_FREE_LETTERS: Final = 64
# Hosts believe what is in them, so they are put back as they are.
_UNEDITABLE: Final = ("call:", "actors:", HUB_TYPE_PREFIX)


class LetterWork(ABC):
    """One redrive or purge, page by page."""

    # The reason in the log, and the answer.
    REASON: ClassVar[str]
    ANSWER: ClassVar[str]

    def __init__(
        self,
        letters: DeadLetters,
        session: Session,
        message: Envelope,
        request: requests.LettersRequest,
        record: list[Append],
    ) -> None:
        self._letters = letters
        self._session = session
        self._message = message
        # Written with the first letters that are removed, or at the end if there are none.
        self._record = record
        self._topic = topic = letters.streams.find(request.topic)
        if request.epoch is not None and request.epoch != topic.epoch:
            raise refusals.wrong_epoch(topic.name, request.epoch, topic.epoch)
        self._filter = request.filter or requests.LetterFilter()
        is_about_contents = (self._filter.reason, self._filter.type) != (None, None)
        if is_about_contents and not session.allowance.may_read(topic.name):
            raise refusals.unauthorized("read", topic.name)
        self._wanted = _positions(request)
        self._until = min(topic.head, int(request.through or topic.head))
        self._is_preview = bool(request.dry_run)
        self._preview = _Preview(session.allowance.may_read(topic.name))
        self._count = 0
        # Letters that stay: their origin is gone, or this session may not write to it.
        self._skipped = 0

    def begin(self, now: int) -> list[Effect]:
        if not self._is_preview:
            self._letters.storage.check()
        return self._fetch(self._topic.first, now)

    def _fetch(self, seq: int, now: int) -> list[Effect]:
        topic = self._topic
        if self._wanted is not None:
            self._wanted = [one for one in self._wanted if one >= seq]
            seq = self._wanted[0] if self._wanted else self._until + 1
        if seq > self._until:
            return self._end(now)
        count = PAGE_MESSAGES if self._wanted is None else 1
        return [Fetch(topic.name, topic.id, seq, count, PAGE_BYTES, self._fetched)]

    def _fetched(self, found: list[StoredEntry] | None, now: int) -> list[Effect]:
        if found is None:
            if self._session.state is not SessionState.CONNECTED:
                return []
            unread = refusals.storage_unreadable()
            return [self._letters.replies.refuse(self._session, self._message, unread, now)]
        if not found or self._session.state is SessionState.CLOSED:
            return self._end(now)
        # Reading takes the time of others, whatever becomes of it.
        self._session.bucket.owe(len(found) // _FREE_LETTERS, now)
        held_of = self._letters.erasures.held_of
        letters = [held_of(one) for one in found if one.seq <= self._until]
        chosen = [one for one in letters if self._is_wanted(one)]
        able = [one for one in chosen if self._is_able(one)]
        self._skipped += len(chosen) - len(able)
        self._count += len(able)
        done = self._previewed(able) if self._is_preview else self._taken(able, now)
        return [*done, *self._fetch(found[-1].seq + 1, now)]

    def _previewed(self, chosen: list[Held]) -> list[Effect]:
        for one in chosen:
            self._preview.add(one)
        return []

    def _taken(self, chosen: list[Held], now: int) -> list[Effect]:
        """Put them back or not, and remove them, in one batch."""
        if not chosen:
            return []
        seqs = [one.seq for one in chosen]
        removed = RemovedBody([(seq, seq) for seq in seqs], self.REASON)
        entry = self._topic.entry(Kind.REMOVED, removed, now)
        record, self._record = self._record, []
        before = [append for one in chosen for append in self._before(one, now)]
        return [*record, *before, Append(entry, partial(self._remove, seqs))]

    def _remove(self, seqs: list[int], offset: int, now: int) -> list[Effect]:
        """The redriven messages are on disk, so the letters can be removed."""
        self._topic.remove(seqs)
        return []

    def _is_wanted(self, one: Held) -> bool:
        if one.seq in self._topic.removed or one.is_erased:
            return False
        if self._wanted is not None and one.seq not in self._wanted:
            return False
        return _matches(self._filter, one)

    @abstractmethod
    def _is_able(self, one: Held) -> bool:
        """Can it be done to this letter, and may this session do it?"""

    @abstractmethod
    def _before(self, one: Held, now: int) -> list[Append]:
        """What is written before the letter is removed."""

    def _facts(self) -> dict[str, object]:
        """What the answer says."""
        facts: dict[str, object] = {"count": self._count}
        if self._skipped:
            facts["skipped"] = self._skipped
        return facts

    def _end(self, now: int) -> list[Effect]:
        """Answer after the last append; the log keeps the order."""
        payload = self._facts()
        if self._is_preview:
            bound = {"dryRun": True, "epoch": self._topic.epoch, "through": self._until}
            payload |= bound | self._preview.facts()
        answer = self._letters.replies.answer(self._session, self._message, self.ANSWER, payload)
        if self._is_preview:
            return answer.committed(0, now)
        if not self._count:
            return [*self._record, *answer.committed(0, now)]
        mark = self._topic.entry(Kind.REMOVED, RemovedBody([], self.REASON), now)
        return [Append(mark, answer.committed, answer.refused)]


class Purge(LetterWork):
    """Deletes messages of a topic, usually dead letters."""

    REASON = "purged"
    ANSWER = "hub:purged"

    def _is_able(self, one: Held) -> bool:
        return True

    def _before(self, one: Held, now: int) -> list[Append]:
        return []


class Redrive(LetterWork):
    """Puts dead letters back where they came from, some of them edited."""

    REASON = "redriven"
    ANSWER = "hub:redriven"

    def __init__(
        self,
        letters: DeadLetters,
        session: Session,
        message: Envelope,
        request: requests.LettersRequest,
        record: list[Append],
    ) -> None:
        super().__init__(letters, session, message, request, record)
        # Who manages the letters may return each to where it came from, as it is.
        self._is_managed = session.allowance.may_manage(request.topic)
        # What is one's own is not on record.
        self._is_recorded = bool(record)
        self._edits = request.edits or {}
        self._edited = 0
        if self._edits:
            self._check_edits(self._edits)

    def _check_edits(self, edits: dict[int, requests.LetterEdit]) -> None:
        if self._wanted is None or not edits.keys() <= set(self._wanted):
            raise refusals.structural("payload.edits needs the position of each letter in seqs")
        for edit in edits.values():
            if not edit.changed:
                raise refusals.structural("an edit needs data, type, key or headers")
            if isinstance(edit.type, str) and edit.type.startswith(_UNEDITABLE):
                raise refusals.structural(f"an edit has the type {edit.type}, which is reserved")
            publish.check_parts(_given(edit.key, None), _given(edit.headers, None))

    def _is_wanted(self, one: Held) -> bool:
        return one.message.dead is not None and super()._is_wanted(one)

    def _is_able(self, one: Held) -> bool:
        if self._origin(one) is None:
            return False
        if one.seq not in self._edits:
            return True
        if one.message.type.startswith(_UNEDITABLE):
            return False
        return _size(self._again(one)) <= self._letters.message_bytes_max

    def _origin(self, one: Held) -> Topic | Mailbox | None:
        """The origin of a letter, if it still exists and the session may write to it."""
        dead, streams = one.message.dead, self._letters.streams
        assert dead is not None
        allowance = self._session.allowance
        # What an edit says is written by this session, not by the sender of the letter.
        is_managed = self._is_managed and one.seq not in self._edits
        topic = streams.topics.get(dead.topic)
        if topic is not None and not topic.is_deleting:
            # Without the subscription it came from, it goes to all of the topic.
            is_back = dead.subscription in topic.subscriptions or allowance.may_manage(topic.name)
            is_able = (is_managed and is_back) or allowance.may_publish(topic.name)
            return topic if is_able else None
        box = streams.mailboxes.get(dead.topic)
        return box if is_managed or allowance.may_send(dead.topic) else None

    def _before(self, one: Held, now: int) -> list[Append]:
        letters, dead, origin = self._letters, one.message.dead, self._origin(one)
        assert dead is not None
        again = self._again(one)
        records = self._record_edit(one, again, now) if one.seq in self._edits else []
        if isinstance(origin, Mailbox):
            return [*records, letters.mail_again(origin, again, now)]
        assert origin is not None
        records += letters.publisher.fit(origin, now)
        if dead.subscription in origin.subscriptions:
            again.only_for = dead.subscription
        return [*records, letters.publisher.append(origin, again, now)]

    def _again(self, one: Held) -> MessageBody:
        dead, edit = one.message.dead, self._edits.get(one.seq)
        assert dead is not None
        origin = RedrivenOrigin(one.message.id, dead.epoch, dead.seq, edit is not None)
        again = msgspec.structs.replace(
            one.message, dead=None, copy_id=self._letters.ids.next(), redriven=origin
        )
        if edit is not None:
            again.data = bytes(edit.data) or again.data
            again.type = _given(edit.type, again.type)
            again.key = _given(edit.key, again.key)
            again.headers = _given(edit.headers, again.headers)
        return again

    def _record_edit(self, one: Held, again: MessageBody, now: int) -> list[Append]:
        """Who edited which letter; of the payload only its digests."""
        self._edited += 1
        if not self._is_recorded:
            return []
        changed = ", ".join(self._edits[one.seq].changed)
        before, after = (sha256(each.data).hexdigest() for each in (one.message, again))
        detail = f"letter {one.seq}, edited {changed}; sha256 of data {before}, then {after}"
        request = self._message.type
        return operated(self._session, request, "manage", self._topic.name, now, detail)

    def _facts(self) -> dict[str, object]:
        return super()._facts() | ({"edited": self._edited} if self._edited else {})


class _Preview:
    """What a redrive or purge would do; contents only for those who may read them."""

    def __init__(self, may_read: bool) -> None:
        self._may_read = may_read
        self._reasons: Counter[str] = Counter()
        self._first: list[dict[str, object]] = []

    def add(self, one: Held) -> None:
        dead = one.message.dead
        cause = "" if dead is None else dead.reason
        if self._may_read and (cause in self._reasons or len(self._reasons) < _REASONS_COUNTED_MAX):
            self._reasons[cause] += 1
        if len(self._first) == FIRST_MAX:
            return
        row: dict[str, object] = {"seq": one.seq}
        if dead is not None:
            row |= {
                "stream": dead.topic,
                "subscription": dead.subscription or None,
                "attempts": dead.attempts,
                "lastFailure": dead.last_failure or one.at_ms,
            }
        if self._may_read:
            reason = None if dead is None else dead.reason
            row |= {"reason": reason, "type": one.message.type, "key": one.message.key}
        self._first.append(row)

    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"first": self._first}
        if self._may_read:
            most = self._reasons.most_common(REASONS_MAX)
            facts["byReason"] = [{"reason": reason, "count": count} for reason, count in most]
        return facts


def _positions(request: requests.LettersRequest) -> list[int] | None:
    """The positions chosen, sorted; `None` for all."""
    listed = None if request.filter is None else request.filter.seqs
    if request.seqs is not None and (request.all or listed is not None):
        raise refusals.structural("payload.seqs excludes all and filter.seqs")
    if request.seqs is None and request.filter is None and not request.all:
        raise refusals.structural("the payload needs seqs, a filter or all: true")
    is_bounded = request.all or request.seqs or request.through or request.dry_run
    if request.filter == requests.LetterFilter() and not is_bounded:
        raise refusals.structural("payload.filter is empty, which chooses all: give all: true")
    wanted = listed if request.seqs is None else request.seqs
    return None if wanted is None else sorted({int(one) for one in wanted})


def _matches(filter: requests.LetterFilter, one: Held) -> bool:
    message, dead = one.message, one.message.dead
    if filter.type is not None and message.type != filter.type:
        return False
    at_ms = one.at_ms
    if dead is None:
        if (filter.reason, filter.stream, filter.subscription) != (None, None, None):
            return False
    else:
        at_ms = dead.last_failure or at_ms
        for wanted, found in (
            (filter.reason, dead.reason),
            (filter.stream, dead.topic),
            (filter.subscription, dead.subscription),
        ):
            if wanted is not None and wanted != found:
                return False
    is_after = filter.died_from is None or at_ms >= filter.died_from
    return is_after and (filter.died_to is None or at_ms <= filter.died_to)


def _given(value: T | msgspec.UnsetType, otherwise: T) -> T:
    return otherwise if isinstance(value, msgspec.UnsetType) else value


def _size(message: MessageBody) -> int:
    """The size of a message without what the hub adds."""
    parts = (message.sender, message.type, message.id, message.key, message.headers)
    return len(message.data) + len(message.metadata) + len(wire.encode(parts))
