"""Errors of the log.

`LogFull` is temporary, `LogFailed` lasts until the next start, `LogDamaged` until somebody has
repaired the files. None of them means that something acknowledged was lost.
"""

from __future__ import annotations

import errno
from typing import Final

from signalhub.wire.errors import SignalHubError

DAMAGED_ADVICE: Final = "restore it from a backup; a hub that meets the damage becomes read-only"
CUT_ADVICE: Final = (
    "restore it from a backup, or start the hub, which continues without it, in a new epoch"
)


class LogFull(SignalHubError):
    """No space, or no file descriptor, for a batch.

    Nothing was appended, and the same call may succeed later.
    """

    code = "storage_full"

    def __init__(
        self, reason: str = "the disk of the log is full; free some space or lower log.retention_s"
    ) -> None:
        super().__init__(reason)


class LogFailed(SignalHubError):
    """Writing or syncing failed: what is on disk is unknown until a restart has checked."""

    code = "storage_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the disk of the log failed: {reason}; check it, then restart the hub, which keeps"
            " everything that was acknowledged"
        )
        self.reason = reason


class LogDamaged(SignalHubError):
    """A segment does not contain what was written to it; nothing in it is changed or skipped."""

    code = "storage_damaged"

    def __init__(self, segment: str, position: int, reason: str) -> None:
        super().__init__(
            f"segment {segment} is damaged at byte {position}: {reason}; the log can only be read"
            " until the segment is restored from a backup"
        )
        self.segment = segment
        self.position = position
        self.reason = reason


class EntriesGone(SignalHubError):
    """Entries before `first` were removed by retention."""

    code = "storage_gone"

    def __init__(self, first: int) -> None:
        super().__init__(f"entries before offset {first} were deleted; read from there on")
        self.first = first


def storage_error(error: OSError) -> LogFull | LogFailed:
    """The error of the log for an error of the file system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LogFull()
    if error.errno in (errno.EMFILE, errno.ENFILE):
        # Descriptors come back when sockets are closed.
        return LogFull("the log got no file descriptor; raise the limit of open files")
    return LogFailed(error.strerror or str(error))
