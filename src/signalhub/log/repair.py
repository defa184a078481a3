"""What recovery writes: saved bytes, a tail cut off, batches made durable again.

Each can be interrupted and repeated. When the disk is full, the reserve is released to make room.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Final, TypeVar

from signalhub.log.disk import Disk, File
from signalhub.log.survey import RESERVE_NAME, TORN_SUFFIX

_PIECE_BYTES: Final = 2**20

T = TypeVar("T")


def with_reserve(disk: Disk, step: Callable[[], T]) -> T:
    """Run an action that needs space; if the disk is full, release the reserve and repeat it."""
    try:
        return step()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or RESERVE_NAME not in disk.names():
            raise
    disk.remove(RESERVE_NAME)
    return step()


def keep_reserve(disk: Disk, size: int) -> None:
    """Reserve space for a full disk, if there is any."""
    if RESERVE_NAME in disk.names():
        return
    with contextlib.suppress(OSError):
        file = disk.create(RESERVE_NAME)
        try:
            file.write(bytes(size), 0)
            file.sync()
        except OSError:
            disk.remove(RESERVE_NAME)
            raise
        finally:
            file.close()


def save_aside(disk: Disk, file: File, base: int, position: int, size: int) -> str:
    """Copy bytes that are about to be cut into a new file; returns its name."""
    number = 0
    while True:
        suffix = f".{number}" if number else ""
        name = f"{base:020d}.{position}{suffix}{TORN_SUFFIX}"
        if name not in disk.names():
            copy = disk.create(name)
            break
        copy = disk.open(name)
        if copy.size() <= size and copy.read(copy.size(), 0) == file.read(copy.size(), position):
            # An earlier attempt was interrupted here.
            break
        copy.close()
        number += 1
    try:
        _copy(file, position, copy, 0, size)
        copy.sync()
    finally:
        copy.close()
    disk.sync()
    return name


def rewrite(file: File, begin: int, end: int) -> None:
    """Write and sync bytes again that are readable but possibly not on disk.

    After a failed sync the system may return content that it has given up writing; another sync
    would report success without writing it.
    """
    if begin < end:
        _copy(file, begin, file, begin, end - begin)
        file.sync()


def cut(file: File, position: int) -> None:
    """Truncate a file at a position."""
    file.truncate(position)
    file.sync()


def _copy(source: File, begin: int, target: File, to: int, size: int) -> None:
    for done in range(0, size, _PIECE_BYTES):
        piece = source.read(min(_PIECE_BYTES, size - done), begin + done)
        target.write(piece, to + done)
