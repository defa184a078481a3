"""The commands of the lake, after the life of a real hub: once, sql, audit and erase."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import signalhub
from signalhub.log.disk import SystemDisk
from signalhub.log.verify import verify
from signalhub.testing import spawn_hub
from tests.pipeline.command import Command, run
from tests.pipeline.remains import remains
from tests.pipeline.scene import LogScene

ADA = "@(people/ada)"
BOB = "@(people/bob)"
SECRET = "theanalyticalengineweaves"
PLAIN = "ploughmen-homeward-plod"


@pytest.fixture
def command(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


async def _live(data: Path) -> None:
    """Orders, a note of Ada's, and one to her, who is away."""
    async with spawn_hub() as hub:
        async with signalhub.connect(hub.url, BOB) as bob:
            await bob.create_topic("orders")
            for number in range(20):
                await bob.publish("orders", "order:new", {"n": number}, durable=True)
            async with signalhub.connect(hub.url, ADA, durable=True) as ada:
                await ada.publish("orders", "note", SECRET, durable=True)
            await bob.publish("orders", "note", PLAIN, durable=True)
        await hub.stop()
        shutil.copytree(hub.data, data)


@pytest.fixture(scope="module")
def landed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a hub leaves behind, with its lake."""
    folder = tmp_path_factory.mktemp("landed") / "data"
    asyncio.run(_live(folder))
    assert run("pipeline", "once", "--data", str(folder)) == 0
    return folder


@pytest.fixture
def data(landed: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    copy = tmp_path / "data"
    shutil.copytree(landed, copy)
    return copy


def test_what_was_landed_is_found_and_proven(landed: Path, command: Command) -> None:
    place = ("--data", str(landed))
    again = command("pipeline", "once", *place, "--json")
    query = (
        "SELECT payload:n::int AS n, seq, accepted_at FROM messages WHERE seq <= 20 ORDER BY seq"
    )

    found = command("sql", query, *place, "--format", "csv", "--limit", "2")
    refused = command("sql", "DROP TABLE messages", *place)
    proven = command("audit", *place)

    (summary,) = again.rows()
    assert again.code == 0, again.err
    assert (summary["rows"], summary["lag"]) == (0, 0)
    assert summary["position"] > 22
    header, *rows = csv.reader(found.out.splitlines())
    assert found.code == 0, found.err
    assert header == ["n", "seq", "accepted_at"]
    assert [row[:2] for row in rows] == [["0", "1"], ["1", "2"]]
    assert rows[0][2].endswith("Z")
    assert "use --limit N to see more" in found.err
    assert refused.code == 2
    assert "only queries are run, and this is DROP TABLE" in refused.err
    assert "Exception" not in refused.err
    assert proven.code == 0, proven.out + proven.err
    assert proven.out.splitlines()[-1].startswith("Proven: ")
    assert ", 0 gaps, 0 duplicates, 0 reorders, " in proven.out


def test_a_process_says_what_was_asked_for_and_nothing_else(landed: Path) -> None:
    def process(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "signalhub", *arguments, "--data", str(landed)]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    query = "SELECT seq FROM messages ORDER BY seq LIMIT 2"
    # Both at once: while one starts, the other works.
    with ThreadPoolExecutor() as both:
        asking = both.submit(process, "sql", query, "--format", "json")
        proving = both.submit(process, "audit", "--json")
        found, proven = asking.result(), proving.result()

    assert (found.returncode, found.stdout) == (0, '{"seq":1}\n{"seq":2}\n'), found.stderr
    assert found.stderr == ""
    assert proven.returncode == 0, proven.stderr
    verdicts = [json.loads(line)["verdict"] for line in proven.stdout.splitlines()]
    assert verdicts[1:]
    assert set(verdicts) == {"proven"}
    assert "WARN" not in proven.stderr
    assert "java" not in proven.stderr.lower()


def test_a_table_that_is_behind_is_named_beside_the_answer(data: Path, command: Command) -> None:
    shutil.rmtree(data / "lake" / "deliveries")
    create = command("sql", "SELECT count(*) FROM deliveries", "--data", str(data))
    scene = LogScene(data)
    scene.publish(3)
    scene.close()

    found = command("sql", "SELECT count(*) AS n FROM messages", "--data", str(data))

    assert create.code == 2
    assert "deliveries is not there yet" in create.err
    assert (found.code, found.out) == (0, "22\n")
    assert "messages by 3 entries; run `signalhub pipeline once" in found.err


def test_what_was_cut_off_the_log_is_missed(data: Path, command: Command) -> None:
    os.truncate(sorted((data / "log").glob("*.log"))[-1], 1_500)

    wrong = command("audit", "--data", str(data), "--json")

    *hours, closing = wrong.rows()
    assert wrong.code == 1, wrong.err
    assert closing["verdict"] == "wrong"
    assert any("lost" in text for hour in hours for text in hour["exceptions"])


def test_nothing_of_an_actor_is_left_in_log_lake_or_state_and_the_rest_is_proven(
    data: Path, command: Command
) -> None:
    place = ("--data", str(data), "--json")
    assert remains(data / "lake", SECRET)

    done = command("erase", "--actor", ADA, "--now", "--yes", *place)
    landed = command("pipeline", "once", *place)
    proof = command("audit", *place)

    assert done.code == 0, done.err
    (found,) = done.rows()
    assert found["state"] == "gone"
    assert found["tables"]["entries"] >= 1
    assert remains(data, SECRET) == []
    assert remains(data, ADA) == []
    assert remains(data / "lake", PLAIN)
    assert verify(SystemDisk(data / "log", read_only=True)).is_sound
    assert landed.code == 0, landed.err
    assert proof.code == 0, proof.out


def test_where_there_is_no_lake_the_way_to_one_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("sql", "SELECT 1"), ("audit",)):
        done = Command(capsys)(*arguments, "--data", str(tmp_path))

        assert done.code == 2
        assert f"signalhub pipeline once --data {tmp_path}" in done.err.replace("\n", " ")
