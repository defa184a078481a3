"""How the cases are divided, run and repeated, and a watch over the memory they leave behind.

`make soak` runs 100 million cases. A shard is one seed, one test and one process, so they can be
divided between machines with `ARGS='-k "http and 17"'`. A failure names the seed, the number of the
case and the input; inputs that once did harm are in `corpus.FOUND` and come first in every shard.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from tests.support.volume import volume

T = TypeVar("T")

# What may be left after any number of cases, beside what is left after a quarter of them: caches
# that fill slowly. A leak of one object per case is far above it in `make soak`.
_BLOCKS_MAX = 20_000
_RESIDENT_BYTES_MAX = 64 * 2**20


class Volume(NamedTuple):
    """The shards of one kind, and the cases of each."""

    shards: int
    cases: int

    @property
    def seeds(self) -> range:
        return range(self.shards)


# The second one is for `make soak`. Together: 100 million.
ENVELOPES = Volume(volume(8, 100), volume(1_500, 50_000))
FRAMES = Volume(volume(2, 60), volume(5_000, 250_000))
HTTP = Volume(volume(2, 80), volume(10_000, 500_000))
ROOM_API = Volume(volume(2, 40), volume(1_500, 50_000))
TOKENS = Volume(volume(2, 80), volume(5_000, 400_000))
LISTS = Volume(volume(1, 20), volume(3_000, 200_000))
PARCELS = Volume(volume(2, 40), volume(400, 25_000))
SEGMENTS = Volume(volume(2, 40), volume(150, 25_000))
EVERY_KIND = (ENVELOPES, FRAMES, HTTP, ROOM_API, TOKENS, LISTS, PARCELS, SEGMENTS)


def attack(
    seed: int,
    cases: int,
    make: Callable[[], T],
    hit: Callable[[T], object],
    found: Iterable[T] = (),
) -> None:
    """Make and use that many cases; nothing may grow with their number."""
    print(f"seed {seed}")
    for number, case in enumerate(found):
        _try(hit, case, f"found case {number}")
    begun: tuple[int, int] | None = None
    for number in range(cases):
        if number == cases // 4:
            begun = _memory()
        case = make()
        _try(hit, case, f"seed {seed}, case {number}")
    if begun is not None:
        blocks, size = _memory()
        assert blocks - begun[0] < _BLOCKS_MAX, "objects are left behind"
        assert size - begun[1] < _RESIDENT_BYTES_MAX, "memory is left behind"


def _try(hit: Callable[[T], object], case: T, name: str) -> None:
    try:
        hit(case)
    except BaseException as error:
        error.add_note(f"{name}: {case!r:.8000}")
        raise


def _memory() -> tuple[int, int]:
    """Objects that are alive, and the most memory this process ever had."""
    gc.collect()
    return sys.getallocatedblocks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
