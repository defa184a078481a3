"""The memory of everything that waits to be written, for all sockets together.

The sockets of a fan-out wait for the same pieces of frames, so a large piece counts once, however
many sockets hold it. Small ones are not worth the bookkeeping: each counts, with what Python needs
for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

# From this size on a piece is shared instead of copied.
SHARED_BYTES: Final = 2**14
_PIECE_BYTES: Final = 96


class Ledger:
    """Invariant: `bytes` is the sum over all pieces that are held, each large one counted once."""

    __slots__ = ("_holders", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        # How many sockets hold a large piece, by its identity; a piece that is held stays alive.
        self._holders: dict[int, int] = {}

    def add(self, pieces: Iterable[bytes]) -> None:
        """A socket holds these pieces."""
        holders = self._holders
        for piece in pieces:
            size = len(piece)
            if size < SHARED_BYTES:
                self.bytes += size + _PIECE_BYTES
                continue
            key = id(piece)
            count = holders.get(key, 0)
            holders[key] = count + 1
            if not count:
                self.bytes += size

    def remove(self, pieces: Iterable[bytes]) -> None:
        """A socket no longer holds these pieces."""
        holders = self._holders
        for piece in pieces:
            size = len(piece)
            if size < SHARED_BYTES:
                self.bytes -= size + _PIECE_BYTES
                continue
            key = id(piece)
            if holders[key] > 1:
                holders[key] -= 1
            else:
                del holders[key]
                self.bytes -= size
        assert self.bytes >= 0


class Kept(NamedTuple):
    pieces: list[bytes]
    offset: int
    """The bytes of the first piece that are written."""


def without(pieces: Iterable[bytes], written: int) -> Kept:
    """Return the pieces after the first `written` bytes: small ones joined, large ones shared."""
    kept: list[bytes] = []
    small: list[bytes] = []
    offset = 0
    for piece in pieces:
        if written >= len(piece):
            written -= len(piece)
        elif len(piece) < SHARED_BYTES:
            small.append(piece[written:] if written else piece)
            written = 0
        else:
            if small:
                kept.append(b"".join(small))
                small.clear()
            if written:
                offset, written = written, 0
            kept.append(piece)
    if small:
        kept.append(b"".join(small))
    return Kept(kept, offset)
