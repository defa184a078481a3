"""`signalhub bench`, with clients in processes of their own."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import signalhub
from signalhub.testing import RunningHub, run_hub
from tests.support.process.command import Run, command, sheet, unused_url
from tests.support.socket.tokens import AUTH, token_for

SHORT = ("--rate", "100", "--for", "200ms", "--processes", "2")


async def test_a_load_is_measured_compared_and_leaves_nothing(
    hub: RunningHub, run: Run, tmp_path: Path
) -> None:
    first = await run("bench", "durable", *SHORT, "--json")
    before = tmp_path / "before.json"
    before.write_text(first.out)
    again = await run("bench", "durable", *SHORT, "--compare", str(before))
    async with signalhub.connect(hub.url, "@(demo/alice)") as me:
        topics = await me.topics()

    facts = json.loads(first.out)
    assert (first.code, first.err) == (0, "")
    assert (facts["sent"], facts["received"], facts["missing"]) == (20, 20, 0)
    assert facts["hub_cpu_us"] > 0
    assert {"rate", "latency_ms", "lag_ms", "failed", "machine", "notes"} <= facts.keys()
    assert facts["plan"]["processes"] == 2
    lines = {line.split("\t")[0]: line.split("\t")[1:] for line in again.out.splitlines()}
    assert lines["sent"] == ["", "20", ""]
    assert float(lines["rate"][0]) == facts["rate"]
    assert float(lines["latency_ms.p50"][2]) > 0
    assert len(topics) == 0


async def test_a_hub_that_others_use_is_not_loaded_without_being_told_to() -> None:
    async with run_hub(auth=AUTH) as hub:
        permissions = {"register": ["bench/*"], "send": ["bench/*"]}
        token = token_for("bench/anna", hub.clock, permissions=permissions)
        run = partial(command, hub.url, variables={"SIGNALHUB_TOKEN": token})
        refused = await run("bench", "tell", *SHORT)
        forbidden = await run("bench", "fanout", "--yes", *SHORT, "--clients", "2")
        measured = await run("bench", "tell", "--yes", *SHORT)

    assert (refused.code, refused.out) == (2, "")
    assert "use --yes" in refused.err
    assert (forbidden.code, measured.code) == (1, 0)
    assert "unauthorized" in forbidden.err or "not permit" in forbidden.err
    assert sheet(measured)["received"] == "20"


async def test_what_cannot_be_measured_says_why(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("nonsense")

    nowhere = await command(unused_url(), "bench", "ask", *SHORT)
    too_much = await run("bench", "ask", "--rate", "1000000")
    nonsense = await run("bench", "ask", "--compare", str(tmp_path / "x.json"))

    assert (nowhere.code, too_much.code, nonsense.code) == (3, 2, 2)
    assert "choose another --rate" in too_much.err
    assert "is not a result of `signalhub bench`" in nonsense.err
