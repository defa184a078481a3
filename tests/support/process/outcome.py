"""The result of a chaos run as others may read it: verdict, load, times, seed, commit, machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from math import ceil
from pathlib import Path

import msgspec

from tests.support.process.history import Report

REPORT_VARIABLE = "SIGNALHUB_CHAOS_REPORT"
KEEP_VARIABLE = "SIGNALHUB_CHAOS_KEEP"
_ROOT = Path(__file__).resolve().parents[3]


class Outcome(msgspec.Struct, kw_only=True):
    """One run. `acked_per_s` counts only the time in which the hub was up."""

    test: str
    seed: int
    faults: int
    up_s: float
    acked_per_s: float
    ready_p50_ms: float
    ready_p99_ms: float
    ready_max_ms: float
    commit: str
    machine: str
    report: Report


def conclude(
    test: str, report: Report, *, faults: int, up_s: float, starts_s: Sequence[float] = ()
) -> Outcome:
    """Sum a run up, and add it as one line of JSON to the file that the environment names."""
    python = f"Python {platform.python_version()}"
    starts_ms = [round(start * 1000, 1) for start in sorted(starts_s)] or [0.0]
    outcome = Outcome(
        test=test,
        seed=report.seed,
        faults=faults,
        up_s=round(up_s, 3),
        acked_per_s=round(report.acked / up_s, 1),
        ready_p50_ms=starts_ms[ceil(len(starts_ms) * 0.5) - 1],
        ready_p99_ms=starts_ms[ceil(len(starts_ms) * 0.99) - 1],
        ready_max_ms=starts_ms[-1],
        commit=_commit(),
        machine=f"{platform.platform()}, {os.cpu_count()} cores, {python}",
        report=report,
    )
    if name := os.environ.get(REPORT_VARIABLE):
        with Path(name).open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")
    return outcome


def keep_evidence(report: Report, *folders: Path) -> None:
    """Copy what a bad run left behind into the folder that the environment names."""
    if not report.anomalies or not (name := os.environ.get(KEEP_VARIABLE)):
        return
    for folder in folders:
        place = Path(name) / f"seed-{report.seed}" / folder.name
        shutil.copytree(folder, place, dirs_exist_ok=True)


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()
