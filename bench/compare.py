"""`python -m bench.compare BEFORE`: the cost of a message now and in another checkout.

BEFORE is the folder of that checkout; it runs with this one's interpreter and packages. In every
round both hubs carry each load one after the other, in an order that changes between rounds, and
their CPU time is compared within the round, so that other load on the machine affects both. The
result is the median of the ratios of all rounds; above 1 a message costs more than before.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench import invocation, machine, native
from bench.figures import Measurement
from bench.load import Generator, LoadFailed
from bench.measuring import Shape
from bench.servers import HUB, Server, ServerFailed, running
from bench.shapes import SHAPES
from bench.site import Site
from bench.tables import table

ROUNDS = 9
RATIO_MAX = 1.03
COMPARED = (
    *("p2p-spread", "p2p-pipelined", "fanout-1000-w16", "ask-online", "durable-64x1"),
    *("durable-64x16", "consume", "rooms-http-256", "rooms-ws-256-w16"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = invocation.parser(
        "bench.compare",
        __doc__.splitlines()[0],
        rounds=ROUNDS,
        only=f"of {', '.join(COMPARED)}",
        share="of the messages",
    )
    parser.add_argument("before", type=Path, help="the folder of another checkout")
    options = parser.parse_args(arguments)
    console = invocation.open_console()
    try:
        native.compile_loop()
        before = from_checkout(options.before)
        names = invocation.names_of(options.only, COMPARED, "load") if options.only else COMPARED
    except (native.NoCompiler, ValueError) as error:
        return invocation.refuse(console, error)
    machine.raise_file_limit()
    cores = machine.choose_cores()
    invocation.warn(console, str(machine.describe()["disk"]))
    os.sched_setaffinity(0, {cores.generator})

    rounds = invocation.rounds_of(options)
    shapes = [shape for shape in SHAPES if shape.name in names]
    costs: dict[str, list[tuple[float, float]]] = {shape.name: [] for shape in shapes}
    generator = Generator()
    for number in range(rounds):
        for shape in shapes:
            pair = in_turn(shape, before, number, generator, cores, options.share)
            if isinstance(pair, str):
                console.print(f"{shape.name}: {pair}", markup=False, highlight=False)
                continue
            costs[shape.name].append(pair)
            shown = " → ".join(f"{cost:.2f}" for cost in pair)
            console.print(f"{number + 1}/{rounds} {shape.name}: {shown} µs", highlight=False)
    print_costs(console, shapes, costs)
    invocation.write(console, {"cpu_us": costs}, options.json, prefix="compare-")
    return 0 if all(costs.values()) else 1


def from_checkout(folder: Path) -> Server:
    """Return the hub of another checkout."""
    source = folder.resolve() / "src"
    if not (source / "signalhub").is_dir():
        raise ValueError(f"{folder} is not a checkout of the project")
    return replace(HUB, name="before", environment=HUB.environment | {"PYTHONPATH": str(source)})


def in_turn(
    shape: Shape,
    before: Server,
    number: int,
    generator: Generator,
    cores: machine.Cores,
    share: float,
) -> tuple[float, float] | str:
    """Return CPU per message before and now, measured directly after each other, or what failed."""
    costs: dict[str, float] = {}
    for server in (before, HUB) if number % 2 else (HUB, before):
        try:
            with running(server, cores) as target:
                measured: Measurement = shape.measure(Site(generator, target, share))
        except (LoadFailed, ServerFailed) as failure:
            return str(failure)
        costs[server.name] = measured.figures["cpu_us"]
    return costs[before.name], costs[HUB.name]


def print_costs(
    console: Console, shapes: Sequence[Shape], costs: dict[str, list[tuple[float, float]]]
) -> None:
    shown = table("CPU per message, µs")
    for heading in ("", "before", "now", "ratio", "range", ""):
        shown.add_column(heading, justify="left" if not heading else "right")
    for shape in shapes:
        pairs = costs[shape.name]
        if not pairs:
            continue
        ratios = [now / before for before, now in pairs]
        ratio = statistics.median(ratios)
        shown.add_row(
            shape.title,
            f"{statistics.median(before for before, _ in pairs):.2f}",
            f"{statistics.median(now for _, now in pairs):.2f}",
            f"{ratio:.3f}",
            f"{min(ratios):.2f}–{max(ratios):.2f}",
            "[green]ok" if ratio <= RATIO_MAX else "[red]costs more",
        )
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
