"""Messages over HTTP without asyncio."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar

from signalhub.client.answers import Found, Published, Receipt
from signalhub.client.calls.answers import MessagePage
from signalhub.client.calls.calls import Calls, Mode
from signalhub.client.delivery import Settled
from signalhub.client.message import Message
from signalhub.client.sync.background import Background
from signalhub.client.sync.message import SyncMessage

T = TypeVar("T")

TIMEOUT_S = 30.0


class SyncCalls(ABC):
    """What `Calls` is; messages of a page are those of `messages`, which are not settled."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @property
    @abstractmethod
    def _open(self) -> Background:
        """The loop, unless this was closed."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            background = self._open
        except BaseException:
            work.close()
            raise
        return background.run(work)

    def _message(self, message: Message) -> SyncMessage:
        return SyncMessage(message, self._open.run)

    def publish(
        self,
        topic: str,
        type: str,
        payload: Any = None,
        *,
        durable: bool = False,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: float | datetime | None = None,
        ttl_ms: float | None = None,
        sender: str | None = None,
        message_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Published:
        """Publish to a topic; with a durable one, return once the message is on disk."""
        return self._run(
            self._calls.publish(
                topic,
                type,
                payload,
                durable=durable,
                key=key,
                headers=headers,
                deliver_at=deliver_at,
                ttl_ms=ttl_ms,
                sender=sender,
                message_id=message_id,
                timeout_s=timeout_s,
            )
        )

    def tell(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        ttl_ms: float | None = None,
        sender: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Send a message to an actor, at most once."""
        self._run(
            self._calls.tell(to, type, payload, ttl_ms=ttl_ms, sender=sender, timeout_s=timeout_s)
        )

    def ask(
        self,
        to: str,
        type: str,
        payload: Any = None,
        *,
        ttl_ms: float | None = None,
        sender: str | None = None,
        message_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Receipt:
        """Send a message to an actor, at least once, and return the hub's receipt."""
        return self._run(
            self._calls.ask(
                to,
                type,
                payload,
                ttl_ms=ttl_ms,
                sender=sender,
                message_id=message_id,
                timeout_s=timeout_s,
            )
        )

    def request(
        self, to: str, type: str, payload: Any = None, *, timeout_s: float = TIMEOUT_S
    ) -> SyncMessage:
        """Ask an actor and return its reply."""
        return self._message(self._run(self._calls.request(to, type, payload, timeout_s=timeout_s)))

    def messages(
        self,
        topic: str,
        *,
        after: int | None = None,
        start: str | int | datetime | None = None,
        limit: int = 100,
        timeout_s: float = TIMEOUT_S,
    ) -> MessagePage:
        """Return a page of a durable topic, without taking it from anybody."""
        return self._run(
            self._calls.messages(topic, after=after, start=start, limit=limit, timeout_s=timeout_s)
        )

    def pull(
        self,
        topic: str,
        subscription: str,
        *,
        max: int = 100,
        wait_s: float = 0.0,
        mode: Mode | None = None,
        window: int | None = None,
        start: Literal["earliest", "latest"] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[SyncMessage]:
        """Take messages of a durable subscription; settle each with its `ack`, `nack` or `term`."""
        return [
            self._message(one)
            for one in self._run(
                self._calls.pull(
                    topic,
                    subscription,
                    max=max,
                    wait_s=wait_s,
                    mode=mode,
                    window=window,
                    start=start,
                    timeout_s=timeout_s,
                )
            )
        ]

    def settle(
        self,
        how: Literal["ack", "nack", "extend", "term"],
        topic: str,
        subscription: str,
        seqs: Iterable[int],
        *,
        timeout_s: float = TIMEOUT_S,
        **facts: Any,
    ) -> Settled:
        """Settle several messages of a subscription by their positions."""
        return self._run(
            self._calls.settle(how, topic, subscription, seqs, timeout_s=timeout_s, **facts)
        )

    def actors(
        self,
        pattern: str = "*",
        capability: str | None = None,
        *,
        limit: int = 100,
        timeout_s: float = TIMEOUT_S,
    ) -> Found:
        """Find actors by address and capability."""
        return self._run(self._calls.actors(pattern, capability, limit=limit, timeout_s=timeout_s))
