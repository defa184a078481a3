"""Files and folders that only their owner may read, whatever the umask.

Everything Signal Hub stores holds messages of others, so its folders have the mode 0700 and its
files 0600. Folders of earlier versions are tightened when they are opened.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
# The umask of commands, for the files that libraries create.
UMASK: Final = 0o077

_OTHERS: Final = 0o077
# What a hub, a host and a pipeline keep in a data folder; a file among it belongs to none of them.
_FOLDERS: Final = ("log", "lake", "pipeline")
_SUFFIXES: Final = (".db", ".db-wal", ".db-shm", ".lock", ".key", ".tmp")

log = logging.getLogger("signalhub.privacy")


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents; only this one is private."""
    path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)


def claim_file(path: str | os.PathLike[str]) -> None:
    """Create a file unless it exists, before a library creates it with a wider mode."""
    if not os.path.exists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def opener(path: str, flags: int) -> int:
    """Open files for `open(…, opener=…)`; new ones are private."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def tighten(folder: Path) -> None:
    """Take away from others what an earlier version left readable in a data folder.

    The folder itself comes last: while it is open to others, the work is not complete. A folder of
    another owner, or one that all may write to such as /tmp, stays as it is.
    """
    try:
        found = folder.stat()
        if not found.st_mode & _OTHERS:
            return
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
            log.warning("the data folder can be read by others", extra={"folder": str(folder)})
            return
        for one in os.scandir(folder):
            if one.is_dir(follow_symlinks=False):
                if one.name in _FOLDERS:
                    _tighten_tree(one.path)
            elif one.name.endswith(_SUFFIXES) and one.is_file(follow_symlinks=False):
                os.chmod(one.path, FILE_MODE)
        os.chmod(folder, FOLDER_MODE)
    except OSError as error:
        facts = {"folder": str(folder), "error": str(error)}
        log.warning("the data folder could not be closed to others", extra=facts)


def is_readable_by_others(path: str | os.PathLike[str]) -> bool:
    """May other users read this file? `False` if it cannot be told."""
    try:
        return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def _tighten_tree(path: str) -> None:
    for parent, _, files in os.walk(path):
        for name in files:
            inner = os.path.join(parent, name)
            if not os.path.islink(inner):
                os.chmod(inner, FILE_MODE)
        os.chmod(parent, FOLDER_MODE)
