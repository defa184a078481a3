"""The published heads: how far the log may be read, and how far it may have been read.

The file `head` is written in place after every commit, and synced only when a log is opened. It
fits into one sector, so no crash tears it. If it is damaged or missing all the same, a reader
relies on the batches alone, and a lost end of the log cannot be noticed until the next commit.

    magic 4 | epoch u32 | durable head u64 | head u64 | zero u32 | crc32c u32
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec
from crc32c import crc32c

from signalhub.log.disk import Disk, File

HEAD_NAME: Final = "head"

_MAGIC: Final = b"SHhd"
_FIELDS: Final = Struct("<4sIQQI")
_CRC: Final = Struct("<I")
_HEAD_BYTES: Final = _FIELDS.size + _CRC.size
_LOOKS_MAX: Final = 10


class Head(msgspec.Struct, frozen=True):
    """Below `durable` everything is synced; below `shown` everything may have been read."""

    epoch: int
    durable: int
    shown: int


def encode_head(head: Head) -> bytes:
    fields = _FIELDS.pack(_MAGIC, head.epoch, head.durable, head.shown, 0)
    return fields + _CRC.pack(crc32c(fields))


def read_head(disk: Disk) -> Head | None:
    """The heads published last; None if unknown."""
    found = _look(disk)
    return found if isinstance(found, Head) else None


def head_fault(disk: Disk) -> str:
    """Why the published heads are unknown; empty if they are known."""
    found: Head | str = ""
    for _ in range(_LOOKS_MAX):
        # A running hub may be writing it.
        found = _look(disk)
        if isinstance(found, Head):
            return ""
    assert isinstance(found, str)
    return found


def _look(disk: Disk) -> Head | str:
    """The published heads, or why they cannot be read."""
    try:
        file = disk.open(HEAD_NAME, read_only=True)
    except FileNotFoundError:
        return "it is missing"
    try:
        data = file.read(_HEAD_BYTES, 0)
    finally:
        file.close()
    if len(data) < _HEAD_BYTES:
        return "it is truncated"
    magic, epoch, durable, shown, _ = _FIELDS.unpack_from(data)
    if magic != _MAGIC or crc32c(data[: _FIELDS.size]) != _CRC.unpack(data[-4:])[0]:
        return "it is damaged"
    return Head(epoch, durable, shown)


def open_head(disk: Disk) -> File:
    """The file for the heads, created if it is missing."""
    try:
        return disk.open(HEAD_NAME)
    except FileNotFoundError:
        return disk.create(HEAD_NAME)
