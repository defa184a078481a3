"""One process with clients: reads its part of a load on standard input, prints what it has seen.

The first line it reads is its order; it prints a line when it is ready, reads when to start, and
prints its result. The token comes with the order, because arguments are visible to everybody.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import selectors
import sys
import time
from typing import Any, Final

import msgspec

from signalhub.operate.bench.loads import LOADS, Load, drive
from signalhub.operate.bench.plan import LoadPlan
from signalhub.wire.errors import ClientError

# A selector that knows microseconds takes no more sockets than this; the usual one rounds waits up
# to milliseconds.
_PRECISE_MAX: Final = 400


class WorkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one process."""

    plan: LoadPlan
    process: int
    url: str
    token: str | None
    grace_s: float


class WorkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has seen."""

    sent: int
    received: int
    failed: dict[str, int]
    latencies: dict[int, int]
    largest_us: int
    lags: dict[int, int]
    largest_lag_us: int
    last_ns: int
    cpu_s: float


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a process could not do its part."""

    code: str
    message: str
    resolution: str = ""


def result_of(load: Load, cpu_s: float) -> WorkResult:
    """What a load has seen, as it is sent."""
    meter = load.meter
    return WorkResult(
        sent=meter.sent,
        received=meter.received,
        failed=dict(meter.failed),
        latencies=meter.latencies.counts,
        largest_us=meter.latencies.largest_us,
        lags=meter.lags.counts,
        largest_lag_us=meter.lags.largest_us,
        last_ns=meter.last_ns,
        cpu_s=cpu_s,
    )


async def work(order: WorkOrder) -> None:
    """Do the part of one process."""
    load = LOADS[order.plan.kind](order.plan, order.process, order.url, order.token)
    try:
        await load.prepare()
        _say("ready", True)
        start_ns = await asyncio.to_thread(_start_ns)
        before_s = time.process_time()
        await drive(load, start_ns, order.grace_s)
        _say("result", result_of(load, time.process_time() - before_s))
    finally:
        await load.finish()


def main() -> int:
    """Run until the part is done."""
    logging.getLogger("signalhub.client").addHandler(logging.NullHandler())
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkOrder)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    is_small = len(order.plan.clients_of(order.process)) <= _PRECISE_MAX

    def loop() -> asyncio.AbstractEventLoop:
        selector = selectors.SelectSelector() if is_small else selectors.DefaultSelector()
        return asyncio.SelectorEventLoop(selector)

    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(work(order))
    except ClientError as error:
        problem = Problem(
            code=error.code, message=str(error), resolution=getattr(error, "resolution", "")
        )
        _say("problem", problem)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _start_ns() -> int:
    line = sys.stdin.buffer.readline()
    # Without a line, the command has ended.
    return int(line) if line.strip() else sys.exit(1)


def _say(what: str, fact: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode({what: fact}) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
