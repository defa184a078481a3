"""Everything the core can ask the shell to do.

`Session.link` leads the shell to its own connection object; the core never looks inside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from signalhub.core.registry import Registration
    from signalhub.core.router import FanReceipt, Receipt
    from signalhub.core.session import Session
    from signalhub.core.topics import Audience


class Reply(msgspec.Struct, gc=False):
    """Send the hub's own message to a session; never dropped for back-pressure."""

    session: Session
    frame: bytes


class Deliver(msgspec.Struct, gc=False):
    """Send one actor's message to another's session.

    The shell reports `receipt`, if there is one, once the bytes are the kernel's, or lost.
    """

    session: Session
    frame: bytes
    sender: Session
    address: str
    expires_at: float | None
    receipt: Receipt | None


class FanOut(msgspec.Struct, gc=False):
    """Queue head + address + tail for each recipient, then write `chunk` sockets per tick.

    The shell reports `receipt` with the number of copies it queued and could not queue.
    """

    audience: Audience
    head: bytes
    tail: bytes
    chunk: int
    receipt: FanReceipt


class Close(msgspec.Struct, gc=False):
    """Flush what is queued for the session, then close its socket."""

    session: Session
    code: int
    reason: str


class Persist(msgspec.Struct, gc=False):
    """Write a registration to the durable tier."""

    registration: Registration


class Forget(msgspec.Struct, gc=False):
    """Remove addresses from the durable tier."""

    addresses: list[str]


Effect = Reply | Deliver | FanOut | Close | Persist | Forget
