"""Register, unregister, renew and discover actors."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from signalhub.auth.permissions import EVERYTHING
from signalhub.core import refusals, requests
from signalhub.core.effects import Append, Effect, Forget, Persist
from signalhub.core.limits.quotas import Holder, Quotas, Resource, holder_of
from signalhub.core.limits.scans import Scans, Steps, steps_of
from signalhub.core.sessions.registry import Registration
from signalhub.core.sessions.session import Session, SessionState
from signalhub.core.streams import mailboxes
from signalhub.core.streams.streams import Mailbox
from signalhub.pacing import Period
from signalhub.wire import envelope as wire
from signalhub.wire.envelope import ASK, Envelope, Number
from signalhub.wire.errors import Refusal
from signalhub.wire.names import ADDRESS_CHARS_MAX, Pattern, is_address, is_reserved

if TYPE_CHECKING:
    from signalhub.clock import Ids
    from signalhub.core.log_state import LogState
    from signalhub.core.messages.ask import Asks
    from signalhub.core.messages.audience import Topics
    from signalhub.core.replies import Handler, Replies
    from signalhub.core.sessions.registry import Registry
    from signalhub.core.sessions.sessions import Identities, Sessions
    from signalhub.core.streams.mailboxes import Mailboxes
    from signalhub.core.streams.streams import Streams
    from signalhub.counters import Tally
    from signalhub.settings.model import Settings

PAGE_MAX = 100
CAPABILITIES_MAX = 64
CAPABILITY_CHARS_MAX = 128
# Limits for one registration, so that a page of a hundred fits into a message.
PROFILE_BYTES_MAX = 8 * 2**10
# The same with every character spelt as an escape, and room for spaces.
_SPELT_BYTES_MAX = 8 * PROFILE_BYTES_MAX
_SWEEP_MS_MIN = 5_000


class Directory:
    """Manages registrations."""

    def __init__(
        self,
        sessions: Sessions,
        identities: Identities,
        registry: Registry,
        topics: Topics,
        streams: Streams,
        mailboxes: Mailboxes,
        asks: Asks,
        quotas: Quotas,
        scans: Scans,
        storage: LogState,
        replies: Replies,
        ids: Ids,
        settings: Settings,
        tally: Tally,
    ) -> None:
        self._sessions = sessions
        self._identities = identities
        self._registry = registry
        self._topics = topics
        self._streams = streams
        self._mailboxes = mailboxes
        self._asks = asks
        self._quotas = quotas
        self._scans = scans
        self._storage = storage
        self._replies = replies
        self._wall = replies.wall
        self._ids = ids
        self._settings = settings
        self._tally = tally
        self._to_sweep: list[Registration] = []
        self._slice = 1
        self._sweep = Period(self._sweep_ms())

    def handlers(self) -> dict[str, Handler]:
        return {
            "hub:register": self.register,
            "hub:unregister": self.unregister,
            "hub:renew": self.renew,
            "hub:discover": self.discover,
            "hub:list_actors": self.list_actors,
        }

    def register(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:register`: make an address reachable through this session; the last one wins."""
        requests.check_size(message.payload, _SPELT_BYTES_MAX)
        request = requests.parse(requests.RegisterRequest, message.payload)
        address = request.actor_address
        metadata = _checked(request)
        if not session.allowance.may_register(address):
            raise refusals.unauthorized("register", address)
        if self._registry.is_internal(address):
            raise refusals.not_your_address(address)
        known = self._registry.get(address)
        if known is None and self._registry.is_full:
            self._tally.registry_refused += 1
            raise refusals.registry_full(len(self._registry), self._registry.limit)
        holder = holder_of(session)
        if known is None or known.holder != holder:
            self._quotas.check(Resource.REGISTRATIONS, holder)

        kinds = mailboxes.kinds_in(request.capabilities)
        if session.allowance is not EVERYTHING:
            self._mailboxes.check_may_hold(session.allowance, address, request.capabilities)
        if kinds is not None and known is not None and known.session is not session:
            _check_other_host(known, metadata, now)
        box = self._streams.mailboxes.get(address)
        if box is not None or request.durable is not None:
            # What waits in the mailbox may lie behind the damage.
            self._storage.check_known()
        if request.durable is False:
            self._check_may_drop(address, box)
        if box is None and request.durable:
            self._check_room_for_mailbox(holder)
        elif box is not None:
            kinds = self._mailboxes.kinds_after(box, kinds)
            if box.kinds != kinds and request.durable is not False:
                self._storage.check()

        version = self._registry.next_version(address)
        if version > 1 and (known is None or known.session is not session):
            self._tally.reconnections += 1
        effects: list[Effect] = []
        for other in self._identities.get(address):
            if other is not session:
                text = f"{address} was registered by another session."
                effects.extend(
                    self._sessions.dismiss(other, "duplicate_connection", text, 1000, now)
                )
        if known is not None and known.session is not session:
            # The previous owner keeps its session but no longer receives for this address.
            self._topics.leave(known.session, address)
        registration = Registration(
            session,
            address,
            capabilities=tuple(request.capabilities),
            metadata=metadata,
            lease_ms=self._lease_ms(request.ttl_seconds),
            renewal_token=f"renewal-{self._ids.secret()}",
            version=version,
            now_ms=now,
        )
        written: Append | None = None
        dropped = box if request.durable is False else None
        if dropped is not None:
            box = None
        elif request.durable and box is None:
            box, written = self._mailboxes.open(address, kinds, holder, now)
        elif box is not None and box.kinds != kinds:
            written = self._mailboxes.define(box, kinds, now)
        self._registry.put(registration)
        self._identities.assign(session, address)
        self._tally.registrations += 1
        effects.append(Persist(registration))
        welcome = RegistrationAnswer(session, message, registration, box)
        told, failed = partial(self._welcome, welcome), partial(self._not_welcome, welcome)
        if dropped is not None:
            return [*effects, *self._mailboxes.drop(dropped, now, told, failed)]
        # The mailbox may be in the middle of being written; answer after that.
        awaited = written or (None if box is None else box.making)
        if awaited is None:
            return [*effects, *self._welcome(welcome, 0, now)]
        awaited.follow(told, failed)
        return effects if written is None else [*effects, written]

    def _welcome(self, welcome: RegistrationAnswer, offset: int, now: int) -> list[Effect]:
        """Answer, then deliver what is in the mailbox."""
        session, message = welcome.session, welcome.message
        address = welcome.registration.address
        # It may have been dropped in the meantime.
        box = welcome.box if self._streams.mailboxes.get(address) is welcome.box else None
        registration = session.registrations.get(address)
        if session.state is not SessionState.CONNECTED:
            return []
        if registration is None:
            # Another session has taken the address in the meantime.
            refusal = refusals.not_your_address(address)
            return [self._replies.refuse(session, message, refusal, now)]
        facts = {
            "expiresAt": self._wall.shown(registration.expires_at_ms()),
            "renewalToken": registration.renewal_token,
            "version": registration.version,
        }
        payload = {
            "actorAddress": registration.address,
            **facts,
            "durable": box is not None,
            "waiting": 0 if box is None else self._asks.waiting_in(box, now),
        }
        # The answer comes before the queued messages.
        reply = self._replies.reply(
            session, message, "hub:registered", wire.encode(payload), now, wire.encode(facts)
        )
        if box is not None:
            self._mailboxes.attach(session, box, registration.capabilities, now)
        return [reply]

    def _not_welcome(self, welcome: RegistrationAnswer, refusal: Refusal, now: int) -> list[Effect]:
        """Without its mailbox the address cannot be registered: undo."""
        session, address = welcome.session, welcome.registration.address
        effects: list[Effect] = []
        if session.registrations.get(address) is welcome.registration:
            effects.append(self._remove(session, address))
        if session.state is SessionState.CONNECTED:
            effects.append(self._replies.refuse(session, welcome.message, refusal, now))
        return effects

    def _check_room_for_mailbox(self, holder: Holder) -> None:
        """Check everything first, so that a refused registration changes nothing."""
        self._storage.check()
        count, limit = len(self._streams.mailboxes), self._settings.mailbox.count_max
        if count >= limit:
            self._tally.registry_refused += 1
            raise refusals.registry_full(count, limit)
        self._quotas.check(Resource.MAILBOXES, holder)

    def _lease_ms(self, asked_s: Number | None) -> int:
        limits = self._settings.registry
        seconds = limits.lease_s if asked_s is None else min(max(asked_s, 1), limits.lease_max_s)
        return int(seconds * 1000)

    def unregister(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:unregister`: remove an address of this session; others are ignored."""
        if message.payload == wire.NULL:
            address = message.sender
        else:
            address = requests.parse(requests.UnregisterRequest, message.payload).actor_address
        is_own, box = address in session.registrations, self._streams.mailboxes.get(address)
        if is_own:
            # Its mailbox may lie behind the damage.
            self._storage.check_known()
        self._check_may_drop(address, box if is_own else None)
        effects: list[Effect] = [self._remove(session, address)] if is_own else []
        payload: dict[str, object] = {
            "actorAddress": address,
            "unregisteredAt": self._wall.shown(now),
        }
        answer = self._replies.answer(session, message, "hub:unregistered", payload)
        if not is_own or box is None:
            return [*effects, *answer.committed(0, now)] if message.pattern == ASK else effects
        if message.pattern != ASK:
            return [*effects, *self._mailboxes.drop(box, now)]
        return [*effects, *self._mailboxes.drop(box, now, answer.committed, answer.refused)]

    def _check_may_drop(self, address: str, box: Mailbox | None) -> None:
        """Refuse what could not be said to be done, because the log takes no entry about it."""
        if box is not None:
            self._storage.check()
        self._storage.check_written(address)

    def _remove(self, session: Session, address: str) -> Forget:
        self._registry.remove(address)
        self._topics.leave(session, address)
        if session.identity == address:
            # The next session to register the address does not replace this one.
            self._identities.rename(session)
        return Forget([address])

    def renew(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:renew`: extend a lease, by its token or by owning the address."""
        token = requests.parse_or_empty(requests.Renewal, message.payload).renewal_token
        if token is None and wire.is_object(message.metadata):
            given = requests.parse(requests.Renewal, message.metadata, "metadata")
            token = given.renewal_token
        registration = next(
            (own for own in session.registrations.values() if own.renewal_token == token), None
        )
        if registration is not None:
            registration.renewal_token = f"renewal-{self._ids.secret()}"
        else:
            registration = session.registrations.get(message.sender)
        if registration is None:
            raise refusals.bad_renewal()
        registration.renewed_at_ms = now
        registration.version += 1
        payload = wire.encode(
            {
                "actorAddress": registration.address,
                "expiresAt": self._wall.shown(registration.expires_at_ms()),
                "renewalToken": registration.renewal_token,
                "version": registration.version,
            }
        )
        return [self._replies.reply(session, message, "hub:renewed", payload, now)]

    def discover(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:discover`: live actors whose address matches, in order of registration."""
        request = requests.parse(requests.DiscoverRequest, message.payload)
        if not request.pattern:
            raise refusals.structural("payload.pattern must not be empty; `*` finds everybody")
        if len(request.pattern) > ADDRESS_CHARS_MAX:
            raise refusals.structural(
                f"payload.pattern is longer than {ADDRESS_CHARS_MAX} characters"
            )
        if request.include_away:
            self._storage.check_known()
        limit = requests.page(request.limit, PAGE_MAX)
        pattern = Pattern(request.pattern)
        steps = self._discover(session, request, pattern, limit, now)
        size = 1
        if pattern.literal is None:
            size = len(self._registry)
            size += len(self._streams.mailboxes) if request.include_away else 0
        return self._scans.run(session, message, steps, now, size=size)

    def _discover(
        self,
        session: Session,
        request: requests.DiscoverRequest,
        pattern: Pattern,
        limit: int,
        now: int,
    ) -> Steps:
        actors: list[dict[str, object]] = []
        registry, capability, cost = self._registry, request.capability, _cost(session)
        for part, examined in steps_of(registry.candidates(pattern, capability), cost):
            actors += [
                {"address": actor.address, "capabilities": actor.capabilities}
                for actor in part
                if registry.matches(actor, pattern, capability, now)
                and _is_seen(session, actor.address)
            ]
            yield examined
            if len(actors) > limit:
                break
        boxes = self._mailboxes.candidates(pattern) if request.include_away else []
        for some, examined in steps_of(boxes, cost):
            if len(actors) > limit:
                break
            away = self._mailboxes.away(some, pattern, capability, now)
            actors += [one for one in away if _is_seen(session, str(one["address"]))]
            yield examined
        return "hub:discovered", {"actors": actors[:limit], "hasMore": len(actors) > limit}

    def list_actors(self, session: Session, message: Envelope, now: int) -> list[Effect]:
        """`hub:list_actors`: one page of all live actors, without their tokens."""
        request = requests.parse_or_empty(requests.ListActorsRequest, message.payload)
        limit = requests.page(request.limit, PAGE_MAX)
        offset = max(0, int(request.offset or 0))
        steps = self._list(session, offset, limit, now)
        return self._scans.run(session, message, steps, now, size=len(self._registry))

    def _list(self, session: Session, offset: int, limit: int, now: int) -> Steps:
        total = 0
        page: list[Registration] = []
        for part, examined in steps_of(list(self._registry), _cost(session)):
            seen = [one for one in part if one.is_live(now) and _is_seen(session, one.address)]
            page += seen[max(0, offset - total) : max(0, offset + limit - total)]
            total += len(seen)
            yield examined
        return "hub:actor_list", {
            "actors": [
                {
                    "actorAddress": actor.address,
                    "capabilities": actor.capabilities,
                    "metadata": msgspec.Raw(actor.metadata),
                    "connectionId": actor.session.id,
                    "registeredAt": self._wall.shown(actor.registered_at_ms),
                    "expiresAt": self._wall.shown(actor.expires_at_ms()),
                    "version": actor.version,
                }
                for actor in page
            ],
            "total": total,
            "offset": offset,
            "limit": limit,
            "hasMore": offset + limit < total,
        }

    # Leases.

    def tick(self, now: int) -> list[Effect]:
        """Remove expired registrations, and persist renewed ones."""
        effects: list[Effect] = []
        if not self._to_sweep and self._sweep.is_due(now):
            self._to_sweep = list(self._registry)
            self._slice = -(-len(self._to_sweep) * 1000 // self._sweep.period_ms)
            self._sweep.period_ms = self._sweep_ms()
            gone = self._registry.expire_away(now)
            if gone:
                effects.append(Forget(gone))
            self._mailboxes.begin_expiry()
        return [*effects, *self._mailboxes.expire(now), *self._persist_renewed()]

    def drain(self) -> list[Effect]:
        """Persist changes before a shutdown."""
        return [
            Persist(registration)
            for registration in self._registry
            if registration.has_changed_since_persisted()
        ]

    def _sweep_ms(self) -> int:
        """How often to persist renewals, so that no live lease looks expired on disk."""
        at_most = int(self._settings.registry.sweep_s * 1000)
        return max(_SWEEP_MS_MIN, min(at_most, self._registry.lease_ms_min // 3))

    def _persist_renewed(self) -> list[Effect]:
        """Persist leases renewed by more than a third, one slice of the registry at a time.

        Slices keep a large registry from blocking the loop.
        """
        effects: list[Effect] = []
        for registration in islice(self._to_sweep, self._slice):
            # It may have been removed or replaced since the sweep started.
            if self._registry.get(registration.address) is not registration:
                continue
            until = registration.expires_at_ms()
            if until - registration.persisted_until_ms >= registration.lease_ms / 3:
                registration.note_persisted()
                effects.append(Persist(registration))
        del self._to_sweep[: self._slice]
        return effects


def _cost(session: Session) -> int:
    """What it costs to look at one actor: the patterns of a token are compared one by one."""
    return 1 if session.allowance.discovers_all else session.allowance.discover_cost


def _is_seen(session: Session, address: str) -> bool:
    """May the session learn of this address? Of its own it knows already."""
    allowance = session.allowance
    return (
        allowance.discovers_all
        or address in session.registrations
        or allowance.may_discover(address)
    )


class _Profile(msgspec.Struct, gc=False):
    """The part of a host's metadata that the hub uses."""

    instance: Any = None


_instance = msgspec.json.Decoder(_Profile).decode


def _check_other_host(known: Registration, metadata: bytes, now: int) -> None:
    """The last to register wins, except against a live host."""
    is_host = mailboxes.HOST in known.capabilities and known.is_live(now)
    if is_host and _instance(known.metadata) != _instance(metadata):
        raise refusals.duplicate_host(known.address)


class RegistrationAnswer(msgspec.Struct):
    """A registration that waits for its answer."""

    session: Session
    message: Envelope
    registration: Registration
    box: Mailbox | None


def _checked(request: requests.RegisterRequest) -> bytes:
    """Refuse a registration beyond the limits; return its metadata as JSON."""
    address, capabilities = request.actor_address, request.capabilities
    if is_reserved(address):
        raise refusals.structural(f"{address} is an address of the hub's own")
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
