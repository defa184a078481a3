"""The wall clock as the core knows it.

The core's own time never jumps; the wall clock may. A time that comes from outside is converted
once, on arrival, and a time that clients compare with their clock is converted when it is written.
In between, only the hub's own time is used. See docs/decisions/0014-time.md.
"""

from __future__ import annotations


class WallTime:
    """Converts between the hub's own time and the wall clock."""

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        # How far the wall clock is ahead; kept up to date by whoever knows the clocks.
        self.ahead_ms = 0

    def shown(self, own_ms: int) -> int:
        """The wall clock's reading at a time of the hub."""
        return own_ms + self.ahead_ms

    def own(self, wall_ms: float) -> float:
        """The hub's own time when the wall clock reads `wall_ms`."""
        return wall_ms - self.ahead_ms
