"""`signalhub pipeline` as processes: going on, waiting, refusing, ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from signalhub.pipeline.lake import LakeUnreachable, lake_of
from signalhub.pipeline.run import schedule
from signalhub.pipeline.run import spark as jars
from signalhub.pipeline.run.status import folder_of, read_status
from signalhub.pipeline.source.plan import Segments
from signalhub.pipeline.tables.tables import ENTRIES, INBOX, MESSAGES
from tests.pipeline.landing_worker import NEVER
from tests.pipeline.scene import LogScene
from tests.support.process.machine import needs_namespace

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(jars.java_problem() is not None, reason=str(jars.java_problem())),
]


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path / "data", segment_bytes=2**16)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "signalhub", "pipeline", *arguments]


@contextmanager
def running(scene: LogScene, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A pipeline in the background, ended whatever happens."""
    environment = {
        **os.environ,
        "SIGNALHUB_PIPELINE_INBOX_S": "1",
        "SIGNALHUB_PIPELINE_BATCH_S": "0.2",
    }
    process = subprocess.Popen(
        command("up", "--data", str(scene.data), "--master", "local[1]", *more),
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def committed(scene: LogScene, table: str) -> int:
    epoch = Segments(scene.disk).first.epoch
    try:
        found = lake_of(scene.data).committed(table, 0, epoch)
    except LakeUnreachable:
        return -1
    return -1 if found is None else found


def state(scene: LogScene) -> str:
    status = read_status(scene.data)
    return "" if status is None else status.state


def test_a_pipeline_waits_for_its_lake_refuses_a_second_one_and_ends_when_told(
    scene: LogScene,
) -> None:
    scene.append([scene.said("inbox.1.abcdefghijklmnopqrstuv") for _ in range(120)])
    in_the_way = scene.data / "lake"
    in_the_way.write_text("a file where the lake should be")
    with running(scene, "--beside", str(os.getpid())) as process:
        wait_until(lambda: state(scene) == "retrying")
        status = read_status(scene.data)
        assert status is not None
        assert status.failures >= 1
        assert status.reason

        in_the_way.unlink()
        asked = subprocess.run(
            command("redrive", "--data", str(scene.data)), capture_output=True, check=False
        )
        assert asked.returncode == 0
        wait_until(lambda: committed(scene, ENTRIES.name) == 119)
        wait_until(lambda: committed(scene, INBOX.name) == 119)

        second = subprocess.run(
            command("once", "--data", str(scene.data), "--json"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 5
        assert "pipeline_running" in second.stderr

        scene.append([scene.said("inbox.1.abcdefghijklmnopqrstuv")])
        wait_until(lambda: committed(scene, ENTRIES.name) == 120)
        schedule.ask(scene.data)
        wait_until(lambda: not (folder_of(scene.data) / "hurry").exists())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert state(scene) == "stopped"


def test_two_executors_land_everything_once(scene: LogScene) -> None:
    scene.publish(3_000)
    worker = ("tests.pipeline.landing_worker", str(scene.data), NEVER)
    done = subprocess.run(
        [sys.executable, "-m", *worker, "local-cluster[2,1,1024]", MESSAGES.name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "ready\n3000 3000\n"
    assert committed(scene, ENTRIES.name) == 2_999


@needs_namespace
def test_a_full_lake_is_waited_for_and_nothing_is_missing(scene: LogScene) -> None:
    scene.publish(500)
    (scene.data / "lake").mkdir()
    worker = f"{sys.executable} -m tests.pipeline.full_lake {scene.data}"
    text = f"mount -t tmpfs -o size=32m tmpfs {scene.data}/lake && {worker}"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", text],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    failures, position = done.stdout.split()
    assert int(failures) >= 1
    assert int(position) == 500
