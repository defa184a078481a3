"""A page of an inbox read from the lake, as the hub reads it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from bench.figures import percentile
from bench.lake.logs import fill, inbox_name, open_log, room_messages
from bench.lake.site import count_rows, folder, land, log_end, make_entries, spark_session
from bench.subjects import Column, MeasurementFailed, Plan, Sample, Subject
from signalhub.clock import SystemClock
from signalhub.core.effects import Consult
from signalhub.core.rooms.values import Archived
from signalhub.counters import LakeTally
from signalhub.engine.archive import LakeArchive
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.tables import catch_up
from signalhub.pipeline.tables.tables import INBOX
from signalhub.pipeline.upkeep import compact

NAME = "pages"
SMALL_FILES = "in small files"
COMPACTED = "compacted"

INBOXES = 1_000
EACH = 1_000
SIZE = 256
PIECES = 40
PAGE = 100
PAGES = 300
PAGES_WARM = 30


def measure(plan: Plan) -> Iterator[Sample]:
    """Measure the table as catching up leaves it, then as compaction leaves it."""
    with folder() as place, spark_session() as spark:
        # There are fewer inboxes, not shorter ones: a page must be full.
        inboxes, count = plan.count(INBOXES, at_least=5), plan.count(PAGES, at_least=20)
        plan.say(f"making a table of {inboxes:,} inboxes with {EACH:,} messages each")
        lake, epoch = _make(spark, place, inboxes, plan.count(PIECES, at_least=3))
        for case in (SMALL_FILES, COMPACTED):
            if case == COMPACTED:
                upkeep = compact.upkeep_session(spark)
                compact.compact(upkeep, lake, INBOX.name, small_max=2)
            for _ in range(plan.rounds):
                places = _places(plan.order, inboxes, PAGES_WARM + count)
                took_s = asyncio.run(_read(lake.uri, epoch, places))[PAGES_WARM:]
                yield Sample(case, _figures(sorted(took_s), lake))


def _make(spark: SparkSession, place: Path, inboxes: int, pieces: int) -> tuple[Lake, int]:
    data, lake = place / "data", Lake(str(place / "lake"))
    total = inboxes * EACH
    with open_log(data) as log:
        fill(log, room_messages(inboxes, SIZE), total)
    end = log_end(data)
    make_entries(spark, lake)
    land(spark, lake, data, place / "checkpoint", end)
    last, piece = end.offset - 1, -(-total // pieces)
    catch_up.catch_up(lambda: spark, lake, INBOX.name, 0, end.epoch, last, piece_entries=piece)
    if (rows := count_rows(lake, INBOX.name)) != total:
        raise MeasurementFailed(f"the table has {rows} rows of {total} messages")
    return lake, end.epoch


def _places(order: random.Random, inboxes: int, count: int) -> list[tuple[str, int]]:
    """Return inboxes, and the first position of a page in each."""
    return [
        (inbox_name(order.randrange(inboxes)), order.randint(1, EACH - PAGE + 1))
        for _ in range(count)
    ]


async def _read(uri: str, epoch: int, places: list[tuple[str, int]]) -> list[float]:
    """Return how long each page took, from the request on the loop to the answer there."""
    loop = asyncio.get_running_loop()
    archive = LakeArchive(Lake(uri), epoch, SystemClock(), loop, LakeTally(), is_needed=True)
    took_s: list[float] = []
    try:
        for inbox, first in places:
            answer: asyncio.Future[list[Archived] | None] = loop.create_future()
            consult = Consult(inbox, first, EACH, PAGE, lambda found, now_ms: [])
            began = time.perf_counter()
            archive.consult(consult, answer.set_result)
            found = await answer
            took_s.append(time.perf_counter() - began)
            if found is None or [one.seq for one in found] != list(range(first, first + PAGE)):
                raise MeasurementFailed(f"the page from {first} on is incomplete")
    finally:
        archive.close()
    return took_s


def _figures(ordered: list[float], lake: Lake) -> dict[str, float]:
    table = lake.open(INBOX.name)
    assert table is not None
    return {
        "p50_ms": percentile(ordered, 0.5) * 1e3,
        "p99_ms": percentile(ordered, 0.99) * 1e3,
        "max_ms": ordered[-1] * 1e3,
        "files": len(table.file_uris()),
    }


SUBJECT = Subject(
    name=NAME,
    title=f"pages: {PAGE} messages of {SIZE} characters of one inbox, without a JVM, warm",
    columns=(
        Column("p50 ms", "p50_ms", 1),
        Column("p99 ms", "p99_ms", 1),
        Column("worst ms", "max_ms", 1),
        Column("files", "files"),
    ),
    measure=measure,
)
