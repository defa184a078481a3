"""What hosts of durable actors stand on in a simulation: a hub of a few rules, and a bad disk."""

from __future__ import annotations

import os
from typing import Any

import apsw
import msgspec

from signalhub.actors.effects import Send
from signalhub.actors.events import Moved, Place, Receipted, Refused
from signalhub.actors.store import Store


class Crash(BaseException):
    """The process of a host ends here."""


class FragileStore(Store):
    """A store that can fail, or end the process, at a statement chosen before."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, durability="process")
        self.countdown = -1
        self.fault: BaseException = Crash()
        real = self.connection.execute

        def execute(statement: str, bindings: Any = ()) -> apsw.Cursor:
            # What takes back cannot fail: it only says what is so anyway.
            if self.countdown >= 0 and not statement.startswith("R"):
                self.countdown -= 1
                if self.countdown < 0:
                    raise self.fault
            return real(statement, bindings)

        self.execute = execute  # type: ignore[assignment]

    def empty(self) -> None:
        """As new; opening another one would take longer than a whole run."""
        tables = self.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        for (name,) in tables.fetchall():
            if name.startswith("state:"):
                self.connection.execute(f'DROP TABLE "{name}"')
            else:
                self.connection.execute(f'DELETE FROM "{name}"')


class Shelf:
    """Stores in memory that many worlds use, one after the other."""

    def __init__(self) -> None:
        self._stores: list[FragileStore] = []

    def take(self, number: int) -> FragileStore:
        while len(self._stores) <= number:
            self._stores.append(FragileStore(":memory:"))
        store = self._stores[number]
        store.countdown = -1
        store.empty()
        return store


class Mail(msgspec.Struct):
    """Something in a mailbox."""

    number: int
    type: str
    data: bytes
    sender: str
    accepted_ms: int
    expires_ms: int | None
    is_settled: bool = False


class ModelHub:
    """What the hub knows. All of it is on disk when it answers."""

    def __init__(self, window_ms: int) -> None:
        self.mailboxes: dict[str, list[Mail]] = {}
        self.places: dict[str, Place] = {}
        self.repeats = 0
        self.stale = 0
        self._window_ms = window_ms
        self._accepted: dict[tuple[str, str], int] = {}

    def send(self, sender: str, send: Send, sent_ms: int, now_ms: int) -> Receipted | Refused:
        """An ask: accepted once, and repeated ones get the first answer."""
        before = self._accepted.get((sender, send.batch))
        if before is not None and now_ms - before <= self._window_ms:
            self.repeats += 1
            return Receipted(send.batch)
        expires_ms = None if send.ttl_ms is None else sent_ms + send.ttl_ms
        if expires_ms is not None and expires_ms < now_ms:
            return Refused(send.batch, "message_expired")
        stale = [one for one, token in send.fences.items() if self._token(one) != token]
        if stale:
            self.stale += 1
            return Refused(send.batch, "stale_placement", stale)
        self._accepted[sender, send.batch] = now_ms
        self.put(send.to, send.type, send.data, sender, now_ms, expires_ms)
        return Receipted(send.batch)

    def _token(self, actor: str) -> int | None:
        place = self.places.get(actor)
        return None if place is None else place.token

    def put(
        self,
        to: str,
        type: str,
        data: bytes,
        sender: str,
        now_ms: int,
        expires_ms: int | None = None,
    ) -> None:
        box = self.mailboxes.setdefault(to, [])
        box.append(Mail(len(box), type, data, sender, now_ms, expires_ms))

    def place(self, actor: str, host: str, token: int = 1) -> Place:
        """Where it lives; there, if it lives nowhere."""
        known = self.places.get(actor)
        if known is None or (known.host == host and known.token < token):
            known = self.places[actor] = Place(actor, host, token)
        return known

    def move(self, actor: str, token: int, to: str) -> Moved:
        known = self.places[actor]
        if (known.host, known.token) == (to, token + 1):
            return Moved(actor, known.token)
        if known.token != token:
            return Moved(actor, None, "stale_placement", is_final=True)
        self.places[actor] = Place(actor, to, token + 1)
        return Moved(actor, token + 1)
