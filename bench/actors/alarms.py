"""A host with a million alarms: start time, and how fast alarms are set and run."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

from bench.actors.roles import Keeper
from bench.actors.single import single
from bench.actors.site import await_line, calling, folder, host, hub
from bench.machine import choose_cores
from bench.servers import running, unpinned
from bench.subjects import Column, Plan, Sample, Subject
from signalhub.actors import op
from signalhub.actors.api.operation import Continuation, encode_continuation
from signalhub.actors.api.schedules import AlarmType, Spec
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.host import FILE
from signalhub.actors.store.store import HostStore

NAME = "alarms"
ALARMS = 1_000_000
OVERDUE = 20_000
ACTORS = 1_000
SET_EACH = 100
RUN_S_MAX = 300.0
PING_S_MAX = 60.0

_DAY_MS = 86_400_000
_AGO_MS = 3_600_000
_AFTER_S = 60.0


def case_of(alarms: int) -> str:
    return f"{alarms:,} alarms in the store"


def measure(plan: Plan) -> Iterator[Sample]:
    """Use one store for all rounds; alarms that have run are set again for the next round."""
    count, overdue = plan.count(ALARMS, at_least=1_000), plan.count(OVERDUE, at_least=SET_EACH)
    with folder() as place, hub() as (_, url):
        plan.say(f"making a store of {count:,} alarms")
        data = place / "data"
        fill(data, count)
        for number in range(plan.rounds):
            figures = set_alarms(data, overdue)
            figures |= _open(url, data, overdue // SET_EACH * SET_EACH, f"probe-{number}")
            figures["store_mb"] = (data / FILE).stat().st_size / 1e6
            yield Sample(case_of(count), figures)


def fill(data: Path, count: int) -> None:
    """Write alarms of many actors, due within the year after tomorrow, directly as rows."""
    store = HostStore(data / FILE, durability="process")
    spec = Spec(AlarmType.DELAYED).encode()
    continuation = encode_continuation(Continuation("ring"))
    chance, now_ms = random.Random(count), time.time_ns() // 1_000_000
    with store.transaction():
        store.executemany(
            "INSERT INTO actors VALUES (?, 1, 'here')",
            ((f"keeper/{number}",) for number in range(ACTORS)),
        )
        store.executemany(
            "INSERT INTO alarms VALUES"
            " (?, ?, 'delayed', ?, ?, ?, ?, 0, 5, 'pending', '01HZZZZZZZZZZZZZZZZZZZZZZZ', NULL)",
            (
                (f"keeper/{number % ACTORS}", f"alarm-{number}", due_ms, due_ms, spec, continuation)
                for number in range(count)
                for due_ms in [now_ms + _DAY_MS + chance.randrange(365 * _DAY_MS)]
            ),
        )
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()


def set_alarms(data: Path, count: int) -> dict[str, float]:
    """Set alarms through actors, with the kernel's clock an hour back, so that they are overdue."""
    now_ms = time.time_ns() // 1_000_000 - _AGO_MS
    requests = count // SET_EACH
    with single(data, [Keeper], now_ms=now_ms) as kernel:
        wanted = op(Keeper.schedule, SET_EACH, _AFTER_S)
        began, cpu_before = time.monotonic(), time.process_time()
        for number in range(requests):
            kernel.request(f"keeper/{number % ACTORS}", wanted)
        seconds, spent_s = time.monotonic() - began, time.process_time() - cpu_before
    return {
        "set_rate_s": requests * SET_EACH / seconds,
        "set_cpu_us": spent_s / (requests * SET_EACH) * 1e6,
    }


def _open(url: str, data: Path, overdue: int, probe: str) -> dict[str, float]:
    """Start a host on the store; it is ready when it answers a call from outside."""

    async def ping(connection: ActorHub) -> float:
        await connection.ask(f"keeper/{probe}", op(Keeper.ping), timeout=PING_S_MAX)
        return time.monotonic()

    server = host(url, "keepers", [Keeper.kind], data=data, overdue=overdue)
    with running(unpinned(server), choose_cores()) as process:
        answered = calling(url, ping)
        facts = json.loads(await_line(process, r"^\{.*\}$", RUN_S_MAX))
    opened = facts["opened"]
    return {
        "first_s": facts["first"] - opened,
        "connected_s": facts["connected"] - opened,
        "ready_s": answered - opened,
        "run_rate_s": overdue / (facts["last"] - facts["first"]),
    }


SUBJECT = Subject(
    name=NAME,
    title=f"alarms: a host opens its store, with {OVERDUE:,} alarms overdue",
    columns=(
        Column("s to the first overdue", "first_s", 3),
        Column("s to connected", "connected_s", 3),
        Column("s to the first answer", "ready_s", 3),
        Column("overdue run per s", "run_rate_s"),
        Column("set per s", "set_rate_s"),
        Column("CPU µs to set one", "set_cpu_us", 1),
        Column("MB", "store_mb"),
    ),
    measure=measure,
)
