"""The table `deliveries`: the outcome of each message for each of its recipients.

A row exists, as `pending`, as soon as the message is accepted; later entries of the log are merged
into it. The changes of a piece come from three sources:

* messages: one row for the recipient of an ask, one per subscription that reads what is published;
* subscriptions that start in the piece, by creation or seek: rows for older messages they will get;
* settlements, which refer to the message by its offset.

After that, events that end many deliveries (a subscription is deleted or moved, retention or a
redrive removes messages) are applied to rows that are then pending. A settlement takes precedence
over them, because it may be written later than it happened; so the result does not depend on how
the log is divided into pieces. All changes are idempotent by key; the last merge of a piece records
the position.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from signalhub.pipeline.lake import Merging
from signalhub.pipeline.tables import bodies, delivery_ends, subscriptions
from signalhub.pipeline.tables.piece import Piece, SparkPiece, arrow, is_before, is_behind, listed
from signalhub.pipeline.tables.subscriptions import Stretch
from signalhub.pipeline.tables.tables import DELIVERIES, ENTRIES, SUBSCRIPTIONS
from signalhub.wire.entry import SETTLING, Outcome

KEY: Final = ("shard", "epoch", "offset", "reader", "generation")
"""`reader` is the subscription; empty for a mailbox, a message's only recipient."""

_STATE: Final = (
    ("recipient_kind", "string"),
    ("recipient", "string"),
    ("accepted_at", "timestamp"),
    ("at", "bigint"),
    ("settled_at", "timestamp"),
    ("outcome", "string"),
    ("first_sent_at", "timestamp"),
    ("last_sent_at", "timestamp"),
    ("attempts", "int"),
    ("consumer", "string"),
    ("reason", "string"),
)
_HAS_MESSAGE: Final = "s.accepted_at IS NOT NULL"
UNSETTLED: Final = tuple(one.name.lower() for one in Outcome if one not in SETTLING)
"""Outcomes in the log after which a delivery is still pending."""


def mailed(entries: DataFrame) -> DataFrame:
    """Return rows for asks: one recipient each; without a mailbox, that is the actor itself."""
    kind = F.when(F.col("seq") > 0, "mailbox").otherwise("actor")
    return _changes(
        entries.where(F.col("kind") == "mail"),
        reader=F.lit(""),
        generation=F.lit(1),
        recipient_kind=kind,
        recipient=F.col("stream"),
        accepted_at=F.col("accepted_at"),
    )


def published(entries: DataFrame, stretches: DataFrame) -> DataFrame:
    """Return a row per message and stretch that was active when the message was published."""
    began = is_behind("m", "s.from_epoch", "s.from_offset")
    is_over = F.col("s.to_epoch").isNotNull() & is_behind("m", "s.to_epoch", "s.to_offset")
    return _for_readers(entries, stretches, began & ~is_over)


def earlier(entries: DataFrame, begun: DataFrame) -> DataFrame:
    """Return a row per stretch and message that was published before the stretch began."""
    return _for_readers(entries, begun, is_before("m", "s.from_epoch", "s.from_offset"))


def _for_readers(entries: DataFrame, stretches: DataFrame, when: Column) -> DataFrame:
    messages = entries.where(F.col("kind") == "published").alias("m")
    is_read = (
        (F.col("m.stream") == F.col("s.topic"))
        & (F.col("m.stream_epoch") == F.col("s.stream_epoch"))
        & (F.col("m.seq") > F.col("s.floor"))
    )
    found = messages.join(F.broadcast(stretches.alias("s")), is_read & when).select(
        "m.shard",
        "m.epoch",
        "m.offset",
        "m.accepted_at",
        F.col("s.generation").alias("stretch"),
        F.concat("s.topic", F.lit("/"), "s.subscription").alias("name"),
    )
    return _changes(
        found,
        reader=F.col("name"),
        generation=F.col("stretch"),
        recipient_kind=F.lit("subscription"),
        recipient=F.col("name"),
        accepted_at=F.col("accepted_at"),
    )


