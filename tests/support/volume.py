"""How much the tests repeat: enough to notice a change in `make test`, all night in `make soak`.

Nothing is tested in `make soak` alone: it has more seeds, rounds, faults and time for all of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

IS_SOAK = "SIGNALHUB_SOAK" in os.environ
SEEDS = 200
FAULTS = 20


def volume(test: int, soak: int) -> int:
    """How many, in `make test` and in `make soak`."""
    return soak if IS_SOAK else test


def thinned(rows: Sequence[T], most: int = FAULTS) -> Sequence[T]:
    """All rows in `make soak`; otherwise at most `most` of them, evenly spread."""
    if IS_SOAK or len(rows) <= most:
        return rows
    return [rows[at * len(rows) // most] for at in range(most)]


# How often the hub is killed. `CYCLES` of `make soak` says otherwise.
KILLS = int(os.environ.get("SIGNALHUB_CHAOS_CYCLES") or volume(FAULTS, 1_000))
