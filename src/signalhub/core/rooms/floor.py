"""Where positions and versions continue after the log has lost entries that may have been read.

The next message must not get a position that a member has read as another message: members ask for
what is above the last position they know, and nothing else tells them that it is new. So all
inboxes continue above one floor, which no position can have reached before: also inboxes that are
unknown since the loss. Versions of blobs continue above the same floor, because clients overwrite
the version that they have read, and it must not stand for other content meanwhile.

If only the end of the log is lost, it is known how many entries that were. If an older copy was
restored, or the log was deleted, it is not; then the time decides. Epochs of the log are times in
seconds, and a room does not get more than a thousand messages a second for years, or blobs.
"""

from __future__ import annotations

from typing import Final

import msgspec

# 2025-01-01. From here to 2059 positions fit into the forty bits that ids are remembered with.
_BEGIN_S: Final = 1_735_689_600
_PER_SECOND: Final = 1_024
# At least, in case the clock is wrong.
_SKIPPED_MIN: Final = 2**20


class EntriesLost(msgspec.Struct, frozen=True):
    """Entries of the log were lost: at most `count`; 0 if that is unknown."""

    count: int = 0


def floor_after(loss: EntriesLost, epoch: int, highest: int) -> int:
    """Return the floor after a loss; `highest` is the highest known position or version."""
    by_time = (epoch - _BEGIN_S) * _PER_SECOND
    return max(by_time, highest + loss.count + _SKIPPED_MIN)
