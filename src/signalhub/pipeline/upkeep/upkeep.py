"""Upkeep of the tables, at its own interval: expire old rows, merge small files.

A quick round considers only the last minutes of new entries. A thorough one, every few hours,
checks everything, rewrites files with rows that are only marked as deleted, and deletes unneeded
files; erasures wait for it. Every round also deletes old commits of the tables. Nothing here
changes the positions that tables record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from signalhub.clock import SystemClock
from signalhub.pipeline.erase import certificate
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.run.lock import table_lock
from signalhub.pipeline.run.status import UpkeepRound
from signalhub.pipeline.tables.tables import TABLES
from signalhub.pipeline.upkeep import compact
from signalhub.pipeline.upkeep.compact import forget_commits, vacuum
from signalhub.pipeline.upkeep.expire import Ages, expire
from signalhub.settings.model import PipelineSettings as Settings

log = logging.getLogger("signalhub.pipeline")

THOROUGH_MS: Final = 6 * 3_600_000


def maintain(
    spark: SparkSession,
    lake: Lake,
    data: str | Path,
    settings: Settings,
    *,
    last: UpkeepRound | None = None,
    now_ms: int | None = None,
    thorough: bool = False,
    is_alone: bool = False,
    pause: Callable[[], object] = lambda: None,
) -> UpkeepRound:
    """Do everything that is due; `is_alone` says that no other process writes to the tables.

    `pause` is called between tables, for work that cannot wait until all are done. Raises
    `TablesBusy` during an erasure.
    """
    with table_lock(data):
        began = time.monotonic()
        now = SystemClock().now_ms() if now_ms is None else now_ms
        due = certificate.due(data, now)
        before = last.thorough_ms if last else 0
        thorough = thorough or now - before >= THOROUGH_MS
        ages = Ages(
            now_ms=now,
            retention_ms=int(settings.retention_s * 1000),
            since_ms=0 if thorough or last is None else last.looked_ms,
        )
        session = compact.upkeep_session(spark)
        # What is due now would be purged below, so it is not marked first.
        compact.rewrite_at_once(session, is_so=thorough or bool(due))
        work = _Round(session, lake, pause)
        removed = work.expire(ages)
        compacted = work.each(compact.compact)
        purged: dict[str, int] = {}
        vacuumed: list[str] = []
        if thorough or due:
            purged = work.each(compact.purge)
            age_s = min([settings.vacuum_s, *((now - one.unreadable_ms) / 1000 for one in due)])
            vacuumed = work.vacuum(age_s, is_alone=is_alone)
        is_whole = not work.failed
        if due and is_whole:
            for one in due:
                certificate.complete(data, one, now)
        forgotten = work.each(partial(forget_commits, age_s=settings.commits_s))
        return UpkeepRound(
            at_ms=now,
            ms=int((time.monotonic() - began) * 1000),
            looked_ms=now if is_whole else last.looked_ms if last else 0,
            thorough_ms=now if thorough and is_whole else before,
            removed=removed,
            files=lake.files(),
            compacted=compacted,
            purged=purged,
            forgotten=sum(forgotten.values()),
            vacuumed=vacuumed,
            erasures=len(due) if is_whole else 0,
            failed=work.failed,
        )


class _Round:
    """Process one table after the other; a failed one is left to the next round."""

    def __init__(self, spark: SparkSession, lake: Lake, pause: Callable[[], object]) -> None:
        self._spark = spark
        self._lake = lake
        self._pause = pause
        self._tables = [name for name in TABLES if lake.exists(name)]
        self.failed: dict[str, str] = {}

    def expire(self, ages: Ages) -> dict[str, int]:
        removed: dict[str, int] = {}
        self._try("expiry", lambda: removed.update(expire(self._spark, self._lake, ages)))
        return removed

    def each(self, work: Callable[[SparkSession, Lake, str], int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in self._tables:

            def one(name: str = name) -> None:
                found[name] = work(self._spark, self._lake, name)

            self._try(name, one)
        return {name: count for name, count in found.items() if count}

    def vacuum(self, age_s: float, *, is_alone: bool) -> list[str]:
        done: list[str] = []
        for name in self._tables:

            def clean(name: str = name) -> None:
                vacuum(self._spark, self._lake, name, age_s, is_alone=is_alone)
                done.append(name)

            self._try(name, clean)
        return done

    def _try(self, what: str, work: Callable[[], object]) -> None:
        """Landing may have changed the same files; then the table is left unchanged."""
        self._pause()
        try:
            work()
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            self.failed[what] = reason
            log.warning("upkeep of a table failed", extra={"table": what, "reason": reason})
