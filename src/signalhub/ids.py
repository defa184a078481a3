"""ULIDs: ids that sort by creation time; 48 bits of time, 80 random bits, 26 characters.

They reveal their creation time, and the next one can be guessed: never use them as secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable

TIME_MAX = (1 << 48) - 1

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_ULID = re.compile(f"[0-7][{_ALPHABET}]{{25}}")

# The last four characters are a counter; the prefix rarely changes and is cached as text.
_SHIFTS = range(120, -1, -10)
_LOW_BITS = 20
_LOW_MAX = (1 << _LOW_BITS) - 1
_HIGH_MAX = (1 << (80 - _LOW_BITS)) - 1


class Ulids:
    """Generates ids, each greater than the previous one, even if the clock is set back."""

    __slots__ = ("_high", "_low", "_prefix", "_randomness", "_time_ms")

    def __init__(self, randomness: Callable[[int], bytes], last: str | None = None) -> None:
        """Start above `last`; `randomness(n)` returns n bytes, like `os.urandom`."""
        self._randomness = randomness
        self._time_ms = self._high = self._low = 0
        self._prefix = _text(0, 22)
        if last is not None:
            self.seed(last)

    @property
    def last(self) -> str:
        """The greatest id so far, for `seed` after a restart."""
        return f"{self._prefix}{_text(self._low, 4)}"

    def seed(self, last: str) -> None:
        """Generate only greater ids from now on; does nothing if `last` is smaller."""
        if not is_ulid(last):
            raise ValueError(f"invalid ULID {last!r:.100}")
        if last > self.last:
            number = _number(last)
            self._set(number >> 80, number & ((1 << 80) - 1))

    def overtake(self, last: str) -> None:
        """Generate only ids greater than one of another host, and none that it generates next."""
        if last > self.last:
            self._set(time_of(last) + 1, int.from_bytes(self._randomness(10), "big"))

    def next(self, now_ms: int) -> str:
        """Return a new id; in the same or an earlier millisecond, the last one plus one."""
        if now_ms > self._time_ms:
            self._set(now_ms, int.from_bytes(self._randomness(10), "big"))
        elif self._low < _LOW_MAX:
            self._low += 1
        elif self._high < _HIGH_MAX:
            self._set(self._time_ms, (self._high + 1) << _LOW_BITS)
        else:
            self._set(self._time_ms + 1, int.from_bytes(self._randomness(10), "big"))
        low = self._low
        return f"{self._prefix}{_PAIRS[low >> 10]}{_PAIRS[low & 1023]}"

    def _set(self, time_ms: int, chance: int) -> None:
        if time_ms > TIME_MAX:
            raise ValueError(f"the time {time_ms} ms does not fit into a ULID")
        self._time_ms = time_ms
        self._high = chance >> _LOW_BITS
        self._low = chance & _LOW_MAX
        self._prefix = _text(time_ms << 60 | self._high, 22)


def ulid(time_ms: int, chance: int) -> str:
    """Return the id for a time and 80 random bits."""
    return _text(time_ms << 80 | chance, 26)


def is_ulid(text: object) -> bool:
    """Is it a ULID in canonical form? Ids are compared as text, so no other form is valid."""
    return isinstance(text, str) and _ULID.fullmatch(text) is not None


def time_of(ulid: str) -> int:
    """Return the creation time in milliseconds since the Unix epoch."""
    if not is_ulid(ulid):
        raise ValueError(f"invalid ULID {ulid!r:.100}")
    return _number(ulid[:10])


def _text(number: int, characters: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS[-characters // 2 :]])


def _number(text: str) -> int:
    number = 0
    for character in text:
        number = number << 5 | _VALUES[character]
    return number
