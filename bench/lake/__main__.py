"""`python -m bench.lake`: measure the pipeline and the lake it fills.

Exit codes: 0 measured, whether or not goals are reached; 1 nothing could be measured; 2 it cannot
run here; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from bench import invocation, machine, native, subject_session
from bench.lake import commands, freshness, growth, landing, pages
from bench.lake.goals import GOALS
from bench.subjects import Subject
from signalhub.pipeline.run import java

ROUNDS = 3
PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow")

# Freshness comes first: Spark processes of the others would run beside its hub.
SUBJECTS: tuple[Subject, ...] = (
    freshness.SUBJECT,
    commands.SUBJECT,
    landing.SUBJECT,
    pages.SUBJECT,
    growth.SUBJECT,
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = invocation.open_console()
    try:
        subjects = subject_session.choose(options.only, SUBJECTS)
        if problem := java.problem():
            raise ValueError(problem)
        native.compile_loop()
    except (native.NoCompiler, ValueError, OSError) as error:
        return invocation.refuse(console, error)
    machine.raise_file_limit()
    conditions = machine.describe()
    conditions["lake_versions"] = {name: metadata.version(name) for name in PACKAGES}
    if (os.cpu_count() or 1) < 2:
        console.print("one core only: the goals are for two")
    invocation.warn(console, str(conditions["disk"]))

    return subject_session.run(console, options, subjects, GOALS, conditions, "lake-")


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
