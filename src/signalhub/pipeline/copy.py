"""A copy of the tables of a lake in a local folder, also while a pipeline adds to them.

A table is copied as of one version: its commits up to that version, and every data file that was
there after it, because files only ever disappear by upkeep, which the table lock holds off. Derived
tables come before `entries`, so that none is ahead of it in the copy.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

import msgspec

from signalhub.pipeline.run.lock import table_lock
from signalhub.pipeline.tables.tables import ENTRIES
from signalhub.privacy import make_folder, opener

_LOG: Final = "_delta_log"
_LAST_CHECKPOINT: Final = "_last_checkpoint"
_PARTS: Final = "_sidecars"
"""Parts of checkpoints, in a folder of their own."""
_UPKEEP_S: Final = 600.0
"""A round of upkeep takes minutes on a large lake."""
_ATTEMPTS_MAX: Final = 10
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_NUMBERED: Final = re.compile(r"\.?(\d{20})\..+")


class _Checkpoint(msgspec.Struct):
    version: int


def copy_tables(data: Path, lake: Path, target: Path) -> dict[str, int]:
    """Copy every table of a lake; returns their versions. Raises `TablesBusy`."""
    names = sorted(one.parent.name for one in lake.glob(f"*/{_LOG}") if one.is_dir())
    versions: dict[str, int] = {}
    with table_lock(data, _UPKEEP_S):
        for name in sorted(names, key=lambda name: name == ENTRIES.name):
            version = _copied(lake / name, target / name)
            if version is not None:
                versions[name] = version
    return versions


def _copied(table: Path, target: Path) -> int | None:
    """Copy a table and return its version; `None` if it has none yet."""
    for attempts_left in reversed(range(_ATTEMPTS_MAX)):
        version = _newest(table / _LOG)
        try:
            if version is not None:
                _copy_table(table, target, version)
        except FileNotFoundError:
            # Writers delete drafts, and commits that a checkpoint has made superfluous.
            if not attempts_left:
                raise
            shutil.rmtree(target)
        else:
            return version
    return None


def _newest(log: Path) -> int | None:
    commits = [int(found[1]) for name in os.listdir(log) if (found := _COMMIT.fullmatch(name))]
    return max(commits, default=None)


def _copy_table(table: Path, target: Path, version: int) -> None:
    for folder, folders, names in os.walk(table):
        inner = Path(folder).relative_to(table)
        if inner.parts == (_LOG,):
            folders[:] = [_PARTS] if _PARTS in folders else []
        make_folder(target / inner)
        for name in names:
            if inner.parts != (_LOG,) or _is_within(Path(folder), name, version):
                _copy(Path(folder) / name, target / inner / name)


def _is_within(log: Path, name: str, version: int) -> bool:
    """Whether a file of the log belongs to a version or an earlier one."""
    if found := _NUMBERED.fullmatch(name):
        return int(found[1]) <= version
    if name != _LAST_CHECKPOINT:
        # Drafts, and checksums of a file that is replaced.
        return False
    try:
        pointed = msgspec.json.decode((log / name).read_bytes(), type=_Checkpoint)
    except (OSError, msgspec.MsgspecError):
        return False
    return pointed.version <= version


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as old, open(target, "wb", opener=opener) as new:
        shutil.copyfileobj(old, new, 2**20)
        new.flush()
        os.fsync(new.fileno())
