"""Erasing: selected entries of a sealed segment lose their body and salt, and keep their digest.

The segment is rewritten beside the old one and replaces it only when all of it is on disk, so a
crash leaves one or the other. The chain covers the digests, which stay, so nothing after the
segment changes. It runs in slices, like sealing.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from signalhub.log.disk import Disk, File
from signalhub.log.errors import LogDamaged
from signalhub.log.footer import read_summary, sealed_segment
from signalhub.log.record import (
    ERASED,
    Unreadable,
    encode_batch,
    entry_positions,
    erased_entry,
    read_entry_heads,
)
from signalhub.log.seal import SegmentSealing, write_footer
from signalhub.log.segment import (
    BATCHES_BEGIN,
    LocatedBatch,
    SegmentInfo,
    scan_batches,
    temporary_name,
)
from signalhub.log.survey import TORN_SUFFIX
from signalhub.wire.entry import PSEUDONYM_PREFIX, Range

# A batch takes a few microseconds, an entry about two.
_SLICE_BATCHES: Final = 60
_SLICE_BYTES: Final = 2**17
_SLICE_ENTRIES: Final = 120
_SYNC_BYTES: Final = 2**20
_PIECE_BYTES: Final = 2**18


class SegmentErasure(msgspec.Struct, frozen=True):
    """The entries to erase; some of them also get another stream name."""

    ranges: tuple[Range, ...]
    pseudonym: str = ""
    renamed: tuple[Range, ...] = ()
    """Those whose stream is an actor's address; a subset of `ranges`."""

    def concerns(self, info: SegmentInfo) -> bool:
        """Whether some of it is in a segment."""
        return any(first < info.end and last >= info.base for first, last in self.ranges)


class Rewritten(msgspec.Struct, frozen=True):
    """A segment without the content of some entries, ready to replace the old one."""

    temporary: str
    info: SegmentInfo
    erased: int
    """How many entries were erased by this run."""


