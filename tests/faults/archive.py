"""One healthy folder of a log, and how a hurt copy of it must behave.

Whatever can still be read is what was written; what cannot be read is an error that names a file.
"""

from __future__ import annotations

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
from signalhub.wire.entry import StoredEntry
from tests.support.memory.log_workload import (
    ENDLESS,
    STREAMS,
    Ledger,
    Run,
    as_submitted,
    log_settings,
    make_entries,
)


@dataclass(frozen=True)
class Archive:
    """A healthy folder: one segment deleted, some sealed, one waiting for its seal, one active."""

    files: dict[str, bytes]
    ledger: Ledger
    first: int
    deleted: str
    sealed: tuple[str, ...]
    footers: dict[str, int]
    """Where in a sealed segment its footer begins."""
    unsealed: str
    active: str

    def with_flip(self, name: str, bit: int) -> dict[str, bytes]:
        return self.files | {name: flipped(self.files[name], bit)}


@cache
def archive() -> Archive:
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
    return Archive(
        files=disk.files(),
        ledger=ledger,
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
    """What became of a hurt folder."""

    recovery: LogRecovery
    report: Report
    errors: tuple[LogDamaged, ...]
    """What readers were told, at most one for the scan and one for each stream."""

    @property
    def names(self) -> set[str]:
        """Everything that was called damaged on start-up or while reading."""
        damage = {self.recovery.damage.segment} if self.recovery.damage else set()
        return damage | {one.segment for one in self.errors}


def examine(files: dict[str, bytes]) -> Finding:
    """Open a folder and read all of it; whatever is read is what was written."""
    disk = FaultyDisk(files)
    report = verify(disk)
    assert disk.operations == 0
    recovery = recover(disk, repair=True)
    if recovery.damage:
        assert disk.files() == files, "a damaged log is left as it is"
    log = Log(disk, log_settings(), recovery, clock=FakeClock())
    errors = [*read_all(log), *read_streams(log)]
    if recovery.damage:
        assert_read_only(log, disk, files)
    log.close()
    assert set(disk.names()) >= set(files), "nothing is deleted"
    return Finding(recovery, report, tuple(errors))


def read_all(log: Log) -> list[LogDamaged]:
    reader = Reader(log)
    seen: list[StoredEntry] = []
    errors = []
    try:
        seen.extend(reader.scan(log.first))
    except LogDamaged as error:
        errors.append(error)
    assert [one.offset for one in seen] == [*range(log.first, log.first + len(seen))]
    assert errors or log.first + len(seen) == log.head, "reading ends at the head or in an error"
    for one in seen:
        assert as_submitted(one) == archive().ledger.submitted[one.offset]
    reader.close()
    return errors


def read_streams(log: Log) -> list[LogDamaged]:
    errors = []
    submitted = archive().ledger.submitted
    for stream in STREAMS:
        reader = Reader(log)
        written = [
            (offset, one)
            for offset, one in enumerate(submitted)
            if (one.stream, one.stream_epoch) == stream and one.seq
        ]
        expected = [one for offset, one in written if log.first <= offset < log.head]
        found: list[StoredEntry] = []
        try:
            while piece := reader.read(*stream, found[-1].seq + 1 if found else 1, 2, ENDLESS):
                found += piece
        except LogDamaged as error:
            errors.append(error)
            assert [as_submitted(one) for one in found] == expected[: len(found)]
        else:
            assert [as_submitted(one) for one in found] == expected
        reader.close()
    return errors


def assert_read_only(log: Log, disk: FaultyDisk, files: dict[str, bytes]) -> None:
    assert log.state == "damaged"
    entries = make_entries(Random(1), archive().ledger, 1, 0)
    with pytest.raises(LogDamaged):
        log.append(entries)
    for _ in log.upkeep():
        pass
    assert disk.files() == files


def opened(files: dict[str, bytes]) -> Log:
    disk = FaultyDisk(files)
    return Log(disk, log_settings(), recover(disk, repair=True), clock=FakeClock())
