"""Which of many hosts gets a new actor: rendezvous hashing.

The choice depends on names alone, is spread evenly, and only the actors of a host are affected when
it comes or goes. Of many hosts only some compete for an actor, those that follow it on a ring of
hashes, so that placing one costs the same however many there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Final

# A hash, and the name of the host.
Node = tuple[int, str]

RIVALS_MAX: Final = 64
_BITS_64: Final = 2**64 - 1


class Ring:
    """Hosts in the order of their hashes, each once."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, name: str) -> None:
        node = (number_of(name), name)
        if not self._has(node):
            insort(self.nodes, node)

    def remove(self, name: str) -> None:
        node = (number_of(name), name)
        if self._has(node):
            del self.nodes[bisect_left(self.nodes, node)]

    def _has(self, node: Node) -> bool:
        at = bisect_left(self.nodes, node)
        return at < len(self.nodes) and self.nodes[at] == node


def number_of(name: str) -> int:
    """A 64-bit hash of a name."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def preferred(
    actor: str, nodes: Sequence[Node], is_present: Callable[[str], bool] = lambda host: True
) -> str | None:
    """The preferred host of an actor among those of a ring; `None` if there are none."""
    number = number_of(actor)
    first = bisect_left(nodes, (number, ""))
    best, chosen, left = -1, None, RIVALS_MAX
    for at in chain(range(first, len(nodes)), range(first)):
        one, name = nodes[at]
        if not is_present(name):
            continue
        # The finalizer of MurmurHash3: every input bit affects every output bit.
        mixed = number ^ one
        mixed = (mixed ^ mixed >> 33) * 0xFF51AFD7ED558CCD & _BITS_64
        mixed = (mixed ^ mixed >> 33) * 0xC4CEB9FE1A85EC53 & _BITS_64
        mixed ^= mixed >> 33
        if mixed > best or (mixed == best and chosen is not None and name > chosen):
            best, chosen = mixed, name
        left -= 1
        if not left:
            break
    return chosen
