"""The commands of the lake, and the same from Python as the guides show it."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.verify import verify
from signalhub.operate.pipeline import open_pipeline
from signalhub.pipeline.run.lock import PipelineRunning, lock_pipeline
from signalhub.settings.model import Settings
from tests.pipeline.command import Command, run_guide
from tests.pipeline.remains import remains
from tests.pipeline.scene import LogScene
from tests.pipeline.shop import ADA, ORDERS, PLAIN, SECRET


@pytest.fixture
def data(shop: Path, tmp_path: Path) -> Path:
    """The shop, to be changed."""
    return shutil.copytree(shop, tmp_path / "data")


def test_what_was_landed_is_found(shop: Path, command: Command) -> None:
    place = ("--data", str(shop))
    query = "SELECT payload:n::int AS n, seq, accepted_at FROM messages WHERE topic = 'orders'"

    again = command("pipeline", "once", *place, "--json")
    found = command("sql", f"{query} ORDER BY seq", *place, "--format", "csv", "--limit", "2")
    line = command("sql", "SELECT max(seq) AS last FROM messages", *place, "--format", "json")
    refused = command("sql", "DROP TABLE messages", *place)

    (summary,) = again.rows()
    assert again.code == 0, again.err
    assert (summary["rows"], summary["lag"]) == (0, 0)
    assert summary["position"] > ORDERS
    header, *rows = csv.reader(found.out.splitlines())
    assert found.code == 0, found.err
    assert header == ["n", "seq", "accepted_at"]
    assert [row[:2] for row in rows] == [["0", "1"], ["1", "2"]]
    assert rows[0][2].endswith("Z")
    assert "use --limit N to see more" in found.err
    assert line.out == f'{{"last":{ORDERS}}}\n'
    assert refused.code == 2
    assert "DROP TABLE is not supported" in refused.err
    assert "Exception" not in refused.err


def test_the_lake_can_be_read_only_by_its_owner(shop: Path) -> None:
    found = [*(shop / "lake").rglob("*"), *(shop / "pipeline").rglob("*")]

    assert len(found) > 20
    assert [f"{one} {one.stat().st_mode:o}" for one in found if one.stat().st_mode & 0o077] == []


def test_a_table_that_is_behind_is_named_beside_the_answer(data: Path, command: Command) -> None:
    shutil.rmtree(data / "lake" / "deliveries")
    missing = command("sql", "SELECT count(*) FROM deliveries", "--data", str(data))
    scene = LogScene(data)
    scene.publish(3)
    scene.close()

    found = command("sql", "SELECT count(*) AS n FROM messages", "--data", str(data))

    assert missing.code == 2
    assert "deliveries does not exist yet" in missing.err
    assert (found.code, found.out) == (0, f"{ORDERS + 2}\n")
    assert "messages by 3 entries; run `signalhub pipeline once" in found.err


def test_what_was_landed_is_proven_as_the_guide_shows(data: Path) -> None:
    names = run_guide("audit.md", data=str(data))

    assert names["findings"].verdict == "proven"
    assert names["findings"].total("distinct_rows") == names["findings"].head.offset


def test_nothing_of_an_actor_is_left_in_log_lake_or_state_and_the_rest_is_proven(
    data: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--data", str(data), "--json")
    assert remains(data / "lake", SECRET)

    certificate = run_guide("erasure.md", data=str(data))["certificate"]
    said = capsys.readouterr().out
    done = command("erase", "--actor", ADA, "--now", "--yes", *place)
    landed = command("pipeline", "once", *place)
    proof = command("audit", "--data", str(data))

    assert certificate.state == "unreadable"
    assert certificate.tables["entries"] >= 1
    assert said.startswith("searching the log\nsearching the lake\n")
    assert done.code == 0, done.err
    (found,) = done.rows()
    assert found["state"] == "gone"
    assert remains(data, SECRET) == []
    assert remains(data, ADA) == []
    assert remains(data / "lake", PLAIN)
    assert verify(SystemDisk(data / "log", read_only=True)).is_sound
    assert landed.code == 0, landed.err
    assert proof.code == 0, proof.out
    assert proof.out.splitlines()[-1].startswith("Proven: ")
    assert ", 0 gaps, 0 duplicates, 0 reorders, " in proof.out


def test_where_there_is_no_lake_the_way_to_one_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("sql", "SELECT 1"), ("audit",)):
        done = Command(capsys)(*arguments, "--data", str(tmp_path))

        assert done.code == 2
        assert f"signalhub pipeline once --data {tmp_path}" in done.err.replace("\n", " ")


def test_one_pipeline_at_a_time_has_a_data_folder(tmp_path: Path) -> None:
    LogScene(tmp_path).close()
    lock = lock_pipeline(tmp_path)

    with pytest.raises(PipelineRunning), open_pipeline(Settings(data=str(tmp_path))):
        pass
    lock.close()


def test_a_shell_answers_many_questions_and_leaves_nothing_in_the_current_folder(
    shop: Path, tmp_path: Path
) -> None:
    asked = "SELECT count(*) AS n\nFROM entries;\n\\d audit\nSELECT nonsense;\nSELECT 6 * 7 AS n"
    done = subprocess.run(
        [sys.executable, "-m", "signalhub", "sql", "--format", "csv", "--data", str(shop)],
        cwd=tmp_path,
        input=asked,
        capture_output=True,
        text=True,
        check=False,
    )

    counted, *described, name, answer = done.stdout.splitlines()[1:]
    assert int(counted) > 0
    assert any("run_id" in line for line in described)
    assert (name, answer) == ("n", "42")
    assert done.stderr.startswith("signalhub: ")
    assert "nonsense" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
    assert list((shop / "pipeline" / "spark").iterdir()) == []