def settled(piece: SparkPiece, stretches: DataFrame) -> DataFrame:
    """Return the settlements of a piece, by the message they settle."""
    read = piece.bodies(bodies.SETTLEMENTS).alias("e")
    its = F.col("s.generation")
    # Settlements of a generation may be written after it ended, but before a later subscription of
    # the same name has any.
    is_its = (
        (F.col("e.stream") == F.col("s.topic"))
        & (F.col("e.stream_epoch") == F.col("s.stream_epoch"))
        & (F.col("e.subscription") == F.col("s.subscription"))
        & (F.col("e.generation") == F.col("s.hub_generation"))
        & is_behind("e", "s.from_epoch", "s.from_offset")
        & (F.col("s.next_epoch").isNull() | is_before("e", "s.next_epoch", "s.next_offset"))
    )
    joined = read.join(F.broadcast(stretches.alias("s")), is_its, "left")
    is_mail = F.col("e.subscription") == ""
    settles = ~F.col("e.outcome").isin(*UNSETTLED)
    found = joined.where(is_mail | its.isNotNull()).select(
        "e.shard",
        piece.epoch_of(F.col("e.message_offset")).alias("epoch"),
        F.col("e.message_offset").alias("offset"),
        F.when(is_mail, "")
        .otherwise(F.concat("s.topic", F.lit("/"), "s.subscription"))
        .alias("name"),
        F.when(is_mail, F.lit(1)).otherwise(its).alias("stretch"),
        F.col("e.offset").alias("settle_offset"),
        F.when(settles, F.col("e.accepted_at")).alias("settled_at"),
        F.when(settles, F.col("e.outcome")).alias("outcome"),
        *(f"e.{name}" for name in ("first_sent_at", "last_sent_at", "attempts")),
        *(f"e.{name}" for name in ("consumer", "reason")),
    )
    return _changes(
        found,
        reader=F.col("name"),
        generation=F.col("stretch"),
        at=F.col("settle_offset"),
        **{
            name: F.col(name)
            for name in ("settled_at", "outcome", "first_sent_at", "last_sent_at", "attempts")
        },
        consumer=F.col("consumer"),
        reason=F.col("reason"),
    )


def _changes(rows: DataFrame, *, reader: Column, generation: Column, **state: Column) -> DataFrame:
    return rows.select(
        "shard",
        "epoch",
        "offset",
        reader.alias("reader"),
        generation.cast("bigint").alias("generation"),
        *(state.get(name, F.lit(None)).cast(type).alias(name) for name, type in _STATE),
    )


def combined(changes: DataFrame) -> DataFrame:
    """Return one row per key: the first end wins, and the last values before it."""
    at, is_end = F.col("at"), F.col("outcome").isNotNull()
    end = F.min_by(F.struct("settled_at", "outcome", "at"), F.when(is_end, at))
    return (
        changes.groupBy(*KEY)
        .agg(
            F.max("recipient_kind").alias("recipient_kind"),
            F.max("recipient").alias("recipient"),
            F.max("accepted_at").alias("accepted_at"),
            F.min("first_sent_at").alias("first_sent_at"),
            F.max("last_sent_at").alias("last_sent_at"),
            F.max("attempts").alias("attempts"),
            F.max_by("consumer", F.when(F.col("consumer").isNotNull(), at)).alias("consumer"),
            F.max_by("reason", F.when(F.col("reason").isNotNull(), at)).alias("reason"),
            end.alias("end"),
        )
        .select(
            *KEY,
            "recipient_kind",
            "recipient",
            "accepted_at",
            "first_sent_at",
            "last_sent_at",
            F.col("end.settled_at").alias("settled_at"),
            F.when(F.col("end.outcome").isNotNull(), F.col("end.at")).alias("settle_offset"),
            F.col("end.outcome").alias("outcome"),
            "attempts",
            "consumer",
            "reason",
        )
    )


