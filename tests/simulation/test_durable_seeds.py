"""Lives of a hub that keeps what it accepts; a failure names the seed that shows it again."""

from __future__ import annotations

import pytest

from tests.simulation.durable_world import DurableWorld
from tests.simulation.events import history
from tests.support.volume import SEEDS, volume

WORLDS = volume(SEEDS // 2, 1_000)
STEPS = 400


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_crashing_hub_keeps_what_it_accepted(seed: int) -> None:
    world = DurableWorld(seed)

    try:
        world.run(STEPS)
    except AssertionError as error:
        error.add_note(f"seed {seed}, step {world.steps}")
        raise


def test_the_same_seed_gives_the_same_history() -> None:
    first = history(DurableWorld(1), STEPS)

    assert len(first) > STEPS // 2
    assert history(DurableWorld(1), STEPS) == first
    assert history(DurableWorld(2), STEPS) != first


def test_the_worlds_are_worth_living_in() -> None:
    """Rare things must not be so rare that the checks never see them."""
    worlds = [DurableWorld(seed) for seed in range(15)]
    for world in worlds:
        world.run(STEPS)

    assert sum(world.crashes for world in worlds) > 20
    assert sum(len(world.acceptance.accepted) for world in worlds) > 300
    assert sum(world.acceptance.repeats for world in worlds) > 50
    assert sum(world.copies.redelivered for world in worlds) > 300
    assert sum(len(world.copies.confirmed) for world in worlds) > 500
    assert sum(len(world.disk.letters) for world in worlds) > 50
    assert sum(world.shell.tally.append_refused for world in worlds) > 20
