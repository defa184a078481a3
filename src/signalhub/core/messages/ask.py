"""Asks: at least once, through the log.

An ask is written to the log before anything else happens to it. An actor with a mailbox gets it
through the mailbox: at once if it is there and nothing waits before it, else later. An actor
without one gets it now or not at all. The sender is told `delivered` when the bytes are the
kernel's, `queued` when they wait in a mailbox.

What a session sends to a recipient after an ask waits until the ask is on disk, so that the order
holds; other recipients do not wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Deliver, Effect, FanOut, Reply
from signalhub.core.messages.dedup import Ack, Status
from signalhub.core.messages.topics import Audience
from signalhub.core.sessions.session import Session, State
from signalhub.core.streams.streams import Held, Mailbox
from signalhub.core.subscriptions.window import SENT, Attempt
from signalhub.wire import envelope as wire
from signalhub.wire.entry import Entry, Kind, Message, Outcome, Settlement, encode_body
from signalhub.wire.envelope import Envelope
from signalhub.wire.errors import Code, Refusal
from signalhub.wire.names import ADDRESS_CHARS_MAX

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.streams.streams import Topic


class Receipt(msgspec.Struct, eq=False):
    """An ask on its way."""

    session: Session
    message: Envelope
    askers: list[Session]
    target: str
    received_at_ms: int
    expires_at: float | None
    stored: Message
    key: bytes  # What it is known by while it is on its way, and after that.
    mailbox: Mailbox | None = None
    seq: int = 0
    offset: int = -1
    # It may have been delivered before a restart.
    is_doubtful: bool = False
    # What the same sender sent to the same recipient after it, while it was not on disk.
    behind: list[Deliver | FanOut] | None = None
    order: int = 0

    @property
    def listening(self) -> list[Session]:
        """The askers who are still there."""
        return [asker for asker in self.askers if asker.state is State.CONNECTED]


class Orphan(msgspec.Struct, frozen=True):
    """An ask from before a restart, to an actor without a mailbox, whose fate is not known."""

    offset: int
    at_ms: int
    copy_id: bytes


class FanReceipt(msgspec.Struct, eq=False):
    """A publish or broadcast on its way; `topic` is `None` for a broadcast.

    Dead letters are published by nobody: there is no message, and no session to be told.
    """

    session: Session | None
    message: Envelope | None
    topic: str | None
    received_at_ms: int
    expires_at: float | None
    # Of a durable topic: whom to tell, and how the answer begins.
    durable: Topic | None = None
    askers: list[Session] = msgspec.field(default_factory=list)
    answer: bytes = b""


class PublishReceipt(msgspec.Struct, eq=False):
    """A durable publish on its way to the log."""

    message: Envelope | None
    askers: list[Session]
    topic: Topic
    seq: int
    stored: Message
    at_ms: int
    size: int
    key: bytes = b""
    offset: int = -1


DELIVERED: Final = "delivered"
QUEUED: Final = "queued"


def accept(
    hub: Hub,
    session: Session,
    message: Envelope,
    request: requests.Send,
    target: str,
    key: bytes,
    expires_at: float | None,
    now: int,
) -> list[Effect]:
    """An ask that was not accepted before: to the log with it, unless nobody could get it."""
    mailbox = hub.streams.mailboxes.get(target)
    if mailbox is None:
        if hub.registry.find(target, now) is None:
            return _unknown(hub, session, message, target, now)
    elif not mailbox.subscription.consumers:
        check_room(hub, mailbox, 1, now)
    hub.storage.check()
    stored = Message(
        message.id,
        hub.ids.next(),
        message.sender,
        request.type,
        bytes(request.data),
        bytes(message.metadata),
        message.ttl or None,
        expires_at,
    )
    receipt = Receipt(session, message, [session], target, now, expires_at, stored, key, mailbox)
    hub.asks[key] = receipt
    orphan = hub.orphans.pop((message.sender, message.id), None)
    if orphan is not None and mailbox is None:
        # It is in the log from before a restart, and whether it was delivered nobody knows.
        receipt.is_doubtful = True
        stored.copy_id = orphan.copy_id
        return committed(hub, receipt, orphan.offset, now)
    # Nothing may fail between a position and its entry: that would leave a hole.
    body = encode_body(stored)
    if mailbox is not None:
        receipt.seq = mailbox.assign()
    # The latest one is the last one.
    session.unsynced.pop(target, None)
    session.unsynced[target] = receipt
    hub.asked += 1
    receipt.order = hub.asked
    stream_epoch = 0 if mailbox is None else mailbox.id
    entry = Entry(Kind.MAIL, target, stream_epoch, receipt.seq, now, body)
    return [Append(entry, partial(committed, hub, receipt), partial(refused, hub, receipt))]


def _unknown(hub: Hub, session: Session, message: Envelope, target: str, now: int) -> list[Effect]:
    if len(target) > ADDRESS_CHARS_MAX:
        raise refusals.structural(f"payload.to is longer than {ADDRESS_CHARS_MAX} characters")
    if hub.registry.is_away(target, now):
        raise refusals.reconnecting(target)
    return [unknown_actor(hub, session, message, target, now)]


def unknown_actor(
    hub: Hub,
    session: Session,
    message: Envelope,
    target: str,
    now: int,
    *,
    retryable: bool = False,
) -> Reply:
    """The one error both kinds of clients know by its own type."""
    hub.tally.unknown_targets += 1
    hub.tally.count_error(Code.UNKNOWN_ACTOR)
    payload = wire.encode(
        {
            "actorAddress": target,
            "code": Code.UNKNOWN_ACTOR,
            "message": f"The actor {target} is not registered with this hub.",
            "resolution": "Check the address with hub:discover, or wait until the actor registers.",
            "details": {"actorAddress": target},
            "retryable": retryable,
        }
    )
    trace = requests.trace_of(message)
    return hub.replies.reply(session, message, "hub:unknown_actor", payload, now, trace)


def waiting_in(hub: Hub, mailbox: Mailbox, now: int) -> int:
    """How many messages wait; what has expired meanwhile is settled, and that is written."""
    waiting = mailbox.waiting(now)
    if mailbox.subscription.settlements:
        hub.dispatcher.wake(mailbox.subscription)
    return waiting


def check_room(hub: Hub, mailbox: Mailbox, count: int, now: int) -> None:
    """A mailbox whose owner is away takes only so much; an empty one takes what comes."""
    limit, setting = hub.settings.mailbox.limit, "mailbox.limit"
    if mailbox.is_host:
        limit, setting = hub.settings.actors.mailbox_limit, "actors.mailbox_limit"
    waiting = waiting_in(hub, mailbox, now)
    if waiting and waiting + count > limit:
        hub.tally.mailbox_full += 1
        raise refusals.mailbox_full(mailbox.name, waiting, limit, setting)


# The order of what follows an ask.


def before(session: Session, target: str) -> Receipt | None:
    """The ask that a message to this recipient has to wait for, if there is one."""
    ask, barrier = session.unsynced.get(target), session.barrier
    if ask is None or (barrier is not None and barrier.order > ask.order):
        return barrier
    return ask


def before_any(hub: Hub, session: Session, audience: Audience) -> Receipt | None:
    """The latest ask to anybody in an audience, if one is not on disk yet."""
    owners = {
        registration.session: ask
        for target, ask in session.unsynced.items()
        if (registration := hub.registry.get(target)) is not None
    }
    found = [owners[one.session] for one in audience.recipients if one.session in owners]
    if session.barrier is not None:
        found.append(session.barrier)
    return max(found, key=lambda ask: ask.order, default=None)


def wait_behind(ask: Receipt, effect: Deliver | FanOut) -> list[Effect]:
    """It follows the ask, which is on its way to the disk."""
    if ask.behind is None:
        ask.behind = []
    ask.behind.append(effect)
    return []


# What the log says.


def committed(hub: Hub, receipt: Receipt, offset: int, now: int) -> list[Effect]:
    """The ask is on disk: deliver it."""
    receipt.offset = offset
    mailbox = receipt.mailbox
    if mailbox is None:
        return [*_deliver(hub, receipt, now), *_release(receipt)]
    if mailbox.subscription.is_deleted:
        # Its owner has given the mailbox up meanwhile.
        return [*gone(hub, receipt, now), *_release(receipt)]
    stored = receipt.stored
    held = Held(receipt.seq, offset, receipt.received_at_ms, stored, size_of(stored))
    mailbox.committed(receipt.seq)
    if receipt.expires_at is not None:
        mailbox.expires(receipt.seq, receipt.expires_at, offset)
    hub.streams.keep(mailbox, held)
    if not mailbox.subscription.consumers:
        return [*queued(hub, receipt, now), *_release(receipt)]
    mailbox.fresh[receipt.seq] = receipt
    hub.dispatcher.wake(mailbox.subscription)
    return []


def size_of(message: Message) -> int:
    """About what it takes in memory and on the wire."""
    return len(message.data) + len(message.metadata) + 256


def _deliver(hub: Hub, receipt: Receipt, now: int) -> list[Effect]:
    """To an actor without a mailbox."""
    registration = hub.registry.find(receipt.target, now)
    if registration is None:
        return gone(hub, receipt, now)
    message, stored = receipt.message, receipt.stored
    metadata = message.metadata
    if receipt.is_doubtful:
        metadata = wire.with_delivery(metadata, {"attempt": 2, "redelivered": True})
    frame = wire.forwarded(
        stored.copy_id,
        message,
        registration.address_json,
        stored.type,
        Raw(stored.data),
        now,
        metadata,
    )
    session = registration.session
    deliver = Deliver(session, frame, receipt.session, receipt.target, receipt.expires_at, receipt)
    return [deliver]


def _release(receipt: Receipt) -> list[Effect]:
    """What waited behind the ask may go now."""
    session = receipt.session
    if session.unsynced.get(receipt.target) is receipt:
        del session.unsynced[receipt.target]
    if session.barrier is receipt:
        session.barrier = None
    behind, receipt.behind = receipt.behind, None
    return list(behind or ())


def refused(hub: Hub, receipt: Receipt, refusal: Refusal, now: int) -> list[Effect]:
    """The log did not take it: the sender may try again with the same id, or must be told."""
    message = receipt.message
    hub.asks.pop(receipt.key, None)
    replies = [hub.replies.refuse(asker, message, refusal, now) for asker in receipt.listening]
    return [*replies, *_release(receipt)]


# What becomes of it then.


def sent(receipt: Receipt) -> list[Effect]:
    """A mailbox has sent it; what waited behind it may follow."""
    return _release(receipt)


def answer_fresh(hub: Hub, mailbox: Mailbox, now: int) -> list[Effect]:
    """What the pass did not send waits in the mailbox."""
    fresh, mailbox.fresh = mailbox.fresh, {}
    effects: list[Effect] = []
    for receipt in fresh.values():
        effects += queued(hub, receipt, now)
        effects += _release(receipt)
    return effects


def queued(hub: Hub, receipt: Receipt, now: int) -> list[Effect]:
    """It waits for its recipient; the time in the answer is that of its acceptance."""
    hub.tally.queued_asks += 1
    return _answer(hub, receipt, _ack(receipt, receipt.received_at_ms, QUEUED), now)


def delivered(hub: Hub, receipt: Receipt, now: int) -> list[Effect]:
    """The recipient's bytes are the kernel's."""
    hub.tally.ask_latency.observe((now - receipt.received_at_ms) / 1000)
    return _answer(hub, receipt, _ack(receipt, now, DELIVERED), now)


def _ack(receipt: Receipt, at_ms: int, status: Status) -> Ack:
    stream = 0 if receipt.mailbox is None else receipt.mailbox.id
    return Ack(at_ms, status, seq=receipt.seq, stream=stream)


def _answer(hub: Hub, receipt: Receipt, ack: Ack, now: int) -> list[Effect]:
    message = receipt.message
    hub.asks.pop(receipt.key, None)
    hub.dedup.remember_by(receipt.key, now, ack)
    return [
        delivery_ack(hub, asker, message, ack, now, is_duplicate=asker is not receipt.session)
        for asker in receipt.listening
    ]


def delivery_ack(
    hub: Hub,
    session: Session,
    message: Envelope,
    ack: Ack,
    now: int,
    *,
    is_duplicate: bool = False,
) -> Reply:
    """What the sender is told, the first time and every time after."""
    payload: dict[str, object] = {
        "messageId": message.id,
        "deliveredAt": ack.at_ms,
        "status": ack.status,
    }
    if ack.seq:
        payload["epoch"] = hub.streams.epoch_of(ack.stream)
        payload["seq"] = ack.seq
    payload["durability"] = hub.storage.durability
    if is_duplicate:
        payload["duplicate"] = True
    return hub.replies.reply(session, message, "hub:delivery_ack", wire.encode(payload), now)


def handed_over(hub: Hub, receipt: Receipt, now: int) -> list[Effect]:
    """An ask to an actor without a mailbox has reached its socket, which settles it."""
    _settle(hub, receipt, Outcome.WRITTEN, now)
    return delivered(hub, receipt, now)


def undelivered(hub: Hub, receipt: Receipt, now: int) -> list[Effect]:
    """The bytes never left: say so; the same id may be tried again."""
    if receipt.expires_at is not None and receipt.expires_at < now:
        hub.tally.expired_asks += 1
        _settle(hub, receipt, Outcome.EXPIRED, now)
        return _withdraw(hub, receipt, refusals.expired(receipt.message.ttl or 0), now)
    return gone(hub, receipt, now)


def gone(hub: Hub, receipt: Receipt, now: int) -> list[Effect]:
    """Nobody is there any more."""
    _settle(hub, receipt, Outcome.GONE, now)
    message = receipt.message
    hub.asks.pop(receipt.key, None)
    return [
        unknown_actor(hub, asker, message, receipt.target, now, retryable=True)
        for asker in receipt.listening
    ]


def overflowed(hub: Hub, receipt: Receipt, waiting: int, now: int) -> list[Effect]:
    """Too much waits for the target already: refuse, so that the sender tries again later."""
    _settle(hub, receipt, Outcome.DROPPED, now)
    refusal = refusals.queue_full(receipt.target, waiting, hub.settings.outbound)
    return _withdraw(hub, receipt, refusal, now)


def _withdraw(hub: Hub, receipt: Receipt, refusal: Refusal, now: int) -> list[Effect]:
    message = receipt.message
    hub.asks.pop(receipt.key, None)
    return [hub.replies.refuse(asker, message, refusal, now) for asker in receipt.listening]


def _settle(hub: Hub, receipt: Receipt, outcome: Outcome, now: int) -> None:
    """Remember what became of an ask without a mailbox, to be written with the tick's others."""
    sent_at = now if outcome is Outcome.WRITTEN else 0
    hub.loose.append(Settlement(0, receipt.offset, outcome, 1, 0, sent_at, sent_at, receipt.target))


# Hand-over of what a subscription or mailbox sent.


def attempt_handed_over(hub: Hub, attempt: Attempt, now: int) -> list[Effect]:
    """The bytes of a dispatched message are the kernel's."""
    subscription, flight = attempt.subscription, attempt.flight
    effects: list[Effect] = []
    receipt, flight.receipt = flight.receipt, None
    if receipt is not None:
        effects = delivered(hub, receipt, now)
    is_current = flight.phase is SENT and flight.deliveries == attempt.deliveries
    if is_current and subscription.position.generation == attempt.generation:
        assert flight.consumer is not None
        if receipt is not None:
            subscription.note_handed_over(flight, now)
        if flight.consumer.auto_ack:
            subscription.settle(flight, Outcome.WRITTEN)
        hub.dispatcher.wake(subscription)
    return effects


def attempt_lost(hub: Hub, attempt: Attempt, now: int) -> list[Effect]:
    """The socket went away first; the message stays, and an ask waits in its mailbox."""
    receipt, attempt.flight.receipt = attempt.flight.receipt, None
    return [] if receipt is None else queued(hub, receipt, now)
