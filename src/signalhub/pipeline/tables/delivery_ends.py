"""Events that end pending deliveries without a settlement.

A subscription or mailbox is deleted, a subscription is moved by a seek, retention removes unsettled
messages, dead letters are redriven or purged, or a log loses its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from signalhub.pipeline.lake import Merging
from signalhub.pipeline.tables import bodies, subscriptions
from signalhub.pipeline.tables.piece import Piece, SparkPiece, arrow, is_before, listed
from signalhub.pipeline.tables.subscriptions import Stretch
from signalhub.pipeline.tables.tables import DELIVERIES

LOST: Final = "lost"
REMOVED: Final = "removed"
DROPPED: Final = "dropped"
_ANCHORED: Final = "anchored"  # It only repeats an earlier removal.
ENDED_BY_EVENT: Final = (
    f"(t.outcome IN ('{LOST}', '{REMOVED}', '{subscriptions.SOUGHT}')"
    f" OR t.outcome = '{DROPPED}' AND t.reason = '{subscriptions.DELETED}')"
)
"""Whether a delivery `t` was ended by such an event."""
REASON_OF_EVENT: Final = (
    f"(t.outcome IN ('{REMOVED}', '{DROPPED}') OR t.reason = '{subscriptions.GIVEN_UP}')"
)
"""Whether the reason of such a delivery is that of the event."""
_KINDS: Final = ("lost", "removed", "stream_deleted")
_KEY: Final = ("shard", "epoch", "offset", "recipient_kind", "recipient", "generation")
_OUTCOMES: Final = {
    subscriptions.SOUGHT: (subscriptions.SOUGHT, None),
    subscriptions.DELETED: (DROPPED, subscriptions.DELETED),
    subscriptions.GIVEN_UP: (LOST, subscriptions.GIVEN_UP),
}


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What ends, and how; `None` matches anything."""

    epoch: int
    offset: int
    at: int
    outcome: str
    reason: str | None = None
    recipient_kind: str | None = None
    recipient: str | None = None
    generation: int | None = None
    from_offset: int | None = None
    """Only messages from here on."""
    stream: str | None = None
    stream_epoch: int | None = None
    floor: int | None = None
    """Only these of the stream, after `floor` up to `last`."""
    last: int | None = None


_SCHEMA: Final = (
    "epoch BIGINT, offset BIGINT, at TIMESTAMP, outcome STRING, reason STRING,"
    " recipient_kind STRING, recipient STRING, generation BIGINT, from_offset BIGINT,"
    " stream STRING, stream_epoch BIGINT, floor BIGINT, last BIGINT"
)
_CHANGES: Final = (
    "shard INT, epoch BIGINT, offset BIGINT, recipient_kind STRING, recipient STRING,"
    " generation BIGINT, end_at TIMESTAMP, end_offset BIGINT, end_outcome STRING,"
    " end_reason STRING"
)
_PAIRS_MAX: Final = 1_000_000


def find(piece: Piece, known: list[Stretch]) -> list[End]:
    """Return the events of a piece that end deliveries."""
    found = [
        _of_stretch(one)
        for one in known
        if one.to_epoch == piece.epoch and piece.after < (one.to_offset or 0) <= piece.to
    ]
    if not piece.kinds.isdisjoint(_KINDS):
        changes = piece.body_rows(bodies.CHANGES, *_KINDS)
        found += _of_changes(changes, {(one.topic, one.stream_epoch) for one in known})
    if piece.begins_epoch and len(piece.begins) > 1:
        begin = piece.begins[piece.epoch]
        found.append(
            End(
                epoch=piece.epoch,
                offset=begin,
                at=piece.first_at(),
                outcome=LOST,
                reason=subscriptions.GIVEN_UP,
                from_offset=begin,
            )
        )
    return found


