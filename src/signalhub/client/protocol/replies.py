"""Requests of others, and the replies they were given.

A request that arrives again, because its sender or the hub has repeated it, is not handed to the
program again: if it was answered, its reply is sent again. A copy from a durable stream is handed
out again while it is not answered, because the program or a crash has left it unsettled.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from signalhub.client.message import Message
from signalhub.client.protocol.frame import Request

# As long as the hub recognises repeats by default.
KEPT_S: Final = 300.0
KEPT_MAX: Final = 10_000
REPLY_BYTES_MAX: Final = 4 * 2**20


class RequestKey(NamedTuple):
    """A request as its recipient knows it.

    One to many may reach several of our addresses, or several durable subscriptions.
    """

    sender: str
    id: str
    to: str
    subscription: str | None

    @classmethod
    def of(cls, message: Message) -> RequestKey:
        assert message.request_id is not None
        subscription = None if message.delivery is None else message.delivery.subscription
        return cls(message.sender, message.request_id, message.to, subscription)


class Arrival(Enum):
    """What to do with a request that has arrived."""

    NEW = "new"
    OPEN = "open"  # The program has it.
    ANSWERED = "answered"


class _Kept:
    """A request, until when it is remembered, and until when its sender waits."""

    __slots__ = ("end_s", "forgotten_s", "is_answered", "reply")

    def __init__(self, now_s: float, ttl_ms: float | None) -> None:
        self.forgotten_s = now_s + KEPT_S
        self.end_s = None if ttl_ms is None else now_s + ttl_ms / 1000
        self.is_answered = False
        self.reply: Request | None = None


class Replies:
    """The requests that have arrived, the oldest first."""

    def __init__(self) -> None:
        self._kept: dict[RequestKey, _Kept] = {}
        self._bytes = 0

    def arrived(self, message: Message, now_s: float) -> Arrival:
        """Record a request, and say whether it was there before."""
        key = RequestKey.of(message)
        known = self._kept.get(key)
        if known is not None and now_s < known.forgotten_s:
            return Arrival.ANSWERED if known.is_answered else Arrival.OPEN
        self._drop(key)
        self._kept[key] = _Kept(now_s, message.ttl)
        while len(self._kept) > KEPT_MAX or next(iter(self._kept.values())).forgotten_s <= now_s:
            self._drop(next(iter(self._kept)))
        return Arrival.NEW

    def is_waiting(self, message: Message, now_s: float) -> bool:
        """Whether the sender may still be waiting for the reply."""
        known = self._kept.get(RequestKey.of(message))
        return known is None or known.end_s is None or now_s < known.end_s

    def is_answered(self, message: Message) -> bool:
        known = self._kept.get(RequestKey.of(message))
        return known is not None and known.is_answered

    def answered(self, message: Message, reply: Request) -> None:
        """Remember the reply; the oldest ones are forgotten when all together are too long."""
        known = self._kept.get(RequestKey.of(message))
        if known is None:
            return
        known.is_answered, known.reply = True, reply
        self._bytes += len(reply.frame)
        oldest = iter(self._kept.values())
        while self._bytes > REPLY_BYTES_MAX:
            self._release(next(oldest))

    def reopen(self, message: Message) -> None:
        """The reply was not sent: the request may be answered once more."""
        known = self._kept.get(RequestKey.of(message))
        if known is not None:
            self._release(known)
            known.is_answered = False

    def reply_to(self, message: Message) -> Request | None:
        """The reply a request was given, if it is still remembered."""
        known = self._kept.get(RequestKey.of(message))
        return None if known is None else known.reply

    def _drop(self, key: RequestKey) -> None:
        known = self._kept.pop(key, None)
        if known is not None:
            self._release(known)

    def _release(self, known: _Kept) -> None:
        if known.reply is not None:
            self._bytes -= len(known.reply.frame)
            known.reply = None
