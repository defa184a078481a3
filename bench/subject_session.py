"""A session of subjects: measure one after the other, report, store the result."""

from __future__ import annotations

import argparse
import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from rich.console import Console

from bench import invocation
from bench.subject_report import Goals, print_report, progress_line, to_json
from bench.subjects import Plan, Results, Subject

_interrupted = threading.Event()


def choose(only: str | None, subjects: Sequence[Subject]) -> list[Subject]:
    """Return those that `--only` names; raises `ValueError` for unknown names."""
    if only is None:
        return list(subjects)
    wanted = invocation.names_of(only, [subject.name for subject in subjects], "subject")
    return [subject for subject in subjects if subject.name in wanted]


def run(
    console: Console,
    options: argparse.Namespace,
    subjects: Sequence[Subject],
    goals: Goals,
    conditions: Mapping[str, object],
    prefix: str,
) -> int:
    """Measure and report; return the exit code."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, _interrupt)
    results = Results(options.seed, options.share)
    say = console.print
    rounds = invocation.rounds_of(options)
    plan = Plan(rounds, options.share, random.Random(options.seed), lambda text: say(text))
    is_interrupted = not _perform(console, subjects, plan, results)
    if results.samples or results.failures:
        print_report(console, results, subjects, goals)
        facts = to_json(results, conditions, subjects, goals)
        invocation.write(console, facts, options.json, prefix)
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
            console.print("interrupted; these are the results so far")
            return False
        except Exception as failure:
            if _interrupted.is_set():
                return False
            reason = (str(failure).strip() or type(failure).__name__).splitlines()[0]
            results.failures.append(f"{subject.name}: {reason}")
            console.print(f"{subject.name} failed: {reason}", markup=False, highlight=False)
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Code that waits for Spark turns the exception into another one.
    _interrupted.set()
    raise KeyboardInterrupt
