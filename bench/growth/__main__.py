"""`python -m bench.growth`: measure what the hub costs as its work grows.

Exit codes: 0 measured, whether or not goals are reached; 1 nothing could be measured; 2 it cannot
run here; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import invocation, machine, native, subject_session
from bench.figures import Spread
from bench.growth import connections, lag, logs, patterns, rooms, subscriptions, topics
from bench.growth.goals import GOALS
from bench.growth.plot import Plot, Point, svg
from bench.subjects import Subject

ROUNDS = 3
SUBJECTS: tuple[Subject, ...] = (
    connections.SUBJECT,
    topics.SUBJECT,
    subscriptions.SUBJECT,
    patterns.SUBJECT,
    rooms.SUBJECT,
    lag.SUBJECT,
    logs.SUBJECT,
)
PLOTS: dict[str, tuple[Plot, ...]] = {
    connections.NAME: connections.PLOTS,
    topics.NAME: topics.PLOTS,
    subscriptions.NAME: subscriptions.PLOTS,
    patterns.NAME: patterns.PLOTS,
    rooms.NAME: rooms.PLOTS,
    lag.NAME: lag.PLOTS,
    logs.NAME: logs.PLOTS,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = invocation.open_console()
    if options.draw:
        for drawn in draw(options.draw, options.plots or Path()):
            console.print(drawn, highlight=False)
        return 0
    try:
        subjects = subject_session.choose(options.only, SUBJECTS)
        native.compile_loop()
    except (native.NoCompiler, ValueError) as error:
        return invocation.refuse(console, error)
    os.environ["SIGNALHUB_NATIVE"] = options.native
    machine.raise_file_limit()
    conditions = machine.describe() | {"native": options.native}
    invocation.warn(console, str(conditions["disk"]))
    options.json = options.json or native.RESULTS / time.strftime(
        "growth-%Y%m%dT%H%M%SZ.json", time.gmtime()
    )
    code = subject_session.run(console, options, subjects, GOALS, conditions, "growth-")
    if options.plots and code != 1:
        draw([options.json], options.plots)
    return code


def draw(files: Sequence[Path], folder: Path) -> list[str]:
    """Draw what was measured, as stored in files, and return the names of the plots."""
    found: dict[str, dict[str, list[Point]]] = {}
    for file in files:
        for result in json.loads(file.read_text())["results"]:
            figures = {name: Spread(**one) for name, one in result["figures"].items()}
            size = figures.pop("size").median
            of_subject = found.setdefault(result["subject"], {})
            for name, value in figures.items():
                of_subject.setdefault(name, []).append(Point(size, value))
    drawn = []
    folder.mkdir(parents=True, exist_ok=True)
    for subject, points in found.items():
        for plot in PLOTS[subject]:
            if any(line.figure in points for line in plot.lines):
                (folder / f"{plot.name}.svg").write_text(svg(plot, points))
                drawn.append(plot.name)
    return drawn


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(subject.name for subject in SUBJECTS)
    parser = invocation.parser(
        "bench.growth",
        __doc__.splitlines()[0],
        rounds=ROUNDS,
        only=f"of {names}",
        share="of sizes and messages, such as 0.001 to see whether a subject works",
    )
    parser.add_argument(
        "--native", choices=("auto", "off", "require"), default="auto", help="the native part"
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="folder for plots (SVG)")
    parser.add_argument(
        "--draw", type=Path, nargs="+", metavar="FILE", help="plot stored results, measure nothing"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
