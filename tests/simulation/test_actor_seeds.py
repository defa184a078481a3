"""Lives of hosts with durable actors; a failure names the seed that shows it again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from signalhub.actors.api.config import DurableConfig
from signalhub.actors.move import leave
from tests.simulation.actor_checkers import Notes, check
from tests.simulation.actor_runs import SHELF, ActorRun
from tests.simulation.actor_workload import Worker, Workload
from tests.simulation.actor_world import ActorWorld, Faults
from tests.support.volume import SEEDS, volume

CHUNK = 100
CHUNKS = volume(1, 40)
# The lives before are led where it is shown that they are worth living.
FIRST_SEED = SEEDS
# Far from the seeds of the chunks, for the few lives that are led differently.
OTHER_SEEDS = 1_000_000
MOVED_LIVES = volume(20, 60)
CALLS_PER_PAIR = 1_000


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_calls_between_crashing_hosts_have_their_effect_once_and_in_order(chunk: int) -> None:
    for seed in range(FIRST_SEED + chunk * CHUNK, FIRST_SEED + (chunk + 1) * CHUNK):
        ActorRun(seed).run()


@pytest.mark.parametrize("seed", range(OTHER_SEEDS, OTHER_SEEDS + 3))
def test_hosts_that_open_their_files_anew_after_a_crash_lose_nothing(
    seed: int, tmp_path: Path
) -> None:
    run = ActorRun(seed, folder=tmp_path)

    run.run()

    for host in run.world.hosts:
        host.store.close()


def test_actors_that_move_in_many_parts_arrive_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leave, "PART_BYTES", 700)
    moves = 0

    for seed in range(OTHER_SEEDS, OTHER_SEEDS + MOVED_LIVES):
        run = ActorRun(seed, moves=12)
        run.run()
        moves += sum(place.token - 1 for place in run.world.hub.places.values())

    assert moves > MOVED_LIVES


@pytest.mark.parametrize("seed", range(1, 1 + volume(1, 2)))
def test_a_thousand_calls_per_pair_keep_their_order_under_loss_and_duplication(seed: int) -> None:
    # Crashes are rarer here: a turn has a hundred handlers, and each of them is an occasion.
    faults = Faults(crash=0.006, statement=0.02, storage=0.0005)
    config = DurableConfig(outbound_batch_size=5, inbound_batch_size=40)
    world = ActorWorld(seed, [Worker], faults=faults, config=config, shelf=SHELF)
    workload = Workload(world)
    pairs = [("worker/0", "worker/1"), ("worker/1", "worker/0")]
    for number, (caller, dest) in enumerate(pairs):
        world.hub.place(caller, world.hosts[number].name)
        for at in range(CALLS_PER_PAIR // 20):
            plans = [workload.plan("call", target=dest, timeout=None) for _ in range(20)]
            workload.have(at * 400, caller, plans)

    world.run(60_000)

    check(world, workload)
    notes = Notes(world)
    assert Counter(notes.heard.values()) == {"value": 2 * CALLS_PER_PAIR}
    assert world.counts["lost"] > 15
    assert world.crashes


def test_the_same_seed_gives_the_same_life() -> None:
    def life(seed: int) -> tuple[object, object]:
        run = ActorRun(seed)
        run.run()
        return run.world.history, Notes(run.world).of

    first = life(7)

    assert life(8) != first
    assert life(7) == first


def test_the_lives_are_worth_living() -> None:
    """Rare things must not be so rare that the checks never see them."""
    seen: Counter[str] = Counter()
    crashes: Counter[str] = Counter()
    for seed in range(200):
        run = ActorRun(seed)
        run.run()
        world, notes = run.world, Notes(run.world)
        crashes.update(world.crashes)
        seen.update(world.counts)
        seen.update(notes.heard.values())
        seen.update(notes.stopped.values())
        for one in notes.seen.values():
            seen.update(one)
        seen["repeats"] += world.hub.repeats
        seen["moves"] += sum(place.token - 1 for place in world.hub.places.values())

    for point in ("handler", "recovery", "commit", "committed", "performing"):
        assert crashes[point] > 50, f"hardly anybody crashed at {point}"
    assert crashes["timeout"] > 2
    assert crashes["statement"] + crashes["start"] > 20
    for what in ("value", "ValueError", "timeout-no", "timeout-unknown", "withdrawn", "answered"):
        assert seen[what] > 100, f"hardly any call was {what}"
    for what in ("rang", "repeats", "broken", "failed", "lost", "not_found"):
        assert seen[what] > 50, f"hardly anything was {what}"
    for what in ("outages", "jumps", "moves", "purged", "suppressed"):
        assert seen[what] > 10, f"there were hardly any {what}"
