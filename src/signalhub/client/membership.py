"""What a client is in its hub, to be made again on every new connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from signalhub.client.arguments import checked_address, checked_capabilities
from signalhub.client.frame import Request
from signalhub.client.requests import Composer
from signalhub.client.seat import Seat, SeatKey


class Membership:
    """Registrations, then subscriptions, then seats, each in the order they were first made."""

    def __init__(self) -> None:
        self._registrations: dict[str, _Registration] = {}
        self._subscriptions: dict[tuple[str, str], None] = {}
        self._seats: dict[SeatKey, Seat] = {}

    def registered(
        self,
        address: str,
        capabilities: Iterable[str],
        metadata: Mapping[str, Any],
        lease_s: float | None,
        durable: bool | None = None,
        *,
        is_done: bool = True,
    ) -> None:
        """We answer to the address; if it is not done yet, the next connection does it."""
        known = self._registrations.get(checked_address(address))
        if durable is None and known is not None:
            durable = known.durable
        # A mailbox is dropped once, not with every connection.
        if is_done:
            durable = durable or None
        self._registrations[address] = _Registration(
            checked_capabilities(capabilities), dict(metadata), lease_s, durable
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

    def seated(self, seat: Seat) -> None:
        self._seats[seat.key] = seat

    def left(self, seat: Seat) -> bool:
        """The seat is not taken again; `False` if it was left already."""
        if self._seats.get(seat.key) is not seat:
            return False
        del self._seats[seat.key]
        return True

    def seat_named(self, facts: Mapping[str, Any]) -> Seat | None:
        """The seat the hub speaks about, by its names or by its id."""
        seat_id = facts.get("subscriptionId")
        for seat in self._seats.values():
            is_named = seat.key == (facts.get("topic"), facts.get("subscription"))
            if is_named or (seat_id and seat.subscription_id == seat_id):
                return seat
        return None

    @property
    def lease_s(self) -> float | None:
        """The shortest lease that was asked for."""
        leases = (each.lease_s for each in self._registrations.values())
        return min((lease for lease in leases if lease is not None), default=None)

    def requests(self, compose: Composer, now_ms: int) -> list[tuple[Request, Seat | None]]:
        """Everything that makes a new connection what the last one was."""
        registrations = [
            compose.register(
                address,
                each.capabilities,
                each.metadata,
                each.lease_s,
                now_ms,
                durable=each.durable,
            )
            for address, each in self._registrations.items()
        ]
        for address, each in self._registrations.items():
            if each.durable is False:
                self._registrations[address] = msgspec.structs.replace(each, durable=None)
        subscriptions = (
            compose.subscribe(topic, now_ms, sender=address)
            for address, topic in self._subscriptions
        )
        seats = [seat for seat in self._seats.values() if seat.is_taken]
        return [
            *((request, None) for request in registrations),
            *((request, None) for request in subscriptions),
            *((seat.request(compose, now_ms), seat) for seat in seats),
        ]


class _Registration(msgspec.Struct, frozen=True):
    capabilities: list[str]
    metadata: dict[str, Any]
    lease_s: float | None
    durable: bool | None
