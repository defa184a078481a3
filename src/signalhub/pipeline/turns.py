"""Upkeep and erasure take turns: both write rows of the same tables anew.

A file that is compacted while its rows are being erased could bring them back. Landing and the
derived tables need no turn: what they add was not there before.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from signalhub.errors import SignalHubError
from signalhub.pipeline.status import folder_of

_NAME: Final = "rewrite.lock"
_POLL_S: Final = 0.25


class TablesBusy(SignalHubError):
    """Somebody else is writing the tables anew."""

    code = "tables_busy"

    def __init__(self) -> None:
        super().__init__(
            "upkeep or another erasure is at work on the tables; repeat the command when it is done"
        )


@contextmanager
def turn(data: str | Path, wait_s: float = 0.0) -> Iterator[None]:
    """Have the tables for oneself while the block runs; raises `TablesBusy`."""
    folder = folder_of(data)
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        until = time.monotonic() + wait_s
        while not _is_taken(fd):
            if time.monotonic() >= until:
                raise TablesBusy
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _is_taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
