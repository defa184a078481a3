"""Rooms and inboxes without asyncio."""

from __future__ import annotations

from ssl import SSLContext
from types import TracebackType
from typing import Self, Unpack

from signalhub.client.arguments import Type
from signalhub.client.protocol.events import Listener
from signalhub.client.rooms.answers import InboxPage, Missed, RoomMessage, Sent, Stored
from signalhub.client.rooms.inbox import (
    PAGE,
    PAGE_TIMEOUT_S,
    InboxAccess,
    InboxMessages,
)
from signalhub.client.rooms.inbox import TIMEOUT_S as INBOX_TIMEOUT_S
from signalhub.client.rooms.room import TIMEOUT_S, Hub, Joining, Room
from signalhub.client.rooms.room import hub as hub_of
from signalhub.client.sync.background import Background, Steps, acquire, awaited, release
from signalhub.client.sync.calls import SyncCalls
from signalhub.client.transport.token import Token
from signalhub.wire.errors import Unavailable


class SyncRoom:
    """What `signalhub.Room` is: a context manager, and an iterator over messages."""

    def __init__(self, background: Background, room: Room) -> None:
        self._background = background
        self._room = room
        self._steps = Steps(background, room)
        self.pseudonym = room.pseudonym

    def __repr__(self) -> str:
        return repr(self._room)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RoomMessage:
        return next(self._steps)

    @property
    def is_joined(self) -> bool:
        return self._room.is_joined

    @property
    def last_seq(self) -> int:
        return self._room.last_seq

    @property
    def missed(self) -> tuple[Missed, ...]:
        return self._room.missed

    @property
    def rewound(self) -> int:
        return self._room.rewound

    def send(
        self,
        ciphertext: bytes,
        *,
        message_id: str | None = None,
        type: Type = "mls_app",
        proposal_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Sent:
        return self._background.run(
            self._room.send(
                ciphertext,
                message_id=message_id,
                type=type,
                proposal_id=proposal_id,
                timeout_s=timeout_s,
            )
        )

    def close(self) -> None:
        self._background.run(self._room.close())


class SyncInboxMessages:
    """What `InboxMessages` is: an iterator that knows where it is and what was missed."""

    def __init__(self, background: Background, messages: InboxMessages) -> None:
        self._messages = messages
        self._steps = Steps(background, messages)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RoomMessage:
        return next(self._steps)

    @property
    def missed(self) -> tuple[Missed, ...]:
        return self._messages.missed

    @property
    def skipped(self) -> tuple[Missed, ...]:
        return self._messages.skipped

    @property
    def next_seq(self) -> int:
        return self._messages.next_seq


class SyncInboxAccess:
    """What `signalhub.InboxAccess` is."""

    def __init__(self, background: Background, inbox: InboxAccess) -> None:
        self._background = background
        self._inbox = inbox

    def __repr__(self) -> str:
        return repr(self._inbox)

    def fetch(
        self,
        from_seq: int = 0,
        limit: int = PAGE,
        *,
        timeout_s: float = INBOX_TIMEOUT_S,
        attempts: int | None = None,
    ) -> InboxPage:
        return self._background.run(
            self._inbox.fetch(from_seq, limit, timeout_s=timeout_s, attempts=attempts)
        )

    def messages(
        self, from_seq: int = 1, *, timeout_s: float = PAGE_TIMEOUT_S, attempts: int | None = None
    ) -> SyncInboxMessages:
        messages = self._inbox.messages(from_seq, timeout_s=timeout_s, attempts=attempts)
        return SyncInboxMessages(self._background, messages)

    def append(
        self,
        ciphertext: bytes,
        *,
        message_id: str | None = None,
        timeout_s: float = INBOX_TIMEOUT_S,
        attempts: int | None = None,
    ) -> Stored:
        return self._background.run(
            self._inbox.append(
                ciphertext, message_id=message_id, timeout_s=timeout_s, attempts=attempts
            )
        )


class SyncHub(SyncCalls):
    """What `signalhub.Hub` is: a context manager."""

    def __init__(self, background: Background, hub: Hub) -> None:
        super().__init__(hub)
        self._background: Background | None = background
        self._hub = hub

    def __repr__(self) -> str:
        return repr(self._hub)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def room(self, room: str, **joining: Unpack[Joining]) -> SyncRoom:
        background = self._open
        return SyncRoom(background, background.run(awaited(self._hub.room(room, **joining))))

    def inbox(self, inbox_id: str) -> SyncInboxAccess:
        return SyncInboxAccess(self._open, self._hub.inbox(inbox_id))

    def close(self) -> None:
        background, self._background = self._background, None
        if background is not None:
            try:
                background.run(self._hub.close())
            finally:
                release(background)

    @property
    def _open(self) -> Background:
        if self._background is None:
            raise Unavailable("this hub was closed by the program; call signalhub.sync.hub again")
        return self._background


def hub(
    url: str,
    *,
    token: Token = None,
    ssl: SSLContext | None = None,
    listener: Listener | None = None,
) -> SyncHub:
    """Return access to the rooms and inboxes of a hub, without asyncio; see `signalhub.hub`."""
    background = acquire()
    try:
        made = background.call(lambda: hub_of(url, token=token, ssl=ssl, listener=listener))
    except BaseException:
        release(background)
        raise
    return SyncHub(background, made)


__all__ = ["SyncHub", "SyncInboxAccess", "SyncInboxMessages", "SyncRoom", "hub"]
