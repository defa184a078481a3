"""Verified blocks of segments, with the most recent ones cached."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import Final

from signalhub.log.disk import Disk, File
from signalhub.log.errors import LogDamaged
from signalhub.log.positions import Span
from signalhub.log.record import Unreadable, entry_positions, read_batch, read_entry
from signalhub.wire.entry import StoredEntry

_BLOCKS_MAX: Final = 64
_FILES_MAX: Final = 64


class Block:
    """Some whole batches, verified up to the first invalid one, if there is one.

    What lies before an invalid batch can be read; behind it nothing is trusted.
    """

    def __init__(self, span: Span, data: bytes) -> None:
        self.begin = span.begin
        self.end = span.begin + len(data)
        self.first = span.first
        self._data = data
        self._starts: list[int] = []
        self.good_bytes = 0
        """How far the batches were verified, if one is invalid."""
        self.damage: LogDamaged | None = None

    def verify(self) -> None:
        """Check every batch and find the entries; raises `Unreadable`."""
        data = self._data
        while self.good_bytes < len(data):
            batch = read_batch(data, self.good_bytes)
            if batch.first != self.end_offset:
                raise Unreadable(f"offset {batch.first} follows {self.end_offset}")
            self._starts.extend(entry_positions(data, batch, self.good_bytes))
            self.good_bytes += batch.length

    @property
    def end_offset(self) -> int:
        """The offset after its last entry."""
        return self.first + len(self._starts)

    def check(self, offset: int) -> None:
        """Raise `LogDamaged` if an offset lies behind the damage."""
        if self.damage is not None and offset >= self.end_offset:
            raise self.damage

    def entry(self, offset: int) -> StoredEntry:
        return read_entry(self._data, self._starts[offset - self.first], offset)

    def entry_at(self, position: int) -> StoredEntry:
        """The entry that begins at a position of the file; raises `LogDamaged`, `Unreadable`."""
        at = position - self.begin
        if self.damage is not None and at >= self.good_bytes:
            raise self.damage
        index = bisect_left(self._starts, at)
        if index == len(self._starts) or self._starts[index] != at:
            raise Unreadable("no entry begins here")
        return read_entry(self._data, at, self.first + index)


class Blocks:
    """Blocks by segment and position."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[str, File] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, int], Block] = OrderedDict()

    def get(self, segment: str, span: Span) -> Block:
        """A block, perhaps with damage; raises `FileNotFoundError` for a deleted segment."""
        key = (segment, span.begin)
        block = self._blocks.get(key)
        if block is None or block.end < span.end:
            block = self._blocks[key] = self._read(segment, span)
            if len(self._blocks) > _BLOCKS_MAX:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return block

    def file(self, segment: str) -> File:
        """An open segment."""
        file = self._files.get(segment)
        if file is None:
            file = self._files[segment] = self._disk.open(segment, read_only=True)
            if len(self._files) > _FILES_MAX:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(segment)
        return file

    def forget(self, segment: str) -> None:
        """Close a segment, because another file may have its name now."""
        file = self._files.pop(segment, None)
        if file is not None:
            file.close()
        for key in [key for key in self._blocks if key[0] == segment]:
            del self._blocks[key]

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popitem()[1].close()
        self._blocks.clear()

    def _read(self, segment: str, span: Span) -> Block:
        block = Block(span, self.file(segment).read(span.end - span.begin, span.begin))
        try:
            block.verify()
        except Unreadable as error:
            block.damage = LogDamaged(segment, span.begin + block.good_bytes, str(error))
        else:
            if block.end < span.end:
                block.damage = LogDamaged(segment, block.end, "the segment is truncated")
        return block
