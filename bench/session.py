"""A whole session: every shape on every server, in rounds of random order.

Interleaving spreads other load on the machine evenly over all servers. A failed run is reported and
left out; it does not end the session.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.figures import Measurement, Summary, summarise
from bench.load import Generator, LoadFailed
from bench.machine import Cores
from bench.measuring import Shape
from bench.servers import Server, ServerFailed, running
from bench.site import Site

Key = tuple[str, str]  # The names of a shape and a server.


@dataclass(frozen=True, slots=True)
class Run:
    """One cell of the plan."""

    shape: Shape
    server: Server


@dataclass(slots=True)
class Session:
    """What was measured so far."""

    seed: int
    share: float = 1.0
    measurements: dict[Key, list[Measurement]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def summaries(self) -> dict[Key, Summary]:
        return {key: summarise(runs) for key, runs in self.measurements.items()}


def without_absent(shapes: Sequence[Shape]) -> tuple[list[Run], list[str]]:
    """Return what can be measured here, and the names of servers that are not installed."""
    cells = [Run(shape, server) for shape in shapes for server in shape.servers]
    present = [cell for cell in cells if cell.server.is_installed]
    absent = dict.fromkeys(cell.server.name for cell in cells if not cell.server.is_installed)
    return present, list(absent)


Progress = Callable[[int, int, Run, Measurement | str, float], None]


def plan(cells: Sequence[Run], rounds: int, seed: int) -> list[Run]:
    """Return every cell once per round, shuffled within the round."""
    order = random.Random(seed)
    runs: list[Run] = []
    for _ in range(rounds):
        runs += order.sample(cells, len(cells))
    return runs


def perform(runs: Sequence[Run], session: Session, cores: Cores, progress: Progress) -> None:
    """Add run after run to the session, so that an interrupted one keeps its results."""
    generator = Generator()
    for number, run in enumerate(runs, start=1):
        started = time.monotonic()
        result = _measure(run, generator, cores, session.share)
        if isinstance(result, Measurement):
            key = (run.shape.name, run.server.name)
            session.measurements.setdefault(key, []).append(result)
        else:
            session.failures.append(f"{run.shape.name} on {run.server.name}: {result}")
        progress(number, len(runs), run, result, time.monotonic() - started)


def _measure(run: Run, generator: Generator, cores: Cores, share: float) -> Measurement | str:
    try:
        with running(run.server, cores) as target:
            return run.shape.measure(Site(generator, target, share))
    except (LoadFailed, ServerFailed) as failure:
        return str(failure)
