"""The vocabulary of ledgers: what a client writes down while it works.

Producers write `Attempted` before they send and `Acked` or `Refused` when they are answered;
consumers write `Joined`, `Received` before they settle, and `Settled` when that was confirmed;
whoever runs the hub writes `Started`. All share the machine's monotonic clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["exclusive", "failover", "shared", "key-shared", "mailbox", "replay"]


class _Line(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of a ledger; `at` is the machine's monotonic clock in seconds."""

    at: float


class Started(_Line, frozen=True, array_like=True, gc=False, tag="started"):
    """Whoever runs the hub is about to start it: a new life."""


class Attempted(_Line, frozen=True, array_like=True, gc=False, tag="attempted"):
    """A producer is about to send a message, for the first time or again."""

    producer: str
    stream: str
    id: str
    number: int
    key: str | None = None


class Acked(_Line, frozen=True, array_like=True, gc=False, tag="acked"):
    """A producer saw the acknowledgement."""

    id: str
    epoch: str | None
    seq: int | None


class Refused(_Line, frozen=True, array_like=True, gc=False, tag="refused"):
    """A producer saw a refusal."""

    id: str
    code: str


class Joined(_Line, frozen=True, array_like=True, gc=False, tag="joined"):
    """A consumer began to read a stream from its beginning, or came back to go on."""

    session: str
    consumer: str
    stream: str
    subscription: str
    mode: Mode
    is_recovered: bool = True


class Received(_Line, frozen=True, array_like=True, gc=False, tag="received"):
    """A copy arrived; it is marked if the hub called it a possible repeat."""

    session: str
    epoch: str
    seq: int
    id: str
    is_marked: bool = False


class Settled(_Line, frozen=True, array_like=True, gc=False, tag="settled"):
    """The hub confirmed that an entry is settled."""

    session: str
    epoch: str
    seq: int


class Noted(_Line, frozen=True, array_like=True, gc=False, tag="noted"):
    """Something a person would like to know, such as an error in answer to an ack."""

    what: str


Line = Started | Attempted | Acked | Refused | Joined | Received | Settled | Noted
