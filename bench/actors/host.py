"""A host as a separate process, stopped by SIGTERM.

    python -m bench.actors.host DATA URL NAME KINDS [OVERDUE]

It prints `NAME is connected`. With a number of overdue alarms it prints, when all have run, a JSON
line with the times at which it was opened, connected, and ran the first and the last of them.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time

from bench.actors import roles
from signalhub.actors import Actor, DurableConfig
from signalhub.actors.host.host import Host

_POLL_S = 0.005
KINDS: dict[str, type[Actor]] = {
    one.kind: one for one in (roles.Caller, roles.Callee, roles.Keeper)
}


async def serve(data: str, url: str, name: str, kinds: str, overdue: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    classes = [KINDS[kind] for kind in kinds.split(",")]
    foreign = KINDS.keys() - {one.kind for one in classes}
    opened = time.monotonic()
    host = Host(
        *classes,
        data=data,
        url=url,
        name=name,
        foreign=foreign,
        config=DurableConfig(durability="power"),
    )
    async with host:
        started = time.monotonic()
        await host.is_connected.wait()
        connected = time.monotonic()
        print(f"{name} is connected", flush=True)
        if overdue:
            # The kernel's thread counts them.
            while roles.Keeper.fired < overdue and not stopped.is_set():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            facts = {
                "opened": opened,
                "started": started,
                "connected": connected,
                "first": roles.Keeper.first_at,
                "last": roles.Keeper.last_at,
            }
            print(json.dumps(facts), flush=True)
        await stopped.wait()


def main(data: str, url: str, name: str, kinds: str, overdue: str = "0") -> None:
    asyncio.run(serve(data, url, name, kinds, int(overdue)))


if __name__ == "__main__":
    main(*sys.argv[1:])
