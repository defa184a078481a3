"""A memory shell whose turns last as long as a test wants.

On a real loop several frames, commits and ends of sockets fall into one turn, and only then the
hub dispatches. Within `one_turn` the shell does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.memory.shell import MemoryShell


class TurningShell(MemoryShell):
    """It comes to rest only between turns."""

    is_turning = False

    def settle(self) -> None:
        if not self.is_turning:
            super().settle()

    @contextmanager
    def one_turn(self) -> Iterator[None]:
        """Everything in the block happens in one turn of the loop."""
        self.is_turning = True
        yield
        self.is_turning = False
        self.settle()
