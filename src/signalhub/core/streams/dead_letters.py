"""Dead letters: messages that could not be handled, stored in a topic of their own.

A message is settled in its own stream only after its dead letter is on disk. A letter carries the
identity of its original: stream, epoch, position and subscription. If the hub ends between the two,
the next start recognizes the letter and settles the message, so that there is no second one.
Redriving and purging them is in `letter_work.py`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect
from signalhub.core.limits.quotas import NOBODY
from signalhub.core.messages import ask
from signalhub.core.operations import operated_unless_owned
from signalhub.core.sessions.session import Session
from signalhub.core.streams.catalog import check_may_delete, check_may_read
from signalhub.core.streams.letter_work import Purge, Redrive
from signalhub.core.streams.streams import LETTERS_SUFFIX, MAILBOX_LETTERS, Held, Mailbox
from signalhub.core.subscriptions import send
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import Flight
from signalhub.wire.entry import (
    DeadLetterOrigin,
    Entry,
    Kind,
    MessageBody,
    StreamDefinitionBody,
    encode_body,
)
from signalhub.wire.envelope import Envelope, encode
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


# What a letter says of its end if there is hardly room, and what else is added to a message.
_REASON_CHARS: Final = 80
_ADDED_BYTES: Final = 4 * 2**10


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
        message_bytes_max: int,
    ) -> None:
        self.streams = streams
        self._catalog = catalog
        self.publisher = publisher
        self._dispatcher = dispatcher
        self.erasures = erasures
        self.storage = storage
        self.replies = replies
        self.ids = ids
        self.message_bytes_max = message_bytes_max

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
        size = ask.size_of(held.message) + len(encode(held.message.headers))
        if size + len(encode(send.dead_letter(dead))) > self.message_bytes_max - _ADDED_BYTES:
            # With the whole story, of very many consumers perhaps, it could be too large.
            dead.reason, dead.consumers = dead.reason[:_REASON_CHARS], dead.consumers[-1:]
        letter = msgspec.structs.replace(
            held.message,
            copy_id=self.ids.next(),
            ttl=None,
            expires_at=None,
            deliver_at=None,
            dead=dead,
            only_for=None,
        )
        appends += self.publisher.fit(topic, now)
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
        is_managed = session.allowance.may_manage(request.topic, owner)
        if request.edits and not is_managed:
            raise refusals.unauthorized("manage", request.topic)
        if request.edits and not session.allowance.may_read(request.topic):
            raise refusals.unauthorized("read", request.topic)
        if is_managed:
            record = operated_unless_owned(
                session, message.type, "manage", request.topic, owner, now
            )
        else:
            check_may_read(session, request.topic)
        return Redrive(self, session, message, request, record).begin(now)

    def purge(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:purge`: delete letters; needs the permission to delete the topic."""
        request = requests.parse(requests.LettersRequest, message.payload)
        if request.edits is not None:
            raise refusals.structural("payload.edits is for hub:redrive only")
        owner = self._owner(request.topic)
        check_may_delete(session, request.topic, owner)
        record = operated_unless_owned(session, message.type, "delete", request.topic, owner, now)
        return Purge(self, session, message, request, record).begin(now)

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
