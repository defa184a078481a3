"""The hours an audit reports on, and the hour of each row.

Times do not always increase with offsets: those of rooms are coarse, and clocks are set back. So an
hour is a range of offsets: it starts with the first entry accepted in it and ends where the next
hour starts. Hours of an epoch have no gaps between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from signalhub.pipeline.tables.piece import frame

NAMED_MAX: Final = 20
"""This many faults of a kind are named per hour; the others are only counted."""
HOUR_S: Final = 3_600

Seen = tuple[int, int, int, int]
"""Epoch, hour since 1970, smallest and largest offset of the existing rows."""


class Bounds(msgspec.Struct, frozen=True):
    """What the lake must contain of an epoch: `first` to `last`, both included."""

    epoch: int
    first: int
    last: int
    is_former: bool = False
    """The log no longer exists, so only the lake says what it contained."""


class Hour(msgspec.Struct, kw_only=True):
    """One hour of an epoch, and what was found in it."""

    number: int
    epoch: int
    hour: int
    """Since 1970."""
    from_offset: int
    to_offset: int
    distinct_rows: int = 0
    gaps: int = 0
    duplicates: int = 0
    reorders: int = 0
    pending: int = 0
    overdue: int = 0
    removed: int = 0
    segment_sha256: str | None = None
    is_wrong: bool = False
    exceptions: list[str] = msgspec.field(default_factory=list)

    @property
    def entries(self) -> int:
        return self.to_offset - self.from_offset + 1

    @property
    def begin(self) -> datetime:
        return datetime.fromtimestamp(self.hour * HOUR_S, UTC)

    @property
    def verdict(self) -> str:
        return "wrong" if self.is_wrong else "proven"

    def name(self, sentences: Sequence[str], total: int, *, is_wrong: bool = True) -> None:
        """Add faults of one kind; `total` is their number."""
        self.exceptions += sentences
        if total > len(sentences):
            self.exceptions.append(f"and {total - len(sentences)} more like the last one")
        self.is_wrong |= is_wrong and total > 0


class Hours:
    """All hours of an audit."""

    def __init__(self, seen: Iterable[Seen], bounds: Sequence[Bounds], otherwise: int) -> None:
        """An epoch without any row counts as the hour `otherwise`."""
        self.all: list[Hour] = []
        self._places: list[tuple[int, int, int, int, int]] = []
        found = list(seen)
        for one in bounds:
            mine = [row for row in found if row[0] == one.epoch and row[2] <= one.last]
            added = self._added(one, mine, otherwise)
            self.all += added
            begins = [hour.from_offset for hour in added]
            for epoch, hour, low, high in mine:
                for its in added[max(0, bisect_right(begins, low) - 1) :]:
                    if its.from_offset > high:
                        break
                    place = (epoch, hour, its.number, its.from_offset, its.to_offset)
                    self._places.append(place)
        self._by_number = {one.number: one for one in self.all}

    def _added(self, bounds: Bounds, seen: list[Seen], otherwise: int) -> list[Hour]:
        begins: list[tuple[int, int]] = []
        for _, hour, low, _ in sorted(seen, key=lambda one: (one[2], one[1])):
            if not begins or hour > begins[-1][0]:
                begins.append((hour, max(low, bounds.first)))
        begins = begins or [(otherwise, bounds.first)]
        begins[0] = (begins[0][0], bounds.first)
        ends = [low - 1 for _, low in begins[1:]] + [bounds.last]
        return [
            Hour(
                number=len(self.all) + place,
                epoch=bounds.epoch,
                hour=hour,
                from_offset=low,
                to_offset=high,
            )
            for place, ((hour, low), high) in enumerate(zip(begins, ends, strict=True))
        ]

    def keep(self, since: datetime | None, until: datetime | None) -> None:
        """Keep only hours from `since` on and before `until`."""
        self.all = [
            one
            for one in self.all
            if (since is None or one.begin >= since) and (until is None or one.begin < until)
        ]
        numbers = {one.number for one in self.all}
        self._places = [place for place in self._places if place[2] in numbers]

    def bounds(self, of: Sequence[Bounds]) -> list[Bounds]:
        """Return the same bounds, narrowed to the selected hours."""
        found: list[Bounds] = []
        for one in of:
            mine = [hour for hour in self.all if hour.epoch == one.epoch]
            if mine:
                first = min(hour.from_offset for hour in mine)
                last = max(hour.to_offset for hour in mine)
                found.append(Bounds(one.epoch, first, last, one.is_former))
        return found

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Forget the faults named in the block if it fails: whoever repeats it names them again."""
        before = [(one, list(one.exceptions), one.is_wrong) for one in self.all]
        try:
            yield
        except BaseException:
            for one, exceptions, is_wrong in before:
                one.exceptions, one.is_wrong = exceptions, is_wrong
            raise

    def by_number(self, number: int) -> Hour:
        return self._by_number[number]

    def at(self, epoch: int, offset: int) -> Hour | None:
        """Return the hour of an offset; the nearest one if it is outside."""
        mine = [one for one in self.all if one.epoch == epoch] or self.all
        before = [one for one in mine if one.from_offset <= offset]
        return (before or mine)[-1 if before else 0] if mine else None

    def place(self, rows: DataFrame) -> DataFrame:
        """Return rows of `entries` with the number of their hour; rows without one are omitted."""
        schema = "p_epoch BIGINT, p_hour BIGINT, number INT, low BIGINT, high BIGINT"
        places = F.broadcast(frame(rows.sparkSession, self._places, schema))
        is_there = (
            (F.col("epoch") == F.col("p_epoch"))
            & (_hour() == F.col("p_hour"))
            & F.col("offset").between(F.col("low"), F.col("high"))
        )
        return rows.join(places, is_there).drop("p_epoch", "p_hour", "low", "high")

    def place_few(self, faults: DataFrame) -> DataFrame:
        """Return the same for rows that have a position but no time."""
        schema = "p_epoch BIGINT, number INT, low BIGINT, high BIGINT"
        rows = [(one.epoch, one.number, one.from_offset, one.to_offset) for one in self.all]
        places = F.broadcast(frame(faults.sparkSession, rows, schema))
        is_there = (F.col("epoch") == F.col("p_epoch")) & F.col("offset").between(
            F.col("low"), F.col("high")
        )
        return faults.join(places, is_there).drop("p_epoch", "low", "high")

    def name(self, faults: DataFrame, count: str = "", *, is_wrong: bool = True) -> None:
        """Report the first faults of each hour: rows of `number`, `offset` and `text`.

        `count` is the member of the hour that gets their total.
        """
        window = Window.partitionBy("number")
        rows = (
            faults.withColumn("total", F.count(F.lit(1)).over(window))
            .withColumn("place", F.row_number().over(window.orderBy("offset")))
            .where(F.col("place") <= NAMED_MAX)
            .select("number", "place", "text", "total")
            .collect()
        )
        # So few are sorted here, because Spark would read them twice to sort them.
        rows.sort(key=lambda row: (row.number, row.place))
        for number in dict.fromkeys(row.number for row in rows):
            mine = [row for row in rows if row.number == number]
            hour = self.by_number(number)
            hour.name([row.text for row in mine], mine[0].total, is_wrong=is_wrong)
            if count:
                setattr(hour, count, mine[0].total)


def seen_hours(entries: DataFrame) -> list[Seen]:
    """Return the hours in which the existing rows were accepted."""
    rows = (
        entries.groupBy("epoch", _hour().alias("hour"))
        .agg(F.min("offset").alias("low"), F.max("offset").alias("high"))
        .collect()
    )
    return [(row.epoch, row.hour, row.low, row.high) for row in rows]


def _hour() -> Column:
    return F.floor(F.unix_seconds(F.col("accepted_at")) / HOUR_S).cast("bigint")
