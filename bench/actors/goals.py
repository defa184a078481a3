"""Goals of durable actors, judged by medians; for information only."""

from __future__ import annotations

from bench.actors import alarms, calls, crowd, pairs
from bench.goal import Goal
from bench.subjects import Summaries, Value, median_of, ratio_of


def _of_any_case(subject: str, figure: str) -> Value:
    """Return the worst median among the cases of a subject: the largest."""

    def value(summaries: Summaries) -> float | None:
        found = [median_of(*key, figure)(summaries) for key in summaries if key[0] == subject]
        return max((one for one in found if one is not None), default=None)

    return value


_RATE = median_of(pairs.NAME, pairs.OURS, "rate_s")

GOALS: tuple[Goal[Summaries], ...] = (
    Goal(
        text="ms for `call()` in a handler, median",
        value=lambda summaries: _in_ms(_of_any_case(calls.NAME, "p50_us")(summaries)),
        limit=1.0,
        is_ceiling=True,
    ),
    Goal(text="durable calls per second through the hub, two cores", value=_RATE, limit=15_000),
    Goal(
        text="× Celery on a Redis that syncs, calls per second",
        value=ratio_of(_RATE, median_of(pairs.NAME, pairs.CELERY, "rate_s")),
        limit=3.0,
    ),
    Goal(
        text=f"% of {crowd.TARGETS:,} calls at the same time that came back",
        value=median_of(crowd.NAME, crowd.NEW, "complete_percent"),
        limit=100,
    ),
    Goal(
        text="s from opening the host to the first overdue alarm",
        value=_of_any_case(alarms.NAME, "first_s"),
        limit=5.0,
        is_ceiling=True,
    ),
    Goal(
        text="s from opening the host to its first answer",
        value=_of_any_case(alarms.NAME, "ready_s"),
        limit=5.0,
        is_ceiling=True,
    ),
)


def _in_ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e3
