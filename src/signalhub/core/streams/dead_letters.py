"""Dead letters: messages nobody could handle, kept as a topic of their own, and put back by hand.

A message is settled in its own stream only after its dead letter is on disk; a crash between the
two leaves it in both, never in none. What was put back or thrown away is marked as removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, Fetch, Note
from signalhub.core.messages import ask, publish
from signalhub.core.sessions.session import Session, State
from signalhub.core.streams import topics
from signalhub.core.streams.streams import LETTERS_SUFFIX, MAILBOX_LETTERS, Held, Mailbox, Topic
from signalhub.core.subscriptions import progress
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import EXHAUSTED, Flight
from signalhub.wire.entry import (
    DeadLetter,
    Entry,
    Kind,
    Lost,
    Message,
    Outcome,
    Removed,
    Stored,
    StreamDefinition,
    encode_body,
)
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

REDRIVEN = "redriven"
PURGED = "purged"
PAGE_MESSAGES = 256
PAGE_BYTES = 2**20


def bury(hub: Hub, subscription: Subscription, flight: Flight, now: int) -> list[Append]:
    """Publish the dead letter; the original is settled when that is on disk."""
    held = flight.held
    assert held is not None
    if held.is_erased:
        return []
    appends: list[Append] = []
    name = address(subscription)
    topic = hub.streams.topics.get(name)
    if topic is not None and topic.is_deleting:
        # Its end is on the way to the log; the next attempt makes it again.
        flight.is_burying = False
        hub.dispatcher.retry(subscription, now)
        return []
    if topic is None:
        appends.append(topics.open_topic(hub, name, StreamDefinition(True), now, is_letters=True))
        topic = hub.streams.topics[name]
    dead = DeadLetter(
        subscription.stream.name,
        subscription.name,
        subscription.stream.epoch,
        flight.seq,
        flight.deliveries,
        flight.reason,
        flight.first_failure,
        flight.last_failure,
        flight.consumers,
    )
    letter = msgspec.structs.replace(
        held.message,
        copy_id=hub.ids.next(),
        ttl=None,
        expires_at=None,
        deliver_at=None,
        dead=dead,
        only_for=None,
    )
    append = publish.append(hub, topic, letter, now)
    generation = subscription.position.generation
    append.receipt = progress.Waited(append.receipt, [Buried(subscription, flight, generation)])
    return [*appends, append]


def address(subscription: Subscription) -> str:
    """The topic a subscription's dead letters go to."""
    stream = subscription.stream
    if isinstance(stream, Mailbox):
        return subscription.definition.dead_letter or MAILBOX_LETTERS
    own = subscription.definition.dead_letter or stream.definition.dead_letter
    return own or stream.name + LETTERS_SUFFIX


class Buried(msgspec.Struct):
    """A dead letter on its way to the log."""

    subscription: Subscription
    flight: Flight
    generation: int

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        subscription, flight = self.subscription, self.flight
        if subscription.position.generation == self.generation and flight.phase is EXHAUSTED:
            subscription.stats.dead_lettered += 1
            subscription.settle(flight, Outcome.DEAD_LETTERED)
            hub.dispatcher.wake(subscription)
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        self.flight.is_burying = False
        hub.dispatcher.retry(self.subscription, now)
        return []


class AfterBurial(msgspec.Struct):
    """Whoever waits for settlements of which some are dead letters on their way to the log.

    The originals are settled when their letters are on disk, so the answers wait for one more
    entry: the one that says so.
    """

    subscription: Subscription
    waiters: list[progress.SettledAnswer]

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        if self.subscription.is_deleted:
            return [one for waiter in self.waiters for one in waiter.committed(hub, offset, now)]
        self.subscription.waiters[:0] = self.waiters
        hub.dispatcher.wake(self.subscription)
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        return [one for waiter in self.waiters for one in waiter.refused(hub, refusal, now)]


def lose_before(hub: Hub, stream: Topic | Mailbox, first: int, now: int) -> list[Effect]:
    """Retention has removed what was before `first`: count and report what was not settled."""
    first = min(first, stream.head + 1)
    stream.first = max(stream.first, first)
    stream.removed.drop_through(stream.first - 1)
    stream.is_dirty = True
    if isinstance(stream, Topic):
        subscriptions = list(stream.subscriptions.values())
    else:
        subscriptions = [stream.subscription]
    effects: list[Effect] = []
    for subscription in subscriptions:
        position = subscription.position
        from_seq = min([position.floor + 1, *position.parked])
        lost = subscription.lose_before(first) if from_seq < first else 0
        hub.dispatcher.wake(subscription)
        if lost <= 0:
            continue
        subscription.stats.lost += lost
        hub.tally.lost += lost
        hub.tally.loss_events += 1
        body = Lost(subscription.name, from_seq, first - 1)
        effects.append(Append(progress.entry(Kind.LOST, stream, body, now), progress.UNWATCHED))
        facts: dict[str, object] = {
            "stream": stream.name,
            "subscription": subscription.name,
            "lost": lost,
            "from": from_seq,
            "to": first - 1,
        }
        effects.append(Note("retention removed messages that were not settled", facts))
    return effects


# Putting back and throwing away.


