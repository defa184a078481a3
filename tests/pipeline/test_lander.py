"""A running pipeline lands what arrives in its own process, and leaves to Spark what is unusual."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from signalhub.pipeline.commit import LOG
from signalhub.pipeline.lake import Lake, Position
from signalhub.pipeline.land import here, lander
from signalhub.pipeline.land.files import WrittenFile
from signalhub.pipeline.land.land import Landed, Landing
from signalhub.pipeline.land.lander import Lander
from signalhub.pipeline.land.resume import resume
from signalhub.pipeline.run.status import folder_of
from signalhub.pipeline.source.plan import LogPosition, Segments
from signalhub.pipeline.tables.tables import CHECKPOINT_INTERVAL, ENTRIES, QUARANTINE
from signalhub.wire.entry import Entry, Kind
from tests.pipeline.scene import NOON_MS, LogScene

PATIENCE_S = 60.0


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path, segment_bytes=2**16)


@pytest.fixture(autouse=True)
def short_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that has caught up ends at once."""
    monkeypatch.setattr(lander, "_QUERY_S_MIN", 0.0)


class Shore:
    """A lander at work, and what it has reported."""

    def __init__(
        self, spark: SparkSession, scene: LogScene, lake: Lake, kind: type[Landing] = Landing
    ) -> None:
        self.lake = lake
        self.scene = scene
        self.landed: list[Landed] = []
        landing = kind(
            spark=spark,
            lake=lake,
            data=scene.data,
            checkpoint=folder_of(scene.data) / "checkpoint",
            report=self.landed.append,
            batch_entries=50,
            batch_s=0.3,
            poll_s=0.0,
        )
        self._segments = Segments(scene.disk)
        self.lander = Lander(landing, resume(scene.disk, lake, 0), self.head)

    def head(self) -> LogPosition:
        return self._segments.published() or self._segments.valid()

    def batches(self) -> list[str]:
        """What a query of Spark has begun."""
        return sorted(one.name for one in folder_of(self.scene.data).glob("checkpoint/offsets/*"))

    def rows(self) -> tuple[int, int, int]:
        query = 'SELECT count(*), count(DISTINCT "offset"), max("offset") FROM entries'
        found = self.lake.select(ENTRIES.name, query)
        assert found is not None
        rows, offsets, last = (column[0].as_py() for column in found.columns)
        return rows, offsets, last

    def await_landed(self) -> None:
        """Wait until everything is in the table, once."""
        count = self.scene.head
        self.until(lambda: self.rows() == (count, count, count - 1))

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline, f"landed: {self.rows()}"
            assert self.lander.check() is None
            time.sleep(0.05)


@contextmanager
def working(shore: Shore) -> Iterator[Shore]:
    shore.lander.start()
    try:
        yield shore
    finally:
        shore.lander.stop()


def test_what_arrives_lands_once_and_without_a_query(
    spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    scene.publish(300)
    with working(Shore(spark, scene, lake)) as shore:
        shore.await_landed()
        # Fewer than make it start, so they wait.
        scene.publish(7)
        shore.await_landed()

    assert shore.batches() == []
    assert sum(one.rows for one in shore.landed) == 307
    assert shore.landed[-1].end == shore.head()


def test_a_body_that_cannot_be_decoded_is_left_to_a_query_and_then_it_goes_on(
    spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    scene.publish(100)
    with working(Shore(spark, scene, lake)) as shore:
        shore.await_landed()
        scene.append([Entry(Kind.PUBLISHED, "orders", 1, 1, NOON_MS, b"\xc1 no MessagePack")])
        shore.await_landed()

        def lands_alone() -> bool:
            before = shore.batches()
            scene.publish(50)
            shore.await_landed()
            return shore.batches() == before

        shore.until(lands_alone)

    assert shore.batches()
    found = lake.select(QUARANTINE.name, 'SELECT "offset" FROM quarantine')
    assert found is not None
    assert found["offset"].to_pylist() == [100]


def test_a_long_backlog_is_left_to_a_query(
    spark: SparkSession, scene: LogScene, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "_STEP_BYTES_MAX", 2**14)
    scene.publish(1_000)
    assert spark.sparkContext.defaultParallelism > 1
    with working(Shore(spark, scene, lake)) as shore:
        shore.await_landed()

    assert shore.batches()


def test_commits_go_on_through_those_that_write_checkpoints(
    spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    scene.publish(1)
    with working(Shore(spark, scene, lake)) as shore:
        for _ in range(CHECKPOINT_INTERVAL + 2):
            scene.publish(50)
            shore.await_landed()

    assert shore.batches() == []
    assert list((Path(lake.location(ENTRIES.name)) / LOG).glob("*.checkpoint*.parquet"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_before_or_after_a_commit_ends_it_and_the_next_one_lands_the_rest_once(
    when: str, spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    class Failing(Landing, frozen=True, kw_only=True):
        def commit(
            self, found: Sequence[WrittenFile], position: Position, committed: int | None
        ) -> None:
            if when == "after":
                super().commit(found, position, committed)
            raise OSError(f"the disk was full {when} it was committed")

    scene.publish(150)
    failing = Shore(spark, scene, lake, Failing)
    with working(failing), pytest.raises(OSError, match=when):
        failing.until(lambda: False)
    assert failing.rows()[0] == (150 if when == "after" else 0)
    scene.publish(60)

    with working(Shore(spark, scene, lake)) as shore:
        shore.await_landed()


def test_it_ends_if_another_process_has_landed_the_same(
    spark: SparkSession, scene: LogScene, lake: Lake
) -> None:
    scene.publish(60)
    shore, other = Shore(spark, scene, lake), Shore(spark, scene, lake)
    with working(other):
        other.await_landed()

    with working(shore), pytest.raises(RuntimeError, match="changed by another process"):
        shore.until(lambda: False)

    assert shore.rows() == (60, 60, 59)
