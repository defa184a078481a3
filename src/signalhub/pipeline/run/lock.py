"""Locks of a lake: one pipeline at a time, and one rewrite of its tables at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from signalhub.locks import FileLock, Locked, is_locked
from signalhub.pipeline.run.status import folder_of
from signalhub.privacy import make_folder
from signalhub.wire.errors import SignalHubError

_PIPELINE_LOCK: Final = "pipeline.lock"
_REWRITE_LOCK: Final = "rewrite.lock"


class PipelineRunning(SignalHubError):
    """Another pipeline uses this data folder."""

    code = "pipeline_running"

    def __init__(self, data: str | Path, pid: str) -> None:
        super().__init__(
            f"another pipeline (process {pid or 'unknown'}) is running on {data}; stop it first,"
            " or see `signalhub pipeline status`"
        )


class TablesBusy(SignalHubError):
    """Another process is rewriting the tables."""

    code = "tables_busy"

    def __init__(self) -> None:
        super().__init__(
            "upkeep or another erasure is rewriting the tables; repeat the command when it is done"
        )


def lock_pipeline(data: str | Path) -> FileLock:
    """Lock the pipeline of a data folder; raises `PipelineRunning`."""
    try:
        return FileLock(_made(data) / _PIPELINE_LOCK)
    except Locked as error:
        raise PipelineRunning(data, error.pid) from None


def is_pipeline_running(data: str | Path) -> bool:
    return is_locked(folder_of(data) / _PIPELINE_LOCK)


def running_pid(data: str | Path) -> int | None:
    """Return the process that holds the pipeline lock: 0 if its id is unknown, `None` if none."""
    path = folder_of(data) / _PIPELINE_LOCK
    if not is_locked(path):
        return None
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


@contextmanager
def alone(data: str | Path) -> Iterator[bool]:
    """Keep pipelines out while the block runs; yields `False` if one is already running."""
    try:
        lock = lock_pipeline(data)
    except PipelineRunning:
        yield False
        return
    try:
        yield True
    finally:
        lock.close()


@contextmanager
def table_lock(data: str | Path, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the table lock while the block runs; raises `TablesBusy`.

    A file that is compacted while its rows are erased could bring them back. Landing and the
    derived tables do not need the lock: they only add new rows.
    """
    try:
        lock = FileLock(_made(data) / _REWRITE_LOCK, wait_s)
    except Locked:
        raise TablesBusy from None
    try:
        yield
    finally:
        lock.close()


def _made(data: str | Path) -> Path:
    folder = folder_of(data)
    make_folder(folder)
    return folder
