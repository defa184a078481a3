"""Decoding bodies of entries into columns, one Arrow batch at a time.

A `BodyReader` defines which rows a body of some kind yields: none, one or many. A body that cannot
be decoded yields none: landing has put it into quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from signalhub.pipeline.source.columns import TIME, arrow_fields
from signalhub.pipeline.tables.tables import ENTRY_COLUMNS
from signalhub.wire import entry
from signalhub.wire.entry import Kind, Outcome

Values = tuple[Any, ...]
Rows = Callable[[Any], Iterable[Values]]

_NOT_READ: Final = ("record_version", "body")
ENTRY: Final = arrow_fields(one for one in ENTRY_COLUMNS if one.name not in _NOT_READ)
_TEXTS: Final = pa.map_(pa.string(), pa.string())


class BodyReader(msgspec.Struct, frozen=True):
    """Which kinds are decoded, and which columns their bodies add to those of the entry."""

    kinds: dict[str, tuple[type[Any], Rows]]
    columns: tuple[tuple[str, pa.DataType], ...]
    keeps_removed: bool = False
    """Whether an entry whose body was removed still yields an empty row."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*ENTRY, *self.columns])


def read_bodies(entries: DataFrame, reading: BodyReader) -> DataFrame:
    """Return the rows decoded from the bodies of these entries."""
    kept = [name for name, _ in ENTRY]
    chosen = entries.where(F.col("kind").isin(*reading.kinds)).select(*kept, "body")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (read_batch(batch, reading) for batch in batches)

    return chosen.mapInArrow(read, from_arrow_schema(reading.schema))


def read_batch(batch: pa.RecordBatch, reading: BodyReader) -> pa.RecordBatch:
    """Decode one batch."""
    decoders = {
        kind: (msgspec.msgpack.Decoder(type).decode, rows)
        for kind, (type, rows) in reading.kinds.items()
    }
    nothing = (None,) * len(reading.columns)
    places: list[int] = []
    values: list[Values] = []
    kinds = batch.column("kind").to_pylist()
    for place, body in enumerate(batch.column("body").to_pylist()):
        if body is None:
            found: Iterable[Values] = (nothing,) if reading.keeps_removed else ()
        else:
            decode, rows = decoders[kinds[place]]
            try:
                found = rows(decode(body))
            except (msgspec.MsgspecError, ValueError):
                continue
        for one in found:
            places.append(place)
            values.append(one)
    taken = batch.take(pa.array(places, pa.int64()))
    columns = list(zip(*values, strict=True)) or [()] * len(reading.columns)
    arrays = [taken.column(name).cast(type) for name, type in ENTRY]
    pairs = zip(columns, reading.columns, strict=True)
    arrays += [_array(column, type) for column, (_, type) in pairs]
    return pa.RecordBatch.from_arrays(arrays, schema=reading.schema)


def _array(column: Any, type: pa.DataType) -> pa.Array:
    if pa.types.is_map(type):
        return _maps(column)
    if type == TIME:
        column = [one and int(one) * 1000 for one in column]
        return pa.array(column, pa.int64()).cast(TIME)
    return pa.array(column, type)


def _maps(column: Any) -> pa.Array:
    """Convert headers; separate keys and values are much faster in Arrow than pairs."""
    offsets: list[int | None] = []
    names: list[str] = []
    values: list[str] = []
    for one in column:
        offsets.append(None if one is None else len(names))
        if one:
            names.extend(one)
            values.extend(one.values())
    offsets.append(len(names))
    texts = pa.string()
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, texts), pa.array(values, texts)
    )


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


# Messages.


def _message(one: entry.MessageBody) -> Iterator[Values]:
    ttl = None if one.ttl is None else int(one.ttl)
    job = None if one.replay is None else one.replay.job
    data = one.data
    yield one.type, one.sender, one.key, one.headers, _text(data), len(data), ttl, job


def _broadcast(one: entry.BroadcastBody) -> Iterator[Values]:
    yield None, one.sender, None, None, None, None, None, None


def _room_message(one: entry.RoomMessageBody) -> Iterator[Values]:
    yield None, None, None, None, None, len(one.ciphertext), None, None


