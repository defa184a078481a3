"""`python -m bench.compare BEFORE`: the cost of a message now and in another checkout.

BEFORE is the folder of that checkout; it runs with its own interpreter and packages if it has been
set up, and else with this one's. Without BEFORE the hub is compared with itself without charging:
what counting frames and bytes costs, both without the native part. With `--native` it is compared
with itself without the native part.

Each round starts both hubs anew, because two processes of the same program differ by some percent
for as long as they live. They carry short loads by turns. Other work on the machine only adds to
the CPU time of a load, so of each hub the cheapest load counts. The result is the median of the
ratios of all rounds; above 1 a message costs more than before.
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
from bench.servers import HUB, PLAIN_HUB, Running, Server, ServerFailed, running
from bench.shapes import SHAPES
from bench.site import Site
from bench.tables import table

ROUNDS = 15
# Loads that a hub carries in a round, after one that warms it up.
LOADS = 4
SHARE = 0.1
RATIO_MAX = 1.03
COMPARED = (
    *("p2p-spread", "p2p-pipelined", "fanout-1000-w16", "ask-online", "durable-64x1"),
    *("durable-64x16", "consume", "rooms-http-256", "rooms-ws-256-w16"),
    *("accept", "accept-registered"),
)
# Counts the positions of its topic from the beginning, so a hub carries it once.
FRESH = ("consume",)
# Routed messages, which are read from sockets as fast as they are handled.
CHARGED = ("p2p-spread", "p2p-pipelined")
# Rates that are never reached, but charged.
UNREACHED = {
    "SIGNALHUB_MESSAGE_RATE": "1e9",
    "SIGNALHUB_LIMITS_FRAME_RATE": "1e9",
    "SIGNALHUB_LIMITS_BYTE_RATE": "1e12",
    "SIGNALHUB_LIMITS_BYTE_BURST": "1000000000000",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = invocation.parser(
        "bench.compare",
        __doc__.splitlines()[0],
        rounds=ROUNDS,
        only=f"of {', '.join(COMPARED)}",
        share="of the messages",
    )
    parser.add_argument("before", type=Path, nargs="?", help="the folder of another checkout")
    parser.add_argument(
        "--native", action="store_true", help="without the native part, and with it"
    )
    parser.set_defaults(share=SHARE)
    options = parser.parse_args(arguments)
    console = invocation.open_console()
    try:
        native.compile_loop()
        if options.before:
            before, now = from_checkout(options.before)
        else:
            before, now = native_and_not() if options.native else uncharged()
        names = list(COMPARED if options.before or options.native else CHARGED)
        if options.only:
            names = invocation.names_of(options.only, COMPARED, "load")
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
    for shape in shapes:
        try:
            pairs = in_turn(shape, before, now, rounds, generator, cores, options.share)
        except (LoadFailed, ServerFailed) as failure:
            console.print(f"{shape.name}: {failure}", markup=False, highlight=False)
            continue
        costs[shape.name] = pairs
        shown = ", ".join(f"{cost / base:.2f}" for base, cost in pairs)
        console.print(f"{shape.name}: {shown}", highlight=False)
    print_costs(console, shapes, costs)
    invocation.write(console, {"cpu_us": costs}, options.json, prefix="compare-")
    return 0 if all(costs.values()) else 1


def from_checkout(folder: Path) -> tuple[Server, Server]:
    """Return the hub of another checkout, and this one."""
    source = folder.resolve() / "src"
    if not (source / "signalhub").is_dir():
        raise ValueError(f"{folder} is not a checkout of the project")
    environment = HUB.environment | {"PYTHONPATH": str(source)}
    before = replace(HUB, name="before", environment=environment)
    python = folder.resolve() / ".venv" / "bin" / "python"
    if python.exists():
        # Its native part may be another one.
        before = replace(before, command=lambda data: [str(python), *HUB.command(data)[1:]])
    return before, HUB


def native_and_not() -> tuple[Server, Server]:
    """Return a hub without the native part, and one with it."""
    return PLAIN_HUB, replace(HUB, environment=HUB.environment | {"SIGNALHUB_NATIVE": "require"})


def uncharged() -> tuple[Server, Server]:
    """Return a hub that does not count what it reads, and one that does."""
    now = replace(PLAIN_HUB, environment=PLAIN_HUB.environment | UNREACHED)
    return replace(now, name="uncharged", command=_uncharged_command), now


def _uncharged_command(folder: Path) -> list[str]:
    program, _, _, *words = HUB.command(folder)
    return [program, "-m", "bench.uncharged", *words]


def in_turn(
    shape: Shape,
    before: Server,
    now: Server,
    rounds: int,
    generator: Generator,
    cores: machine.Cores,
    share: float,
) -> list[tuple[float, float]]:
    """Return CPU per message before and now, in each round."""

    def measured(one: Running, other: Running, loads: int) -> tuple[float, float]:
        costs: dict[str, list[float]] = {before.name: [], now.name: []}
        for number in range(loads):
            for target in (other, one) if number % 2 else (one, other):
                found: Measurement = shape.measure(Site(generator, target, share))
                costs[target.server.name].append(found.figures["cpu_us"])
        cold = 1 if loads > 1 else 0
        return min(costs[before.name][cold:]), min(costs[now.name][cold:])

    loads = 1 if shape.name in FRESH else 1 + LOADS
    pairs = []
    for number in range(rounds):
        # Who starts and is measured first may have better luck.
        first, second = (before, now) if number % 2 else (now, before)
        with running(first, cores) as one, running(second, cores) as other:
            pairs.append(measured(one, other, loads))
    return pairs


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
