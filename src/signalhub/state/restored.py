"""The file that says with which epoch of its log a data folder was restored from a backup.

A restored log begins a new epoch although it has lost nothing; without the file that looks like a
loss. Of later epochs the file says nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from signalhub.privacy import opener

NAME: Final = "restored.json"


class _Mark(msgspec.Struct, frozen=True):
    epoch: int


def note(folder: Path, epoch: int) -> None:
    """The log in this folder was restored, and continues with this epoch."""
    with open(folder / NAME, "wb", opener=opener) as file:
        file.write(msgspec.json.encode(_Mark(epoch)) + b"\n")


def began(folder: Path, epoch: int) -> bool:
    """Did a restore begin this epoch? `False` if that is unknown."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=_Mark).epoch == epoch
    except (OSError, msgspec.MsgspecError):
        return False
