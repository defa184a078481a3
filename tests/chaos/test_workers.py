"""Workers and checker together, at a hub that is honest or cheats in one way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.toy import Fault, ToyHub
from tests.support.process.campaign import campaign
from tests.support.process.history import Report
from tests.support.process.ledger import Ledger, read_ledger
from tests.support.process.lines import Acked, Attempted, Line, Received
from tests.support.process.workload import mixed, peaceful

RESTARTS = 4
PAUSE_S = 0.3
QUIET_S = 0.5


async def run(fault: Fault | None = None, restarts: int = RESTARTS) -> Report:
    """A short campaign against the toy."""
    workload = mixed(topic_rate_s=40, mailbox_rate_s=40)
    if not restarts:
        workload = peaceful(workload)
    async with ToyHub(fault) as hub, campaign(hub.port, 1, workload, quiet_s=QUIET_S) as run:
        for _ in range(restarts):
            await asyncio.sleep(PAUSE_S)
            run.hub_starts()
            hub.restart()
        await asyncio.sleep(PAUSE_S)
        return await run.finish()


async def test_an_honest_hub_is_found_honest() -> None:
    report = await run()

    assert report.anomalies == {}, report.examples
    assert report.acked > 200
    assert report.unknown == 0
    assert report.duplicates_marked > 0
    assert report.sendings > report.attempted


async def test_without_restarts_nothing_comes_twice() -> None:
    report = await run(restarts=0)

    assert report.anomalies == {}, report.examples
    assert report.acked > 50
    assert report.unknown == report.duplicates_marked == 0
    assert report.sendings == report.attempted


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("no_marks", "duplicate_unmarked"),
        ("lose_one", "lost_middle"),
        ("append_twice", "double_append"),
        ("forget_settled", "settled_again"),
        ("refuse_and_keep", "refused_delivered"),
    ],
)
async def test_a_hub_that_cheats_is_found_out(fault: Fault, name: str) -> None:
    report = await run(fault)

    assert set(report.anomalies) == {name}, report.examples


async def test_a_hub_that_keeps_no_order_is_found_out() -> None:
    report = await run("newest_first")

    assert {"non_monotonic_poll", "order_break_key"} <= set(report.anomalies)


async def test_a_hub_that_loses_what_it_acknowledged_last_is_found_out() -> None:
    report = await run("drop_tail")

    assert {"lost_middle", "seq_reuse"} <= set(report.anomalies)


def test_a_ledger_gives_back_what_was_written(tmp_path: Path) -> None:
    lines: list[Line] = [
        Attempted(1.5, "p", "orders", "p-1", 1, "key"),
        Acked(2.5, "p-1", "e1", 7),
        Received(3.5, "a#1", "e1", 7, "p-1", True),
    ]
    ledger = Ledger(tmp_path / "ledger")
    for line in lines:
        ledger.write(line)
    ledger.close()

    assert read_ledger(tmp_path / "ledger") == lines


def test_a_ledger_holds_nothing_before_it_is_synced_and_all_of_it_after(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.write(Acked(1.0, "p-1", "e1", 1))
    assert path.read_bytes() == b""

    ledger.sync()
    ledger.write(Acked(2.0, "p-2", "e1", 2))

    assert read_ledger(path) == [Acked(1.0, "p-1", "e1", 1)]
    ledger.close()


def test_a_line_that_was_never_finished_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.write(Acked(1.0, "p-1", "e1", 1))
    ledger.write(Acked(2.0, "p-2", "e1", 2))
    ledger.close()
    path.write_bytes(path.read_bytes()[:-3])

    assert read_ledger(path) == [Acked(1.0, "p-1", "e1", 1)]
