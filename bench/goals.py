"""What the project wants to reach, judged from the medians of a session.

A goal is information: missing one does not fail the run, because a busy machine could.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from bench.figures import Summary, advantage
from bench.servers import HUB, NATS, SOCKETIO, Server

Summaries = Mapping[tuple[str, str], Summary]
Verdict = Literal["pass", "miss", "not measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure with its limit."""

    text: str
    value: Callable[[Summaries], float | None]
    limit: float
    is_ceiling: bool = False

    def judge(self, summaries: Summaries) -> Verdict:
        value = self.value(summaries)
        if value is None:
            return "not measured"
        is_reached = value <= self.limit if self.is_ceiling else value >= self.limit
        return "pass" if is_reached else "miss"


def _cpu_ratio(shape: str, peer: Server) -> Callable[[Summaries], float | None]:
    def value(summaries: Summaries) -> float | None:
        ours, theirs = summaries.get((shape, HUB.name)), summaries.get((shape, peer.name))
        return advantage(ours, theirs, "cpu_us")

    return value


def _accepts_per_core(summaries: Summaries) -> float | None:
    ours = summaries.get(("accept", HUB.name))
    cpu_us = ours.median("cpu_us") if ours else None
    return 1e6 / cpu_us if cpu_us else None


def _connection_bytes(summaries: Summaries) -> float | None:
    ours = summaries.get(("accept-registered", HUB.name))
    return ours.median("connection_bytes") if ours else None


GOALS = (
    Goal(
        text="× NATS WebSocket, point to point, spread",
        value=_cpu_ratio("p2p-spread", NATS),
        limit=0.8,
    ),
    Goal(
        text="× NATS WebSocket, fan-out to 1 000, 1 in flight",
        value=_cpu_ratio("fanout-1000-w1", NATS),
        limit=1.0,
    ),
    Goal(
        text="× NATS WebSocket, fan-out to 1 000, 4 in flight",
        value=_cpu_ratio("fanout-1000-w4", NATS),
        limit=1.0,
    ),
    Goal(
        text="× NATS WebSocket, fan-out to 1 000, 16 in flight",
        value=_cpu_ratio("fanout-1000-w16", NATS),
        limit=2.5,
    ),
    Goal(
        text="× python-socketio, point to point, spread",
        value=_cpu_ratio("p2p-spread", SOCKETIO),
        limit=25.0,
    ),
    Goal(
        text="bytes of memory per idle registered connection",
        value=_connection_bytes,
        limit=12_000,
        is_ceiling=True,
    ),
    Goal(
        text="accepts per second and core, upgrade only",
        value=_accepts_per_core,
        limit=7_000,
    ),
)
