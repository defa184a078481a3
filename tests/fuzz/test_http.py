"""Damaged requests; see `shards.py` for how many."""

from __future__ import annotations

import pytest

from tests.fuzz.corpus import FOUND_REQUESTS
from tests.fuzz.http import Asker, DoorTarget, read_requests
from tests.fuzz.shards import HTTP, ROOM_API, TIMEOUT_S, attack


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", HTTP.seeds)
def test_requests_are_the_same_however_they_are_cut(seed: int) -> None:
    attack(seed, HTTP.cases, Asker(seed).next, read_requests, FOUND_REQUESTS)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", ROOM_API.seeds)
async def test_a_door_answers_damaged_requests_and_forgets_them(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    target = DoorTarget()

    attack(seed, ROOM_API.cases, Asker(1_000 + seed).next, target.fire, FOUND_REQUESTS)

    assert not caplog.records, "nothing is worth a line in the log"
    assert target.statuses[200] > ROOM_API.cases // 50
    assert target.statuses[400] > ROOM_API.cases // 20
