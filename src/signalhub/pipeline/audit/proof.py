"""The audit of a small lake in which everything is as it should be, without Spark.

It makes the same checks as the other modules of this folder and names nothing: as soon as it meets
a fault, an exception by policy or anything unusual, it leaves the whole audit to Spark. So it may
prove less than Spark does, and never more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from signalhub.log.errors import EntriesGone, LogDamaged, LogFailed
from signalhub.pipeline.audit.deliveries import ACTOR_GRACE_S, GRACE_S
from signalhub.pipeline.audit.hours import HOUR_S, Bounds, Hour, Hours, Seen
from signalhub.pipeline.audit.log import LogView
from signalhub.pipeline.audit.rows import NUMBERED
from signalhub.pipeline.lake import Lake, LakeUnreachable
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.source.source import BatchReader, Options
from signalhub.pipeline.tables import bodies
from signalhub.pipeline.tables.deliveries import UNSETTLED
from signalhub.pipeline.tables.piece import columns_of, listed
from signalhub.pipeline.tables.tables import DELIVERIES, ENTRIES, MESSAGES, SUBSCRIPTIONS

ENTRIES_MAX: Final = 20_000
_BYTES_MAX: Final = 16 * 2**20
_COMPARED: Final = ("kind", "stream_epoch", "seq", "accepted_at")
_SECOND: Final = 1_000_000

Key = tuple[int, str, int]
"""Offset, reader and generation of a delivery."""


class Unproven(Exception):
    """Spark has to find out what is the matter."""


UNPROVEN: Final = (Unproven, LakeUnreachable, TypeError, ValueError, pa.ArrowException)
"""Errors of checks, which damaged tables may surprise."""


def check(is_so: bool) -> None:
    """Raise `Unproven` unless something is as it should be."""
    if not is_so:
        raise Unproven


def is_small(lake: Lake, view: LogView, names: Iterable[str]) -> bool:
    """Return whether log and tables are small."""
    size = sum(one.bytes for one in view.segments)
    count = view.head.offset - view.first.offset
    return count <= ENTRIES_MAX and max(size, lake.bytes(*names)) <= _BYTES_MAX


def stored(lake: Lake, name: str, columns: Sequence[str], shard: int) -> pa.Table:
    """Return the rows of a shard; raises `Unproven` if there are many."""
    rows = columns_of(lake, name, columns, f"shard = {shard} LIMIT {20 * ENTRIES_MAX + 1}")
    check(rows.num_rows <= 20 * ENTRIES_MAX)
    return rows


def seen_hours(entries: pa.Table) -> list[Seen]:
    """Return the hours in which the existing rows were accepted."""
    hours = pc.divide(entries["accepted_at"].cast(pa.int64()), HOUR_S * _SECOND)
    check(not pc.any(pc.less(entries["accepted_at"].cast(pa.int64()), 0)).as_py())
    table = pa.table({"epoch": entries["epoch"], "hour": hours, "offset": entries["offset"]})
    found = table.group_by(["epoch", "hour"]).aggregate([("offset", "min"), ("offset", "max")])
    rows = found.select(["epoch", "hour", "offset_min", "offset_max"]).to_pylist()
    return [(row["epoch"], row["hour"], row["offset_min"], row["offset_max"]) for row in rows]


def within(entries: pa.Table, bounds: Sequence[Bounds], latest: LogPosition) -> None:
    """Check that no row is outside the bounds, except those that have just landed."""
    (one,) = bounds
    is_mine = pc.and_(
        pc.equal(entries["epoch"], one.epoch),
        pc.and_(
            pc.greater_equal(entries["offset"], one.first),
            pc.less_equal(entries["offset"], one.last),
        ),
    )
    is_newer = pc.and_(
        pc.equal(entries["epoch"], latest.epoch), pc.less(entries["offset"], latest.offset)
    )
    check(bool(pc.all(pc.or_(is_mine, is_newer)).as_py()))


def between(rows: pa.Table, bounds: Bounds) -> pa.Table:
    """Return the rows in the bounds, in order."""
    is_mine = pc.and_(
        pc.equal(rows["epoch"], bounds.epoch),
        pc.and_(
            pc.greater_equal(rows["offset"], bounds.first),
            pc.less_equal(rows["offset"], bounds.last),
        ),
    )
    return rows.filter(is_mine).sort_by("offset")


def count_rows(entries: pa.Table, bounds: Bounds, hours: Hours) -> None:
    """Check that every entry exists once, and count them by hour."""
    expected = pa.array(range(bounds.first, bounds.last + 1), pa.int64())
    check(entries["offset"].combine_chunks().equals(expected))
    removed = entries["removed_at"].is_valid().to_pylist()
    for hour in hours.all:
        low, high = hour.from_offset - bounds.first, hour.to_offset - bounds.first + 1
        hour.distinct_rows = hour.entries
        hour.removed = sum(removed[low:high])


def check_order(entries: Sequence[dict[str, Any]], *, is_complete: bool) -> None:
    """Check that each seq follows the one before it in its stream."""
    last: dict[tuple[str, int], int] = {}
    for row in entries:
        if row["kind"] in NUMBERED and (row["seq"] or 0) > 0:
            stream = row["stream"], row["stream_epoch"]
            before = last.get(stream, 0 if is_complete else None)
            check(before is None or row["seq"] == before + 1)
            last[stream] = row["seq"]


def check_messages(entries: Sequence[dict[str, Any]], messages: pa.Table) -> None:
    """Check that every message has its row."""
    there = set(zip(messages["epoch"].to_pylist(), messages["offset"].to_pylist(), strict=True))
    for row in entries:
        if row["kind"] in NUMBERED or row["kind"] == "broadcast":
            check((row["epoch"], row["offset"]) in there)


class RecipientsHere(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that define the recipients, and the time up to which deliveries are judged."""

    entries: Sequence[dict[str, Any]]
    subscriptions: Sequence[dict[str, Any]]
    deliveries: Sequence[dict[str, Any]]
    taken: LogPosition
    judged_at: datetime