def take(piece: SparkPiece) -> int:
    """Take in one piece."""
    known = subscriptions.known(piece)
    begun = [one for one in known if _is_within(piece, one.from_epoch, one.from_offset)]
    parts = _parts(piece, known, begun)
    ending = delivery_ends.find(piece, known)
    rows = 0
    if parts:
        changes = functools.reduce(DataFrame.unionByName, parts)
        are_few = piece.has_few_standing if begun else piece.is_small
        rows = _merge(piece, combined(changes), records=not ending, are_few=are_few)
    elif not ending:
        return piece.record()
    return rows + delivery_ends.merge(piece, ending) if ending else rows


def _parts(piece: SparkPiece, known: list[Stretch], begun: list[Stretch]) -> list[DataFrame]:
    """Return the changes of a piece by source, without empty ones."""
    entries, stretches = piece.entries("mail", "published"), _frame(piece, known)
    parts: list[DataFrame] = []
    if "mail" in piece.kinds:
        parts.append(mailed(entries))
    if known and "published" in piece.kinds:
        parts.append(published(entries, stretches))
    if "settled" in piece.kinds:
        parts.append(settled(piece, stretches))
    if begun:
        parts.append(earlier(piece.standing(), _frame(piece, begun)))
    return parts


def _is_within(piece: Piece, epoch: int | None, offset: int | None) -> bool:
    return epoch == piece.epoch and offset is not None and piece.after < offset <= piece.to


def _frame(piece: SparkPiece, known: list[Stretch]) -> DataFrame:
    """Add to stretches the offset where the next of the same name and generation begins."""
    following = _following(known)
    rows = [
        (*one.row, *(following.get((one.key, one.generation)) or (None, None))) for one in known
    ]
    schema = f"{SUBSCRIPTIONS.ddl}, next_epoch BIGINT, next_offset BIGINT"
    return piece.frame(rows, schema)


def _following(known: list[Stretch]) -> dict[tuple[object, int], tuple[int, int]]:
    """Return where the next stretch of the same name and hub generation begins, if there is one."""
    found: dict[tuple[object, int], tuple[int, int]] = {}
    begins: dict[tuple[object, ...], tuple[int, int]] = {}
    for one in sorted(known, key=lambda one: one.generation, reverse=True):
        name = *one.key, one.hub_generation
        if name in begins:
            found[one.key, one.generation] = begins[name]
        begins[name] = one.from_epoch, one.from_offset
    return found


def _merging() -> Merging:
    """Return how changes get into the table: new rows are inserted, existing ones updated."""
    inserted = {name: f"s.{name}" for name in DELIVERIES.names}
    inserted["outcome"] = "coalesce(s.outcome, 'pending')"
    inserted["attempts"] = "coalesce(s.attempts, 0)"
    is_same = (
        "t.shard = s.shard AND t.epoch = s.epoch AND t.offset = s.offset"
        " AND t.generation = s.generation"
        " AND CASE WHEN t.recipient_kind = 'subscription' THEN t.recipient ELSE '' END"
        " = s.reader"
    )
    was_ended = f"t.settled_at IS NOT NULL AND {delivery_ends.ENDED_BY_EVENT}"
    corrects = f"(s.outcome IS NOT NULL AND {was_ended})"
    ends_now = f"(s.outcome IS NOT NULL AND t.settled_at IS NULL OR {corrects})"
    updated = {
        "first_sent_at": "least(t.first_sent_at, s.first_sent_at)",
        "last_sent_at": "greatest(t.last_sent_at, s.last_sent_at)",
        "attempts": "greatest(t.attempts, s.attempts)",
        "consumer": "coalesce(s.consumer, t.consumer)",
        "reason": f"CASE WHEN {corrects} AND {delivery_ends.REASON_OF_EVENT} THEN s.reason"
        " ELSE coalesce(s.reason, t.reason) END",
        **{
            name: f"CASE WHEN {ends_now} THEN s.{name} ELSE t.{name} END"
            for name in ("settled_at", "settle_offset", "outcome")
        },
    }
    says_more = "s.outcome IS NOT NULL OR s.attempts IS NOT NULL"
    return Merging(
        on=is_same,
        updated=updated,
        inserted=inserted,
        update_if=says_more,
        insert_if=_HAS_MESSAGE,
    )


