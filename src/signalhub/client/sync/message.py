"""A received message of a synchronous client."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from signalhub.client.answers import Copied
from signalhub.client.delivery import DeadLetter, Delivery, Settled
from signalhub.client.message import Failure, Message

T = TypeVar("T")


class Runs(Protocol):
    """Waits for work of the loop."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class SyncMessage:
    """What `signalhub.Message` is, with methods that wait."""

    __slots__ = ("_message", "_run")

    def __init__(self, message: Message, run: Runs) -> None:
        self._message = message
        self._run = run

    def __repr__(self) -> str:
        return f"<SyncMessage {self.type} from {self.sender}>"

    @property
    def id(self) -> str:
        return self._message.id

    @property
    def sender(self) -> str:
        return self._message.sender

    @property
    def to(self) -> str:
        return self._message.to

    @property
    def type(self) -> str:
        return self._message.type

    @property
    def payload(self) -> Any:
        return self._message.payload

    @property
    def metadata(self) -> dict[str, Any]:
        return self._message.metadata

    @property
    def timestamp(self) -> int:
        return self._message.timestamp

    @property
    def ttl(self) -> float | None:
        return self._message.ttl

    @property
    def topic(self) -> str | None:
        return self._message.topic

    @property
    def delivery(self) -> Delivery | None:
        return self._message.delivery

    @property
    def request_id(self) -> str | None:
        return self._message.request_id

    @property
    def original_id(self) -> str:
        return self._message.original_id

    @property
    def key(self) -> str | None:
        return self._message.key

    @property
    def headers(self) -> dict[str, str]:
        return self._message.headers

    @property
    def dead_letter(self) -> DeadLetter | None:
        return self._message.dead_letter

    @property
    def is_replay(self) -> bool:
        return self._message.is_replay

    @property
    def original(self) -> Copied | None:
        return self._message.original

    @property
    def expects_reply(self) -> bool:
        return self._message.expects_reply

    @property
    def in_reply_to(self) -> str | None:
        return self._message.in_reply_to

    @property
    def failure(self) -> Failure | None:
        return self._message.failure

    @property
    def is_settleable(self) -> bool:
        return self._message.is_settleable

    @property
    def is_open(self) -> bool:
        return self._message.is_open

    def reply(self, payload: Any = None) -> None:
        self._run(self._message.reply(payload))

    def fail(self, text: str, *, code: str = "failed") -> None:
        self._run(self._message.fail(text, code=code))

    def ack(self, *, wait: bool = False) -> Settled | None:
        return self._run(self._message.ack(wait=wait))

    def nack(
        self, *, delay_s: float | None = None, reason: str | None = None, wait: bool = False
    ) -> Settled | None:
        return self._run(self._message.nack(delay_s=delay_s, reason=reason, wait=wait))

    def extend(self, seconds: float, *, wait: bool = True) -> Settled | None:
        return self._run(self._message.extend(seconds, wait=wait))

    def term(self, *, reason: str | None = None, wait: bool = False) -> Settled | None:
        return self._run(self._message.term(reason=reason, wait=wait))
