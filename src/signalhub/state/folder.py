"""The data folder: one hub at a time.

Two hubs on one folder would overwrite what the other knows, so the first one holds a lock. The
kernel releases it with the process, however that ends; the file itself means nothing and stays.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from signalhub.errors import SettingsError

LOCK_NAME = "hub.lock"
_PROBE_S = 0.05


def take(fd: int) -> None:
    """Hold the lock of an open file; raises `BlockingIOError` if somebody else does.

    Whoever only looks whether it is held does so for a moment, hence the second attempt.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_PROBE_S)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Folder:
    """A locked data folder, made if it is missing."""

    def __init__(self, path: str, *, lock_name: str = LOCK_NAME, owner: str = "hub") -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / lock_name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SettingsError(
                f"the data folder {path} cannot be used: {error.strerror}; choose another with"
                " --data"
            ) from error
        try:
            take(self._lock)
        except BlockingIOError:
            os.close(self._lock)
            raise SettingsError(
                f"the data folder {path} is in use by another {owner}; stop it, or choose another"
                " folder with --data"
            ) from None

    def close(self) -> None:
        """Let the next hub in."""
        os.close(self._lock)
