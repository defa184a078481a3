"""The table `subscriptions`: which subscription read from where.

Which messages a subscription receives depends on when it was created, moved and deleted. These
entries are rare, so they are kept here with one row per stretch: a subscription reads everything
after a floor until it is moved by a seek or deleted. Each row has the range of offsets in which it
was valid, so `deliveries` can be derived from it at any later time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from signalhub.pipeline.lake import Merging
from signalhub.pipeline.tables import bodies
from signalhub.pipeline.tables.piece import Piece, SparkPiece, arrow, collected, listed, selected
from signalhub.pipeline.tables.tables import SUBSCRIPTIONS
from signalhub.wire.names import has_wildcard

SOUGHT = "sought"
DELETED = "deleted"
GIVEN_UP = "given_up"

Key = tuple[str, int, str]
"""Topic, its stream epoch, name of the subscription."""


class Stretch(msgspec.Struct, kw_only=True):
    """A row of the table."""

    shard: int
    topic: str
    stream_epoch: int
    subscription: str
    generation: int
    life: int
    hub_generation: int
    floor: int
    from_epoch: int
    from_offset: int
    from_at: int
    to_epoch: int | None = None
    to_offset: int | None = None
    to_at: int | None = None
    ended: str | None = None

    @property
    def key(self) -> Key:
        return self.topic, self.stream_epoch, self.subscription

    @property
    def row(self) -> tuple[object, ...]:
        return msgspec.structs.astuple(self)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that creates, moves or ends subscriptions; no name means all of the topic."""

    offset: int
    kind: str
    stream: str
    stream_epoch: int
    accepted_at: int
    subscription: str | None
    generation: int | None = None
    floor: int | None = None


KINDS: Final = ("subscription_created", "subscription_deleted", "stream_deleted", "cursor")


def changes(piece: SparkPiece) -> list[Change]:
    """Return what its entries change, in order; only cursors with a new generation are included."""
    if piece.is_small:
        return changes_here(piece)
    return _ordered(collected(_news(piece.bodies(bodies.CHANGES, *KINDS))))


def changes_here(piece: Piece) -> list[Change]:
    """Return the same of a small piece, with all cursors."""
    return _ordered(listed(piece.decoded(bodies.CHANGES, KINDS)))


def _ordered(rows: list[dict[str, Any]]) -> list[Change]:
    # Mailboxes have no name. A pattern is no topic; each of its parts has an entry of its own.
    found = [
        msgspec.convert(row, Change)
        for row in rows
        if row["subscription"] != "" and not has_wildcard(row["stream"])
    ]
    return sorted(found, key=lambda one: one.offset)


def _news(read: DataFrame) -> DataFrame:
    of_topics = read.where(F.col("subscription").isNull() | (F.col("subscription") != ""))
    window = Window.partitionBy("kind", "stream", "stream_epoch", "subscription").orderBy("offset")
    is_news = (F.col("kind") != "cursor") | ~F.col("generation").eqNullSafe(F.col("before"))
    return (
        of_topics.withColumn("before", F.lag("generation").over(window))
        .where(is_news)
        .select(*Change.__struct_fields__)
    )


