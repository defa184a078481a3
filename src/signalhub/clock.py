"""Clocks and ids, passed in from outside, so that the core has no side effects.

The hub's own time is that of a `SteadyClock`: milliseconds like those of the wall clock, but
without its jumps. See docs/decisions/0014-time.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from itertools import chain, count, islice
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

    # The function itself: every tick reads it several times.
    mono_s = staticmethod(time.monotonic)


def boot_s() -> float:
    """Return monotonic seconds that include the time in which the machine was suspended."""
    return time.clock_gettime(_BOOT_CLOCK)


# Only Linux has a clock that counts while the machine is suspended.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# How fast a steady clock follows the wall clock: a hundredth, so that no duration is off by more.
_FOLLOWED_MS_PER_S = 10.0
# A smaller change of the difference between the clocks is not worth a line in the log.
_JUMP_MS = 5_000
# Readings of two clocks differ by this much without a reason.
_READING_MS = 1.0
# Sums of fractions of a second may fall short of a whole millisecond.
_ROUNDING_MS = 0.001


class SteadyClock:
    """Wall time at the start plus elapsed time; it never jumps, and follows the wall clock slowly.

    May be read from any thread; only one thread may change it.
    """

    def __init__(self, clock: Clock, boot_s: Callable[[], float] | None = None) -> None:
        """`boot_s` also counts the time in which the machine was suspended."""
        self.wall_ms = clock.now_ms
        self.mono_s = clock.mono_s
        self._boot_s = boot_s or clock.mono_s
        self._suspended_s = self._boot_s() - clock.mono_s()
        # Since when by the monotonic clock, the time then, and milliseconds per second.
        self._line = (0.0, 0.0, 0.0)
        self._set(self.mono_s(), clock.now_ms(), 1000.0)
        # How far the wall clock was ahead when last looked at.
        self._known_ahead_ms = 0

    def now_ms(self) -> int:
        return self.at(self.mono_s())

    def at(self, mono_s: float) -> int:
        """Return the time of a reading of the monotonic clock."""
        since_s, began_ms, ms_per_s = self._line
        return int(began_ms + (mono_s - since_s) * ms_per_s)

    @property
    def ahead_ms(self) -> int:
        """How far the wall clock is ahead; negative if it is behind."""
        return self.wall_ms() - self.now_ms()

    def resume(self, *, ahead_ms: int = 0, newest_ms: int = 0) -> None:
        """Continue the time of an earlier process.

        Args:
            ahead_ms: How far the wall clock was ahead then.
            newest_ms: A time the earlier process has seen; if the wall clock was set back since,
                time continues from there.
        """
        self._set(self.mono_s(), max(self.wall_ms() - ahead_ms, newest_ms), 1000.0)
        self._known_ahead_ms = self.ahead_ms

    @property
    def has_jumped(self) -> bool:
        """Was the wall clock set, or the machine suspended, since the last call of `follow`?"""
        return abs(self.ahead_ms - self._known_ahead_ms) > _JUMP_MS

    def follow(self) -> int:
        """Run a little faster or slower if the wall clock is ahead or behind; call regularly.

        Time in which the machine was suspended is added at once. Returns by how much the wall
        clock was set since the last call; 0 if it was only corrected.
        """
        since_s, began_ms, ms_per_s = self._line
        mono_s = self.mono_s()
        now_ms = began_ms + (mono_s - since_s) * ms_per_s - _ROUNDING_MS
        suspended_s = self._boot_s() - mono_s
        if (suspended_s - self._suspended_s) * 1000 > _READING_MS:
            now_ms += (suspended_s - self._suspended_s) * 1000
            self._suspended_s = suspended_s
        ahead_ms = self.wall_ms() - now_ms
        if abs(ahead_ms) <= _READING_MS:
            ahead_ms = 0.0
        change = max(-_FOLLOWED_MS_PER_S, min(_FOLLOWED_MS_PER_S, ahead_ms))
        self._set(mono_s, now_ms, 1000.0 + change)
        known_ms, self._known_ahead_ms = self._known_ahead_ms, self.ahead_ms
        set_ms = self._known_ahead_ms - known_ms
        return set_ms if abs(set_ms) > _JUMP_MS else 0

    def _set(self, since_s: float, now_ms: float, ms_per_s: float) -> None:
        self._line = (since_s, now_ms + _ROUNDING_MS, ms_per_s)


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
        self._all = chain.from_iterable(map(block.__add__, _ENDINGS) for block in blocks)
        self.next = self._all.__next__

    def many(self, count: int) -> bytes:
        """Return so many ids, concatenated."""
        if count == 1:
            return self.next()
        return b"".join(islice(self._all, count))

    def secret(self) -> str:
        """Return an unpredictable id, for tokens and session names."""
        digits = secrets.token_hex(16)
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
