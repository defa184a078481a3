"""The mailboxes of durable actors: opened, attached to a session, found, dropped.

A mailbox belongs to an address. Whoever registers the address is attached to it and gets what waits
there; while nobody is, messages gather up to a limit. It goes when its owner says so, or after a
long time alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from signalhub.core import asks, journal, subscribing
from signalhub.core.consumers import EXCLUSIVE, Consumer
from signalhub.core.effects import Append, Effect
from signalhub.core.session import Session
from signalhub.core.streams import Mailbox
from signalhub.core.subscription import Subscription
from signalhub.entry import Body, Kind, StreamDefinition, SubscriptionDefinition
from signalhub.names import Pattern

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

# Mailboxes are many; their watchdog looks so many times less often.
HEARTBEAT_FACTOR = 10
UNBOUNDED = 10**9


def open_mailbox(hub: Hub, address: str, now: int) -> Append:
    mailbox = make(hub, address, hub.streams.take_id(), now)
    entry = journal.entry(Kind.STREAM_CREATED, mailbox, StreamDefinition(False), now)
    return Append(entry, journal.UNWATCHED)


def make(hub: Hub, address: str, stream_id: int, now: int) -> Mailbox:
    """An empty mailbox that nobody is attached to."""
    settings = hub.settings.mailbox
    mailbox = Mailbox(address, stream_id, hub.streams.log_epoch, now)
    definition = SubscriptionDefinition(
        "",
        EXCLUSIVE,
        settings.window,
        False,
        settings.ack_timeout_ms,
        settings.max_deliveries,
        settings.backoff_ms,
        settings.backoff_cap_ms,
        None,
        False,
    )
    heartbeat_ms = hub.settings.dispatch.heartbeat_ms * HEARTBEAT_FACTOR
    mailbox.subscription = Subscription(mailbox, definition, heartbeat_ms, now)
    mailbox.subscription.stats = hub.tally.mailboxes
    hub.streams.mailboxes[address] = mailbox
    return mailbox


def attach(hub: Hub, session: Session, mailbox: Mailbox, now: int) -> None:
    """From now on this session gets what is in the mailbox, and nobody else."""
    subscription = mailbox.subscription
    for other in list(subscription.consumers):
        if other.session is session and other.auto_ack is not session.settles_mail:
            # It registers again, and keeps what it has.
            return
        detach(hub, other, now)
    consumer = Consumer(
        "mail-" + hub.ids.next().decode(),
        mailbox.name,
        session,
        mailbox.name,
        subscription,
        # A write settles at once where the session does not; then only bytes bound it.
        window=hub.settings.mailbox.window if session.settles_mail else UNBOUNDED,
        bytes_max=hub.settings.dispatch.window_bytes,
        auto_ack=not session.settles_mail,
    )
    session.consumers[consumer.id] = consumer
    subscription.joined(consumer)
    hub.dispatcher.watch(subscription, now)


def detach(hub: Hub, consumer: Consumer, now: int) -> None:
    """A consumer's session is gone, or gives up its part."""
    stream = consumer.subscription.stream
    if isinstance(stream, Mailbox):
        stream.attached_at_ms = now
        stream.is_dirty = True
    subscribing.leave(hub, consumer, "left", now, is_told=False)


def detach_from(hub: Hub, session: Session, address: str, now: int) -> None:
    """The session no longer answers to the address."""
    mailbox = hub.streams.mailboxes.get(address)
    for consumer in list(mailbox.subscription.consumers) if mailbox is not None else ():
        if consumer.session is session:
            detach(hub, consumer, now)


def expire(hub: Hub, now: int) -> list[Effect]:
    """Drop the mailboxes nobody has come back to for too long."""
    oldest_ms = now - hub.settings.mailbox.idle_s * 1000
    idle = [
        mailbox
        for mailbox in hub.streams.mailboxes.values()
        if mailbox.attached_at_ms < oldest_ms and not mailbox.subscription.consumers
    ]
    effects: list[Effect] = []
    for mailbox in idle:
        effects += drop(hub, mailbox, now)
    return effects


def away(
    hub: Hub, pattern: Pattern, capability: str | None, now: int
) -> Iterator[dict[str, object]]:
    """Durable actors that are not there."""
    for address, mailbox in hub.streams.mailboxes.items():
        if capability and capability not in mailbox.capabilities:
            continue
        if pattern.matches(address) and hub.registry.find(address, now) is None:
            yield {"address": address, "capabilities": mailbox.capabilities, "away": True}


def drop(hub: Hub, mailbox: Mailbox, now: int) -> list[Effect]:
    """A mailbox is dropped with what waits in it, which is counted."""
    hub.tally.mailbox_dropped += mailbox.waiting(now)
    hub.streams.forgotten.add(mailbox.id)
    hub.streams.mailboxes.pop(mailbox.name, None)
    for consumer in list(mailbox.subscription.consumers):
        subscribing.leave(hub, consumer, "dropped", now, is_told=False)
    # Whoever has just been accepted is answered, because no pass will run any more.
    answers = asks.answer_fresh(hub, mailbox, now)
    hub.dispatcher.remove(mailbox.subscription)
    entry = journal.entry(Kind.STREAM_DELETED, mailbox, Body(), now)
    return [*answers, Append(entry, journal.Kept(entry))]
