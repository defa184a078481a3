"""Adding to the denial list of a hub, which reads it again within a second."""

from __future__ import annotations

import os
from pathlib import Path

from signalhub.auth import denials
from signalhub.auth.denials import Denial
from signalhub.locks import alone
from signalhub.privacy import make_folder, opener
from signalhub.wire.errors import SettingsError


def listed(path: Path) -> list[Denial]:
    """The entries of the list, ended ones included; a list that does not exist is empty."""
    return _read(path)[1]


def add(path: Path, entry: Denial, now_s: float) -> None:
    """Add an entry, and drop those that have ended; comments stay.

    The file is replaced as a whole, so that a hub never reads half of it. It stays with its owner,
    or gets that of its folder, so that root can use this for a hub that runs as somebody else.
    """
    make_folder(path.parent)
    with alone(path.parent):
        lines, _ = _read(path)
        kept = [line for line in lines if not _has_ended(line, now_s)]
        content = b"".join(line.rstrip(b"\n") + b"\n" for line in kept) + denials.write([entry])
        denials.read(content)
        owner = path.stat() if path.exists() else path.parent.stat()
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        draft.unlink(missing_ok=True)
        with open(draft, "xb", opener=opener) as file:
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)


def _read(path: Path) -> tuple[list[bytes], list[Denial]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], []
    try:
        return content.splitlines(keepends=True), denials.read(content)
    except SettingsError as error:
        raise SettingsError(f"the denial list {path}: {error}") from None


def _has_ended(line: bytes, now_s: float) -> bool:
    return any(one.has_ended(now_s) for one in denials.read(line))