def _merge(piece: SparkPiece, changes: DataFrame, *, records: bool, are_few: bool) -> int:
    """Insert new rows and update existing ones."""
    merging = _merging()
    with piece.held(changes, are_few=are_few) as held:
        bounds = held.within("t.")
        if bounds == "false":
            return piece.record() if records else 0
        if held.here is not None:
            merged = piece.merge_here(held.here, merging, records=records)
            if merged is not None:
                return merged
            if records and piece.is_new(held.here):
                values = (F.expr(value).alias(name) for name, value in merging.inserted.items())
                return piece.append(held.rows.alias("s").where(_HAS_MESSAGE).select(*values))
        return piece.merge(held.rows, merging, bounds=bounds, records=records)


# The same for a small piece, without Spark.

Key = tuple[int, int, int, str, int]
_DDL: Final = (
    "shard INT, epoch BIGINT, offset BIGINT, reader STRING, generation BIGINT,"
    " recipient_kind STRING, recipient STRING, accepted_at TIMESTAMP, first_sent_at TIMESTAMP,"
    " last_sent_at TIMESTAMP, settled_at TIMESTAMP, settle_offset BIGINT, outcome STRING,"
    " attempts INT, consumer STRING, reason STRING"
)
_CHANGES_MAX: Final = 50_000
_NEVER: Final = (2**63, 0)


class _State(msgspec.Struct):
    """The changes of a delivery, combined."""

    recipient_kind: str | None = None
    recipient: str | None = None
    accepted_at: int | None = None
    first_sent_at: int | None = None
    last_sent_at: int | None = None
    attempts: int | None = None
    consumer: tuple[int, str] | None = None
    reason: tuple[int, str] | None = None
    end: tuple[int, int, str] | None = None
    """The offset of the settlement, its time, and its outcome."""

    def settle(self, row: dict[str, Any]) -> None:
        at, outcome = row["offset"], row["outcome"]
        first, last = row["first_sent_at"], row["last_sent_at"]
        if first is not None:
            self.first_sent_at = min(first, self.first_sent_at or first)
        if last is not None:
            self.last_sent_at = max(last, self.last_sent_at or last)
        self.attempts = max(row["attempts"], self.attempts or 0)
        if row["consumer"] is not None and (self.consumer is None or at > self.consumer[0]):
            self.consumer = at, row["consumer"]
        if row["reason"] is not None and (self.reason is None or at > self.reason[0]):
            self.reason = at, row["reason"]
        if outcome not in UNSETTLED and (self.end is None or at < self.end[0]):
            self.end = at, row["accepted_at"], outcome

    @property
    def row(self) -> tuple[object, ...]:
        at, settled_at, outcome = self.end or (None, None, None)
        return (
            self.recipient_kind,
            self.recipient,
            self.accepted_at,
            self.first_sent_at,
            self.last_sent_at,
            settled_at,
            at,
            outcome,
            self.attempts,
            self.consumer and self.consumer[1],
            self.reason and self.reason[1],
        )


def take_here(piece: Piece) -> int | None:
    """Take in a small piece without Spark; `None` if Spark has to do it."""
    known = subscriptions.known(piece)
    begun = [one for one in known if _is_within(piece, one.from_epoch, one.from_offset)]
    if begun and not piece.has_few_standing:
        return None
    ending = delivery_ends.find(piece, known)
    states = _states(piece, known, begun)
    if states is None:
        return None
    rows = 0
    if states:
        changes = arrow([(*key, *state.row) for key, state in states.items()], _DDL)
        merged = piece.merge_here(changes, _merging(), records=not ending)
        if merged is None:
            return None
        rows = merged
    elif not ending:
        return piece.record_here()
    if ending:
        ended = delivery_ends.merge_here(piece, ending)
        return None if ended is None else rows + ended
    return rows


