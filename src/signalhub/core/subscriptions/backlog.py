"""The messages that a subscription reads ahead from the log, and what keeps it from reading.

Damage of the log ends with a restart at the earliest. Until then a subscription that has met it
waits there; whatever lies before the damage is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from signalhub.core.streams.streams import Held, Stream
    from signalhub.wire.errors import Refusal


class Backlog:
    """Messages read ahead, and the next position to fetch from the log."""

    __slots__ = ("_ahead", "_stream", "is_asked", "not_before_ms", "obstacle", "wanted")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ahead: deque[Held] = deque()
        self.wanted: int | None = None
        # Has the fetch been issued?
        self.is_asked = False
        # Why nothing more is delivered, if damage or a failed disk is the reason; and when to read
        # again.
        self.obstacle: Refusal | None = None
        self.not_before_ms = 0

    @property
    def ahead(self) -> Iterable[Held]:
        """The messages read ahead."""
        return self._ahead

    def get(self, seq: int) -> Held | None:
        """The message if it is in memory; otherwise note that it must be fetched."""
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

    def hold_up(self, seq: int, obstacle: Refusal, retry_ms: int) -> None:
        """A fetch met damage: wait, and try again at this time."""
        self.obstacle = obstacle
        self.not_before_ms = retry_ms
        if self.wanted == seq:
            self.is_asked = False

    def answered(self, seq: int) -> bool:
        """A fetch has finished; `False` if it is no longer needed."""
        if self.wanted != seq:
            return False
        self.wanted = None
        self.is_asked = False
        return True

    def extend(self, found: list[Held]) -> None:
        """Keep messages that were read ahead."""
        self._ahead.extend(found)

    def clear(self) -> None:
        self._ahead.clear()
        self.wanted = None
        self.is_asked = False
