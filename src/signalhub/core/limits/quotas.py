"""Quotas: how much of what belongs to all one identity, and one source, may use.

An identity is the subject of a token. A source is the address that a socket comes from: an IPv4
address, or an IPv6 network of 64 bits, because a household has that many. A holder is both, and
everything that is limited in total is counted for its holder until it ends. Without authentication
there are no identities, and loopback is exempt: whoever has the machine has the hub.

What survives a restart keeps its owner, who is an identity; its source is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core import refusals
from signalhub.wire.authority import is_loopback, source_of

if TYPE_CHECKING:
    from signalhub.core.sessions.session import Session
    from signalhub.settings.model import Settings
    from signalhub.wire.errors import Refusal


class Resource(StrEnum):
    """What is counted."""

    SESSIONS = "sessions"
    REGISTRATIONS = "registrations"
    MAILBOXES = "mailboxes"
    TOPICS = "topics"
    SUBSCRIPTIONS = "subscriptions"
    PATTERNS = "patterns"
    PLAIN_SUBSCRIPTIONS = "plain_subscriptions"
    ROOMS = "rooms"
    PLACES = "places"


# They end by themselves, so trying again later may help.
_PASSING: Final = frozenset(
    {Resource.SESSIONS, Resource.REGISTRATIONS, Resource.PLAIN_SUBSCRIPTIONS}
)


class Holder(msgspec.Struct, frozen=True, gc=False):
    """Whose something is; either part is empty if it is unknown."""

    identity: str = ""
    source: str = ""


NOBODY: Final = Holder()

# Sources are short, and each is looked at for every socket and registration.
_is_exempt = lru_cache(maxsize=4_096)(is_loopback)


def holder_of(session: Session) -> Holder:
    """Whose the things are that a session makes."""
    return Holder(session.allowance.subject, source_of(session.source))


class Limits(msgspec.Struct, frozen=True):
    """How many there may be in total, per identity and per source."""

    total: int
    identity: int
    source: int


def limits_of(settings: Settings) -> dict[Resource, Limits]:
    """The limits of each resource; those that are not set are a share of the total."""
    limits = settings.limits
    totals = {
        # Every session may register, and most register once.
        Resource.SESSIONS: (settings.registry.limit, limits.sessions_per_identity),
        Resource.REGISTRATIONS: (settings.registry.limit, limits.registrations_per_identity),
        Resource.MAILBOXES: (settings.mailbox.count_max, limits.mailboxes_per_identity),
        Resource.TOPICS: (settings.topics.limit, limits.topics_per_identity),
        Resource.SUBSCRIPTIONS: (settings.dispatch.limit, limits.subscriptions_per_identity),
        Resource.PATTERNS: (limits.patterns_max, limits.patterns_per_identity),
        Resource.PLAIN_SUBSCRIPTIONS: (
            limits.plain_subscriptions_max,
            limits.plain_subscriptions_per_identity,
        ),
        Resource.ROOMS: (settings.rooms.limit, limits.rooms_per_identity),
        Resource.PLACES: (settings.actors.limit, limits.places_per_identity),
    }
    return {
        resource: Limits(
            total,
            given or max(1, int(total * limits.identity_share)),
            max(1, int(total * limits.source_share)),
        )
        for resource, (total, given) in totals.items()
    }


class Quotas:
    """Counts what every holder has."""

    def __init__(self, settings: Settings) -> None:
        self.limits = limits_of(settings)
        self._totals = dict.fromkeys(Resource, 0)
        self._identities: dict[Resource, dict[str, int]] = {one: {} for one in Resource}
        self._sources: dict[Resource, dict[str, int]] = {one: {} for one in Resource}

    def take(self, resource: Resource, holder: Holder, count: int = 1) -> None:
        """The holder has more of a resource; what was allowed before is not checked again."""
        self._totals[resource] += count
        if holder.identity:
            _add(self._identities[resource], holder.identity, count)
        if holder.source:
            _add(self._sources[resource], holder.source, count)

    def release(self, resource: Resource, holder: Holder, count: int = 1) -> None:
        """The holder has less of it."""
        self.take(resource, holder, -count)

    def begin_again(self, *resources: Resource) -> None:
        """Forget all counts of these, which are taken again."""
        for resource in resources:
            self._totals[resource] = 0
            self._identities[resource] = {}
            self._sources[resource] = {}

    def check(self, resource: Resource, holder: Holder) -> None:
        """Raise `Refusal` if the holder has as many as it may."""
        refusal = self.refusal(resource, holder)
        if refusal is not None:
            raise refusal

    def refusal(self, resource: Resource, holder: Holder, more: int = 1) -> Refusal | None:
        """Why the holder may not have `more` of a resource; `None` if it may."""
        limits = self.limits[resource]
        used = self._identities[resource].get(holder.identity, 0) + more - 1
        if holder.identity and used >= limits.identity:
            setting = f"limits.{resource}_per_identity"
            return _refusal(resource, "identity", holder.identity, limits.identity, used, setting)
        if not holder.source or _is_exempt(holder.source):
            return None
        used = self._sources[resource].get(holder.source, 0) + more - 1
        if used >= limits.source:
            setting = "limits.source_share"
            return _refusal(resource, "source", holder.source, limits.source, used, setting)
        return None

    # What is in use.

    def total(self, resource: Resource) -> int:
        """How many there are."""
        return self._totals[resource]

    def of_identity(self, resource: Resource, identity: str) -> int:
        """How many an identity has."""
        return self._identities[resource].get(identity, 0)

    def identities(self, resource: Resource) -> Iterator[tuple[str, int]]:
        """Every identity that has any, and how many."""
        return iter(list(self._identities[resource].items()))

    def sources(self, resource: Resource) -> Iterator[tuple[str, int]]:
        """Every source that has any, and how many."""
        return iter(list(self._sources[resource].items()))


def _add(counts: dict[str, int], name: str, count: int) -> None:
    left = counts.get(name, 0) + count
    assert left >= 0, f"{name} gave back more than it had"
    if left:
        counts[name] = left
    else:
        counts.pop(name, None)


def _refusal(
    resource: Resource, scope: str, name: str, limit: int, used: int, setting: str
) -> Refusal:
    refusal = refusals.quota_exceeded(resource, scope, name, limit, used, setting)
    refusal.retryable = resource in _PASSING
    return refusal
