"""`signalhub pipeline up`: going on, waiting, refusing, ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from signalhub.pipeline.lake import LakeUnreachable, lake_of
from signalhub.pipeline.run import schedule
from signalhub.pipeline.run.status import PipelineStatus, folder_of, read_status
from signalhub.pipeline.source.plan import Segments
from signalhub.pipeline.tables.tables import ENTRIES, INBOX
from tests.pipeline.command import run
from tests.pipeline.scene import LogScene

PATIENCE_S = 300.0


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path / "data", segment_bytes=2**16)


def pipeline(scene: LogScene, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "signalhub", "pipeline", *arguments]
    return subprocess.run(
        [*command, "--data", str(scene.data), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def committed(scene: LogScene, table: str) -> int | None:
    epoch = Segments(scene.disk).first.epoch
    try:
        return lake_of(scene.data).committed(table, 0, epoch)
    except LakeUnreachable:
        return None


def status(scene: LogScene) -> PipelineStatus:
    return read_status(scene.data) or PipelineStatus(pid=0, state="starting")


def watch(scene: LogScene) -> None:
    """What happens around a pipeline that has no place for its lake."""
    inbox, in_the_way = "inbox.1.abcdefghijklmnopqrstuv", scene.data / "lake"
    wait_until(lambda: status(scene).state == "retrying")
    assert status(scene).failures >= 1
    assert status(scene).reason

    in_the_way.unlink()
    assert pipeline(scene, "redrive").returncode == 0
    wait_until(lambda: committed(scene, ENTRIES.name) == 119)
    wait_until(lambda: committed(scene, INBOX.name) == 119)

    second = pipeline(scene, "once")
    assert second.returncode == 5
    assert "pipeline_running" in second.stderr

    scene.append([scene.said(inbox)])
    wait_until(lambda: committed(scene, ENTRIES.name) == 120)
    schedule.ask(scene.data)
    wait_until(lambda: not (folder_of(scene.data) / "hurry").exists())


def test_a_pipeline_waits_for_its_lake_refuses_a_second_one_and_ends_when_told(
    spark: SparkSession, scene: LogScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNALHUB_PIPELINE_INBOX_S", "1")
    monkeypatch.setenv("SIGNALHUB_PIPELINE_BATCH_S", "0.2")
    scene.append([scene.said("inbox.1.abcdefghijklmnopqrstuv") for _ in range(120)])
    (scene.data / "lake").write_text("a file where the lake should be")
    faults: list[BaseException] = []

    def watch_and_end() -> None:
        try:
            watch(scene)
        except BaseException as error:
            faults.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=watch_and_end)
    watcher.start()
    code = run("pipeline", "up", "--data", str(scene.data))
    watcher.join()

    assert faults == []
    assert code == 0
    assert status(scene).state == "stopped"
