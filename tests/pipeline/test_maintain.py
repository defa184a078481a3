"""Upkeep of the tables: what is old goes, files stay few, and no reader ever notices."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from signalhub.clock import SystemClock
from signalhub.engine.archive import LakeReader
from signalhub.pipeline.erase import certificate
from signalhub.pipeline.lake import Lake, Merging
from signalhub.pipeline.run.lock import TablesBusy, table_lock
from signalhub.pipeline.run.status import Journal, UpkeepRound, folder_of, read_status
from signalhub.pipeline.storage import Storage
from signalhub.pipeline.tables.catch_up import ORDER
from signalhub.pipeline.tables.create import forget_tables, remember
from signalhub.pipeline.tables.tables import TABLES
from signalhub.pipeline.upkeep import compact
from signalhub.pipeline.upkeep.compact import (
    DataFile,
    FileRun,
    forget_commits,
    replaced,
    runs,
    vacuum,
)
from signalhub.pipeline.upkeep.expire import Ages, Due
from signalhub.pipeline.upkeep.upkeep import THOROUGH_MS, maintain
from signalhub.settings.model import PipelineSettings
from tests.pipeline.lakeside import Lakeside
from tests.pipeline.remains import remains
from tests.pipeline.scene import NOON_MS, LogScene

HASH = "abcdefghijklmnopqrstuv"
INBOX = f"inbox.1.{HASH}"
HOUR_MS = 3_600_000
DAY_S = 86_400.0
LATER_MS = 4_000_000_000_000  # What has expired by now would not reach the table.
SMALL = 2**20
LARGE = 100 * 2**20
SETTINGS = PipelineSettings(retention_s=30 * 86_400.0, vacuum_s=0.0)
FOREVER = PipelineSettings(retention_s=1e10, vacuum_s=0.0)


@pytest.fixture
def scene(tmp_path: Path) -> LogScene:
    return LogScene(tmp_path)


@pytest.fixture
def side(spark: SparkSession, lake: Lake, scene: LogScene, tmp_path: Path) -> Lakeside:
    """All tables."""
    return Lakeside(spark, tmp_path)


@pytest.fixture
def bare(spark: SparkSession, scene: LogScene, tmp_path: Path) -> Lakeside:
    """No table but `entries` and what is shaped: a round takes as long as there are tables."""
    return Lakeside(spark, tmp_path)


# Without Spark.


def test_neighbouring_small_files_become_one_until_it_is_large() -> None:
    small = [DataFile(1, n * 10, n * 10 + 9, SMALL) for n in range(5)]

    others = [DataFile(1, 50, 59, LARGE), DataFile(1, 60, 69, SMALL)]
    later = [DataFile(2, 65, 69, SMALL), DataFile(2, 70, 79, SMALL)]

    assert runs(small) == [FileRun(1, 0, 49, 5)]
    assert runs(small, 2 * SMALL) == [FileRun(1, 0, 19, 2), FileRun(1, 20, 39, 2)]
    # A large file or another epoch ends a run.
    assert runs([*small, *others, *later]) == [FileRun(1, 0, 49, 5), FileRun(2, 65, 79, 2)]


def test_a_quick_round_looks_only_at_what_came_due_since_the_last() -> None:
    now = NOON_MS + HOUR_MS
    quick = Ages(now_ms=now, retention_ms=HOUR_MS, since_ms=NOON_MS)
    whole = Ages(now_ms=now, retention_ms=HOUR_MS)

    since = NOON_MS - 24 * HOUR_MS
    due = f"t <= timestamp_millis({now})"
    assert quick.expired("t").condition == f"{due} AND t > timestamp_millis({since})"
    assert whole.expired("t").condition == due
    assert whole.outlived("t").condition == f"t <= timestamp_millis({NOON_MS})"


def test_files_that_cannot_hold_anything_due_are_not_looked_into() -> None:
    def files(first_ms: int | None, last_ms: int | None) -> pa.Table:
        ms = pa.timestamp("ms", "UTC")
        return pa.table({"min.t": pa.array([first_ms], ms), "max.t": pa.array([last_ms], ms)})

    due = Due("t", NOON_MS, NOON_MS + HOUR_MS)

    assert due.may_be_in(files(NOON_MS + HOUR_MS, NOON_MS + 2 * HOUR_MS))
    assert due.may_be_in(files(0, NOON_MS + 1))
    assert not due.may_be_in(files(NOON_MS + HOUR_MS + 1, NOON_MS + 2 * HOUR_MS))
    assert not due.may_be_in(files(0, NOON_MS - 1))
    assert not due.may_be_in(files(None, None))
    assert due.may_be_in(pa.table({"min.other": [1]}))
    assert not due.may_be_in(pa.table({"min.other": pa.array([], pa.int64())}))


def test_upkeep_and_erasure_take_turns(tmp_path: Path) -> None:
    busy = pytest.raises(TablesBusy, match="repeat the command")
    with table_lock(tmp_path), busy, table_lock(tmp_path):
        pytest.fail("both have the tables")

    with table_lock(tmp_path):
        pass


def test_a_certificate_that_cannot_be_read_does_not_stop_upkeep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder_of(tmp_path).mkdir(parents=True)
    one = certificate.begin(tmp_path, "actor", "@(demo/alice)", NOON_MS)
    one.state, one.gone_planned_ms = "unreadable", NOON_MS
    certificate.write(tmp_path, one)
    (folder_of(tmp_path) / certificate.FOLDER / "0.json").write_text("{")

    assert [found.id for found in certificate.due(tmp_path, NOON_MS)] == [one.id]

    assert "0.json cannot be read" in caplog.text


def test_the_last_round_is_part_of_the_status(tmp_path: Path) -> None:
    done = UpkeepRound(at_ms=NOON_MS, ms=12, looked_ms=NOON_MS, removed={"inbox": 3})
    Journal(tmp_path).upkeep = done

    found = read_status(tmp_path)

    assert found is not None
    assert found.upkeep == Journal(tmp_path).upkeep == done


# With it.


def _versions(side: Lakeside) -> list[int]:
    """How many commits the tables have seen."""
    tables = (side.lake.open(name) for name in TABLES)
    return [table.version() for table in tables if table is not None]


def test_expired_messages_of_rooms_leave_only_their_place(side: Lakeside, scene: LogScene) -> None:
    soon, late = LATER_MS + HOUR_MS, LATER_MS + 9 * HOUR_MS
    scene.append([scene.said(INBOX, "b2xk", expires_ms=soon) for _ in range(3)])
    scene.append([scene.said(INBOX, "bmV3", expires_ms=late) for _ in range(2)])
    scene.publish(2)
    side.shape()
    ((epoch, last),) = side.land()

    now = LATER_MS + 2 * HOUR_MS
    before = UpkeepRound(at_ms=LATER_MS, ms=0, looked_ms=LATER_MS, thorough_ms=LATER_MS)

    done = maintain(side.spark, side.lake, side.data, FOREVER, last=before, now_ms=now)

    assert done.removed == {"inbox": 3, "entries": 3}
    assert done.failed == {}
    assert side.rows("inbox", "seq") == [(4,), (5,)]
    assert side.rows("entries", "offset", "removed_reason", "seq")[:4] == [
        (0, "expired", 1),
        (1, "expired", 2),
        (2, "expired", 3),
        (3, None, 4),
    ]
    assert side.count("entries", "body IS NULL") == 3
    assert {side.lake.committed(name, 0, epoch) for name in ("entries", *ORDER)} == {last}
    versions = _versions(side)
    again = maintain(side.spark, side.lake, side.data, FOREVER, last=done, now_ms=now + 1)
    assert again.removed == {}
    assert _versions(side) == versions


def test_what_retention_ends_is_gone_from_every_file_after_a_thorough_round(
    side: Lakeside, scene: LogScene
) -> None:
    scene.append([scene.published("orders", {"n": n, "old": "REMEMBERED"}) for n in range(3)])
    scene.append([scene.mailed("@(demo/bob)", "REMEMBERED")])
    now = NOON_MS + 31 * 24 * HOUR_MS
    scene.append([scene.published("orders", "LATER", at_ms=now)])
    side.shape()
    lake = side.data / "lake"
    assert remains(lake, "REMEMBERED")

    done = maintain(side.spark, side.lake, side.data, SETTINGS, now_ms=now, is_alone=True)

    assert done.removed == {"entries": 4, "messages": 4, "deliveries": 1, "traffic_1m": 2}
    assert done.failed == {}
    assert done.thorough_ms == now
    assert "entries" in done.vacuumed
    assert side.count("entries") == 5
    assert side.rows("messages", "offset") == [(4,)]
    assert remains(lake, "REMEMBERED") == []
    assert remains(lake, "LATER")


def test_many_small_files_become_one_that_is_in_order(side: Lakeside, scene: LogScene) -> None:
    for _ in range(4):
        scene.publish(10)
        side.land()
    before = side.rows("entries", "offset", "body")
    session = compact.upkeep_session(side.spark)

    assert compact.compact(session, side.lake, "entries", small_max=100) == 0
    fewer = compact.compact(session, side.lake, "entries", small_max=4)

    assert fewer >= 3
    (file,) = compact.files_in_order(side.lake, "entries")
    assert (file.first, file.last) == (0, 39)
    assert side.rows("entries", "offset", "body") == before
    assert side.lake.committed("entries", 0, file.epoch) == 39
    scene.publish(5)
    side.land()
    assert side.count("entries") == 45


def _log_of(side: Lakeside, name: str) -> dict[str, int]:
    """The files of a table's log that speak of one version."""
    files = (side.data / "lake" / name / "_delta_log").iterdir()
    return {one.name: int(one.name[:20]) for one in files if one.name[0].isdigit()}


