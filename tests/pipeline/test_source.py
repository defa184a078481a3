"""The log as a source for Spark: what is read, in which pieces, and where it stops."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import pyspark_signalhub
from signalhub.log.disk import SystemDisk
from signalhub.log.erasure import SegmentErasure
from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.log.folder import look
from signalhub.log.log import Log
from signalhub.log.segment import segment_name
from signalhub.pipeline.source.columns import read_columns
from signalhub.pipeline.source.plan import LogPosition, ReadPlan, Segments, log_of
from signalhub.pipeline.source.source import (
    LogPartition,
    Offsets,
    Options,
    SignalHubSource,
    StreamReader,
)
from signalhub.wire.errors import SettingsError
from tests.pipeline.scene import LogScene, flip
from tests.support.memory.log import do_upkeep, drive, entry, open_log

COUNT = 2_000


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    """A log of several small segments."""
    scene = LogScene(tmp_path, segment_bytes=2**16)
    scene.publish(COUNT)
    return scene


def offsets(disk: SystemDisk, *plans: ReadPlan) -> list[int]:
    """What the slices of plans hold."""
    slices = [one for plan in plans for one in plan.slices]
    batches = [batch for one in slices for batch in read_columns(disk, 0, one)]
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def head_of(segments: Segments) -> LogPosition:
    head = segments.published()
    assert head is not None
    return head


class TestPlans:
    """Which bytes of which segments."""

    def test_a_plan_holds_every_entry_once_and_in_order(self, scene: LogScene) -> None:
        segments = Segments(scene.disk)

        plan = segments.plan(segments.first, head_of(segments))
        fine = segments.plan(segments.first, head_of(segments), slice_bytes=1)

        assert offsets(scene.disk, plan) == offsets(scene.disk, fine) == list(range(COUNT))
        assert plan.end == LogPosition(segments.first.epoch, COUNT)
        assert len({one.segment for one in plan.slices}) > 1
        assert len(plan.slices) < len(fine.slices) == COUNT / 100

    @pytest.mark.parametrize("is_sealed", [False, True], ids=["open", "through its footer"])
    def test_a_plan_can_begin_and_end_within_a_batch(
        self, scene: LogScene, is_sealed: bool
    ) -> None:
        if is_sealed:
            scene.seal()
        segments = Segments(scene.disk)
        start = LogPosition(segments.first.epoch, 137)

        plan = segments.plan(start, head_of(segments), entries_max=55)

        assert offsets(scene.disk, plan) == list(range(137, 192))
        assert plan.end.offset == 192

    def test_the_next_plan_goes_on_where_the_last_one_ended(self, scene: LogScene) -> None:
        segments = Segments(scene.disk)
        position, plans = segments.first, []
        while position != head_of(segments):
            plans.append(segments.plan(position, head_of(segments), entries_max=333))
            position = plans[-1].end
        scene.publish(500)
        plans.append(segments.plan(position, head_of(segments)))

        assert offsets(scene.disk, *plans) == list(range(COUNT + 500))

    def test_a_limit_in_bytes_ends_a_plan_early(self, scene: LogScene) -> None:
        segments = Segments(scene.disk)

        plan = segments.plan(segments.first, head_of(segments), bytes_max=20_000, slice_bytes=4_000)

        size = sum(one.end - one.begin for one in plan.slices)
        assert 20_000 <= size < 20_000 + 2 * 2**14
        assert offsets(scene.disk, plan) == list(range(plan.end.offset))

    def test_nothing_beyond_the_head_is_planned(self, scene: LogScene) -> None:
        segments = Segments(scene.disk)

        plan = segments.plan(segments.first, LogPosition(segments.first.epoch, 150))

        assert offsets(scene.disk, plan) == list(range(150))

    def test_a_plan_ends_in_front_of_damage_and_the_next_one_names_it(
        self, scene: LogScene
    ) -> None:
        segments = Segments(scene.disk)
        whole = segments.plan(segments.first, head_of(segments))
        victim = whole.slices[1]
        flip(scene.data / "log" / victim.segment, victim.end - 10)

        plan = Segments(scene.disk).plan(segments.first, whole.end)

        assert plan.end.offset >= victim.from_offset
        assert offsets(scene.disk, plan) == list(range(plan.end.offset))
        with pytest.raises(LogDamaged, match=victim.segment):
            Segments(scene.disk).plan(plan.end, whole.end)

    def test_entries_that_retention_has_removed_are_named(self, scene: LogScene) -> None:
        segments = Segments(scene.disk)
        start = segments.first
        (scene.data / "log" / segment_name(0)).unlink()

        with pytest.raises(EntriesGone) as gone:
            Segments(scene.disk).plan(start, head_of(segments))

        assert gone.value.first == Segments(scene.disk).first.offset > 0

    def test_a_missing_segment_between_others_is_damage(self, scene: LogScene) -> None:
        segments = Segments(scene.disk)
        second = sorted((scene.data / "log").glob("*.log"))[1]
        second.unlink()

        plan = Segments(scene.disk).plan(segments.first, head_of(segments))

        assert plan.end.offset == int(second.stem)
        with pytest.raises(LogDamaged, match=second.name):
            Segments(scene.disk).plan(plan.end, head_of(segments))

    def test_a_folder_without_a_log_says_what_is_wanted(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="there is no log"):
            log_of(tmp_path)

    def test_a_segment_begun_anew_in_another_epoch_is_not_taken_for_the_old_one(
        self, scene: LogScene
    ) -> None:
        # Until the last segment holds one batch, which is then lost with everything in it.
        while (last := look(scene.disk).segments[-1]).base == 0 or last.end - last.base != 100:
            scene.publish(100)
        segments = Segments(scene.disk)
        before = segments.plan(segments.first, head_of(segments)).end
        scene.lose_the_end()
        scene.publish(30)

        plan = segments.plan(LogPosition(before.epoch, last.base), head_of(segments))

        assert plan.end == LogPosition(before.epoch + 1, last.base + 30)
        assert offsets(scene.disk, plan) == list(range(last.base, last.base + 30))


class TestReplacedSegments:
    """Erasing puts another file in a segment's place while it is read in bulk."""

    COUNT = 90
    ERASED = tuple((at, at) for at in range(0, 60, 7))

    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        """Three entries to a batch, some segments, everything to be erased in sealed ones."""
        log = open_log(SystemDisk(tmp_path), segment_bytes=4_000, sync="os")
        for first in range(1, self.COUNT, 3):
            log.append([entry(first + number) for number in range(3)])
        log.sync()
        do_upkeep(log)
        assert log.segments[-1].base > self.ERASED[-1][1]
        return log

    @pytest.fixture
    def disk(self, tmp_path: Path) -> SystemDisk:
        return SystemDisk(tmp_path, read_only=True)

    def plan(self, segments: Segments, log: Log, start: int = 0, **limits: int) -> ReadPlan:
        head = LogPosition(log.epoch, log.head)
        return segments.plan(LogPosition(log.epoch, start), head, **limits)

    def test_no_row_is_lost_and_what_was_erased_has_no_body(
        self, log: Log, disk: SystemDisk
    ) -> None:
        plan = self.plan(Segments(disk), log, slice_bytes=700)

        drive(log.erase([SegmentErasure(self.ERASED)]))

        rows = [
            row
            for one in plan.slices
            for batch in read_columns(disk, 0, one)
            for row in batch.to_pylist()
        ]
        assert [row["offset"] for row in rows] == [*range(self.COUNT)]
        erased = {row["offset"] for row in rows if row["is_erased"]}
        assert erased == {first for first, _ in self.ERASED}
        assert all((row["body"] is None) == row["is_erased"] for row in rows)

    def test_the_next_plan_goes_on_where_the_last_one_ended(
        self, log: Log, disk: SystemDisk
    ) -> None:
        segments = Segments(disk)
        first = self.plan(segments, log, entries_max=12)
        assert first.end.offset == 12

        drive(log.erase([SegmentErasure(self.ERASED)]))
        second = self.plan(segments, log, 12)

        assert offsets(disk, first, second) == [*range(self.COUNT)]

    def test_real_damage_is_still_damage(self, log: Log, disk: SystemDisk, tmp_path: Path) -> None:
        plan = self.plan(Segments(disk), log)
        flip(tmp_path / log.segments[1].name, 300)

        with pytest.raises(LogDamaged):
            offsets(disk, plan)
        with pytest.raises(LogDamaged):
            self.plan(Segments(disk), log, log.segments[1].base)


