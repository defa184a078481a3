"""Registering, leaving, renewing and finding actors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from signalhub import envelope as wire
from signalhub.core import journal, refusals, requests, subscribing
from signalhub.core.consumers import EXCLUSIVE, Consumer
from signalhub.core.effects import Append, Effect, Forget, Persist
from signalhub.core.registry import Registration
from signalhub.core.session import Session
from signalhub.core.streams import Mailbox
from signalhub.core.subscription import Subscription
from signalhub.entry import Kind, StreamDefinition, SubscriptionDefinition
from signalhub.envelope import ASK, Envelope, Number
from signalhub.errors import Refusal
from signalhub.names import ADDRESS_CHARS_MAX, HUB_ADDRESS, Pattern, is_address

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

PAGE_MAX = 100
# Mailboxes are many; their watchdog looks so many times less often.
MAILBOX_HEARTBEAT = 10
UNBOUNDED = 10**9
CAPABILITIES_MAX = 64
CAPABILITY_CHARS_MAX = 128
# What a registration says about itself; a page of a hundred stays below the message limit.
PROFILE_BYTES_MAX = 8 * 2**10


def register(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Make an address reachable through this session; the last one to register it wins."""
    request = requests.parse(requests.Register, message.payload)
    address = request.actor_address
    metadata = _checked(request)
    if not session.allowance.may_register(address):
        raise refusals.unauthorized("register", address)
    known = hub.registry.get(address)
    if known is None and hub.registry.is_full:
        hub.tally.registry_refused += 1
        raise refusals.registry_full(len(hub.registry), hub.registry.limit)

    version = hub.registry.next_version(address)
    if version > 1 and (known is None or known.session is not session):
        hub.tally.reconnections += 1
    effects: list[Effect] = []
    for other in hub.identities.get(address):
        if other is not session:
            text = f"{address} was registered by another session."
            effects.extend(hub.dismiss(other, "duplicate_connection", text, 1000, now))
    if known is not None and known.session is not session:
        # The owner goes by another name now and stays, but no longer hears for this address.
        hub.topics.leave(known.session, address)
    registration = Registration(
        session,
        address,
        capabilities=tuple(request.capabilities),
        metadata=metadata,
        lease_ms=_lease_ms(hub, request.ttl_seconds),
        renewal_token=f"renewal-{hub.ids.secret()}",
        version=version,
        now_ms=now,
    )
    box = hub.streams.mailboxes.get(address)
    made: Append | None = None
    if request.durable is False and box is not None:
        effects.extend(subscribing.forget_mailbox(hub, box, now))
        box = None
    elif request.durable and box is None:
        hub.check_storage()
        made = _open_mailbox(hub, address, now)
        box = hub.streams.mailboxes[address]
    hub.registry.put(registration)
    hub.identities.assign(session, address)
    hub.tally.registrations += 1
    welcome = Welcome(session, message, registration, box)
    if made is None:
        return [*effects, Persist(registration), *welcome.committed(hub, 0, now)]
    made.receipt = welcome
    return [*effects, Persist(registration), made]


class Welcome(msgspec.Struct):
    """The answer to a registration, which waits for the mailbox to be on disk if it is new."""

    session: Session
    message: Envelope
    registration: Registration
    mailbox: Mailbox | None

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        registration, mailbox = self.registration, self.mailbox
        if self.session.registrations.get(registration.address) is not registration:
            return []
        facts = {
            "expiresAt": registration.expires_at_ms(),
            "renewalToken": registration.renewal_token,
            "version": registration.version,
        }
        payload = {
            "actorAddress": registration.address,
            **facts,
            "durable": mailbox is not None,
            "waiting": 0 if mailbox is None else mailbox.waiting(now),
        }
        # The answer comes before what waits.
        reply = hub.reply(
            self.session,
            self.message,
            "hub:registered",
            wire.encode(payload),
            now,
            wire.encode(facts),
        )
        if mailbox is not None:
            mailbox.capabilities = registration.capabilities
            _attach(hub, self.session, mailbox, now)
        return [reply]

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        """Without its mailbox the address is not registered either."""
        address = self.registration.address
        if self.mailbox is not None and hub.streams.mailboxes.get(address) is self.mailbox:
            del hub.streams.mailboxes[address]
        if self.session.registrations.get(address) is not self.registration:
            return []
        hub.registry.remove(address)
        return [Forget([address]), hub.refuse(self.session, self.message, refusal, now)]


