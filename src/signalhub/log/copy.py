"""A copy of a log, also while its hub writes to it.

Sealed segments never change, so they are copied first, before anything that takes long. What came
after them is copied up to a published head, whole batches only: the copy ends like the log of a hub
that was stopped there. Retention may delete segments meanwhile; those already copied stay.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from signalhub.log.disk import SystemDisk
from signalhub.log.errors import LogDamaged
from signalhub.log.folder import examine
from signalhub.log.footer import footer_base
from signalhub.log.head import Head, encode_head, open_head, read_head
from signalhub.log.recovery import lost_entries, recover
from signalhub.log.segment import (
    BATCHES_BEGIN,
    Header,
    SegmentInfo,
    base_of,
    create_segment,
    scan_batches,
)
from signalhub.privacy import opener
from signalhub.wire.errors import SignalHubError

_ATTEMPTS_MAX: Final = 10
_PIECE_BYTES: Final = 2**20

Identity = tuple[int, int, int]


class LogChanged(SignalHubError):
    """The log was cut or replaced during the copy."""

    code = "log_changed"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} while it was copied; repeat the command")


class CopiedLog(msgspec.Struct, frozen=True):
    """Entries `first` to `head - 1` were copied."""

    epoch: int
    first: int
    head: int


def published_head(log: Path) -> Head | None:
    """The heads of a log that may be in use; None if they are unknown."""
    disk = SystemDisk(log, read_only=True)
    for _ in range(_ATTEMPTS_MAX):
        # The file is written in place, so a reader may meet half of a change.
        if found := read_head(disk):
            return found
    return None


class LogCopy:
    """The copy of one log in an empty folder: `copy_sealed`, then `copy_rest`."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = SystemDisk(source, read_only=True)
        self._target = SystemDisk(target)
        self._sealed: dict[int, tuple[SegmentInfo, Identity]] = {}

    def copy_sealed(self) -> None:
        """Copy the segments that are sealed now."""
        for info in self._segments():
            if not info.is_sealed:
                break
            try:
                self._copy_sealed(info)
            except FileNotFoundError:
                # Retention has deleted it, and before it everything older.
                self._forget()

    def copy_rest(self, published: Head | None) -> CopiedLog:
        """Copy everything up to a head that was read after `copy_sealed`, or all if it is unknown.

        Raises `LogDamaged`, `LogChanged`.
        """
        for _ in range(_ATTEMPTS_MAX):
            segments = self._segments()
            try:
                return self._copy_rest(segments, published)
            except FileNotFoundError:
                continue
        raise LogChanged("the log was cut")

    def _segments(self) -> list[SegmentInfo]:
        _, recovery = examine(self._source)
        if (damage := recovery.damage) is not None:
            raise LogDamaged(damage.segment, damage.position, damage.reason)
        return list(recovery.segments)

    def _copy_sealed(self, info: SegmentInfo) -> None:
        path = self._source.path / info.name
        identity = _identity(path)
        known = self._sealed.get(info.base)
        # An erasure replaces the file of a segment.
        if known is None or known[1] != identity:
            _copy(path, self._target.path / info.name)
            self._sealed[info.base] = info, identity

    def _forget(self) -> None:
        for info, _ in self._sealed.values():
            self._target.remove(info.name)
        self._sealed.clear()

    def _copy_rest(self, segments: list[SegmentInfo], published: Head | None) -> CopiedLog:
        last = segments[-1]
        end = last.end
        if published is not None and published.epoch > last.epoch:
            raise LogChanged("the log was replaced")
        if published is not None and published.epoch == last.epoch:
            end = published.shown
            if end > last.end:
                lost = lost_entries(last.end, end - 1)
                raise LogDamaged(last.name, last.bytes, lost)
        wanted = [info for info in segments if info.base <= end]
        self._check_joint(wanted[0])
        for info in wanted[:-1]:
            if info.is_sealed:
                self._copy_sealed(info)
            else:
                _copy(self._source.path / info.name, self._target.path / info.name, info.bytes)
        self._copy_last(wanted[-1], end)
        first = min([wanted[0].base, *self._sealed])
        for name in self._source.names():
            base = footer_base(name)
            if base is not None and base < first:
                _copy(self._source.path / name, self._target.path / name)
        copied = CopiedLog(wanted[-1].epoch, first, end)
        _publish(self._target, copied.epoch, end)
        self._target.sync()
        return copied

    def _check_joint(self, first: SegmentInfo) -> None:
        """What was copied before must reach to the oldest segment that is still there."""
        ends = {info.end for info, _ in self._sealed.values()}
        if self._sealed and first.base not in self._sealed and first.base not in ends:
            raise LogChanged("the log was cut")

    def _copy_last(self, info: SegmentInfo, end: int) -> None:
        """Copy the batches of a segment up to an offset, without its footer."""
        path = self._source.path / info.name
        file = self._source.open(info.name)
        position = BATCHES_BEGIN
        try:
            if end > info.base:
                for located in scan_batches(file, BATCHES_BEGIN, info.bytes):
                    position = located.end
                    if located.batch.end >= end:
                        break
        finally:
            file.close()
        self._sealed.pop(info.base, None)
        _copy(path, self._target.path / info.name, position)


def begin_epoch(log: Path, epoch: int) -> CopiedLog:
    """Begin a new epoch at the end of a log that no process uses; raises `LogDamaged`."""
    disk = SystemDisk(log)
    found = recover(disk, repair=True)
    if damage := found.damage:
        raise LogDamaged(damage.segment, damage.position, damage.reason)
    assert epoch > found.epoch
    created_ms = found.segments[-1].max_ms
    create_segment(disk, Header(epoch, found.head, created_ms)).close()
    _publish(disk, epoch, found.head)
    return CopiedLog(epoch, found.first, found.head)


def is_log(folder: Path) -> bool:
    """Whether a folder contains segments."""
    return folder.is_dir() and any(base_of(name) is not None for name in os.listdir(folder))


def _publish(disk: SystemDisk, epoch: int, head: int) -> None:
    file = open_head(disk)
    try:
        file.write(encode_head(Head(epoch, head, head)), 0)
        file.sync()
    finally:
        file.close()


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _copy(source: Path, target: Path, size: int | None = None) -> None:
    with open(source, "rb") as old, open(target, "wb", opener=opener) as new:
        if size is None:
            shutil.copyfileobj(old, new, _PIECE_BYTES)
        else:
            while size and (piece := old.read(min(size, _PIECE_BYTES))):
                new.write(piece)
                size -= len(piece)
        new.flush()
        os.fsync(new.fileno())
