"""What a client has registered and subscribed to, restored on every new connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from signalhub.client.answers import Lost
from signalhub.client.delivery import Progress
from signalhub.client.protocol.effects import ConsumerEnded, Effect, Warned
from signalhub.client.protocol.frame import FrameWriter, Request
from signalhub.client.requests import Connect, Register, Subscribe
from signalhub.client.stream_requests import Join
from signalhub.wire.envelope import PROTOCOL_VERSION
from signalhub.wire.errors import Unsubscribed
from signalhub.wire.names import has_wildcard

HELLO_TTL_MS = 5_000


class SeatKey(NamedTuple):
    """Subscription names are unique only within their topic."""

    topic: str
    subscription: str

    @property
    def is_pattern(self) -> bool:
        """Whether the topic stands for all topics that match."""
        return has_wildcard(self.topic)


# The positions of this many topics fit into one request; the last ones that had messages.
POSITIONS_MAX = 1_000


class Seat:
    """One consumer: its options, and the hub's last answer about it."""

    def __init__(self, key: SeatKey, terms: dict[str, Any], address: str) -> None:
        self.key = key
        self.terms = terms
        self.address = address
        self.progress = Progress()
        # Of a pattern, by topic; the one with the newest message last.
        self._progresses: dict[str, Progress] = {}
        self.is_taken = False
        self.subscription_id = ""
        self.epoch = ""
        self.next = 0
        self.head = 0
        self.lag = 0
        self.recovered = True
        self.lost: Lost | None = None
        # By topic, as a pattern may have lost messages on several.
        self.losses: dict[str, Lost] = {}
        # Options we asked for and may not change.
        self.kept: frozenset[str] = frozenset()

    @property
    def is_auto_acked(self) -> bool:
        """Whether the hub settles messages as soon as they are written."""
        return (self.terms.get("autoAck") is True) is not ("autoAck" in self.kept)

    def request(self, frames: FrameWriter, now_ms: int) -> Request:
        """Return the request that joins the subscription, or joins it again."""
        terms = dict(self.terms)
        if self.key.is_pattern:
            if positions := self._positions():
                terms["positions"] = positions
            return frames.request(Join(*self.key, terms), now_ms, sender=self.address)
        position, epoch = self.progress.position, self.progress.epoch
        if position is not None and epoch is not None:
            terms["from"] = {"seq": position + 1}
            if position > 0:
                terms["resume"] = {"epoch": epoch, "seq": position}
        return frames.request(Join(*self.key, terms), now_ms, sender=self.address)

    def progress_of(self, topic: str) -> Progress:
        """What is unsettled on one topic of a pattern."""
        progress = self._progresses.pop(topic) if topic in self._progresses else Progress()
        self._progresses[topic] = progress
        return progress

    def _positions(self) -> dict[str, dict[str, Any]]:
        """Up to where each topic of a pattern is settled."""
        every = ((topic, one.position, one.epoch) for topic, one in self._progresses.items())
        found = {
            topic: {"epoch": epoch, "seq": position}
            for topic, position, epoch in every
            if position is not None and epoch is not None
        }
        return dict(list(found.items())[-POSITIONS_MAX:])

    def taken(self, facts: dict[str, Any]) -> list[Effect]:
        """The hub granted it, and says whether everything after our position is available."""
        self.is_taken = True
        self.subscription_id = _text(facts, "subscriptionId")
        self.epoch = _text(facts, "epoch")
        self.next = _count(facts, "next")
        self.head = _count(facts, "head")
        self.lag = _count(facts, "lag")
        self.recovered = facts.get("recovered") is not False
        first, last = _count(facts, "lostFrom"), _count(facts, "lostTo")
        self.lost = Lost(first, last) if last else None
        self.losses = _losses(facts, self.key.topic if self.lost else "", self.lost)
        if self.epoch and self.epoch != self.progress.epoch:
            self.progress.restart(self.epoch)
        warnings: list[Effect] = []
        kept = facts.get("kept")
        self.kept = frozenset(map(str, kept if isinstance(kept, list) else ()))
        name = {"topic": self.key.topic, "subscription": self.key.subscription}
        if self.kept:
            options = {"options": sorted(self.kept)}
            warnings.append(Warned("A durable subscription keeps its own options", name | options))
        if not self.recovered:
            loss = name | {"lost": self.lost or self.losses}
            warnings.append(Warned("Messages of a durable subscription were deleted unread", loss))
        return warnings

    def withdrawn(self, reason: str) -> ConsumerEnded:
        """The hub has ended it."""
        text = f"{self.key.subscription} of topic {self.key.topic} ended: {reason}"
        if reason == "taken_over":
            text += "; another session has joined under the same name"
        return ConsumerEnded(self.key, Unsubscribed(reason, text))


