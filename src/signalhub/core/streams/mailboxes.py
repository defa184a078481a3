"""Mailboxes of durable actors: open, attach, find and drop.

A mailbox belongs to an address. The session that registers the address is attached to the mailbox
and gets its messages; without one, messages are queued up to a limit. A mailbox is dropped on
request of its owner, or after a long time without one.

The mailbox of a host serves all durable actors on that host: it holds more, stays as long as the
actors do, and redelivers at once and without limit, because no other consumer could take over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from signalhub.core import refusals
from signalhub.core.effects import (
    Append,
    Committed,
    Effect,
    Refused,
    nothing_committed,
    nothing_refused,
)
from signalhub.core.limits.quotas import NOBODY, Holder
from signalhub.core.sessions.session import Session
from signalhub.core.streams.streams import Mailbox
from signalhub.core.subscriptions.consumers import EXCLUSIVE, Consumer
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.wire.entry import Body, Entry, Kind, StreamDefinitionBody, SubscriptionDefinitionBody
from signalhub.wire.errors import Refusal
from signalhub.wire.names import Pattern

if TYPE_CHECKING:
    from signalhub.auth.permissions import Allowance
    from signalhub.clock import Ids
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.ask import Asks
    from signalhub.core.patterns.pattern import PatternConsumer
    from signalhub.core.placement import Placements
    from signalhub.core.sessions.registry import Registry
    from signalhub.core.streams.streams import Streams
    from signalhub.core.subscriptions.dispatcher import Dispatcher
    from signalhub.core.subscriptions.join import Subscriptions
    from signalhub.counters import Tally
    from signalhub.settings.model import Settings

# There may be many mailboxes; their watchdog runs less often by this factor.
HEARTBEAT_FACTOR = 10
UNBOUNDED = 10**9
# How many mailboxes are examined at once, so that no tick takes long.
_CHECKED_MAX = 2_000
HOST = "actor-host"
KIND_PREFIX = "actor:"

Kinds = tuple[str, ...] | None


class Mailboxes:
    """Manages mailboxes and the sessions attached to them."""

    def __init__(
        self,
        streams: Streams,
        subscriptions: Subscriptions,
        dispatcher: Dispatcher,
        asks: Asks,
        registry: Registry,
        placements: Placements,
        storage: LogState,
        ids: Ids,
        settings: Settings,
        tally: Tally,
    ) -> None:
        self._streams = streams
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._asks = asks
        self._registry = registry
        self._placements = placements
        self._storage = storage
        self._ids = ids
        self._settings = settings
        self._tally = tally
        # Those that the current search for idle mailboxes has not reached.
        self._unchecked: list[Mailbox] = []

    def open(self, address: str, kinds: Kinds, holder: Holder, now: int) -> tuple[Mailbox, Append]:
        """Create a mailbox; it is permanent once its entry is on disk."""
        box = self.make(address, self._streams.take_id(), now, kinds, holder)
        opened, refused = partial(self._opened, box), partial(self._not_opened, box)
        box.making = Append(_definition_entry(box, now), opened, refused)
        return box, box.making

    def _opened(self, box: Mailbox, offset: int, now: int) -> list[Effect]:
        box.making = None
        box.is_made = True
        box.touch()
        return []

    def _not_opened(self, box: Mailbox, refusal: Refusal, now: int) -> list[Effect]:
        box.making = None
        self._streams.drop(box)
        return []

    def make(
        self,
        address: str,
        stream_id: int,
        now: int,
        kinds: Kinds = None,
        holder: Holder = NOBODY,
    ) -> Mailbox:
        """An empty mailbox without an owner."""
        mailbox = Mailbox(address, stream_id, self._streams.log_epoch, now)
        heartbeat_ms = self._settings.dispatch.heartbeat_ms * HEARTBEAT_FACTOR
        definition = self._definition(kinds)
        stats = self._tally.mailboxes
        mailbox.subscription = Subscription(mailbox, definition, heartbeat_ms, now, stats)
        self._streams.add(mailbox, holder)
        if kinds is not None:
            self.stored(mailbox, kinds, now)
        return mailbox

    def _definition(self, kinds: Kinds) -> SubscriptionDefinitionBody:
        settings = self._settings.mailbox
        is_host = kinds is not None
        return SubscriptionDefinitionBody(
            "",
            EXCLUSIVE,
            self._settings.actors.window if is_host else settings.window,
            False,
            settings.ack_timeout_ms,
            UNBOUNDED if is_host else settings.max_deliveries,
            0 if is_host else settings.backoff_ms,
            0 if is_host else settings.backoff_cap_ms,
            None,
            False,
        )

    # Hosts.

    def kinds_after(self, box: Mailbox, kinds: Kinds) -> Kinds:
        """The kinds a mailbox serves after an owner with `kinds` has registered its address.

        It stays a host's mailbox while actors are placed there, so that their messages are kept.
        """
        return box.kinds if kinds is None and self._placements.are_on(box.name) else kinds

    def check_may_hold(
        self, allowance: Allowance, address: str, capabilities: Iterable[str]
    ) -> None:
        """Refuse an owner that may not host what it serves, or what is placed on its address.

        The latter also applies to owners that do not claim to be hosts: messages for the actors,
        and actors that move there, arrive in this mailbox.
        """
        kinds = kinds_in(capabilities)
        needed = sorted(self._placements.kinds_on(address).union(kinds or ()))
        if kinds == ():
            # A host that names no kinds must be allowed any.
            needed.append("*")
        for kind in needed:
            if not allowance.may_host(kind):
                raise refusals.unauthorized("host", kind)

    def define(self, box: Mailbox, kinds: Kinds, now: int) -> Append:
        """Change the kinds it serves; permanent once the entry is on disk."""
        before = box.kinds
        self._serve(box, kinds, now)

        def done(offset: int, later: int) -> list[Effect]:
            box.stored_kinds = kinds
            box.touch()
            return []

        def undo(refusal: Refusal, later: int) -> list[Effect]:
            self._serve(box, before, later)
            return []

        return Append(_definition_entry(box, now), done, undo)

    def stored(self, box: Mailbox, kinds: Kinds, now: int) -> None:
        """The entry that states the kinds it serves."""
        self._serve(box, kinds, now)
        box.stored_kinds = kinds
        if kinds is not None:
            box.capabilities = (HOST, *(KIND_PREFIX + kind for kind in kinds))

    def _serve(self, box: Mailbox, kinds: Kinds, now: int) -> None:
        self._streams.serve(box, kinds)
        box.subscription.redefine(self._definition(kinds), now)

    # Owners.

    def attach(
        self, session: Session, mailbox: Mailbox, capabilities: tuple[str, ...], now: int
    ) -> None:
        """Attach a session as the only consumer of the mailbox."""
        mailbox.capabilities = capabilities
        subscription = mailbox.subscription
        # Without acks a write settles a message, so only the byte limit applies.
        window = subscription.definition.window if session.settles_mail else UNBOUNDED
        for other in list(subscription.consumers):
            if other.session is session and other.auto_ack is not session.settles_mail:
                # The same session registers again and keeps its deliveries.
                other.grant(window)
                self._dispatcher.wake(subscription)
                return
            self.detach(other, now)
        consumer = Consumer(
            "mail-" + self._ids.next().decode(),
            mailbox.name,
            session,
            mailbox.name,
            subscription,
            window=window,
            bytes_max=self._settings.dispatch.window_bytes,
            auto_ack=not session.settles_mail,
        )
        self._subscriptions.add(consumer, now)

    def detach(self, consumer: Consumer | PatternConsumer, now: int) -> None:
        """A consumer left, or its session closed."""
        stream = consumer.subscription.stream if isinstance(consumer, Consumer) else None
        if isinstance(stream, Mailbox):
            stream.attached_at_ms = now
            stream.touch()
        self._subscriptions.leave(consumer, "left", now, is_told=False)

    def detach_from(self, session: Session, address: str, now: int) -> None:
        """Detach the session from the mailbox of an address."""
        mailbox = self._streams.mailboxes.get(address)
        for consumer in list(mailbox.subscription.consumers) if mailbox is not None else ():
            if consumer.session is session:
                self.detach(consumer, now)

    def begin_expiry(self) -> None:
        """Look for idle mailboxes from now on, unless that is being done."""
        if not self._unchecked:
            self._unchecked = list(self._streams.mailboxes.values())

    def expire(self, now: int) -> list[Effect]:
        """Drop mailboxes whose owner has been away for too long, unless actors are placed there.

        A few are examined per call, so that no tick takes long.
        """
        if self._storage.fault is not None:
            return []
        oldest_ms = now - self._settings.mailbox.idle_s * 1000
        effects: list[Effect] = []
        for _ in range(min(_CHECKED_MAX, len(self._unchecked))):
            mailbox = self._unchecked.pop()
            if (
                mailbox.attached_at_ms < oldest_ms
                and not mailbox.subscription.consumers
                and self._streams.mailboxes.get(mailbox.name) is mailbox
                and not self._placements.are_on(mailbox.name)
            ):
                effects += self.drop(mailbox, now)
        return effects

    def candidates(self, pattern: Pattern) -> list[Mailbox]:
        """Those among which all that match are."""
        if pattern.literal is not None:
            known = self._streams.mailboxes.get(f"@({pattern.literal})")
            return [] if known is None else [known]
        return list(self._streams.mailboxes.values())

    def away(
        self, boxes: Iterable[Mailbox], pattern: Pattern, capability: str | None, now: int
    ) -> Iterator[dict[str, object]]:
        """Of these mailboxes, the ones that match and whose owner is away."""
        for mailbox in boxes:
            address = mailbox.name
            if capability and capability not in mailbox.capabilities:
                continue
            if self._streams.mailboxes.get(address) is not mailbox:
                continue
            if pattern.matches(address) and self._registry.find(address, now) is None:
                yield {"address": address, "capabilities": mailbox.capabilities, "away": True}

    def drop(
        self,
        mailbox: Mailbox,
        now: int,
        committed: Committed = nothing_committed,
        refused: Refused = nothing_refused,
    ) -> list[Effect]:
        """Drop a mailbox with its messages, which are counted as lost.

        It is gone for good once that is on disk: then `committed` is called.
        """
        self._tally.mailbox_dropped += mailbox.waiting(now)
        self._streams.forget(mailbox)
        for consumer in list(mailbox.subscription.consumers):
            self._subscriptions.leave(consumer, "dropped", now, is_told=False)
        # Answer what waits for a pass, because none will run for this mailbox again.
        answers = self._asks.answer_fresh(mailbox, now)
        gone = refusals.not_a_consumer(mailbox.name)
        answers += self._subscriptions.end(mailbox.subscription, gone, now)
        entry = mailbox.entry(Kind.STREAM_DELETED, Body(), now)
        return [*answers, self._storage.append(Append(entry, committed, refused))]


def _definition_entry(mailbox: Mailbox, now: int) -> Entry:
    owner = mailbox.holder.identity
    definition = StreamDefinitionBody(False, kinds=mailbox.kinds, owner=owner)
    return mailbox.entry(Kind.STREAM_CREATED, definition, now)


def kinds_in(capabilities: Iterable[str]) -> Kinds:
    """The kinds of durable actors that a host serves; `None` if it is not a host."""
    words = set(capabilities)
    if HOST not in words:
        return None
    return tuple(sorted(one[len(KIND_PREFIX) :] for one in words if one.startswith(KIND_PREFIX)))
