"""Room messages in SQLite: one writer thread, every answer after its commit is on disk.

`synchronous=FULL` in WAL mode makes each commit wait for the disk. With `each`, every request has a
separate commit; with `group`, all requests that arrive during one commit share the next one, so
that groups grow with the load and no request is delayed on purpose.
"""

from __future__ import annotations

import asyncio
import base64
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

Commits = Literal["each", "group"]

GROUP_MAX = 1_024
_TIME_GRID_S = 5
_CACHE_KIB = 64 * 1024
_SCHEMA = """
CREATE TABLE IF NOT EXISTS rooms (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    inbox TEXT NOT NULL UNIQUE
);
CREATE TABLE IF NOT EXISTS messages (
    room INTEGER NOT NULL REFERENCES rooms (id),
    seq INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    ciphertext TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (room, seq),
    UNIQUE (room, message_id)
) WITHOUT ROWID;
"""
_INSERT = (
    "INSERT INTO messages (room, seq, message_id, ciphertext, created_at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (room, message_id) DO NOTHING"
)
_PAGE = (
    "SELECT seq, message_id, ciphertext, created_at FROM messages "
    "WHERE room = (SELECT id FROM rooms WHERE inbox = ?) AND seq >= ? ORDER BY seq LIMIT ?"
)
_HEAD = (
    "SELECT coalesce(max(seq), 0) FROM messages WHERE room = (SELECT id FROM rooms WHERE name = ?)"
)

Row = tuple[int, str, str, str]


@dataclass(slots=True, eq=False)
class Message:
    """A message to be stored in a room, and who waits for it.

    `seq` is assigned by the store; it stays 0 if the message could not be stored.
    """

    caller: object
    room: str
    message_id: str
    ciphertext: str
    type: str
    pseudonym: str
    seq: int = 0
    is_repeat: bool = False


@dataclass(slots=True)
class _Room:
    id: int
    head: int


@dataclass(slots=True)
class Messages:
    """The store: called on the loop, written by one thread.

    `committed` is called on the loop with stored or failed messages, in order.
    """

    path: Path
    commits: Commits
    committed: Callable[[Sequence[Message]], None]
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _reader: sqlite3.Connection = field(init=False)
    _thread: threading.Thread = field(init=False)
    _waiting: SimpleQueue[Message | None] = field(default_factory=SimpleQueue)
    _rooms: dict[str, _Room] = field(default_factory=dict)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        writer = _connect(self.path)
        writer.executescript(_SCHEMA)
        self._reader = _connect(self.path)
        self._thread = threading.Thread(target=self._write_all, args=(writer,), name="writer")
        self._thread.start()

    def stop(self) -> None:
        self._waiting.put(None)
        self._thread.join()
        self._reader.close()

    def accept(self, message: Message) -> None:
        self._waiting.put(message)

    def page(self, inbox: str, from_seq: int, limit: int) -> list[Row]:
        """Read on the loop: the pages are warm, and a thread would cost a round trip."""
        return self._reader.execute(_PAGE, (inbox, from_seq, limit)).fetchall()

    def head(self, room: str) -> int:
        return int(self._reader.execute(_HEAD, (room,)).fetchone()[0])

    def _write_all(self, writer: sqlite3.Connection) -> None:
        while batch := self._next_batch():
            try:
                self._commit(writer, batch)
            except sqlite3.Error:
                self._undo(writer, batch)
            self._loop.call_soon_threadsafe(self.committed, batch)
        writer.close()

    def _next_batch(self) -> list[Message]:
        first = self._waiting.get()
        if first is None:
            return []
        batch = [first]
        size_max = GROUP_MAX if self.commits == "group" else 1
        while len(batch) < size_max:
            try:
                message = self._waiting.get_nowait()
            except Empty:
                break
            if message is None:
                self._waiting.put(None)
                break
            batch.append(message)
        return batch

    def _commit(self, writer: sqlite3.Connection, batch: Sequence[Message]) -> None:
        created_at = _coarse_time()
        writer.execute("BEGIN IMMEDIATE")
        for message in batch:
            room = self._rooms.get(message.room) or self._open(writer, message.room)
            values = (
                room.id,
                room.head + 1,
                message.message_id,
                message.ciphertext,
                created_at,
            )
            if writer.execute(_INSERT, values).rowcount:
                room.head += 1
                message.seq = room.head
            else:
                message.seq = _seq_of(writer, room.id, message.message_id)
                message.is_repeat = True
        writer.execute("COMMIT")

    def _undo(self, writer: sqlite3.Connection, batch: Sequence[Message]) -> None:
        if writer.in_transaction:
            writer.execute("ROLLBACK")
        self._rooms.clear()
        for message in batch:
            message.seq = 0

    def _open(self, writer: sqlite3.Connection, name: str) -> _Room:
        """Return the room with its last seq; create it if necessary."""
        inbox = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
        writer.execute("INSERT OR IGNORE INTO rooms (name, inbox) VALUES (?, ?)", (name, inbox))
        (number,) = writer.execute("SELECT id FROM rooms WHERE name = ?", (name,)).fetchone()
        (head,) = writer.execute(_HEAD, (name,)).fetchone()
        room = self._rooms[name] = _Room(number, head)
        return room


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


def _seq_of(writer: sqlite3.Connection, room: int, message_id: str) -> int:
    found = writer.execute(
        "SELECT seq FROM messages WHERE room = ? AND message_id = ?", (room, message_id)
    ).fetchone()
    return int(found[0])


def _coarse_time() -> str:
    now_s = time.time() // _TIME_GRID_S * _TIME_GRID_S
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
