"""The cost of small batches as the lake grows a hundredfold, with the pipeline's upkeep."""

from __future__ import annotations

import queue
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.lake.logs import fill, inbox_name, open_log, room_messages
from bench.lake.site import check, folder, make_entries, spark_session
from bench.subjects import Column, MeasurementFailed, Plan, Sample, Subject
from signalhub.clock import SystemClock
from signalhub.engine.archive import LakeReader
from signalhub.log.log import Log
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.land.land import Landed, Landing
from signalhub.pipeline.run.status import UpkeepRound
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.tables import catch_up
from signalhub.pipeline.tables.tables import ENTRIES, INBOX
from signalhub.pipeline.upkeep.upkeep import maintain
from signalhub.settings.model import PipelineSettings as Settings

NAME = "growth"

COMMIT_ENTRIES = 1_000
UNIT_COMMITS = 20
UNITS = (1, 10, 100)
WARM_COMMITS = 60
GROW_S_MAX = 1_500.0
BATCH_S_MAX = 60.0
INBOXES = 100
SIZE = 256
PAGE = 100
TIMES = 10
CATCH_UP_COMMITS = 10
# Upkeep runs once per this many commits, midway between two measurements, so that each of them
# finds about the same number of small files.
UPKEEP_COMMITS = 50
_UPKEEP_AT = 25
# Batches are about four times as frequent as beside a hub; keep the same number of commits.
SETTINGS = Settings(commits_s=Settings().commits_s / 4)


class _GrowingLake:
    """A log that grows by a thousand entries at a time, and the pipeline that follows it."""

    def __init__(self, spark: SparkSession, place: Path, log: Log) -> None:
        self.commits = 0
        self._spark = spark
        self._place = place
        self._data = place / "data"
        self._log = log
        self._entries = room_messages(INBOXES, SIZE)
        self._lake = Lake(str(place / "lake"))
        self._landed: queue.SimpleQueue[Landed] = queue.SimpleQueue()
        self._upkeep: UpkeepRound | None = None
        self._land_s: deque[float] = deque(maxlen=TIMES)
        self._catch_up_ms: deque[int] = deque(maxlen=3)
        make_entries(spark, self._lake)
        landing = Landing(
            spark=spark,
            lake=self._lake,
            data=self._data,
            checkpoint=place / "checkpoint",
            report=self._landed.put,
            batch_entries=COMMIT_ENTRIES,
            poll_s=0.05,
        )
        self._query = landing.begin(LogPosition(log.epoch, 0))

    def close(self) -> None:
        self._query.stop()

    def grow(self, commits: int, deadline: float) -> None:
        """Wait until this many batches have landed, or the time is up."""
        while self.commits < commits and time.monotonic() < deadline:
            began = time.monotonic()
            fill(self._log, self._entries, COMMIT_ENTRIES)
            self._await_landed()
            self._land_s.append(time.monotonic() - began)
            self.commits += 1
            if self.commits % CATCH_UP_COMMITS == 0:
                self._catch_up()
            if self.commits % UPKEEP_COMMITS == _UPKEEP_AT:
                self._maintain()
        self._catch_up()

    def figures(self, order: random.Random) -> dict[str, float]:
        table = self._lake.open(ENTRIES.name)
        assert table is not None
        log_files = (self._place / "lake" / ENTRIES.name / "_delta_log").iterdir()
        return {
            "land_ms": statistics.median(self._land_s) * 1e3,
            "plan_ms": _median_ms(self._plan),
            "catch_up_ms": statistics.median(self._catch_up_ms),
            "open_ms": _median_ms(self._open),
            "page_ms": _median_ms(lambda: self._page(order)),
            "files": len(table.file_uris()),
            "log_files": sum(1 for _ in log_files),
            "files_all": self._lake.files(),
            "disk_mb": _bytes_of(self._place / "lake") / 1e6,
            "upkeep_ms": self._upkeep.ms if self._upkeep else 0,
        }

    def _await_landed(self) -> None:
        deadline = time.monotonic() + BATCH_S_MAX
        while True:
            try:
                batch = self._landed.get(timeout=1.0)
            except queue.Empty:
                check(self._query)
                if time.monotonic() > deadline:
                    raise MeasurementFailed("a batch was not landed in time") from None
                continue
            if batch.end.offset >= self._log.head:
                return

    def _catch_up(self) -> None:
        last = self._log.head - 1
        done = catch_up.catch_up(
            lambda: self._spark, self._lake, INBOX.name, 0, self._log.epoch, last
        )
        if done.rows:
            self._catch_up_ms.append(done.ms)

    def _maintain(self) -> None:
        self._upkeep = maintain(self._spark, self._lake, self._data, SETTINGS, last=self._upkeep)
        if self._upkeep.failed:
            raise MeasurementFailed(f"upkeep failed: {self._upkeep.failed}")

    def _plan(self) -> None:
        """Find the files of the last batch, as catching up does, without reading them."""
        rows = self._spark.read.format("delta").load(self._lake.location(ENTRIES.name))
        last = self._log.head - 1
        is_meant = (F.col("epoch") == self._log.epoch) & (F.col("offset") <= last)
        rows = rows.where(is_meant & (F.col("offset") > last - COMMIT_ENTRIES))
        rows._jdf.queryExecution().executedPlan()

    def _open(self) -> None:
        """Open a table again and read its position, as a command does."""
        Lake(self._lake.uri).committed(ENTRIES.name, 0, self._log.epoch)

    def _page(self, order: random.Random) -> None:
        head = self.commits * COMMIT_ENTRIES // INBOXES
        first = order.randint(1, max(1, head - PAGE + 1))
        inbox = inbox_name(order.randrange(INBOXES))
        reader = LakeReader(self._lake)
        found = reader.page(inbox, first, head, PAGE, SystemClock().now_ms())
        if len(found) != min(PAGE, head):
            raise MeasurementFailed(f"a page had {len(found)} messages")


