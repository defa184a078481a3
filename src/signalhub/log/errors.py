"""What the log refuses to do, and what to do about it.

`LogFull` is an answer for now, `LogFailed` until the next start, `LogDamaged` until somebody has
looked at the files. None of them ever means that something acknowledged was given up.
"""

from __future__ import annotations

import errno

from signalhub.wire.errors import SignalHubError


class LogFull(SignalHubError):
    """No room for a batch: nothing of it counts, and the same call may succeed later."""

    code = "storage_full"

    def __init__(self) -> None:
        super().__init__("the disk of the log is full; free some space or lower log.retention_s")


class LogFailed(SignalHubError):
    """Writing or syncing failed: nobody knows what is on the disk until a restart has looked."""

    code = "storage_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the disk of the log failed: {reason}; check it, then restart the hub, which keeps"
            " everything that was acknowledged"
        )
        self.reason = reason


class LogDamaged(SignalHubError):
    """A segment does not hold what was once written to it; nothing in it is changed or skipped."""

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
        super().__init__(f"entries below offset {first} are gone; read from there on")
        self.first = first


def storage_error(error: OSError) -> LogFull | LogFailed:
    """What an error of the file system means for the log."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LogFull()
    return LogFailed(error.strerror or str(error))