def _losses(facts: dict[str, Any], topic: str, lost: Lost | None) -> dict[str, Lost]:
    """Return what is lost on each topic."""
    listed = facts.get("lost")
    found = {} if lost is None else {topic: lost}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and (name := _text(one, "topic")):
            found[name] = Lost(_count(one, "lostFrom"), _count(one, "lostTo"))
    return found


def _text(facts: dict[str, Any], name: str) -> str:
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def _count(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


class Membership:
    """Registrations, then subscriptions, then consumers, each in the order they were first made.

    A client that acknowledges says so in its hello: then it settles messages from mailboxes itself.
    """

    def __init__(self, *, acknowledges: bool = False) -> None:
        self.acknowledges = acknowledges
        self._registrations: dict[str, Register] = {}
        # Addresses that had a mailbox when they were registered last.
        self._mailboxes: set[str] = set()
        self._subscriptions: dict[tuple[str, str], None] = {}
        self._seats: dict[SeatKey, Seat] = {}

    def hello(self, frames: FrameWriter, token: str | None, now_ms: int) -> Request:
        """Return the first frame on a new connection, sent from a unique address."""
        message_id = frames.new_id()
        metadata: dict[str, Any] = {
            "protocolVersion": PROTOCOL_VERSION,
            "capabilities": ["send", "receive", *(["ack"] if self.acknowledges else [])],
            "clientMetadata": {"platform": "python"},
        }
        if token is not None:
            metadata["authToken"] = token
        return frames.request(
            Connect(),
            now_ms,
            message_id=message_id,
            sender=f"@(local/client-{message_id})",
            metadata=metadata,
            ttl_ms=HELLO_TTL_MS,
        )

    def registered(self, registration: Register, *, is_done: bool = True) -> None:
        """Record a registration; if it is not done yet, the next connection does it."""
        durable = registration.durable
        known = self._registrations.get(registration.address)
        if durable is None and known is not None:
            durable = known.durable
        # A mailbox is deleted once, not on every connection.
        if is_done:
            durable = durable or None
        registration = msgspec.structs.replace(registration, durable=durable)
        self._registrations[registration.address] = registration

    def granted(self, facts: dict[str, Any]) -> None:
        """Record what the hub says about a registration."""
        address = _text(facts, "actorAddress")
        if facts.get("durable") is True:
            self._mailboxes.add(address)
        else:
            self._mailboxes.discard(address)

    def is_registered(self, address: str) -> bool:
        return address in self._registrations

    def has_mailbox(self, address: str) -> bool:
        return address in self._mailboxes

    def unregistered(self, address: str) -> None:
        """Record that an address is unregistered, which also ends its subscriptions."""
        self._registrations.pop(address, None)
        self._mailboxes.discard(address)
        for key in [key for key in self._subscriptions if key[0] == address]:
            del self._subscriptions[key]

    def subscribed(self, address: str, topic: str) -> None:
        self._subscriptions[address, topic] = None

    def unsubscribed(self, address: str, topic: str) -> None:
        self._subscriptions.pop((address, topic), None)

    def seated(self, seat: Seat) -> None:
        self._seats[seat.key] = seat

    def left(self, seat: Seat) -> bool:
        """Do not join again; return `False` if it was already left."""
        if self._seats.get(seat.key) is not seat:
            return False
        del self._seats[seat.key]
        return True

    def seat_named(self, facts: Mapping[str, Any]) -> Seat | None:
        """Return the consumer the hub refers to, by its names or by its id."""
        seat_id = facts.get("subscriptionId")
        for seat in self._seats.values():
            is_named = seat.key == (facts.get("topic"), facts.get("subscription"))
            if is_named or (seat_id and seat.subscription_id == seat_id):
                return seat
        return None

    def seat_of(self, topic: str | None, subscription: str) -> Seat | None:
        """Return the consumer that has messages of a topic, perhaps by a pattern."""
        for seat in self._seats.values():
            key = seat.key
            if key.subscription == subscription and (key.is_pattern or key.topic == topic):
                return seat
        return None

    @property
    def lease_s(self) -> float | None:
        """The shortest requested lease."""
        leases = (each.lease_s for each in self._registrations.values())
        return min((lease for lease in leases if lease is not None), default=None)

    def requests(self, frames: FrameWriter, now_ms: int) -> list[tuple[Request, Seat | None]]:
        """Return all requests that restore a connection."""
        registrations = [
            frames.request(registration, now_ms, sender=address)
            for address, registration in self._registrations.items()
        ]
        for address, each in self._registrations.items():
            if each.durable is False:
                self._registrations[address] = msgspec.structs.replace(each, durable=None)
        subscriptions = (
            frames.request(Subscribe(topic), now_ms, sender=address)
            for address, topic in self._subscriptions
        )
        seats = [seat for seat in self._seats.values() if seat.is_taken]
        return [
            *((request, None) for request in registrations),
            *((request, None) for request in subscriptions),
            *((seat.request(frames, now_ms), seat) for seat in seats),
        ]
