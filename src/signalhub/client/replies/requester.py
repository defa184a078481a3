"""The part of the client that is about requests between actors, and their replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar, overload

from signalhub.client.arguments import checked_type
from signalhub.client.arrivals import Handler
from signalhub.client.lifecycle import Resource
from signalhub.client.message import Failure, Message
from signalhub.client.protocol.exchanges import REPLIES_MAX
from signalhub.client.protocol.frame import Payload, Request
from signalhub.client.protocol.incoming import REQUEST_PREFIX
from signalhub.client.replies.responder import REPLY_SUFFIX
from signalhub.client.requests import Ask, Broadcast, Publish
from signalhub.client.transport.runner import ClientRunner
from signalhub.wire.errors import RequestFailed

H = TypeVar("H", bound=Handler)

REQUEST_S = 30.0
ANSWERED_AT_ONCE = 16


class Requester(Resource):
    """Sends requests and answers those of others; the client is one."""

    def __init__(self, address: str, runner: ClientRunner) -> None:
        self.address = address
        self._runner = runner

    @property
    def late_replies(self) -> int:
        """How many replies came after their request had ended, and were dropped."""
        return self._runner.protocol.exchanges.late_replies

    async def request(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        timeout_s: float = REQUEST_S,
        metadata: Mapping[str, Any] | None = None,
        sender: str | None = None,
        message_id: str | None = None,
    ) -> Message:
        """Send a request to an actor and wait for its reply, whose `payload` is the result.

        Args:
            timeout_s: How long to wait, after which the request expires as well.
            sender: Another registered address of this client, which gets the reply.
            message_id: An id chosen by you. Sent again with it, the request is not executed twice.

        Raises:
            RequestFailed: The other side has failed; `code` and `text` are its own.
            UnknownActor: No actor is registered under `to`.
            Refused: The hub refused it, with code `message_expired` or `queue_full` if the other
                side could not take it.
            Unavailable: It was never sent.
            NoReply: It was handed over and no reply came in time, or the other side has left.
            OutcomeUnknown: It was sent, and the hub did not say what became of it.
        """
        checked_type(type + REPLY_SUFFIX)
        request = self._request(
            Ask(to, type, payload),
            timeout_s=timeout_s,
            metadata=metadata,
            sender=sender,
            message_id=message_id,
        )
        with self._runner.conversation(request, to, 1, timeout_s) as conversation:
            reply = await anext(conversation)
        failure = failure_of(reply)
        if failure is not None:
            raise RequestFailed(failure.text, code=failure.code)
        return reply

    async def request_many(
        self,
        type: str,
        payload: Any = None,
        *,
        topic: str | None = None,
        capability: str | None = None,
        max: int | None = None,
        timeout_s: float = REQUEST_S,
        sender: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Send a request to many actors and iterate over their replies as they arrive.

        It goes to the subscribers of a topic, to all actors with a capability or, without both, to
        every actor. The iteration ends when `max` of them, or all of them, have replied, or time is
        up; it is no error if some do not reply. A reply may be a `failure`.

        Raises:
            ValueError: Both a topic and a capability are given, or an argument is invalid.
            Refused: The hub refused it.
            Unavailable: It was never sent.
            OutcomeUnknown: It was sent, and the hub did not answer.
        """
        checked_type(type + REPLY_SUFFIX)
        if topic is not None and capability is not None:
            raise ValueError("a request goes to a topic or to a capability, not to both")
        if max is not None and max < 1:
            raise ValueError("max must be at least 1")
        message_id = REQUEST_PREFIX + self._runner.protocol.frames.new_id()
        many: Payload[Any]
        metadata: dict[str, Any] = {}
        if topic is not None:
            many = Publish(topic, type, payload, headers={"expectsReply": message_id})
        else:
            many = Broadcast(type, payload, exclude_self=True)
            if capability is not None:
                metadata["targetCapability"] = capability
        request = self._request(
            many, timeout_s=timeout_s, metadata=metadata, sender=sender, message_id=message_id
        )
        with self._runner.conversation(request, "", max or REPLIES_MAX, timeout_s) as conversation:
            async for reply in conversation:
                yield reply

    @overload
    def answers(self, type: str, *, at_once: int = ...) -> Callable[[H], H]: ...
    @overload
    def answers(self, type: str, handler: H, *, at_once: int = ...) -> H: ...
    def answers(
        self, type: str, handler: H | None = None, *, at_once: int = ANSWERED_AT_ONCE
    ) -> H | Callable[[H], H]:
        """Let a function, plain or async, answer requests of this type; also as a decorator.

        What it returns is the reply. What it raises becomes a failure: a `RequestFailed` with its
        code and text, anything else with code `failed`. Requests whose senders no longer wait are
        skipped. For a message of this type that is no request, the result is ignored.

        Args:
            at_once: How many requests may be in progress; 1 answers them in order.
        """
        if at_once < 1:
            raise ValueError("at_once must be at least 1")

        def attach(function: H) -> H:
            runner = self._runner
            runner.arrivals.on(type, runner.responder.handler(function), at_once)
            return function

        return attach if handler is None else attach(handler)

    def _request(
        self,
        payload: Payload[Any],
        *,
        timeout_s: float,
        metadata: Mapping[str, Any] | None,
        sender: str | None,
        message_id: str | None,
    ) -> Request:
        membership = self._runner.protocol.membership
        address = sender or self.address
        if not membership.is_registered(address):
            raise ValueError(
                f"{address} is not registered by this client, so it gets no replies: "
                "connect without register=False, or register the address"
            )
        asked = dict(metadata or {}, expectsReply=True)
        if membership.has_mailbox(address):
            asked["mailbox"] = True
        return self._runner.request(
            payload,
            sender=sender,
            message_id=message_id,
            metadata=asked,
            ttl_ms=timeout_s * 1000,
            timeout_s=timeout_s,
        )


def failure_of(reply: Message) -> Failure | None:
    """Return the failure of a reply; one that cannot be read is a failure, too."""
    failure = reply.failure
    if failure is None and reply.metadata.get("failure") is not None:
        return Failure(text="the other side has failed, and its reason cannot be read")
    return failure
