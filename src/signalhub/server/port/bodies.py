"""The memory of unfinished request bodies, for all connections together.

Anybody may send the beginning of a body, whatever they may do with the rest. Above the limit the
connection that has been sending for longest is closed: whoever sends at once is never that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from signalhub.server.port.door import Door

UNFINISHED_BYTES_MAX: Final = 128 * 2**20


class Unfinished:
    """What each connection has sent of a body; `bytes` is the sum."""

    def __init__(self, give_up: Callable[[Door], None], bytes_max: int = UNFINISHED_BYTES_MAX):
        self.bytes = 0
        self.bytes_max = bytes_max
        self._give_up = give_up
        # In the order of their beginning.
        self._held: dict[Door, int] = {}

    def hold(self, door: Door, size: int) -> None:
        """A connection keeps so much of its body now, none once it is complete or given up."""
        before = self._held.pop(door, 0) if not size else self._held.get(door, 0)
        if size:
            self._held[door] = size
        self.bytes += size - before
        while self.bytes > self.bytes_max:
            oldest = next(iter(self._held))
            self.hold(oldest, 0)
            self._give_up(oldest)
