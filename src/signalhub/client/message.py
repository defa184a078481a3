"""A received message and the methods to settle it."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from signalhub.client.answers import Copied
from signalhub.client.delivery import DeadLetter, Delivery, Settled, read_members
from signalhub.client.stream_requests import Ack, Extend, Nack, Term, Verdict


class Settles(Protocol):
    """Settles the messages of one stream."""

    def is_open(self, delivery: Delivery) -> bool:
        """Return whether the client still has to settle this delivery."""

    async def settle(
        self,
        verdict: Verdict,
        message_id: str,
        delivery: Delivery,
        facts: dict[str, Any],
        *,
        wait: bool,
    ) -> Settled | None:
        """Settle a delivery; with `wait`, return once the hub has written it to disk."""


class Failure(msgspec.Struct, frozen=True):
    """What the recipient of a request says about its failure."""

    code: str = "failed"
    text: str = ""


class Responds(Protocol):
    """Sends replies."""

    async def respond(self, message: Message, payload: Any, failure: Failure | None) -> None:
        """Send the one reply to a request."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message from another actor.

    Messages from a durable subscription, or from a mailbox if the client acknowledges, must be
    settled with `ack`, `nack` or `term`. By default these return once the settlement is queued for
    sending; with `wait=True`, they return the hub's answer once it is on disk, or raise
    `StaleDelivery` if the hub no longer waits for this copy.
    """

    id: str
    sender: str
    to: str  # The address of ours that it was sent to.
    type: str
    payload: Any
    metadata: dict[str, Any]
    timestamp: int  # When the hub forwarded it, in milliseconds since the Unix epoch.
    ttl: float | None = None
    topic: str | None = None  # Set if it came through a topic.
    delivery: Delivery | None = None  # Set if it came from a durable stream.
    request_id: str | None = None  # Set if its sender waits for a reply.
    _settler: Settles | None = None
    _responder: Responds | None = None

    @property
    def original_id(self) -> str:
        """The id given by its sender; the hub's copy has a different one."""
        original = self.metadata.get("originalMessageId")
        return original if isinstance(original, str) else self.id

    @property
    def key(self) -> str | None:
        """The key it was published with; messages with the same key keep their order."""
        key = self.metadata.get("key")
        return key if isinstance(key, str) else None

    @property
    def headers(self) -> dict[str, str]:
        """The headers given by its publisher."""
        headers = self.metadata.get("headers")
        members = headers.items() if isinstance(headers, dict) else ()
        return {name: text for name, text in members if isinstance(text, str)}

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Where it comes from, if it is a dead letter."""
        return read_members(self.metadata.get("deadLetter"), DeadLetter)

    @property
    def is_replay(self) -> bool:
        """Whether it comes from `replay` or was sent by a replay job from the lake."""
        return self.metadata.get("replay") is True or self.original is not None

    @property
    def original(self) -> Copied | None:
        """What it is a copy of, if a replay job sent it."""
        return read_members(self.metadata.get("original"), Copied)

    @property
    def expects_reply(self) -> bool:
        """Whether its sender waits for a reply."""
        return self.request_id is not None

    @property
    def in_reply_to(self) -> str | None:
        """The id of the request that it answers."""
        answered = self.metadata.get("inReplyTo")
        return answered if isinstance(answered, str) and answered else None

    @property
    def failure(self) -> Failure | None:
        """The failure, if it is a reply that says so."""
        failure = self.metadata.get("failure")
        if self.in_reply_to is None or not isinstance(failure, dict):
            return None
        return read_members(failure, Failure)

    @property
    def is_settleable(self) -> bool:
        """Whether the hub waits for it to be settled."""
        return self._settler is not None

    @property
    def is_open(self) -> bool:
        """Whether it is still unsettled; a copy of it may have been settled instead."""
        if self._settler is None or self.delivery is None:
            return True
        return self._settler.is_open(self.delivery)

    async def reply(self, payload: Any = None) -> None:
        """Answer a request; its sender gets the payload as the result.

        Raises:
            RuntimeError: Nobody waits for a reply, or it was answered before.
            TypeError: The payload is not JSON.
        """
        await self._respond(payload, None)

    async def fail(self, text: str, *, code: str = "failed") -> None:
        """Answer a request with a failure; `RequestFailed` with this text and code is raised there.

        Raises:
            RuntimeError: Nobody waits for a reply, or it was answered before.
        """
        await self._respond(None, Failure(code, text))

    async def ack(self, *, wait: bool = False) -> Settled | None:
        """Acknowledge it: it is processed and is not redelivered."""
        return await self._settle(Ack, {}, wait)

    async def nack(
        self, *, delay_s: float | None = None, reason: str | None = None, wait: bool = False
    ) -> Settled | None:
        """Refuse it: the hub redelivers it, at the earliest after `delay_s`."""
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        return await self._settle(Nack, {"delay_ms": delay_ms, "reason": reason}, wait)

    async def extend(self, seconds: float, *, wait: bool = True) -> Settled | None:
        """Extend its deadline: do not redeliver it before this much time has passed from now.

        Raises `StaleDelivery` if the message is no longer with this consumer, for instance because
        the deadline has passed and another one has it; without `wait` nobody is told.
        """
        return await self._settle(Extend, {"ms": round(seconds * 1000)}, wait)

    async def term(self, *, reason: str | None = None, wait: bool = False) -> Settled | None:
        """Terminate it: it can never be processed. It becomes a dead letter or is dropped."""
        return await self._settle(Term, {"reason": reason}, wait)

    async def _respond(self, payload: Any, failure: Failure | None) -> None:
        if self._responder is None or self.request_id is None:
            raise RuntimeError(
                f"{self.type} from {self.sender} expects no reply: it was not sent as a request"
            )
        await self._responder.respond(self, payload, failure)

    async def _settle(self, verdict: Verdict, facts: dict[str, Any], wait: bool) -> Settled | None:
        if self._settler is None or self.delivery is None:
            raise RuntimeError(
                f"{self.type} from {self.sender} has nothing to settle: only messages of durable "
                "subscriptions do, and those of mailboxes after `connect(..., acknowledge=True)`"
            )
        return await self._settler.settle(verdict, self.id, self.delivery, facts, wait=wait)
