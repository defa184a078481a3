"""Decoding bytes of the log into Arrow columns, many entries at a time.

The batches of a slice are contiguous, and so are header, stream and body of their entries. One
Arrow array over the original bytes has all of these as elements; taking every third element gathers
streams or bodies without touching single entries in Python. The native part makes the same columns
in one call, and leaves rows that it does not fully understand to Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from signalhub import native
from signalhub.log.disk import Disk
from signalhub.log.errors import LogDamaged
from signalhub.log.record import (
    ENTRY_HEADER_BYTES,
    ERASED,
    VERSION,
    BatchHeader,
    Unreadable,
    entry_positions,
    read_batch,
)
from signalhub.pipeline.source.plan import LogPosition, Segments, Slice
from signalhub.pipeline.tables.tables import SOURCE_COLUMNS, Column
from signalhub.wire.entry import Kind

if native.IS_ON or TYPE_CHECKING:
    import signalhub_native

ROWS_MAX: Final = 32_768
"""The most rows of one Arrow batch."""
TIME: Final = pa.timestamp("us", tz="UTC")

TYPES: Final = {
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": TIME,
    "DOUBLE": pa.float64(),
    "ARRAY<STRING>": pa.list_(pa.string()),
}


def arrow_fields(columns: Iterable[Column]) -> tuple[tuple[str, pa.DataType], ...]:
    """Return columns of a table with their Arrow types."""
    return tuple((one.name, TYPES[one.type]) for one in columns)


SCHEMA: Final = pa.schema(arrow_fields(SOURCE_COLUMNS))


def table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return batches as one table, whose columns have a chunk even if they are empty."""
    table = pa.Table.from_batches(batches, SCHEMA)
    return table if table.num_rows else SCHEMA.empty_table()


_HEAD: Final = np.dtype(
    [
        ("length", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("stream_bytes", "<u2"),
        ("stream_epoch", "<u4"),
        ("seq", "<u8"),
        ("at_ms", "<u8"),
        ("salt", "V16"),
    ]
)
assert _HEAD.itemsize == ENTRY_HEADER_BYTES


class _MessageHead(msgspec.Struct, array_like=True, gc=False):
    """The part of `entry.MessageBody` that a row needs; the members between are skipped."""

    id: str
    copy_id: msgspec.Raw
    sender: msgspec.Raw
    type: msgspec.Raw
    data: msgspec.Raw
    metadata: msgspec.Raw = msgspec.Raw()
    ttl: msgspec.Raw = msgspec.Raw()
    expires_ms: float | None = None


class _RoomMessageHead(msgspec.Struct, array_like=True, gc=False):
    """The part of `entry.RoomMessageBody` that a row needs."""

    id: str
    ciphertext: msgspec.Raw
    created_ms: msgspec.Raw
    expires_ms: float


class _BroadcastHead(msgspec.Struct, array_like=True, gc=False):
    """The part of `entry.BroadcastBody` that a row needs; a broadcast never expires."""

    id: str
    sender: msgspec.Raw
    ack: msgspec.Raw
    expires_ms: None = None


_HEADS: Final[dict[int, type[Any]]] = {
    Kind.MAIL: _MessageHead,
    Kind.PUBLISHED: _MessageHead,
    Kind.ROOM_MESSAGE: _RoomMessageHead,
    Kind.BROADCAST: _BroadcastHead,
}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(head).decode for kind, head in _HEADS.items()}
_LAYOUT_NUMBERS: Final[dict[type[Any], int]] = {
    _MessageHead: 2,
    _RoomMessageHead: 3,
    _BroadcastHead: 4,
}
# For the native part: what the bodies of each kind are, 1 if they have neither id nor expiry.
_LAYOUTS: Final = bytes(
    _LAYOUT_NUMBERS[_HEADS[number]] if number in _HEADS else int(number in set(Kind))
    for number in range(256)
)
_KINDS: Final = {kind.value: kind.name.lower() for kind in Kind}
_KIND_NAMES: Final = pa.array([_KINDS.get(number, f"kind_{number}") for number in range(256)])
_MICROSECONDS: Final = 1_000
# The end of the year 9999; later means never.
_TIME_MAX_MS: Final = 253_402_300_799_000


