"""Where a subscription's messages come from: memory if they are new, else the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from signalhub.core.streams import Held, Stream


class Backlog:
    """Messages read ahead, and the position that is wanted next from the log."""

    __slots__ = ("_ahead", "_stream", "is_asked", "wanted")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ahead: deque[Held] = deque()
        self.wanted: int | None = None
        # The log has been asked for it.
        self.is_asked = False

    @property
    def ahead(self) -> Iterable[Held]:
        """What was read ahead."""
        return self._ahead

    def get(self, seq: int) -> Held | None:
        """The message, if it is at hand; else it is wanted."""
        held = self._stream.recent.get(seq)
        if held is not None:
            return held
        ahead = self._ahead
        while ahead and ahead[0].seq < seq:
            ahead.popleft()
        if ahead and ahead[0].seq == seq:
            return ahead[0]
        if self.wanted is None:
            self.wanted = seq
        return None

    def answered(self, seq: int) -> bool:
        """The log has answered; `False` if nobody waits for that any more."""
        if self.wanted != seq:
            return False
        self.wanted = None
        self.is_asked = False
        return True

    def extend(self, found: list[Held]) -> None:
        """Keep what was read until it is needed."""
        self._ahead.extend(found)

    def clear(self) -> None:
        self._ahead.clear()
        self.wanted = None
        self.is_asked = False
