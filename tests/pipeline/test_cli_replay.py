"""`signalhub replay` and the same from Python: looked at, killed on its way, run again, done."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import signalhub
from signalhub.operate.replay import Behind, Sending, replay
from signalhub.operate.target import UnknownTarget
from signalhub.settings.model import Settings
from signalhub.testing import HubProcess, spawn_hub
from tests.pipeline.command import Command, run_guide
from tests.pipeline.shop import ORDERS
from tests.support.process.command import environment

ROOT = Path(__file__).parents[2]
# Spark takes its time to start, above all beside other tests.
PATIENCE_S = 240.0


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def hub(runner: asyncio.Runner) -> Iterator[HubProcess]:
    """A hub in a process of its own, because operations block; it has the topic `again`."""
    spawning = spawn_hub()
    running = runner.run(spawning.__aenter__())
    try:
        runner.run(create(running.url))
        yield running
    finally:
        runner.run(spawning.__aexit__(None, None, None))


async def create(url: str) -> None:
    async with signalhub.connect(url, "@(demo/maker)") as me:
        await me.create_topic("again")


async def copies(url: str) -> list[Any]:
    async with signalhub.connect(url, "@(demo/reader)") as me:
        return [one.payload["n"] async for one in me.replay("again") if one.is_replay]


async def sent_until(url: str, head: int, *arguments: str) -> tuple[int, str]:
    """Begin a replay in a process of its own, kill it on its way; how far it came, what it said."""
    async with signalhub.connect(url, "@(demo/watcher)") as me:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "signalhub", *arguments),
            cwd=ROOT,
            env=environment(url),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (await me.topic("again")).head < head:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            process.kill()
            said = await process.stderr.read()
            await process.wait()
        return (await me.topic("again")).head, said.decode()


def test_a_killed_replay_goes_on_and_sends_every_message_once_in_order(
    shop: Path,
    hub: HubProcess,
    runner: asyncio.Runner,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = ("--where", "topic = 'orders'", "--data", str(shop))
    orders = ("replay", *where, "--to", "topic:again", "--json")
    monkeypatch.setenv("SIGNALHUB_URL", hub.url)

    dry = command(*orders, "--dry-run")
    nothing = runner.run(copies(hub.url))
    after_kill, said = runner.run(sent_until(hub.url, 5, *orders, "--rate", "2"))
    runner.run(hub.restart())
    monkeypatch.setenv("SIGNALHUB_URL", hub.url)
    rest = command(*orders, "--rate", "0")
    done = command(*orders)

    assert dry.code == rest.code == done.code == 0, dry.err + rest.err + done.err
    (summary,) = dry.rows()
    assert (summary["count"], summary["streams"]) == (ORDERS, {"orders": ORDERS})
    assert len(summary["examples"]) == 5
    assert nothing == []
    assert 5 <= after_kill < ORDERS
    # Nothing of what Java says reaches the user.
    assert "WARN" not in said
    assert "java" not in said.lower()
    assert rest.rows()[0]["appended"] == ORDERS - after_kill
    assert done.rows()[0]["done"] is True
    assert runner.run(copies(hub.url)) == list(range(ORDERS))


def test_messages_are_sent_again_as_the_guide_shows(
    shop: Path, hub: HubProcess, runner: asyncio.Runner
) -> None:
    names = run_guide("replay.md", data=str(shop), url=hub.url)

    done = names["done"]
    assert names["found"].summary.count == done.selected == done.appended == ORDERS - 10
    assert runner.run(copies(hub.url)) == list(range(10, ORDERS))
    again = replay(names["settings"], names["where"], names["to"], url=hub.url)
    assert (again.job, again.was_done, again.appended) == (done.job, True, 0)


def test_progress_is_reported_and_an_unknown_target_is_an_error(
    shop: Path, hub: HubProcess
) -> None:
    events: list[Any] = []
    settings = Settings(data=str(shop))

    with pytest.raises(UnknownTarget):
        replay(settings, "true", "topic:nowhere", url=hub.url)
    nothing = replay(settings, "topic = 'none'", "again", url=hub.url)
    where = "topic = 'orders' AND seq > 0"  # Jobs with the same words would be the same.
    replay(settings, where, "again", url=hub.url, rate=0, progress=events.append)

    assert (nothing.job, nothing.selected) == (None, 0)
    first, *_, last = [one for one in events if not isinstance(one, Behind)]
    assert (first.total, first.sent) == (None, 0)
    assert last == Sending(first.job, ORDERS, ORDERS, ORDERS, 0)
