"""A room: send to everyone in it, and read every message in order."""

from __future__ import annotations

import random
from collections.abc import Callable
from ssl import SSLContext
from typing import Self, TypedDict, Unpack

from signalhub.client.arguments import (
    Type,
    checked_ciphertext,
    checked_inbox,
    checked_kind,
    checked_pseudonym,
    checked_room_message_id,
    checked_seq,
    room_name,
)
from signalhub.client.calls.calls import Calls
from signalhub.client.lifecycle import Opening, Resource
from signalhub.client.protocol.events import Listener
from signalhub.client.rooms.answers import Missed, RoomMessage, Sent
from signalhub.client.rooms.inbox import InboxAccess
from signalhub.client.rooms.protocol import RoomProtocol
from signalhub.client.rooms.runner import RoomRunner
from signalhub.client.transport.http import HttpClient, Origin
from signalhub.client.transport.link import SOCKET_PATH
from signalhub.client.transport.token import Token
from signalhub.clock import SystemClock
from signalhub.pacing import Backoff, Reconnect
from signalhub.wire.base64url import encoded
from signalhub.wire.errors import Unavailable
from signalhub.wire.room_ids import default_inbox

TIMEOUT_S = 30.0


class Room(Resource):
    """A member of a room, which reconnects automatically.

    Iterating yields every message of the room's inbox after the position it was opened with, our
    own included, in order and once each: first those that were missed, then new ones. The iteration
    ends when the room is closed and raises `GaveUp` when the client has given up.
    """

    def __init__(self, pseudonym: str, runner: RoomRunner, left: Callable[[Room], None]) -> None:
        self.pseudonym = pseudonym
        self._runner = runner
        self._left = left

    def __repr__(self) -> str:
        return f"<Room at {self._runner.url}, {self._runner.protocol.phase.value}>"

    @property
    def is_joined(self) -> bool:
        """Whether it is connected right now."""
        return self._runner.is_joined

    @property
    def last_seq(self) -> int:
        """The position of the last message returned: store it, and pass it as `since` next time.

        Messages deleted before they could be read count as returned.
        """
        return self._runner.protocol.reading.last_seq

    @property
    def missed(self) -> tuple[Missed, ...]:
        """Positions that were deleted before they could be read, oldest first.

        They had expired, or the room has another inbox than the one named when it was opened.
        """
        return tuple(self._runner.protocol.reading.missed)

    @property
    def rewound(self) -> int:
        """How often the hub came back with fewer messages than before, as after a lost disk.

        Then everything it still has is read again, except messages that are remembered.
        """
        return self._runner.protocol.reading.rewound

    async def send(
        self,
        ciphertext: bytes,
        *,
        message_id: str | None = None,
        type: Type = "mls_app",
        proposal_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Sent:
        """Send a message and wait until it is on the hub's disk.

        It is repeated with the same id until then: over new connections, and after the wait that a
        busy or rate-limiting hub asks for.

        Args:
            ciphertext: What only the members can read; the hub sees these bytes.
            message_id: An id chosen by you. Sent again with it, even by another run of the program,
                the same bytes of the same pseudonym get the same position and are not stored twice.
            type: The type of the message; the hub keeps track of proposals.
            proposal_id: The proposal that it makes, approves, rejects or commits.
            timeout_s: How long to try.

        Raises:
            Refused: The hub refused it; with `retryable`, the room's rate limit was exceeded all
                the time.
            Unavailable: It was never sent, or the hub could not accept it.
            OutcomeUnknown: It was sent, and no answer arrived: repeat it with the same id.
        """
        kind = checked_kind(type, proposal_id)
        data = checked_ciphertext(ciphertext)
        members = {"ciphertext": encoded(data), "type": kind}
        if proposal_id is not None:
            members["proposalId"] = proposal_id
        own = checked_room_message_id(message_id)
        return await self._runner.send(own, data, members, timeout_s)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RoomMessage:
        return await self._runner.next()

    async def close(self) -> None:
        """Leave the room. Can be called more than once."""
        await self._runner.close()
        self._left(self)


RECONNECT = Reconnect()

_CLOSED = "the hub was closed by this program"


class Joining(TypedDict, total=False):
    """Options for joining a room."""

    pseudonym: str | None
    """The name shown to other members; by default a random one."""
    inbox: str | None
    """The room's inbox; by default the hub's, which anyone can guess."""
    tenant: str | None
    """The tenant of the room, if rooms belong to tenants."""
    since: int | None
    """The last position already read: 0 reads from the oldest message on, `None` only new ones."""
    reconnect: Reconnect | None
    """How to reconnect after a lost connection; `None` does not reconnect."""


def hub(
    url: str,
    *,
    token: Token = None,
    ssl: SSLContext | None = None,
    listener: Listener | None = None,
) -> Hub:
    """Return access to a hub over HTTP: its messages, and its rooms and inboxes.

    Nothing is connected until it is used.

    Use it as `async with signalhub.hub(...) as hub:`, or call `await hub.close()` when done.

    Args:
        url: The hub, such as `http://127.0.0.1:8787`; its `ws://` and `wss://` URLs work as well.
        token: For hubs that require one: a string, or a plain or async function that returns one
            for every connection and request. A room's inbox id does as well.
        ssl: For `https://` and `wss://` with custom certificates.
        listener: Called with each event of its rooms and inboxes, such as `ConnectionLost`.

    Raises:
        ValueError: The URL is invalid.
    """
    return Hub(Origin.of(url), ssl, token, listener)


class Hub(Calls, Resource):
    """Sends and reads messages over HTTP, joins rooms and opens inboxes.

    With a token if the hub requires one.
    """

    def __init__(
        self,
        origin: Origin,
        ssl: SSLContext | None = None,
        token: Token = None,
        listener: Listener | None = None,
    ) -> None:
        self._origin = origin
        self._ssl = ssl
        self._token = token
        self._listener = listener
        super().__init__(HttpClient(origin, ssl, token=token), listener)
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
            ValueError: An id or option is invalid; raised immediately.
            Refused: The hub refuses this member, with code `CONFLICT` if the room has another
                inbox, `UNAUTHORIZED` or `FORBIDDEN` if it needs a token that covers the room, or
                the inbox; raised when entered or awaited, like the following.
            Unavailable: The hub cannot be reached.
        """
        if unknown := joining.keys() - Joining.__annotations__.keys():
            raise TypeError(f"unknown option {unknown.pop()!r} of a room")
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
                InboxAccess(self._http, inbox or default_inbox(name), self._listener),
                Backoff(reconnect, random.random),
                SystemClock(),
                self._ssl,
                self._token,
                self._listener,
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
        """Return an inbox, to be read and written without joining a room.

        Raises:
            ValueError: The id is invalid.
        """
        return InboxAccess(self._http, inbox_id, self._listener)

    async def close(self) -> None:
        """Leave all rooms and close all connections. Can be called more than once."""
        self._is_closed = True
        for room in list(self._rooms):
            await room.close()
        await self._http.close()
