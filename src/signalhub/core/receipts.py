"""The core's records of messages on their way: who wants to know what becomes of them.

A receipt is told once what became of its message: first by the log, committed or refused, then by
the shell, handed over or lost. What it does then is said in `asks.py` and `publishing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from signalhub.core.session import Session, State
from signalhub.entry import Message
from signalhub.envelope import Envelope

if TYPE_CHECKING:
    from signalhub.core.effects import Deliver, FanOut
    from signalhub.core.streams import Mailbox, Topic


class Receipt(msgspec.Struct, eq=False):
    """An ask on its way."""

    session: Session
    message: Envelope
    askers: list[Session]
    target: str
    received_at_ms: int
    expires_at: float | None
    stored: Message
    key: bytes  # What it is known by while it is on its way, and after that.
    mailbox: Mailbox | None = None
    seq: int = 0
    offset: int = -1
    # It may have been delivered before a restart.
    is_doubtful: bool = False
    # What the same sender sent to the same recipient after it, while it was not on disk.
    behind: list[Deliver | FanOut] | None = None
    order: int = 0

    @property
    def listening(self) -> list[Session]:
        """The askers who are still there."""
        return [asker for asker in self.askers if asker.state is State.CONNECTED]


class Orphan(msgspec.Struct, frozen=True):
    """An ask from before a restart, to an actor without a mailbox, whose fate is not known."""

    offset: int
    at_ms: int
    copy_id: bytes


class FanReceipt(msgspec.Struct, eq=False):
    """A publish or broadcast on its way; `topic` is `None` for a broadcast.

    Dead letters are published by nobody: there is no message, and no session to be told.
    """

    session: Session | None
    message: Envelope | None
    topic: str | None
    received_at_ms: int
    expires_at: float | None
    # Of a durable topic: whom to tell, and how the answer begins.
    durable: Topic | None = None
    askers: list[Session] = msgspec.field(default_factory=list)
    answer: bytes = b""


class PublishReceipt(msgspec.Struct, eq=False):
    """A durable publish on its way to the log."""

    message: Envelope | None
    askers: list[Session]
    topic: Topic
    seq: int
    stored: Message
    at_ms: int
    size: int
    key: bytes = b""
    offset: int = -1
