"""One healthy folder of a log, and how a damaged copy of it must behave.

Whatever can still be read is what was written; what cannot be read is an error that names a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest

from signalhub.log.errors import LogDamaged
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.recovery import LogRecovery, recover
from signalhub.log.verify import Report, verify
from signalhub.testing import FakeClock, FaultyDisk
from signalhub.wire.entry import Entry, StoredEntry
from tests.support.memory.log import as_entry
from tests.support.memory.log_workload import (
    ENDLESS,
    STREAMS,
    Ledger,
    Run,
    log_settings,
    make_entries,
)

Files = dict[str, bytes]


@dataclass(frozen=True)
class HealthyFolder:
    """A healthy folder: one segment deleted, some sealed, one waiting for its seal, one active."""

    files: Files
    submitted: list[Entry]
    first: int
    deleted: str
    sealed: tuple[str, ...]
    footers: dict[str, int]
    """Where in a sealed segment its footer begins."""
    unsealed: str
    active: str

    def with_flip(self, name: str, bit: int) -> Files:
        return self.files | {name: flipped(self.files[name], bit)}

    def without(self, *names: str) -> Files:
        return {name: data for name, data in self.files.items() if name not in names}

    def ledger(self) -> Ledger:
        return Ledger([*self.submitted], removed=self.first)


@cache
def healthy_folder() -> HealthyFolder:
    disk, ledger = FaultyDisk(), Ledger()
    run = Run(disk, ledger, Random(21))
    while len(run.log.segments) < 6:
        run.append(3)
        run.upkeep()
    run.retain()
    while len(run.log.segments) < 6:
        run.append(3)
    run.append(3)
    *sealed, unsealed, active = run.log.segments
    assert all(one.is_sealed for one in sealed)
    assert not unsealed.is_sealed
    return HealthyFolder(
        files=disk.files(),
        submitted=ledger.submitted,
        first=run.log.first,
        deleted=next(name for name in disk.names() if name.endswith(".footer")),
        sealed=tuple(one.name for one in sealed),
        footers={one.name: one.bytes for one in sealed},
        unsealed=unsealed.name,
        active=active.name,
    )


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@dataclass(frozen=True)
class Finding:
    """What became of a damaged folder."""

    recovery: LogRecovery
    report: Report
    errors: tuple[LogDamaged, ...]
    """What readers were told, at most one for the scan and one for each stream."""

    @property
    def names(self) -> set[str]:
        """Everything that was called damaged on start-up or while reading."""
        damage = {self.recovery.damage.segment} if self.recovery.damage else set()
        return damage | {one.segment for one in self.errors}


def examine(files: Files) -> Finding:
    """Open a folder and read all of it; whatever is read is what was written."""
    disk = FaultyDisk(files)
    report = verify(disk)
    assert disk.operations == 0
    recovery = recover(disk, repair=True)
    if recovery.damage:
        assert disk.files() == files, "a damaged log is left as it is"
    log = Log(disk, log_settings(), recovery, clock=FakeClock())
    submitted = healthy_folder().submitted[log.first : log.head]
    errors = read_up_to_an_error(Reader(log).scan(log.first), submitted)
    for stream in STREAMS:
        own = [one for one in submitted if (one.stream, one.stream_epoch) == stream and one.seq]
        errors += read_up_to_an_error(in_pieces(Reader(log), *stream), own)
    if recovery.damage:
        assert_read_only(log, disk, files)
    log.close()
    assert set(disk.names()) >= set(files), "nothing is deleted"
    return Finding(recovery, report, tuple(errors))


def in_pieces(reader: Reader, stream: str, epoch: int) -> Iterator[StoredEntry]:
    from_seq = 1
    while piece := reader.read(stream, epoch, from_seq, 2, ENDLESS):
        yield from piece
        from_seq = piece[-1].seq + 1


def read_up_to_an_error(entries: Iterator[StoredEntry], expected: list[Entry]) -> list[LogDamaged]:
    """All of what was written, or its beginning and then an error."""
    found: list[Entry] = []
    try:
        found.extend(map(as_entry, entries))
    except LogDamaged as error:
        assert found == expected[: len(found)]
        return [error]
    assert found == expected
    return []


def assert_read_only(log: Log, disk: FaultyDisk, files: Files) -> None:
    assert log.state == "damaged"
    with pytest.raises(LogDamaged):
        log.append(make_entries(Random(1), healthy_folder().ledger(), 1, 0))
    for _ in log.upkeep():
        pass
    assert disk.files() == files