MESSAGES: Final = BodyReader(
    {
        Kind.MAIL.name.lower(): (entry.MessageBody, _message),
        Kind.PUBLISHED.name.lower(): (entry.MessageBody, _message),
        Kind.BROADCAST.name.lower(): (entry.BroadcastBody, _broadcast),
        Kind.ROOM_MESSAGE.name.lower(): (entry.RoomMessageBody, _room_message),
    },
    (
        ("type", pa.string()),
        ("sender", pa.string()),
        ("key", pa.string()),
        ("headers", _TEXTS),
        ("payload_json", pa.string()),
        ("bytes", pa.int64()),
        ("ttl_ms", pa.int64()),
        ("replay_job", pa.string()),
    ),
    keeps_removed=True,
)


def _dead_letter(one: entry.MessageBody) -> Iterator[Values]:
    if (dead := one.dead) is not None:
        yield (
            dead.topic,
            dead.subscription,
            dead.epoch,
            dead.seq,
            dead.attempts,
            dead.reason,
            dead.first_failure or None,
            dead.last_failure or None,
            one.key,
            one.headers,
            _text(one.data),
        )


DEAD_LETTERS: Final = BodyReader(
    {Kind.PUBLISHED.name.lower(): (entry.MessageBody, _dead_letter)},
    (
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("original_epoch", pa.string()),
        ("original_seq", pa.int64()),
        ("attempts", pa.int32()),
        ("reason", pa.string()),
        ("first_failure", TIME),
        ("last_failure", TIME),
        ("key", pa.string()),
        ("headers", _TEXTS),
        ("payload_json", pa.string()),
    ),
)

INBOX: Final = BodyReader(
    {
        Kind.ROOM_MESSAGE.name.lower(): (
            entry.RoomMessageBody,
            lambda one: ((one.message_id, one.ciphertext, one.created_ms),),
        )
    },
    (("message_id", pa.string()), ("ciphertext", pa.binary()), ("created_at", TIME)),
)


# Outcomes of deliveries.

_OUTCOMES: Final = {one.value: one.name.lower() for one in Outcome}


def _settled(one: entry.SettledBody) -> Iterator[Values]:
    for each in one.deliveries:
        yield (
            one.subscription,
            one.generation,
            each.seq,
            each.offset,
            _OUTCOMES.get(each.outcome, f"outcome_{each.outcome}"),
            each.attempts,
            each.first_sent or None,
            each.last_sent or None,
            each.consumer or None,
            each.reason or None,
        )


SETTLEMENTS: Final = BodyReader(
    {Kind.SETTLED.name.lower(): (entry.SettledBody, _settled)},
    (
        ("subscription", pa.string()),
        ("generation", pa.int64()),
        ("message_seq", pa.int64()),
        ("message_offset", pa.int64()),
        ("outcome", pa.string()),
        ("attempts", pa.int32()),
        ("first_sent_at", TIME),
        ("last_sent_at", TIME),
        ("consumer", pa.string()),
        ("reason", pa.string()),
    ),
)

CHANGES: Final = BodyReader(
    {
        Kind.SUBSCRIPTION_CREATED.name.lower(): (
            entry.SubscriptionDefinitionBody,
            lambda one: ((one.name, None, one.start, None, None),),
        ),
        Kind.SUBSCRIPTION_DELETED.name.lower(): (
            entry.SubscriptionDefinitionBody,
            lambda one: ((one.name, None, None, None, None),),
        ),
        Kind.CURSOR.name.lower(): (
            entry.CursorBody,
            lambda one: ((one.subscription, one.generation, one.floor, None, None),),
        ),
        Kind.STREAM_DELETED.name.lower(): (
            entry.Body,
            lambda one: ((None, None, None, None, None),),
        ),
        Kind.LOST.name.lower(): (
            entry.LostBody,
            lambda one: ((one.subscription, None, one.first - 1, one.last, "lost"),),
        ),
        Kind.REMOVED.name.lower(): (
            entry.RemovedBody,
            lambda one: ((None, None, first - 1, last, one.reason) for first, last in one.ranges),
        ),
    },
    (
        ("subscription", pa.string()),
        ("generation", pa.int64()),
        ("floor", pa.int64()),
        ("last", pa.int64()),
        ("reason", pa.string()),
    ),
)
"""Changes that affect recipients; a range of positions starts after `floor` and ends at `last`."""
