"""Options and messages that all benchmark programs share."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from bench import machine, native

ROUNDS_QUICK = 1
QUIET_LOAD = 0.5
WIDTH = 150  # The width of a report that goes to a file.


def open_console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def parser(
    program: str, about: str, *, rounds: int, only: str, share: str
) -> argparse.ArgumentParser:
    """Return a parser with the common options; `only` and `share` complete their help texts."""
    made = argparse.ArgumentParser(prog=program, description=about)
    made.add_argument("--quick", action="store_true", help=f"one round instead of {rounds}")
    made.add_argument("--only", metavar="NAMES", help=f"only some {only}")
    made.add_argument("--runs", type=_count, metavar="N", help="number of rounds")
    made.add_argument("--json", type=Path, metavar="FILE", help="file for the result")
    made.add_argument("--share", type=_share, default=1.0, metavar="S", help=f"a share {share}")
    made.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="seed of the order, to repeat it"
    )
    made.set_defaults(rounds=rounds)
    return made


def rounds_of(options: argparse.Namespace) -> int:
    chosen: int = options.runs or (ROUNDS_QUICK if options.quick else options.rounds)
    return chosen


def names_of(only: str, known: Sequence[str], what: str) -> list[str]:
    """Return what `--only` names; raises `ValueError` for unknown names."""
    wanted = [name.strip() for name in only.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"unknown {what} {', '.join(unknown)}; choose from {', '.join(known)}")
    return wanted


def warn(console: Console, disk: str) -> None:
    """Warn about what makes figures of this machine unreliable."""
    if (load := os.getloadavg()[0]) > QUIET_LOAD:
        console.print(f"load average {load:.2f}: other work is running, expect wide ranges")
    if disk in machine.IN_MEMORY:
        console.print(f"the data is on {disk}, not on a disk: durable messages look too fast")


def refuse(console: Console, error: Exception) -> int:
    """Report that it cannot run here; return the exit code for that."""
    console.print(f"bench: {error}", style="red", markup=False, highlight=False)
    return 2


def write(
    console: Console, facts: Mapping[str, object], file: Path | None, prefix: str = ""
) -> None:
    """Store the results, by default under the current time."""
    target = file or native.RESULTS / time.strftime(f"{prefix}%Y%m%dT%H%M%SZ.json", time.gmtime())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(facts, indent=1) + "\n")
    console.print(f"written to {target}", highlight=False, soft_wrap=True)


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
