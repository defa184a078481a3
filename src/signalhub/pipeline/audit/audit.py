"""The audit: proof, hour by hour, that everything in the log is in the lake, once and unchanged.

It covers the log up to one position: its head when the audit starts. The tables are read at one
version, so a running pipeline or hub does not affect it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from signalhub.locks import is_hub_running
from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.pipeline.audit import proof
from signalhub.pipeline.audit.deliveries import Recipients, name_deliveries
from signalhub.pipeline.audit.hours import HOUR_S, Bounds, Hour, Hours, seen_hours
from signalhub.pipeline.audit.log import check_log, compare, look_at, readable
from signalhub.pipeline.audit.rows import (
    count_rows,
    name_duplicates,
    name_gaps,
    name_missing_messages,
    name_reorders,
)
from signalhub.pipeline.erase import certificate
from signalhub.pipeline.lake import Lake
from signalhub.pipeline.run import schedule
from signalhub.pipeline.run.lock import is_pipeline_running
from signalhub.pipeline.source.columns import arrow_fields
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.tables.create import ensure_table, ensure_table_here
from signalhub.pipeline.tables.tables import AUDIT, DELIVERIES, ENTRIES, MESSAGES, SUBSCRIPTIONS

NEEDED: Final = (ENTRIES.name, MESSAGES.name, SUBSCRIPTIONS.name, DELIVERIES.name)
"""Tables that must have reached the audited position."""
STEPS: Final = 7
"""How often `run` calls `advance`."""

_POLL_S: Final = 0.5
_ATTEMPTS_MAX: Final = 3
_NEVER: Final = 2**62
_HELD_BYTES_MAX: Final = 16 * 2**20

Verdict = Literal["proven", "wrong", "behind"]


class Findings(msgspec.Struct, kw_only=True):
    """The result of an audit."""

    run_id: str
    at: datetime
    shard: int
    head: LogPosition
    """The entry after the last one audited."""
    verdict: Verdict
    hours: list[Hour] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    """Limits of the proof that are not faults."""
    behind: dict[str, int] = msgspec.field(default_factory=dict)
    """Entries that each table has not taken in yet."""

    def total(self, member: str) -> int:
        """Return a count over all hours."""
        return sum(getattr(one, member) for one in self.hours)


class Audit:
    """One audit of one shard."""

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        lake: Lake,
        data: Path,
        *,
        shard: int = 0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`spark` is a session, or opens one; then a small lake without faults needs none."""
        self._open = spark if callable(spark) else None
        self._opened = None if callable(spark) else spark
        self._lake = lake
        self._data = data
        self._shard = shard
        self._now = now
        self._held: list[DataFrame] = []
        self._view = look_at(data, is_live=is_hub_running(data))
        self._findings = Findings(
            run_id=secrets.token_hex(8),
            at=now(),
            shard=shard,
            head=self._view.head,
            verdict="proven",
        )

    @property
    def _spark(self) -> SparkSession:
        if self._opened is None:
            assert self._open is not None
            self._opened = self._open()
        return self._opened

    def run(
        self,
        *,
        wait_s: float = 0.0,
        since: datetime | None = None,
        until: datetime | None = None,
        advance: Callable[[int], None] = lambda steps: None,
    ) -> Findings:
        """Check everything, or the hours from `since` to before `until`; record the result."""
        self._wait(wait_s)
        if not self._findings.behind and not self._is_proven_here(since, until):
            try:
                self._judge(since, until, advance)
            finally:
                for rows in self._held:
                    rows.unpersist()
        elif not self._findings.behind:
            advance(STEPS)
        self._write()
        return self._findings

    def _wait(self, wait_s: float) -> None:
        """Give a running pipeline time to catch up with the log."""
        deadline = time.monotonic() + wait_s
        while (behind := self._behind()) and is_pipeline_running(self._data):
            if time.monotonic() >= deadline:
                break
            schedule.ask(self._data)
            time.sleep(_POLL_S)
        self._findings.behind = behind
        if behind:
            self._findings.verdict = "behind"

    def _behind(self) -> dict[str, int]:
        missing: dict[str, int] = {}
        for epoch, (first, last) in self._extents().items():
            for name in NEEDED:
                committed = self._lake.committed(name, self._shard, epoch)
                come = first - 1 if committed is None else committed
                if come < last:
                    missing[name] = missing.get(name, 0) + last - max(come, first - 1)
        return missing

    def _extents(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last offset of each epoch in the log."""
        found: dict[int, tuple[int, int]] = {}
        for one in self._view.segments:
            last = min(one.end, self._view.head.offset) - 1
            if last >= one.base:
                first = found.get(one.epoch, (one.base, 0))[0]
                found[one.epoch] = first, last
        return found

    def _is_proven_here(self, since: datetime | None, until: datetime | None) -> bool:
        """Prove a small lake in this process; return `False` if Spark has to judge it."""
        findings, view = self._findings, self._view
        if self._open is None or not proof.is_small(self._lake, view, NEEDED):
            return False
        try:
            hours = self._prove_here(since, until)
        except proof.UNPROVEN:
            findings.notes = []
            return False
        findings.hours = hours.all
        if hours.all:
            findings.notes += interrupted_erasures(self._data)
        return True

    def _prove_here(self, since: datetime | None, until: datetime | None) -> Hours:
        """Make every check; raises `Unproven` at the first one that fails."""
        entries = proof.all_entries(self._lake, self._shard)
        latest = look_at(self._data, is_live=self._view.is_live).head
        seen = proof.seen_hours(entries)
        bounds = self._bounds(seen)
        proof.check(len(bounds) == 1 and not bounds[0].is_former)
        proof.within(entries, bounds, latest)
        hours = Hours(seen, bounds, int(self._findings.at.timestamp()) // HOUR_S)
        hours.keep(since, until)
        if not hours.all:
            return hours
        report = check_log(self._view, hours)
        proof.check(proof.is_clean(hours.all) and (report.is_sound or report.is_only_unproven))
        (kept,) = hours.bounds(bounds)
        proof.prove(
            self._lake,
            self._view,
            entries,
            kept,
            hours,
            shard=self._shard,
            taken=self._taken(kept.epoch),
            judged_at=self._judged_at(),
        )
        return hours

    def _judge(
        self, since: datetime | None, until: datetime | None, advance: Callable[[int], None]
    ) -> None:
        everything = self._hold(ENTRIES.name)
        # Entries may have landed since the audit started; they are not beyond the log.
        latest = look_at(self._data, is_live=self._view.is_live).head
        seen = seen_hours(everything)
        bounds = self._bounds(seen)
        otherwise = int(self._findings.at.timestamp()) // HOUR_S
        hours = Hours(seen, bounds, otherwise)
        hours.keep(since, until)
        self._findings.hours = hours.all
        advance(1)
        if not hours.all:
            return
        self._name_given_up(everything, bounds, latest, hours)
        bounds = hours.bounds(bounds)
        is_kept = _is_within(bounds)
        entries = everything.where(is_kept)
        count_rows(entries, hours)
        advance(1)
        name_gaps(self._spark, entries, hours)
        name_duplicates(entries, hours)
        advance(1)
        is_complete = self._is_complete(bounds)
        name_reorders(entries, hours, _lineage(bounds), bounds[0].epoch, is_complete=is_complete)
        advance(1)
        name_missing_messages(entries, self._read(MESSAGES.name), hours)
        advance(1)
        name_deliveries(self._recipients(entries, bounds), hours)
        advance(1)
        report = check_log(self._view, hours)
        self._compare(entries, is_kept, hours, is_sound=report.is_sound or report.is_only_unproven)
        advance(1)
        if any(one.is_wrong for one in hours.all):
            self._findings.verdict = "wrong"
        self._findings.notes += interrupted_erasures(self._data)

    def _compare(
        self, entries: DataFrame, is_kept: Column, hours: Hours, *, is_sound: bool
    ) -> None:
        view = self._view
        for attempts_left in reversed(range(_ATTEMPTS_MAX)):
            try:
                with hours.undone_on_error():
                    compare(entries, view, readable(view, is_sound=is_sound), is_kept, hours)
                return
            except (PySparkException, EntriesGone, LogDamaged, OSError):
                latest = look_at(self._data, is_live=view.is_live)
                if latest.first == view.first or not attempts_left:
                    raise
                # Retention has deleted a segment while it was read.
                view = msgspec.structs.replace(latest, head=view.head)

    def _bounds(self, seen: list[tuple[int, int, int, int]]) -> list[Bounds]:
        """Return what the lake must contain of each epoch."""
        view, notes = self._view, self._findings.notes
        begins = view.begins
        lows = {epoch: min(row[2] for row in seen if row[0] == epoch) for epoch, *_ in seen}
        candidates = [LogPosition(epoch, low) for epoch, low in lows.items()]
        candidates += [*self._audited_first(), *([view.first] if view.segments else [])]
        first = min(candidates, default=view.head)
        oldest = min(begins, default=_NEVER)
        found: list[Bounds] = []
        for epoch, low in sorted(lows.items()):
            if epoch < oldest:
                high = max(row[3] for row in seen if row[0] == epoch)
                found.append(Bounds(epoch, low, high, is_former=True))
                notes.append(
                    f"Epoch {epoch} belongs to a log that no longer exists; its rows are only"
                    " compared with each other."
                )
        if begins and not found and first > LogPosition(oldest, 0):
            notes.append(
                f"The lake starts with entry {first.offset} of epoch {first.epoch}; earlier"
                " entries are not part of this proof."
            )
        for epoch, begin in sorted(begins.items()):
            later = [other for at, other in begins.items() if at > epoch]
            end = min(later) if later else view.head.offset
            low = max(begin, first.offset) if epoch == first.epoch else begin
            if epoch >= first.epoch and low < end:
                found.append(Bounds(epoch, low, end - 1))
        return found

    def _audited_first(self) -> list[LogPosition]:
        """Return the first entry an earlier audit has seen: it cannot disappear unnoticed."""
        where = f"shard = {self._shard} AND verdict <> 'behind'"
        order = "ORDER BY epoch, from_offset LIMIT 1"
        query = f"SELECT epoch, from_offset FROM audit WHERE {where} {order}"  # noqa: S608
        found = self._lake.select(AUDIT.name, query)
        rows = [] if found is None else found.to_pylist()
        return [LogPosition(row["epoch"], row["from_offset"]) for row in rows]

    def _is_complete(self, bounds: list[Bounds]) -> bool:
        return bounds[0].first == 0

    def _name_given_up(
        self, rows: DataFrame, bounds: list[Bounds], latest: LogPosition, hours: Hours
    ) -> None:
        """Report rows whose entries are not, or no longer, in the log."""
        known = {one.epoch: one for one in bounds}
        is_newer = (F.col("epoch") == latest.epoch) & (F.col("offset") < latest.offset)
        outside = rows.where(~_is_within(bounds) & ~is_newer).groupBy("epoch")
        found = outside.agg(F.min("offset"), F.max("offset"), F.count_distinct("offset"))
        for epoch, low, high, count in sorted(found.collect()):
            mine = known.get(epoch)
            if mine is not None and low < mine.first:
                continue
            is_last = epoch >= self._view.head.epoch
            why = "which the log does not have" if is_last else "which a later epoch discarded"
            hour = hours.at(epoch, high)
            if hour is not None:
                text = f"the lake has {count} entries, {low} to {high} of epoch {epoch}, {why}"
                hour.name([text], 1)

    def _recipients(self, entries: DataFrame, bounds: list[Bounds]) -> Recipients:
        current = [one for one in bounds if not one.is_former]
        epoch = current[-1].epoch if current else self._view.head.epoch
        deliveries = self._hold(DELIVERIES.name)
        is_mine = _is_within(current)
        return Recipients(
            entries=entries.where(is_mine),
            subscriptions=self._hold(SUBSCRIPTIONS.name),
            deliveries=deliveries.where(is_mine),
            taken=self._taken(epoch),
            judged_at=self._judged_at(),
        )

    def _taken(self, epoch: int) -> LogPosition:
        """Return the last entry of an epoch in `deliveries`."""
        taken = self._lake.committed(DELIVERIES.name, self._shard, epoch)
        return LogPosition(epoch, -1 if taken is None else taken)

    def _judged_at(self) -> datetime:
        """Return when deliveries are judged: nothing is settled after the hub has stopped."""
        at = self._findings.at
        if self._view.is_live:
            return at
        ends = [one.max_ms for one in self._view.segments]
        return min(at, datetime.fromtimestamp(max(ends, default=0) / 1000, UTC))

    def _read(self, name: str) -> DataFrame:
        """Return the rows of this shard at one version, for the whole audit."""
        table = self._lake.open(name)
        assert table is not None
        rows = (
            self._spark.read.format("delta")
            .option("versionAsOf", table.version())
            .load(self._lake.location(name))
        )
        return rows.where(F.col("shard") == self._shard)

    def _hold(self, name: str) -> DataFrame:
        """Return the same rows, cached if they are few, because they are queried often."""
        rows = self._read(name)
        if self._lake.bytes(name) <= _HELD_BYTES_MAX:
            self._held.append(rows.persist())
        return rows

    def _write(self) -> None:
        """Append the rows of this run to the table."""
        findings = self._findings
        if not ensure_table_here(self._lake, AUDIT.name):
            ensure_table(self._spark, self._lake, AUDIT.name)
        rows = [self._row(one) for one in findings.hours]
        if findings.verdict == "behind":
            rows = [self._row_behind()]
        if rows:
            columns = zip(*rows, strict=True)
            schema = pa.schema(arrow_fields(AUDIT.columns))
            arrays = [pa.array(one, field.type) for one, field in zip(columns, schema, strict=True)]
            found = pa.table(arrays, schema=schema)
            if not self._lake.append(AUDIT.name, found):
                frame = self._spark.createDataFrame(found)
                frame.write.format("delta").mode("append").save(self._lake.location(AUDIT.name))

    def _row(self, hour: Hour) -> tuple[object, ...]:
        findings = self._findings
        return (
            findings.run_id,
            findings.at,
            findings.shard,
            hour.epoch,
            hour.begin,
            hour.from_offset,
            hour.to_offset,
            findings.head.offset - 1,
            hour.distinct_rows,
            hour.gaps,
            hour.duplicates,
            hour.reorders,
            hour.pending,
            hour.overdue,
            hour.removed,
            hour.segment_sha256,
            hour.verdict,
            hour.exceptions,
        )

    def _row_behind(self) -> tuple[object, ...]:
        findings, head = self._findings, self._findings.head
        hour = findings.at.replace(minute=0, second=0, microsecond=0)
        first = head.offset - max(findings.behind.values())
        texts = [f"{name} lacks {count} entries" for name, count in findings.behind.items()]
        place = (findings.shard, head.epoch, hour, first, head.offset - 1, head.offset - 1)
        return (findings.run_id, findings.at, *place, *[None] * 8, "behind", texts)


def interrupted_erasures(data: Path) -> list[str]:
    """Return a note for each erasure that has not been completed: log and lake differ by it."""
    found = []
    for one in certificate.known(data):
        if one.state == "begun":
            at = datetime.fromtimestamp(one.begun_ms / 1000, UTC)
            found.append(
                f"The erasure {one.id} of {at:%Y-%m-%d %H:%M} UTC was interrupted: entries that are"
                " erased in the log may still be in the lake. Repeat the same `signalhub erase` to"
                " complete it, then audit again."
            )
    return found


def _is_within(bounds: list[Bounds]) -> Column:
    found = F.lit(False)
    for one in bounds:
        found |= (F.col("epoch") == one.epoch) & F.col("offset").between(one.first, one.last)
    return found


def _lineage(bounds: list[Bounds]) -> Column:
    """Streams continue from epoch to epoch, but not from one log to another."""
    former = [one.epoch for one in bounds if one.is_former]
    if not former:
        return F.lit(0).cast("bigint")
    return F.when(F.col("epoch").isin(*former), F.col("epoch")).otherwise(F.lit(-1))
