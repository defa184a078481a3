"""A folder that tells how much was read of it, for progress bars."""

from __future__ import annotations

from signalhub.cli.bars import Advance
from signalhub.log.disk import File, SystemDisk


class CountedFile:
    """A file that counts what is read."""

    def __init__(self, file: File, advance: Advance) -> None:
        self._file = file
        self._advance = advance
        self.write = file.write
        self.truncate = file.truncate
        self.size = file.size
        self.sync = file.sync
        self.close = file.close

    def read(self, size: int, position: int) -> bytes:
        found = self._file.read(size, position)
        self._advance(len(found))
        return found


class CountedDisk(SystemDisk):
    """A folder of the operating system, only to be read."""

    def __init__(self, disk: SystemDisk, advance: Advance) -> None:
        super().__init__(disk.path, read_only=True)
        self._advance = advance

    def open(self, name: str, *, read_only: bool = False) -> File:
        return CountedFile(super().open(name, read_only=read_only), self._advance)