def _of_stretch(one: Stretch) -> End:
    assert one.to_epoch is not None
    assert one.to_offset is not None
    assert one.to_at is not None
    assert one.ended is not None
    outcome, reason = _OUTCOMES[one.ended]
    return End(
        epoch=one.to_epoch,
        offset=one.to_offset,
        at=one.to_at,
        outcome=outcome,
        reason=reason,
        recipient_kind="subscription",
        recipient=f"{one.topic}/{one.subscription}",
        generation=one.generation,
    )


def _of_changes(changes: Iterable[dict[str, Any]], read_topics: set[tuple[str, int]]) -> list[End]:
    found = []
    for row in changes:
        stream, name = row["stream"], row["subscription"]
        about = {"epoch": row["epoch"], "offset": row["offset"], "at": row["accepted_at"]}
        some = {key: row[key] for key in ("stream", "stream_epoch", "floor", "last")}
        if row["kind"] == "stream_deleted":
            # Subscriptions of a topic end individually; a mailbox has none.
            end = End(
                **about,
                outcome=DROPPED,
                reason=subscriptions.DELETED,
                recipient_kind="mailbox",
                recipient=stream,
            )
        elif row["kind"] == "lost":
            kind = "subscription" if name else "mailbox"
            recipient = f"{stream}/{name}" if name else stream
            end = End(**about, **some, outcome=LOST, recipient_kind=kind, recipient=recipient)
        elif row["reason"] != _ANCHORED and (stream, row["stream_epoch"]) in read_topics:
            kind = "subscription"
            end = End(**about, **some, outcome=REMOVED, reason=row["reason"], recipient_kind=kind)
        else:
            continue
        found.append(end)
    return found


def ended(pending: DataFrame, ends: DataFrame, entries: DataFrame) -> DataFrame:
    """Return the pending deliveries that are ended, and how they end.

    `entries` are searched for the messages of events that name positions.
    """
    whole = ends.where(F.col("last").isNull())
    some = ends.where(F.col("last").isNotNull()).alias("n")
    is_in = (
        (F.col("i.stream") == F.col("n.stream"))
        & (F.col("i.stream_epoch") == F.col("n.stream_epoch"))
        & (F.col("i.seq") > F.col("n.floor"))
        & (F.col("i.seq") <= F.col("n.last"))
    )
    messages = entries.where(F.col("kind").isin("mail", "published")).alias("i")
    named = messages.join(F.broadcast(some), is_in).select(
        "n.*", F.col("i.epoch").alias("message_epoch"), F.col("i.offset").alias("message_offset")
    )
    is_named = (F.col("p.epoch") == F.col("e.message_epoch")) & (
        F.col("p.offset") == F.col("e.message_offset")
    )
    both = _concerned(pending, whole, F.lit(True)).unionByName(_concerned(pending, named, is_named))
    # If several events apply, the first one counts.
    first = both.groupBy(*_KEY).agg(F.min("end").alias("end"))
    how = (F.col(f"end.{name}").alias(f"end_{name}") for name in ("at", "offset", "outcome"))
    return first.select(*_KEY, *how, F.col("end.reason").alias("end_reason"))


def _concerned(pending: DataFrame, ends: DataFrame, is_meant: Column) -> DataFrame:
    """Return pending deliveries with each event that ends them."""
    fits = is_before("p", "e.epoch", "e.offset") & is_meant
    for name in ("recipient_kind", "recipient", "generation"):
        fits &= F.col(f"e.{name}").isNull() | (F.col(f"e.{name}") == F.col(f"p.{name}"))
    fits &= F.col("e.from_offset").isNull() | (F.col("p.offset") >= F.col("e.from_offset"))
    end = F.struct(*(F.col(f"e.{name}") for name in ("epoch", "offset", "at", "outcome", "reason")))
    return (
        pending.alias("p")
        .join(F.broadcast(ends.alias("e")), fits)
        .select(*(F.col(f"p.{name}") for name in _KEY), end.alias("end"))
    )


