"""One pipeline at a time on a data folder: the kernel holds the lock while the process lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from signalhub.errors import SignalHubError
from signalhub.pipeline.status import folder_of
from signalhub.state.folder import LOCK_NAME, take

_NAME: Final = "pipeline.lock"


class PipelineRunning(SignalHubError):
    """Another pipeline has this data folder."""

    code = "pipeline_running"

    def __init__(self, data: str | Path, pid: str) -> None:
        super().__init__(
            f"another pipeline (process {pid or 'unknown'}) is at work on {data}; stop it first,"
            " or look at it with `signalhub pipeline status`"
        )


class PipelineLock:
    """Held from its making to `close`, or to the end of the process."""

    def __init__(self, data: str | Path) -> None:
        """Raises `PipelineRunning`."""
        folder = folder_of(data)
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            take(self._fd)
        except BlockingIOError:
            pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise PipelineRunning(data, pid) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let the next one in."""
        os.close(self._fd)


def is_pipeline_running(data: str | Path) -> bool:
    return _is_locked(folder_of(data) / _NAME)


def is_hub_running(data: str | Path) -> bool:
    return _is_locked(Path(data) / LOCK_NAME)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
