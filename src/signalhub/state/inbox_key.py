"""The file with the key that hashes the names of rooms and inboxes.

It is created once, readable only by its owner, and never changed: with another key nobody would
find their messages. Anyone who has it and the data can test ids, so keep copies in a safe place.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from signalhub.wire.errors import SettingsError

NAME: Final = "inbox.key"
_KEY_BYTES: Final = 32


def read(folder: Path) -> bytes | None:
    """The key, if it exists; raises `SettingsError` if the file is invalid."""
    path = folder / NAME
    try:
        text = path.read_text("ascii").strip()
        key = bytes.fromhex(text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the key of the rooms, {path}, cannot be read ({error}): restore it from a copy"
        ) from error
    if len(key) != _KEY_BYTES:
        raise SettingsError(
            f"the key of the rooms, {path}, must have {_KEY_BYTES} bytes in hexadecimal digits: "
            "restore it from a copy"
        )
    return key


def exists(folder: Path) -> bool:
    """Whether there is a key, valid or not."""
    return (folder / NAME).exists()


def make(folder: Path) -> bytes:
    """Create a new key and sync it to disk."""
    key = secrets.token_bytes(_KEY_BYTES)
    temporary = folder / f"{NAME}.tmp"
    try:
        temporary.unlink(missing_ok=True)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, key.hex().encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        temporary.rename(folder / NAME)
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise SettingsError(
            f"the key of the rooms cannot be written to {folder}: {error.strerror}"
        ) from error
    return key
