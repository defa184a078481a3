"""Time and ids, passed in from outside so that the core needs neither.

The hub stamps messages with wall time in milliseconds and measures intervals with the same clock;
only the real classes here read the machine.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from itertools import chain, count
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the Unix epoch."""

    def mono_s(self) -> float:
        """Monotonic seconds, for intervals that must survive clock jumps."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_s(self) -> float:
        return time.monotonic()


_ENDINGS = [b"%03x" % number for number in range(16**3)]


class Ids:
    """Unique ids in the form of UUID v4, a hundred nanoseconds each.

    The first half is random once per process, the last twelve digits count. Uniqueness is what
    messages need; for an unguessable value call `secret`.
    """

    next: Callable[[], bytes]
    """The next id as ASCII bytes, ready to be spliced into JSON."""

    def __init__(self, prefix: str | None = None) -> None:
        digits = prefix or secrets.token_hex(10)
        head = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-".encode()
        # Every message needs an id, so the last three digits come from a table, in C.
        blocks = (head + b"%09x" % block for block in count())
        self.next = chain.from_iterable(map(block.__add__, _ENDINGS) for block in blocks).__next__

    def secret(self) -> str:
        """An id that cannot be guessed, for tokens and session names."""
        digits = secrets.token_hex(16)
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
