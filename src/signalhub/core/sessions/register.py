"""Registering, leaving, renewing and finding actors."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, Forget, Persist
from signalhub.core.messages import ask
from signalhub.core.sessions.registry import Registration
from signalhub.core.sessions.session import Session, State
from signalhub.core.streams import mailboxes
from signalhub.core.streams.streams import Mailbox
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import ASK, Envelope, Number
from signalhub.wire.errors import Refusal
from signalhub.wire.names import ADDRESS_CHARS_MAX, HUB_ADDRESS, Pattern, is_address

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

PAGE_MAX = 100
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

    kinds = mailboxes.kinds_in(request.capabilities)
    if kinds is not None and known is not None and known.session is not session:
        _check_other_host(known, metadata, now)
    box = hub.streams.mailboxes.get(address)
    if box is None and request.durable:
        _check_room_for_mailbox(hub)
    elif box is not None:
        kinds = mailboxes.kinds_after(hub, box, kinds)
        if box.kinds != kinds and request.durable is not False:
            hub.storage.check()

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
    made: Append | None = None
    defined: Append | None = None
    if request.durable is False and box is not None:
        effects.extend(mailboxes.drop(hub, box, now))
        box = None
    elif request.durable and box is None:
        made = mailboxes.open_mailbox(hub, address, kinds, now)
        box = hub.streams.mailboxes[address]
    elif box is not None and box.kinds != kinds:
        defined = mailboxes.define(hub, box, kinds, now)
    hub.registry.put(registration)
    hub.identities.assign(session, address)
    hub.tally.registrations += 1
    welcome = Welcome(hub, session, message, registration, box)
    if box is not None and made is not None:
        box.joiners = [welcome]
        made.follow(partial(_made, hub, box), partial(_not_made, hub, box))
        return [*effects, Persist(registration), made]
    if defined is not None:
        defined.follow(welcome.committed, welcome.refused)
        return [*effects, Persist(registration), defined]
    if box is not None and box.joiners is not None:
        # The mailbox is on its way to the log, and so is the answer.
        box.joiners.append(welcome)
        return [*effects, Persist(registration)]
    return [*effects, Persist(registration), *welcome.committed(0, now)]


def _check_room_for_mailbox(hub: Hub) -> None:
    """Before anything happens: a refused registration must leave everything as it is."""
    hub.storage.check()
    count, limit = len(hub.streams.mailboxes), hub.settings.mailbox.count_max
    if count >= limit:
        hub.tally.registry_refused += 1
        raise refusals.registry_full(count, limit)


class _Profile(msgspec.Struct, gc=False):
    """What a host says about itself in its metadata."""

    instance: Any = None


_instance = msgspec.json.Decoder(_Profile).decode


def _check_other_host(known: Registration, metadata: bytes, now: int) -> None:
    """The last to register wins, but not against another living instance of a host."""
    is_host = mailboxes.HOST in known.capabilities and known.is_live(now)
    if is_host and _instance(known.metadata) != _instance(metadata):
        raise refusals.duplicate_host(known.address)


class Welcome(msgspec.Struct):
    """The answer to a registration, which waits for what is new of its mailbox to be on disk."""

    hub: Hub
    session: Session
    message: Envelope
    registration: Registration
    box: Mailbox | None

    def committed(self, offset: int, now: int) -> list[Effect]:
        """What holds now, and from now on what is in the mailbox."""
        hub, address = self.hub, self.registration.address
        # It may have been dropped meanwhile.
        box = self.box if hub.streams.mailboxes.get(address) is self.box else None
        registration = self.session.registrations.get(address)
        if self.session.state is not State.CONNECTED:
            return []
        if registration is None:
            # Another session has taken the address meanwhile.
            return [
                hub.replies.refuse(
                    self.session, self.message, refusals.not_your_address(address), now
                )
            ]
        facts = {
            "expiresAt": registration.expires_at_ms(),
            "renewalToken": registration.renewal_token,
            "version": registration.version,
        }
        payload = {
            "actorAddress": registration.address,
            **facts,
            "durable": box is not None,
            "waiting": 0 if box is None else ask.waiting_in(hub, box, now),
        }
        # The answer comes before what waits.
        reply = hub.replies.reply(
            self.session,
            self.message,
            "hub:registered",
            wire.encode(payload),
            now,
            wire.encode(facts),
        )
        if box is not None:
            box.capabilities = registration.capabilities
            mailboxes.attach(hub, self.session, box, now)
        return [reply]

    def refused(self, refusal: Refusal, now: int) -> list[Effect]:
        """Without its mailbox the address is not registered either."""
        hub, address = self.hub, self.registration.address
        effects: list[Effect] = []
        if self.session.registrations.get(address) is self.registration:
            hub.registry.remove(address)
            effects.append(Forget([address]))
        if self.session.state is State.CONNECTED:
            effects.append(hub.replies.refuse(self.session, self.message, refusal, now))
        return effects


def _made(hub: Hub, box: Mailbox, offset: int, now: int) -> list[Effect]:
    """A new mailbox is on disk: everybody who has registered its address is welcome."""
    box.is_made = box.is_dirty = True
    return [one for welcome in _joiners(box) for one in welcome.committed(offset, now)]


def _not_made(hub: Hub, box: Mailbox, refusal: Refusal, now: int) -> list[Effect]:
    if hub.streams.mailboxes.get(box.name) is box:
        del hub.streams.mailboxes[box.name]
    return [one for welcome in _joiners(box) for one in welcome.refused(refusal, now)]


def _joiners(box: Mailbox) -> list[Welcome]:
    joiners, box.joiners = box.joiners, None
    return joiners or []


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
        box = hub.streams.mailboxes.get(address)
        if box is not None:
            effects.extend(mailboxes.drop(hub, box, now))
    if message.pattern == ASK:
        payload = wire.encode({"actorAddress": address, "unregisteredAt": now})
        effects.append(hub.replies.reply(session, message, "hub:unregistered", payload, now))
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
    return [hub.replies.reply(session, message, "hub:renewed", payload, now)]


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
        away = mailboxes.away(hub, pattern, request.capability, now)
        actors.extend(islice(away, limit + 1 - len(actors)))
    payload = wire.encode({"actors": actors[:limit], "hasMore": len(actors) > limit})
    return [hub.replies.reply(session, message, "hub:discovered", payload, now)]


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
    return [hub.replies.reply(session, message, "hub:actor_list", payload, now)]
