"""Whole days of a hub's life, one per seed; a failure names the seed that shows it again."""

from __future__ import annotations

import pytest

from tests.simulation.events import history
from tests.simulation.world import World
from tests.support.volume import SEEDS, volume

WORLDS = volume(SEEDS, 1_000)
STEPS = 700


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_seeded_world_keeps_every_promise(seed: int) -> None:
    world = World(seed)

    try:
        world.run(STEPS)
    except AssertionError as error:
        error.add_note(f"seed {seed}, step {world.steps}")
        raise


def test_the_same_seed_gives_the_same_history() -> None:
    first = history(World(1), STEPS)

    assert len(first) > STEPS // 2
    assert history(World(1), STEPS) == first
    assert history(World(2), STEPS) != first


def test_the_worlds_are_worth_living_in() -> None:
    """Rare things must not be so rare that the checks never see them."""
    worlds = [World(seed) for seed in range(20)]
    for world in worlds:
        world.run(STEPS)

    tallies = [world.shell.tally for world in worlds]
    assert sum(world.elapsed_ms for world in worlds) > 20 * 0.5 * 86_400_000
    assert max(tally.connections_opened for tally in tallies) > 200
    assert sum(world.asks.repeats for world in worlds) > 50
    assert sum(tally.duplicates for tally in tallies) > 50
    assert sum(tally.expired_asks for tally in tallies) > 50
    assert sum(tally.registry_refused for tally in tallies) > 50
    assert sum(tally.rate_limited for tally in tallies) > 20
