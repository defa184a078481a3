"""One life of hosts with durable actors: what the seed decides about the world around them."""

from __future__ import annotations

import os
from random import Random

from signalhub.actors.api.config import DurableConfig
from tests.simulation.actor_checkers import check
from tests.simulation.actor_workload import Worker, Workload
from tests.simulation.actor_world import ActorWorld, Faults, MakeKernel, Shelf

SHELF = Shelf()
WAVE_MS = 8_000
CHAOS_MS = 25_000
# With a short memory, the second wave comes when tombstones of the first can be gone.
GAP_MS = 260_000


class ActorRun:
    """A world and its workload."""

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults | None = None,
        make_kernel: MakeKernel | None = None,
        folder: str | os.PathLike[str] | None = None,
        actors: int | None = None,
        calls: int | None = None,
        moves: int | None = None,
    ) -> None:
        """What is not given is left to the seed."""
        self.seed = seed
        chance = Random(-1 - seed)
        self.is_forgetful = chance.random() < 0.15
        self._waves_ms = (0, GAP_MS) if self.is_forgetful else (0,)
        self.chaos_ms = CHAOS_MS + (GAP_MS if self.is_forgetful else 0)
        self.world = ActorWorld(
            seed,
            [Worker],
            hosts=chance.choice([2, 2, 3]),
            faults=faults or self._faults(chance),
            config=self._config(chance),
            window_ms=20_000 if self.is_forgetful else 300_000,
            shelf=SHELF,
            folder=folder,
            make_kernel=make_kernel,
        )
        self.workload = Workload(self.world)
        self.workload.fill(
            actors=actors or chance.choice([2, 2, 2, 3]),
            calls=calls or 8,
            lasting_ms=WAVE_MS,
            waves_ms=self._waves_ms,
        )
        for number, name in enumerate(self.workload.names):
            if chance.random() < 0.6:
                self.world.hub.place(name, self.world.hosts[number % len(self.world.hosts)].name)
        self._disturb(chance, moves)

    def _faults(self, chance: Random) -> Faults:
        jump = 0.3 if not self.is_forgetful and chance.random() < 0.2 else 0.0
        if chance.random() < 0.4:
            return Faults(jump=jump)
        # What hosts only know in memory matters more where they live longer.
        point = chance.choice(["handler", "recovery", "commit", "committed", "performing"])
        return Faults(crash=0.04, only_at=point, statement=0.01, jump=jump)

    def _config(self, chance: Random) -> DurableConfig:
        batches = chance.choice([(100, 100), (100, 100), (1, 3), (3, 2)])
        # Lanes that recover soon are more often found ready, those that do not more often full.
        timeout_ms, base_ms, cap_ms = chance.choice([(5_000, 1_000, 10_000), (800, 200, 2_000)])
        return DurableConfig(
            outbound_timeout_ms=timeout_ms,
            retry_base_ms=base_ms,
            retry_cap_ms=cap_ms,
            outbound_batch_size=batches[0],
            inbound_batch_size=batches[1],
            max_request_age_ms=60_000 if self.is_forgetful else 1_800_000,
            tombstone_ttl_ms=200_000 if self.is_forgetful else 86_400_000,
        )

    def _disturb(self, chance: Random, moves: int | None) -> None:
        world = self.world
        if chance.random() < 0.3:
            world.after(chance.randrange(WAVE_MS), world.outage, chance.randrange(1_000, 15_000))
        if moves is None:
            moves = chance.choice([0, 0, 0, 2, 4, 8])
        for _ in range(moves):
            at_ms = chance.choice(self._waves_ms) + chance.randrange(12_000)
            world.after(at_ms, world.move, chance.choice(self.workload.names))
        if self.is_forgetful:
            for host in world.hosts:
                for _ in range(4):
                    world.after(GAP_MS + chance.randrange(CHAOS_MS), world.sweep, host)

    def run(self) -> None:
        """Everything happens, and is checked; a failure names the seed."""
        try:
            self.world.run(self.chaos_ms)
            check(self.world, self.workload)
        except AssertionError as error:
            error.add_note(f"seed {self.seed}, step {self.world.steps}")
            raise
