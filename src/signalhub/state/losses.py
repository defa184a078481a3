"""The file that lists losses of log entries until an operator has acknowledged them.

The hub adds a loss before it repairs the log, so that an interrupted start does not forget it. A
command acknowledges losses, with or without a hub; the hub writes that to its log, and removes them
from the file. The file is replaced as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from signalhub.locks import alone
from signalhub.privacy import opener
from signalhub.wire.errors import SettingsError

NAME: Final = "losses.json"


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the log that had been visible and are lost, both ends included."""

    epoch: int
    """The epoch they belonged to."""
    first: int
    last: int
    found_ms: int
    acknowledged_ms: int = 0
    by: str = ""
    """The user of the system who acknowledged it."""
    is_whole: bool = False
    """The log was gone; `last` is the last entry that is known to have been in it."""

    @property
    def extent(self) -> str:
        """What a whole log had, as far as is known."""
        return f"entries up to {self.last} of epoch {self.epoch}"

    def __str__(self) -> str:
        if self.is_whole:
            return f"the whole log, which had {self.extent}"
        if self.first == self.last:
            return f"entry {self.first} of epoch {self.epoch}"
        return f"entries {self.first} to {self.last} of epoch {self.epoch}"

    def is_same(self, other: Loss) -> bool:
        """Is it about the same entries?"""
        return (self.epoch, self.first, self.last) == (other.epoch, other.first, other.last)


def read(folder: Path) -> list[Loss]:
    """All losses that the hub has not recorded as acknowledged; raises `SettingsError`."""
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Loss])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingsError(f"{path} cannot be read: {error}; correct or delete it") from error


def changed_ns(folder: Path) -> int:
    """When the file was last changed; 0 if there is none."""
    try:
        return (folder / NAME).stat().st_mtime_ns
    except OSError:
        return 0


def add(folder: Path, loss: Loss) -> None:
    """Add a loss, unless an interrupted start has added it; raises `OSError`, `SettingsError`."""
    _change(folder, lambda known: [*known, *([] if _has(known, loss) else [loss])])


def acknowledge(folder: Path, now_ms: int, by: str) -> list[Loss]:
    """Acknowledge all losses; returns those that were not acknowledged before.

    Raises `OSError`, `SettingsError`.
    """
    new: list[Loss] = []

    def change(known: list[Loss]) -> list[Loss]:
        new.extend(one for one in known if not one.acknowledged_ms)
        replace = msgspec.structs.replace
        return [
            one if one.acknowledged_ms else replace(one, acknowledged_ms=now_ms, by=by)
            for one in known
        ]

    if read(folder):
        _change(folder, change)
    return new


def remove(folder: Path, recorded: Sequence[Loss]) -> None:
    """Remove losses whose acknowledgement is in the log; raises `OSError`, `SettingsError`."""
    _change(folder, lambda known: [one for one in known if not _has(recorded, one)])


def _has(known: Sequence[Loss], loss: Loss) -> bool:
    return any(one.is_same(loss) for one in known)


def _change(folder: Path, change: Callable[[list[Loss]], list[Loss]]) -> None:
    with alone(folder):
        losses = change(read(folder))
        draft = folder / f".{NAME}.tmp"
        draft.unlink(missing_ok=True)
        with open(draft, "xb", opener=opener) as file:
            if os.geteuid() == 0:
                # A hub that runs as somebody else must be able to read it.
                owner = folder.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(msgspec.json.format(msgspec.json.encode(losses)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / NAME)
