"""The mailboxes of durable actors: opened, attached to a session, found, dropped.

A mailbox belongs to an address. Whoever registers the address is attached to it and gets what waits
there; while nobody is, messages gather up to a limit. It goes when its owner says so, or after a
long time alone.

The mailbox of a host is for all the durable actors that live there: it holds more, stays as long as
they do, and delivers again at once and for ever, because nobody else could take the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from signalhub.core.effects import Append, Effect
from signalhub.core.messages import ask
from signalhub.core.sessions.session import Session
from signalhub.core.streams.streams import Mailbox
from signalhub.core.subscriptions import join, progress
from signalhub.core.subscriptions.consumers import EXCLUSIVE, Consumer
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.wire.entry import Body, Entry, Kind, StreamDefinition, SubscriptionDefinition
from signalhub.wire.errors import Refusal
from signalhub.wire.names import Pattern

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

# Mailboxes are many; their watchdog looks so many times less often.
HEARTBEAT_FACTOR = 10
UNBOUNDED = 10**9
HOST = "actor-host"
KIND_PREFIX = "actor:"

Kinds = tuple[str, ...] | None


def open_mailbox(hub: Hub, address: str, kinds: Kinds, now: int) -> Append:
    mailbox = make(hub, address, hub.streams.take_id(), now, kinds)
    return Append(_definition_entry(mailbox, now))


def _definition_entry(mailbox: Mailbox, now: int) -> Entry:
    definition = StreamDefinition(False, kinds=mailbox.kinds)
    return progress.entry(Kind.STREAM_CREATED, mailbox, definition, now)


def make(hub: Hub, address: str, stream_id: int, now: int, kinds: Kinds = None) -> Mailbox:
    """An empty mailbox that nobody is attached to."""
    mailbox = Mailbox(address, stream_id, hub.streams.log_epoch, now)
    heartbeat_ms = hub.settings.dispatch.heartbeat_ms * HEARTBEAT_FACTOR
    definition = _definition(hub, kinds)
    mailbox.subscription = Subscription(mailbox, definition, heartbeat_ms, now)
    mailbox.subscription.stats = hub.tally.mailboxes
    hub.streams.mailboxes[address] = mailbox
    if kinds is not None:
        stored(hub, mailbox, kinds, now)
    return mailbox


def _definition(hub: Hub, kinds: Kinds) -> SubscriptionDefinition:
    settings = hub.settings.mailbox
    is_host = kinds is not None
    return SubscriptionDefinition(
        "",
        EXCLUSIVE,
        hub.settings.actors.window if is_host else settings.window,
        False,
        settings.ack_timeout_ms,
        UNBOUNDED if is_host else settings.max_deliveries,
        0 if is_host else settings.backoff_ms,
        0 if is_host else settings.backoff_cap_ms,
        None,
        False,
    )


# Hosts.


def kinds_in(capabilities: Iterable[str]) -> Kinds:
    """The kinds of durable actors that somebody hosts; `None` for nobody's host."""
    words = set(capabilities)
    if HOST not in words:
        return None
    return tuple(sorted(one[len(KIND_PREFIX) :] for one in words if one.startswith(KIND_PREFIX)))


def kinds_after(hub: Hub, box: Mailbox, kinds: Kinds) -> Kinds:
    """What it serves once somebody who serves `kinds` has registered its address.

    While actors live there it stays a host's, because it must not lose what comes for them.
    """
    return box.kinds if kinds is None and hub.placements.are_on(box.name) else kinds


def define(hub: Hub, box: Mailbox, kinds: Kinds, now: int) -> Append:
    """It serves other kinds than before, at once, and for good when the entry is on disk."""
    before = box.kinds
    _serve(hub, box, kinds, now)

    def done(offset: int, later: int) -> list[Effect]:
        box.stored_kinds = kinds
        box.is_dirty = True
        return []

    def undo(refusal: Refusal, later: int) -> list[Effect]:
        _serve(hub, box, before, later)
        return []

    return Append(_definition_entry(box, now), done, undo)


def stored(hub: Hub, box: Mailbox, kinds: Kinds, now: int) -> None:
    """What the log says about the kinds it serves."""
    _serve(hub, box, kinds, now)
    box.stored_kinds = kinds
    if kinds is not None:
        box.capabilities = (HOST, *(KIND_PREFIX + kind for kind in kinds))


def _serve(hub: Hub, box: Mailbox, kinds: Kinds, now: int) -> None:
    hub.streams.serve(box, kinds)
    box.subscription.redefine(_definition(hub, kinds), now)


# Owners.


def attach(hub: Hub, session: Session, mailbox: Mailbox, now: int) -> None:
    """From now on this session gets what is in the mailbox, and nobody else."""
    subscription = mailbox.subscription
    # A write settles at once where the session does not; then only bytes bound it.
    window = subscription.definition.window if session.settles_mail else UNBOUNDED
    for other in list(subscription.consumers):
        if other.session is session and other.auto_ack is not session.settles_mail:
            # It registers again, and keeps what it has.
            other.window = window
            hub.dispatcher.wake(subscription)
            return
        detach(hub, other, now)
    consumer = Consumer(
        "mail-" + hub.ids.next().decode(),
        mailbox.name,
        session,
        mailbox.name,
        subscription,
        window=window,
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
    join.leave(hub, consumer, "left", now, is_told=False)


def detach_from(hub: Hub, session: Session, address: str, now: int) -> None:
    """The session no longer answers to the address."""
    mailbox = hub.streams.mailboxes.get(address)
    for consumer in list(mailbox.subscription.consumers) if mailbox is not None else ():
        if consumer.session is session:
            detach(hub, consumer, now)


def expire(hub: Hub, now: int) -> list[Effect]:
    """Drop the mailboxes nobody has come back to for too long, and no durable actor lives in."""
    oldest_ms = now - hub.settings.mailbox.idle_s * 1000
    idle = [
        mailbox
        for mailbox in hub.streams.mailboxes.values()
        if mailbox.attached_at_ms < oldest_ms
        and not mailbox.subscription.consumers
        and not hub.placements.are_on(mailbox.name)
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
        join.leave(hub, consumer, "dropped", now, is_told=False)
    # Whoever has just been accepted is answered, because no pass will run any more.
    answers = ask.answer_fresh(hub, mailbox, now)
    hub.dispatcher.remove(mailbox.subscription)
    entry = progress.entry(Kind.STREAM_DELETED, mailbox, Body(), now)
    return [*answers, hub.storage.append(entry)]
