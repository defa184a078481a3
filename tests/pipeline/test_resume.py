"""Where landing continues, and the status of the pipeline; without Spark."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from signalhub.clock import SystemClock
from signalhub.locks import LockedFolder, is_hub_running
from signalhub.pipeline import lake as lakes
from signalhub.pipeline.lake import (
    Lake,
    LakeUnreachable,
    Merging,
    Position,
    application,
    lake_of,
)
from signalhub.pipeline.land.resume import EntriesMissing, LogBehindLake, epochs, resume
from signalhub.pipeline.run import run
from signalhub.pipeline.run.lock import PipelineRunning, is_pipeline_running, lock_pipeline
from signalhub.pipeline.run.progress import standing, told
from signalhub.pipeline.run.status import (
    PipelineStatus,
    announced,
    folder_of,
    read_status,
    write_status,
)
from signalhub.pipeline.source.known import LogGone
from signalhub.pipeline.source.plan import LogPosition, Segments
from signalhub.pipeline.tables.tables import CHECKPOINT_INTERVAL, ENTRIES
from signalhub.settings.model import PipelineSettings
from tests.pipeline.scene import LogScene


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    scene = LogScene(tmp_path, segment_bytes=2**16)
    scene.publish(2_000)
    return scene


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path)


def hold(lake: Lake, epoch: int, last: int) -> None:
    """Record in the table that it contains everything up to `last`."""
    properties = CommitProperties(app_transactions=[Transaction(application(0, epoch), last)])
    rows = pa.table({"offset": pa.array([], pa.int64())})
    location = lake.location(ENTRIES.name)
    write_deltalake(location, rows, mode="append", commit_properties=properties)


def epoch_of(scene: LogScene) -> int:
    return Segments(scene.disk).first.epoch


def test_a_lake_goes_on_behind_what_it_holds(scene: LogScene, lake: Lake) -> None:
    epoch = epoch_of(scene)
    assert resume(scene.disk, lake, 0) == LogPosition(epoch, 0)

    hold(lake, epoch, 1_234)

    assert resume(scene.disk, lake, 0) == LogPosition(epoch, 1_235)


def test_what_neither_log_nor_lake_has_is_named(scene: LogScene, lake: Lake) -> None:
    hold(lake, epoch_of(scene), 9)
    scene.seal()
    scene.retire(2)
    first = Segments(scene.disk).first.offset

    with pytest.raises(EntriesMissing, match=f"entries 10 to {first - 1} of epoch"):
        resume(scene.disk, lake, 0)

    hold(lake, epoch_of(scene), first - 1)
    assert resume(scene.disk, lake, 0) == LogPosition(epoch_of(scene), first)


def test_what_is_missing_at_the_start_of_a_later_epoch_is_named(tmp_path: Path, lake: Lake) -> None:
    scene = LogScene(tmp_path, segment_bytes=2**13)
    scene.publish(100, batch=20)
    scene.publish(100)
    old = epoch_of(scene)
    hold(lake, old, 199)
    scene.lose_the_end()
    scene.publish(100, batch=10)
    scene.seal()
    while (first := Segments(scene.disk).first) <= LogPosition(old + 1, 100):
        scene.retire(1)

    assert first.offset < 200, "less than the lake has of the epoch before"
    with pytest.raises(
        EntriesMissing, match=f"entries 100 to {first.offset - 1} of epoch {old + 1}"
    ):
        resume(scene.disk, lake, 0)


def test_a_log_that_is_older_than_its_lake_is_refused(scene: LogScene, lake: Lake) -> None:
    hold(lake, epoch_of(scene), 4_999)

    with pytest.raises(LogBehindLake, match=r"up to 4999 of epoch .* ends at 1999"):
        resume(scene.disk, lake, 0)


def test_after_a_new_epoch_only_what_is_new_is_behind(scene: LogScene, lake: Lake) -> None:
    hold(lake, epoch_of(scene), 1_999)
    scene.lose_the_end()
    scene.publish(5)

    found = standing(scene.data, "").facts()

    assert (found["position"], found["lag"]) == (1_900, 5)


def test_epochs_are_known_also_by_the_footers_that_are_left(scene: LogScene) -> None:
    old = epoch_of(scene)
    scene.lose_the_end()
    scene.publish(10)

    assert epochs(scene.disk) == [old, old + 1]


def test_a_table_that_was_deleted_or_made_again_is_noticed(scene: LogScene, lake: Lake) -> None:
    hold(lake, 1, 50)
    assert lake.committed(ENTRIES.name, 0, 1) == 50

    shutil.rmtree(lake.location(ENTRIES.name))
    assert lake.committed(ENTRIES.name, 0, 1) is None

    hold(lake, 1, 7)
    assert lake.committed(ENTRIES.name, 0, 1) == 7
    assert lake.committed(ENTRIES.name, 0, 2) is None


def test_a_position_is_recorded_in_a_commit_of_its_own(scene: LogScene, lake: Lake) -> None:
    name = ENTRIES.name
    assert not lake.record(name, 0, 1, 5), "there is no table"
    hold(lake, 1, 50)
    commits = Path(lake.location(name)) / "_delta_log"

    assert lake.record(name, 0, 1, 50)
    assert len(list(commits.iterdir())) == 1, "it is already recorded"
    for last in range(51, 50 + CHECKPOINT_INTERVAL):
        assert lake.record(name, 0, 1, last)
    assert Lake(lake.uri).committed(name, 0, 1) == 50 + CHECKPOINT_INTERVAL - 1
    assert not lake.record(name, 0, 1, 99), "a checkpoint is due, which Spark writes"
    assert sorted(one.suffix for one in commits.iterdir()) == [".json"] * CHECKPOINT_INTERVAL


def test_a_position_is_left_to_spark_while_somebody_else_commits(
    scene: LogScene, lake: Lake
) -> None:
    hold(lake, 1, 50)
    stale = Lake(lake.uri)
    table = stale.open(ENTRIES.name)
    commits = Path(lake.location(ENTRIES.name)) / "_delta_log"
    next_commit = commits / f"{1:020d}.json"
    next_commit.symlink_to("being-written")

    assert table is not None
    assert not stale.record(ENTRIES.name, 0, 1, 60)
    next_commit.unlink()
    assert [one.name for one in commits.iterdir()] == [f"{0:020d}.json"], "no draft is left"


EVERY = {"offset": "s.offset"}
MERGING = Merging(on="t.offset = s.offset", updated=EVERY, inserted=EVERY)


def offsets(*found: int) -> pa.Table:
    return pa.table({"offset": pa.array(found, pa.int64())})


def test_a_few_rows_are_merged_and_appended_in_private_files(lake: Lake) -> None:
    name = ENTRIES.name
    assert lake.merge(name, offsets(7), MERGING, None) is None, "there is no table"
    hold(lake, 1, 50)
    before = set(Path(lake.location(name)).rglob("*.*"))
    umask = os.umask(0o022)
    try:
        assert lake.merge(name, offsets(7, 8), MERGING, Position(0, 1, 51)) == 2
        assert lake.merge(name, offsets(8, 9), MERGING, Position(0, 1, 52)) == 2
        assert lake.append(name, offsets(10))
        nothing = Merging(on="false", updated=EVERY)
        assert lake.merge(name, offsets(11), nothing, Position(0, 1, 53)) == 0
    finally:
        os.umask(umask)

    found = lake.select(name, f"SELECT * FROM {name} ORDER BY 1")
    assert found is not None
    assert found.to_pydict() == {"offset": [7, 8, 9, 10]}
    assert Lake(lake.uri).committed(name, 0, 1) == 53
    new = set(Path(lake.location(name)).rglob("*.*")) - before
    assert len(new) > 4
    assert [one.name for one in new if one.stat().st_mode & 0o077] == []


def test_rows_are_left_to_spark_for_a_checkpoint_and_in_a_large_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ENTRIES.name
    hold(lake, 1, 50)
    assert lake.append(name, offsets(1))
    with monkeypatch.context() as patched:
        patched.setattr(lakes, "_REWRITTEN_BYTES_MAX", 1)
        assert lake.merge(name, offsets(7), MERGING, None) is None
    for last in range(51, 50 + CHECKPOINT_INTERVAL - 1):
        assert lake.record(name, 0, 1, last)

    assert lake.merge(name, offsets(7), MERGING, None) is None
    assert not lake.append(name, offsets(7))


def test_rows_are_left_to_spark_while_somebody_else_commits(lake: Lake) -> None:
    name = ENTRIES.name
    hold(lake, 1, 50)
    commits = Path(lake.location(name)) / "_delta_log"
    (commits / f"{1:020d}.json").symlink_to("being-written")

    assert lake.merge(name, offsets(7), MERGING, None) is None
    assert not lake.append(name, offsets(7))


def test_a_table_that_cannot_be_read_is_not_an_empty_one(scene: LogScene, lake: Lake) -> None:
    hold(lake, 1, 50)
    for path in (Path(lake.location(ENTRIES.name)) / "_delta_log").glob("*.json"):
        path.write_text("{ this is no commit")

    with pytest.raises(LakeUnreachable, match="check the lake's storage"):
        Lake(lake.uri).committed(ENTRIES.name, 0, 1)


def test_one_pipeline_at_a_time(tmp_path: Path) -> None:
    lock = lock_pipeline(tmp_path)
    assert is_pipeline_running(tmp_path)

    with pytest.raises(PipelineRunning, match="another pipeline"):
        lock_pipeline(tmp_path)

    lock.close()
    assert not is_pipeline_running(tmp_path)
    lock_pipeline(tmp_path).close()


def test_a_single_run_that_was_stopped_does_not_say_that_it_is_done(
    scene: LogScene, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(lake, epoch_of(scene), 1_999)
    monkeypatch.setattr(run, "forget_tables", lambda spark: None)
    monkeypatch.setattr(run, "ensure_tables", lambda *of: [])
    no_spark: Any = object()
    pipeline = run.Pipeline(no_spark, lake, scene.data, PipelineSettings())

    pipeline.stop()

    with pytest.raises(run.PipelineFailed, match="stopped before every table was up to date"):
        pipeline.once()


def test_a_running_hub_is_noticed(tmp_path: Path) -> None:
    assert not is_hub_running(tmp_path)
    folder = LockedFolder(str(tmp_path))
    assert is_hub_running(tmp_path)

    folder.close()
    assert not is_hub_running(tmp_path)


def test_a_status_is_read_as_it_was_written_and_nonsense_is_none(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    status = PipelineStatus(pid=7, state="retrying", reason="the disk is full", position=12)
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status

    (folder_of(tmp_path) / "status.json").write_text('{"pid": "many"')
    assert read_status(tmp_path) is None


def test_the_standing_of_a_lake_is_known_without_a_pipeline(scene: LogScene, lake: Lake) -> None:
    hold(lake, epoch_of(scene), 499)

    found = standing(scene.data, "")

    assert (found.state, found.hub) == ("never started", "stopped")
    assert (found.position, found.head, found.facts()["lag"]) == (500, 2_000, 1_500)
    assert found.tables[0].table == "entries"
    assert found.tables[0].behind == 1_500


def test_the_standing_counts_what_the_log_had_and_says_why_it_cannot_be_read(
    scene: LogScene, lake: Lake
) -> None:
    hold(lake, epoch_of(scene), 1_899)
    scene.close()
    last = max((scene.data / "log").glob("*.log"))
    os.truncate(last, scene.end_of(last.name) - 20)

    found = standing(scene.data, "")

    assert (found.head, found.facts()["lag"], found.lag_s) == (2_000, 100, None)
    assert found.reason == "entries 1900 to 1999 existed and are lost"


def test_a_log_that_is_gone_is_not_an_empty_one(scene: LogScene, lake: Lake) -> None:
    write_status(scene.data, PipelineStatus(pid=1, epoch=epoch_of(scene), position=2_000))
    scene.close()
    for one in (scene.data / "log").iterdir():
        one.unlink()

    with pytest.raises(LogGone, match="entries up to 1999"):
        standing(scene.data, "")
    shutil.rmtree(scene.data / "log")
    with pytest.raises(LogGone, match="does not exist"):
        standing(scene.data, "")


def test_the_lag_is_the_age_of_the_oldest_entry_that_has_not_landed(
    tmp_path: Path, lake: Lake
) -> None:
    scene, now_ms = LogScene(tmp_path), SystemClock().now_ms()
    ages_s = (5_000, 1_080, 20)
    entries = [scene.published("o", {}, at_ms=now_ms - age * 1_000) for age in ages_s]
    scene.append(entries)
    late = PipelineStatus(pid=1, state="stopped", last_batch=None)
    write_status(tmp_path, late)

    assert standing(tmp_path, "").lag_s == pytest.approx(5_000, abs=30)
    hold(lake, epoch_of(scene), 0)
    assert standing(tmp_path, "").lag_s == pytest.approx(1_080, abs=30)
    hold(lake, epoch_of(scene), 2)
    assert standing(tmp_path, "").lag_s == 0.0


class TestState:
    """What is told about a pipeline: by the lock, and by what it wrote last."""

    @pytest.fixture(autouse=True)
    def earlier(self, tmp_path: Path) -> None:
        write_status(tmp_path, PipelineStatus(pid=1, state="stopped"))

    def test_another_one_is_starting_though_the_last_one_stopped(self, tmp_path: Path) -> None:
        with closing(lock_pipeline(tmp_path)):
            assert told(tmp_path)[:2] == ("starting", "")
        assert told(tmp_path)[:2] == ("stopped", "")

    def test_one_that_starts_says_so_before_spark_does_anything(self, tmp_path: Path) -> None:
        with closing(lock_pipeline(tmp_path)), announced(tmp_path):
            status = read_status(tmp_path)
            assert status is not None
            assert (status.pid, status.state) == (os.getpid(), "starting")

    def test_one_that_could_not_start_has_failed_and_the_next_one_knows(
        self, tmp_path: Path
    ) -> None:
        for count in (1, 2):
            with pytest.raises(ValueError, match="no memory"), announced(tmp_path):
                raise ValueError("no memory\nand a stack trace")
            state, reason, status = told(tmp_path)
            assert (state, reason) == ("failed", "no memory")
            assert status is not None
            assert status.failures == count
        with closing(lock_pipeline(tmp_path)), announced(tmp_path):
            assert told(tmp_path)[:2] == ("starting", "no memory")

    def test_one_that_was_interrupted_has_stopped(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt), announced(tmp_path):
            raise KeyboardInterrupt
        assert told(tmp_path)[:2] == ("stopped", "")

    def test_one_that_was_killed_has_failed(self, tmp_path: Path) -> None:
        write_status(tmp_path, PipelineStatus(pid=7, state="running"))
        assert told(tmp_path)[:2] == (
            "failed",
            "process 7 ended unexpectedly while it was running",
        )
