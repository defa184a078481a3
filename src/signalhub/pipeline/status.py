"""What the pipeline says about itself, in a file beside its checkpoint, for whoever asks."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from signalhub.pipeline.keeping import keep

FOLDER: Final = "pipeline"
_NAME: Final = "status.json"

State = Literal["starting", "running", "retrying", "stopped", "failed"]


class LastBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch that was landed last."""

    at_ms: int
    rows: int
    bytes: int
    ms: int


class Totals(msgspec.Struct, kw_only=True):
    """Since the pipeline started."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    quarantined: int = 0


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of upkeep came to; the next one begins where it ended."""

    at_ms: int
    ms: int
    looked_ms: int = 0
    """Up to when everything that is due was found."""
    thorough_ms: int = 0
    """When the last thorough round was."""
    removed: dict[str, int] = {}
    """Rows each table lost, or in `entries` kept without their content."""
    files: int = 0
    """Data files of all tables together."""
    compacted: dict[str, int] = {}
    """How many files fewer a table has."""
    purged: dict[str, int] = {}
    """Files written anew because rows in them were deleted."""
    vacuumed: list[str] = []
    forgotten: int = 0
    """Files that were deleted from the tables' logs, with what they said of old commits."""
    erasures: int = 0
    """How many erasures were completed: nothing is left of what they were about."""
    failed: dict[str, str] = {}
    """Tables whose turn comes again with the next round, and why."""


class Status(msgspec.Struct, kw_only=True):
    """Written after every batch and every change of state."""

    pid: int
    state: State = "starting"
    started_ms: int = 0
    updated_ms: int = 0
    epoch: int = 0
    position: int = 0
    """The next offset to land."""
    head: int = 0
    """The durable head of the log when that was written."""
    last_batch: LastBatch | None = None
    failures: int = 0
    """Attempts that failed since the last one that did not."""
    reason: str = ""
    inbox_failures: int = 0
    tables: dict[str, int] = msgspec.field(default_factory=dict)
    """The next offset each derived table will take in."""
    totals: Totals = msgspec.field(default_factory=Totals)
    upkeep: Upkeep | None = None
    """The last round of upkeep of the tables."""


def folder_of(data: str | Path) -> Path:
    """Where the pipeline of a data folder keeps what is its own."""
    return Path(data) / FOLDER


def write_status(data: str | Path, status: Status) -> None:
    """Replace what was said before, at once or not at all."""
    keep(folder_of(data) / _NAME, status, is_for_good=False)


def read_status(data: str | Path) -> Status | None:
    """What was said last; None if there is nothing, or nothing readable."""
    try:
        return msgspec.json.decode((folder_of(data) / _NAME).read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        return None
