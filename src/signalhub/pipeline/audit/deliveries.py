"""Checks that every message has an outcome for each of its recipients.

The recipients follow from `entries` and `subscriptions`; `deliveries` must have a row for each.
Deliveries settled in the log must be settled there. A pending one is fine as long as its recipient
may still receive it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from signalhub.pipeline.audit.hours import Hours
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.tables import bodies
from signalhub.pipeline.tables.deliveries import UNSETTLED

GRACE_S: Final = 300
"""How long after its time a delivery may still be pending."""
ACTOR_GRACE_S: Final = 900
"""An ask to an actor without a mailbox ends at once, or at the latest after the next restart."""

_KEY: Final = ("epoch", "offset", "reader", "generation")
_PREDICATES: Final = {
    "missing": "is missing in deliveries",
    "overdue": "is overdue: it was never settled",
    "lost": "was lost by policy: retention removed it before it was settled",
}


class Recipients(msgspec.Struct, frozen=True, kw_only=True):
    """The tables that define the recipients, and the time up to which deliveries are judged."""

    entries: DataFrame
    subscriptions: DataFrame
    deliveries: DataFrame
    taken: LogPosition
    """The last entry in `deliveries`."""
    judged_at: datetime


def name_deliveries(recipients: Recipients, hours: Hours) -> None:
    """Report missing, overdue and lost deliveries, and count pending ones."""
    found = _found(recipients)
    both = _expected(recipients).join(found, list(_KEY), "left")
    placed = hours.place(both.withColumn("state", _state(recipients)))
    counts = placed.groupBy("number", "state").count().collect()
    for row in counts:
        if row.state == "pending":
            hours.by_number(row.number).pending = row["count"]
    states = {row.state for row in counts}
    for state in _PREDICATES.keys() & states:
        _name(placed, hours, state)
    matched = sum(row["count"] for row in counts if row.state not in (None, "missing"))
    # A duplicate row of `entries` would hide a superfluous delivery.
    if matched != recipients.deliveries.count() or any(one.duplicates for one in hours.all):
        _name_strangers(recipients, found, hours)
    _name_unsettled(recipients, hours)


def _expected(recipients: Recipients) -> DataFrame:
    """Return a row per message and recipient, with what decides whether it may still be pending."""
    entries = recipients.entries.select(
        *("epoch", "offset", "kind", "stream", "stream_epoch", "seq", "accepted_at", "expires_at")
    )
    deleted = recipients.entries.where(F.col("kind") == "stream_deleted").select(
        "stream", "stream_epoch", F.lit(True).alias("is_deleted")
    )
    mail = (
        entries.where(F.col("kind") == "mail")
        .join(F.broadcast(deleted.distinct()), ["stream", "stream_epoch"], "left")
        .select(
            "epoch",
            "offset",
            F.lit("").alias("reader"),
            F.lit(1).cast("bigint").alias("generation"),
            "accepted_at",
            "expires_at",
            F.coalesce("is_deleted", F.lit(False)).alias("is_over"),
            F.lit(True).alias("is_due"),
        )
    )
    taken = recipients.taken
    stretches = recipients.subscriptions.select(
        F.col("topic").alias("stream"),
        "stream_epoch",
        F.concat("topic", F.lit("/"), "subscription").alias("reader"),
        *("generation", "floor", "to_epoch", "to_offset"),
        _is_taken("from", taken).alias("is_due"),
        (F.col("to_offset").isNotNull() & _is_taken("to", taken)).alias("is_over"),
    )
    # Messages published after a subscription ended were never meant for it.
    is_after_end = F.col("to_offset").isNotNull() & (
        (F.col("to_epoch") < F.col("epoch"))
        | ((F.col("to_epoch") == F.col("epoch")) & (F.col("to_offset") < F.col("offset")))
    )
    published = (
        entries.where(F.col("kind") == "published")
        .join(F.broadcast(stretches), ["stream", "stream_epoch"])
        .where((F.col("seq") > F.col("floor")) & ~is_after_end)
    )
    return mail.unionByName(published.select(*mail.columns))


def _is_taken(prefix: str, taken: LogPosition) -> Column:
    epoch, offset = F.col(f"{prefix}_epoch"), F.col(f"{prefix}_offset")
    return (epoch < taken.epoch) | ((epoch == taken.epoch) & (offset <= taken.offset))


def _found(recipients: Recipients) -> DataFrame:
    """Return the deliveries by the same key."""
    is_subscription = F.col("recipient_kind") == "subscription"
    rows = recipients.deliveries.select(
        "epoch",
        "offset",
        F.when(is_subscription, F.col("recipient")).otherwise("").alias("reader"),
        "generation",
        *("recipient_kind", "outcome", "settled_at", "last_sent_at"),
    )
    latest = (
        rows.where(F.col("settled_at").isNotNull() & is_subscription)
        .groupBy("reader", "generation")
        .agg(F.max(F.struct("epoch", "offset", "settled_at")).alias("latest"))
    )
    return rows.join(F.broadcast(latest), ["reader", "generation"], "left")


def _state(recipients: Recipients) -> Column:
    """Return `missing`, `settled`, `lost`, `pending` or `overdue`; null if it is too early."""
    judged = F.lit(recipients.judged_at)
    grace = F.expr(f"INTERVAL {GRACE_S} SECONDS")
    actor_grace = F.expr(f"INTERVAL {ACTOR_GRACE_S} SECONDS")
    ended = F.greatest(F.col("expires_at"), F.col("last_sent_at")) + grace
    # Expired messages are settled when they are read. Without a consumer they may stay unread; but
    # one that was skipped is a fault.
    is_passed = F.col("expires_at").isNotNull() & (
        (F.struct("epoch", "offset") < F.struct("latest.epoch", "latest.offset"))
        & (F.col("latest.settled_at") > ended)
    )
    is_stuck = (F.col("recipient_kind") == "actor") & (F.col("accepted_at") + actor_grace < judged)
    is_overdue = F.col("is_over") | F.coalesce(is_passed, F.lit(False)) | is_stuck
    return (
        F.when(F.col("outcome").isNull(), F.when(F.col("is_due"), F.lit("missing")))
        .when(F.col("outcome") == "lost", F.lit("lost"))
        .when(F.col("settled_at").isNotNull(), F.lit("settled"))
        .when(is_overdue, F.lit("overdue"))
        .otherwise(F.lit("pending"))
    )


def _name(placed: DataFrame, hours: Hours, state: str) -> None:
    text = F.format_string(f"entry %d: its delivery to %s {_PREDICATES[state]}", "offset", _whom())
    faults = placed.where(F.col("state") == state).select("number", "offset", text.alias("text"))
    count = "overdue" if state == "overdue" else ""
    hours.name(faults, count, is_wrong=state != "lost")


def _whom() -> Column:
    # Reports are stored, and mailboxes may be named after people; so they are not named here.
    return F.when(F.col("reader") == "", F.lit("its actor")).otherwise(
        F.concat(F.lit("subscription "), F.col("reader"))
    )


def _name_strangers(recipients: Recipients, found: DataFrame, hours: Hours) -> None:
    """Report deliveries without an intended recipient, except those of missing entries."""
    strangers = found.join(_expected(recipients).select(*_KEY), list(_KEY), "left_anti").join(
        recipients.entries.select("epoch", "offset"), ["epoch", "offset"], "left_semi"
    )
    text = F.format_string("entry %d: its delivery to %s was never due", "offset", _whom())
    hours.name(hours.place_few(strangers).select("number", "offset", text.alias("text")))


def _name_unsettled(recipients: Recipients, hours: Hours) -> None:
    """Report messages settled in the log but not in `deliveries`."""
    read = bodies.read_bodies(recipients.entries, bodies.SETTLEMENTS)
    reader = F.when(F.col("subscription") == "", F.lit("")).otherwise(
        F.concat("stream", F.lit("/"), "subscription")
    )
    said = (
        read.where(~F.col("outcome").isin(*UNSETTLED))
        .select(F.col("message_offset").alias("offset"), reader.alias("reader"))
        .distinct()
    )
    messages = recipients.entries.select("epoch", "offset")
    known = _found(recipients).where(F.col("settled_at").isNotNull()).select("offset", "reader")
    unsettled = said.join(known, ["offset", "reader"], "left_anti").join(messages, "offset")
    text = F.format_string(
        "entry %d: its delivery to %s is settled in the log and not in deliveries",
        "offset",
        _whom(),
    )
    hours.name(hours.place_few(unsettled).select("number", "offset", text.alias("text")))
