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

from tests.support.volume import IS_SOAK

T = TypeVar("T")

# What may be left after any number of cases, beside what is left after a quarter of them: caches
# that fill slowly, and the present hub. One object in ten cases is above it in `make soak`.
_BLOCKS_MAX = 3_000
_RESIDENT_BYTES_MAX = 64 * 2**20


# A shard of `make soak` takes up to a minute of a core that it may have to share.
TIMEOUT_S = 900


class Volume(NamedTuple):
    """The shards of one kind, and the cases of each."""

    shards: int
    cases: int

    @property
    def seeds(self) -> range:
        return range(self.shards)


def _volume(test: tuple[int, int], soak: tuple[int, int]) -> Volume:
    return Volume(*soak) if IS_SOAK else Volume(*test)


# In `make soak` they add up to 100 million. Behind each: cases per second of one busy core, as
# measured. All of them take about four hours of one core, and no shard more than a minute of it.
HTTP = _volume((2, 10_000), (100, 500_000))  # 21 000
UPGRADES = _volume((2, 20_000), (10, 1_000_000))  # 140 000
LISTS = _volume((1, 5_000), (20, 1_000_000))  # 47 000
TOKENS = _volume((2, 3_000), (100, 150_000))  # 4 900
FRAMES = _volume((2, 2_500), (100, 100_000))  # 2 300
ENVELOPES = _volume((8, 2_500), (60, 50_000))  # 5 000
ROOM_API = _volume((2, 1_500), (28, 50_000))  # 3 500
PARCELS = _volume((2, 300), (40, 10_000))  # 450
SEGMENTS = _volume((2, 200), (40, 5_000))  # 230

# Both ways side by side, in a million cases. In `make soak` a thousand times as many, beside the
# others: seven hours of a core.
TELLS = _volume((8, 125_000), (1_000, 1_000_000))  # 39 000
PUBLISHES = _volume((4, 8_000), (100, 200_000))  # 3 000
CROWD = _volume((2, 4_000), (100, 100_000))  # 2 000
ASKS = _volume((2, 30_000), (100, 200_000))  # 14 000


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
