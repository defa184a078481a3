"""`signalhub jobs` against a hub."""

from __future__ import annotations

import pytest

from signalhub import Client
from signalhub.client import Original
from tests.support.process.command import Run, columns


async def test_jobs_are_listed_with_what_became_of_them(run: Run, me: Client) -> None:
    assert (await run("jobs")).out == ""
    await me.create_topic("orders")
    copy = Original(epoch=1, offset=1, id="m", type="note")
    await me.republish("nightly", [copy], until=(1, 9), topic="orders")
    await me.erase(actor="@(demo/nobody)")

    shown = columns(await run("jobs"))
    rows = (await run("jobs", "--json")).rows()
    (newest,) = (await run("jobs", "--limit", "1", "--json")).rows()

    erasure, replay = rows
    assert (erasure["operation"], erasure["state"]) == ("erase", "done")
    assert (replay["job"], replay["operation"], replay["state"]) == (
        "nightly",
        "republish",
        "running",
    )
    assert (replay["identity"], replay["ended_at"]) == (me.address, None)
    assert replay["began_at"] > 1_700_000_000_000
    assert shown[-1][2:5] == ["republish", "running", me.address]
    assert newest == rows[0]


async def test_a_job_whose_driver_has_gone_is_interrupted(run: Run, me: Client) -> None:
    await me.create_topic("orders")
    copy = Original(epoch=1, offset=1, id="m", type="note")
    await me.republish("nightly", [copy], until=(1, 9), topic="orders")
    await me.close()

    (row,) = (await run("jobs", "--json")).rows()

    assert row["state"] == "interrupted"


@pytest.mark.parametrize("limit", ["0", "101", "many"])
async def test_a_limit_that_makes_no_sense_is_refused(run: Run, limit: str) -> None:
    assert (await run("jobs", "--limit", limit)).code == 2
