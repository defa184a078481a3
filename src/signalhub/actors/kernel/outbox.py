"""The outbox: messages to be sent to other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from signalhub.actors.store.host_time import HostTime
from signalhub.actors.store.store import HostStore
from signalhub.ids import time_of

# The lane of rows whose destination has no known host.
NOWHERE = ""
# The lane of rows whose sender is moving.
FROZEN = "!"
# With fewer destinations it is not worth reading which of them still have rows.
DESTS_MIN = 1_024
# Pairs of actors whose waiting rows are known, and how many rows of one.
_KNOWN_MAX = 16_384
_KNOWN_ROWS_MAX = 64


class Row(msgspec.Struct, gc=False):
    """One message to be sent."""

    actor: str
    dest: str
    msg_id: str
    kind: str
    call_id: str
    payload: bytes
    attempts: int = 0
    expires_ms: int | None = None
    # The own time at which it was made.
    since_ms: int = 0

    @property
    def is_ending(self) -> bool:
        """Does the message expire?"""
        return self.expires_ms is not None


Lane = tuple[str, bool]
"""A host, and whether order matters."""


class WaitingRows:
    """The rows from one actor to another: their ids, and the lane of the newest one."""

    __slots__ = ("ids", "lane")

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.lane: Lane | None = None


class Outbox:
    """The table `outbox`, and how far each lane was sent."""

    def __init__(self, store: HostStore) -> None:
        self._store = store
        self._execute = store.execute
        # Every actor with stored messages, and some that had: only for these does order with local
        # messages matter.
        self._dests: set[str] = set()
        self._dests_max = DESTS_MIN
        # All rows from one actor to another: of some of them.
        self._known: dict[tuple[str, str, bool], WaitingRows] = {}
        self._sent_to: dict[Lane, str] = {}

    def load(self) -> list[Lane]:
        """Load from the tables; returns the lanes that have rows."""
        self.forget_known()
        self._load_dests()
        self._sent_to = {
            (host, bool(is_ordered)): sent_to
            for host, is_ordered, sent_to in self._execute("SELECT * FROM lanes")
        }
        rows = self._execute("SELECT DISTINCT host, is_ordered FROM outbox")
        return [(host, bool(is_ordered)) for host, is_ordered in rows]

    def date(self, time: HostTime) -> None:
        """Date the rows of 0.1.0, which had only the time in their ids."""
        rows: list[Any] = self._execute(
            "SELECT actor, dest, msg_id FROM outbox WHERE since_ms IS NULL"
        ).fetchall()
        self._store.executemany(
            "UPDATE outbox SET since_ms = ? WHERE actor = ? AND dest = ? AND msg_id = ?",
            [
                (min(time.own_ms, time.own(time_of(msg_id))), actor, dest, msg_id)
                for actor, dest, msg_id in rows
            ],
        )

    def forget_known(self) -> None:
        """Rows were changed, or changes were rolled back: look into the table."""
        self._known.clear()

    def _load_dests(self) -> None:
        self._dests = {dest for (dest,) in self._execute("SELECT DISTINCT dest FROM outbox")}
        self._dests_max = max(DESTS_MIN, 2 * len(self._dests))

    def add(self, row: Row, lane: Lane) -> None:
        if not row.dest.startswith("@"):
            self._dests.add(row.dest)
            key = (row.actor, row.dest, lane[1])
            if (known := self._known.get(key)) is not None:
                known.ids.add(row.msg_id)
                known.lane = lane
                if len(known.ids) > _KNOWN_ROWS_MAX:
                    del self._known[key]
        self._store.add_later(
            "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.actor,
                row.dest,
                row.msg_id,
                row.kind,
                row.call_id,
                lane[0],
                lane[1],
                row.payload,
                row.attempts,
                row.expires_ms,
                row.since_ms,
            ),
        )

    def has_for(self, actor: str, dest: str) -> bool:
        """Does a message from one actor to the other wait to be sent?"""
        if dest not in self._dests:
            return False
        return (
            self._execute(
                "SELECT 1 FROM outbox WHERE actor = ? AND dest = ? LIMIT 1", (actor, dest)
            ).get
            is not None
        )

    def lane_of(self, actor: str, dest: str, *, is_ordered: bool) -> Lane | None:
        """The lane of the newest waiting message from one actor to the other, if any."""
        key = (actor, dest, is_ordered)
        if (known := self._known.get(key)) is not None:
            return known.lane
        if dest not in self._dests:
            self._know_none(key)
            return None
        host: str | None = self._execute(
            "SELECT host FROM outbox WHERE actor = ? AND dest = ? AND is_ordered = ?"
            " ORDER BY msg_id DESC LIMIT 1",
            (actor, dest, is_ordered),
        ).get
        if host is None:
            self._know_none(key)
            return None
        return host, is_ordered

    def _know_none(self, key: tuple[str, str, bool]) -> None:
        """From now on it is known what waits there: nothing yet."""
        if key[1].startswith("@"):
            return
        if len(self._known) >= _KNOWN_MAX:
            self.forget_known()
        self._known[key] = WaitingRows()

    def head(self, lane: Lane, limit: int) -> list[Row]:
        """The oldest rows of a lane."""
        rows = self._execute(
            "SELECT actor, dest, msg_id, kind, call_id, payload, attempts, expires_ms, since_ms"
            " FROM outbox WHERE host = ? AND is_ordered = ? ORDER BY msg_id LIMIT ?",
            (*lane, limit),
        )
        return [Row(*columns) for columns in rows]

    def dests(self, host: str, limit: int) -> list[str]:
        """The destinations of the rows of a host."""
        rows = self._execute(
            "SELECT DISTINCT dest FROM outbox WHERE host = ? LIMIT ?", (host, limit)
        )
        return [dest for (dest,) in rows]

    def sending(self, lane: Lane, rows: list[Row]) -> None:
        """Record that rows are about to be sent; only requests can be withdrawn."""
        last = max((row.msg_id for row in rows if row.kind == "request"), default="")
        if last > self._sent_to.get(lane, ""):
            self._sent_to[lane] = last
            self._execute("INSERT OR REPLACE INTO lanes VALUES (?, ?, ?)", (*lane, last))

    def remove(self, rows: list[Row]) -> None:
        """Delete rows; never within the run of a handler, which may be rolled back."""
        for row in rows:
            for is_ordered in (True, False):
                known = self._known.get((row.actor, row.dest, is_ordered))
                if known is not None and row.msg_id in known.ids:
                    known.ids.remove(row.msg_id)
                    if not known.ids:
                        known.lane = None
                    break
        self._store.executemany(
            "DELETE FROM outbox WHERE actor = ? AND dest = ? AND msg_id = ?",
            [(row.actor, row.dest, row.msg_id) for row in rows],
        )
        if len(self._dests) > self._dests_max:
            self._load_dests()

    def withdraw(self, actor: str, dest: str, msg_id: str) -> bool | None:
        """Delete a row; returns whether it was never sent, `None` if it does not exist."""
        self.forget_known()
        found = self._execute(
            "DELETE FROM outbox WHERE actor = ? AND dest = ? AND msg_id = ?"
            " RETURNING host, is_ordered, attempts",
            (actor, dest, msg_id),
        ).fetchone()
        if found is None:
            return None
        host, is_ordered, attempts = found
        return not attempts and msg_id > self._sent_to.get((host, bool(is_ordered)), "")

    def freeze(self, actor: str) -> None:
        """Stop sending messages of this actor."""
        self.forget_known()
        rows: list[Any] = self._execute(
            "SELECT dest, msg_id, host, is_ordered, attempts FROM outbox WHERE actor = ?", (actor,)
        ).fetchall()
        for dest, msg_id, host, is_ordered, attempts in rows:
            was_sent = msg_id <= self._sent_to.get((host, bool(is_ordered)), "")
            self._execute(
                "UPDATE outbox SET host = ?, attempts = ?"
                " WHERE actor = ? AND dest = ? AND msg_id = ?",
                (FROZEN, attempts or int(was_sent), actor, dest, msg_id),
            )

    def thaw(self, actor: str) -> set[Lane]:
        """The actor stays or has arrived here: send its rows again, from the returned lanes."""
        self.forget_known()
        rows: list[Any] = self._execute(
            "UPDATE outbox SET host = iif(substr(dest, 1, 1) = '@', dest, ?)"
            " WHERE actor = ? AND host = ? RETURNING dest, host, is_ordered",
            (NOWHERE, actor, FROZEN),
        ).fetchall()
        self._dests.update(dest for dest, _, _ in rows if not dest.startswith("@"))
        return {(host, bool(is_ordered)) for _, host, is_ordered in rows}

    def rehost(self, before: str, hosts: Mapping[str, str]) -> set[Lane]:
        """Destinations have moved; returns the lanes that have rows now."""
        self.forget_known()
        rows: list[Any] = self._execute(
            "SELECT actor, dest, msg_id, is_ordered, attempts FROM outbox WHERE host = ?", (before,)
        ).fetchall()
        lanes: set[Lane] = set()
        for actor, dest, msg_id, is_ordered, attempts in rows:
            host = hosts.get(dest)
            if host is None or host == before:
                continue
            was_sent = msg_id <= self._sent_to.get((before, bool(is_ordered)), "")
            self._execute(
                "UPDATE outbox SET host = ?, attempts = ?"
                " WHERE actor = ? AND dest = ? AND msg_id = ?",
                (host, attempts or int(was_sent), actor, dest, msg_id),
            )
            lanes.add((host, bool(is_ordered)))
        return lanes
