"""The file of a replay job: what it selects, its target, and its bound.

The bound is fixed when the job starts, so that a continued job selects the same messages; the hub
knows its progress. This module does not need Spark.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from signalhub.pipeline.run.status import folder_of, replace_json
from signalhub.wire.errors import SignalHubError

FOLDER: Final = "replays"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGITS: Final = 12


class ReplayConflict(SignalHubError):
    """The name belongs to another replay."""

    code = "replay_conflict"


class Bound(msgspec.Struct, frozen=True, order=True):
    """The last entry of the log that is considered, ordered by (epoch, offset)."""

    epoch: int
    offset: int


class Selection(msgspec.Struct, frozen=True):
    """Which messages are selected, and their target."""

    where: str
    to: str
    include_replays: bool = False

    @property
    def name(self) -> str:
        """Return a name that is the same for the same selection."""
        text = msgspec.json.encode([self.where, self.to, self.include_replays])
        return f"replay-{hashlib.sha256(text).hexdigest()[:_DIGITS]}"


class ReplayJob(msgspec.Struct, kw_only=True):
    """A replay job that has started."""

    job: str
    """The hub's name for it."""
    selection: Selection
    until: Bound
    begun_ms: int
    selected: int = 0
    ended_ms: int | None = None


def job_of(name: str | None, selection: Selection, until: Bound, now_ms: int) -> ReplayJob:
    """Create a job; if it is unnamed, the bound is part of its id."""
    job = name or f"{selection.name}-{until.epoch}.{until.offset}"
    return ReplayJob(job=job, selection=selection, until=until, begun_ms=now_ms)


def read_job(data: str | Path, name: str | None, selection: Selection) -> ReplayJob | None:
    """Return the job that was started under this name; raises `ReplayConflict` if it differs."""
    path = _path(data, name or selection.name)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ReplayJob)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ReplayConflict(
            f"{path} cannot be read: {error}; restore it, or start again with another --job"
        ) from error
    if found.selection != selection:
        raise ReplayConflict(
            f"the replay {found.job} sends {found.selection.where!r} to {found.selection.to};"
            " repeat exactly that to resume it, or choose another --job"
        )
    return found


def write_job(data: str | Path, name: str | None, job: ReplayJob) -> None:
    """Replace the file atomically and sync it: the bound must not be lost."""
    replace_json(_path(data, name or job.selection.name), job)


def _path(data: str | Path, name: str) -> Path:
    return folder_of(data) / FOLDER / f"{name}.json"
