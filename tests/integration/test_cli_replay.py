"""`signalhub replay` as a process: dry run, killed in the middle, run again, nothing left.

The lake is made by `signalhub pipeline once`, so this is the whole way: hub, log, Spark, hub.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

import signalhub
from signalhub import Client
from signalhub.pipeline import jars
from signalhub.testing import HubProcess, spawn_hub
from tests.integration.test_cli import Done, environment

COUNT = 300
ORDERS = ("replay", "--where", "topic = 'orders'", "--to", "topic:again", "--json")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(jars.java_problem() is not None, reason="there is no Java"),
]


# Spark takes its time to start, above all beside other tests.
PATIENCE_S = 240.0


async def begin(hub: HubProcess, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "signalhub", *arguments, "--data", str(hub.data))
    return await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=pipe, env=environment(hub.url)
    )


async def run(hub: HubProcess, *arguments: str) -> Done:
    """Run a command to its end."""
    process = await begin(hub, *arguments)
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    return Done(process.returncode or 0, out.decode(), err.decode())


async def filled(hub: HubProcess) -> None:
    """A topic with keyed messages, and a lake that holds them."""
    async with signalhub.connect(hub.url, "@(demo/alice)") as me:
        await me.create_topic("orders")
        await me.create_topic("again")
        for n in range(COUNT):
            await me.publish("orders", "order:new", {"n": n}, durable=True, key=f"k-{n % 7}")
    landed = await run(hub, "pipeline", "once")
    assert landed.code == 0, landed.err


async def copies(me: Client) -> list[Any]:
    return [one.payload["n"] async for one in me.replay("again") if one.is_replay]


async def head_reaches(me: Client, head: int) -> None:
    while (await me.topic("again")).head < head:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_a_killed_replay_goes_on_and_sends_every_message_once_in_order() -> None:
    async with spawn_hub() as hub:
        await filled(hub)

        dry = await run(hub, *ORDERS, "--dry-run")
        async with signalhub.connect(hub.url, "@(demo/watcher)") as me:
            nothing = (await me.topic("again")).head
            process = await begin(hub, *ORDERS, "--rate", "20")
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await head_reaches(me, 20)
            finally:
                process.kill()
                await process.communicate()
            after_kill = (await me.topic("again")).head
        await hub.restart()
        rest = await run(hub, *ORDERS, "--rate", "0")
        done = await run(hub, *ORDERS)
        async with signalhub.connect(hub.url, "@(demo/reader)") as me:
            found = await copies(me)

    assert dry.code == rest.code == done.code == 0, dry.err + rest.err + done.err
    summary = json.loads(dry.out)
    assert (summary["count"], summary["streams"]) == (COUNT, {"orders": COUNT})
    assert len(summary["examples"]) == 5
    assert nothing == 0
    assert 20 <= after_kill < COUNT
    assert json.loads(rest.out)["appended"] == COUNT - after_kill
    assert json.loads(done.out)["done"] is True
    assert found == list(range(COUNT))
