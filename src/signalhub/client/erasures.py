"""What the hub says about an erasure."""

from __future__ import annotations

import msgspec


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken out of the hub's log; nothing of it is read again."""

    entries: int = 0
    settled: int = 0  # Copies that somebody had not settled yet.
    mailbox: bool = False
    segments: int = 0  # Files of the log that were written anew.
    torn: int = 0
    epoch: int = 0
    through: int = 0  # Everything before this offset of the log was searched.
    at: float = 0  # When it was done, in milliseconds.
