"""A consumer's place at a durable subscription, taken again on every new connection.

The hub remembers how far the subscription is. A seat taken again says all the same after which
position it goes on, so that the hub can tell whether everything after it is still there; and should
the subscription have been deleted meanwhile, it is made again exactly there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from signalhub.client.effects import Effect, Ended, Warned
from signalhub.client.frame import Request
from signalhub.client.progress import Progress
from signalhub.client.requests import Composer
from signalhub.client.streams import Lost
from signalhub.errors import Unsubscribed


class SeatKey(NamedTuple):
    """Subscription names belong to their topic."""

    topic: str
    subscription: str


class Seat:
    """What one consumer asks for, and what the hub last said about it."""

    def __init__(self, key: SeatKey, terms: dict[str, Any], address: str) -> None:
        self.key = key
        self.terms = terms
        self.address = address
        self.progress = Progress()
        self.is_taken = False
        self.subscription_id = ""
        self.epoch = ""
        self.next = 0
        self.head = 0
        self.lag = 0
        self.recovered = True
        self.lost: Lost | None = None

    @property
    def is_auto_acked(self) -> bool:
        """Does the hub settle by itself what it has written?"""
        return self.terms.get("autoAck") is True

    def request(self, compose: Composer, now_ms: int) -> Request:
        """Take the seat, or take it again."""
        terms = dict(self.terms)
        position, epoch = self.progress.position, self.progress.epoch
        if position is not None and epoch is not None:
            terms["from"] = {"seq": position + 1}
            if position > 0:
                terms["resume"] = {"epoch": epoch, "seq": position}
        return compose.streams.subscribe(self.key, terms, now_ms, sender=self.address)

    def taken(self, facts: dict[str, Any]) -> list[Effect]:
        """The hub granted it, and says whether everything after our position is there."""
        self.is_taken = True
        self.subscription_id = _text(facts, "subscriptionId")
        self.epoch = _text(facts, "epoch")
        self.next = _count(facts, "next")
        self.head = _count(facts, "head")
        self.lag = _count(facts, "lag")
        self.recovered = facts.get("recovered") is not False
        first, last = _count(facts, "lostFrom"), _count(facts, "lostTo")
        self.lost = Lost(first, last) if last else None
        if self.epoch and self.epoch != self.progress.epoch:
            self.progress.restart(self.epoch)
        if self.recovered:
            return []
        loss = {"topic": self.key.topic, "subscription": self.key.subscription, "lost": self.lost}
        return [Warned("Messages of a durable subscription are gone", loss)]

    def withdrawn(self, reason: str) -> Ended:
        """The hub took it away."""
        text = f"{self.key.subscription} of topic {self.key.topic} ended: {reason}"
        if reason == "taken_over":
            text += ", another session consumes under the same name"
        return Ended(self.key, Unsubscribed(reason, text))


def _text(facts: dict[str, Any], name: str) -> str:
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def _count(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