class _Offsets:
    """Ranges of offsets in order, for look-ups."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ends: list[int] = []
        self._begins: list[int] = []
        for first, last in sorted(ranges):
            if self._ends and first <= self._ends[-1] + 1:
                self._ends[-1] = max(self._ends[-1], last)
            else:
                self._begins.append(first)
                self._ends.append(last)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._begins, offset) - 1
        return at >= 0 and offset <= self._ends[at]

    def meets(self, first: int, end: int) -> bool:
        """Whether it contains an offset from `first` to `end - 1`."""
        at = bisect_right(self._begins, end - 1) - 1
        return at >= 0 and self._ends[at] >= first


class _Choice:
    """What several erasures change in a segment."""

    def __init__(self, erasures: Sequence[SegmentErasure]) -> None:
        self._erased = _Offsets(one for erasure in erasures for one in erasure.ranges)
        self._renamed = [
            (_Offsets(erasure.renamed), erasure.pseudonym.encode())
            for erasure in erasures
            if erasure.renamed
        ]

    def changes(self, located: LocatedBatch) -> Generator[None, None, dict[int, bytes | None]]:
        """Offsets of a batch that still have content, with the pseudonym they get."""
        batch = located.batch
        found: dict[int, bytes | None] = {}
        if not self._erased.meets(batch.first, batch.end):
            return found
        heads = read_entry_heads(located.data, batch, located.at)
        for offset, (_, flags, stream, *_) in enumerate(heads, batch.first):
            if offset in self._erased:
                name = None if stream.startswith(PSEUDONYM_PREFIX) else self._name_of(offset)
                if name is not None or not flags & ERASED:
                    found[offset] = name
            if (offset - batch.first + 1) % _SLICE_ENTRIES == 0:
                yield
        return found

    def _name_of(self, offset: int) -> bytes | None:
        return next((name for offsets, name in self._renamed if offset in offsets), None)


def rewrite(
    disk: Disk, info: SegmentInfo, erasures: Sequence[SegmentErasure]
) -> Generator[None, None, Rewritten | None]:
    """Rewrite a sealed segment without the content to erase; `None` if there is none left.

    The result still has to be renamed. Raises `LogDamaged`, and then nothing has changed.
    """
    choice = _Choice(erasures)
    old = disk.open(info.name, read_only=True)
    try:
        if not (yield from _has_changes(old, info, choice)):
            return None
        temporary = temporary_name(info.base)
        disk.remove(temporary)
        new = disk.create(temporary)
        try:
            return (yield from _written(old, new, info, choice, temporary))
        except BaseException:
            with contextlib.suppress(OSError):
                disk.remove(temporary)
            raise
        finally:
            new.close()
    except Unreadable as error:
        raise LogDamaged(info.name, info.bytes, str(error)) from error
    finally:
        old.close()


def _has_changes(old: File, info: SegmentInfo, choice: _Choice) -> Generator[None, None, bool]:
    for located in _in_slices(old, info):
        if located is None:
            yield
        elif (yield from choice.changes(located)):
            return True
    return False


def _written(
    old: File, new: File, info: SegmentInfo, choice: _Choice, temporary: str
) -> Generator[None, None, Rewritten]:
    summary = read_summary(old)
    new.write(old.read(BATCHES_BEGIN, 0), 0)
    position, synced, erased = BATCHES_BEGIN, 0, 0
    for located in _in_slices(old, info):
        if located is None:
            yield
            continue
        changes = yield from choice.changes(located)
        batch = yield from _changed(located, changes)
        new.write(batch, position)
        position += len(batch)
        erased += len(changes)
        if position - synced >= _SYNC_BYTES:
            # Many small syncs, because a large one would delay commits.
            new.sync()
            synced = position
    sealing = SegmentSealing(msgspec.structs.replace(info, bytes=position), summary.previous_chain)
    yield from sealing.read(new)
    if sealing.chain != summary.chain:
        raise LogDamaged(info.name, 0, "its entries do not match its footer")
    fresh, pieces = yield from sealing.footer()
    yield from write_footer(new, position, pieces)
    replaced = msgspec.structs.replace(sealed_segment(fresh), revision=info.revision + 1)
    return Rewritten(temporary, replaced, erased)


def _in_slices(old: File, info: SegmentInfo) -> Iterator[LocatedBatch | None]:
    """The batches of a segment, with `None` where a slice should end."""
    batches = size = 0
    for located in scan_batches(old, BATCHES_BEGIN, info.bytes):
        yield located
        batches += 1
        size += located.batch.length
        if batches >= _SLICE_BATCHES or size >= _SLICE_BYTES:
            batches = size = 0
            yield None


def _changed(
    located: LocatedBatch, changes: dict[int, bytes | None]
) -> Generator[None, None, bytes]:
    """The bytes of a batch without the content to erase."""
    batch, data, at = located.batch, located.data, located.at
    if not changes:
        return data[at : at + batch.length]
    bounds = [*entry_positions(data, batch, at), at + batch.length]
    encoded = []
    for offset, (begin, end) in enumerate(pairwise(bounds), batch.first):
        is_chosen = offset in changes
        encoded.append(erased_entry(data, begin, changes[offset]) if is_chosen else data[begin:end])
        if len(encoded) % _SLICE_ENTRIES == 0:
            yield
    return encode_batch(
        encoded,
        first=batch.first,
        epoch=batch.epoch,
        durable=batch.durable,
        time_ms=batch.time_ms,
    )


def remove_torn(disk: Disk, needles: Sequence[bytes]) -> Generator[None, None, int]:
    """Remove saved torn ends that contain some of these entries; returns their number."""
    removed = 0
    for name in disk.names():
        if name.endswith(TORN_SUFFIX) and (yield from _holds(disk, name, needles)):
            disk.remove(name)
            removed += 1
    if removed:
        disk.sync()
    return removed


def _holds(disk: Disk, name: str, needles: Sequence[bytes]) -> Generator[None, None, bool]:
    overlap = max(map(len, needles), default=1) - 1
    file = disk.open(name, read_only=True)
    try:
        for position in range(0, file.size(), _PIECE_BYTES):
            piece = file.read(_PIECE_BYTES + overlap, position)
            if any(needle in piece for needle in needles):
                return True
            yield
    finally:
        file.close()
    return False
