"""The log in an audit: its range, its integrity, and the comparison with the lake.

Lake and log are compared by checksums over many entries; single entries are compared only where the
checksums differ. They use a new salt in every audit, so nobody can forge rows with equal checksums.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from signalhub.log.disk import Disk
from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.log.folder import look
from signalhub.log.footer import decode_summary, footer_base, sealed_segment
from signalhub.log.record import Unreadable
from signalhub.log.segment import SegmentInfo
from signalhub.log.verify import Report, verify
from signalhub.pipeline.audit.hours import Hours
from signalhub.pipeline.source.known import known_head
from signalhub.pipeline.source.plan import LogPosition, Segments, log_of
from signalhub.pipeline.source.source import FORMAT, BatchReader, Options
from signalhub.pipeline.tables.piece import FEW, frame

BLOCK: Final = 2**16
"""The number of entries per checksum."""

_FEW_BYTES: Final = 16 * 2**20
_COMPARED: Final = ("kind", "stream_epoch", "seq", "accepted_at", "stream", "body")
_NAME: Final = re.compile(r"\b(\d{20})\.")

Run = tuple[LogPosition, LogPosition]
"""A range of entries: the first, and the one after the last."""


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a log folder at one moment."""

    data: Path
    segments: tuple[SegmentInfo, ...]
    """The segments on disk, oldest first."""
    deleted: tuple[SegmentInfo, ...]
    """Deleted segments whose footer is left."""
    head: LogPosition
    """Where the audit ends: the next entry to be written."""
    is_live: bool
    """Whether a hub is writing it."""

    @property
    def first(self) -> LogPosition:
        """The oldest readable entry."""
        if not self.segments:
            return self.head
        return LogPosition(self.segments[0].epoch, self.segments[0].base)

    @property
    def begins(self) -> dict[int, int]:
        """The first offset of every known epoch."""
        found: dict[int, int] = {}
        for one in (*self.deleted, *self.segments):
            found.setdefault(one.epoch, one.base)
        return found

    def chain_at(self, first: int, last: int) -> str | None:
        """Return the chain of the last sealed segment that ends between two offsets."""
        chains = [
            one.chain.hex()
            for one in (*self.deleted, *self.segments)
            if one.is_sealed and first <= one.end - 1 <= last
        ]
        return chains[-1] if chains else None


def look_at(data: Path, *, is_live: bool) -> LogView:
    """Read the log up to the published head if a hub runs, else to the last valid batch."""
    disk = log_of(data)
    found = look(disk)
    segments = tuple(found.segments)
    head = LogPosition(segments[-1].epoch, segments[-1].end) if segments else LogPosition(0, 0)
    if is_live and found.published:
        published = LogPosition(found.published.epoch, found.published.durable)
        head = min(head, published)
    return LogView(
        data=data, segments=segments, deleted=tuple(_deleted(disk)), head=head, is_live=is_live
    )


def _deleted(disk: Disk) -> Iterator[SegmentInfo]:
    names = disk.names()
    for name in sorted(names):
        base = footer_base(name)
        if base is None or f"{base:020d}.log" in names:
            continue
        file = disk.open(name, read_only=True)
        try:
            yield sealed_segment(decode_summary(file.read(file.size(), 0)))
        except Unreadable:
            # The full check reports the damage.
            continue
        finally:
            file.close()


def check_log(view: LogView, hours: Hours) -> Report:
    """Verify batches, entries, footers and chain; report each fault with its hour."""
    head = known_head(view.data)
    report = verify(log_of(view.data), head)
    for problem in report.problems:
        if problem == report.unknown_end:
            # Nothing that is compared is wrong.
            continue
        found = _NAME.search(problem)
        offset = int(found[1]) if found else view.head.offset
        epochs = [epoch for epoch, begin in view.begins.items() if begin <= offset]
        hour = hours.at(max(epochs, default=view.head.epoch), offset)
        if hour is not None:
            hour.name([f"the log: {problem}"], 1)
    for hour in hours.all:
        hour.segment_sha256 = view.chain_at(hour.from_offset, hour.to_offset)
    return report


def readable(view: LogView, *, is_sound: bool) -> list[Run]:
    """Return what can be read of the log: all of it, or the undamaged segments."""
    if is_sound:
        return [(view.first, view.head)] if view.first < view.head else []
    try:
        segments = Segments(log_of(view.data))
    except LogDamaged:
        return []
    found: list[Run] = []
    for one in view.segments:
        begin, end = LogPosition(one.epoch, one.base), LogPosition(one.epoch, one.end)
        end = min(end, view.head)
        try:
            if begin < end and segments.plan(begin, end).end == end:
                found.append((begin, end))
        except (LogDamaged, EntriesGone):
            continue
    return found


