from __future__ import annotations

import pytest

from signalhub.log.errors import LogDamaged
from signalhub.log.footer import decode_summary, encode_summary, footer_name
from signalhub.log.log import Log
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from tests.support.memory.log import (
    do_upkeep,
    entry,
    erase,
    fill_segments,
    flip_bit,
    open_log,
    sealed_log,
)


@pytest.fixture
def log() -> Log:
    """Two deleted segments, two sealed ones, and the active one."""
    _, log = sealed_log(5)
    log.remove(log.segments[:2])
    return log


@pytest.fixture
def disk(log: Log) -> FaultyDisk:
    assert isinstance(log.disk, FaultyDisk)
    return log.disk


def test_an_empty_folder_is_sound() -> None:
    report = verify(FaultyDisk())

    assert (report.is_sound, report.entries, report.segments) == (True, 0, 0)


def test_an_intact_log_is_counted_and_nothing_is_written(disk: FaultyDisk, log: Log) -> None:
    disk = FaultyDisk(disk.files() | {"next.tmp": b"", "mine.txt": b""})

    report = verify(disk)

    assert (report.problems, report.foreign, disk.operations) == ((), ("mine.txt",), 0)
    assert (report.epoch, report.first, report.head) == (log.epoch, log.first, log.head)
    assert (report.entries, report.erased) == (log.head - log.first, 0)
    assert (report.segments, report.sealed, report.footers) == (3, 2, 2)


def test_erased_entries_are_counted_and_prove_the_chain(disk: FaultyDisk, log: Log) -> None:
    one, other, _ = log.segments
    erase(disk, one, one.base)
    erase(disk, other, other.end - 1)

    report = verify(disk)

    assert (report.problems, report.erased) == ((), 2)


def test_a_torn_tail_is_reported_and_not_a_problem(disk: FaultyDisk, log: Log) -> None:
    info = log.segments[-1]
    disk.open(info.name).write(b"torn", info.bytes)

    report = verify(disk)

    assert report.problems == ()
    assert report.torn is not None
    assert (report.torn.segment, report.torn.position) == (info.name, info.bytes)


def test_entries_that_were_shown_and_are_gone_are_a_problem(disk: FaultyDisk, log: Log) -> None:
    info = log.segments[-1]
    disk.open(info.name).truncate(info.bytes - 1)

    last = log.head - 1
    assert verify(disk).problems == (f"entry {last} existed and is lost",)


def test_a_head_that_cannot_be_read_is_a_problem_of_its_own(disk: FaultyDisk, log: Log) -> None:
    info = log.segments[-1]
    disk.remove("head")

    report = verify(disk)

    assert report.problems == (report.unknown_end,)
    assert report.is_only_unproven
    disk.open(info.name).truncate(info.bytes - 1)
    assert verify(disk).is_only_unproven, "the end that is lost cannot be noticed"


def test_what_a_start_takes_for_damage_in_the_active_segment_is_a_problem() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    begins = []
    for number in range(4):
        begins.append(log.segments[-1].bytes)
        log.append([entry(number)])
        log.sync()
    name = log.segments[-1].name
    assert verify(disk).problems == ()

    flip_bit(disk, name, begins[1] + 40)

    (problem,) = verify(disk).problems
    fault = open_log(disk).fault
    assert isinstance(fault, LogDamaged)
    assert problem == f"{name}, byte {begins[1]}: {fault.reason}"


def test_all_damaged_segments_are_named_with_the_place(disk: FaultyDisk, log: Log) -> None:
    names = [info.name for info in log.segments[:2]]
    for name in names:
        flip_bit(disk, name, 700)

    for name, problem in zip(names, verify(disk).problems, strict=True):
        assert problem.startswith(f"{name}, byte ")
        assert problem.endswith("the checksum does not match")


def test_a_footer_that_does_not_match_its_segment_is_named(disk: FaultyDisk, log: Log) -> None:
    info = log.segments[0]
    erase(disk, info, info.base)
    changed = disk.files()[info.name].replace(b"orders", b"orderz")

    report = verify(FaultyDisk(disk.files() | {info.name: changed}))

    assert any(info.name in problem for problem in report.problems)


def test_a_missing_or_forged_footer_of_a_deleted_segment_is_noticed(disk: FaultyDisk) -> None:
    files, name = disk.files(), footer_name(0)
    summary = decode_summary(files[name])
    forged = encode_summary(summary).replace(summary.chain, bytes(32))
    assert forged != files[name]
    missing = [one for one in files if one.endswith(".footer")]
    assert len(missing) == 2

    for hurt in (
        files | {name: forged},
        *({one: data for one, data in files.items() if one != gone} for gone in missing),
    ):
        assert not verify(FaultyDisk(hurt)).is_sound


def test_a_log_in_use_is_sound_at_every_moment() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    for number in range(60):
        log.append([entry(number + 1)])
        upkeep = log.upkeep()
        for _ in zip(range(number % 4), upkeep, strict=False):
            assert verify(disk).problems == ()
        upkeep.close()
        if number == 40:
            do_upkeep(log)
            log.remove(log.segments[:1])
        assert verify(disk).problems == ()


class RollingDisk(FaultyDisk):
    """The log grows by two segments each time somebody has listed them."""

    log: Log | None = None
    rolls_left = 3

    def names(self) -> list[str]:
        found = super().names()
        if self.log and self.rolls_left:
            self.rolls_left -= 1
            fill_segments(self.log, len(self.log.segments) + 2)
        return found


def test_a_log_that_grows_while_it_is_checked_is_sound() -> None:
    disk = RollingDisk()
    disk.log = log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 3)

    assert verify(disk).problems == ()
    assert disk.rolls_left < 2
