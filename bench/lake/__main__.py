"""`python -m bench.lake`: measure the pipeline and the lake it fills.

Exit codes: 0 measured, whatever the goals say; 1 nothing could be measured; 2 it cannot run here;
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType

from rich.console import Console

from bench import machine, native
from bench.lake import freshness, growth, landing, pages
from bench.lake.report import print_report, progress_line, to_json
from bench.lake.results import Plan, Results, Subject
from signalhub.pipeline.jars import java_problem

ROUNDS = 3
ROUNDS_QUICK = 1
QUIET_LOAD = 0.5
WIDTH = 150  # Of a report that goes to a file.
_interrupted = threading.Event()
PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow")

# Spark's processes of the others would be beside the hub, so freshness comes before them.
SUBJECTS: tuple[Subject, ...] = (
    freshness.SUBJECT,
    landing.SUBJECT,
    pages.SUBJECT,
    growth.SUBJECT,
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    try:
        subjects = _chosen(options.only)
        if problem := java_problem():
            raise ValueError(problem)
        native.compile_loop()
    except (native.NoCompiler, ValueError, OSError) as error:
        console.print(f"bench: {error}", style="red", markup=False, highlight=False)
        return 2
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, _interrupt)
    machine.raise_file_limit()
    conditions = machine.describe()
    conditions["lake_versions"] = {name: metadata.version(name) for name in PACKAGES}
    _warn(console, str(conditions["disk"]))

    rounds = options.runs or (ROUNDS_QUICK if options.quick else ROUNDS)
    results = Results(options.seed, options.share)
    say = console.print
    plan = Plan(rounds, options.share, random.Random(options.seed), lambda text: say(text))
    is_interrupted = not _perform(console, subjects, plan, results)
    if results.samples or results.failures:
        print_report(console, results, subjects)
        target = options.json or _default_target()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(to_json(results, conditions), indent=1) + "\n")
        console.print(f"written to {target}", highlight=False, soft_wrap=True)
    if is_interrupted:
        return 130
    return 0 if results.samples else 1


def _perform(console: Console, subjects: Sequence[Subject], plan: Plan, results: Results) -> bool:
    """Measure one subject after the other; one that fails does not end the session."""
    for subject in subjects:
        began = time.monotonic()
        try:
            for sample in subject.measure(plan):
                results.add(subject.name, sample)
                line = progress_line(subject, sample, time.monotonic() - began)
                console.print(line, markup=False, highlight=False, soft_wrap=True)
                began = time.monotonic()
        except KeyboardInterrupt:
            console.print("interrupted; what follows is what was measured until now")
            return False
        except Exception as failure:
            if _interrupted.is_set():
                return False
            reason = (str(failure).strip() or type(failure).__name__).splitlines()[0]
            results.failures.append(f"{subject.name}: {reason}")
            console.print(f"{subject.name} failed: {reason}", markup=False, highlight=False)
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    # What waits for Spark turns the exception into one of its own.
    _interrupted.set()
    raise KeyboardInterrupt


def _warn(console: Console, disk: str) -> None:
    if (os.cpu_count() or 1) < 2:
        console.print("one core only: the goals are for two")
    if (load := os.getloadavg()[0]) > QUIET_LOAD:
        console.print(f"load average {load:.2f}: other work is running, expect wide ranges")
    if disk in machine.IN_MEMORY:
        console.print(f"the data lies on {disk}, not on a disk: figures are better than they are")


def _chosen(only: str | None) -> list[Subject]:
    if only is None:
        return list(SUBJECTS)
    wanted = [name.strip() for name in only.split(",")]
    known = [subject.name for subject in SUBJECTS]
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"no subject is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [subject for subject in SUBJECTS if subject.name in wanted]


def _default_target() -> Path:
    return native.RESULTS / time.strftime("lake-%Y%m%dT%H%M%SZ.json", time.gmtime())


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
    names = ", ".join(subject.name for subject in SUBJECTS)
    parser = argparse.ArgumentParser(prog="bench.lake", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    parser.add_argument("--only", metavar="NAMES", help=f"of {names}")
    parser.add_argument("--runs", type=_count, metavar="N", help="rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result goes")
    parser.add_argument(
        "--share",
        type=_share,
        default=1.0,
        metavar="S",
        help="of entries and seconds, such as 0.01 to see whether a subject works",
    )
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="of the order, to repeat one"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
