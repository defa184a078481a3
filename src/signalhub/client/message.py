"""A message from another actor, and what its recipient can do with it."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from signalhub.client.answers import Copied
from signalhub.client.delivery import DeadLetter, Delivery, Settled, read_members
from signalhub.client.stream_requests import Ack, Extend, Nack, Term, Verdict


class Settles(Protocol):
    """Whoever settles the messages of one stream."""

    def is_open(self, delivery: Delivery) -> bool:
        """Is this one still to be settled by us?"""

    async def settle(
        self, verdict: Verdict, delivery: Delivery, facts: dict[str, Any], *, wait: bool
    ) -> Settled | None:
        """Say what became of it; with `wait`, return once the hub has that on disk."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message from another actor.

    What comes from a durable subscription, or from a mailbox to a client that acknowledges, is to
    be settled: with `ack`, `nack` or `term`. By default they return when that is on its way to
    the hub; with `wait=True` when the hub has it on disk, and what it made of it.
    """

    id: str
    sender: str
    to: str  # The address of ours it was sent to.
    type: str
    payload: Any
    metadata: dict[str, Any]
    timestamp: int  # When the hub passed it on, milliseconds since the epoch.
    ttl: float | None = None
    topic: str | None = None  # Set when it came through a topic.
    delivery: Delivery | None = None  # Set when it came from a durable stream.
    _settler: Settles | None = None

    @property
    def original_id(self) -> str:
        """The id its sender gave it; the hub's copy has its own."""
        original = self.metadata.get("originalMessageId")
        return original if isinstance(original, str) else self.id

    @property
    def key(self) -> str | None:
        """The key it was published with: messages of one key keep their order."""
        key = self.metadata.get("key")
        return key if isinstance(key, str) else None

    @property
    def headers(self) -> dict[str, str]:
        """What its publisher wrote beside the payload."""
        headers = self.metadata.get("headers")
        members = headers.items() if isinstance(headers, dict) else ()
        return {name: text for name, text in members if isinstance(text, str)}

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Where it comes from, if it is a dead letter."""
        return read_members(self.metadata.get("deadLetter"), DeadLetter)

    @property
    def is_replay(self) -> bool:
        """Was it asked for with `replay`, or sent again by a replay from the lake?"""
        return self.metadata.get("replay") is True or self.original is not None

    @property
    def original(self) -> Copied | None:
        """What it is a copy of, if a replay from the lake sent it."""
        return read_members(self.metadata.get("original"), Copied)

    @property
    def is_settleable(self) -> bool:
        """Does the hub wait for us to settle it?"""
        return self._settler is not None

    @property
    def is_open(self) -> bool:
        """Is there still something to do? Not if it was settled, here or through another copy."""
        if self._settler is None or self.delivery is None:
            return True
        return self._settler.is_open(self.delivery)

    async def ack(self, *, wait: bool = False) -> Settled | None:
        """It is processed and need not come again."""
        return await self._settle(Ack, {}, wait)

    async def nack(
        self, *, delay_s: float | None = None, reason: str | None = None, wait: bool = False
    ) -> Settled | None:
        """It could not be processed: let it come again, at the earliest after `delay_s`."""
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        return await self._settle(Nack, {"delay_ms": delay_ms, "reason": reason}, wait)

    async def extend(self, seconds: float, *, wait: bool = False) -> Settled | None:
        """It takes longer: do not send it again before so much time has passed from now."""
        return await self._settle(Extend, {"ms": round(seconds * 1000)}, wait)

    async def term(self, *, reason: str | None = None, wait: bool = False) -> Settled | None:
        """It can never be processed: a dead letter, or dropped where there are none."""
        return await self._settle(Term, {"reason": reason}, wait)

    async def _settle(self, verdict: Verdict, facts: dict[str, Any], wait: bool) -> Settled | None:
        if self._settler is None or self.delivery is None:
            raise RuntimeError(
                f"{self.type} from {self.sender} has nothing to settle: only messages of durable "
                "subscriptions do, and those of mailboxes after `connect(..., acknowledge=True)`"
            )
        return await self._settler.settle(verdict, self.delivery, facts, wait=wait)
