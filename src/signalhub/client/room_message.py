"""What rooms and inboxes hand to their user."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

IDS_MAX = 10_000


class RoomMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a room or an inbox.

    An inbox does not keep who sent a message and of which type it was: both are known only of
    messages that came while we were there, and the time only of those that came from the inbox.
    """

    seq: int
    message_id: str
    ciphertext: bytes
    type: str | None = None
    pseudonym: str | None = None
    created_at: datetime | None = None


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The message is on the hub's disk, and was offered to everybody in the room."""

    message_id: str
    seq: int
    is_repeat: bool = False  # It was there already, under the same id.


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The message is in the inbox."""

    message_id: str
    seq: int
    is_repeat: bool = False
    stored_at: datetime | None = None


class InboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of an inbox in ascending order; go on at `next_seq`."""

    messages: tuple[RoomMessage, ...] = ()
    next_seq: int = 0
    oldest_seq: int | None = None  # The oldest that can be read; `None` if there is nothing.
    is_partial: bool = False  # The hub cannot read some of it now: ask again, skip nothing.

    def __iter__(self) -> Iterator[RoomMessage]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class Missed(NamedTuple):
    """Positions that were gone before they could be read, both ends included."""

    first: int
    last: int


class RecentIds:
    """The message ids seen last, by which a message sent twice is recognised."""

    def __init__(self, limit: int = IDS_MAX) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, message_id: str) -> bool:
        """Is it new? From now on it is not."""
        if message_id in self._ids:
            return False
        self._ids[message_id] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
        return True
