"""`signalhub replay`: dry run, a process killed in the middle, run again, nothing left."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import signalhub
from signalhub import Client
from signalhub.testing import spawn_hub
from tests.pipeline.command import Command
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.scene import LogScene
from tests.support.process.command import environment

ROOT = Path(__file__).parents[2]
COUNT = 300
ORDERS = (
    "replay",
    "--where",
    "topic = 'orders'",
    "--to",
    "topic:again",
    "--json",
)

# Spark takes its time to start, above all beside other tests.
PATIENCE_S = 240.0


async def begin(url: str, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "signalhub",
        *arguments,
        cwd=ROOT,
        stdout=pipe,
        stderr=pipe,
        env=environment(url),
    )


async def copies(me: Client) -> list[Any]:
    return [one.payload["n"] async for one in me.replay("again") if one.is_replay]


async def head_reaches(me: Client, head: int) -> None:
    while (await me.topic("again")).head < head:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def sent_until(url: str, head: int, *arguments: str) -> int:
    """Begin a replay in a process of its own, kill it on its way, and say how far it came."""
    async with signalhub.connect(url, "@(demo/watcher)") as me:
        process = await begin(url, *arguments)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await head_reaches(me, head)
        finally:
            process.kill()
            await process.wait()
        return (await me.topic("again")).head


async def made(url: str) -> None:
    async with signalhub.connect(url, "@(demo/maker)") as me:
        await me.create_topic("again")


async def found(url: str) -> list[Any]:
    async with signalhub.connect(url, "@(demo/reader)") as me:
        return await copies(me)


def test_a_killed_replay_goes_on_and_sends_every_message_once_in_order(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene, command = LogScene(tmp_path), Command(capsys)
    scene.append([scene.published("orders", {"n": n}, key=f"k-{n % 7}") for n in range(COUNT)])
    scene.close()
    Lakeside(spark, tmp_path).shape("messages")
    orders = (*ORDERS, "--data", str(tmp_path))
    with asyncio.Runner() as runner:
        spawning = spawn_hub()
        hub = runner.run(spawning.__aenter__())
        try:
            monkeypatch.setenv("SIGNALHUB_URL", hub.url)
            runner.run(made(hub.url))
            dry = command(*orders, "--dry-run")
            nothing = runner.run(found(hub.url))
            after_kill = runner.run(sent_until(hub.url, 20, *orders, "--rate", "20"))
            runner.run(hub.restart())
            monkeypatch.setenv("SIGNALHUB_URL", hub.url)
            rest = command(*orders, "--rate", "0")
            done = command(*orders)
            copied = runner.run(found(hub.url))
        finally:
            runner.run(spawning.__aexit__(None, None, None))

    assert dry.code == rest.code == done.code == 0, dry.err + rest.err + done.err
    (summary,) = dry.rows()
    assert (summary["count"], summary["streams"]) == (COUNT, {"orders": COUNT})
    assert len(summary["examples"]) == 5
    assert nothing == []
    assert 20 <= after_kill < COUNT
    assert rest.rows()[0]["appended"] == COUNT - after_kill
    assert done.rows()[0]["done"] is True
    assert copied == list(range(COUNT))
