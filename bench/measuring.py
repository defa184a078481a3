"""The common part of all shapes: their description, their time limits, their figures.

Every shape opens its connections, builds its frames, warms up the server and only then starts the
clock. All are limited in count and in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from bench.figures import Figure, Measurement, percentile
from bench.load import Drive, Lane, LoadFailed, Opened, Traffic
from bench.servers import Server
from bench.site import Meter, Site

RUN_S_MAX = 8.0
FINISH_S_MAX = 30.0
SETTLE_S = 0.3
WARM_SHARE = 0.1


class Shape(Protocol):
    """One kind of load; `group` is what `--only` selects, `unit` what is counted."""

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def servers(self) -> Sequence[Server]: ...

    def measure(self, site: Site) -> Measurement: ...


def warm(count: int, window: int) -> int:
    """Return how many messages are sent before the clock starts."""
    return max(window, int(count * WARM_SHARE), 1)


def finish(site: Site, lanes: Sequence[Lane], rate_s: float = 0.0) -> Drive:
    """Drive until the last copy and answer: any left would be counted for the next lanes."""
    drive = site.generator.drive(lanes, seconds_max=FINISH_S_MAX, rate_s=rate_s)
    answers = sum(lane.messages for lane in lanes if lane.answer)
    copies = sum(lane.messages * len(lane.receivers) for lane in lanes)
    if drive.answers < answers or drive.deliveries < copies:
        raise LoadFailed(
            f"of {answers} answers {drive.answers} came, and of {copies} copies "
            f"{drive.deliveries}, within {FINISH_S_MAX:.0f} s"
        )
    return drive


def cost(meter: Meter, work: Drive | Opened, count: int) -> dict[Figure, float]:
    """Return the cost of `count` messages, deliveries or connections so far."""
    cpu_s = meter.cpu_s()
    return {
        "cpu_us": cpu_s / count * 1e6,
        "rate_s": count / work.seconds,
        "server_share": cpu_s / work.seconds,
        "generator_share": work.generator_cpu_s / work.seconds,
    }


def latency(lanes: Sequence[Traffic]) -> dict[Figure, float]:
    """Return the latencies of messages until the last copy."""
    p50_us, p99_us = percentiles_us(seconds for lane in lanes for seconds in lane.took_s)
    return {"p50_us": p50_us, "p99_us": p99_us}


def answer_latency(lanes: Sequence[Traffic]) -> dict[Figure, float]:
    """Return the latencies of messages until the server's answer."""
    p50_us, p99_us = percentiles_us(seconds for lane in lanes for seconds in lane.answered_s)
    return {"p50_us": p50_us, "p99_us": p99_us}


def percentiles_us(took_s: Iterable[float]) -> tuple[float, float]:
    """Return median and 99th percentile; zeros if nothing was complete."""
    ordered = sorted(took_s)
    if not ordered:
        return 0.0, 0.0
    return percentile(ordered, 0.5) * 1e6, percentile(ordered, 0.99) * 1e6
