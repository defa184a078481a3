"""Small files of the pipeline: each is replaced as a whole, or stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


def keep(path: Path, value: object, *, is_for_good: bool = True) -> None:
    """Write a value as JSON in place of what is there; for good also means: on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(value)))
        if is_for_good:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if is_for_good:
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