def reader(scene: LogScene, **options: str) -> StreamReader:
    return StreamReader(Options.of({"path": str(scene.data), **options}))


def offset(offsets: Offsets) -> int:
    return offsets["0"]["offset"]


class TestStreams:
    """What Spark asks of a stream, without Spark."""

    def test_it_begins_with_the_oldest_entry_unless_told_otherwise(self, scene: LogScene) -> None:
        assert offset(reader(scene).initialOffset()) == 0
        assert offset(reader(scene, startingOffset="latest").initialOffset()) == COUNT
        assert offset(reader(scene, startingOffset="1:120").initialOffset()) == 120

    def test_limits_are_honoured(self, scene: LogScene) -> None:
        one = reader(scene, maxEntriesPerBatch="250", sliceBytes="1")
        start = one.initialOffset()

        assert one.getDefaultReadLimit() == ReadMaxRows(250)
        assert offset(one.latestOffset(start, ReadMaxRows(250))) == 250
        assert 0 < offset(one.latestOffset(start, ReadMaxBytes(10_000))) < COUNT
        end = one.latestOffset(start, ReadAllAvailable())
        assert offset(end) == COUNT
        assert len(reader(scene).partitions(start, end)) < len(one.partitions(start, end)) == 20

    def test_a_batch_waits_for_enough_entries_or_long_enough(self, scene: LogScene) -> None:
        patient = reader(scene, minEntriesPerBatch="100", maxDelayMs="3600000")
        start = patient.latestOffset(patient.initialOffset(), ReadAllAvailable())
        scene.publish(40)
        assert patient.latestOffset(start, ReadAllAvailable()) == start
        assert patient.partitions(start, start) == []
        scene.publish(60)
        assert offset(patient.latestOffset(start, ReadAllAvailable())) == COUNT + 100

        hasty = reader(scene, minEntriesPerBatch="1000", maxDelayMs="0")
        assert offset(hasty.latestOffset(start, ReadAllAvailable())) == COUNT + 100

    def test_a_batch_is_planned_again_after_a_restart_as_it_was(self, scene: LogScene) -> None:
        def planned(one: StreamReader) -> list[object]:
            parts = one.partitions(start, end)
            return [part.slice for part in parts if isinstance(part, LogPartition)]

        one = reader(scene)
        start = one.initialOffset()
        end = one.latestOffset(start, ReadMaxRows(700))
        before = planned(one)
        scene.publish(500)

        assert planned(reader(scene)) == before
        assert offset(end) == 700

    def test_it_ends_in_front_of_damage(self, scene: LogScene) -> None:
        one = reader(scene)
        second = sorted((scene.data / "log").glob("*.log"))[1]
        flip(second, 5_000)

        end = one.latestOffset(one.initialOffset(), ReadAllAvailable())

        assert int(second.stem) <= offset(end) < COUNT
        with pytest.raises(LogDamaged, match=second.name):
            one.latestOffset(end, ReadAllAvailable())

    def test_readers_travel_to_tasks_without_what_they_hold(self, scene: LogScene) -> None:
        one = reader(scene)
        one.latestOffset(one.initialOffset(), ReadAllAvailable())

        assert offset(pickle.loads(pickle.dumps(one)).initialOffset()) == 0

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({}, "needs the data folder"),
            ({"path": "nowhere"}, "there is no log"),
            (
                {"path": ".", "speed": "9"},
                "has no option 'speed'; its options are path, shard, startingOffset",
            ),
            ({"path": ".", "shard": "first"}, "invalid option of the source 'signalhub'"),
        ],
    )
    def test_wrong_options_are_explained(self, options: dict[str, str], words: str) -> None:
        with pytest.raises(SettingsError, match=words):
            StreamReader(Options.of(options)).initialOffset()

    def test_an_invalid_starting_offset_is_explained(self, scene: LogScene) -> None:
        with pytest.raises(SettingsError, match="use earliest, latest, or an epoch and an offset"):
            reader(scene, startingOffset="yesterday").initialOffset()


