"""The cost of `call()` for the handler that makes it: encoding, checks, and two rows."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.actors import roles
from bench.actors.roles import Callee, Caller, Neighbour
from bench.actors.single import single
from bench.actors.site import folder
from bench.figures import percentile
from bench.subjects import Column, Plan, Sample, Subject
from signalhub.actors import op

NAME = "call"
ABROAD = "to another host"
AT_HOME = "to an actor of the same host"
CALLS = 20_000
CALLS_EACH = 50
ACTORS = 20

_KINDS = {ABROAD: Callee.kind, AT_HOME: Neighbour.kind}


def measure(plan: Plan) -> Iterator[Sample]:
    """Run both cases alternately, each in a new store."""
    for _ in range(plan.rounds):
        for case in plan.order.sample(list(_KINDS), len(_KINDS)):
            yield Sample(case, _measure(_KINDS[case], plan.count(CALLS, at_least=CALLS_EACH)))


def _measure(kind: str, calls: int) -> dict[str, float]:
    with folder() as place, single(place, [Caller, Neighbour], [Callee.kind], now_ms=None) as host:
        wanted = op(Caller.timed_calls, CALLS_EACH, kind)
        for number in range(ACTORS):  # Now actors are placed and statements compiled.
            host.request(f"caller/{number}", wanted)
        roles.TOOK_S.clear()
        began = time.process_time()
        for number in range(calls // CALLS_EACH):
            host.request(f"caller/{number % ACTORS}", wanted)
        spent_s = time.process_time() - began
        took_s = sorted(roles.TOOK_S)
    return {
        "p50_us": percentile(took_s, 0.5) * 1e6,
        "p99_us": percentile(took_s, 0.99) * 1e6,
        "max_us": took_s[-1] * 1e6,
        "cpu_us": spent_s / len(took_s) * 1e6,
    }


SUBJECT = Subject(
    name=NAME,
    title=f"call: `self.call(…, then=…)` in a handler that makes {CALLS_EACH}, without a hub",
    columns=(
        Column("p50 µs", "p50_us", 1),
        Column("p99 µs", "p99_us", 1),
        Column("worst µs", "max_us"),
        Column("CPU µs per call, turn included", "cpu_us", 1),
    ),
    measure=measure,
)
