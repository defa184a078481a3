"""`python -m bench`: put the same load on Signal Hub and its peers, and print the ratios.

Exit codes: 0 measured, whatever the goals say; 1 no run succeeded; 2 the generator cannot run here;
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from rich.console import Console

from bench import machine, native
from bench.figures import Measurement
from bench.measuring import Shape
from bench.report import print_report, progress_line, to_json
from bench.session import Run, Session, perform, plan, without_absent
from bench.shapes import SHAPES

ROUNDS = 5
ROUNDS_QUICK = 1
QUIET_LOAD = 0.5
WIDTH = 150  # Of a report that goes to a file.


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    try:
        native.compile_loop()
        shapes = _chosen(options.only)
    except (native.NoCompiler, ValueError) as error:
        console.print(f"bench: {error}", style="red", markup=False, highlight=False)
        return 2
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, _interrupt)
    machine.raise_file_limit()
    cores = machine.choose_cores()
    conditions = machine.describe() | {"pinned": asdict(cores)}
    _warn(console, cores, str(conditions["disk"]))
    os.sched_setaffinity(0, {cores.generator})

    rounds = options.runs or (ROUNDS_QUICK if options.quick else ROUNDS)
    cells, absent = without_absent(shapes)
    session = Session(options.seed, options.share, absent=absent)
    runs = plan(cells, rounds, options.seed)
    console.print(f"{len(runs)} runs in {rounds} shuffled round(s), seed {options.seed}")
    is_interrupted = not _perform(console, runs, session, cores)
    if session.measurements or session.failures:
        print_report(console, session, shapes)
        target = options.json or _default_target()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(to_json(session, conditions), indent=1) + "\n")
        console.print(f"written to {target}", highlight=False)
    if is_interrupted:
        return 130
    return 0 if session.measurements else 1


def _perform(console: Console, runs: Sequence[Run], session: Session, cores: machine.Cores) -> bool:
    def progress(
        number: int, total: int, run: Run, result: Measurement | str, took_s: float
    ) -> None:
        line = progress_line(number, total, run, result, took_s)
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        perform(runs, session, cores, progress)
    except KeyboardInterrupt:
        console.print("interrupted; what follows is what was measured until now")
        return False
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _warn(console: Console, cores: machine.Cores, disk: str) -> None:
    if not cores.are_apart:
        console.print("one core only: server and generator share it, so figures are rough")
    if (load := os.getloadavg()[0]) > QUIET_LOAD:
        console.print(f"load average {load:.2f}: other work is running, expect wide ranges")
    if disk in machine.IN_MEMORY:
        console.print(f"the data lies on {disk}, not on a disk: durable figures say nothing")


def _chosen(only: str | None) -> list[Shape]:
    """The shapes of the named groups, or those named themselves."""
    if only is None:
        return list(SHAPES)
    wanted = [name.strip() for name in only.split(",")]
    known = {shape.group for shape in SHAPES} | {shape.name for shape in SHAPES}
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"no shape is called {', '.join(unknown)}; there are {_list(known)}")
    return [shape for shape in SHAPES if shape.group in wanted or shape.name in wanted]


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _default_target() -> Path:
    return native.RESULTS / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime())


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError("from 1 to 100")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("above 0, up to 1")
    return value


def _parser() -> argparse.ArgumentParser:
    groups = ", ".join(dict.fromkeys(shape.group for shape in SHAPES))
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--only", metavar="NAMES", help=f"of {groups}, or single shapes")
    parser.add_argument("--runs", type=_count, metavar="N", help="rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result goes")
    parser.add_argument(
        "--share",
        type=_share,
        default=1.0,
        metavar="S",
        help="of the messages and connections, such as 0.01 to see whether a shape works",
    )
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="of the shuffle, to repeat one"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
