"""A replay's own file: what it selects, where it goes, and the position it ends at.

The bound is fixed when a replay begins, so that going on later selects the same messages; how far
it has come the hub knows. Without Spark, like everything that only has to look.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from signalhub.pipeline.run.status import folder_of, keep
from signalhub.wire.errors import SignalHubError

FOLDER: Final = "replays"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGITS: Final = 12


class ReplayConflict(SignalHubError):
    """A replay of this name does something else."""

    code = "replay_conflict"


class Bound(msgspec.Struct, frozen=True, order=True):
    """The last entry of a log that is meant, as (epoch, offset) orders them."""

    epoch: int
    offset: int


class Selection(msgspec.Struct, frozen=True):
    """Which messages are meant, and where they go."""

    where: str
    to: str
    include_replays: bool = False

    @property
    def name(self) -> str:
        """The same selection has the same name."""
        text = msgspec.json.encode([self.where, self.to, self.include_replays])
        return f"replay-{hashlib.sha256(text).hexdigest()[:_DIGITS]}"


class ReplayJob(msgspec.Struct, kw_only=True):
    """A replay that has begun."""

    job: str
    """What the hub knows it by."""
    selection: Selection
    until: Bound
    begun_ms: int
    selected: int = 0
    ended_ms: int | None = None


def job_of(name: str | None, selection: Selection, until: Bound, now_ms: int) -> ReplayJob:
    """A new replay; without a name of its own the bound is part of its id."""
    job = name or f"{selection.name}-{until.epoch}.{until.offset}"
    return ReplayJob(job=job, selection=selection, until=until, begun_ms=now_ms)


def read_job(data: str | Path, name: str | None, selection: Selection) -> ReplayJob | None:
    """The replay that has begun under this name; raises `ReplayConflict` if it is another."""
    path = _path(data, name or selection.name)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ReplayJob)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ReplayConflict(
            f"{path} cannot be read: {error}; restore it, or begin anew with another --job"
        ) from error
    if found.selection != selection:
        raise ReplayConflict(
            f"the replay {found.job} selects {found.selection.where!r} and goes to"
            f" {found.selection.to}; repeat exactly that to go on, or choose another --job"
        )
    return found


def write_job(data: str | Path, name: str | None, job: ReplayJob) -> None:
    """Replace the file at once or not at all, and for good: the bound must not be lost."""
    keep(_path(data, name or job.selection.name), job)


def _path(data: str | Path, name: str) -> Path:
    return folder_of(data) / FOLDER / f"{name}.json"