def measure(plan: Plan) -> Iterator[Sample]:
    """Run once, whatever the number of rounds: the same measurements at each size."""
    with spark_session() as spark:
        with folder() as place, open_log(place / "data") as log:
            lake = _GrowingLake(spark, place, log)
            try:
                lake.grow(plan.count(WARM_COMMITS, at_least=2), time.monotonic() + GROW_S_MAX / 3)
                lake.figures(plan.order)
            finally:
                lake.close()
        yield from _grow(plan, spark)


def _grow(plan: Plan, spark: SparkSession) -> Iterator[Sample]:
    deadline = time.monotonic() + GROW_S_MAX
    with folder() as place, open_log(place / "data") as log:
        lake = _GrowingLake(spark, place, log)
        try:
            for number, units in enumerate(UNITS, start=1):
                wanted = plan.count(units * UNIT_COMMITS, at_least=number)
                lake.grow(wanted, deadline)
                is_short = lake.commits < wanted
                note = f"time ran out before {wanted:,} commits" if is_short else ""
                yield Sample(f"{lake.commits:,} commits", lake.figures(plan.order), note)
        finally:
            lake.close()


def _median_ms(work: Callable[[], object]) -> float:
    took_s: list[float] = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - began)
    return statistics.median(took_s) * 1e3


def _bytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


SUBJECT = Subject(
    name=NAME,
    title="growth: batches of 1 000 entries without a pause, upkeep once in 50",
    columns=(
        Column("landing a batch, ms", "land_ms"),
        Column("planning, ms", "plan_ms", 1),
        Column("inbox catches up, ms", "catch_up_ms"),
        Column("position, ms", "open_ms", 1),
        Column("page, ms", "page_ms", 1),
        Column("files of `entries`", "files"),
        Column("of its log", "log_files"),
        Column("of all tables", "files_all"),
        Column("MB on disk", "disk_mb"),
        Column("last upkeep, ms", "upkeep_ms"),
    ),
    measure=measure,
)
