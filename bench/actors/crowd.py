"""One actor calls a thousand others at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.actors.roles import Caller
from bench.actors.site import Meter, Pair, calling, pair
from bench.subjects import Column, Plan, Sample, Subject
from signalhub.actors import op
from signalhub.actors.host.caller import ActorHub

NAME = "concurrent"
NEW = "to actors without a place yet"
KNOWN = "to the same again"
TARGETS = 1_000
ASK_S = 120.0


def measure(plan: Plan) -> Iterator[Sample]:
    """Make the same calls twice: the first time the hub has to place every actor."""
    count = plan.count(TARGETS, at_least=20)
    for _ in range(plan.rounds):
        with pair() as site:
            # Different actors, so that everything else is warm.
            _run(site, "warm", min(20, count))
            for case in (NEW, KNOWN):
                yield Sample(case, _run(site, "target", count))


def _run(site: Pair, prefix: str, count: int) -> dict[str, float]:
    async def work(hub: ActorHub) -> tuple[int, float]:
        began = time.monotonic()
        wanted = op(Caller.all_at_once, count, prefix)
        came_back: int = await hub.ask("caller/one", wanted, timeout=ASK_S)
        return came_back, time.monotonic() - began

    meter = Meter(all=[*site.hub.pids, *site.callers.pids, *site.callees.pids])
    came_back, seconds = calling(site.url, work)
    return {
        "complete_percent": 100 * came_back / count,
        "ms": seconds * 1e3,
        "cpu_us": meter.read()["all"] / count * 1e6,
    }


SUBJECT = Subject(
    name=NAME,
    title=f"concurrent: {TARGETS:,} calls at the same time from one actor to as many of a host",
    columns=(
        Column("% came back", "complete_percent", 1),
        Column("ms until the last", "ms"),
        Column("CPU µs per call, hub and hosts", "cpu_us"),
    ),
    measure=measure,
)