def _aged(side: Lakeside, name: str) -> list[int]:
    """Its checkpoints were written two hours ago; their versions."""
    paths = sorted((side.data / "lake" / name / "_delta_log").glob("*.checkpoint.parquet"))
    for path in paths:
        at = time.time() - 2 * 3_600
        os.utime(path, (at, at))
    return [int(path.name[:20]) for path in paths]


def _checkpoint(side: Lakeside, name: str) -> int:
    table = side.lake.open(name)
    assert table is not None
    table.create_checkpoint()
    return table.version()


def test_files_that_were_replaced_go_beside_a_pipeline_and_what_is_on_its_way_stays(
    side: Lakeside, scene: LogScene
) -> None:
    for text in ("FORGOTTEN", "KEPT", "KEPT"):
        scene.append([scene.published("orders", {"n": n, "of": text}) for n in range(3)])
        side.land()
    session = compact.upkeep_session(side.spark)
    where = f"delta.`{side.lake.location('entries')}`"
    side.spark.sql(f"DELETE FROM {where} WHERE offset < 3")
    folder = side.data / "lake" / "entries"
    on_its_way = folder / "part-of-a-batch.parquet"
    shutil.copy(next(folder.glob("*.parquet")), on_its_way)
    _checkpoint(side, "entries")
    side.spark.sql(f"DELETE FROM {where} WHERE offset = 4")
    before = set(folder.glob("*.parquet"))
    assert replaced(session, side.lake, "entries", 0) == []

    vacuum(session, side.lake, "entries", 0.0, is_alone=False)

    gone = before - set(folder.glob("*.parquet"))
    assert len(gone) == 1, "rows of the other files are marked, and the files are still needed"
    nothing = Merging(on="false", updated={"seq": "s.seq"})
    few = pa.table({"seq": pa.array([1], pa.int64())})
    assert side.lake.merge("entries", few, nothing, None) is None, "Spark knows the marks"
    on_its_way.unlink()
    assert remains(folder, "FORGOTTEN") == []
    assert side.rows("entries", "offset") == [(offset,) for offset in (3, 5, 6, 7, 8)]
    purged = compact.purge(session, side.lake, "entries")
    assert purged == 1
    vacuum(session, side.lake, "entries", 600.0, is_alone=False)
    assert len(set(folder.glob("*.parquet")) & before) == 2, "it was replaced a moment ago"
    vacuum(session, side.lake, "entries", 0.0, is_alone=False)
    assert len(set(folder.glob("*.parquet")) & before) == 1
    assert side.rows("entries", "offset") == [(offset,) for offset in (3, 5, 6, 7, 8)]