def merge_here(piece: Piece, found: list[End]) -> int | None:
    """Do the same as `merge` for few deliveries without Spark; `None` if Spark has to do it."""
    few = piece.few(DELIVERIES.name, _KEY, "settled_at IS NULL")
    if few is None or not piece.has_few_standing or few.num_rows * len(found) > _PAIRS_MAX:
        return None
    changes = ended_here(few.to_pylist(), found, listed(piece.standing_here()))
    if not changes:
        return piece.record_here()
    return piece.merge_here(arrow(changes, _CHANGES), _merging())


def ended_here(
    pending: Iterable[dict[str, Any]], found: Iterable[End], entries: Iterable[dict[str, Any]]
) -> list[tuple[object, ...]]:
    """Return the same as `ended` for a few rows."""
    messages = {
        (row["epoch"], row["offset"]): row
        for row in entries
        if row["kind"] in ("mail", "published")
    }
    rows = []
    for row in pending:
        message = messages.get((row["epoch"], row["offset"]))
        ends = [one for one in found if _ends(one, row, message)]
        if ends:
            end = min(ends, key=_order)
            key = (row[name] for name in _KEY)
            rows.append((*key, end.at, end.offset, end.outcome, end.reason))
    return rows


def _ends(one: End, row: dict[str, Any], message: dict[str, Any] | None) -> bool:
    """Return whether an event ends a pending delivery of a message."""
    if (row["epoch"], row["offset"]) >= (one.epoch, one.offset):
        return False
    if one.from_offset is not None and row["offset"] < one.from_offset:
        return False
    if one.last is not None and (
        message is None
        or (message["stream"], message["stream_epoch"]) != (one.stream, one.stream_epoch)
        or one.floor is None
        or not one.floor < message["seq"] <= one.last
    ):
        return False
    names = ("recipient_kind", "recipient", "generation")
    return all(getattr(one, name) in (None, row[name]) for name in names)


def _order(one: End) -> tuple[object, ...]:
    return one.epoch, one.offset, one.at, one.outcome, one.reason is not None, one.reason or ""


def _merging() -> Merging:
    return Merging(
        on=" AND ".join(f"t.{name} = s.{name}" for name in _KEY),
        updated={
            "settled_at": "s.end_at",
            "settle_offset": "s.end_offset",
            "outcome": "s.end_outcome",
            "reason": "coalesce(s.end_reason, t.reason)",
        },
        update_if="t.settled_at IS NULL",
    )


def merge(piece: SparkPiece, found: list[End]) -> int:
    """End pending deliveries and record the position of the piece."""
    ends = piece.frame([msgspec.structs.astuple(one) for one in found], _SCHEMA)
    few = piece.few(DELIVERIES.name, _KEY, "settled_at IS NULL")
    pending = _pending(piece, found) if few is None else piece.shown(few)
    with piece.held(pending, are_few=few is not None) as held:
        # Only messages that are pending are looked for, so that most of the log is never read.
        entries = piece.standing().where(held.within(""))
        return _merge(piece, ended(held.rows, ends, entries), are_few=few is not None)


def _pending(piece: SparkPiece, found: list[End]) -> DataFrame:
    """Return pending deliveries, read by Spark: of the recipients that are affected, if known."""
    rows = piece.read(DELIVERIES.name).where(F.col("settled_at").isNull())
    recipients = {one.recipient for one in found}
    if None not in recipients:
        rows = rows.where(F.col("recipient").isin(*recipients))
    return rows.select(*_KEY)


def _merge(piece: SparkPiece, changes: DataFrame, *, are_few: bool) -> int:
    with piece.held(changes, are_few=are_few) as held:
        bounds = held.within("t.")
        if bounds == "false":
            return piece.record()
        if held.here is not None:
            merged = piece.merge_here(held.here, _merging())
            if merged is not None:
                return merged
        return piece.merge(held.rows, _merging(), bounds=bounds)
