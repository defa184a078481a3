"""A request ends exactly once, and reaches its handler once, whatever happens on the way."""

from __future__ import annotations

from collections import Counter

import pytest

from signalhub.client.protocol.effects import Failed
from tests.simulation.exchange_world import ExchangeWorld
from tests.support.volume import volume

GROUPS = 6
RUNS = volume(150, 10_000)


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_request_ends_exactly_once(group: int) -> None:
    for seed in range(group, RUNS, GROUPS):
        world = ExchangeWorld(seed)
        try:
            world.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_all_ends_are_seen() -> None:
    ends: Counter[str] = Counter()
    late = restarts = 0
    for seed in range(50):
        world = ExchangeWorld(seed)
        world.run()
        late += world.asker.protocol.exchanges.late_replies
        restarts += world.restarts
        for (end,) in world.asker.ends.values():
            ends[end.error.code if isinstance(end, Failed) else type(end).__name__] += 1

    assert ends.keys() >= {
        *("Replied", "Concluded", "no_reply", "recipient_left"),
        *("unknown_actor", "outcome_unknown", "unavailable"),
    }
    assert min(late, restarts) > 5
