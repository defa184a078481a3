"""Where actors live: those of this host, for certain; others, as last reported by the hub.

An actor is *here* once the hub has confirmed it. Before that, and while it moves, its messages are
held.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum

import msgspec

from signalhub.actors.store.store import HostStore

_REMEMBERED_MAX = 100_000


class PlaceStatus(StrEnum):
    """What this host knows about the place of an actor."""

    HERE = "here"
    UNPLACED = "unplaced"  # A message arrived for it, and the hub has not said where it lives.
    LEAVING = "leaving"
    ARRIVING = "arriving"
    GONE = "gone"  # It has moved to another host.


class Own(msgspec.Struct, gc=False):
    token: int
    status: PlaceStatus


class Elsewhere(msgspec.Struct, gc=False):
    host: str
    token: int


class Places:
    """What this host knows about places."""

    def __init__(self, store: HostStore, host: str) -> None:
        self._execute = store.execute
        self.host = host
        self._own: dict[str, Own | None] = {}
        self._elsewhere: OrderedDict[str, Elsewhere] = OrderedDict()

    def load(self) -> None:
        """Forget what is in memory."""
        self._own.clear()
        self._elsewhere.clear()

    def own(self, address: str) -> Own | None:
        """What the table says about an actor of this host."""
        try:
            return self._own[address]
        except KeyError:
            found = self._execute(
                "SELECT token, status FROM actors WHERE address = ?", (address,)
            ).fetchone()
            if len(self._own) >= _REMEMBERED_MAX:
                self._own.clear()
            own = None if found is None else Own(found[0], PlaceStatus(found[1]))
            self._own[address] = own
            return own

    def is_here(self, address: str) -> bool:
        own = self.own(address)
        return own is not None and own.status is PlaceStatus.HERE

    def put(self, address: str, token: int, status: PlaceStatus) -> None:
        self._execute("INSERT OR REPLACE INTO actors VALUES (?, ?, ?)", (address, token, status))
        self._own[address] = Own(token, status)

    def with_status(self, status: PlaceStatus) -> list[str]:
        rows = self._execute("SELECT address FROM actors WHERE status = ?", (status,))
        return [address for (address,) in rows]

    def token_of(self, address: str) -> int | None:
        """The token of an actor here."""
        own = self.own(address)
        return own.token if own is not None and own.status is PlaceStatus.HERE else None

    def find(self, address: str) -> Elsewhere | None:
        """The host of an actor that lives elsewhere, if known."""
        found = self._elsewhere.get(address)
        if found is not None:
            self._elsewhere.move_to_end(address)
        return found

    def learn(self, address: str, host: str, token: int) -> None:
        self._elsewhere[address] = Elsewhere(host, token)
        self._elsewhere.move_to_end(address)
        if len(self._elsewhere) > _REMEMBERED_MAX:
            self._elsewhere.popitem(last=False)

    def forget(self, address: str) -> None:
        self._elsewhere.pop(address, None)