def test_every_entry_is_a_row(spark: SparkSession, scene: LogScene) -> None:
    rows = spark.read.format("signalhub").load(str(scene.data)).orderBy("offset").collect()

    assert [row.offset for row in rows] == list(range(COUNT))
    assert {row.kind for row in rows} == {"published"}
    assert (rows[7].id, rows[7].seq) == ("orders-8", 8)


def test_a_session_whose_python_is_another_one_finds_the_source_after_an_import(
    spark: SparkSession, scene: LogScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")

    importlib.reload(pyspark_signalhub)

    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.read.format("signalhub").load(str(scene.data)).count() > 0


def test_a_stream_goes_on_after_a_restart(
    spark: SparkSession, scene: LogScene, tmp_path: Path
) -> None:
    batches: list[list[int]] = []

    def keep(batch: DataFrame, number: int) -> None:
        batches.append(sorted(row.offset for row in batch.select("offset").collect()))

    def drain() -> None:
        options = {"maxEntriesPerBatch": "1500"}
        stream = spark.readStream.format("signalhub").options(**options).load(str(scene.data))
        writer = stream.writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        query.stop()

    drain()
    scene.publish(120)
    drain()

    assert [len(batch) for batch in batches] == [1_500, 500, 120]
    assert [one for batch in batches for one in batch] == list(range(COUNT + 120))


def test_the_source_is_found_by_its_name() -> None:
    import pyspark_signalhub

    assert pyspark_signalhub.DefaultSource is SignalHubSource
    assert SignalHubSource.name() == "signalhub"
