"""Clocks and ids, passed in from outside, so that the core has no side effects.

The hub uses wall time in milliseconds for timestamps and most intervals.
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
        """Return wall time in milliseconds since the Unix epoch."""

    def mono_s(self) -> float:
        """Return monotonic seconds, for intervals that must not be affected by clock jumps."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_s(self) -> float:
        return time.monotonic()


_ENDINGS = [b"%03x" % number for number in range(16**3)]


class Ids:
    """Unique ids in the format of UUID v4, in a hundred nanoseconds each.

    The first half is random per process; the last twelve digits are a counter. So ids are unique
    but predictable: call `secret` for an unpredictable value.
    """

    next: Callable[[], bytes]
    """Return the next id as ASCII bytes, ready to be inserted into JSON."""

    def __init__(self, prefix: str | None = None) -> None:
        digits = prefix or secrets.token_hex(10)
        head = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-".encode()
        # A hot path: the last three digits come from a table, in C.
        blocks = (head + b"%09x" % block for block in count())
        self.next = chain.from_iterable(map(block.__add__, _ENDINGS) for block in blocks).__next__

    def secret(self) -> str:
        """Return an unpredictable id, for tokens and session names."""
        digits = secrets.token_hex(16)
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
