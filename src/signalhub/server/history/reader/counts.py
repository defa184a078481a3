"""How much there is: counts for the rail beside the log, and series from before the ring."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.server.history.answers import CountBucket, Counts, Place, Series
from signalhub.server.history.questions import CountQuestion, SeriesQuestion
from signalhub.server.history.reader.pace import Pace
from signalhub.server.history.reader.rows import SHARD, BadQuestion, position_text
from signalhub.server.history.reader.tiers import Sources, sql_text, sql_time
from signalhub.wire.entry import Kind

TRAFFIC: Final = "traffic_1m"
BUCKETS_MAX: Final = 1_000
_MINUTE_MS: Final = 60_000
_STEP: Final = 500
# Entries that have not landed are counted one by one, the newest first.
_COUNTED_MAX: Final = 200_000
_COUNTED: Final = frozenset((Kind.MAIL, Kind.PUBLISHED, Kind.BROADCAST, Kind.ROOM_MESSAGE))

# What a series of the ring was at times the ring has forgotten.
_SERIES: Final = {
    "in": ("sum(accepted)", True),
    "stored": ("sum(accepted)", True),
    "published": ("sum(accepted) FILTER (WHERE kind = 'published')", True),
    "deliveries": ("sum(settled)", True),
    "room_messages": ("sum(accepted) FILTER (WHERE kind = 'room_message')", True),
    "bytes": ("sum(bytes)", True),
    "ask_p50": ("max(p50_ms)", False),
    "ask_p99": ("max(p99_ms)", False),
}


def counts_of(sources: Sources, question: CountQuestion, pace: Pace) -> Counts:
    """Counts per bucket, those of the lake and those of what has not landed."""
    begin, end = question.begin, question.end
    if not 0 <= begin < end:
        raise BadQuestion("from must be before to")
    lake = sources.lake
    if lake is None or not sources.reading(lambda: lake.exists(TRAFFIC)):
        return _of_segments(sources, begin, end)
    width = _width(begin, end, min(max(1, question.buckets), BUCKETS_MAX))
    found = _of_lake(sources, question, width)
    stretches = [one for one in sources.stretches() if one.tier == "log"]
    counted_to: Place | None = None
    for stretch in stretches:
        landed = max(stretch.first, sources.landed(TRAFFIC, stretch.epoch))
        if landed >= stretch.end:
            break
        first = max(landed, stretch.end - _COUNTED_MAX)
        try:
            for stored in sources.log.scan_back(stretch.end, first):
                if stored.kind in _COUNTED and question.stream in (None, stored.stream):
                    at_ms = stored.at_ms
                    if begin <= at_ms < end:
                        found[at_ms // width] += 1
                if stored.offset % _STEP == 0 and not pace.go_on():
                    break
        except (LogDamaged, EntriesGone):
            pass
        counted_to = Place(
            position=position_text(stretch.epoch, landed), epoch=stretch.epoch, offset=landed
        )
    buckets = [
        CountBucket(at=at * width, until=(at + 1) * width, count=count)
        for at, count in sorted(found.items())
    ]
    return Counts(buckets=buckets, unit="messages", counted_to=counted_to)


def _width(begin: int, end: int, buckets: int) -> int:
    """The width of a bucket, in whole minutes."""
    return max(1, -(-(end - begin) // (buckets * _MINUTE_MS))) * _MINUTE_MS


def _of_lake(sources: Sources, question: CountQuestion, width: int) -> dict[int, int]:
    where = (
        f"shard = {SHARD} AND minute >= {sql_time(question.begin)}"
        f" AND minute < {sql_time(question.end)}"
    )
    if question.stream is not None:
        where += f" AND topic = {sql_text(question.stream)}"
    rows = sources.query(
        TRAFFIC,
        f"SELECT floor(to_unixtime(minute) * 1000 / {width}) AS bucket,"  # noqa: S608
        f" sum(accepted) AS accepted FROM traffic_1m WHERE {where} GROUP BY 1",
    )
    found: dict[int, int] = defaultdict(int)
    if rows is not None:
        for bucket, count in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            found[int(bucket)] += int(count or 0)
    return found


def _of_segments(sources: Sources, begin: int, end: int) -> Counts:
    """One bucket for each segment of the log."""
    head = sources.folder.head
    buckets = [
        CountBucket(
            at=info.min_ms,
            until=max(info.max_ms, info.min_ms) + 1,
            count=min(info.end, head) - info.base,
        )
        for info in sources.folder.segments
        if info.max_ms >= begin and info.min_ms < end and info.base < head
    ]
    return Counts(buckets=buckets, unit="entries", counted_to=None)


def series_of(sources: Sources, question: SeriesQuestion) -> Series:
    """Numbers per step, as far as `traffic_1m` knows them; rates are per second."""
    begin, end = question.begin, question.end
    step_s = max(60, question.step_s - question.step_s % 60)
    if not 0 <= begin < end or (end - begin) // (step_s * 1000) > 10_000:
        raise BadQuestion("choose a shorter time, or a longer step")
    first = begin // (step_s * 1000)
    count = max(1, -(-end // (step_s * 1000)) - first)
    times = [(first + at) * step_s * 1000 for at in range(count)]
    names = [name for name in question.names if name in _SERIES]
    series: dict[str, list[float | None]] = {name: [None] * count for name in question.names}
    if not names or sources.lake is None:
        return Series(t=times, series=series)
    columns = ", ".join(f"{_SERIES[name][0]} AS c{at}" for at, name in enumerate(names))
    rows = sources.query(
        TRAFFIC,
        f"SELECT floor(to_unixtime(minute) / {step_s}) AS step, {columns}"  # noqa: S608
        f" FROM traffic_1m WHERE shard = {SHARD} AND minute >= {sql_time(begin)}"
        f" AND minute < {sql_time(end)} GROUP BY 1",
    )
    if rows is not None:
        listed: list[list[Any]] = [column.to_pylist() for column in rows.columns]
        for step, *values in zip(*listed, strict=True):
            at = int(step) - first
            if not 0 <= at < count:
                continue
            for name, value in zip(names, values, strict=True):
                is_rate = _SERIES[name][1]
                series[name][at] = (
                    None if value is None else float(value) / step_s if is_rate else float(value)
                )
    return Series(t=times, series=series)
