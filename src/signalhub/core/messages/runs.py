"""Runs: messages of one read that can be handled together.

The native part finds them. The core decides about a run as about a message, and may have its
messages handled one by one instead.
"""

from __future__ import annotations

from typing import Protocol


class TellRun(Protocol):
    """Tells of one sender to one target without fences, with usual names and values."""

    @property
    def sender(self) -> str: ...

    @property
    def to(self) -> str: ...

    @property
    def count(self) -> int: ...
    @property
    def deadline(self) -> int | None:
        """When the first of them expires, by the clock of their sender; `None` if none does."""

    def deadlines(self) -> list[int | None]:
        """When each of them expires."""

    def messages(self) -> list[bytes]:
        """The messages as they were received."""

    def copies(self, ids: bytes, sender: bytes, to: bytes, now_ms: int) -> bytes:
        """The frames of their copies; `ids` are concatenated, both addresses are JSON."""
