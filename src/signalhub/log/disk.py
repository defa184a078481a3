"""The file system of the log; nothing else in `log/` accesses files.

`Disk` is one flat folder of files. A crash may lose whatever was not synced: written bytes until
`File.sync`, created, renamed or removed names until `Disk.sync`. `testing.FaultyDisk` simulates
this.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from signalhub.privacy import FILE_MODE, FOLDER_MODE


class File(Protocol):
    """An open file; positions are explicit, so readers and the writer do not interfere."""

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def write(self, data: bytes, position: int) -> None:
        """Write all of `data`, or raise `OSError`; then any part of it may be written."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def is_removed(self) -> bool:
        """Has it no name any more, so that nobody else will find what is written to it?"""

    def sync(self) -> None:
        """Return when the content is on disk; after an error its state is unknown."""

    def close(self) -> None: ...


class Disk(Protocol):
    """One folder."""

    def names(self) -> list[str]:
        """All files, sorted."""

    def create(self, name: str) -> File:
        """A new empty file; raises `FileExistsError`."""

    def open(self, name: str, *, read_only: bool = False) -> File:
        """An existing file; raises `FileNotFoundError`."""

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` if it exists."""

    def remove(self, name: str) -> None: ...

    def sync(self) -> None:
        """Return when creations, renames and removals so far are on disk."""


class SystemFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        pieces = [data]
        while data and (missing := size - sum(map(len, pieces))):
            data = os.pread(self._fd, missing, position + size - missing)
            pieces.append(data)
        return b"".join(pieces)

    def write(self, data: bytes, position: int) -> None:
        written = os.pwrite(self._fd, data, position)
        while written < len(data):
            written += os.pwrite(self._fd, memoryview(data)[written:], position + written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def is_removed(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class SystemDisk:
    """A folder of the operating system, created if it is missing."""

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._is_read_only = read_only
        if not read_only:
            _make_folder(self.path)

    def names(self) -> list[str]:
        return sorted(one.name for one in os.scandir(self.path) if one.is_file())

    def create(self, name: str) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return SystemFile(os.open(self.path / name, flags, FILE_MODE))

    def open(self, name: str, *, read_only: bool = False) -> File:
        mode = os.O_RDONLY if read_only or self._is_read_only else os.O_RDWR
        return SystemFile(os.open(self.path / name, mode | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path / old, self.path / new)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.path / name)

    def sync(self) -> None:
        _sync_folder(self.path)


def _make_folder(path: Path) -> None:
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(FOLDER_MODE, exist_ok=True)
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
