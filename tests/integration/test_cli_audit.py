"""`signalhub sql` and `signalhub audit` as their users run them, after the life of a real hub."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import signalhub
from signalhub.pipeline import jars
from signalhub.testing import spawn_hub

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command; starting Spark alone takes seconds."""
    return subprocess.run(
        [sys.executable, "-m", "signalhub", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={k: v for k, v in os.environ.items() if not k.startswith("SIGNALHUB_DATA")},
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a hub leaves behind, landed."""
    if problem := jars.java_problem():
        pytest.skip(problem)
    folder = tmp_path_factory.mktemp("cli") / "data"
    asyncio.run(_live(folder))
    done = run("pipeline", "once", "--data", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


async def _live(data: Path) -> None:
    async with spawn_hub() as hub:
        async with signalhub.connect(hub.url, "@(demo/alice)") as alice:
            await alice.create_topic("orders")
            for number in range(20):
                await alice.publish("orders", "order:new", {"n": number}, durable=True)
        await hub.stop()
        shutil.copytree(hub.data, data)


def test_a_query_is_answered_and_a_command_refused(data: Path) -> None:
    query = "SELECT payload:n::int AS n, seq, accepted_at FROM messages ORDER BY seq"

    found = run("sql", query, "--data", str(data), "--format", "csv", "--limit", "2")
    refused = run("sql", "DROP TABLE messages", "--data", str(data))

    header, *rows = csv.reader(found.stdout.splitlines())
    assert found.returncode == 0, found.stderr
    assert header == ["n", "seq", "accepted_at"]
    assert [row[:2] for row in rows] == [["0", "1"], ["1", "2"]]
    assert rows[0][2].endswith("Z")
    assert "there are more" in found.stderr
    assert refused.returncode == 2
    assert "only queries are run, and this is DROP TABLE" in refused.stderr
    assert "Exception" not in refused.stderr


def test_the_audit_proves_and_then_misses_what_was_cut_off(data: Path) -> None:
    proven = run("audit", "--data", str(data))
    last = sorted((data / "log").glob("*.log"))[-1]
    os.truncate(last, 1_500)
    wrong = run("audit", "--data", str(data), "--json")

    assert proven.returncode == 0, proven.stdout + proven.stderr
    assert proven.stdout.splitlines()[-1].startswith("Proven: ")
    assert ", 0 gaps, 0 duplicates, 0 reorders, " in proven.stdout
    *hours, closing = map(json.loads, wrong.stdout.splitlines())
    assert wrong.returncode == 1, wrong.stderr
    assert closing["verdict"] == "wrong"
    assert any("gone" in text for hour in hours for text in hour["exceptions"])


def test_where_there_is_no_lake_the_way_to_one_is_shown(tmp_path: Path) -> None:
    for command in (("sql", "SELECT 1"), ("audit",)):
        done = run(*command, "--data", str(tmp_path))

        assert done.returncode == 2
        assert f"signalhub pipeline once --data {tmp_path}" in done.stderr