def test_tables_forget_commits_from_before_the_last_two_old_checkpoints(
    bare: Lakeside, scene: LogScene
) -> None:
    readers: list[Lake] = []
    for _ in range(4):
        scene.publish(2)
        ((epoch, last),) = bare.land()
        readers.append(Lake(bare.lake.uri))
        assert readers[-1].committed("entries", 0, epoch) == last
        _checkpoint(bare, "entries")
    *_, first, _ = _aged(bare, "entries")
    for _ in range(2):
        scene.publish(2)
        ((epoch, last),) = bare.land()
        _checkpoint(bare, "entries")
    before = _log_of(bare, "entries")
    assert forget_commits(bare.spark, bare.lake, "entries", 3 * 3_600.0) == 0
    recently = UpkeepRound(at_ms=0, ms=0, thorough_ms=SystemClock().now_ms())
    kept = PipelineSettings(retention_s=FOREVER.retention_s)

    done = maintain(bare.spark, bare.lake, bare.data, kept, last=recently)

    assert done.failed == {}
    left = {one: version for one, version in before.items() if version >= first}
    assert _log_of(bare, "entries") == left
    assert done.forgotten == len(before) - len(left) > 3
    for reader in (*readers, Lake(bare.lake.uri)):
        assert reader.committed("entries", 0, epoch) == last, "who has it open goes on"
        table = reader.open("entries")
        assert table is not None
        rows = QueryBuilder().register("t", table).execute("SELECT count(*) AS n FROM t")
        assert pa.table(rows)["n"].to_pylist() == [12]
    assert bare.table("entries").count() == 12
    session = compact.upkeep_session(bare.spark)
    vacuum(session, bare.lake, "entries", 0.0, is_alone=False)
    forget_tables(bare.spark)
    scene.publish(2)
    bare.land()
    assert bare.table("entries").count() == 14


