"""What a client is in its hub, to be made again on every new connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from signalhub.client.arguments import checked_address, checked_capabilities
from signalhub.client.requests import Composer, Request


class Membership:
    """Registrations, then subscriptions, each in the order they were first made."""

    def __init__(self) -> None:
        self._registrations: dict[str, _Registration] = {}
        self._subscriptions: dict[tuple[str, str], None] = {}

    def registered(
        self,
        address: str,
        capabilities: Iterable[str],
        metadata: Mapping[str, Any],
        lease_s: float | None,
    ) -> None:
        self._registrations[checked_address(address)] = _Registration(
            checked_capabilities(capabilities), dict(metadata), lease_s
        )

    def unregistered(self, address: str) -> None:
        """The address is given up, and with it what it was subscribed to."""
        self._registrations.pop(address, None)
        for key in [key for key in self._subscriptions if key[0] == address]:
            del self._subscriptions[key]

    def subscribed(self, address: str, topic: str) -> None:
        self._subscriptions[address, topic] = None

    def unsubscribed(self, address: str, topic: str) -> None:
        self._subscriptions.pop((address, topic), None)

    @property
    def lease_s(self) -> float | None:
        """The shortest lease that was asked for."""
        leases = (each.lease_s for each in self._registrations.values())
        return min((lease for lease in leases if lease is not None), default=None)

    def requests(self, compose: Composer, now_ms: int) -> list[Request]:
        """Everything that makes a new connection what the last one was."""
        registrations = [
            compose.register(address, each.capabilities, each.metadata, each.lease_s, now_ms)
            for address, each in self._registrations.items()
        ]
        subscriptions = [
            compose.subscribe(topic, now_ms, sender=address)
            for address, topic in self._subscriptions
        ]
        return registrations + subscriptions


class _Registration(msgspec.Struct, frozen=True):
    capabilities: list[str]
    metadata: dict[str, Any]
    lease_s: float | None
