"""Dead letters: messages that could not be handled, stored in a topic of their own.

A message is settled in its own stream only after its dead letter is on disk. A letter carries the
identity of its original: stream, epoch, position and subscription. If the hub ends between the two,
the next start recognizes the letter and settles the message, so that there is no second one.
Redriven and purged letters are marked as removed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, Fetch
from signalhub.core.limits.quotas import NOBODY
from signalhub.core.messages import ask
from signalhub.core.operations import operated_unless_owned
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams.catalog import check_may_delete, check_may_read
from signalhub.core.streams.streams import LETTERS_SUFFIX, MAILBOX_LETTERS, Held, Mailbox, Topic
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import Flight
from signalhub.wire.entry import (
    DeadLetterOrigin,
    Entry,
    Kind,
    MessageBody,
    RedrivenOrigin,
    RemovedBody,
    StoredEntry,
    StreamDefinitionBody,
    encode_body,
)
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.clock import Ids
    from signalhub.core.erasure import Erasures
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.publish import Publisher
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.streams.catalog import Catalog
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher

REDRIVEN = "redriven"
PURGED = "purged"
PAGE_MESSAGES = 256
PAGE_BYTES = 2**20


class DeadLetters:
    """Writes dead letters, redrives and purges them."""

    def __init__(
        self,
        streams: Streams,
        catalog: Catalog,
        publisher: Publisher,
        dispatcher: Dispatcher,
        erasures: Erasures,
        storage: LogState,
        replies: Replies,
        ids: Ids,
    ) -> None:
        self.streams = streams
        self._catalog = catalog
        self.publisher = publisher
        self._dispatcher = dispatcher
        self.erasures = erasures
        self.storage = storage
        self.replies = replies
        self.ids = ids

    def handlers(self) -> dict[str, Handler]:
        return {"hub:redrive": self.redrive, "hub:purge": self.purge}

    def bury(self, subscription: Subscription, flight: Flight, now: int) -> list[Append]:
        """Publish a dead letter; the original is settled once that is on disk."""
        held = flight.held
        assert held is not None
        if held.is_erased:
            return []
        appends: list[Append] = []
        name = address(subscription)
        topic = self.streams.topics.get(name)
        if topic is not None and topic.is_deleting:
            # The topic is being deleted; the next attempt creates it again.
            subscription.not_buried(flight)
            self._dispatcher.retry(subscription, now)
            return []
        if topic is None:
            definition = StreamDefinitionBody(True)
            topic, opening = self._catalog.open(name, definition, NOBODY, now, is_letters=True)
            appends.append(opening)
        dead = DeadLetterOrigin(
            subscription.stream.name,
            subscription.name,
            subscription.stream.epoch,
            flight.seq,
            flight.deliveries,
            flight.reason,
            flight.first_failure,
            flight.last_failure,
            flight.consumers,
            held.offset,
        )
        letter = msgspec.structs.replace(
            held.message,
            copy_id=self.ids.next(),
            ttl=None,
            expires_at=None,
            deliver_at=None,
            dead=dead,
            only_for=None,
        )
        append = self.publisher.append(topic, letter, now)
        generation = subscription.position.generation
        append.follow(
            partial(self._buried, subscription, flight, generation),
            partial(self._not_buried, subscription, flight),
        )
        return [*appends, append]

    def _buried(
        self, subscription: Subscription, flight: Flight, generation: int, offset: int, now: int
    ) -> list[Effect]:
        """The dead letter is on disk."""
        if subscription.buried(flight, generation, offset):
            self._dispatcher.wake(subscription)
        return []

    def _not_buried(
        self, subscription: Subscription, flight: Flight, refusal: Refusal, now: int
    ) -> list[Effect]:
        subscription.not_buried(flight)
        self._dispatcher.retry(subscription, now)
        return []

    # Redriving and purging.

    def redrive(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:redrive`: return letters to their origin, with their key and headers."""
        request = requests.parse(requests.LettersRequest, message.payload)
        record: list[Append] = []
        owner = self._owner(request.topic)
        if session.allowance.may_manage(request.topic, owner):
            record = operated_unless_owned(session, "manage", request.topic, owner, now)
        else:
            check_may_read(session, request.topic)
        return _Work(self, session, message, request, REDRIVEN, record).begin(now)

    def purge(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:purge`: delete letters; needs the permission to delete the topic."""
        request = requests.parse(requests.LettersRequest, message.payload)
        owner = self._owner(request.topic)
        check_may_delete(session, request.topic, owner)
        record = operated_unless_owned(session, "delete", request.topic, owner, now)
        return _Work(self, session, message, request, PURGED, record).begin(now)

    def _owner(self, name: str) -> str:
        topic = self.streams.topics.get(name)
        return "" if topic is None else topic.definition.owner

    def mail_again(self, box: Mailbox, message: MessageBody, now: int) -> Append:
        """Append a message to a mailbox without a sender waiting for an answer."""
        body = encode_body(message)
        seq = box.assign()
        entry = Entry(Kind.MAIL, box.name, box.id, seq, now, body)
        return Append(entry, partial(self._mailed, box, seq, message, now))

    def _mailed(
        self, box: Mailbox, seq: int, message: MessageBody, at_ms: int, offset: int, now: int
    ) -> list[Effect]:
        """The message is in the mailbox again."""
        if box.subscription.is_deleted:
            # The mailbox was dropped in the meantime.
            return []
        self.streams.committed(box, Held(seq, offset, at_ms, message, ask.size_of(message)))
        self._dispatcher.wake(box.subscription)
        return []


def address(subscription: Subscription) -> str:
    """The topic a subscription's dead letters go to."""
    stream = subscription.stream
    if isinstance(stream, Mailbox):
        return subscription.definition.dead_letter or MAILBOX_LETTERS
    own = subscription.definition.dead_letter or stream.definition.dead_letter
    return own or stream.name + LETTERS_SUFFIX


class _Work:
    """One redrive or purge, page by page."""

    def __init__(
        self,
        letters: DeadLetters,
        session: Session,
        message: Envelope,
        request: requests.LettersRequest,
        reason: str,
        record: list[Append],
    ) -> None:
        self._letters = letters
        self._session = session
        self._message = message
        self._reason = reason
        # Written with the first letters that are removed, or at the end if there are none.
        self._record = record
        self._topic = letters.streams.find(request.topic)
        # Who manages the letters may return each to where it came from.
        self._is_managed = session.allowance.may_manage(request.topic)
        if (request.seqs is None) is not bool(request.all):
            raise refusals.structural("the payload needs either seqs or all: true")
        self._wanted = None if request.seqs is None else sorted(set(request.seqs))
        self._until = self._topic.head
        self._count = 0
        # Letters that stay: their origin is gone, or this session may not write to it.
        self._skipped = 0

    def begin(self, now: int) -> list[Effect]:
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
        held_of = self._letters.erasures.held_of
        letters = [held_of(one) for one in found if one.seq <= self._until]
        chosen = [one for one in letters if self._is_wanted(one)]
        appends: list[Effect] = []
        if self._reason == REDRIVEN:
            returning = [one for one in chosen if self._origin(one) is not None]
            self._skipped += len(chosen) - len(returning)
            chosen = returning
            appends += [self._put_back(one, now) for one in chosen]
        if chosen:
            taken = [one.seq for one in chosen]
            removed = RemovedBody([(seq, seq) for seq in taken], self._reason)
            entry = self._topic.entry(Kind.REMOVED, removed, now)
            appends[:0] = self._take_record()
            appends.append(Append(entry, partial(self._remove, taken)))
            self._count += len(chosen)
        return [*appends, *self._fetch(found[-1].seq + 1, now)]

    def _take_record(self) -> list[Append]:
        record, self._record = self._record, []
        return record

    def _remove(self, seqs: list[int], offset: int, now: int) -> list[Effect]:
        """The redriven messages are on disk, so the letters can be removed."""
        self._topic.remove(seqs)
        return []

    def _is_wanted(self, one: Held) -> bool:
        if one.seq in self._topic.removed or one.is_erased:
            return False
        if self._reason == REDRIVEN and one.message.dead is None:
            return False
        return self._wanted is None or one.seq in self._wanted

    def _origin(self, one: Held) -> Topic | Mailbox | None:
        """The origin of a letter, if it still exists and the session may write to it."""
        dead, streams = one.message.dead, self._letters.streams
        assert dead is not None
        allowance = self._session.allowance
        topic = streams.topics.get(dead.topic)
        if topic is not None and not topic.is_deleting:
            return topic if self._is_managed or allowance.may_publish(dead.topic) else None
        box = streams.mailboxes.get(dead.topic)
        return box if self._is_managed or allowance.may_send(dead.topic) else None

    def _put_back(self, one: Held, now: int) -> Append:
        letters, dead, origin = self._letters, one.message.dead, self._origin(one)
        assert dead is not None
        again = msgspec.structs.replace(
            one.message,
            dead=None,
            copy_id=letters.ids.next(),
            redriven=RedrivenOrigin(one.message.id, dead.epoch, dead.seq),
        )
        if isinstance(origin, Mailbox):
            return letters.mail_again(origin, again, now)
        assert origin is not None
        if dead.subscription in origin.subscriptions:
            again.only_for = dead.subscription
        return letters.publisher.append(origin, again, now)

    def _end(self, now: int) -> list[Effect]:
        """Answer after the last append; the log keeps the order."""
        name = "hub:redriven" if self._reason == REDRIVEN else "hub:purged"
        payload: dict[str, object] = {"count": self._count}
        if self._skipped:
            payload["skipped"] = self._skipped
        answer = self._letters.replies.answer(self._session, self._message, name, payload)
        if not self._count:
            return [*self._take_record(), *answer.committed(0, now)]
        mark = self._topic.entry(Kind.REMOVED, RemovedBody([], self._reason), now)
        return [Append(mark, answer.committed, answer.refused)]
