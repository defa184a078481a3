"""Where durable actors live: each on one host, under a token that grows whenever it moves.

What is on its way to the log counts from the moment it is sent there, so that nothing that is
accepted behind a move has the token from before it; if the log refuses, it never was. Only what is
on disk is in snapshots.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import count, takewhile
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from signalhub.core.effects import Appending

Row = tuple[str, str, int, int]  # Actor, host, token, and the offset of its entry.

_BITS_64: Final = 2**64 - 1


class Place(msgspec.Struct, frozen=True, gc=False):
    """The host an actor lives on, and the token of its present life there."""

    host: str
    token: int
    offset: int = -1  # Of its entry; it has none on the way to the log.

    def is_at(self, host: str, token: int) -> bool:
        return self.host == host and self.token == token


class Coming(msgspec.Struct, eq=False):
    """A place on its way to the log, and who waits for it."""

    actor: str
    place: Place
    order: int
    waiters: list[Appending]


class Placements:
    """Every placed actor. Invariant: what is stored is in the order of its entries."""

    def __init__(self) -> None:
        self._stored: dict[str, Place] = {}
        self._coming: dict[str, Coming] = {}
        self._new = 0  # How many of these have no place on disk.
        self._order = count()
        # How many actors live on each host.
        self._on: dict[str, int] = {}
        self._dirty: set[str] = set()

    def __len__(self) -> int:
        """How many have a place, on disk or on its way there."""
        return len(self._stored) + self._new

    def find(self, actor: str) -> Place | None:
        """Where the actor lives, or will when what is on its way is on disk."""
        coming = self._coming.get(actor)
        return self._stored.get(actor) if coming is None else coming.place

    def are_on(self, host: str) -> bool:
        """Does anybody live there, or will?"""
        return host in self._on or any(one.place.host == host for one in self._coming.values())

    # On the way to the log.

    def send(self, actor: str, place: Place) -> Coming:
        """The actor has this place once that is on disk."""
        self._new += self.find(actor) is None
        coming = self._coming[actor] = Coming(actor, place, next(self._order), [])
        return coming

    def latest(self, actors: Iterable[str]) -> Coming | None:
        """The last of what is on its way for these; when it is on disk, all is."""
        found = [self._coming[actor] for actor in actors if actor in self._coming]
        return max(found, key=lambda one: one.order, default=None)

    def took(self, coming: Coming, offset: int) -> Place | None:
        """It is on disk; where the actor lived before."""
        before = self._stored.get(coming.actor)
        self._new -= before is None
        self.note(coming.actor, coming.place.host, coming.place.token, offset)
        if self._coming.get(coming.actor) is coming:
            del self._coming[coming.actor]
        return before

    def refused(self, coming: Coming) -> None:
        """The log refuses everything that is on its way."""
        if self._coming.pop(coming.actor, None) is not None:
            self._new -= coming.actor not in self._stored

    # On disk.

    def note(self, actor: str, host: str, token: int, offset: int) -> None:
        """The log says so at this offset."""
        before = self._stored.pop(actor, None)
        if before is not None:
            self._on[before.host] -= 1
            if not self._on[before.host]:
                del self._on[before.host]
        host = sys.intern(host)
        self._stored[actor] = Place(host, token, offset)
        self._on[host] = self._on.get(host, 0) + 1
        self._dirty.add(actor)

    @property
    def defined_at(self) -> int | None:
        """An offset of the log from which on all of this is found; `None` if there is nothing."""
        return next((one.offset for one in self._stored.values()), None)

    def before(self, end: int) -> Iterator[tuple[str, Place]]:
        """What the log says only before this offset, and is not about to say again."""
        old = takewhile(lambda item: item[1].offset < end, self._stored.items())
        return (item for item in old if item[0] not in self._coming)

    # Across restarts.

    def take_rows(self, *, is_whole: bool) -> list[Row]:
        """What changed on disk since the last time, or all."""
        chosen: Iterable[str] = self._stored if is_whole else self._dirty
        rows = [self._row(actor) for actor in chosen]
        self._dirty.clear()
        return rows

    def _row(self, actor: str) -> Row:
        place = self._stored[actor]
        return (actor, place.host, place.token, place.offset)

    def restore(self, rows: Iterable[Row]) -> None:
        """Begin with a snapshot, in the order of the entries."""
        for row in rows:
            self.note(*row)
        self._dirty.clear()


# Which host an actor gets, by rendezvous hashing: it depends on the names alone, is spread evenly,
# and where hosts come and go only actors of these would choose otherwise.


def number_of(name: str) -> int:
    """A name as 64 bits that look like chance."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def preferred(actor: str, hosts: Iterable[tuple[int, str]]) -> str | None:
    """The host that suits an actor best, of numbers and names; `None` if there is none."""
    number = number_of(actor)
    best = max(((_mixed(number ^ one), name) for one, name in hosts), default=None)
    return None if best is None else best[1]


def _mixed(number: int) -> int:
    """Every bit of the result depends on every bit of the number (the end of MurmurHash3)."""
    number ^= number >> 33
    number = number * 0xFF51AFD7ED558CCD & _BITS_64
    number ^= number >> 33
    number = number * 0xC4CEB9FE1A85EC53 & _BITS_64
    return number ^ number >> 33
