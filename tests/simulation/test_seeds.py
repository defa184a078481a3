"""Seeded lives of a hub; a failure names the seed that shows it again."""

from __future__ import annotations

import pytest

from tests.simulation.durable_world import DurableWorld
from tests.simulation.events import history
from tests.simulation.world import World
from tests.support.volume import SEEDS, volume

STEPS = {World: 700, DurableWorld: 400}
LIVES = [
    *((World, seed) for seed in range(volume(SEEDS // 2, 1_000))),
    *((DurableWorld, seed) for seed in range(volume(SEEDS // 4, 1_000))),
]


@pytest.mark.parametrize(("world_type", "seed"), LIVES)
def test_a_seeded_world_keeps_every_promise(
    world_type: type[World | DurableWorld], seed: int
) -> None:
    world = world_type(seed)

    try:
        world.run(STEPS[world_type])
    except AssertionError as error:
        error.add_note(f"seed {seed}, step {world.steps}")
        raise


@pytest.mark.parametrize("world_type", STEPS)
def test_the_same_seed_gives_the_same_history(world_type: type[World | DurableWorld]) -> None:
    steps = STEPS[world_type]
    first = history(world_type(1), steps)

    assert len(first) > steps // 2
    assert history(world_type(1), steps) == first
    assert history(world_type(2), steps) != first


def test_rare_things_are_seen_often_enough() -> None:
    worlds = [World(seed) for seed in range(20)]
    for world in worlds:
        world.run(STEPS[World])

    tallies = [world.shell.tally for world in worlds]
    assert sum(world.elapsed_ms for world in worlds) > 20 * 0.5 * 86_400_000
    assert max(tally.connections_opened for tally in tallies) > 200
    assert sum(world.asks.repeats for world in worlds) > 50
    assert sum(tally.duplicates for tally in tallies) > 50
    assert sum(tally.expired_asks for tally in tallies) > 50
    assert sum(tally.registry_refused for tally in tallies) > 50
    assert sum(tally.rate_limited for tally in tallies) > 20


def test_rare_things_of_the_durable_part_are_seen_often_enough() -> None:
    worlds = [DurableWorld(seed) for seed in range(15)]
    for world in worlds:
        world.run(STEPS[DurableWorld])

    assert sum(world.crashes for world in worlds) > 20
    assert sum(len(world.acceptance.accepted) for world in worlds) > 300
    assert sum(world.acceptance.repeats for world in worlds) > 50
    assert sum(world.copies.redelivered for world in worlds) > 300
    assert sum(len(world.copies.confirmed) for world in worlds) > 500
    assert sum(len(world.disk.letters) for world in worlds) > 50
    assert sum(world.shell.tally.append_refused for world in worlds) > 20
