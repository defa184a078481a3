"""Results as tables for people and as JSON for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.figures import Spread
from bench.lake.goals import GOALS
from bench.lake.results import Column, Results, Sample, Subject, Summaries

_VERDICT_STYLES = {"pass": "green", "miss": "red", "not measured": "dim"}


def progress_line(subject: Subject, sample: Sample, took_s: float) -> str:
    """One finished case in one line."""
    shown = (
        f"{column.heading} {_number(sample.figures[column.figure], column.digits)}"
        for column in subject.columns
        if column.figure in sample.figures
    )
    return f"{subject.name:<10} {sample.case:<28} {', '.join(shown)}  in {took_s:.1f} s"


def print_report(console: Console, results: Results, subjects: Sequence[Subject]) -> None:
    """Every subject's table, the goals, and what to be careful about."""
    summaries = results.summaries()
    for subject in subjects:
        if any(name == subject.name for name, _ in summaries):
            console.print(_subject_table(subject, results, summaries))
    console.print(_goal_table(summaries))
    for note in results.notes():
        console.print(f"• {note}", style="yellow", markup=False, highlight=False)


def to_json(results: Results, conditions: Mapping[str, object]) -> dict[str, object]:
    """The session with everything needed to judge it."""
    summaries = results.summaries()
    return {
        "conditions": dict(conditions),
        "seed": results.seed,
        "share": results.share,
        "results": [
            {
                "subject": subject,
                "case": case,
                "runs": len(results.samples[subject, case]),
                "figures": {name: asdict(value) for name, value in summary.items()},
                "each_run": [dict(one.figures) for one in results.samples[subject, case]],
            }
            for (subject, case), summary in summaries.items()
        ],
        "goals": [
            {
                "goal": goal.text,
                "value": goal.value(summaries),
                "limit": goal.limit,
                "is_ceiling": goal.is_ceiling,
                "verdict": goal.judge(summaries),
            }
            for goal in GOALS
        ],
        "notes": results.notes(),
    }


def _subject_table(subject: Subject, results: Results, summaries: Summaries) -> Table:
    table = _table(subject.title)
    table.add_column("")
    for column in subject.columns:
        table.add_column(column.heading, justify="right")
    for (name, case), summary in summaries.items():
        if name == subject.name:
            runs = len(results.samples[name, case])
            table.add_row(f"{case} (n={runs})", *(_cell(one, summary) for one in subject.columns))
    return table


def _goal_table(summaries: Summaries) -> Table:
    table = _table("goals")
    for heading in ("", "measured", "wanted", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for goal in GOALS:
        verdict, value = goal.judge(summaries), goal.value(summaries)
        wanted = f"{'≤' if goal.is_ceiling else '≥'} {_number(goal.limit)}"
        measured = "–" if value is None else _number(value)
        table.add_row(goal.text, measured, wanted, f"[{_VERDICT_STYLES[verdict]}]{verdict}")
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)


def _cell(column: Column, summary: Mapping[str, Spread]) -> str:
    spread = summary.get(column.figure)
    if spread is None:
        return "–"
    values = (spread.median, spread.low, spread.high)
    median, low, high = (_number(value, column.digits) for value in values)
    return median if low == high else f"{median} ({low}–{high})"


def _number(value: float, digits: int | None = None) -> str:
    """Thousands apart; two digits after the point for small numbers unless told otherwise."""
    if digits is None:
        digits = 0 if value >= 100 else 2
    return f"{value:,.{digits}f}"