def compare(entries: DataFrame, view: LogView, runs: list[Run], kept: Column, hours: Hours) -> None:
    """Report rows that differ from the log; missing ones are reported as gaps.

    Only entries that are `kept` are compared.
    """
    spark = entries.sparkSession
    for begin, end in runs:
        options = {
            "path": str(view.data),
            "startingOffset": f"{begin.epoch}:{begin.offset}",
            "until": f"{end.epoch}:{end.offset}",
            "beyondPublished": str(not view.is_live).lower(),
        }
        if _is_small(view, begin, end):
            log = spark.createDataFrame(BatchReader(Options.of(options)).read_here())
        else:
            log = spark.read.format(FORMAT).options(**options).load()
        offset, low, high = F.col("offset"), begin.offset, end.offset
        is_within = (offset >= low) & (offset < high) & (F.col("epoch") >= begin.epoch) & kept
        _compare(entries.where(is_within), log.where(is_within), hours)


def _is_small(view: LogView, begin: LogPosition, end: LogPosition) -> bool:
    """Return whether a range has few entries, in small segments."""
    sizes = (one.bytes for one in view.segments if one.base < end.offset and one.end > begin.offset)
    return end.offset - begin.offset <= FEW and sum(sizes) <= _FEW_BYTES


def _compare(entries: DataFrame, log: DataFrame, hours: Hours) -> None:
    salt = secrets.token_hex(8)
    mine, theirs = _sums(entries, salt), _sums(log, salt)
    bad = [block for block in mine.keys() | theirs.keys() if mine.get(block) != theirs.get(block)]
    if not bad:
        return
    spark = entries.sparkSession
    blocks = F.broadcast(frame(spark, bad, "epoch BIGINT, block BIGINT"))
    chosen = [_reduced(rows, blocks) for rows in (entries, log)]
    both = chosen[0].alias("e").join(chosen[1].alias("l"), ["epoch", "offset"], "left")
    what = F.col("what")
    absent = F.format_string("entry %d is in the lake and not in the log", "offset")
    differs = F.format_string("entry %d differs from the log: %s", "offset", "what")
    faults = (
        both.select("epoch", "offset", _differences().alias("what"))
        .where(what.isNull() | (what != ""))
        .select("epoch", "offset", F.when(what.isNull(), absent).otherwise(differs).alias("text"))
    )
    hours.name(hours.place_few(faults.distinct()))


def _sums(rows: DataFrame, salt: str) -> dict[tuple[int, int], tuple[int, int, int]]:
    # An erased entry may have lost the name of its stream with its body.
    stream = F.when(F.col("body").isNotNull(), F.col("stream"))
    values = [F.col(name) for name in ("offset", *_COMPARED) if name != "stream"] + [stream]
    found = (
        rows.groupBy("epoch", _block().alias("block"))
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.bit_xor(F.xxhash64(F.lit(salt), *values)).alias("one"),
            F.bit_xor(F.xxhash64(F.lit(salt[::-1]), *values)).alias("other"),
        )
        .collect()
    )
    return {(row.epoch, row.block): (row.rows, row.one, row.other) for row in found}


def _reduced(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    """Return the rows of some blocks, with digests instead of bodies."""
    removed = F.col("removed_at").isNotNull() if "removed_at" in rows.columns else F.lit(False)
    return (
        rows.withColumn("block", _block())
        .join(blocks, ["epoch", "block"])
        .withColumn("body", F.sha2("body", 256))
        .withColumn("is_removed", removed)
        .select("epoch", "offset", *_COMPARED, "is_removed")
    )


def _differences() -> Column:
    """Return the columns in which two rows differ, as words; null if there is only one row."""
    mine, theirs = F.col("e.body"), F.col("l.body")
    has_both = mine.isNotNull() & theirs.isNotNull()
    found = [
        F.when(~F.col(f"e.{name}").eqNullSafe(F.col(f"l.{name}")), F.lit(name))
        for name in _COMPARED
        if name not in ("body", "stream")
    ]
    found += [
        F.when(has_both & (F.col("e.stream") != F.col("l.stream")), F.lit("stream")),
        F.when(has_both & (mine != theirs), F.lit("body")),
        F.when(mine.isNull() & theirs.isNotNull() & ~F.col("e.is_removed"), F.lit("no body")),
        F.when(mine.isNotNull() & theirs.isNull(), F.lit("it is erased there, and not here")),
    ]
    return F.when(F.col("l.kind").isNotNull(), F.concat_ws(", ", *found))


def _block() -> Column:
    return F.floor(F.col("offset") / BLOCK).cast("bigint")
