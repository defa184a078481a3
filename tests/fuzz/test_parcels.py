"""Damaged parcels and messages of other hosts; see `shards.py` for how much of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.fuzz.corpus import FOUND_PARCELS
from tests.fuzz.parcels import HostTarget, Shipper
from tests.fuzz.shards import PARCELS, TIMEOUT_S, attack


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", PARCELS.seeds)
def test_damaged_parcels_harm_no_other_actor_and_stop_no_host(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "signalhub.actors")

    attack(seed, PARCELS.cases, Shipper(seed).next, HostTarget(tmp_path).fire, FOUND_PARCELS)
