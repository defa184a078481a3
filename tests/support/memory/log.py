"""A log on a disk in memory, and entries to put into it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from signalhub.log.disk import Disk
from signalhub.log.erasure import SegmentErasure, rewrite
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.recovery import recover
from signalhub.log.segment import SegmentInfo
from signalhub.settings import model
from signalhub.testing import FakeClock, FaultyDisk
from signalhub.wire.entry import Entry, Kind, StoredEntry

T = TypeVar("T")

NOW_MS = FakeClock().now_ms()


def entry(seq: int, stream: str = "orders", *, body: bytes = b"x" * 100, **changes: int) -> Entry:
    return Entry(
        kind=changes.get("kind", Kind.PUBLISHED),
        stream=stream,
        stream_epoch=changes.get("stream_epoch", 1),
        seq=seq,
        at_ms=changes.get("at_ms", NOW_MS + seq),
        body=body,
    )


def open_log(disk: Disk, clock: FakeClock | None = None, **values: Any) -> Log:
    """Recover and open; the settings are those of `[log]`, with smaller segments."""
    chosen = model.LogSettings(**{"segment_bytes": 2**18} | values)
    return Log(disk, chosen, recover(disk, repair=True), clock=clock or FakeClock())


def flip_bit(disk: Disk, name: str, position: int) -> None:
    """Damage one byte for certain: salts are random, so any fixed byte may be there already."""
    file = disk.open(name)
    file.write(bytes([file.read(1, position)[0] ^ 1]), position)


def fill(log: Log, count: int, stream: str = "orders", *, first_seq: int = 1) -> list[Entry]:
    """Append one batch per entry."""
    entries = [entry(seq, stream) for seq in range(first_seq, first_seq + count)]
    for one in entries:
        log.append([one])
    return entries


def fill_segments(log: Log, count: int) -> list[Entry]:
    """Append until there are `count` segments, the last of them with one entry."""
    entries: list[Entry] = []
    while len(log.segments) < count:
        entries += fill(log, 1, first_seq=len(entries) + 1)
    return entries


def do_upkeep(log: Log) -> int:
    """Everything that can wait; returns in how many slices."""
    return sum(1 for _ in log.upkeep())


def sealed_log(count: int, segment_bytes: int = 2_000) -> tuple[FaultyDisk, Log]:
    """A log of `count` segments, all sealed but the last, and its disk."""
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=segment_bytes)
    fill_segments(log, count)
    do_upkeep(log)
    return disk, log


def used_bytes(disk: FaultyDisk) -> int:
    return sum(map(len, disk.files().values()))


def as_entry(stored: StoredEntry) -> Entry:
    return Entry(
        stored.kind, stored.stream, stored.stream_epoch, stored.seq, stored.at_ms, stored.body
    )


def contents(log: Log) -> list[Entry]:
    """All entries of a log, as they were appended."""
    reader = Reader(log)
    try:
        return [as_entry(stored) for stored in reader.scan(log.first)]
    finally:
        reader.close()


def seqs(found: Sequence[StoredEntry]) -> list[int]:
    return [stored.seq for stored in found]


def erase(disk: FaultyDisk, info: SegmentInfo, offset: int) -> None:
    """Take the body and the salt out of one entry of a sealed segment."""
    rewritten = drive(rewrite(disk, info, [SegmentErasure(((offset, offset),))]))
    assert rewritten is not None
    disk.rename(rewritten.temporary, info.name)


def drive(slices: Generator[None, None, T]) -> T:
    """Do all of something that is done in slices."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            value: T = end.value
            return value
