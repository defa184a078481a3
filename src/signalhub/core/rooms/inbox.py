"""One inbox: a gap-free sequence of messages, the newest of them in memory.

A position is assigned when a message is handed to the log and counts once it is committed; what the
log refuses is taken back, so there is never a hole.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from signalhub.core.rooms.accepting import Delivery, Waiting
    from signalhub.core.rooms.room import Room

# The log knows a stream by its name and an epoch; inboxes are never made again.
STREAM_EPOCH = 1


class Kept(msgspec.Struct, gc=False):
    """A committed message, ready to be read: `json` is what a page holds of it."""

    seq: int
    message_id: str
    expires_ms: int
    json: bytes


class Batch(msgspec.Struct, array_like=True, gc=False):
    """Messages that are not archived yet, counted together."""

    last_offset: int
    count: int
    bytes: int


# So many messages share one count; the cap need not be exact.
_BATCH_COUNT = 100


class Inbox:
    """What is known about one inbox."""

    __slots__ = (
        "defined_at",
        "erased_to",
        "head",
        "name",
        "next_seq",
        "oldest",
        "oldest_expires_ms",
        "pending",
        "queue",
        "recent",
        "recent_first",
        "retention_max_s",
        "retention_s",
        "room",
        "saved_accepts",
        "since_ms",
        "unarchived",
        "unarchived_bytes",
        "unarchived_count",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.room: Room | None = None
        self.head = 0
        self.next_seq = 1
        # Nothing before it can be read, and it can, until `oldest_expires_ms`.
        self.oldest = 1
        self.oldest_expires_ms = 0
        # Nothing up to here is ever read again, whatever the clock says.
        self.erased_to = 0
        # When its first message came.
        self.since_ms = 0
        # How long messages are kept, if its room says so, and the longest that was ever said.
        self.retention_s: float | None = None
        self.retention_max_s = 0.0
        # When its room accepted messages shortly before a restart, as far as only the log knows.
        self.saved_accepts: list[int] = []
        # The newest messages: `recent_first` to `head`, all of them.
        self.recent: dict[int, Kept] = {}
        self.recent_first = 1
        # On their way to the log, by message id.
        self.pending: dict[str, Delivery] = {}
        # Who waits until an id was looked up on disk; `None` when nobody does.
        self.queue: deque[Waiting] | None = None
        self.unarchived: deque[Batch] = deque()
        self.unarchived_count = 0
        self.unarchived_bytes = 0
        # An offset of the log from which on its counter can be made again.
        self.defined_at = 0

    @property
    def is_blank(self) -> bool:
        """Would forgetting it lose nothing?"""
        return self.next_seq == 1 and self.room is None and self.queue is None

    def assign(self) -> int:
        """The position of the next message."""
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def take_back(self, seq: int) -> None:
        """The log refused what has this position, and everything behind it."""
        self.next_seq = seq

    def committed(self, seq: int, offset: int, expires_ms: int) -> None:
        """Everything up to here is on disk."""
        assert seq == self.head + 1, f"expected {self.head + 1}, got {seq}"
        self.head = seq
        self.defined_at = offset
        if seq == self.oldest:
            self.oldest_expires_ms = expires_ms

    def advance_oldest(self, seq: int, expires_ms: int) -> None:
        """Nothing before `seq` can be read any more; 0 if it is not known how long that one can."""
        if seq > self.oldest or (seq == self.oldest and expires_ms):
            self.oldest = seq
            self.oldest_expires_ms = expires_ms

    def erase_to(self, seq: int) -> None:
        """Nothing up to here is read again."""
        self.erased_to = max(self.erased_to, seq)
        self.advance_oldest(self.erased_to + 1, 0)

    def has_stale_oldest(self, now: int) -> bool:
        """Has its oldest message expired, or is its time unknown?"""
        return self.oldest <= self.head and self.oldest_expires_ms <= now

    # What the archive does not have yet.

    def count_unarchived(self, offset: int, size: int) -> None:
        """One more message waits for the archive."""
        self.unarchived_count += 1
        self.unarchived_bytes += size
        newest = self.unarchived[-1] if self.unarchived else None
        if newest is None or newest.count >= _BATCH_COUNT:
            self.unarchived.append(Batch(offset, 1, size))
            return
        newest.last_offset = offset
        newest.count += 1
        newest.bytes += size

    def archived(self, offset: int) -> None:
        """Everything before `offset` is in the archive."""
        while self.unarchived and self.unarchived[0].last_offset < offset:
            batch = self.unarchived.popleft()
            self.unarchived_count -= batch.count
            self.unarchived_bytes -= batch.bytes