# Mailboxes.


def _open_mailbox(hub: Hub, address: str, now: int) -> Append:
    mailbox = make_mailbox(hub, address, hub.streams.take_id(), now)
    entry = journal.entry(Kind.STREAM_CREATED, mailbox, StreamDefinition(False), now)
    return Append(entry, journal.UNWATCHED)


def make_mailbox(hub: Hub, address: str, stream_id: int, now: int) -> Mailbox:
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
    heartbeat_ms = hub.settings.dispatch.heartbeat_ms * MAILBOX_HEARTBEAT
    mailbox.subscription = Subscription(mailbox, definition, heartbeat_ms, now)
    mailbox.subscription.stats = hub.tally.mailboxes
    hub.streams.mailboxes[address] = mailbox
    return mailbox


def _attach(hub: Hub, session: Session, mailbox: Mailbox, now: int) -> None:
    """From now on this session gets what is in the mailbox, and nobody else."""
    subscription = mailbox.subscription
    for other in list(subscription.consumers):
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


def detach_mailbox(hub: Hub, session: Session, address: str, now: int) -> None:
    """The session no longer answers to the address."""
    mailbox = hub.streams.mailboxes.get(address)
    for consumer in list(mailbox.subscription.consumers) if mailbox is not None else ():
        if consumer.session is session:
            detach(hub, consumer, now)


def expire_mailboxes(hub: Hub, now: int) -> list[Effect]:
    """Drop the mailboxes nobody has come back to for too long."""
    oldest_ms = now - hub.settings.mailbox.idle_s * 1000
    idle = [
        mailbox
        for mailbox in hub.streams.mailboxes.values()
        if mailbox.attached_at_ms < oldest_ms and not mailbox.subscription.consumers
    ]
    effects: list[Effect] = []
    for mailbox in idle:
        effects += subscribing.forget_mailbox(hub, mailbox, now)
    return effects


def _checked(request: requests.Register) -> bytes:
    """Refuse what would not fit the registry; give back the metadata as JSON."""
    address, capabilities = request.actor_address, request.capabilities
    if address == HUB_ADDRESS:
        raise refusals.structural(f"{HUB_ADDRESS} is the hub's own address")
    if not is_address(address):
        raise refusals.structural(
            "payload.actorAddress must be an address such as @(scope/name),"
            f" at most {ADDRESS_CHARS_MAX} printable characters"
        )
    if len(capabilities) > CAPABILITIES_MAX:
        raise refusals.structural(f"payload.capabilities has more than {CAPABILITIES_MAX} entries")
    if any(len(capability) > CAPABILITY_CHARS_MAX for capability in capabilities):
        raise refusals.structural(f"a capability is longer than {CAPABILITY_CHARS_MAX} characters")
    metadata = wire.encode(request.metadata or {})
    if len(metadata) + len(wire.encode(capabilities)) > PROFILE_BYTES_MAX:
        raise refusals.structural(
            f"payload.capabilities and payload.metadata are larger than {PROFILE_BYTES_MAX} bytes"
        )
    return metadata


def _lease_ms(hub: Hub, asked_s: Number | None) -> int:
    limits = hub.settings.registry
    seconds = limits.lease_s if asked_s is None else min(max(asked_s, 1), limits.lease_max_s)
    return int(seconds * 1000)


