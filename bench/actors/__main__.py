"""`python -m bench.actors`: measure durable actors, Celery and a plain outbox.

Exit codes: 0 measured, whether or not goals are reached; 1 nothing could be measured; 2 it cannot
run here; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata

from bench import invocation, machine, subject_session
from bench.actors import alarms, calls, crowd, pairs
from bench.actors.goals import GOALS
from bench.subjects import Subject

ROUNDS = 5
PACKAGES = ("apsw", "celery", "kombu", "redis")
SUBJECTS: tuple[Subject, ...] = (calls.SUBJECT, pairs.SUBJECT, crowd.SUBJECT, alarms.SUBJECT)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = invocation.open_console()
    try:
        subjects = subject_session.choose(options.only, SUBJECTS)
        if shutil.which("taskset") is None:
            raise ValueError("taskset is missing; on Debian: apt-get install util-linux")
    except ValueError as error:
        return invocation.refuse(console, error)
    machine.raise_file_limit()
    conditions = machine.describe()
    conditions["actor_versions"] = {name: _version(name) for name in PACKAGES}
    if (os.cpu_count() or 1) < 2:
        console.print("one core only: the goals are for two")
    invocation.warn(console, str(conditions["disk"]))
    return subject_session.run(console, options, subjects, GOALS, conditions, "actors-")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(subject.name for subject in SUBJECTS)
    return invocation.parser(
        "bench.actors",
        __doc__.splitlines()[0],
        rounds=ROUNDS,
        only=f"of {names}",
        share="of calls and alarms, such as 0.01 to see whether a subject works",
    )


if __name__ == "__main__":
    sys.exit(main())
