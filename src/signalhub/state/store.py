"""What is stored besides the log: registrations, the snapshot, ids of room messages.

All of it is in one SQLite file, and one thread owns the connection. `persist` and `forget` queue a
change, the newest per address, and the thread writes queued changes in one transaction. Changes
that cannot be written are logged, counted and dropped: the hub continues, the next renewal of a
registration writes it again, and the log contains what a snapshot lacks.

A file that is damaged or belongs to another program is refused and left unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Final, TypeVar

import apsw
import msgspec

from signalhub.core.messages.dedup import Recalled, Remembered
from signalhub.core.streams.recovery import Snapshot
from signalhub.sqlite import open_file, open_read_only
from signalhub.state import schema
from signalhub.state.schema import RoomIds
from signalhub.wire.errors import SettingsError

log = logging.getLogger("signalhub.state")

FILE: Final = "state.db"

# How long changes are collected before they are written. A killed hub loses at most this much.
GATHER_S = 0.05

Result = TypeVar("Result")

_decode_remembered = msgspec.msgpack.Decoder(Remembered).decode
_decode_capabilities = msgspec.json.Decoder(list[str]).decode


class RegistrationRow(msgspec.Struct, frozen=True):
    """One registration as it is stored; times in milliseconds."""

    address: str
    capabilities: list[str]
    metadata_json: bytes
    registered_at: int
    expires_at: int
    lease_ms: int
    version: int


# Actor, host, token, offset, owner, first token; see core/placement.py.
PlacementRow = tuple[str, str, int, int, str, int]


class SnapshotRow(msgspec.Struct, frozen=True):
    """The state of durable streams as it is stored."""

    epoch: int
    offset: int
    seen_from: int
    next_id: int
    streams: list[bytes]
    subscriptions: list[bytes]
    remembered: list[Remembered]
    rooms: dict[str, bytes]
    room_ids: list[Remembered]
    replays: bytes | None = None
    placements: list[PlacementRow] = []


class KnownIdsWindow(msgspec.Struct, frozen=True):
    """How long ids are kept: of asks and publishes, and of messages in rooms."""

    ids_ms: int
    room_ids_ms: int
    room_ids_bytes: int


class StateStore:
    """The file `state.db`.

    Only the constructor, `load`, `load_snapshot`, `forget_snapshot`, `flush` and `close` wait for
    the disk; everything else is queued.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or create the file; raises `SettingsError` if it cannot be used."""
        self._path = os.fspath(path)
        self._errors = 0
        self._connection = open_file(
            self._path, schema.SCHEMA, lambda opened: opened.execute(schema.OPEN).fetchall()
        )
        self._notes: dict[str, RegistrationRow | None] = {}
        self._jobs: list[Callable[[], object]] = []
        # The last snapshot could not be written, so the next one must be complete.
        self.is_snapshot_broken = False
        # Everything before this offset of the log is in a snapshot on disk.
        self.saved_offset = 0
        self._remembered: list[Remembered] = []
        self._room_ids = RoomIds(self._connection)
        self._unwritten_ids: list[bytes] = []
        self._is_closed = False
        self._changed = threading.Condition()
        self._owner = threading.Thread(target=self._own, name="signalhub-store", daemon=True)
        self._owner.start()

    @property
    def errors(self) -> int:
        """How many writes and look-ups failed."""
        return self._errors

    def persist(self, row: RegistrationRow) -> None:
        self._note(row.address, row)

    def forget(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._note(address, None)

    def clean(self, now_ms: int) -> None:
        """Delete what has expired, soon."""
        self._submit(partial(self._clean, now_ms))

    def load(self, now_ms: int) -> list[RegistrationRow]:
        """All registrations in the order of creation; expired ones are deleted first."""

        def read() -> list[RegistrationRow]:
            self._clean(now_ms)
            return [_row(*columns) for columns in self._connection.execute(schema.LOAD)]

        try:
            return self._wait_for(read)
        except (apsw.Error, ValueError) as error:
            raise schema.SCHEMA.unusable(self._path, str(error)) from error

    def save_snapshot(
        self, snapshot: Snapshot, epoch: int, seen_from: int, window: KnownIdsWindow
    ) -> None:
        """Write the changes soon. If that fails, the older one stays, and the log has the rest."""
        self._submit(partial(self._save_snapshot, snapshot, epoch, seen_from, window))

    def load_snapshot(self, now_ms: int, window: KnownIdsWindow) -> SnapshotRow | None:
        """The last snapshot, if there is one, and the ids accepted within the window."""

        def read() -> SnapshotRow | None:
            found = self._connection.execute(schema.LOAD_SNAPSHOT).fetchone()
            if found is None:
                return None
            streams = [state for (state,) in self._connection.execute(schema.LOAD_STREAMS)]
            execute = self._connection.execute
            subscriptions = [state for (state,) in execute(schema.LOAD_SUBSCRIPTIONS)]
            bodies = execute(schema.LOAD_REMEMBERED, (now_ms - window.ids_ms,))
            remembered = [_decode_remembered(body) for (body,) in bodies]
            rooms = dict(execute(schema.LOAD_ROOM_STATES))
            oldest_ms = now_ms - window.room_ids_ms
            room_ids = self._room_ids.load(oldest_ms, window.room_ids_bytes)
            epoch, offset, seen_from, next_id = found
            self.saved_offset = offset
            return SnapshotRow(
                epoch,
                offset,
                seen_from,
                next_id,
                streams,
                subscriptions,
                remembered,
                rooms,
                room_ids,
                execute(schema.LOAD_REPLAY).get,
                [_place(*columns) for columns in execute(schema.LOAD_PLACEMENTS)],
            )

        try:
            return self._wait_for(read)
        except apsw.Error as error:
            raise schema.SCHEMA.unusable(self._path, str(error)) from error
        except msgspec.MsgspecError:
            log.warning("the snapshot cannot be read and is rebuilt from the log")
            self.forget_snapshot()
            return None

    def forget_snapshot(self) -> None:
        """Discard a snapshot that does not match the log."""

        def clear() -> None:
            self.saved_offset = 0
            with self._connection:
                self._connection.execute(schema.FORGET_SNAPSHOT)
                self._connection.execute(schema.FORGET_ALL_REMEMBERED)
                self._connection.execute(schema.FORGET_ALL_ROOM_IDS)

        self._wait_for(clear)

    def make_safe(self, done: Callable[[int], object]) -> None:
        """Sync what was written; `done` is called, on the store's thread, with its log offset.

        Otherwise the newest transactions may be missing after a power cut.
        """

        def sync() -> None:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
            done(self.saved_offset)

        self._submit(sync)

    def shed(self) -> None:
        """Remove all traces of deleted data from the files, soon."""
        truncate = apsw.SQLITE_CHECKPOINT_TRUNCATE
        self._submit(lambda: self._connection.wal_checkpoint(mode=truncate))

    def recall(
        self, keys: list[bytes], oldest_ms: int, done: Callable[[list[Recalled] | None], None]
    ) -> None:
        """Look up ids of room messages; `done` is called on the store's thread."""

        def look() -> None:
            try:
                found = [self._room_ids.recall(key, oldest_ms) for key in keys]
            except Exception:
                # Messages wait for the answer, so there must be one.
                done(None)
                raise
            done(found)

        self._submit(look)

    def _save_snapshot(
        self, snapshot: Snapshot, epoch: int, seen_from: int, window: KnownIdsWindow
    ) -> None:
        # Ids wait here until they are written, including those of a failed snapshot.
        if snapshot.room_ids.records:
            self._unwritten_ids.append(snapshot.room_ids.records)
            while sum(map(len, self._unwritten_ids)) > window.room_ids_bytes:
                # The core counts ids that wait too long, and says so.
                self._unwritten_ids.pop(0)
        if snapshot.remembered.records:
            self._remembered.append(snapshot.remembered)
            oldest_ms = snapshot.remembered.newest_ms - window.ids_ms
            self._remembered = [one for one in self._remembered if one.newest_ms >= oldest_ms]
        if self.is_snapshot_broken and not snapshot.is_whole:
            # It depends on one that was not written.
            return
        try:
            self._write_snapshot(snapshot, epoch, seen_from, window)
        except Exception:
            self.is_snapshot_broken = True
            raise
        self._remembered.clear()
        self._unwritten_ids.clear()
        self.is_snapshot_broken = False
        self.saved_offset = snapshot.offset

    def _write_snapshot(
        self, snapshot: Snapshot, epoch: int, seen_from: int, window: KnownIdsWindow
    ) -> None:
        gone = [(stream,) for stream, state in snapshot.streams.items() if state is None]
        with self._connection:
            if snapshot.is_whole:
                self._connection.execute(schema.FORGET_SNAPSHOT)
            execute = self._connection.executemany
            execute(schema.DROP_STREAM, gone)
            execute(schema.DROP_SUBSCRIPTIONS, gone)
            execute(
                schema.PUT_STREAM,
                [one for one in snapshot.streams.items() if one[1] is not None],
            )
            subscriptions = snapshot.subscriptions.items()
            execute(
                schema.DROP_SUBSCRIPTION, [key for key, state in subscriptions if state is None]
            )
            execute(
                schema.PUT_SUBSCRIPTION,
                [(*key, state) for key, state in subscriptions if state is not None],
            )
            self._connection.execute(
                schema.PUT_SNAPSHOT, (epoch, snapshot.offset, seen_from, snapshot.next_id)
            )
            execute(
                schema.PUT_REMEMBERED,
                [(one.newest_ms, msgspec.msgpack.encode(one)) for one in self._remembered],
            )
            oldest_ms = snapshot.remembered.newest_ms - window.ids_ms
            self._connection.execute(schema.FORGET_REMEMBERED, (oldest_ms,))
            self._save_rooms(snapshot, window)
            if snapshot.replays is not None:
                self._connection.execute(schema.PUT_REPLAY, (snapshot.replays,))
            execute(schema.PUT_PLACEMENT, snapshot.placements)

    def _save_rooms(self, snapshot: Snapshot, window: KnownIdsWindow) -> None:
        states = snapshot.rooms.items()
        execute = self._connection.executemany
        execute(schema.DROP_ROOM_STATE, [(name,) for name, state in states if state is None])
        execute(
            schema.PUT_ROOM_STATE, [(name, state) for name, state in states if state is not None]
        )
        if self._unwritten_ids:
            self._room_ids.add(b"".join(self._unwritten_ids))
            self._room_ids.forget(snapshot.room_ids.newest_ms - window.room_ids_ms)

    def flush(self) -> None:
        """Wait until all queued changes are written or dropped."""
        self._wait_for(lambda: None)

    def close(self) -> None:
        """Write the rest and close the file."""
        if self._is_closed:
            return
        self._submit(self._connection.close, is_last=True)
        self._owner.join()

    def size_bytes(self) -> int:
        """The size of the store on disk."""
        size = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                size += os.path.getsize(self._path + suffix)
        return size

    def _note(self, address: str, row: RegistrationRow | None) -> None:
        with self._changed:
            assert not self._is_closed, "the store is closed"
            if not self._notes:
                self._changed.notify()
            self._notes[address] = row

    def _submit(self, job: Callable[[], object], *, is_last: bool = False) -> None:
        with self._changed:
            assert not self._is_closed, "the store is closed"
            self._is_closed = is_last
            self._jobs.append(job)
            self._changed.notify()

    def _wait_for(self, work: Callable[[], Result]) -> Result:
        outcome: Future[Result] = Future()

        def job() -> None:
            try:
                outcome.set_result(work())
            except Exception as error:
                outcome.set_exception(error)

        self._submit(job)
        return outcome.result()

    def _own(self) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                self._changed.wait_for(lambda: self._notes or self._jobs)
                self._changed.wait_for(lambda: self._jobs, GATHER_S)
                notes, self._notes = self._notes, {}
                jobs, self._jobs = self._jobs, []
                is_last = self._is_closed
            if notes:
                self._attempt(partial(self._write, notes))
            for job in jobs:
                self._attempt(job)

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:
            self._errors += 1
            log.exception("a request to the state store failed")

    def _write(self, notes: dict[str, RegistrationRow | None]) -> None:
        rows = [_columns(row) for row in notes.values() if row is not None]
        gone = [(address,) for address, row in notes.items() if row is None]
        with self._connection:
            self._connection.executemany(schema.PERSIST, rows)
            self._connection.executemany(schema.FORGET, gone)

    def _clean(self, now_ms: int) -> None:
        self._connection.execute(schema.CLEAN, (now_ms,))