def _states(piece: Piece, known: list[Stretch], begun: list[Stretch]) -> dict[Key, _State] | None:
    """Return the changes of a piece by delivery; `None` if there are many."""
    states: dict[Key, _State] = defaultdict(_State)
    readers, beginning = _by_topic(known), _by_topic(begun)
    kinds = [kind for kind in ("mail", "published") if kind in piece.kinds]
    names = [name for name in ENTRIES.names if name != "body"]
    for row in listed(piece.stored(names, kinds)) if kinds else ():
        if row["kind"] == "mail":
            _mailed_here(states, row)
        else:
            there = readers[row["stream"], row["stream_epoch"]]
            _published_here(states, row, [one for one in there if _is_active(one, row)])
        if len(states) > _CHANGES_MAX:
            return None
    for row in listed(piece.standing_here()) if begun else ():
        if row["kind"] == "published":
            there = beginning[row["stream"], row["stream_epoch"]]
            is_later = [one for one in there if _at(row) < (one.from_epoch, one.from_offset)]
            _published_here(states, row, is_later)
            if len(states) > _CHANGES_MAX:
                return None
    if "settled" in piece.kinds:
        _settled_here(piece, states, known)
    return states


def _by_topic(stretches: list[Stretch]) -> dict[tuple[str, int], list[Stretch]]:
    found: dict[tuple[str, int], list[Stretch]] = defaultdict(list)
    for one in stretches:
        found[one.topic, one.stream_epoch].append(one)
    return found


def _at(row: dict[str, Any]) -> tuple[int, int]:
    return row["epoch"], row["offset"]


def _mailed_here(states: dict[Key, _State], row: dict[str, Any]) -> None:
    state = states[row["shard"], row["epoch"], row["offset"], "", 1]
    state.recipient_kind = "mailbox" if row["seq"] > 0 else "actor"
    state.recipient, state.accepted_at = row["stream"], row["accepted_at"]


def _is_active(one: Stretch, row: dict[str, Any]) -> bool:
    """Return whether a stretch had begun and not ended when a message was published."""
    is_over = one.to_epoch is not None and _at(row) > (one.to_epoch, one.to_offset)
    return _at(row) > (one.from_epoch, one.from_offset) and not is_over


def _published_here(
    states: dict[Key, _State], row: dict[str, Any], stretches: list[Stretch]
) -> None:
    for one in stretches:
        if row["seq"] > one.floor:
            name = f"{one.topic}/{one.subscription}"
            state = states[row["shard"], row["epoch"], row["offset"], name, one.generation]
            state.recipient_kind, state.recipient = "subscription", name
            state.accepted_at = row["accepted_at"]


def _settled_here(piece: Piece, states: dict[Key, _State], known: list[Stretch]) -> None:
    following = _following(known)
    readers = defaultdict(list)
    for one in known:
        readers[one.key, one.hub_generation].append(one)
    for row in piece.body_rows(bodies.SETTLEMENTS):
        epoch = None
        for at, begin in piece.begins.items():
            epoch = at if row["message_offset"] >= begin else epoch
        if epoch is None:
            # No epoch has such a message.
            continue
        message = row["shard"], epoch, row["message_offset"]
        if row["subscription"] == "":
            states[*message, "", 1].settle(row)
            continue
        key = row["stream"], row["stream_epoch"], row["subscription"]
        for one in readers[key, row["generation"]]:
            after = following.get((one.key, one.generation), _NEVER)
            if (one.from_epoch, one.from_offset) < _at(row) < after:
                name = f"{one.topic}/{one.subscription}"
                states[*message, name, one.generation].settle(row)
