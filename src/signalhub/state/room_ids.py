"""The ids of messages that rooms accepted, on disk for as long as a repeat must be known.

Written together with the snapshot; what is newer follows from the log. Memory holds the newest of
them, and what it had to give up is looked up here. Records are kept in slots of time, so that many
are forgotten at once and a look-up costs one descent per slot.
"""

from __future__ import annotations

from typing import Final

import apsw

from signalhub.core.dedup import RECORD_BYTES, Remembered, accepted_ms, seq_of
from signalhub.state import schema

# Of the time an id was accepted; small enough to be loaded at once.
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
        # In the order of the table, neighbours share a page.
        keyed = sorted((accepted_ms(row) // _SLOT_MS, row) for row in rows)
        self._connection.executemany(schema.PUT_ROOM_ID, keyed)

    def recall(self, key: bytes, oldest_ms: int) -> int:
        """The position of an id accepted since a time; 0 if there is none."""
        for slot in self._slots(oldest_ms):
            bounds = (slot, key, key + b"\xff" * (RECORD_BYTES - len(key) + 1))
            records = [
                record for (record,) in self._connection.execute(schema.RECALL_ROOM_ID, bounds)
            ]
            newest = max(records, key=accepted_ms, default=None)
            if newest is not None and accepted_ms(newest) >= oldest_ms:
                return seq_of(newest)
        return 0

    def load(self, oldest_ms: int, bytes_max: int) -> list[Remembered]:
        """The newest records that fit, oldest first."""
        pieces: list[Remembered] = []
        size = 0
        for slot in self._slots(oldest_ms):
            rows = self._connection.execute(schema.LOAD_ROOM_IDS, (slot,))
            records = sorted((record for (record,) in rows), key=accepted_ms)
            for end in range(len(records), 0, -_PIECE_RECORDS):
                piece = records[max(0, end - _PIECE_RECORDS) : end]
                pieces.append(Remembered(accepted_ms(piece[-1]), b"".join(piece), {}))
                size += len(pieces[-1].records)
                if size > bytes_max:
                    return pieces[::-1]
        return pieces[::-1]

    def _slots(self, oldest_ms: int) -> range:
        """Newest first. The newest may be tomorrow, if the clock was set back."""
        newest = self._connection.execute(schema.NEWEST_ROOM_ID_SLOT).get
        return range(newest or 0, oldest_ms // _SLOT_MS - 1, -1)

    def forget(self, oldest_ms: int) -> None:
        """Let go of whole slots before a time."""
        self._connection.execute(schema.FORGET_ROOM_IDS, (oldest_ms // _SLOT_MS,))
