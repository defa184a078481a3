"""What the client hands to its user: messages and the hub's answers.

Answers are read leniently: members a hub does not send take their defaults, members it adds are
ignored, so that client and hub may be of different ages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message from another actor."""

    id: str
    sender: str
    to: str  # The address of ours it was sent to.
    type: str
    payload: Any
    metadata: dict[str, Any]
    timestamp: int  # When the hub passed it on, milliseconds since the epoch.
    ttl: float | None = None
    topic: str | None = None  # Set when it came through a topic.

    @property
    def original_id(self) -> str:
        """The id its sender gave it; the hub's copy has its own."""
        original = self.metadata.get("originalMessageId")
        return original if isinstance(original, str) else self.id


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the hub's answers."""


class Receipt(_Answer, frozen=True):
    """What became of an ask: `delivered` to the recipient's socket, or `queued` for it."""

    message_id: str
    status: str = "delivered"
    delivered_at: int | None = None
    epoch: int | None = None  # Of the recipient's mailbox, if it has one.
    seq: int | None = None
    attempts: int = 1  # How often this client sent it.

    @property
    def is_delivered(self) -> bool:
        return self.status == "delivered"


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


class Actor(_Answer, frozen=True):
    """One registered actor, as `discover` shows it."""

    address: str
    capabilities: tuple[str, ...] = ()


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
