"""Damage that no crash explains: noticed, named, never skipped, never built upon.

Each test changes the content of one file of a healthy folder.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.errors import LogDamaged
from signalhub.log.footer import TRAILER_BYTES, read_footer
from signalhub.log.reader import Reader
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from tests.faults.archive import Files, Finding, archive, examine, flipped
from tests.support.memory.log_workload import EPOCH, Ledger, Run, go_on, opened, survive

FLIPS = 200
PAGES = 200


def assert_noticed(files: Files, name: str) -> Finding:
    """The full check names the file; so does whoever comes across the damage."""
    found = examine(files)
    assert any(name in problem for problem in found.report.problems)
    assert found.names <= {name}
    return found


def test_the_healthy_folder_is_healthy() -> None:
    found = examine(archive().files)

    assert found.report.problems == ()
    assert found.names == set()
    assert found.recovery.head == len(archive().submitted)
    disk = FaultyDisk(archive().files)
    survive(disk, Ledger([*archive().submitted], removed=10**6))
    for name, position in archive().footers.items():
        file = disk.open(name, read_only=True)
        assert read_footer(file).summary.bytes == position < file.size() - TRAILER_BYTES


def test_a_flipped_bit_in_a_sealed_segment_is_noticed_wherever_it_is() -> None:
    rng = Random(5)
    for number in range(FLIPS):
        name = rng.choice(archive().sealed)
        size, footer = len(archive().files[name]), archive().footers[name]
        edges = (0, BATCHES_BEGIN, footer, size - TRAILER_BYTES, size)
        region = number % 4
        bit = rng.randrange(8 * edges[region], 8 * edges[region + 1])
        found = assert_noticed(archive().with_flip(name, bit), name)
        if region == 0:
            assert found.recovery.damage is not None, "a header counts at once"
        elif region == 1:
            assert found.errors, "a scan comes across it"
        else:
            assert found.recovery.damage is None, "the batches prove themselves"


@pytest.mark.parametrize("kind", ["sealed", "active"])
def test_every_bit_of_a_segment_header_counts(kind: str) -> None:
    name = archive().active if kind == "active" else archive().sealed[1]
    for bit in range(8 * BATCHES_BEGIN):
        disk = FaultyDisk(archive().with_flip(name, bit))
        before = disk.files()
        found = recover(disk, repair=True)
        assert found.damage is not None
        assert found.damage.segment == name
        assert disk.files() == before


def test_zeroed_pages_are_noticed_wherever_they_are() -> None:
    rng = Random(6)
    hurt = 0
    while hurt < PAGES:
        # The footer of the last sealed segment could be missing because of a crash.
        name = rng.choice(archive().sealed[:-1])
        content = archive().files[name]
        size = rng.choice((512, 4096))
        begin = rng.randrange(0, len(content), size)
        page = content[begin : begin + size]
        if any(page):
            changed = content[:begin] + bytes(len(page)) + content[begin + size :]
            assert_noticed(archive().files | {name: changed}, name)
            hurt += 1


def test_a_damaged_segment_stops_readers_before_it_and_not_after(tmp_path: Path) -> None:
    """On a real disk: what lies behind the damage can still be read by whoever asks for it."""
    name = archive().sealed[1]
    files = archive().with_flip(name, 8 * (BATCHES_BEGIN + 100))
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    report = verify(SystemDisk(tmp_path, read_only=True))
    log = opened(SystemDisk(tmp_path))
    reader = Reader(log)
    broken, following = log.segments[1], log.segments[2]

    before = [one.offset for one in reader.scan(log.first, broken.base)]
    with pytest.raises(LogDamaged, match=name):
        [*reader.scan(broken.base)]
    after = [one.offset for one in reader.scan(following.base)]
    reader.close()
    log.close()

    assert before == [*range(log.first, broken.base)]
    assert after == [*range(following.base, log.head)]
    assert any(name in problem for problem in report.problems)
    assert (tmp_path / name).read_bytes() == files[name]


@pytest.mark.parametrize("kind", ["sealed", "unsealed"])
def test_a_bad_batch_before_the_last_segment_is_damage_and_not_a_torn_tail(kind: str) -> None:
    name = archive().unsealed if kind == "unsealed" else archive().sealed[-1]
    files = archive().with_flip(name, 8 * (BATCHES_BEGIN + 60))
    if kind == "sealed":
        # Without a footer to trust, the batches are read when the log is opened.
        files[name] = files[name][: archive().footers[name]]

    found = examine(files).recovery

    assert found.damage is not None
    assert (found.damage.segment, found.torn) == (name, None)


def test_a_lost_footer_is_made_again_from_the_batches() -> None:
    name = archive().sealed[1]
    whole = archive().files[name]
    footer = archive().footers[name]
    for content in (
        whole[:footer],
        whole[:-1],
        whole[: (footer + len(whole)) // 2],
        whole[:footer] + bytes(len(whole) - footer),
        flipped(whole, 8 * (len(whole) - 3)),
        flipped(whole, 8 * (footer + 20)),
    ):
        disk = FaultyDisk(archive().files | {name: content})
        run = Run(disk, archive().ledger(), Random(2))
        run.upkeep()
        run.close()

        assert verify(disk).problems == ()
        assert disk.files()[name] == whole, "the same batches give the same footer"


def test_a_footer_is_not_made_again_if_the_batches_do_not_reach_the_next_segment() -> None:
    name = archive().sealed[1]
    content, end = archive().files[name], archive().footers[name]
    for hurt in (content[: end - 1], content[: end - 600] + bytes(600), content[:BATCHES_BEGIN]):
        assert examine(archive().files | {name: hurt}).recovery.damage is not None


def test_a_damaged_head_file_costs_nothing() -> None:
    content = archive().files["head"]
    hurt = [b"", b"\0" * len(content), content[:-1], Random(1).randbytes(len(content))]
    hurt += [flipped(content, bit) for bit in range(8 * len(content))]
    for one in hurt:
        found = recover(FaultyDisk(archive().files | {"head": one}), repair=True)
        assert (found.damage, found.torn) == (None, None)
        assert (found.head, found.epoch) == (len(archive().submitted), EPOCH)
        assert not found.epoch_changed
    go_on(FaultyDisk(archive().without("head")), archive().ledger())
