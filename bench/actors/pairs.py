"""Durable calls between two hosts through the hub, compared with Celery and a plain outbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from bench.actors.peers import Load, by_celery, by_outbox, celery_problem, figures_of
from bench.actors.roles import Caller
from bench.actors.site import Meter, Pair, calling, pair
from bench.servers import REDIS, REDIS_DEFAULT
from bench.subjects import Column, MeasurementFailed, Plan, Sample, Subject
from signalhub.actors import DurableConfig, op
from signalhub.actors.host.caller import ActorHub

NAME = "pairs"
OURS = "signalhub"
CELERY = "Celery, Redis synced"
CELERY_DEFAULT = "Celery, Redis as shipped"
OUTBOX = "bare SQLite outbox"

ACTORS = 50
CHAINS = 20
CALLS = 20_000
ROW = 500
CELERY_CALLS = 4_000
ASK_S = 240.0


def measure(plan: Plan) -> Iterator[Sample]:
    """Run every case once per round, in random order, each started from scratch."""
    ways: dict[str, Callable[[], dict[str, float]]] = {
        OURS: lambda: by_hosts(load_of(plan, CALLS)),
        CELERY: lambda: by_celery(REDIS, load_of(plan, CELERY_CALLS)),
        CELERY_DEFAULT: lambda: by_celery(REDIS_DEFAULT, load_of(plan, CELERY_CALLS)),
        OUTBOX: lambda: by_outbox(load_of(plan, CALLS)),
    }
    problem = celery_problem(REDIS)
    if problem:
        del ways[CELERY], ways[CELERY_DEFAULT]
    for number in range(plan.rounds):
        for case in plan.order.sample(list(ways), len(ways)):
            note = f"without Celery: {problem}" if problem and not number and case == OURS else ""
            yield Sample(case, ways[case](), note)


def load_of(plan: Plan, calls: int) -> Load:
    return Load(
        calls=plan.count(calls, at_least=ACTORS),
        in_flight=ACTORS * CHAINS,
        batch=DurableConfig().outbound_batch_size,
        row=plan.count(ROW, at_least=20),
    )


def by_hosts(load: Load) -> dict[str, float]:
    chains = min(CHAINS, load.calls // ACTORS)
    length = load.calls // (ACTORS * chains)
    calls = ACTORS * chains * length
    with pair() as site:
        _keep_in_flight(site, chains, max(1, length // 10))
        meter = Meter(hub=site.hub.pids, hosts=[*site.callers.pids, *site.callees.pids])
        seconds = _keep_in_flight(site, chains, length)
        spent = meter.read()
        row = _one_by_one(site, load.row)
    return figures_of(calls, seconds, spent["hub"], spent["hosts"], row)


def _keep_in_flight(site: Pair, chains: int, length: int) -> float:
    """Run all callers at the same time; return the seconds until the last has answered."""

    async def work(hub: ActorHub) -> float:
        wanted = op(Caller.keep_in_flight, chains, length)
        began = time.monotonic()
        asked = (hub.ask(f"caller/{one}", wanted, timeout=ASK_S) for one in range(ACTORS))
        answers = await asyncio.gather(*asked)
        seconds = time.monotonic() - began
        if answers != [chains * length] * ACTORS:
            raise MeasurementFailed("calls were lost, or ran more than once")
        return seconds

    return calling(site.url, work)


def _one_by_one(site: Pair, count: int) -> list[float]:
    async def work(hub: ActorHub) -> list[float]:
        took_s: list[float] = await hub.ask("caller/0", op(Caller.one_by_one, count), timeout=ASK_S)
        return took_s

    return calling(site.url, work)


SUBJECT = Subject(
    name=NAME,
    title=f"pairs: durable calls with a continuation, {ACTORS * CHAINS:,} in flight; then in a row",
    columns=(
        Column("calls per s", "rate_s"),
        Column("CPU µs per call", "cpu_us"),
        Column("hub or broker", "server_cpu_us"),
        Column("hosts, or worker and caller", "others_cpu_us"),
        Column("one by one p50 ms", "p50_ms", 2),
        Column("p99 ms", "p99_ms", 2),
    ),
    measure=measure,
    ours=OURS,
)
