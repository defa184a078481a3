"""`signalhub replay` as a process: dry run, killed in the middle, run again, nothing left."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub import Client
from signalhub.pipeline import jars
from signalhub.testing import spawn_hub
from tests.integration.test_cli import Done, environment

ROOT = Path(__file__).parents[2]
COUNT = 300
ORDERS = (
    "-m",
    "signalhub",
    "replay",
    "--where",
    "topic = 'orders'",
    "--to",
    "topic:again",
    "--json",
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(jars.java_problem() is not None, reason="there is no Java"),
]


# Spark takes its time to start, above all beside other tests.
PATIENCE_S = 240.0


# Makes a data folder with a log, and the lake of it.
FILL = """
import sys
from pathlib import Path
from signalhub.pipeline.session import open_session
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import LogScene
data = Path(sys.argv[1])
scene = LogScene(data)
count = int(sys.argv[2])
scene.append([scene.published("orders", {"n": n}, key=f"k-{n % 7}") for n in range(count)])
scene.close()
spark = open_session("local[2]", is_brief=True)
Lakeside(spark, data).shape("messages")
spark.stop()
"""


async def begin(url: str, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdout=pipe, stderr=pipe, env=environment(url)
    )


async def run(url: str, *arguments: str) -> Done:
    """Run a command to its end."""
    process = await begin(url, *arguments)
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Done(process.returncode or 0, out.decode(), err.decode())


async def copies(me: Client) -> list[Any]:
    return [one.payload["n"] async for one in me.replay("again") if one.is_replay]


async def head_reaches(me: Client, head: int) -> None:
    while (await me.topic("again")).head < head:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_a_killed_replay_goes_on_and_sends_every_message_once_in_order(
    tmp_path: Path,
) -> None:
    made = await run("", "-c", FILL, str(tmp_path), str(COUNT))
    assert made.code == 0, made.err
    orders = (*ORDERS, "--data", str(tmp_path))
    async with spawn_hub() as hub:
        async with signalhub.connect(hub.url, "@(demo/watcher)") as me:
            await me.create_topic("again")
            dry = await run(hub.url, *orders, "--dry-run")
            nothing = (await me.topic("again")).head
            process = await begin(hub.url, *orders, "--rate", "20")
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await head_reaches(me, 20)
            finally:
                process.kill()
                await process.wait()
            after_kill = (await me.topic("again")).head
        await hub.restart()
        rest = await run(hub.url, *orders, "--rate", "0")
        done = await run(hub.url, *orders)
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
