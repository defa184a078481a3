"""Registrations: addresses, capabilities, leases.

A lease ends `lease_ms` after the last accepted frame of its session or its last renewal, whichever
is later. If it ends while the socket is open, the actor is hidden; the next frame makes it visible
again. Registrations restored after a restart are hidden, and not counted, until their owner returns
or their lease ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from signalhub.core.limits.quotas import Quotas, Resource, holder_of
from signalhub.core.sessions.session import Session
from signalhub.wire import envelope
from signalhub.wire.names import Pattern

_HOUR_MS = 3_600_000
_ENDLESS_MS = 2**53


class Recipient:
    """An address of a session, as a recipient of fan-outs."""

    __slots__ = ("address", "address_json", "session")

    def __init__(self, session: Session, address: str) -> None:
        self.session = session
        self.address = address
        self.address_json = envelope.encode(address)


class Registration(Recipient):
    """One registered actor."""

    __slots__ = (
        "capabilities",
        "holder",
        "lease_ms",
        "metadata",
        "persisted_until_ms",
        "persisted_version",
        "registered_at_ms",
        "renewal_token",
        "renewed_at_ms",
        "version",
    )

    def __init__(
        self,
        session: Session,
        address: str,
        *,
        capabilities: tuple[str, ...],
        metadata: bytes,
        lease_ms: int,
        renewal_token: str,
        version: int,
        now_ms: int,
    ) -> None:
        super().__init__(session, address)
        self.holder = holder_of(session)
        self.capabilities = capabilities
        self.metadata = metadata
        self.lease_ms = lease_ms
        self.renewal_token = renewal_token
        self.version = version
        self.registered_at_ms = now_ms
        self.renewed_at_ms = now_ms
        self.persisted_until_ms = now_ms + lease_ms
        self.persisted_version = version

    def expires_at_ms(self) -> int:
        """When the lease ends if no more frames arrive."""
        return max(self.renewed_at_ms, self.session.last_seen_ms) + self.lease_ms

    def has_changed_since_persisted(self) -> bool:
        """Has it changed since it was persisted?"""
        is_longer = self.expires_at_ms() != self.persisted_until_ms
        return is_longer or self.version != self.persisted_version

    def note_persisted(self) -> None:
        """The present state is being persisted."""
        self.persisted_until_ms = self.expires_at_ms()
        self.persisted_version = self.version

    def is_live(self, now_ms: int) -> bool:
        """Visible and reachable?"""
        return (
            self.session.last_seen_ms + self.lease_ms > now_ms
            or self.renewed_at_ms + self.lease_ms > now_ms
        )


class Away(msgspec.Struct, frozen=True, gc=False):
    """A registration restored after a restart whose owner has not returned yet."""

    version: int
    expires_at_ms: int


class Registry:
    """All registrations by address, in order of registration."""

    def __init__(self, limit: int, refuse_above: float, quotas: Quotas) -> None:
        self.limit = limit
        self._quotas = quotas
        self._refuse_above = refuse_above
        self._actors: dict[str, Registration] = {}
        # The shortest lease seen since the start.
        self.lease_ms_min = _HOUR_MS
        self._away: dict[str, Away] = {}
        # Where sessions without a socket get answers: in no list, and in no count. The last session
        # gets them if several share an address.
        self._internal: dict[str, list[Registration]] = {}
        # The same registrations by what they can do, so that few are found quickly among many.
        self._by_capability: dict[str, dict[str, Registration]] = {}

    def __len__(self) -> int:
        return len(self._actors)

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._actors.values())

    @property
    def utilization(self) -> float:
        """Share of the limit in use."""
        return len(self._actors) / self.limit

    @property
    def is_full(self) -> bool:
        """Are new addresses refused?"""
        return self.utilization > self._refuse_above or len(self._actors) >= self.limit

    def get(self, address: str) -> Registration | None:
        """The registration, live or hidden."""
        return self._actors.get(address)

    def find(self, address: str, now_ms: int) -> Registration | None:
        """The registration, if it is live."""
        found = self._actors.get(address)
        if found is None:
            return self._internal[address][-1] if address in self._internal else None
        # The common case of `is_live`, inlined because every message passes here.
        if found.session.last_seen_ms + found.lease_ms > now_ms or found.is_live(now_ms):
            return found
        return None

    # Internal addresses.

    def admit(self, session: Session, address: str, now_ms: int) -> None:
        """Let a session without a socket get answers at an address that nobody can register."""
        assert session.internal_address is None
        session.internal_address = address
        registration = Registration(
            session,
            address,
            capabilities=(),
            metadata=b"{}",
            lease_ms=_ENDLESS_MS,
            renewal_token="",
            version=1,
            now_ms=now_ms,
        )
        self._internal.setdefault(address, []).append(registration)

    def dismiss(self, session: Session) -> None:
        """Forget the internal address of a session, if it has one."""
        address = session.internal_address
        if address is None:
            return
        session.internal_address = None
        left = [one for one in self._internal[address] if one.session is not session]
        if left:
            self._internal[address] = left
        else:
            del self._internal[address]

    def is_internal(self, address: str) -> bool:
        """Does a session without a socket get answers there?"""
        return address in self._internal

    def is_awaited(self, address: str, sender: str) -> bool:
        """Does a session at this internal address wait for an answer of the sender?"""
        return any(
            one.session.awaited is not None and sender in one.session.awaited
            for one in self._internal.get(address, ())
        )

    def away(self) -> list[tuple[str, Away]]:
        """The restored registrations whose owners are not back yet."""
        return list(self._away.items())

    def away_of(self, address: str) -> Away | None:
        """The restored registration of an address whose owner is not back yet."""
        return self._away.get(address)

    def is_away(self, address: str, now_ms: int) -> bool:
        """Is the address restored and its owner not back yet?"""
        away = self._away.get(address)
        return away is not None and away.expires_at_ms > now_ms

    def next_version(self, address: str) -> int:
        """The version of the next registration of `address`."""
        known = self._actors.get(address) or self._away.get(address)
        return known.version + 1 if known is not None else 1

    def put(self, registration: Registration) -> None:
        """Add or replace; a replaced address keeps its place in the order."""
        previous = self._actors.get(registration.address)
        if previous is not None and previous.session is not registration.session:
            previous.session.registrations.pop(registration.address, None)
        if previous is not None:
            self._quotas.release(Resource.REGISTRATIONS, previous.holder)
            self._unlist(previous, registration.capabilities)
        self._quotas.take(Resource.REGISTRATIONS, registration.holder)
        for capability in registration.capabilities:
            self._by_capability.setdefault(capability, {})[registration.address] = registration
        self._away.pop(registration.address, None)
        self.lease_ms_min = min(self.lease_ms_min, registration.lease_ms)
        self._actors[registration.address] = registration
        registration.session.registrations[registration.address] = registration

    def remove(self, address: str) -> bool:
        """Remove an address; unknown ones are ignored."""
        registration = self._actors.pop(address, None)
        if registration is None:
            return False
        registration.session.registrations.pop(address, None)
        self._quotas.release(Resource.REGISTRATIONS, registration.holder)
        self._unlist(registration)
        return True

    def _unlist(self, registration: Registration, kept: tuple[str, ...] = ()) -> None:
        """Forget what it could do, except what it still can."""
        for capability in registration.capabilities:
            found = self._by_capability.get(capability)
            if found is not None and capability not in kept:
                found.pop(registration.address, None)
                if not found:
                    del self._by_capability[capability]

    def restore(self, address: str, version: int, expires_at_ms: int) -> None:
        """Restore a registration after a restart."""
        self._away[address] = Away(version, expires_at_ms)

    def forget_away(self, address: str) -> bool:
        """Stop waiting for the owner; `False` if the address was not restored."""
        return self._away.pop(address, None) is not None

    def expire_away(self, now_ms: int) -> list[str]:
        """Remove restored registrations whose lease has ended."""
        gone = [address for address, away in self._away.items() if away.expires_at_ms <= now_ms]
        for address in gone:
            del self._away[address]
        return gone

    def candidates(self, pattern: Pattern, capability: str | None) -> list[Registration]:
        """Those among which all that match are, in order of registration."""
        if pattern.literal is not None:
            known = self._actors.get(f"@({pattern.literal})")
            return [] if known is None else [known]
        return list((self._with(capability) if capability else self._actors).values())

    def matches(
        self, registration: Registration, pattern: Pattern, capability: str | None, now_ms: int
    ) -> bool:
        """Is it live, still registered, and one that is sought?"""
        address = registration.address
        return (
            # Most addresses fail the prefix test, which needs no parsing.
            address.startswith(pattern.address_prefix)
            and (not capability or capability in registration.capabilities)
            and pattern.matches(address)
            and registration.is_live(now_ms)
            and self._actors.get(address) is registration
        )

    def _with(self, capability: str) -> dict[str, Registration]:
        """The registrations with a capability, by address."""
        return self._by_capability.get(capability, {})

    def live(self, capability: str | None, now_ms: int) -> list[Registration]:
        """Every live registration, optionally only those with a capability."""
        actors = (self._with(capability) if capability else self._actors).values()
        return [
            actor
            for actor in actors
            if actor.session.last_seen_ms + actor.lease_ms > now_ms or actor.is_live(now_ms)
        ]