def read_columns(disk: Disk, shard: int, one: Slice) -> Iterator[pa.RecordBatch]:
    """Return the entries of a slice; raises `LogDamaged` if it is not what was written."""
    try:
        found = [(one, *_read(disk, one))]
    except LogDamaged:
        # Erasing may have replaced the file since the slice was planned.
        found = [(again, *_read(disk, again)) for again in _planned_again(disk, one)]
    for piece, data, starts in found:
        for begin in range(0, len(starts), ROWS_MAX):
            some = starts[begin : begin + ROWS_MAX]
            yield _columns(data, some, piece, shard, piece.from_offset + begin)


def _planned_again(disk: Disk, one: Slice) -> tuple[Slice, ...]:
    begin, end = LogPosition(one.epoch, one.from_offset), LogPosition(one.epoch, one.to_offset)
    plan = Segments(disk).plan(begin, end)
    if plan.end != end:
        raise LogDamaged(one.segment, one.begin, "its entries are not where they were planned")
    return plan.slices


def _read(disk: Disk, one: Slice) -> tuple[bytes, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the bytes of a slice, and where each of its wanted entries starts."""
    file = disk.open(one.segment, read_only=True)
    try:
        data = file.read(one.end - one.begin, one.begin)
    finally:
        file.close()
    starts, first = _entry_starts(data, one)
    rows = slice(one.from_offset - first, one.to_offset - first)
    if rows.start < 0 or rows.stop > len(starts):
        raise LogDamaged(one.segment, one.begin, "its entries are not where they were planned")
    return data, starts[rows]


def _entry_starts(data: bytes, one: Slice) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
    """Return where the entries of verified batches start, and the offset of the first."""
    batches: list[tuple[int, BatchHeader]] = []
    at, first, expected = 0, one.from_offset, -1
    while at < len(data):
        try:
            batch = read_batch(data, at)
            if batch.epoch != one.epoch or expected not in (-1, batch.first):
                raise Unreadable(f"a batch of epoch {batch.epoch} at {batch.first} is out of place")
        except Unreadable as error:
            raise LogDamaged(one.segment, one.begin + at, str(error)) from error
        if expected < 0:
            first = batch.first
        expected = batch.end
        batches.append((at, batch))
        at += batch.length
    if native.IS_ON:
        extents = [(at, batch.length, batch.count) for at, batch in batches]
        found = signalhub_native.entry_starts(data, extents)
        if found is not None:
            return np.frombuffer(found, dtype=np.int64), first
    starts: list[int] = []
    for at, batch in batches:
        try:
            starts.extend(entry_positions(data, batch, at))
        except Unreadable as error:
            raise LogDamaged(one.segment, one.begin + at, str(error)) from error
    return np.array(starts, dtype=np.int64), first


def _columns(
    data: bytes,
    starts: np.ndarray[Any, np.dtype[np.int64]],
    one: Slice,
    shard: int,
    first: int,
) -> pa.RecordBatch:
    count = len(starts)
    found = _native_columns(data, starts) or _plain_columns(data, starts)
    has_fault = found.faults.is_valid()
    positions = pa.array(starts + one.begin)
    columns = [
        pa.repeat(pa.scalar(shard, pa.int32()), count),
        pa.repeat(pa.scalar(one.epoch, pa.int64()), count),
        pa.array(np.arange(first, first + count, dtype=np.int64)),
        _KIND_NAMES.take(found.kinds),
        found.streams,
        found.stream_epochs,
        found.seqs,
        found.ids,
        found.accepted,
        found.expires,
        pa.repeat(pa.scalar(VERSION, pa.int32()), count),
        found.bodies,
        found.is_erased,
        found.faults,
        pc.if_else(has_fault, one.segment, pa.scalar(None, pa.string())),
        pc.if_else(has_fault, positions, pa.scalar(None, pa.int64())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class _Found(NamedTuple):
    """The columns that depend on the bytes of each entry."""

    kinds: pa.Array
    streams: pa.Array
    stream_epochs: pa.Array
    seqs: pa.Array
    ids: pa.Array
    accepted: pa.Array
    expires: pa.Array
    bodies: pa.Array
    is_erased: pa.Array
    faults: pa.Array


_FOUND_TYPES: Final = (
    pa.uint8(),
    pa.string(),
    pa.int64(),
    pa.int64(),
    pa.string(),
    TIME,
    TIME,
    pa.binary(),
    pa.bool_(),
)


def _native_columns(data: bytes, starts: np.ndarray[Any, np.dtype[np.int64]]) -> _Found | None:
    if not native.IS_ON:
        return None
    found = signalhub_native.entry_columns(data, starts.tobytes(), _LAYOUTS)
    if found is None:
        return None
    count = len(starts)
    arrays = [
        pa.Array.from_buffers(
            type, count, [one if one is None else pa.py_buffer(one) for one in buffers]
        )
        for type, buffers in zip(_FOUND_TYPES, found, strict=True)
    ]
    arrays.append(pa.nulls(count, pa.string()))
    return _Found(*arrays)


def _plain_columns(data: bytes, starts: np.ndarray[Any, np.dtype[np.int64]]) -> _Found:
    count = len(starts)
    raw = np.frombuffer(data, dtype=np.uint8)
    heads = np.lib.stride_tricks.sliding_window_view(raw, _HEAD.itemsize)[starts]
    heads = heads.view(_HEAD).ravel()
    streams = starts + ENTRY_HEADER_BYTES
    bodies = streams + heads["stream_bytes"]
    ends = starts + 4 + heads["length"]
    is_erased = (heads["flags"] & ERASED).astype(bool)
    parts = _parts(data, streams, bodies, ends)
    third = np.arange(count, dtype=np.int64) * 3
    body_places = pa.array(third + 2, mask=is_erased)
    ids, expiries, faults = _look_inside(data, heads["kind"], bodies, ends, is_erased)
    return _Found(
        kinds=pa.array(heads["kind"]),
        streams=_texts(parts.take(pa.array(third + 1))),
        stream_epochs=pa.array(heads["stream_epoch"].astype(np.int64)),
        seqs=pa.array(heads["seq"].astype(np.int64)),
        ids=ids,
        accepted=_times(pa.array(heads["at_ms"].astype(np.int64))),
        expires=_times(expiries),
        bodies=parts.take(body_places),
        is_erased=pa.array(is_erased),
        faults=faults,
    )


def _parts(data: bytes, streams: Any, bodies: Any, ends: Any) -> pa.Array:
    """Return header, stream and body of every entry, one after the other."""
    count = len(streams)
    offsets = np.empty(3 * count + 1, dtype=np.int64)
    offsets[0] = 0
    offsets[1::3], offsets[2::3], offsets[3::3] = streams, bodies, ends
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), 3 * count, buffers)


def _texts(raw: pa.Array) -> pa.Array:
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([one.decode(errors="replace") for one in raw.to_pylist()], pa.string())


def _look_inside(
    data: bytes, kinds: Any, bodies: Any, ends: Any, is_erased: Any
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return id and expiry of every message, and the fault of bodies that cannot be decoded."""
    view = memoryview(data)
    ids: list[str | None] = []
    expiries: list[float | None] = []
    faults: dict[int, str] = {}
    places = zip(kinds.tolist(), bodies.tolist(), ends.tolist(), is_erased.tolist(), strict=True)
    for kind, begin, end, is_gone in places:
        decode = _DECODERS.get(kind)
        identity = expires_ms = None
        if is_gone:
            pass
        elif decode is not None:
            try:
                head = decode(view[begin:end])
            except (msgspec.MsgspecError, ValueError) as error:
                faults[len(ids)] = f"invalid body of kind {_KINDS[kind]}: {error}"
            else:
                identity, expires_ms = head.id, head.expires_ms
        elif kind not in _KINDS:
            faults[len(ids)] = f"entries of kind {kind} are not known to this version"
        ids.append(identity)
        is_time = expires_ms is not None and 0 <= expires_ms < _TIME_MAX_MS
        expiries.append(expires_ms if is_time else None)
    texts = [faults.get(row) for row in range(len(ids))] if faults else None
    count = len(ids)
    fault = pa.array(texts, pa.string()) if texts else pa.nulls(count, pa.string())
    return pa.array(ids, pa.string()), pa.array(expiries, pa.float64()), fault


def _times(milliseconds: pa.Array) -> pa.Array:
    whole = milliseconds.cast(pa.int64(), safe=False)
    return pc.multiply(whole, _MICROSECONDS).cast(TIME)
