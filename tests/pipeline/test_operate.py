"""Replaying, auditing and erasing from Python, as the guides show it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import signalhub
from signalhub.operate.audit import audit
from signalhub.operate.pipeline import open_pipeline
from signalhub.operate.replay import Behind, Sending, replay
from signalhub.operate.target import UnknownTarget
from signalhub.pipeline.audit.audit import STEPS
from signalhub.pipeline.run.lock import PipelineRunning, lock_pipeline
from signalhub.settings.model import Settings
from signalhub.testing import run_hub, spawn_hub
from tests.pipeline.remains import remains
from tests.pipeline.scene import LogScene

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
ORDERS = 30
ADA = "@(people/ada)"


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stopped hub, landed in its lake."""
    folder = tmp_path_factory.mktemp("operated") / "data"
    asyncio.run(live(folder))
    with open_pipeline(Settings(data=str(folder))) as pipeline:
        assert pipeline.once().lag == 0
    return folder


async def live(data: Path) -> None:
    async with run_hub(data=str(data)) as hub, signalhub.connect(hub.url, ADA) as ada:
        await ada.create_topic("orders")
        for n in range(ORDERS):
            await ada.publish("orders", "order:new", {"n": n}, durable=True)


@pytest.fixture
def hub() -> Iterator[tuple[str, asyncio.Runner]]:
    """A hub in a process of its own, because operations block."""
    with asyncio.Runner() as runner:
        spawning = spawn_hub()
        running = runner.run(spawning.__aenter__())
        try:
            yield running.url, runner
        finally:
            runner.run(spawning.__aexit__(None, None, None))


def block_of(guide: str) -> str:
    (block,) = re.findall(
        r"^```python\n(.*?)^```", (GUIDES / guide).read_text(), re.MULTILINE | re.DOTALL
    )
    return str(block)


async def create(url: str) -> None:
    async with signalhub.connect(url, "@(demo/maker)") as me:
        await me.create_topic("again")


async def copies(url: str) -> list[Any]:
    async with signalhub.connect(url, "@(demo/reader)") as me:
        return [one.payload["n"] async for one in me.replay("again") if one.is_replay]


def test_messages_are_sent_again_as_the_guide_shows(
    data: Path, hub: tuple[str, asyncio.Runner]
) -> None:
    url, runner = hub
    runner.run(create(url))
    names: dict[str, Any] = {"data": str(data), "url": url}

    exec(block_of("replay.md"), names)

    done = names["done"]
    assert names["found"].summary.count == done.selected == done.appended == ORDERS - 10
    assert runner.run(copies(url)) == list(range(10, ORDERS))
    again = replay(names["settings"], names["where"], names["to"], url=url)
    assert (again.job, again.was_done, again.appended) == (done.job, True, 0)


def test_progress_is_reported_and_an_unknown_target_is_an_error(
    data: Path, hub: tuple[str, asyncio.Runner]
) -> None:
    url, runner = hub
    runner.run(create(url))
    events: list[Any] = []
    settings = Settings(data=str(data))

    with pytest.raises(UnknownTarget):
        replay(settings, "true", "topic:nowhere", url=url)
    nothing = replay(settings, "topic = 'none'", "again", url=url)
    replay(settings, "topic = 'orders'", "again", url=url, rate=0, progress=events.append)

    assert (nothing.job, nothing.selected) == (None, 0)
    first, *_, last = [one for one in events if not isinstance(one, Behind)]
    assert (first.total, first.sent) == (None, 0)
    assert last == Sending(first.job, ORDERS, ORDERS, ORDERS, 0)


def test_an_audit_proves_what_was_landed_and_counts_its_steps(data: Path) -> None:
    steps: list[tuple[int, int]] = []
    names: dict[str, Any] = {"data": str(data)}

    findings = audit(Settings(data=str(data)), progress=lambda *one: steps.append(one))
    exec(block_of("audit.md"), names)

    assert findings.verdict == names["findings"].verdict == "proven"
    assert steps == [(done, STEPS) for done in range(STEPS + 1)]


def test_one_pipeline_at_a_time_has_a_data_folder(tmp_path: Path) -> None:
    LogScene(tmp_path).close()
    lock = lock_pipeline(tmp_path)

    with pytest.raises(PipelineRunning), open_pipeline(Settings(data=str(tmp_path))):
        pass
    lock.close()


def test_an_actor_is_erased_as_the_guide_shows(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert remains(data, ADA)
    names: dict[str, Any] = {"data": str(data)}

    exec(block_of("erasure.md"), names)

    assert names["certificate"].state == "unreadable"
    assert names["certificate"].tables["entries"] >= ORDERS
    assert capsys.readouterr().out.startswith("searching the log\nsearching the lake\n")
