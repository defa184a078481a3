"""Killed at any point, the pipeline goes on without a gap, a duplicate or a repair.

`SIGNALHUB_PIPELINE_KILLS` is how many kills at random moments follow those at chosen points.
Without it only two points are chosen; `test_land` has batches that fail at the others.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder

from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.run import spark as jars
from signalhub.pipeline.tables.tables import ENTRIES
from tests.pipeline.landing_worker import COMMITTED, NEVER, POINTS, WRITTEN
from tests.pipeline.scene import LogScene

ROOT = Path(__file__).resolve().parents[2]
RANDOM_KILLS = int(os.environ.get("SIGNALHUB_PIPELINE_KILLS", "0"))
CHOSEN = POINTS if RANDOM_KILLS else (WRITTEN, COMMITTED)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900 + 60 * RANDOM_KILLS),
    pytest.mark.skipif(jars.java_problem() is not None, reason=str(jars.java_problem())),
]


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path, segment_bytes=2**16)


def start(data: Path, point: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.pipeline.landing_worker", str(data), point]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def landed(data: Path) -> tuple[int, int, int | None]:
    """Rows, different offsets, and the greatest one."""
    table = DeltaTable(lake_of(data).location(ENTRIES.name))
    text = 'SELECT count(*), count(DISTINCT "offset"), max("offset") FROM entries'
    found = QueryBuilder().register("entries", table).execute(text).read_all()
    row = [column.to_pylist()[0] for column in found.columns]
    return row[0], row[1], row[2]


def test_killed_at_any_point_of_a_batch_it_lands_everything_once(scene: LogScene) -> None:
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", "lake"))
    for point in CHOSEN:
        scene.publish(150)
        worker = start(scene.data, point)
        worker.communicate()
        assert worker.returncode == -signal.SIGKILL, f"it did not come to {point}"
    for _ in range(RANDOM_KILLS):
        scene.publish(150)
        worker = start(scene.data, NEVER)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        # The moment is what the test is about: anywhere between planning and checkpointing.
        time.sleep(chance.uniform(0, 8))
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
    scene.publish(150)
    undisturbed = start(scene.data, NEVER)
    undisturbed.communicate()

    assert undisturbed.returncode == 0
    assert landed(scene.data) == (scene.head, scene.head, scene.head - 1)
