"""Starts the processes of a load, lets them begin together, and puts their results together."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import Final

import msgspec

from signalhub.operate.bench.machine import hub_process, machine_facts
from signalhub.operate.bench.plan import LoadPlan
from signalhub.operate.bench.report import BenchReport, report_of
from signalhub.operate.bench.worker import Problem, WorkOrder, WorkResult
from signalhub.operate.session import HubAccess
from signalhub.wire.errors import Code, Refused, SignalHubError

GRACE_S: Final = 5.0
_SETUP_S: Final = 60.0
_SETUP_S_PER_CLIENT: Final = 0.1
# All processes know the time by then.
_AHEAD_NS: Final = 200_000_000


class BenchFailed(SignalHubError):
    """A load could not be made; `resolution` says what to do."""

    def __init__(self, code: str, message: str, resolution: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.resolution = resolution


class _Told(msgspec.Struct, frozen=True):
    ready: bool = False
    result: WorkResult | None = None
    problem: Problem | None = None


async def asks_for_tokens(access: HubAccess) -> bool:
    """Does the hub refuse whoever has no token?"""
    try:
        async with HubAccess(url=access.url, timeout_s=access.timeout_s).session():
            return False
    except Refused as error:
        if error.code == Code.UNAUTHORIZED:
            return True
        raise


async def bench(plan: LoadPlan, access: HubAccess, *, grace_s: float = GRACE_S) -> BenchReport:
    """Put a load on a hub and return what it has shown; nothing of it stays except a room.

    Raises:
        BenchFailed: A process could not connect, or has ended.
        ClientError: The hub cannot be reached, or refuses the topic of the load.
    """
    is_durable = plan.kind in ("durable", "consume")
    if is_durable:
        async with access.session() as me:
            await access.in_time(me.create_topic(plan.topic, retention_s=3_600))
    processes: list[asyncio.subprocess.Process] = []
    try:
        async with asyncio.timeout(_SETUP_S + plan.clients * _SETUP_S_PER_CLIENT):
            for number in range(plan.processes):
                process = await _started(plan, number, access, grace_s)
                processes.append(process)
            await asyncio.gather(*(_ready(one) for one in processes))
        hub = hub_process(access.url)
        machine = machine_facts()
        before_s = None if hub is None else hub.cpu_s()
        start_ns = time.monotonic_ns() + _AHEAD_NS
        for one in processes:
            assert one.stdin is not None
            one.stdin.write(b"%d\n" % start_ns)
        async with asyncio.timeout(plan.seconds + grace_s + _SETUP_S):
            results = await asyncio.gather(*(_result(one) for one in processes))
        after_s = None if hub is None else hub.cpu_s()
    except TimeoutError:
        raise BenchFailed(
            "timeout", "the clients did not finish in time", "use fewer --clients or a lower --rate"
        ) from None
    finally:
        await _ended(processes)
        if is_durable:
            with suppress(SignalHubError):
                async with access.session() as me:
                    await access.in_time(me.delete_topic(plan.topic))
    spent_s = None if before_s is None or after_s is None else after_s - before_s
    return report_of(plan, results, start_ns=start_ns, hub_cpu_s=spent_s, machine=machine)


async def _started(
    plan: LoadPlan, number: int, access: HubAccess, grace_s: float
) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "signalhub.operate.bench.worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**26,
    )
    order = WorkOrder(
        plan=plan, process=number, url=access.url, token=access.token, grace_s=grace_s
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    return process


async def _ready(process: asyncio.subprocess.Process) -> None:
    await _told(process)


async def _result(process: asyncio.subprocess.Process) -> WorkResult:
    told = await _told(process)
    assert told.result is not None
    return told.result


async def _told(process: asyncio.subprocess.Process) -> _Told:
    """The next line of a process; raises `BenchFailed` if it has a problem."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise BenchFailed(
            "internal_error", "a process of the load has ended", "see its error above"
        )
    told = msgspec.json.decode(line, type=_Told)
    if (problem := told.problem) is not None:
        raise BenchFailed(problem.code, problem.message, problem.resolution)
    return told


async def _ended(processes: list[asyncio.subprocess.Process]) -> None:
    """End what still runs, and wait for it."""
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
    try:
        async with asyncio.timeout(3):
            await asyncio.gather(*(process.wait() for process in processes))
    except (TimeoutError, asyncio.CancelledError):
        for process in processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in processes))
