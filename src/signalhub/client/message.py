"""What the client hands to its user: messages and the hub's answers.

Answers are read leniently: members a hub does not send take their defaults, members it adds are
ignored, so that client and hub may be of different ages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from signalhub.client.answers import Copied
from signalhub.client.delivery import DeadLetter, Delivery, Settled, Settles, Verb, read_members


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
        return await self._settle(Verb.ACK, {}, wait)

    async def nack(
        self, *, delay_s: float | None = None, reason: str | None = None, wait: bool = False
    ) -> Settled | None:
        """It could not be processed: let it come again, at the earliest after `delay_s`."""
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        return await self._settle(Verb.NACK, {"delayMs": delay_ms, "reason": reason}, wait)

    async def extend(self, seconds: float, *, wait: bool = False) -> Settled | None:
        """It takes longer: do not send it again before so much time has passed from now."""
        return await self._settle(Verb.EXTEND, {"ms": round(seconds * 1000)}, wait)

    async def term(self, *, reason: str | None = None, wait: bool = False) -> Settled | None:
        """It can never be processed: a dead letter, or dropped where there are none."""
        return await self._settle(Verb.TERM, {"reason": reason}, wait)

    async def _settle(self, verb: Verb, facts: dict[str, Any], wait: bool) -> Settled | None:
        if self._settler is None or self.delivery is None:
            raise RuntimeError(
                f"{self.type} from {self.sender} has nothing to settle: only messages of durable "
                "subscriptions do, and those of mailboxes after `connect(..., acknowledge=True)`"
            )
        given = {name: fact for name, fact in facts.items() if fact is not None}
        return await self._settler.settle(verb, self.delivery, given, wait=wait)


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the hub's answers."""


class Receipt(_Answer, frozen=True):
    """What became of an ask: `delivered` to the recipient's socket, or `queued` for it."""

    message_id: str
    status: str = "delivered"
    delivered_at: int | None = None
    epoch: str | None = None  # Of the recipient's mailbox, if it has one.
    seq: int | None = None
    durability: str | None = None  # How safe it is: `fsync`, `interval` or `os`.
    duplicate: bool = False  # The hub had it already.
    attempts: int = 1  # How often this client sent it.

    @property
    def is_delivered(self) -> bool:
        return self.status == "delivered"


class Published(_Answer, frozen=True):
    """What became of a publish; only durable topics have positions."""

    topic: str = ""
    subscribers: int = msgspec.field(name="subscriberCount", default=0)
    epoch: str | None = None
    seq: int | None = None
    durability: str | None = None  # How safe it is: `fsync`, `interval` or `os`.
    duplicate: bool = False  # The hub had it already.
    attempts: int = 1  # How often this client sent it.


class BroadcastResult(_Answer, frozen=True):
    """How many actors a broadcast reached; `queued` ones are served in later batches."""

    message_id: str = ""
    delivered: int = msgspec.field(name="deliveredCount", default=0)
    failed: int = msgspec.field(name="failedCount", default=0)
    queued: int = msgspec.field(name="queuedCount", default=0)


class Registration(_Answer, frozen=True):
    """An address this client answers to."""

    address: str = msgspec.field(name="actorAddress")
    expires_at: int = 0
    version: int = 1
    durable: bool = False
    waiting: int = 0  # Messages that came meanwhile and are about to be delivered.


class Actor(_Answer, frozen=True):
    """One actor, as `discover` shows it; `away` if it only has a mailbox now."""

    address: str
    capabilities: tuple[str, ...] = ()
    away: bool = False


class Found(_Answer, frozen=True):
    """What `discover` found: a sequence of actors that knows whether there are more."""

    actors: tuple[Actor, ...] = ()
    has_more: bool = False

    def __iter__(self) -> Iterator[Actor]:
        return iter(self.actors)

    def __len__(self) -> int:
        return len(self.actors)

    def __getitem__(self, index: int) -> Actor:
        return self.actors[index]


class ListedActor(_Answer, frozen=True):
    """One registered actor, as `actors` shows it."""

    address: str = msgspec.field(name="actorAddress")
    capabilities: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    connection_id: str = ""
    registered_at: int = 0
    expires_at: int = 0
    version: int = 1


class ActorPage(_Answer, frozen=True):
    """A page of the registry."""

    actors: tuple[ListedActor, ...] = ()
    total: int = 0
    offset: int = 0
    limit: int = 0
    has_more: bool = False


class QueueStats(_Answer, frozen=True):
    """What waits in the hub for this connection."""

    queue_depth: int = 0
    processing_rate: float = 0.0
    pause_threshold: int = 0
    resume_threshold: int = 0


class RefreshedToken(_Answer, frozen=True):
    """A token to use from now on."""

    token: str
    expires_at: int | None = None
