"""What rooms and inboxes are asked, and what they answer, as values.

Names of rooms and inboxes arrive here as clients wrote them, checked and in one canonical form; the
core hashes them before anything else. `caller` belongs to the shell, which gets an `Answer` for it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.wire.entry import ProposalBody
from signalhub.wire.errors import RoomError

if TYPE_CHECKING:
    from signalhub.core.rooms.room import Room

APP: Final = "mls_app"
PROPOSAL: Final = "mls_proposal"
APPROVAL: Final = "mls_approval"
REJECTION: Final = "mls_rejection"
COMMIT: Final = "mls_commit"
GROUP_INFO: Final = "mls_group_info"
TYPES: Final = frozenset((APP, PROPOSAL, APPROVAL, REJECTION, COMMIT, GROUP_INFO))
# These say which proposal they are about.
ABOUT_PROPOSALS: Final = frozenset((PROPOSAL, APPROVAL, REJECTION, COMMIT))

PENDING: Final = "pending"
COMMITTED: Final = "committed"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"

BLOBS: Final = ("metadata", "quorum")


class Guest:
    """A socket in a room. `link` belongs to the shell."""

    __slots__ = ("link", "pseudonym", "room")

    def __init__(self, link: object, room: Room, pseudonym: str) -> None:
        self.link = link
        self.room = room
        self.pseudonym = pseudonym


class SendToRoom(msgspec.Struct):
    """Put a message into a room: limited, broadcast, kept in its inbox."""

    caller: object
    room: str  # `tenant:room`, or the room alone.
    inbox: str | None
    message_id: str
    ciphertext: bytes  # Base64url text without padding.
    mono_ms: int
    type: str = APP
    pseudonym: str = ""
    proposal: str = ""
    guest: Guest | None = None  # The socket it came in by.
    at_ms: int = 0  # When it came, by the wall clock; the core knows.


class Deposit(msgspec.Struct):
    """Put a message into an inbox, past its room."""

    caller: object
    inbox: str
    message_id: str
    ciphertext: bytes
    mono_ms: int


class Read(msgspec.Struct):
    """A page of an inbox."""

    caller: object
    inbox: str
    from_seq: int
    limit: int
    mono_ms: int


class PutBlob(msgspec.Struct, frozen=True):
    """Write a blob of a room. With `if_version` only over that one; 0: only if there is none."""

    caller: object
    room: str
    inbox: str | None
    name: str
    data: bytes
    if_version: int | None = None


class Accepted(msgspec.Struct, frozen=True):
    """The message is on disk, or was before."""

    message_id: str
    seq: int
    is_repeat: bool
    created_ms: int | None


class Page(msgspec.Struct, frozen=True):
    """Messages in ascending order, each as the JSON object a client reads."""

    messages: list[bytes]
    next_seq: int
    oldest: int | None  # The oldest position that can be read, if there is any.
    is_partial: bool = False


class RoomWelcome(msgspec.Struct, frozen=True):
    """What a socket is told first."""

    last_seq: int
    oldest_seq: int


class Blob(msgspec.Struct, frozen=True):
    """A blob as it is now; without its data when it was just written."""

    version: int
    data: bytes | None = None


class Proposals(msgspec.Struct, frozen=True):
    """The proposals of a room."""

    proposals: list[ProposalBody]


class Archived(msgspec.Struct, frozen=True):
    """A message as the archive holds it."""

    seq: int
    message_id: str
    ciphertext: bytes
    created_ms: int | None
    expires_ms: int


Result = Accepted | Page | RoomWelcome | Blob | Proposals | RoomError


# How exactly times are kept and told, by the setting `rooms.timestamps`.
GRID_MS: Final = {"exact": 1, "coarse": 5_000, "none": 3_600_000}


class Times:
    """Times as they may be kept and told."""

    __slots__ = ("_is_told", "grid_ms", "is_exact")

    def __init__(self, timestamps: str) -> None:
        self.grid_ms = GRID_MS[timestamps]
        self.is_exact = timestamps == "exact"
        self._is_told = timestamps != "none"

    def floored(self, now: int) -> int:
        """The time as it may be remembered."""
        return now - now % self.grid_ms

    def shown(self, at_ms: int) -> int | None:
        """The time as it may be told."""
        return self.floored(at_ms) if self._is_told else None


def members(seq: int, message_id: str, ciphertext: bytes) -> bytes:
    """What pages and frames say alike."""
    return b'"seq":%d,"messageId":"%b","ciphertext":"%b"' % (seq, message_id.encode(), ciphertext)


def page_item(alike: bytes, created_ms: int | None, *, is_exact: bool) -> bytes:
    """A message in a page."""
    if created_ms is None:
        return b"{%b}" % alike
    return b'{%b,"createdAt":"%b"}' % (alike, rfc3339(created_ms, is_exact))


def live_frame(alike: bytes, request: SendToRoom) -> bytes:
    """A message as the sockets of its room get it."""
    if request.pseudonym:
        return b'{"action":"message",%b,"type":"%b","pseudonymId":"%b"}' % (
            alike,
            request.type.encode(),
            request.pseudonym.encode(),
        )
    return b'{"action":"message",%b,"type":"%b"}' % (alike, request.type.encode())


@lru_cache(64)
def rfc3339(time_ms: int, is_exact: bool) -> bytes:
    """A time in UTC, to the millisecond or the second. Most messages share their time."""
    at = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return (f"{at}.{time_ms % 1000:03d}Z" if is_exact else f"{at}Z").encode()
