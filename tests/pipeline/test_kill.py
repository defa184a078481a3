"""Killed at any point, the pipeline continues without a gap, a duplicate or a repair.

`make soak` kills it at every chosen point and then at random moments. In `make test` the only point
is one that nothing but a kill can reach; `test_land` has batches that fail at others. All of it
happens in other processes, so it runs beside the tests that share a Spark session.
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
from signalhub.pipeline.tables.piece import FEW
from signalhub.pipeline.tables.tables import ENTRIES, MESSAGES
from tests.pipeline.landing_worker import FULL, NEVER, POINTS, WRITTEN
from tests.pipeline.scene import LogScene
from tests.support.process.machine import can_mount
from tests.support.volume import PIPELINE_KILLS

ROOT = Path(__file__).resolve().parents[2]
# Enough that the executors decode them.
MANY = FEW + 1
ON_TWO_EXECUTORS = (WRITTEN, "local-cluster[2,1,1024]", MESSAGES.name)


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path, segment_bytes=2**16)


def start(scene: LogScene, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    worker = [sys.executable, "-m", "tests.pipeline.landing_worker", str(scene.data)]
    return subprocess.Popen(
        [*before, *worker, *arguments],
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
    worker = start(scene, point)
    worker.communicate()
    assert worker.returncode == -signal.SIGKILL, f"it did not come to {point}"


def kill_at_random(chance: random.Random, scene: LogScene) -> None:
    scene.publish(150)
    worker = start(scene, NEVER)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    # The moment is what the test is about: anywhere between planning and checkpointing.
    time.sleep(chance.uniform(0, 8))
    os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()


def land_and_kill(scene: LogScene) -> int:
    """Land many entries with two executors, which decode them, and kill that at the next batch."""
    scene.publish(MANY)
    scene.close()
    if can_mount():
        said = fill_and_kill(scene)
    else:
        said, _ = start(scene, *ON_TWO_EXECUTORS).communicate()
    scene.reopen()
    ready, found = said.splitlines()
    rows, failures = map(int, found.split())
    assert (ready, rows) == ("ready", MANY)
    return failures


def fill_and_kill(scene: LogScene) -> str:
    """The same in a lake that is full at first; what was said.

    The small file system goes with the last process that sees it, so the tables are copied.
    """
    lake, saved = scene.data / "lake", scene.data / "saved"
    lake.mkdir()
    text = f"mount -t tmpfs -o size=32m tmpfs {lake} && setsid --wait $@; cp -r {lake} {saved}"
    namespace = ("unshare", "--map-root-user", "--mount", "sh", "-c", text, "sh")
    said, _ = start(scene, *ON_TWO_EXECUTORS, FULL, before=namespace).communicate()
    shutil.rmtree(lake)
    saved.rename(lake)
    return said


def finish(scene: LogScene) -> int:
    """Land the rest, and a little more; how many rows `messages` took in before that."""
    scene.close()
    worker = start(scene, NEVER, "local[1]", MESSAGES.name)
    said, _ = worker.communicate()
    assert worker.returncode == 0
    scene.reopen()
    ready, found = said.splitlines()
    rows, _failures = map(int, found.split())
    assert ready == "ready"
    return rows


@pytest.mark.timeout(900 + 60 * PIPELINE_KILLS)
@pytest.mark.usefixtures("java")
def test_killed_at_any_point_of_a_batch_it_lands_everything_once(scene: LogScene) -> None:
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", "lake"))
    failures = land_and_kill(scene)
    assert failures >= 1 or not can_mount()
    assert landed(scene.data) == (MANY, MANY, MANY - 1)
    assert scene.head > MANY
    for point in POINTS if PIPELINE_KILLS else ():
        kill_at(point, scene)
    for _ in range(PIPELINE_KILLS):
        kill_at_random(chance, scene)
    missing = scene.head - MANY

    assert finish(scene) == missing

    assert landed(scene.data) == (scene.head, scene.head, scene.head - 1)
