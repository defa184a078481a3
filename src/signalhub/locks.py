"""File locks: for using a data folder, running its pipeline, rewriting its tables.

The kernel releases a lock when the process ends for any reason. The file itself stays; its
existence has no meaning.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from signalhub.privacy import FILE_MODE, make_folder, tighten
from signalhub.wire.errors import SettingsError

HUB_LOCK: Final = "hub.lock"
UNFINISHED: Final = ".restore"
"""What a restore has not yet moved to its place in a data folder."""
_PROBE_S: Final = 0.05
_POLL_S: Final = 0.25


class Locked(Exception):
    """Another process holds the lock; `pid` is its id, if known."""

    def __init__(self, pid: str) -> None:
        super().__init__(pid)
        self.pid = pid


class FileLock:
    """Held from its creation until `close` or the end of the process."""

    def __init__(self, path: str | Path, wait_s: float = 0.0) -> None:
        """Raises `Locked` if it is not released within `wait_s`."""
        self._path = path
        while True:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                self._take(wait_s)
                if self.is_in_place():
                    os.ftruncate(self._fd, 0)
                    os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
                    return
            except BaseException:
                os.close(self._fd)
                raise
            # Its last owner has removed it, so it excludes nobody who comes later.
            os.close(self._fd)

    def is_in_place(self) -> bool:
        """Is the file that is locked the one that others find at its path?"""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _take(self, wait_s: float) -> None:
        # `is_locked` holds a lock for a moment, so wait briefly before giving up.
        until = time.monotonic() + max(wait_s, _PROBE_S)
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
                    raise Locked(pid) from None
                time.sleep(min(left_s, _POLL_S))

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def is_locked(path: str | Path) -> bool:
    """Is the lock held now?"""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_hub_running(data: str | Path) -> bool:
    """Is a hub using this data folder?"""
    return is_locked(Path(data) / HUB_LOCK)


class LockedFolder:
    """A data folder for one process at a time, created if it is missing.

    Two hubs on one folder would overwrite each other's data.
    """

    def __init__(self, path: str, *, lock_name: str = HUB_LOCK, owner: str = "hub") -> None:
        """Raises `SettingsError`."""
        self.path = Path(path)
        self._lock_name = lock_name
        # What this process makes: it goes again if nothing comes of it.
        self._made = [one for one in (self.path, *self.path.parents) if not one.exists()]
        try:
            was_empty = bool(self._made) or not any(self.path.iterdir())
            make_folder(self.path)
            self._lock = FileLock(self.path / lock_name)
            # Another process may have used it before this one had the lock.
            self._was_empty = was_empty and [one.name for one in self.path.iterdir()] == [lock_name]
        except OSError as error:
            raise SettingsError(
                f"the data folder {path} cannot be used: {error.strerror}; choose another with"
                " --data"
            ) from error
        except Locked:
            raise SettingsError(
                f"the data folder {path} is in use by another {owner}; stop it, or choose another"
                " folder with --data"
            ) from None
        if _is_unfinished(self.path / UNFINISHED):
            self._lock.close()
            raise SettingsError(
                f"restoring into the data folder {path} was interrupted; delete it, and restore"
                " again"
            )
        self._is_closed = False
        tighten(self.path)

    def close(self) -> None:
        """Release the lock, unless that is done."""
        if not self._is_closed:
            self._is_closed = True
            self._lock.close()

    def abandon(self, made: Iterable[str] = ()) -> None:
        """Release the lock because the start was refused; what was made for it is removed.

        `made` are the names, as patterns, of what this process may have made. Nothing is removed
        from a folder that was not empty, nor from a disk that was mounted there meanwhile.
        """
        if not self._is_closed:
            with contextlib.suppress(OSError):
                if self._was_empty and self._lock.is_in_place():
                    self._remove(tuple(made))
        self.close()

    def _remove(self, made: tuple[str, ...]) -> None:
        for one in self.path.iterdir():
            if not any(one.match(name) for name in made):
                continue
            if not one.is_dir() or one.is_symlink():
                one.unlink(missing_ok=True)
            elif not one.is_mount():
                shutil.rmtree(one, ignore_errors=True)
        (self.path / self._lock_name).unlink()
        for folder in self._made:
            folder.rmdir()


def _is_unfinished(folder: Path) -> bool:
    """Whether there is anything left in it: an empty one remains if the end was interrupted."""
    return folder.is_dir() and any(folder.iterdir())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Change files of a folder while no other process does; new names survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
