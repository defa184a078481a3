"""`python -m bench`: put the same load on Signal Hub and its peers, and print the ratios.

Exit codes: 0 measured, whether or not goals are reached; 1 no run succeeded; 2 the generator cannot
run here; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from types import FrameType

from rich.console import Console

from bench import invocation, machine, native
from bench.figures import Measurement
from bench.measuring import Shape
from bench.report import print_report, progress_line, to_json
from bench.session import Run, Session, perform, plan, without_absent
from bench.shapes import SHAPES

ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = invocation.open_console()
    try:
        native.compile_loop()
        shapes = _chosen(options.only)
    except (native.NoCompiler, ValueError) as error:
        return invocation.refuse(console, error)
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, _interrupt)
    machine.raise_file_limit()
    cores = machine.choose_cores()
    conditions = machine.describe() | {"pinned": asdict(cores)}
    if not cores.are_apart:
        console.print("one core only: server and generator share it, so figures are rough")
    invocation.warn(console, str(conditions["disk"]))
    os.sched_setaffinity(0, {cores.generator})

    rounds = invocation.rounds_of(options)
    cells, absent = without_absent(shapes)
    session = Session(options.seed, options.share, absent=absent)
    runs = plan(cells, rounds, options.seed)
    console.print(f"{len(runs)} runs in {rounds} shuffled round(s), seed {options.seed}")
    is_interrupted = not _perform(console, runs, session, cores)
    if session.measurements or session.failures:
        print_report(console, session, shapes)
        invocation.write(console, to_json(session, conditions), options.json)
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
        console.print("interrupted; these are the results so far")
        return False
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _chosen(only: str | None) -> list[Shape]:
    """Return the shapes of the named groups, or the named shapes."""
    if only is None:
        return list(SHAPES)
    known = {shape.group for shape in SHAPES} | {shape.name for shape in SHAPES}
    wanted = invocation.names_of(only, sorted(known), "shape")
    return [shape for shape in SHAPES if shape.group in wanted or shape.name in wanted]


def _parser() -> argparse.ArgumentParser:
    groups = ", ".join(dict.fromkeys(shape.group for shape in SHAPES))
    return invocation.parser(
        "bench",
        __doc__.splitlines()[0],
        rounds=ROUNDS,
        only=f"of {groups}, or single shapes",
        share="of the messages and connections, such as 0.01 to see whether a shape works",
    )


if __name__ == "__main__":
    sys.exit(main())
