"""A lake of real Delta tables, written without Spark: what a pipeline would have landed."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from signalhub.engine.local import LocalEngine
from signalhub.pipeline.lake import Lake, application
from signalhub.wire.entry import Kind, RoomMessageBody, StoredEntry, decode_body

_TIME = pa.timestamp("us", "UTC")
_PLACE = [("shard", pa.int32()), ("epoch", pa.int64()), ("offset", pa.int64())]
_ENTRIES = pa.schema([*_PLACE, ("kind", pa.string()), ("stream", pa.string()), ("seq", pa.int64())])
_INBOX = pa.schema(
    [
        ("inbox", pa.string()),
        ("key_version", pa.int32()),
        ("seq", pa.int64()),
        ("message_id", pa.string()),
        ("ciphertext", pa.binary()),
        ("created_at", _TIME),
        ("expires_at", _TIME),
        *_PLACE,
    ]
)
_SCHEMAS = {"entries": _ENTRIES, "inbox": _INBOX}

HASH = "abcdefghijklmnopqrstuv"
STREAM = f"inbox.1.{HASH}"
EPOCH = 1_760_000_000
NOW_MS = 1_760_000_000_000

Row = dict[str, Any]


class SmallLake:
    """Writes the tables `entries` and `inbox`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lake = Lake(str(path))

    def append(self, name: str, rows: Iterable[Row], last: int, epoch: int = EPOCH) -> None:
        """Add rows, and record that everything up to the offset `last` is in."""
        done = Transaction(application(0, epoch), last)
        write_deltalake(
            self.lake.location(name),
            pa.Table.from_pylist(list(rows), schema=_SCHEMAS[name]),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[done]),
        )

    def land(self, engine: LocalEngine, lost: Collection[int] = (), *, twice: int = -1) -> None:
        """Everything in the log and not yet in `entries`, but for what gets lost or doubled."""
        entries = [one for one in self._new(engine, "entries") if one.offset not in lost]
        entries += [one for one in entries if one.offset == twice]
        rows = (
            {"kind": Kind(one.kind).name.lower(), "stream": one.stream, "seq": one.seq}
            | place(one.offset, engine.epoch)
            for one in entries
        )
        self.append("entries", rows, engine.head - 1, engine.epoch)

    def archive(self, engine: LocalEngine) -> None:
        """Every message of a room that is in the log and not yet in `inbox`."""
        rows = (
            inbox_row(one.seq, decode_body(RoomMessageBody, one.body), one.stream)
            | place(one.offset, engine.epoch)
            for one in self._new(engine, "inbox")
            if one.kind == Kind.ROOM_MESSAGE and not one.is_erased
        )
        self.append("inbox", rows, engine.head - 1, engine.epoch)

    def compact(self, name: str) -> None:
        """Put all rows into new files, and take the old ones away at once."""
        table = DeltaTable(self.lake.location(name))
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def hide(self) -> Path:
        """Take the whole lake away; `show` brings it back."""
        return self.path.rename(self.path.with_suffix(".away"))

    def show(self) -> None:
        self.path.with_suffix(".away").rename(self.path)

    def spoil(self, name: str) -> None:
        """Delete what the rows of a table are in; its own log still names them."""
        for path in (self.path / name).glob("*.parquet"):
            path.unlink()

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def _new(self, engine: LocalEngine, name: str) -> Iterator[StoredEntry]:
        committed = self.lake.committed(name, 0, engine.epoch)
        return engine.scan(0 if committed is None else committed + 1)


def place(offset: int, epoch: int = EPOCH) -> Row:
    return {"shard": 0, "epoch": epoch, "offset": offset}


def inbox_row(seq: int, message: RoomMessageBody, stream: str = STREAM) -> Row:
    """A message as the table holds it."""
    _, version, name = stream.split(".")
    created_ms = message.created_ms
    return {
        "inbox": name,
        "key_version": int(version),
        "seq": seq,
        "message_id": message.message_id,
        "ciphertext": message.ciphertext,
        "created_at": None if created_ms is None else created_ms * 1000,
        "expires_at": message.expires_ms * 1000,
    }


def row(seq: int, changes: Mapping[str, Any] | None = None, **place_changes: int) -> Row:
    """One message of `STREAM` that expires a minute after `NOW_MS`."""
    message = RoomMessageBody(f"m-{seq}", b"Y2lwaGVy", NOW_MS, NOW_MS + 60_000)
    return inbox_row(seq, message) | place(seq) | place_changes | dict(changes or {})