class RefusingFiles:
    """A file system that keeps what it has, as one without the right to delete does."""

    def delete(self, path: object, recursive: bool) -> bool:
        return False

    def exists(self, path: object) -> bool:
        return True


def test_a_file_that_cannot_be_deleted_is_not_passed_over(side: Lakeside) -> None:
    storage = Storage(side.spark, str(side.data))
    assert not storage.delete("nothing")

    storage._files = RefusingFiles()

    with pytest.raises(OSError, match="cannot be deleted; check the rights"):
        storage.delete("file")


def test_replaced_files_are_known_for_as_long_as_they_are_to_stay(
    side: Lakeside, scene: LogScene
) -> None:
    def known() -> set[str]:
        table = side.lake.open("entries")
        assert table is not None
        said = table.metadata().configuration
        return {said[f"delta.{one}Duration"] for one in ("deletedFileRetention", "logRetention")}

    scene.publish(2)
    side.land()
    assert known() == {"interval 1 days"}
    versions = _versions(side)
    remember(side.spark, side.lake, "entries", PipelineSettings())
    assert _versions(side) == versions

    remember(
        side.spark,
        side.lake,
        "entries",
        PipelineSettings(vacuum_s=1.5 * DAY_S, commits_s=7 * DAY_S),
    )

    assert known() == {"interval 2 days", "interval 7 days"}


def test_readers_go_on_while_everything_is_rewritten_and_deleted(
    bare: Lakeside, scene: LogScene
) -> None:
    now = LATER_MS + 2 * HOUR_MS
    for n in range(3):
        expires = LATER_MS + HOUR_MS if n == 0 else LATER_MS + 9 * HOUR_MS
        scene.append([scene.said(INBOX, expires_ms=expires) for _ in range(20)])
        bare.shape("inbox")
    reader = LakeReader(Lake(bare.lake.uri))
    assert len(reader.page(INBOX, 1, 100, 100, LATER_MS)) == 60
    open_table = bare.table("inbox").where("seq > 20")
    stop, pages, faults = threading.Event(), [], []
    pauses: list[int] = []

    def read() -> None:
        while not stop.is_set():
            try:
                pages.append([one.seq for one in reader.page(INBOX, 1, 100, 100, now)])
            except Exception as error:
                faults.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        session = compact.upkeep_session(bare.spark)
        compact.compact(session, bare.lake, "inbox", small_max=2)
        done = maintain(
            bare.spark,
            bare.lake,
            bare.data,
            FOREVER,
            now_ms=now,
            is_alone=True,
            pause=lambda: pauses.append(len(pages)),
        )
    finally:
        stop.set()
        thread.join()

    assert done.failed == {}
    tables = [name for name in TABLES if bare.lake.exists(name)]
    assert tables == ["entries", "inbox"]
    assert len(pauses) > len(tables), "what cannot wait has its turn before each table"
    assert done.removed["inbox"] == 20
    assert faults == []
    assert pages
    assert {tuple(page) for page in pages} == {tuple(range(21, 61))}
    assert bare.table("inbox").count() == open_table.count() == 40


def test_an_erasure_is_complete_when_its_time_has_come(bare: Lakeside, scene: LogScene) -> None:
    scene.publish(2)
    bare.land()
    one = certificate.begin(bare.data, "actor", "@(demo/alice)", NOON_MS)
    one.state, one.unreadable_ms = "unreadable", NOON_MS
    one.gone_planned_ms = NOON_MS + HOUR_MS
    certificate.write(bare.data, one)
    quick = UpkeepRound(at_ms=NOON_MS, ms=0, looked_ms=NOON_MS, thorough_ms=NOON_MS)

    early = maintain(bare.spark, bare.lake, bare.data, SETTINGS, last=quick, now_ms=NOON_MS + 1)
    assert (early.erasures, early.vacuumed) == (0, [])
    at = NOON_MS + HOUR_MS
    done = maintain(bare.spark, bare.lake, bare.data, SETTINGS, last=early, now_ms=at)

    assert at < NOON_MS + THOROUGH_MS
    assert (done.erasures, done.vacuumed) == (1, ["entries"])
    found = certificate.read(bare.data, one.id)
    assert (found.state, found.gone_ms) == ("gone", at)
