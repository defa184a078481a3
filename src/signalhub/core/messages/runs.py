"""Runs: messages of one read that can be handled together.

The native part finds them. The core decides about a run as about a message, and may have its
messages handled one by one instead.
"""

from __future__ import annotations

from typing import Protocol


class TellRun(Protocol):
    """Tells of one sender to one target without lifetime or fences, and with usual names."""

    @property
    def sender(self) -> str: ...

    @property
    def to(self) -> str: ...

    @property
    def count(self) -> int: ...

    def messages(self) -> list[bytes]:
        """The messages as they were received."""

    def copies(self, ids: bytes, sender: bytes, to: bytes, now_ms: int) -> bytes:
        """The frames of their copies; `ids` are concatenated, both addresses are JSON."""
