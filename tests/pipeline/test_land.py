"""Landing: every entry is in `entries` exactly once, whatever happened before."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from signalhub.log.verify import verify
from signalhub.pipeline.commit import LOG
from signalhub.pipeline.lake import Lake, Position
from signalhub.pipeline.land.files import WrittenFile, can_write
from signalhub.pipeline.land.land import CheckpointAhead, Landing, entries_of
from signalhub.pipeline.land.resume import EntriesMissing
from signalhub.pipeline.run.progress import standing
from signalhub.pipeline.run.run import Pipeline, PipelineFailed, RunSummary
from signalhub.pipeline.run.schedule import ask
from signalhub.pipeline.run.status import folder_of, read_status
from signalhub.pipeline.source.plan import LogPosition, Segments
from signalhub.pipeline.tables.tables import CHECKPOINT_INTERVAL, ENTRIES, QUARANTINE
from signalhub.privacy import FILE_MODE
from signalhub.settings.model import PipelineSettings as Settings
from signalhub.wire.entry import Entry, Kind
from tests.pipeline.scene import NOON_MS, LogScene, flip

Once = Callable[..., RunSummary]
FEED = "delta.enableChangeDataFeed"


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path, segment_bytes=2**16)


@pytest.fixture
def once(spark: SparkSession, tmp_path: Path, lake: Lake) -> Once:
    def run(*, accept_gap: bool = False) -> RunSummary:
        # The derived tables have tests of their own.
        pipeline = Pipeline(spark, lake, tmp_path, Settings(), tables=())
        return pipeline.once(accept_gap=accept_gap)

    return run


def selected(lake: Lake, table: str, what: str) -> list[dict[str, Any]]:
    found = lake.select(table, f"SELECT {what} FROM {table}")
    assert found is not None
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def assert_dense(lake: Lake, count: int) -> None:
    offset = '"offset"'
    (found,) = selected(
        lake,
        ENTRIES.name,
        f"count({offset}), count(DISTINCT {offset}), min({offset}), max({offset})",
    )
    assert tuple(found.values()) == (count, count, 0, count - 1)


def test_what_was_landed_is_not_landed_again(scene: LogScene, lake: Lake, once: Once) -> None:
    assert once().rows == 0, "the log was just made"
    scene.publish(300)

    assert once().rows == 300
    assert once().rows == 0

    assert_dense(lake, 300)
    epoch = Segments(scene.disk).first.epoch
    assert lake.committed(ENTRIES.name, 0, epoch) == 299


def test_a_lost_checkpoint_is_no_loss(scene: LogScene, lake: Lake, once: Once) -> None:
    scene.publish(200)
    once()
    shutil.rmtree(folder_of(scene.data) / "checkpoint")
    scene.publish(200)

    assert once().rows == 200

    assert_dense(lake, 400)


def test_a_checkpoint_ahead_of_its_table_gives_way(
    spark: SparkSession, scene: LogScene, lake: Lake, once: Once
) -> None:
    scene.publish(100)
    once()
    entries, older = lake.location(ENTRIES.name), scene.data / "older"
    shutil.copytree(entries, older)
    scene.publish(100)
    once()
    checkpoint = folder_of(scene.data) / "checkpoint"
    batch_id = max(int(one.name) for one in (checkpoint / "offsets").iterdir())
    landing = Landing(
        spark=spark, lake=lake, data=scene.data, checkpoint=checkpoint, report=lambda batch: None
    )
    shutil.rmtree(entries)
    # That may happen while the query runs.
    with pytest.raises(CheckpointAhead, match="needs 0 next"):
        landing.land(spark.createDataFrame([], ENTRIES.ddl), batch_id)
    shutil.copytree(older, entries)
    scene.publish(50)

    assert once().rows == 150

    assert_dense(lake, 250)


def test_a_batch_that_fails_before_or_after_its_commit_is_landed_once(
    spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    scene.publish(150)
    failures: list[str] = []

    def fail(when: str) -> NoReturn:
        failures.append(when)
        pipeline.hurry()
        raise OSError(f"the disk was full {when} it was committed")

    class FailingLanding(Landing, frozen=True, kw_only=True):
        def land(self, batch: DataFrame, batch_id: int) -> None:
            if not failures:
                fail("before")
            super().land(batch, batch_id)
            if failures == ["before"]:
                fail("after")

    pipeline = Pipeline(spark, lake, scene.data, Settings(), landing=FailingLanding, tables=())

    assert pipeline.once().rows == 150

    assert failures == ["before", "after"]
    assert_dense(lake, 150)


class Interrupted(Landing, frozen=True, kw_only=True):
    """Fails once, before or after its commit, and tries again at once."""

    failures: ClassVar[list[str]] = []
    fail_at: ClassVar[str] = ""

    def fail(self, when: str) -> None:
        if self.fail_at == when and when not in self.failures:
            self.failures.append(when)
            ask(self.data)
            raise OSError(f"the disk was full {when} the commit")

    def commit(
        self, found: Sequence[WrittenFile], position: Position, committed: int | None
    ) -> None:
        self.fail("before")
        super().commit(found, position, committed)
        self.fail("after")


@pytest.mark.parametrize("when", ["before", "after"])
def test_files_count_when_they_are_committed_and_then_once(
    when: str, spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    scene.publish(150)
    scene.append([Entry(Kind.PUBLISHED, "orders", 1, 1, NOON_MS, b"\xc1 no MessagePack")])

    class Once(Interrupted, frozen=True, kw_only=True):
        failures: ClassVar[list[str]] = []
        fail_at: ClassVar[str] = when

    pipeline = Pipeline(spark, lake, scene.data, Settings(), landing=Once, tables=())
    pipeline.once()

    assert Once.failures == [when]
    assert_dense(lake, 151)
    files = list(Path(lake.location(ENTRIES.name)).glob("*.parquet"))
    assert len(files) == (2 if when == "before" else 1), "one of them is a leftover"
    (found,) = selected(lake, QUARANTINE.name, '"offset"')
    assert found["offset"] == 150


def test_what_another_process_has_landed_of_a_batch_is_left_out(
    spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    scene.publish(150)

    class Overtaken(Landing, frozen=True, kw_only=True):
        def land(self, batch: DataFrame, batch_id: int) -> None:
            if not lake.committed(ENTRIES.name, 0, epoch):
                some = LogPosition(epoch, 70)
                self._write_rows(self._rows(0, some), None, some)
            super().land(batch, batch_id)

    epoch = Segments(scene.disk).first.epoch
    pipeline = Pipeline(spark, lake, scene.data, Settings(), landing=Overtaken, tables=())
    pipeline.once()

    assert_dense(lake, 150)
    assert len(list(Path(lake.location(ENTRIES.name)).glob("*.parquet"))) == 2


def test_a_commit_that_is_due_for_a_checkpoint_is_left_to_delta(
    scene: LogScene, lake: Lake, once: Once
) -> None:
    while lake.record(ENTRIES.name, 7, 1, done := len(commits(lake))):
        assert done < 30
    scene.publish(50)

    assert once().rows == 50

    assert_dense(lake, 50)
    assert len(commits(lake)) == CHECKPOINT_INTERVAL + 1
    assert list((Path(lake.location(ENTRIES.name)) / LOG).glob("*.checkpoint*.parquet"))
    assert lake.committed(ENTRIES.name, 0, Segments(scene.disk).first.epoch) == 49


def commits(lake: Lake) -> list[Path]:
    return list((Path(lake.location(ENTRIES.name)) / LOG).glob("*.json"))


def test_a_table_that_demands_more_of_its_writers_gets_rows_from_spark(
    spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    scene.publish(150)

    class Changed(Landing, frozen=True, kw_only=True):
        def land(self, batch: DataFrame, batch_id: int) -> None:
            if not lake.open(ENTRIES.name).metadata().configuration.get(FEED):  # type: ignore[union-attr]
                spark.sql(
                    f"ALTER TABLE delta.`{lake.location(ENTRIES.name)}`"
                    f" SET TBLPROPERTIES ('{FEED}' = 'true')"
                )
                ask(scene.data)
            super().land(batch, batch_id)

    pipeline = Pipeline(spark, lake, scene.data, Settings(), landing=Changed, tables=())

    assert pipeline.once().rows == 150

    assert not can_write(lake)
    assert_dense(lake, 150)
    assert (
        json.loads(max(commits(lake)).read_text().splitlines()[0])["commitInfo"]["engineInfo"]
        != "signalhub"
    )


def test_tasks_write_what_spark_would(
    spark: SparkSession, scene: LogScene, lake: Lake, once: Once, empty_lake: Path, tmp_path: Path
) -> None:
    scene.publish(1_000)
    scene.append([scene.said("inbox.1.abcdefghijklmnopqrstuv", expires_ms=NOON_MS + 5)])
    scene.append([Entry(Kind.CURSOR, "orders", 1, 0, NOON_MS, b"\x93\x01\x02\x03")])
    scene.publish(1_000)
    scene.seal()
    scene.erase(7, 13)
    other = Lake(str(tmp_path / "by Spark"))
    shutil.copytree(empty_lake / ENTRIES.name, other.location(ENTRIES.name))

    once()
    source = spark.read.format("signalhub").load(str(scene.data))
    rows = entries_of(source).coalesce(1)
    rows.write.format("delta").mode("append").save(other.location(ENTRIES.name))

    def seen(one: Lake) -> list[Any]:
        table = spark.read.format("delta").load(one.location(ENTRIES.name))
        removed = table.select("offset", "removed_reason", "removed_at").where("body IS NULL")
        assert [row.offset for row in removed.collect()] == list(range(7, 14))
        assert all(row.removed_at and row.removed_reason == "erased" for row in removed.collect())
        return [table.schema, table.drop("removed_at").orderBy("offset").collect()]

    assert seen(lake) == seen(other)
    assert all(bounds(lake)[name] == bounds(other)[name] for name in bounds(other))
    (file, *_) = Path(lake.location(ENTRIES.name)).glob("*.parquet")
    assert stat.S_IMODE(file.stat().st_mode) == FILE_MODE


def bounds(lake: Lake) -> dict[str, tuple[Any, Any, int]]:
    """What the statistics of all files of `entries` say about each column."""
    table = lake.open(ENTRIES.name)
    assert table is not None
    files = pa.table(table.get_add_actions(flatten=True))
    assert sum(files["num_records"].to_pylist()) == 2_002
    return {
        name: (
            pc.min(files[f"min.{name}"]).as_py(),
            pc.max(files[f"max.{name}"]).as_py(),
            pc.sum(files[f"null_count.{name}"]).as_py(),
        )
        for name in ENTRIES.statistics
    }


def test_a_deleted_lake_is_made_again_from_the_log(scene: LogScene, lake: Lake, once: Once) -> None:
    scene.publish(250)
    once()
    shutil.rmtree(lake.uri)

    assert once().rows == 250

    assert_dense(lake, 250)


def test_a_lake_that_cannot_be_made_again_is_refused_and_the_offsets_named(
    scene: LogScene, lake: Lake, once: Once
) -> None:
    scene.publish(2_000)
    scene.seal()
    scene.retire(1)
    first = Segments(scene.disk).first.offset
    assert first > 0

    with pytest.raises(EntriesMissing, match=f"entries 0 to {first - 1} of epoch"):
        once()

    status = read_status(scene.data)
    assert status is not None
    assert status.state == "failed"
    assert once(accept_gap=True).rows == 2_000 - first


def test_entries_that_cannot_be_decoded_are_in_quarantine_and_in_entries(
    scene: LogScene, lake: Lake, once: Once
) -> None:
    spoiled = Entry(Kind.PUBLISHED, "orders", 1, 1, NOON_MS, b"\xc1 no MessagePack")
    scene.append([spoiled, scene.said("inbox.1.abcdefghijklmnopqrstuv")])

    assert once().quarantined == 1

    (found,) = selected(lake, QUARANTINE.name, '"offset", raw, reason')
    assert (found["offset"], found["raw"]) == (0, spoiled.body)
    assert "invalid body of kind published" in found["reason"]
    assert_dense(lake, 2)


def test_everything_before_damage_is_landed_and_the_damage_named(
    scene: LogScene, lake: Lake, once: Once
) -> None:
    scene.publish(2_000)
    scene.seal()
    second = sorted((scene.data / "log").glob("*.log"))[1]
    flip(second, 3_000)

    with pytest.raises(PipelineFailed, match=second.name):
        once()

    (landed,) = selected(lake, ENTRIES.name, "count(*) AS rows")
    assert_dense(lake, landed["rows"])
    assert landed["rows"] >= int(second.stem)


@pytest.mark.parametrize("name", ["damage", "loss"])
def test_what_cannot_be_read_of_the_end_is_reported_in_the_words_of_verify(
    name: str, scene: LogScene, lake: Lake, once: Once
) -> None:
    scene.publish(300)
    scene.close()
    last = max((scene.data / "log").glob("*.log"))
    if name == "damage":
        flip(last, scene.end_of(last.name) // 2)
    else:
        os.truncate(last, scene.end_of(last.name) - 20)
    (problem,) = verify(scene.disk).problems

    for _ in range(2):
        with pytest.raises(PipelineFailed, match=re.escape(problem)):
            once()
        found = standing(scene.data, lake.uri)
        assert (found.state, problem in found.reason) == ("failed", True)
        assert (found.lag_s, found.facts()["lag"] >= 100) == (None, True)

    (landed,) = selected(lake, ENTRIES.name, "count(*) AS rows")
    assert_dense(lake, landed["rows"])
    assert landed["rows"] >= 100


def test_a_torn_end_is_passed_over_and_nothing_is_repaired(
    scene: LogScene, lake: Lake, once: Once
) -> None:
    scene.publish(300)
    scene.close()
    last = max((scene.data / "log").glob("*.log"))
    with last.open("r+b") as file:
        file.seek(scene.end_of(last.name))
        file.write(b"torn")
    before = last.read_bytes()

    once()

    assert_dense(lake, 300)
    assert last.read_bytes() == before


def test_a_new_epoch_is_landed_beside_the_old_one(scene: LogScene, lake: Lake, once: Once) -> None:
    scene.publish(300)
    once()
    scene.lose_the_end()
    scene.publish(50)

    once()

    rows = selected(lake, ENTRIES.name, 'epoch, "offset"')
    old, new = sorted({row["epoch"] for row in rows})
    assert sum(row["epoch"] == old for row in rows) == 300
    assert sorted(row["offset"] for row in rows if row["epoch"] == new) == list(range(200, 250))