def count_deliveries(recipients: RecipientsHere, hours: Hours) -> set[tuple[int, str]]:
    """Check that each delivery has ended or can still end, and count pending ones by hour.

    Returns offset and reader of those that are settled.
    """
    found: dict[Key, dict[str, Any]] = {}
    latest: dict[tuple[str, int], tuple[int, int]] = {}
    for row in recipients.deliveries:
        is_subscription = row["recipient_kind"] == "subscription"
        reader = row["recipient"] if is_subscription else ""
        key = row["offset"], reader, row["generation"]
        check(key not in found)
        found[key] = row
        if row["settled_at"] is not None and is_subscription:
            its = row["offset"], row["settled_at"]
            latest[key[1:]] = max(its, latest.get(key[1:], its))
    begins = [one.from_offset for one in hours.all]
    matched = 0
    for key, message, is_over, is_due in _expected(recipients):
        delivery = found.get(key)
        if delivery is None:
            check(not is_due)
            continue
        matched += 1
        check(delivery["outcome"] not in (None, "lost"))
        if delivery["settled_at"] is None:
            check(not is_over)
            check(not _is_passed(message, delivery, latest.get(key[1:])))
            check(not _is_stuck(message, delivery, recipients.judged_at))
            hours.all[bisect_right(begins, key[0]) - 1].pending += 1
    check(matched == len(found))
    return {(at, who) for (at, who, _), row in found.items() if row["settled_at"] is not None}


def _expected(recipients: RecipientsHere) -> Iterable[tuple[Key, dict[str, Any], bool, bool]]:
    """Yield each message with a recipient, whether that has ended, and whether it must be known."""
    taken = recipients.taken.epoch, recipients.taken.offset
    deleted = {
        (row["stream"], row["stream_epoch"])
        for row in recipients.entries
        if row["kind"] == "stream_deleted"
    }
    readers = defaultdict(list)
    for one in recipients.subscriptions:
        readers[one["topic"], one["stream_epoch"]].append(one)
    for row in recipients.entries:
        stream = row["stream"], row["stream_epoch"]
        if row["kind"] == "mail":
            yield (row["offset"], "", 1), row, stream in deleted, True
        for one in readers[stream] if row["kind"] == "published" else ():
            begin, end = (
                (one["from_epoch"], one["from_offset"]),
                (one["to_epoch"], one["to_offset"]),
            )
            has_end = one["to_offset"] is not None
            is_after_end = has_end and end < (row["epoch"], row["offset"])
            if row["seq"] > one["floor"] and not is_after_end:
                name = f"{one['topic']}/{one['subscription']}"
                is_over = has_end and end <= taken
                yield (row["offset"], name, one["generation"]), row, is_over, begin <= taken


