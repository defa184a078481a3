"""Costs that should not grow, judged by medians; for information only."""

from __future__ import annotations

from bench.goal import Goal
from bench.growth import connections, lag, logs, rooms, subscriptions, topics
from bench.subjects import Summaries, Value

FLAT = 1.5
"""A cost that grows by no more than this from the smallest size to the largest counts as flat."""


def growth_of(subject: str, figure: str) -> Value:
    """Return the figure at the largest size divided by that at the smallest."""

    def value(summaries: Summaries) -> float | None:
        found = sorted(
            (summary["size"].median, summary[figure].median)
            for (name, _), summary in summaries.items()
            if name == subject and figure in summary
        )
        return found[-1][1] / found[0][1] if len(found) > 1 and found[0][1] else None

    return value


def _flat(subject: str, figure: str, what: str) -> Goal[Summaries]:
    return Goal(
        text=f"× {what}, largest ÷ smallest",
        value=growth_of(subject, figure),
        limit=FLAT,
        is_ceiling=True,
    )


GOALS: tuple[Goal[Summaries], ...] = (
    _flat(connections.NAME, "cpu_us", "CPU of a message, connections"),
    _flat(connections.NAME, "each_kb", "memory of a connection"),
    _flat(topics.NAME, "cpu_us", "CPU of a publish, topics"),
    _flat(topics.NAME, "each_kb", "memory of a topic"),
    _flat(subscriptions.NAME, "cpu_us", "CPU of a message elsewhere, subscriptions"),
    _flat(subscriptions.NAME, "delivery_us", "CPU of a delivery, subscriptions"),
    _flat(subscriptions.NAME, "each_kb", "memory of a subscription"),
    _flat(logs.NAME, "cpu_us", "CPU of a publish, log"),
    _flat(logs.NAME, "ready_s", "start after a kill, log"),
    _flat(logs.NAME, "cold_p50_ms", "a page from the disk, log"),
    _flat(lag.NAME, "cpu_us", "CPU of a publish, lag"),
    _flat(lag.NAME, "delivery_us", "CPU of a delivery, lag"),
    _flat(lag.NAME, "info_p50_ms", "sub info, lag"),
    _flat(lag.NAME, "seek_p50_ms", "seek, lag"),
    _flat(rooms.NAME, "cpu_us", "CPU of a message, rooms"),
    _flat(rooms.NAME, "each_kb", "memory of a room"),
)
