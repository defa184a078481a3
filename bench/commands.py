"""`python -m bench.commands`: how long whole commands take, beside a Python that does nothing.

Commands run one after the other in rounds of random order, each in a process of its own, as people
and scripts start them. Exit codes: 0 measured, 1 a command failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

from bench import invocation, machine
from bench.tables import number, table

ROUNDS = 15
COMMAND = str(Path(sys.executable).with_name("signalhub"))
STOP_S_MAX = 20.0

NOTHING = "python -c pass"
READY = "hub from exec to ready"
TELL = "signalhub tell, whole command"

# Most seconds, on a quiet machine on which an empty Python takes about 0.01 s.
GOALS: Mapping[str, float] = {TELL: 0.2, READY: 0.3}


class CommandFailed(Exception):
    """A command under test did not do what it is measured for."""


@dataclass(slots=True)
class Times:
    """What one command took in each round."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def add(self, wall_s: float, cpu_s: float) -> None:
        self.wall_s.append(wall_s)
        self.cpu_s.append(cpu_s)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = invocation.open_console()
    conditions = machine.describe()
    invocation.warn(console, str(conditions["disk"]))
    try:
        times = measure(options.runs, random.Random(options.seed))
    except CommandFailed as error:
        invocation.refuse(console, error)
        return 1
    except KeyboardInterrupt:
        return 130
    print_times(console, times, options.runs)
    facts = {name: {"wall_s": one.wall_s, "cpu_s": one.cpu_s} for name, one in times.items()}
    invocation.write(
        console, {"conditions": conditions, "commands": facts}, options.json, "commands-"
    )
    return 0


def measure(rounds: int, order: random.Random) -> dict[str, Times]:
    """Run every command once per round; the first round, which may compile modules, is left out."""
    with _hub() as (_, url):
        commands = _commands(url)
        names = [*commands, READY]
        times = {name: Times() for name in names}
        for turn in range(rounds + 1):
            for name in order.sample(names, len(names)):
                took = _until_ready() if name == READY else whole(commands[name])
                if turn:
                    times[name].add(*took)
    return times


def print_times(console: Console, times: Mapping[str, Times], rounds: int) -> None:
    shown = table(f"Commands, medians of {rounds} rounds")
    shown.add_column("")
    for heading in ("seconds", "range", "CPU s", "× python", "goal s"):
        shown.add_column(heading, justify="right")
    nothing = median(times[NOTHING].wall_s)
    for name, one in times.items():
        wall_s = median(one.wall_s)
        goal = GOALS.get(name)
        shown.add_row(
            name,
            number(wall_s, 3),
            f"{number(min(one.wall_s), 3)} to {number(max(one.wall_s), 3)}",
            number(median(one.cpu_s), 3),
            number(wall_s / nothing, 1),
            "" if goal is None else f"{goal:g}, {'reached' if wall_s <= goal else 'missed'}",
        )
    console.print(shown)


def _commands(url: str) -> dict[str, list[str]]:
    hub = ["--url", url]
    return {
        NOTHING: [sys.executable, "-c", "pass"],
        "signalhub --version": [COMMAND, "--version"],
        "signalhub --help": [COMMAND, "--help"],
        "signalhub ls": [COMMAND, "ls", *hub],
        TELL: [COMMAND, "tell", "demo/bob", "hello", *hub],
        "signalhub publish": [COMMAND, "publish", "prices", "1", *hub],
        "signalhub publish --durable": [COMMAND, "publish", "orders", "1", "--durable", *hub],
    }


def _environment() -> dict[str, str]:
    """Ours, without what changes how a hub or Python starts."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith("SIGNALHUB_")
    }


def whole(command: Sequence[str]) -> tuple[float, float]:
    """Return wall and CPU seconds of a command from its start to its end."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=_environment())
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise CommandFailed(f"{' '.join(command)}: {said.read().decode().strip()}")
    return wall_s, usage.ru_utime + usage.ru_stime


def _until_ready() -> tuple[float, float]:
    """Return wall and CPU seconds of a hub with empty data until it says that it listens."""
    began = time.perf_counter()
    with _hub() as (process, _):
        return time.perf_counter() - began, machine.cpu_s([process.pid])


@contextmanager
def _hub() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a hub with a new data folder; yields once it is ready."""
    folder = tempfile.mkdtemp(dir=machine.data_folder())
    serve = [COMMAND, "serve", "--port", "0", "--data", f"{folder}/data"]
    process = subprocess.Popen(
        serve,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
        text=True,
    )
    try:
        assert process.stdout is not None
        _, listens, url = process.stdout.readline().strip().rpartition(" listening on ")
        if not listens:
            raise CommandFailed(f"{' '.join(serve)}: the hub did not start")
        yield process, url
    finally:
        process.terminate()
        process.wait(STOP_S_MAX)
        shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench.commands", description=__doc__.splitlines()[0])
    made.add_argument("--runs", type=int, default=ROUNDS, metavar="N", help="number of rounds")
    made.add_argument("--json", type=Path, metavar="FILE", help="file for the result")
    made.add_argument("--seed", type=int, default=0, help="seed of the order")
    return made


if __name__ == "__main__":
    sys.exit(main())
