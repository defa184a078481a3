"""The schema of `state.db`, every SQL statement for it, and the table of room message ids."""

from __future__ import annotations

from typing import Final

import apsw

from signalhub.core.messages.dedup import RECORD_BYTES, Recalled, Remembered, accepted_ms, recalled
from signalhub.sqlite import Schema

APPLICATION_ID: Final = 0x53_48_75_62  # "SHub"
VERSION: Final = 6

# Actors renew their registrations, so a power cut may lose the latest ones; a killed process loses
# none that were committed.
OPEN: Final = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    PRAGMA secure_delete = ON;          -- Erased data must not stay in the file.
"""

# The state of durable streams, for a faster start; all of it can be rebuilt from the log.
_SNAPSHOT: Final = """
    CREATE TABLE stream (
        id INTEGER PRIMARY KEY,
        state BLOB NOT NULL             -- MessagePack, see core/streams/recovery.py.
    ) STRICT;
    CREATE TABLE subscription (
        stream INTEGER NOT NULL,
        name TEXT NOT NULL,
        state BLOB NOT NULL,
        PRIMARY KEY (stream, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE snapshot (
        only INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
        epoch INTEGER NOT NULL,         -- Of the log.
        log_offset INTEGER NOT NULL,    -- Everything before it is in the snapshot.
        seen_from INTEGER NOT NULL,     -- Outcomes of asks are read again from here on.
        next_id INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE remembered (
        number INTEGER PRIMARY KEY,
        newest_ms INTEGER NOT NULL,
        body BLOB NOT NULL              -- MessagePack, see core/messages/dedup.py.
    ) STRICT;
"""

# Rooms and inboxes: their states, and the ids of messages that were accepted.
_ROOMS: Final = """
    CREATE TABLE room_state (
        name TEXT NOT NULL PRIMARY KEY,
        state BLOB NOT NULL             -- MessagePack, see core/rooms/recovery.py.
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE room_id (
        slot INTEGER NOT NULL,          -- Of time; whole slots are deleted.
        record BLOB NOT NULL,           -- See core/messages/dedup.py; it begins with the key.
        PRIMARY KEY (slot, record)
    ) STRICT, WITHOUT ROWID;
"""

# The progress of replays.
_REPLAY: Final = """
    CREATE TABLE replay (
        only INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
        state BLOB NOT NULL             -- MessagePack, see core/replay.py.
    ) STRICT;
"""

# Where durable actors live.
_PLACEMENT: Final = """
    CREATE TABLE placement (
        actor TEXT NOT NULL PRIMARY KEY,
        host TEXT NOT NULL,
        token INTEGER NOT NULL,
        log_offset INTEGER NOT NULL     -- Of the entry that says so.
    ) STRICT, WITHOUT ROWID;
"""
_PLACEMENT_ORIGIN: Final = """
    ALTER TABLE placement ADD COLUMN owner TEXT NOT NULL DEFAULT '';
    ALTER TABLE placement ADD COLUMN first_token INTEGER NOT NULL DEFAULT 1;
"""

CREATE: Final = f"""
    CREATE TABLE registration (
        address TEXT NOT NULL PRIMARY KEY,
        capabilities TEXT NOT NULL,     -- A JSON array of strings.
        metadata TEXT NOT NULL,         -- A JSON object.
        registered_at INTEGER NOT NULL, -- Times in milliseconds since the Unix epoch.
        expires_at INTEGER NOT NULL,
        lease_ms INTEGER NOT NULL,
        version INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    {_SNAPSHOT}
    {_ROOMS}
    {_REPLAY}
    {_PLACEMENT}
    {_PLACEMENT_ORIGIN}
    PRAGMA application_id = {APPLICATION_ID};
    PRAGMA user_version = {VERSION};
"""

PERSIST: Final = """
    INSERT INTO registration VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (address) DO UPDATE SET
        capabilities = excluded.capabilities,
        metadata = excluded.metadata,
        registered_at = excluded.registered_at,
        expires_at = excluded.expires_at,
        lease_ms = excluded.lease_ms,
        version = excluded.version
"""
FORGET: Final = "DELETE FROM registration WHERE address = ?"
CLEAN: Final = "DELETE FROM registration WHERE expires_at <= ?"
LOAD: Final = """
    SELECT address, capabilities, metadata, registered_at, expires_at, lease_ms, version
    FROM registration
    ORDER BY registered_at, address
"""

# From each older version to the next.
MIGRATIONS: Final = {
    1: f"{_SNAPSHOT} PRAGMA user_version = 2;",
    2: f"{_ROOMS} PRAGMA user_version = 3;",
    3: f"{_REPLAY} PRAGMA user_version = 4;",
    4: f"{_PLACEMENT} PRAGMA user_version = 5;",
    5: f"{_PLACEMENT_ORIGIN} PRAGMA user_version = 6;",
}
SCHEMA: Final = Schema(
    APPLICATION_ID,
    VERSION,
    CREATE,
    "move it away to start with an empty registry, or choose another data folder",
    MIGRATIONS,
    # It takes 16 ms for a registry of 50 000 actors.
    is_checked=True,
)

PUT_STREAM: Final = "INSERT OR REPLACE INTO stream VALUES (?, ?)"
DROP_STREAM: Final = "DELETE FROM stream WHERE id = ?"
DROP_SUBSCRIPTIONS: Final = "DELETE FROM subscription WHERE stream = ?"
PUT_SUBSCRIPTION: Final = "INSERT OR REPLACE INTO subscription VALUES (?, ?, ?)"
DROP_SUBSCRIPTION: Final = "DELETE FROM subscription WHERE stream = ? AND name = ?"
PUT_SNAPSHOT: Final = "INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?, ?)"
LOAD_SNAPSHOT: Final = "SELECT epoch, log_offset, seen_from, next_id FROM snapshot"
MOVE_SNAPSHOT: Final = "UPDATE snapshot SET epoch = ?"
PUT_REMEMBERED: Final = "INSERT INTO remembered (newest_ms, body) VALUES (?, ?)"
FORGET_REMEMBERED: Final = "DELETE FROM remembered WHERE newest_ms < ?"
LOAD_REMEMBERED: Final = "SELECT body FROM remembered WHERE newest_ms >= ? ORDER BY number"
LOAD_STREAMS: Final = "SELECT state FROM stream"
LOAD_SUBSCRIPTIONS: Final = "SELECT state FROM subscription"
FORGET_SNAPSHOT: Final = """
    DELETE FROM snapshot;
    DELETE FROM stream;
    DELETE FROM subscription;
    DELETE FROM room_state;
    DELETE FROM replay;
    DELETE FROM placement;
"""
PUT_REPLAY: Final = "INSERT OR REPLACE INTO replay VALUES (1, ?)"
LOAD_REPLAY: Final = "SELECT state FROM replay"
PUT_PLACEMENT: Final = "INSERT OR REPLACE INTO placement VALUES (?, ?, ?, ?, ?, ?)"
LOAD_PLACEMENTS: Final = """
    SELECT actor, host, token, log_offset, owner, first_token FROM placement
    ORDER BY log_offset
"""
PUT_ROOM_STATE: Final = "INSERT OR REPLACE INTO room_state VALUES (?, ?)"
DROP_ROOM_STATE: Final = "DELETE FROM room_state WHERE name = ?"
LOAD_ROOM_STATES: Final = "SELECT name, state FROM room_state"
PUT_ROOM_ID: Final = "INSERT OR IGNORE INTO room_id VALUES (?, ?)"
FORGET_ROOM_IDS: Final = "DELETE FROM room_id WHERE slot < ?"
FORGET_ALL_ROOM_IDS: Final = "DELETE FROM room_id"
NEWEST_ROOM_ID_SLOT: Final = "SELECT max(slot) FROM room_id"
LOAD_ROOM_IDS: Final = "SELECT record FROM room_id WHERE slot = ?"
RECALL_ROOM_ID: Final = """
    SELECT record FROM room_id WHERE slot = ? AND record >= ? AND record < ?
"""
FORGET_ALL_REMEMBERED: Final = "DELETE FROM remembered"


# The length of a slot; small enough to be loaded at once.
_SLOT_MS: Final = 6 * 3_600_000
_PIECE_RECORDS: Final = 20_000


class RoomIds:
    """Records of accepted ids; belongs to the thread that owns the connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def add(self, records: bytes) -> None:
        """Write records, inside the transaction of a snapshot."""
        size = RECORD_BYTES
        rows = [records[at : at + size] for at in range(0, len(records), size)]
        # In the order of the table, so that neighbours share a page.
        keyed = sorted((accepted_ms(row) // _SLOT_MS, row) for row in rows)
        self._connection.executemany(PUT_ROOM_ID, keyed)

    def recall(self, key: bytes, oldest_ms: int) -> Recalled:
        """What is known of an id accepted since a time."""
        for slot in self._slots(oldest_ms):
            bounds = (slot, key, key + b"\xff" * (RECORD_BYTES - len(key) + 1))
            records = [record for (record,) in self._connection.execute(RECALL_ROOM_ID, bounds)]
            newest = max(records, key=accepted_ms, default=None)
            if newest is not None and accepted_ms(newest) >= oldest_ms:
                return recalled(newest)
        return Recalled()

    def load(self, oldest_ms: int, bytes_max: int) -> list[Remembered]:
        """The newest records up to the limit, oldest first."""
        pieces: list[Remembered] = []
        size = 0
        for slot in self._slots(oldest_ms):
            rows = self._connection.execute(LOAD_ROOM_IDS, (slot,))
            records = sorted((record for (record,) in rows), key=accepted_ms)
            for end in range(len(records), 0, -_PIECE_RECORDS):
                piece = records[max(0, end - _PIECE_RECORDS) : end]
                pieces.append(Remembered(accepted_ms(piece[-1]), b"".join(piece), {}))
                size += len(pieces[-1].records)
                if size > bytes_max:
                    return pieces[::-1]
        return pieces[::-1]

    def _slots(self, oldest_ms: int) -> range:
        """Newest first. The newest may be in the future, if the clock was set back."""
        newest = self._connection.execute(NEWEST_ROOM_ID_SLOT).get
        return range(newest or 0, oldest_ms // _SLOT_MS - 1, -1)

    def forget(self, oldest_ms: int) -> None:
        """Delete whole slots before a time."""
        self._connection.execute(FORGET_ROOM_IDS, (oldest_ms // _SLOT_MS,))
