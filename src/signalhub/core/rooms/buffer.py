"""The newest messages of every inbox, in memory, within one budget for all.

The log has them all, so letting go costs nothing but a read.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from signalhub.core.rooms.inbox import Inbox, Kept

_STALE_MAX: Final = 64


class Buffer:
    """What memory holds, and in which order it lets go."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max  # Of one inbox.
        self._bytes_max = bytes_max  # Of all.
        self.bytes = 0
        # Inbox and position, the oldest first; some of them have been let go already.
        self._order: deque[tuple[Inbox, int]] = deque()
        self._stale = 0

    def __len__(self) -> int:
        return len(self._order)

    def keep(self, inbox: Inbox, kept: Kept) -> None:
        """Remember a committed message while there is room."""
        recent = inbox.recent
        if not recent:
            inbox.recent_first = kept.seq
        recent[kept.seq] = kept
        self._order.append((inbox, kept.seq))
        self.bytes += len(kept.json)
        if len(recent) > self._count_max:
            self._let_go(inbox)
            self._stale += 1
            if self._stale > _STALE_MAX and self._stale * 2 > len(self._order):
                self._order = deque(one for one in self._order if one[1] in one[0].recent)
                self._stale = 0
        while self.bytes > self._bytes_max:
            self._let_go_oldest()

    def expire(self, now: int) -> None:
        """Let go of what can no longer be read."""
        while self._order:
            inbox, seq = self._order[0]
            kept = inbox.recent.get(seq)
            if kept is not None and kept.expires_ms > now:
                return
            self._let_go_oldest()

    def blank(self, inbox: Inbox, seq: int) -> None:
        """Take out the content of a message; its place stays, as if it had expired."""
        kept = inbox.recent.get(seq)
        if kept is not None:
            self.bytes -= len(kept.json)
            kept.json, kept.expires_ms = b"", 0

    def _let_go(self, inbox: Inbox) -> None:
        self.bytes -= len(inbox.recent.pop(inbox.recent_first).json)
        inbox.recent_first += 1

    def _let_go_oldest(self) -> None:
        inbox, seq = self._order.popleft()
        if seq in inbox.recent:
            self._let_go(inbox)
        else:
            self._stale -= 1
