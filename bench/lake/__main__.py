"""`python -m bench.lake`: measure the pipeline and the lake it fills.

Exit codes: 0 measured, whatever the goals say; 1 nothing could be measured; 2 it cannot run here;
130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import metadata
from types import FrameType

from rich.console import Console

from bench import invocation, machine, native
from bench.lake import freshness, growth, landing, pages
from bench.lake.report import print_report, progress_line, to_json
from bench.lake.results import Plan, Results, Subject
from signalhub.pipeline.jars import java_problem

ROUNDS = 3
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
    console = invocation.open_console()
    try:
        subjects = _chosen(options.only)
        if problem := java_problem():
            raise ValueError(problem)
        native.compile_loop()
    except (native.NoCompiler, ValueError, OSError) as error:
        return invocation.refuse(console, error)
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, _interrupt)
    machine.raise_file_limit()
    conditions = machine.describe()
    conditions["lake_versions"] = {name: metadata.version(name) for name in PACKAGES}
    if (os.cpu_count() or 1) < 2:
        console.print("one core only: the goals are for two")
    invocation.warn(console, str(conditions["disk"]))

    rounds = invocation.rounds_of(options)
    results = Results(options.seed, options.share)
    say = console.print
    plan = Plan(rounds, options.share, random.Random(options.seed), lambda text: say(text))
    is_interrupted = not _perform(console, subjects, plan, results)
    if results.samples or results.failures:
        print_report(console, results, subjects)
        invocation.write(console, to_json(results, conditions), options.json, "lake-")
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


def _chosen(only: str | None) -> list[Subject]:
    if only is None:
        return list(SUBJECTS)
    known = [subject.name for subject in SUBJECTS]
    wanted = invocation.names_of(only, known, "subject")
    return [subject for subject in SUBJECTS if subject.name in wanted]


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(subject.name for subject in SUBJECTS)
    return invocation.parser(
        "bench.lake",
        __doc__.splitlines()[0],
        rounds=ROUNDS,
        only=f"of {names}",
        share="of entries and seconds, such as 0.01 to see whether a subject works",
    )


if __name__ == "__main__":
    sys.exit(main())
