"""Requests to rooms and inboxes, and their results, as values.

Names of rooms and inboxes are validated and canonical, but not hashed yet; the core hashes them
first. `caller` belongs to the shell, which receives an `Answer` for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub import native
from signalhub.core.rooms.access import ANYBODY, Requester
from signalhub.wire.entry import ProposalBody, Range
from signalhub.wire.errors import RoomCode, RoomError

if native.IS_ON or TYPE_CHECKING:
    import signalhub_native

if TYPE_CHECKING:
    from signalhub.core.rooms.room import Room

APP: Final = "mls_app"
PROPOSAL: Final = "mls_proposal"
APPROVAL: Final = "mls_approval"
REJECTION: Final = "mls_rejection"
COMMIT: Final = "mls_commit"
GROUP_INFO: Final = "mls_group_info"
TYPES: Final = frozenset((APP, PROPOSAL, APPROVAL, REJECTION, COMMIT, GROUP_INFO))
# Messages of these types name a proposal.
ABOUT_PROPOSALS: Final = frozenset((PROPOSAL, APPROVAL, REJECTION, COMMIT))

PENDING: Final = "pending"
COMMITTED: Final = "committed"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"

BLOBS: Final = ("metadata", "quorum")


class Guest:
    """A socket in a room, and who opened it. `link` belongs to the shell."""

    __slots__ = ("link", "pseudonym", "requester", "room")

    def __init__(
        self, link: object, room: Room, pseudonym: str, requester: Requester = ANYBODY
    ) -> None:
        self.link = link
        self.room = room
        self.pseudonym = pseudonym
        self.requester = requester


class SendToRoom(msgspec.Struct):
    """Send a message to a room: rate-limited, announced, stored in its inbox."""

    caller: object
    room: str  # `tenant:room`, or only the room.
    inbox: str | None
    message_id: str
    ciphertext: bytes  # Base64url text without padding.
    mono_ms: int
    type: str = APP
    pseudonym: str = ""
    proposal: str = ""
    guest: Guest | None = None  # The socket it arrived on.
    requester: Requester = ANYBODY
    at_ms: int = 0  # Arrival by the wall clock; set by the core.


class Deposit(msgspec.Struct):
    """Add a message to an inbox without its room."""

    caller: object
    inbox: str
    message_id: str
    ciphertext: bytes
    mono_ms: int
    requester: Requester = ANYBODY


class Read(msgspec.Struct):
    """Read a page of an inbox."""

    caller: object
    inbox: str
    from_seq: int
    limit: int
    mono_ms: int
    requester: Requester = ANYBODY


class PutBlob(msgspec.Struct, frozen=True):
    """Write a blob of a room; with `if_version` only over that version (0: none exists)."""

    caller: object
    room: str
    inbox: str | None
    name: str
    data: bytes
    if_version: int | None = None
    requester: Requester = ANYBODY


class Accepted(msgspec.Struct, frozen=True):
    """The message is committed; `is_repeat` if it was before this request."""

    message_id: str
    seq: int
    is_repeat: bool
    created_ms: int | None


class Page(msgspec.Struct, frozen=True):
    """Messages in ascending order, each as a JSON object."""

    messages: list[bytes]
    next_seq: int
    oldest: int | None  # The oldest readable position, if any.
    # Why what begins at `next_seq` could not be read; everything before it was.
    reason: RoomCode | None = None
    skipped: Sequence[Range] = ()  # Positions without a message, because the log lost entries.


class RoomWelcome(msgspec.Struct, frozen=True):
    """The first frame on a socket."""

    last_seq: int
    oldest_seq: int
    # The next message is at or above it, if positions are skipped; otherwise 0.
    next_seq: int = 0


class Blob(msgspec.Struct, frozen=True):
    """A blob; without data in the answer to a write."""

    version: int
    data: bytes | None = None


class Proposals(msgspec.Struct, frozen=True):
    """The proposals of a room."""

    proposals: list[ProposalBody]


class Archived(msgspec.Struct, frozen=True):
    """A message from the archive."""

    seq: int
    message_id: str
    ciphertext: bytes
    created_ms: int | None
    expires_ms: int


Result = Accepted | Page | RoomWelcome | Blob | Proposals | RoomError


# The resolution of stored and shown times, by the setting `rooms.timestamps`.
GRID_MS: Final = {"exact": 1, "coarse": 5_000, "none": 3_600_000}


class Times:
    """Rounds times to the resolution that may be stored and shown."""

    __slots__ = ("_is_told", "grid_ms", "is_exact")

    def __init__(self, timestamps: str) -> None:
        self.grid_ms = GRID_MS[timestamps]
        self.is_exact = timestamps == "exact"
        self._is_told = timestamps != "none"

    def floored(self, now: int) -> int:
        """Return the time as it may be stored."""
        return now - now % self.grid_ms

    def shown(self, at_ms: int) -> int | None:
        """Return the time as it may be shown; `None` if not at all."""
        return at_ms - at_ms % self.grid_ms if self._is_told else None


def page_item(
    seq: int, message_id: str, ciphertext: bytes, created_ms: int | None, *, is_exact: bool
) -> bytes:
    """Return the JSON of a message in a page."""
    created = None if created_ms is None else rfc3339(created_ms, is_exact)
    return json_item(seq, message_id, ciphertext, created)


def json_item_in_python(
    seq: int, message_id: str, ciphertext: bytes, created: bytes | None
) -> bytes:
    """Return the JSON of a message and its time, if it has one."""
    parts = (seq, message_id.encode(), ciphertext)
    if created is None:
        return b'{"seq":%d,"messageId":"%b","ciphertext":"%b"}' % parts
    return b'{"seq":%d,"messageId":"%b","ciphertext":"%b","createdAt":"%b"}' % (*parts, created)


json_item = signalhub_native.page_item if native.IS_ON else json_item_in_python


def live_frame(seq: int, request: SendToRoom) -> bytes:
    """Return the frame that announces a message to the sockets of its room."""
    frame = b'{"action":"message","seq":%d,"messageId":"%b","ciphertext":"%b","type":"%b"' % (
        seq,
        request.message_id.encode(),
        request.ciphertext,
        request.type.encode(),
    )
    if request.pseudonym:
        return b'%b,"pseudonymId":"%b"}' % (frame, request.pseudonym.encode())
    return b"%b}" % frame


@lru_cache(64)
def rfc3339(time_ms: int, is_exact: bool) -> bytes:
    """Format a time in UTC, with milliseconds or seconds. Cached: most messages share a time."""
    at = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return (f"{at}.{time_ms % 1000:03d}Z" if is_exact else f"{at}Z").encode()