class Stretches:
    """Applies the changes in order."""

    def __init__(self, shard: int, epoch: int, known: Iterable[Stretch]) -> None:
        self._shard = shard
        self._epoch = epoch
        self._rows: dict[Key, list[Stretch]] = defaultdict(list)
        for one in known:
            self._rows[one.key].append(one)
        for rows in self._rows.values():
            rows.sort(key=lambda one: one.generation)
        self._changed: dict[tuple[Key, int], Stretch] = {}
        # It was just created and has no cursor yet.
        self._fresh: set[Key] = set()

    @property
    def changed(self) -> list[Stretch]:
        return list(self._changed.values())

    def cut(self, begin: int, at: int) -> None:
        """A new epoch starts at an offset: undo what earlier epochs did from there on."""
        for rows in self._rows.values():
            for one in rows:
                if one.to_offset is not None and one.to_epoch != self._epoch:
                    if one.to_offset >= begin and one.from_offset < begin:
                        one.to_epoch = one.to_offset = one.to_at = one.ended = None
                        self._note(one)
                elif one.from_epoch < self._epoch and one.from_offset >= begin:
                    self._end(one, begin, at, GIVEN_UP)

    def apply(self, change: Change) -> None:
        if change.kind == "stream_deleted":
            for (topic, stream_epoch, _), rows in self._rows.items():
                if (topic, stream_epoch) == (change.stream, change.stream_epoch):
                    self._end(rows[-1], change.offset, change.accepted_at, DELETED)
            return
        assert change.subscription is not None
        key = change.stream, change.stream_epoch, change.subscription
        rows = self._rows[key]
        living = rows[-1] if rows and rows[-1].ended is None else None
        if change.kind == "subscription_deleted":
            if living is not None:
                self._end(living, change.offset, change.accepted_at, DELETED)
        elif change.kind == "subscription_created":
            if living is None:
                life = rows[-1].life + 1 if rows else 1
                self._begin(key, change, life, 1)
                self._fresh.add(key)
        elif living is not None:
            self._moved(living, change)

    def _moved(self, living: Stretch, cursor: Change) -> None:
        assert cursor.generation is not None
        assert cursor.floor is not None
        key = living.key
        if cursor.generation > living.hub_generation:
            self._end(living, cursor.offset, cursor.accepted_at, SOUGHT)
            self._begin(key, cursor, living.life, cursor.generation)
        elif key in self._fresh:
            # If the log was cut, the definition is an older one and its start is long past.
            living.floor = max(living.floor, cursor.floor)
        self._fresh.discard(key)

    def _begin(self, key: Key, change: Change, life: int, hub_generation: int) -> None:
        topic, stream_epoch, subscription = key
        rows = self._rows[key]
        made = Stretch(
            shard=self._shard,
            topic=topic,
            stream_epoch=stream_epoch,
            subscription=subscription,
            generation=rows[-1].generation + 1 if rows else 1,
            life=life,
            hub_generation=hub_generation,
            floor=change.floor or 0,
            from_epoch=self._epoch,
            from_offset=change.offset,
            from_at=change.accepted_at,
        )
        rows.append(made)
        self._note(made)

    def _end(self, one: Stretch, offset: int, at: int, how: str) -> None:
        if one.ended is None:
            one.to_epoch, one.to_offset, one.to_at, one.ended = self._epoch, offset, at, how
            self._note(one)

    def _note(self, one: Stretch) -> None:
        self._changed[one.key, one.generation] = one


def known(piece: Piece) -> list[Stretch]:
    """Return the current rows of the table."""
    columns = ", ".join(SUBSCRIPTIONS.names)
    found = selected(piece.lake, SUBSCRIPTIONS.name, columns, f"shard = {piece.shard}")
    return [msgspec.convert(row, Stretch) for row in found]


def _merging() -> Merging:
    key = ("shard", "topic", "stream_epoch", "subscription", "generation")
    every = {name: f"s.{name}" for name in SUBSCRIPTIONS.names}
    is_same = " AND ".join(f"t.{name} = s.{name}" for name in key)
    return Merging(on=is_same, updated=every, inserted=every)


def _changed(piece: Piece, found: list[Change], before: list[Stretch]) -> list[Stretch]:
    """Return the rows that differ after a piece."""
    stretches = Stretches(piece.shard, piece.epoch, before)
    if piece.begins_epoch and before:
        stretches.cut(piece.begins[piece.epoch], piece.first_at())
    for change in found:
        stretches.apply(change)
    return stretches.changed


def take_here(piece: Piece) -> int | None:
    """Take in a small piece without Spark; `None` if Spark has to do it."""
    found = [] if piece.kinds.isdisjoint(KINDS) else changes_here(piece)
    changed = _changed(piece, found, known(piece)) if found or piece.begins_epoch else []
    if not changed:
        return piece.record_here()
    return piece.merge_here(arrow([one.row for one in changed], SUBSCRIPTIONS.ddl), _merging())


def take(piece: SparkPiece) -> int:
    """Take in one piece."""
    found = [] if piece.kinds.isdisjoint(KINDS) else changes(piece)
    if not found and not piece.begins_epoch:
        return piece.record()
    before = known(piece)
    was_there = {(one.key, one.generation) for one in before}
    changed = _changed(piece, found, before)
    if not changed:
        return piece.record()
    here = arrow([one.row for one in changed], SUBSCRIPTIONS.ddl)
    merged = piece.merge_here(here, _merging())
    if merged is not None:
        return merged
    rows = piece.shown(here)
    if was_there.isdisjoint((one.key, one.generation) for one in changed):
        return piece.append(rows)
    return piece.merge(rows, _merging())
