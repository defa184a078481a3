"""A figure with its limit; for information, because a busy machine could miss it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rich.table import Table

from bench.tables import number, table

S = TypeVar("S")
Verdict = Literal["pass", "miss", "not measured"]
_STYLES: dict[Verdict, str] = {"pass": "green", "miss": "red", "not measured": "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal(Generic[S]):
    """A goal for the summaries `S` of a session."""

    text: str
    value: Callable[[S], float | None]
    limit: float
    is_ceiling: bool = False

    def judge(self, summaries: S) -> Verdict:
        value = self.value(summaries)
        if value is None:
            return "not measured"
        is_reached = value <= self.limit if self.is_ceiling else value >= self.limit
        return "pass" if is_reached else "miss"


def goal_table(goals: Sequence[Goal[S]], summaries: S) -> Table:
    """Return every goal with what was measured."""
    shown = table("goals")
    for heading in ("", "measured", "wanted", ""):
        shown.add_column(heading, justify="left" if not heading else "right")
    for goal in goals:
        verdict, value = goal.judge(summaries), goal.value(summaries)
        wanted = f"{'≤' if goal.is_ceiling else '≥'} {number(goal.limit)}"
        measured = "–" if value is None else number(value)
        shown.add_row(goal.text, measured, wanted, f"[{_STYLES[verdict]}]{verdict}")
    return shown


def goals_json(goals: Sequence[Goal[S]], summaries: S) -> list[dict[str, object]]:
    """Return the same for programs."""
    return [
        {
            "goal": goal.text,
            "value": goal.value(summaries),
            "limit": goal.limit,
            "is_ceiling": goal.is_ceiling,
            "verdict": goal.judge(summaries),
        }
        for goal in goals
    ]