def _is_passed(
    message: dict[str, Any], delivery: dict[str, Any], latest: tuple[int, int] | None
) -> bool:
    """Return whether it expired and a later message of its reader was settled after that."""
    if message["expires_at"] is None or latest is None:
        return False
    ended: int = max(message["expires_at"], delivery["last_sent_at"] or 0) + GRACE_S * _SECOND
    return bool(message["offset"] < latest[0] and latest[1] > ended)


def _is_stuck(message: dict[str, Any], delivery: dict[str, Any], judged_at: datetime) -> bool:
    """Return whether an actor without a mailbox should have had it by now."""
    is_late = message["accepted_at"] / _SECOND + ACTOR_GRACE_S < judged_at.timestamp()
    return bool(is_late and delivery["recipient_kind"] == "actor")


def check_settled(entries: pa.Table, settled: set[tuple[int, str]]) -> None:
    """Check that messages settled in the log are settled in `deliveries`."""
    there = set(entries["offset"].to_pylist())
    kinds = pa.array(list(bodies.SETTLEMENTS.kinds))
    some = entries.filter(pc.is_in(entries["kind"], kinds)).combine_chunks()
    for batch in some.to_batches():
        for row in bodies.read_batch(batch, bodies.SETTLEMENTS).to_pylist():
            reader = f"{row['stream']}/{row['subscription']}" if row["subscription"] else ""
            if row["outcome"] not in UNSETTLED and row["message_offset"] in there:
                check((row["message_offset"], reader) in settled)


def compare(entries: pa.Table, view: LogView, bounds: Bounds) -> None:
    """Check that entries are as in the log; it may have content that was removed from the lake."""
    first, head = view.first, view.head
    if first >= head:
        return
    options = Options(
        path=str(view.data),
        starting_offset=f"{first.epoch}:{first.offset}",
        until=f"{head.epoch}:{head.offset}",
        beyond_published=not view.is_live,
    )
    try:
        log = BatchReader(options).read_here()
    except (EntriesGone, LogDamaged, LogFailed, OSError) as error:
        raise Unproven from error
    low = max(first.offset, bounds.first)
    both = Bounds(bounds.epoch, low, min(head.offset - 1, bounds.last))
    mine, theirs = between(entries, both), between(log, both)
    check(mine["offset"].equals(theirs["offset"]))
    for name in _COMPARED:
        check(mine[name].equals(theirs[name]))
    has_mine, has_theirs = mine["body"].is_valid(), theirs["body"].is_valid()
    is_lost = pc.and_(has_theirs, pc.invert(has_mine))
    check(not pc.any(pc.and_(is_lost, mine["removed_at"].is_null())).as_py())
    for name in ("body", "stream"):
        check(mine[name].filter(has_mine).equals(theirs[name].filter(has_mine)))


def prove(
    lake: Lake,
    view: LogView,
    entries: pa.Table,
    bounds: Bounds,
    hours: Hours,
    *,
    shard: int,
    taken: LogPosition,
    judged_at: datetime,
) -> None:
    """Make all checks that concern the tables; raises `Unproven`."""
    kept = between(entries, bounds)
    count_rows(kept, bounds, hours)
    rows = listed(kept.drop_columns(["body"]))
    check_order(rows, is_complete=bounds.first == 0)
    check_messages(rows, stored(lake, MESSAGES.name, ("epoch", "offset"), shard))
    recipients = RecipientsHere(
        entries=rows,
        subscriptions=listed(stored(lake, SUBSCRIPTIONS.name, SUBSCRIPTIONS.names, shard)),
        deliveries=listed(between(stored(lake, DELIVERIES.name, DELIVERIES.names, shard), bounds)),
        taken=taken,
        judged_at=judged_at,
    )
    check_settled(kept, count_deliveries(recipients, hours))
    compare(kept, view, bounds)


def all_entries(lake: Lake, shard: int) -> pa.Table:
    """Return the whole table."""
    return stored(lake, ENTRIES.name, ENTRIES.names, shard)


def is_clean(hours: Sequence[Hour]) -> bool:
    """Return whether nothing was named."""
    return not any(one.is_wrong or one.exceptions for one in hours)
