"""`signalhub ls`, `discover` and `ping`: registered actors, and round-trip times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.terminal.connection import LOCAL, HubConnection, run
from signalhub.cli.terminal.output import OutputColumn
from signalhub.cli.terminal.paging import PAGE_MAX, every
from signalhub.wire.names import path_of

if TYPE_CHECKING:
    from signalhub.client import Client, Found, ListedActor

_ADDRESS = OutputColumn("address", style="cyan")
_CAPABILITIES = OutputColumn("capabilities")
_MORE = "there are more; narrow the pattern, or list all with `signalhub ls`"


def discover(
    pattern: Annotated[str, Parameter(help="Addresses; * matches any characters.")] = "*",
    /,
    *,
    capability: Annotated[str | None, Parameter(help="Only actors with this capability.")] = None,
    limit: Annotated[
        int, Parameter(validator=Number(gte=1, lte=PAGE_MAX), help="At most N actors.")
    ] = PAGE_MAX,
    connection: HubConnection = LOCAL,
) -> None:
    """Find actors by address and capability."""

    async def work(me: Client) -> Found:
        return await connection.in_time(me.discover(pattern, capability=capability, limit=limit))

    found = run(connection, work)
    rows = [{"address": actor.address, "capabilities": actor.capabilities} for actor in found]
    connection.output.table((_ADDRESS, _CAPABILITIES), rows, if_empty="no actor matches")
    if not rows and "*" not in pattern:
        path = path_of(pattern).rstrip("/")
        connection.note(f"a pattern must match the whole address: try '{path}/*'")
    if found.has_more:
        connection.remark({"has_more": True}, _MORE)


def ls(*, connection: HubConnection = LOCAL) -> None:
    """List all actors, with the time left of their leases."""

    async def work(me: Client) -> list[ListedActor]:
        return await every(
            connection,
            lambda offset: me.actors(offset=offset, limit=PAGE_MAX),
            lambda actor: actor.address,
        )

    now_ms = time.time() * 1000
    rows = [
        {
            "address": actor.address,
            "capabilities": actor.capabilities,
            "lease_s": max(0, round((actor.expires_at - now_ms) / 1000)),
            "version": actor.version,
        }
        for actor in run(connection, work)
    ]
    columns = (_ADDRESS, _CAPABILITIES, OutputColumn("lease_s", title="lease, s"))
    connection.output.table(columns, rows, if_empty="no actor is registered")


def ping(
    *,
    count: Annotated[int, Parameter(validator=Number(gte=1), help="Number of pings.")] = 4,
    interval_s: Annotated[
        float, Parameter(name="--interval", validator=Number(gte=0), help="Seconds between pings.")
    ] = 1.0,
    connection: HubConnection = LOCAL,
) -> None:
    """Measure the round-trip time to the hub."""
    import asyncio

    output = connection.output

    async def work(me: Client) -> list[float]:
        times: list[float] = []
        for number in range(1, count + 1):
            if times:
                await asyncio.sleep(interval_s)
            times.append(await connection.in_time(me.ping()) * 1000)
            facts = {"number": number, "ms": round(times[-1], 3)}
            output.fact(facts, f"{number}: {times[-1]:.2f} ms")
        return times

    times = run(connection, work)
    summary = {"min_ms": min(times), "mean_ms": sum(times) / len(times), "max_ms": max(times)}
    text = " / ".join(f"{value:.2f}" for value in summary.values())
    output.fact(
        {name: round(value, 3) for name, value in summary.items()}, f"min / mean / max: {text} ms"
    )
