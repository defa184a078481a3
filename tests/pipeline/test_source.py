"""The log as a source for Spark: what is read, in which pieces, and where it stops."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from signalhub.log.errors import LogDamaged
from signalhub.pipeline.source.source import (
    LogPartition,
    Offsets,
    Options,
    SignalHubSource,
    StreamReader,
)
from signalhub.wire.errors import SettingsError
from tests.pipeline.scene import LogScene


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path, segment_bytes=2**16)


def reader(scene: LogScene, **options: str) -> StreamReader:
    return StreamReader(Options.of({"path": str(scene.data), **options}))


def offset(offsets: Offsets) -> int:
    return offsets["0"]["offset"]


# Without Spark.


def test_a_stream_begins_with_the_oldest_entry_unless_told_otherwise(scene: LogScene) -> None:
    scene.publish(300)

    assert offset(reader(scene).initialOffset()) == 0
    assert offset(reader(scene, startingOffset="latest").initialOffset()) == 300
    assert offset(reader(scene, startingOffset="1:120").initialOffset()) == 120


def test_limits_are_honoured(scene: LogScene) -> None:
    scene.publish(2_000)
    one = reader(scene, maxEntriesPerBatch="250")
    start = one.initialOffset()

    assert one.getDefaultReadLimit() == ReadMaxRows(250)
    assert offset(one.latestOffset(start, ReadMaxRows(250))) == 250
    assert offset(one.latestOffset(start, ReadAllAvailable())) == 2_000
    assert 0 < offset(one.latestOffset(start, ReadMaxBytes(10_000))) < 2_000


def test_a_batch_waits_for_enough_entries_or_long_enough(scene: LogScene) -> None:
    scene.publish(40)
    patient = reader(scene, minEntriesPerBatch="100", maxDelayMs="3600000")
    start = patient.initialOffset()

    assert patient.latestOffset(start, ReadAllAvailable()) == start
    scene.publish(60)
    assert offset(patient.latestOffset(start, ReadAllAvailable())) == 100

    hasty = reader(scene, minEntriesPerBatch="1000", maxDelayMs="0")
    assert offset(hasty.latestOffset(start, ReadAllAvailable())) == 100


def test_nothing_new_is_no_batch(scene: LogScene) -> None:
    scene.publish(10)
    one = reader(scene)
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())

    assert one.latestOffset(end, ReadAllAvailable()) == end
    assert one.partitions(end, end) == []


def test_a_batch_is_planned_again_after_a_restart_as_it_was(scene: LogScene) -> None:
    scene.publish(1_000)
    one = reader(scene)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(700))
    planned = [part.slice for part in one.partitions(start, end) if isinstance(part, LogPartition)]
    scene.publish(500)

    again = reader(scene).partitions(start, end)

    assert [part.slice for part in again if isinstance(part, LogPartition)] == planned
    assert sum(part.to_offset - part.from_offset for part in planned) == 700


def test_work_is_cut_into_pieces_of_the_size_that_was_asked_for(scene: LogScene) -> None:
    scene.publish(2_000)
    fine, coarse = reader(scene, sliceBytes="1"), reader(scene)
    start = coarse.initialOffset()
    end = coarse.latestOffset(start, ReadAllAvailable())

    assert len(fine.partitions(start, end)) == 20
    assert len(coarse.partitions(start, end)) < 20


def test_a_stream_ends_in_front_of_damage(scene: LogScene) -> None:
    scene.publish(2_000)
    one = reader(scene)
    start = one.initialOffset()
    names = sorted(path.name for path in (scene.data / "log").glob("*.log"))
    path = scene.data / "log" / names[1]
    content = bytearray(path.read_bytes())
    content[5_000] ^= 1
    path.write_bytes(content)

    end = one.latestOffset(start, ReadAllAvailable())

    assert int(names[1].removesuffix(".log")) <= offset(end) < 2_000
    with pytest.raises(LogDamaged, match=names[1]):
        one.latestOffset(end, ReadAllAvailable())


def test_readers_travel_to_tasks_without_what_they_hold(scene: LogScene) -> None:
    scene.publish(10)
    one = reader(scene)
    one.latestOffset(one.initialOffset(), ReadAllAvailable())

    copy = pickle.loads(pickle.dumps(one))

    assert offset(copy.initialOffset()) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the data folder"),
        ({"path": "nowhere"}, "holds no log"),
        (
            {"path": ".", "speed": "9"},
            "has no option 'speed'; it knows path, shard, startingOffset",
        ),
        ({"path": ".", "shard": "first"}, "option of the source 'signalhub' is wrong"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        StreamReader(Options.of(options)).initialOffset()


def test_a_starting_offset_that_is_none_is_explained(scene: LogScene) -> None:
    with pytest.raises(SettingsError, match="use earliest, latest, or an epoch and an offset"):
        reader(scene, startingOffset="yesterday").initialOffset()


# With Spark.


def test_every_entry_is_a_row(spark: SparkSession, scene: LogScene) -> None:
    scene.publish(250)

    rows = spark.read.format("signalhub").load(str(scene.data)).orderBy("offset").collect()

    assert [row.offset for row in rows] == list(range(250))
    assert {row.kind for row in rows} == {"published"}
    assert (rows[7].id, rows[7].seq) == ("orders-8", 8)


def test_a_stream_goes_on_after_a_restart(
    spark: SparkSession, scene: LogScene, tmp_path: Path
) -> None:
    batches: list[list[int]] = []

    def keep(batch: DataFrame, number: int) -> None:
        batches.append(sorted(row.offset for row in batch.select("offset").collect()))

    def drain() -> None:
        options = {"maxEntriesPerBatch": "100"}
        stream = spark.readStream.format("signalhub").options(**options).load(str(scene.data))
        writer = stream.writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        query.stop()

    scene.publish(250)
    drain()
    scene.publish(120)
    drain()

    assert [len(batch) for batch in batches] == [100, 100, 50, 100, 20]
    assert [one for batch in batches for one in batch] == list(range(370))


def test_the_source_is_found_by_its_name() -> None:
    import pyspark_signalhub

    assert pyspark_signalhub.DefaultSource is SignalHubSource
    assert SignalHubSource.name() == "signalhub"