def unregister(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Take an address of this session away; anything else is a silent no-op."""
    if message.payload == wire.NULL:
        address = message.sender
    else:
        address = requests.parse(requests.Unregister, message.payload).actor_address
    effects: list[Effect] = []
    if address in session.registrations:
        hub.registry.remove(address)
        hub.topics.leave(session, address)
        if session.identity == address and session.hello_identity is not None:
            # Whoever registers the address next does not take this session's place.
            names = list(session.registrations)
            hub.identities.assign(session, names[-1] if names else session.hello_identity)
        effects.append(Forget([address]))
        mailbox = hub.streams.mailboxes.get(address)
        if mailbox is not None:
            effects.extend(subscribing.forget_mailbox(hub, mailbox, now))
    if message.pattern == ASK:
        payload = wire.encode({"actorAddress": address, "unregisteredAt": now})
        effects.append(hub.reply(session, message, "hub:unregistered", payload, now))
    return effects


def renew(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Extend a lease by its token, or by owning the address the request comes from."""
    token = requests.parse_or_empty(requests.Renewal, message.payload).renewal_token
    if token is None and wire.is_object(message.metadata):
        given = requests.parse(requests.Renewal, message.metadata, "metadata")
        token = given.renewal_token
    registration = next(
        (own for own in session.registrations.values() if own.renewal_token == token), None
    )
    if registration is not None:
        registration.renewal_token = f"renewal-{hub.ids.secret()}"
    else:
        registration = session.registrations.get(message.sender)
    if registration is None:
        raise refusals.bad_renewal()
    registration.renewed_at_ms = now
    registration.version += 1
    payload = wire.encode(
        {
            "actorAddress": registration.address,
            "expiresAt": registration.expires_at_ms(),
            "renewalToken": registration.renewal_token,
            "version": registration.version,
        }
    )
    return [hub.reply(session, message, "hub:renewed", payload, now)]


def discover(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Live actors whose address fits a pattern, in order of registration."""
    request = requests.parse(requests.Discover, message.payload)
    if not request.pattern:
        raise refusals.structural("payload.pattern must not be empty; `*` finds everybody")
    if len(request.pattern) > ADDRESS_CHARS_MAX:
        raise refusals.structural(f"payload.pattern is longer than {ADDRESS_CHARS_MAX} characters")
    limit = requests.page(request.limit, PAGE_MAX)
    pattern = Pattern(request.pattern)
    matching = hub.registry.matching(pattern, request.capability, now)
    actors: list[dict[str, object]] = [
        {"address": actor.address, "capabilities": actor.capabilities}
        for actor in islice(matching, limit + 1)
    ]
    if request.include_away and len(actors) <= limit:
        away = _away(hub, pattern, request.capability, now)
        actors.extend(islice(away, limit + 1 - len(actors)))
    payload = wire.encode({"actors": actors[:limit], "hasMore": len(actors) > limit})
    return [hub.reply(session, message, "hub:discovered", payload, now)]


def _away(
    hub: Hub, pattern: Pattern, capability: str | None, now: int
) -> Iterator[dict[str, object]]:
    """Durable actors that are not there."""
    for address, mailbox in hub.streams.mailboxes.items():
        if capability and capability not in mailbox.capabilities:
            continue
        if pattern.matches(address) and hub.registry.find(address, now) is None:
            yield {"address": address, "capabilities": mailbox.capabilities, "away": True}


def list_actors(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """A page of all live actors with what is known about them, tokens excepted."""
    request = requests.parse_or_empty(requests.ListActors, message.payload)
    limit = requests.page(request.limit, PAGE_MAX)
    offset = max(0, int(request.offset or 0))
    live = hub.registry.live(None, now)
    payload = wire.encode(
        {
            "actors": [
                {
                    "actorAddress": actor.address,
                    "capabilities": actor.capabilities,
                    "metadata": msgspec.Raw(actor.metadata),
                    "connectionId": actor.session.id,
                    "registeredAt": actor.registered_at_ms,
                    "expiresAt": actor.expires_at_ms(),
                    "version": actor.version,
                }
                for actor in live[offset : offset + limit]
            ],
            "total": len(live),
            "offset": offset,
            "limit": limit,
            "hasMore": offset + limit < len(live),
        }
    )
    return [hub.reply(session, message, "hub:actor_list", payload, now)]
