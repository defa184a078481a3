"""Killed at any point, the pipeline goes on without a gap, a duplicate or a repair.

`SIGNALHUB_PIPELINE_KILLS` is how many kills at random moments follow those at chosen points.
Without it only the point is chosen that nothing but a kill can reach; `test_land` has batches that
fail at others.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.run import spark as jars
from signalhub.pipeline.tables.piece import FEW
from signalhub.pipeline.tables.tables import ENTRIES, MESSAGES
from tests.pipeline.landing_worker import FULL, NEVER, POINTS, WRITTEN
from tests.pipeline.scene import LogScene
from tests.support.process.machine import can_mount

ROOT = Path(__file__).resolve().parents[2]
RANDOM_KILLS = int(os.environ.get("SIGNALHUB_PIPELINE_KILLS", "0"))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900 + 60 * RANDOM_KILLS),
    pytest.mark.skipif(jars.java_problem() is not None, reason=str(jars.java_problem())),
]


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path, segment_bytes=2**16)


def start(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-m", "tests.pipeline.landing_worker", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def landed(data: Path) -> tuple[int, int, int | None]:
    """Rows, different offsets, and the greatest one."""
    query = 'SELECT count(*), count(DISTINCT "offset"), max("offset") FROM entries'
    found = lake_of(data).select(ENTRIES.name, query)
    assert found is not None
    rows, offsets, last = (column[0].as_py() for column in found.columns)
    return rows, offsets, last


def kill_at(point: str, scene: LogScene) -> None:
    scene.publish(150)
    worker = start(str(scene.data), point)
    worker.communicate()
    assert worker.returncode == -signal.SIGKILL, f"it did not come to {point}"


def kill_at_random(chance: random.Random, scene: LogScene) -> None:
    scene.publish(150)
    worker = start(str(scene.data), NEVER)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    # The moment is what the test is about: anywhere between planning and checkpointing.
    time.sleep(chance.uniform(0, 8))
    os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()


def fill_and_kill(scene: LogScene) -> int:
    """Let a lake be full for a while, and kill what lands in it; how often that failed before.

    The small file system goes with the last process that sees it, so the tables are copied.
    """
    lake, saved = scene.data / "lake", scene.data / "saved"
    lake.mkdir()
    scene.publish(150)
    scene.close()
    text = f"mount -t tmpfs -o size=32m tmpfs {lake} && setsid --wait $@; cp -r {lake} {saved}"
    namespace = ("unshare", "--map-root-user", "--mount", "sh", "-c", text, "sh")
    worker = start(FULL, str(scene.data), WRITTEN, before=namespace)
    said, _ = worker.communicate()
    shutil.rmtree(lake)
    saved.rename(lake)
    scene.reopen()
    ready, failures = said.splitlines()
    assert ready == "ready"
    return int(failures)


def test_killed_at_any_point_of_a_batch_it_lands_everything_once(scene: LogScene) -> None:
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", "lake"))
    if can_mount():
        assert fill_and_kill(scene) >= 1
        assert landed(scene.data) == (150, 150, 149)
    for point in POINTS if RANDOM_KILLS else () if can_mount() else (WRITTEN,):
        kill_at(point, scene)
    for _ in range(RANDOM_KILLS):
        kill_at_random(chance, scene)
    # So many that the executors decode them.
    scene.publish(FEW + 1)
    on_two_executors = start(str(scene.data), NEVER, "local-cluster[2,1,1024]", MESSAGES.name)
    said, _ = on_two_executors.communicate()

    assert on_two_executors.returncode == 0
    assert landed(scene.data) == (scene.head, scene.head, scene.head - 1)
    assert said.split()[-1] == str(scene.head)
