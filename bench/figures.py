"""Figures of one run, and the summary of several runs: medians, ranges, ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Figure = Literal[
    "cpu_us",  # Server CPU per message, delivery or connection.
    "rate_s",  # Messages, deliveries or connections per second of wall time.
    "server_share",  # The server's use of its core.
    "generator_share",  # The same for the generator.
    "p50_us",
    "p99_us",
    "calm_p50_us",  # The same load without the disturbance.
    "calm_p99_us",
    "lag_us",  # The largest delay of a scheduled message by the generator.
    "connection_bytes",
    "ack_p50_us",  # Until the publisher's answer, where the other figure is end to end.
    "ack_p99_us",
    "held_rate_s",  # The highest rate at which the 99th percentile stayed within its limit.
    "empty_share",  # The server's use of its core with nothing in it.
    "shift",  # The disturbed 99th percentile divided by the calm one.
    "log_s",  # Recovering the log alone.
    "ready_s",  # From exec to the announced port.
    "empty_ready_s",  # The same with nothing to recover.
    "rebuilt_ready_s",  # The same without the state and index files.
]

# Above it the generator may have limited the rate of a closed loop.
BUSY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one shape on one server."""

    figures: dict[Figure, float]
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several runs."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs of one shape on one server."""

    runs: int
    incomplete: int
    figures: dict[Figure, Spread]

    def median(self, figure: Figure) -> float | None:
        spread = self.figures.get(figure)
        return spread.median if spread else None


def summarise(measurements: Sequence[Measurement]) -> Summary:
    """Return medians and ranges of all figures of the runs."""
    names: list[Figure] = list(dict.fromkeys(n for each in measurements for n in each.figures))
    return Summary(
        runs=len(measurements),
        incomplete=sum(not each.is_complete for each in measurements),
        figures={
            name: spread(each.figures[name] for each in measurements if name in each.figures)
            for name in names
        },
    )


def spread(values: Iterable[float]) -> Spread:
    """Return median, smallest and largest of at least one value."""
    given = list(values)
    return Spread(statistics.median(given), min(given), max(given))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of values in ascending order."""
    assert ordered
    # Rounded first, because 0.07 × 100 is a little more than 7.
    rank = math.ceil(round(len(ordered) * share, 6))
    return ordered[max(rank, 1) - 1]


def advantage(ours: Summary | None, peer: Summary | None, figure: Figure) -> float | None:
    """Return how many times better we are; above 1 we need less, or serve more."""
    our_median = ours.median(figure) if ours else None
    peer_median = peer.median(figure) if peer else None
    if not our_median or not peer_median:
        return None
    return our_median / peer_median if figure == "rate_s" else peer_median / our_median


def was_generator_bound(summary: Summary) -> bool:
    """Return whether the generator, not the server, limited the rate.

    A scheduled one spins, and is judged by its lag instead.
    """
    if "lag_us" in summary.figures:
        return False
    server, generator = summary.median("server_share"), summary.median("generator_share")
    if server is None or generator is None:
        return False
    return generator > BUSY_SHARE > server