def redrive(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:redrive`: back to where they came from, with their key and headers."""
    request = requests.parse(requests.Letters, message.payload)
    publish.check_may_read(session, request.topic)
    return _Work(hub, session, message, request, REDRIVEN).begin(now)


def purge(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """`hub:purge`: away with them, which needs the right to delete the topic."""
    request = requests.parse(requests.Letters, message.payload)
    topics.check_may_create(session, request.topic)
    return _Work(hub, session, message, request, PURGED).begin(now)


class _Work:
    """One request to put back or throw away, page by page."""

    def __init__(
        self,
        hub: Hub,
        session: Session,
        message: Envelope,
        request: requests.Letters,
        reason: str,
    ) -> None:
        self._hub = hub
        self._session = session
        self._message = message
        self._reason = reason
        self._topic = publish.find(hub, request.topic)
        if (request.seqs is None) is not bool(request.all):
            raise refusals.structural("the payload needs either seqs or all: true")
        self._wanted = None if request.seqs is None else sorted(set(request.seqs))
        self._until = self._topic.head
        self._count = 0
        # Letters whose topic or mailbox is gone, or not for this session; they stay.
        self._skipped = 0

    def begin(self, now: int) -> list[Effect]:
        self._hub.check_storage()
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

    def _fetched(self, found: list[Stored] | None, now: int) -> list[Effect]:
        if found is None:
            return progress.Answer(self._session, self._message, "", None).refused(
                self._hub, refusals.storage_unreadable(), now
            )
        if not found or self._session.state is State.CLOSED:
            return self._end(now)
        held_of = self._hub.erasures.held_of
        letters = [held_of(one) for one in found if one.seq <= self._until]
        chosen = [one for one in letters if self._is_wanted(one)]
        appends: list[Effect] = []
        if self._reason == REDRIVEN:
            homeless = [one for one in chosen if self._origin(one) is None]
            self._skipped += len(homeless)
            chosen = [one for one in chosen if one not in homeless]
            appends += [self._put_back(one, now) for one in chosen]
        if chosen:
            taken = [one.seq for one in chosen]
            removed = Removed([(seq, seq) for seq in taken], self._reason)
            entry = progress.entry(Kind.REMOVED, self._topic, removed, now)
            appends.append(Append(entry, progress.Once(lambda later: self._remove(taken))))
            self._count += len(chosen)
        return [*appends, *self._fetch(found[-1].seq + 1, now)]

    def _remove(self, seqs: list[int]) -> list[Effect]:
        """What was put back is on disk, so the letters are done with."""
        for seq in seqs:
            self._topic.removed.add(seq)
        self._topic.is_dirty = True
        return []

    def _is_wanted(self, one: Held) -> bool:
        if one.seq in self._topic.removed or one.is_erased:
            return False
        if self._reason == REDRIVEN and one.message.dead is None:
            return False
        return self._wanted is None or one.seq in self._wanted

    def _origin(self, one: Held) -> Topic | Mailbox | None:
        """Where a letter came from, if that still exists and the session may write to it."""
        dead, streams = one.message.dead, self._hub.streams
        assert dead is not None
        allowance = self._session.allowance
        topic = streams.topics.get(dead.topic)
        if topic is not None and not topic.is_deleting:
            return topic if allowance.may_publish(dead.topic) else None
        box = streams.mailboxes.get(dead.topic)
        return box if allowance.may_send(dead.topic) else None

    def _put_back(self, one: Held, now: int) -> Append:
        hub, dead, origin = self._hub, one.message.dead, self._origin(one)
        assert dead is not None
        again = msgspec.structs.replace(one.message, dead=None, copy_id=hub.ids.next())
        if isinstance(origin, Mailbox):
            return mail_again(hub, origin, again, now)
        assert origin is not None
        if dead.subscription in origin.subscriptions:
            again.only_for = dead.subscription
        return publish.append(hub, origin, again, now)

    def _end(self, now: int) -> list[Effect]:
        """The answer follows everything that was appended, because the log keeps its order."""
        name = "hub:redriven" if self._reason == REDRIVEN else "hub:purged"
        payload = {"count": self._count}
        if self._skipped:
            payload["skipped"] = self._skipped
        answer = progress.Answer(self._session, self._message, name, payload)
        if not self._count:
            return answer.committed(self._hub, 0, now)
        mark = progress.entry(Kind.REMOVED, self._topic, Removed([], self._reason), now)
        return [Append(mark, answer)]


def mail_again(hub: Hub, box: Mailbox, message: Message, now: int) -> Append:
    """The next message of a mailbox, which nobody sends just now."""
    body = encode_body(message)
    seq = box.assign()
    entry = Entry(Kind.MAIL, box.name, box.id, seq, now, body)
    return Append(entry, Mailed(box, seq, message, now))


class Mailed(msgspec.Struct):
    """A letter put back into a mailbox; nobody waits for an answer."""

    box: Mailbox
    seq: int
    message: Message
    at_ms: int

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        held = Held(self.seq, offset, self.at_ms, self.message, ask.size_of(self.message))
        self.box.committed(self.seq)
        hub.streams.keep(self.box, held)
        hub.dispatcher.wake(self.box.subscription)
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        return []
