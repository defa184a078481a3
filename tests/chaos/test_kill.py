"""The real hub under load, killed, frozen, stopped and set back; clients keep the evidence.

There are twelve kills, a thousand in `make soak` (or `CYCLES`). `SIGNALHUB_CHAOS_SEED` says from
which seed on. `SIGNALHUB_CHAOS_REPORT` names a file that gets one line of JSON per run, and
`SIGNALHUB_CHAOS_KEEP` a folder for the ledgers and the data of a run that shows an anomaly.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from signalhub.testing import HubProcess, spawn_hub
from tests.support.process.campaign import Campaign, campaign
from tests.support.process.history import Report
from tests.support.process.outcome import conclude, keep_evidence
from tests.support.process.workload import mixed, peaceful
from tests.support.volume import KILLS, volume

SEED = int(os.environ.get("SIGNALHUB_CHAOS_SEED", "1"))
# A round has a hub, a folder and ledgers of its own: what is judged at once fits into memory.
ROUND_CYCLES = 100
ROUNDS = [min(ROUND_CYCLES, KILLS - done) for done in range(0, KILLS, ROUND_CYCLES)]
ROUND_TIMEOUT_S = 900

KILL_AFTER_S = (0.05, 1.5)
HEALTHY_S = volume(5, 20)
PAUSES = volume(8, 20)
PAUSE_S = (0.1, 1.5)
PLANNED_STOPS = volume(4, 10)
# Messages a second of each of sixteen producers: in `make test` other tests need the cores, too.
RATE_S = volume(45, 90)

Fault = Callable[[HubProcess], Awaitable[None]]


class Lives:
    """The hub's lives in one run, and how long each took to begin."""

    def __init__(self, hub: HubProcess, run: Campaign) -> None:
        self._hub = hub
        self._run = run
        self._began_s = time.monotonic()
        self.up_s = 0.0
        self.starts_s: list[float] = []

    async def next(self, fault: Fault) -> None:
        """End this life with a fault and begin the next one."""
        await fault(self._hub)
        self.up_s += time.monotonic() - self._began_s
        self._run.hub_starts()
        started_s = time.monotonic()
        await self._hub.start()
        self._began_s = time.monotonic()
        self.starts_s.append(self._began_s - started_s)

    def over(self) -> None:
        """The producers have their last answers; what comes after is no load."""
        self.up_s += self._run.answered_at_s - self._began_s


async def kill(hub: HubProcess) -> None:
    await hub.kill()


async def stop(hub: HubProcess) -> None:
    assert await hub.stop() == 0, hub.log()


async def run_through(test: str, seed: int, faults: int, fault: Fault) -> Report:
    """A campaign whose hub meets a fault at random moments after it was ready."""
    random = Random(seed)
    async with (
        spawn_hub(message_rate=0, connection_rate=0) as hub,
        campaign(hub.port, seed, mixed(RATE_S)) as run,
    ):
        lives = Lives(hub, run)
        for _ in range(faults):
            await asyncio.sleep(random.uniform(*KILL_AFTER_S))
            await lives.next(fault)
        report = await run.finish()
        lives.over()
        keep_evidence(report, run.folder, hub.data.parent)
        assert "Traceback" not in hub.log(), hub.log()
    conclude(test, report, faults=faults, up_s=lives.up_s, starts_s=lives.starts_s)
    return report


def assert_promises_kept(report: Report) -> None:
    """Nothing acknowledged is lost, order holds, repeats are marked, everybody got an answer."""
    assert report.anomalies == {}, report
    # A hub that marks everything would have no unmarked duplicates either.
    assert report.fresh_marked == 0 < report.fresh, report
    assert "gave up" not in report.notes, report
    assert report.unknown == 0, report


@pytest.mark.timeout(ROUND_TIMEOUT_S)
@pytest.mark.parametrize(("number", "cycles"), list(enumerate(ROUNDS)))
async def test_a_hub_killed_under_load_loses_nothing_it_acknowledged(
    number: int, cycles: int
) -> None:
    report = await run_through("kill", SEED + number, cycles, kill)

    assert_promises_kept(report)
    assert report.acked > cycles * 50
    assert report.duplicates_marked > 0


@pytest.mark.timeout(ROUND_TIMEOUT_S)
async def test_planned_stops_under_load_lose_nothing() -> None:
    report = await run_through("stop", SEED, PLANNED_STOPS, stop)

    assert_promises_kept(report)
    assert report.acked > PLANNED_STOPS * 50


@pytest.mark.timeout(ROUND_TIMEOUT_S)
async def test_a_hub_left_in_peace_shows_no_anomaly_of_any_kind() -> None:
    async with (
        spawn_hub(message_rate=0, connection_rate=0) as hub,
        campaign(hub.port, SEED, peaceful(mixed(RATE_S))) as run,
    ):
        began_s = time.monotonic()
        await asyncio.sleep(HEALTHY_S)
        report = await run.finish()
        up_s = run.answered_at_s - began_s
        assert "Traceback" not in hub.log(), hub.log()
    conclude("healthy", report, faults=0, up_s=up_s)

    assert_promises_kept(report)
    assert report.acked > HEALTHY_S * 50
    assert report.sendings == report.attempted == report.acked
    assert report.duplicates_marked == 0
    assert report.notes == {}


@pytest.mark.timeout(ROUND_TIMEOUT_S)
async def test_a_hub_that_freezes_now_and_then_keeps_its_promises() -> None:
    random = Random(SEED)
    async with (
        spawn_hub(message_rate=0, connection_rate=0) as hub,
        campaign(hub.port, SEED, mixed(RATE_S)) as run,
    ):
        began_s = time.monotonic()
        for _ in range(PAUSES):
            await asyncio.sleep(random.uniform(*KILL_AFTER_S) / 3)
            hub.pause()
            await asyncio.sleep(random.uniform(*PAUSE_S))
            hub.resume()
        report = await run.finish()
        up_s = run.answered_at_s - began_s
        assert "Traceback" not in hub.log(), hub.log()
    conclude("freeze", report, faults=PAUSES, up_s=up_s)

    assert_promises_kept(report)
    assert report.acked > PAUSES * 20


@pytest.mark.timeout(ROUND_TIMEOUT_S)
async def test_a_data_folder_set_back_in_time_is_found_out() -> None:
    """The loop itself can fail: a hub that forgets a life of acknowledged entries is caught."""
    async with (
        spawn_hub(message_rate=0, connection_rate=0) as hub,
        # Some readers wait in vain for what is gone.
        campaign(hub.port, SEED, mixed(RATE_S), finish_s=5.0) as run,
    ):
        lives = Lives(hub, run)
        copy = hub.data.with_name("earlier")

        async def keep(hub: HubProcess) -> None:
            await hub.kill()
            shutil.copytree(hub.data, copy)

        async def set_back(hub: HubProcess) -> None:
            await hub.kill()
            shutil.rmtree(hub.data)
            copy.rename(hub.data)

        for fault in (keep, set_back):
            await asyncio.sleep(1.0)
            await lives.next(fault)
        await asyncio.sleep(0.5)
        report = await run.finish()

    lost = {"lost_prefix", "lost_middle", "lost_postfix"} & set(report.anomalies)
    assert lost, report
    assert report.anomalies.get("seq_reuse"), report