def saved_position(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """The epoch and offset of the snapshot in a file that a hub may be using, if there is one.

    Everything before it was in the log. `None`, too, if the file cannot be read.
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        return None
    try:
        connection = open_read_only(name, schema.SCHEMA)
        try:
            found = connection.execute(schema.LOAD_SNAPSHOT).fetchone()
        finally:
            connection.close()
    except (apsw.Error, SettingsError) as error:
        log.debug("the snapshot cannot be read", extra={"reason": str(error)})
        return None
    return None if found is None else (found[0], found[1])


def move_to_epoch(path: str | os.PathLike[str], epoch: int) -> None:
    """Let the snapshot in a file continue with the next epoch of its log, which lost nothing."""
    name = os.fspath(path)
    connection = open_file(name, schema.SCHEMA, lambda opened: None)
    try:
        with connection:
            connection.execute(schema.MOVE_SNAPSHOT, (epoch,))
    except apsw.Error as error:
        raise schema.SCHEMA.unusable(name, str(error)) from error
    finally:
        connection.close()


def _place(actor: str, host: str, token: int, offset: int, owner: str, first: int) -> PlacementRow:
    return (actor, host, token, offset, owner, first)


def _columns(row: RegistrationRow) -> tuple[str, str, str, int, int, int, int]:
    return (
        row.address,
        msgspec.json.encode(row.capabilities).decode(),
        row.metadata_json.decode(),
        row.registered_at,
        row.expires_at,
        row.lease_ms,
        row.version,
    )


def _row(
    address: str,
    capabilities: str,
    metadata: str,
    registered_at: int,
    expires_at: int,
    lease_ms: int,
    version: int,
) -> RegistrationRow:
    return RegistrationRow(
        address=address,
        capabilities=_decode_capabilities(capabilities),
        metadata_json=metadata.encode(),
        registered_at=registered_at,
        expires_at=expires_at,
        lease_ms=lease_ms,
        version=version,
    )
