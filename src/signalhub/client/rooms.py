"""The rooms and inboxes of one hub."""

from __future__ import annotations

import random
from ssl import SSLContext
from typing import TypedDict, Unpack

from signalhub.client.backoff import Backoff, Reconnect
from signalhub.client.closing import Closing
from signalhub.client.http import HttpClient, Origin
from signalhub.client.inbox_access import InboxAccess
from signalhub.client.opening import Opening
from signalhub.client.room import Room
from signalhub.client.room_arguments import (
    checked_inbox,
    checked_pseudonym,
    checked_seq,
    default_inbox,
    room_name,
)
from signalhub.client.room_link import SOCKET_PATH
from signalhub.client.room_protocol import RoomProtocol
from signalhub.client.room_runner import RoomRunner
from signalhub.clock import SystemClock
from signalhub.errors import Unavailable

RECONNECT = Reconnect()

_CLOSED = "the hub was closed by this program"


class Joining(TypedDict, total=False):
    """How to be in a room."""

    pseudonym: str | None
    """Who we are to the others; a new random name if `None`."""
    inbox: str | None
    """The room's inbox. Without one it is the hub's default, which everybody can guess."""
    tenant: str | None
    """Whose room it is, where rooms belong to tenants."""
    since: int | None
    """The last position already read: 0 reads from the oldest on, `None` only what is new."""
    reconnect: Reconnect | None
    """How to come back after a loss; `None` does not."""


def hub(url: str, *, ssl: SSLContext | None = None) -> Hub:
    """The rooms and inboxes of a hub. Nothing is connected until it is used.

    Use it as `async with signalhub.hub(...) as hub:`, or `await hub.close()` when done.

    Args:
        url: The hub, such as `http://127.0.0.1:8787`; its `ws://` and `wss://` URLs do as well.
        ssl: For `https://` and `wss://` with certificates of your own.

    Raises:
        ValueError: The URL cannot be used.
    """
    return Hub(Origin.of(url), ssl)


class Hub(Closing):
    """Where rooms are joined and inboxes read. No account is needed: who knows an id may use it."""

    def __init__(self, origin: Origin, ssl: SSLContext | None = None) -> None:
        self._origin = origin
        self._ssl = ssl
        self._http = HttpClient(origin, ssl)
        self._rooms: set[Room] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Hub at {self._origin.http_url}>"

    def room(self, room: str, **joining: Unpack[Joining]) -> Opening[Room]:
        """Join a room.

        Use it as `async with hub.room(...) as room:`, or `room = await hub.room(...)` and
        `await room.close()`.

        Args:
            room: The id of the room.
            joining: `pseudonym`, `inbox`, `tenant`, `since` (0 by default) and `reconnect`; see
                `Joining`.

        Raises:
            ValueError: An id or option cannot be used; raised at once.
            Refused: The hub does not let us in, with code `CONFLICT` if the room has another inbox;
                raised when entered or awaited, like the following.
            Unavailable: Nobody answers.
        """
        if unknown := joining.keys() - Joining.__annotations__.keys():
            raise TypeError(f"there is no option {unknown.pop()!r} of a room")
        name = room_name(joining.get("tenant"), room)
        pseudonym = checked_pseudonym(joining.get("pseudonym"))
        headers = {"X-Room-ID": name, "X-Pseudonym-ID": pseudonym}
        inbox = joining.get("inbox")
        if inbox is not None:
            headers["X-Inbox-ID"] = checked_inbox(inbox)
        since = joining.get("since", 0)
        if since is not None:
            checked_seq(since, "since")
        reconnect = joining.get("reconnect", RECONNECT) or Reconnect(attempts_max=0)

        async def join() -> Room:
            if self._is_closed:
                raise Unavailable(_CLOSED)
            runner = RoomRunner(
                self._origin.socket_url + SOCKET_PATH,
                headers,
                RoomProtocol(pseudonym, since, random.random),
                InboxAccess(self._http, inbox or default_inbox(name)),
                Backoff(reconnect, random.random),
                SystemClock(),
                self._ssl,
            )
            await runner.start()
            joined = Room(pseudonym, runner, self._rooms.discard)
            if self._is_closed:
                await joined.close()
                raise Unavailable(_CLOSED)
            self._rooms.add(joined)
            return joined

        return Opening(join)

    def inbox(self, inbox_id: str) -> InboxAccess:
        """An inbox, to be read and written without joining a room.

        Raises:
            ValueError: The id cannot be one.
        """
        return InboxAccess(self._http, inbox_id)

    async def close(self) -> None:
        """Leave the rooms that are still joined, and hang up. Harmless when repeated."""
        self._is_closed = True
        for room in list(self._rooms):
            await room.close()
        await self._http.close()
