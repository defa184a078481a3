"""Goals of the pipeline, judged by medians; for information only."""

from __future__ import annotations

from bench.goal import Goal
from bench.lake import commands, freshness, growth, landing, pages
from bench.subjects import Summaries, Value, median_of, ratio_of

FLAT = 1.5
"""A cost that grows by no more than this while the lake grows a hundredfold counts as flat."""


def _growth(figure: str) -> Value:
    """Return the figure of the largest lake divided by that of the smallest."""

    def value(summaries: Summaries) -> float | None:
        cases = [case for subject, case in summaries if subject == growth.NAME]
        if len(cases) < 2:
            return None
        first, last = (median_of(growth.NAME, case, figure) for case in (cases[0], cases[-1]))
        return ratio_of(last, first)(summaries)

    return value


def _flat(what: str, figure: str) -> Goal[Summaries]:
    return Goal(
        text=f"× {what}, largest lake ÷ smallest",
        value=_growth(figure),
        limit=FLAT,
        is_ceiling=True,
    )


def _quick(case: str, limit: float) -> Goal[Summaries]:
    return Goal(
        text=f"s for the whole command: {case}",
        value=median_of(commands.NAME, case, "wall_s"),
        limit=limit,
        is_ceiling=True,
    )


_BESIDE = (freshness.NAME, freshness.BESIDE)
_ALONE = (freshness.NAME, freshness.ALONE)

GOALS: tuple[Goal[Summaries], ...] = (
    Goal(
        text="entries per second into `entries`, warm, two cores",
        value=median_of(landing.NAME, landing.PIPELINE, "rate_s"),
        limit=500_000,
    ),
    Goal(
        text="× the rate of a script with pyarrow and deltalake on one core",
        value=ratio_of(
            median_of(landing.NAME, landing.PIPELINE, "rate_s"),
            median_of(landing.NAME, landing.PLAIN, "rate_s"),
        ),
        limit=1.3,
    ),
    Goal(
        text="MB of the log per second into `entries`",
        value=median_of(landing.NAME, landing.PIPELINE, "mb_s"),
        limit=100,
    ),
    Goal(
        text="s from sending to the visible row at 1 000 messages per second, 99th percentile",
        value=median_of(*_BESIDE, "fresh_p99_s"),
        limit=10.0,
        is_ceiling=True,
    ),
    Goal(
        text="× the hub's rate without a pipeline, beside it",
        value=ratio_of(median_of(*_BESIDE, "rate_s"), median_of(*_ALONE, "rate_s")),
        limit=0.9,
    ),
    Goal(
        text="% of a core for an idle pipeline",
        value=median_of(*_BESIDE, "idle_percent"),
        limit=3.0,
        is_ceiling=True,
    ),
    Goal(
        text="ms for an inbox page of 100, warm, 99th percentile",
        value=median_of(pages.NAME, pages.COMPACTED, "p99_ms"),
        limit=50.0,
        is_ceiling=True,
    ),
    _quick(commands.FIRST, 15.0),
    _quick(commands.AGAIN, 8.0),
    _quick(commands.COUNT, 1.5),
    _quick(commands.AUDIT, 12.0),
    _flat("time of a landing batch", "land_ms"),
    _flat("planning time of a small range", "plan_ms"),
    _flat("inbox catching up with a small range", "catch_up_ms"),
    _flat("reading how far a table is", "open_ms"),
    _flat("inbox page", "page_ms"),
)
