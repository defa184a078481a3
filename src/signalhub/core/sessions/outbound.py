"""The queue of a connection whose reader is too slow.

It exists only while a connection is blocked: frames that the kernel accepts at once do not count.
Senders that fill the queue to `pause_messages` are told to hold their tells to that address, and to
resume when it has shrunk to `resume_messages`. Above the hard limits tells are dropped and counted.
"""

from __future__ import annotations

from signalhub.core.sessions.session import Session
from signalhub.settings.model import OutboundSettings as Bounds

# A few large messages may reach the byte limit first; their senders are told, too.
_PAUSE_SHARE = 0.5
_RESUME_SHARE = 0.25


class Outbound:
    """The waiting frames of one blocked connection, counted."""

    __slots__ = ("_bounds", "bytes", "messages", "paused", "progress_at_ms")

    def __init__(self, bounds: Bounds, now_ms: int) -> None:
        self._bounds = bounds
        self.messages = 0
        self.bytes = 0
        self.progress_at_ms = now_ms
        self.paused: dict[tuple[Session, str], None] = {}

    def admits(self, size: int, unsent: int = 0) -> bool:
        """Is there room for one more tell of this size? The transport holds `unsent` bytes."""
        return (
            self.messages < self._bounds.messages_max
            and self.bytes + unsent + size <= self._bounds.bytes_max
        )

    @property
    def is_overrun(self) -> bool:
        """Is the queue too long even for the hub's own replies?"""
        return self.bytes > 2 * self._bounds.bytes_max

    def queued(self, size: int) -> None:
        """A frame was added."""
        self.messages += 1
        self.bytes += size

    def drained(self, messages: int, size: int, now_ms: int) -> None:
        """Frames left the queue."""
        self.messages -= messages
        self.bytes -= size
        self.progress_at_ms = now_ms
        assert self.messages >= 0
        assert self.bytes >= 0

    def pause(self, sender: Session, address: str, unsent: int = 0) -> bool:
        """Should this sender be told to hold? `True` at most once until it is released."""
        bounds = self._bounds
        is_filling = (
            self.messages >= bounds.pause_messages
            or self.bytes + unsent >= bounds.bytes_max * _PAUSE_SHARE
        )
        if not is_filling or (sender, address) in self.paused:
            return False
        self.paused[sender, address] = None
        return True

    def release(self) -> list[tuple[Session, str]]:
        """The held senders, with the address they were held for, once there is room again."""
        bounds = self._bounds
        if not self.paused or self.messages > bounds.resume_messages:
            return []
        if self.bytes > bounds.bytes_max * _RESUME_SHARE:
            return []
        released = list(self.paused)
        self.paused.clear()
        return released

    def is_stalled(self, now_ms: int) -> bool:
        """Has the reader taken nothing for too long?"""
        return now_ms - self.progress_at_ms >= self._bounds.stalled_s * 1000
