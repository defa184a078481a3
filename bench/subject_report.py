"""Results of subjects as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bench.figures import Spread
from bench.goal import Goal, goal_table, goals_json
from bench.subjects import Column, Results, Sample, Subject, Summaries
from bench.tables import number, table

Goals = Sequence[Goal[Summaries]]


def progress_line(subject: Subject, sample: Sample, took_s: float) -> str:
    """Return one finished case in one line."""
    shown = (
        f"{column.heading} {number(sample.figures[column.figure], column.digits)}"
        for column in subject.columns
        if column.figure in sample.figures
    )
    return f"{subject.name:<10} {sample.case:<28} {', '.join(shown)}  in {took_s:.1f} s"


def print_report(
    console: Console, results: Results, subjects: Sequence[Subject], goals: Goals
) -> None:
    """Return every subject's table, the goals, and warnings."""
    summaries = results.summaries()
    for subject in subjects:
        if any(name == subject.name for name, _ in summaries):
            console.print(_subject_table(subject, results, summaries))
            if found := ratios(subject, summaries):
                console.print(_ratio_table(subject, found))
    console.print(goal_table(goals, summaries))
    for note in results.notes():
        console.print(f"• {note}", style="yellow", markup=False, highlight=False)


def ratios(subject: Subject, summaries: Summaries) -> dict[str, dict[str, float]]:
    """Return our medians divided by those of each other case, by case and figure."""
    found: dict[str, dict[str, float]] = {}
    ours = summaries.get((subject.name, subject.ours), {})
    for (name, case), summary in summaries.items():
        if name != subject.name or case == subject.ours:
            continue
        shared = [one for one in ours if one in summary and summary[one].median]
        if shared:
            found[case] = {one: ours[one].median / summary[one].median for one in shared}
    return found


def to_json(
    results: Results,
    conditions: Mapping[str, object],
    subjects: Sequence[Subject],
    goals: Goals,
) -> dict[str, object]:
    """Return the session with everything needed to judge it."""
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
        "ratios": {
            subject.name: found for subject in subjects if (found := ratios(subject, summaries))
        },
        "goals": goals_json(goals, summaries),
        "notes": results.notes(),
    }


def _subject_table(subject: Subject, results: Results, summaries: Summaries) -> Table:
    shown = table(subject.title)
    shown.add_column("")
    for column in subject.columns:
        shown.add_column(column.heading, justify="right")
    for (name, case), summary in summaries.items():
        if name == subject.name:
            runs = len(results.samples[name, case])
            shown.add_row(f"{case} (n={runs})", *(_cell(one, summary) for one in subject.columns))
    return shown


def _ratio_table(subject: Subject, found: Mapping[str, Mapping[str, float]]) -> Table:
    shown = table(f"{subject.name}: {subject.ours} ÷ the others")
    shown.add_column("")
    columns = [one for one in subject.columns if any(one.figure in each for each in found.values())]
    for column in columns:
        shown.add_column(column.heading, justify="right")
    for case, figures in found.items():
        cells = (figures.get(column.figure) for column in columns)
        shown.add_row(case, *("–" if one is None else number(one, 2) for one in cells))
    return shown


def _cell(column: Column, summary: Mapping[str, Spread]) -> str:
    spread = summary.get(column.figure)
    if spread is None:
        return "–"
    values = (spread.median, spread.low, spread.high)
    median, low, high = (number(value, column.digits) for value in values)
    return median if low == high else f"{median} ({low}–{high})"
