"""Damaged segments; see `shards.py` for how many."""

from __future__ import annotations

import pytest

from tests.fuzz.segments import Decay, examine_damaged
from tests.fuzz.shards import SEGMENTS, TIMEOUT_S, attack


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", SEGMENTS.seeds)
def test_what_can_be_read_of_a_damaged_log_is_what_was_written(seed: int) -> None:
    attack(seed, SEGMENTS.cases, Decay(seed).next, examine_damaged)
