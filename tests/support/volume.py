"""How much the tests repeat: enough to notice a change in `make test`, all night in `make soak`.

Nothing is tested in `make soak` alone: it has more seeds, rounds, faults and time for all of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

# Variables that begin with SIGNALHUB are settings, and a hub refuses to start with unknown ones.
IS_SOAK = "SOAK" in os.environ
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


# How often the hub is killed, and the pipeline at random moments; `make soak` takes other numbers
# as `CYCLES` and `KILLS`.
KILLS = int(os.environ.get("SOAK_KILLS") or volume(FAULTS, 1_000))
PIPELINE_KILLS = int(os.environ.get("SOAK_PIPELINE_KILLS") or volume(0, 50))
