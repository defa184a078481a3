from __future__ import annotations

import pytest

from signalhub.log.footer import decode_summary, encode_summary, footer_name
from signalhub.log.log import Log
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from tests.support.memory.log import (
    do_upkeep,
    entry,
    erase,
    fill,
    fill_segments,
    flip_bit,
    open_log,
)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def log(disk: FaultyDisk) -> Log:
    """Two deleted segments, two sealed ones, and the active one."""
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 5)
    do_upkeep(log)
    log.remove(log.segments[:2])
    return log


def test_an_empty_folder_is_sound() -> None:
    report = verify(FaultyDisk())

    assert (report.is_sound, report.entries, report.segments) == (True, 0, 0)


def test_a_log_in_order_is_counted(disk: FaultyDisk, log: Log) -> None:
    report = verify(disk)

    assert report.problems == ()
    assert (report.epoch, report.first, report.head) == (log.epoch, log.first, log.head)
    assert (report.entries, report.erased) == (log.head - log.first, 0)
    assert (report.segments, report.sealed, report.footers) == (3, 2, 2)


def test_nothing_is_written(disk: FaultyDisk, log: Log) -> None:
    disk = FaultyDisk(disk.files() | {"next.tmp": b"", "mine.txt": b""})

    assert verify(disk).foreign == ("mine.txt",)
    assert disk.operations == 0


def test_erased_entries_are_counted_and_prove_the_chain(disk: FaultyDisk, log: Log) -> None:
    sealed = log.segments[0]
    erase(disk, sealed, sealed.base)
    erase(disk, log.segments[1], log.segments[1].end - 1)

    report = verify(disk)

    assert report.problems == ()
    assert report.erased == 2


def test_a_torn_tail_is_told_and_no_problem(disk: FaultyDisk, log: Log) -> None:
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
    assert verify(disk).problems == (f"entries {last} to {last} existed and are lost",)


def test_a_flipped_bit_in_a_batch_is_named_with_its_place(disk: FaultyDisk, log: Log) -> None:
    info = log.segments[0]
    flip_bit(disk, info.name, 700)

    (problem,) = verify(disk).problems

    assert problem.startswith(f"{info.name}, byte ")
    assert problem.endswith("the checksum does not match")


def test_several_damaged_segments_are_all_named(disk: FaultyDisk, log: Log) -> None:
    names = [info.name for info in log.segments[:2]]
    for name in names:
        flip_bit(disk, name, 700)

    problems = verify(disk).problems

    assert len(problems) == 2
    for name, problem in zip(names, problems, strict=True):
        assert name in problem


def test_entries_changed_together_with_their_checksums_are_found_out(
    disk: FaultyDisk, log: Log
) -> None:
    """Everything fits but the chain: the segment of another log with the same offsets."""
    other = FaultyDisk()
    impostor = open_log(other, segment_bytes=2_000)
    fill_segments(impostor, 5)
    do_upkeep(impostor)
    name = log.segments[0].name
    disk.open(name).write(other.files()[name], 0)

    problems = verify(disk).problems

    assert any(name in problem and "chain" in problem for problem in problems)


def test_a_footer_that_lies_about_its_segment_is_found_out(disk: FaultyDisk, log: Log) -> None:
    info = log.segments[0]
    erase(disk, info, info.base)
    files = disk.files()
    changed = files[info.name].replace(b"orders", b"orderz")

    report = verify(FaultyDisk(files | {info.name: changed}))

    assert any(info.name in problem for problem in report.problems)


def test_a_missing_footer_of_a_deleted_segment_is_found_out(disk: FaultyDisk, log: Log) -> None:
    names = [name for name in disk.names() if name.endswith(".footer")]
    for name in names:
        files = {one: data for one, data in disk.files().items() if one != name}
        assert not verify(FaultyDisk(files)).is_sound


def test_a_forged_footer_of_a_deleted_segment_is_found_out(disk: FaultyDisk, log: Log) -> None:
    name = footer_name(0)
    content = disk.files()[name]
    summary = decode_summary(content)
    forged = encode_summary(summary).replace(summary.chain, bytes(32))
    assert forged != content

    assert not verify(FaultyDisk(disk.files() | {name: forged})).is_sound


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
    """The log grows by two segments each time somebody has looked which ones there are."""

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
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 3)
    disk.log = log

    assert verify(disk).problems == ()
    assert disk.rolls_left < 2


def test_a_running_log_that_syncs_late_is_sound(disk: FaultyDisk) -> None:
    log = open_log(disk, sync="os")
    fill(log, 5)

    assert verify(disk).problems == ()
