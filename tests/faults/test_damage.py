"""Damage that no crash explains: noticed, named, never skipped, never built upon.

First the content of one file of a healthy folder is changed; then files are missing, renamed,
doubled, foreign or from the future.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from signalhub.log.disk import SystemDisk
from signalhub.log.errors import LogDamaged
from signalhub.log.footer import TRAILER_BYTES, read_footer
from signalhub.log.reader import Reader
from signalhub.log.record import encode_batch, encode_entry
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN, Header, encode_header, segment_name
from signalhub.log.survey import Damage
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from tests.faults.healthy_folder import Files, Finding, examine, flipped, healthy_folder
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
    found = examine(healthy_folder().files)

    assert found.report.problems == ()
    assert found.names == set()
    assert found.recovery.head == len(healthy_folder().submitted)
    disk = FaultyDisk(healthy_folder().files)
    survive(disk, Ledger([*healthy_folder().submitted], removed=10**6))
    for name, position in healthy_folder().footers.items():
        file = disk.open(name, read_only=True)
        assert read_footer(file).summary.bytes == position < file.size() - TRAILER_BYTES


def test_a_flipped_bit_in_a_sealed_segment_is_noticed_wherever_it_is() -> None:
    rng = Random(5)
    for number in range(FLIPS):
        name = rng.choice(healthy_folder().sealed)
        size, footer = len(healthy_folder().files[name]), healthy_folder().footers[name]
        edges = (0, BATCHES_BEGIN, footer, size - TRAILER_BYTES, size)
        region = number % 4
        bit = rng.randrange(8 * edges[region], 8 * edges[region + 1])
        found = assert_noticed(healthy_folder().with_flip(name, bit), name)
        if region == 0:
            assert found.recovery.damage is not None, "a header counts at once"
        elif region == 1:
            assert found.errors, "a scan comes across it"
        else:
            assert found.recovery.damage is None, "the batches prove themselves"


@pytest.mark.parametrize("kind", ["sealed", "active"])
def test_every_bit_of_a_segment_header_counts(kind: str) -> None:
    name = healthy_folder().active if kind == "active" else healthy_folder().sealed[1]
    for bit in range(8 * BATCHES_BEGIN):
        disk = FaultyDisk(healthy_folder().with_flip(name, bit))
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
        name = rng.choice(healthy_folder().sealed[:-1])
        content = healthy_folder().files[name]
        size = rng.choice((512, 4096))
        begin = rng.randrange(0, len(content), size)
        page = content[begin : begin + size]
        if any(page):
            changed = content[:begin] + bytes(len(page)) + content[begin + size :]
            assert_noticed(healthy_folder().files | {name: changed}, name)
            hurt += 1


def test_a_damaged_segment_stops_readers_before_it_and_not_after(tmp_path: Path) -> None:
    """On a real disk: what lies behind the damage can still be read by whoever asks for it."""
    name = healthy_folder().sealed[1]
    files = healthy_folder().with_flip(name, 8 * (BATCHES_BEGIN + 100))
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
    name = healthy_folder().unsealed if kind == "unsealed" else healthy_folder().sealed[-1]
    files = healthy_folder().with_flip(name, 8 * (BATCHES_BEGIN + 60))
    if kind == "sealed":
        # Without a footer to trust, the batches are read when the log is opened.
        files[name] = files[name][: healthy_folder().footers[name]]

    found = examine(files).recovery

    assert found.damage is not None
    assert (found.damage.segment, found.torn) == (name, None)


def test_a_lost_footer_is_made_again_from_the_batches() -> None:
    name = healthy_folder().sealed[1]
    whole = healthy_folder().files[name]
    footer = healthy_folder().footers[name]
    for content in (
        whole[:footer],
        whole[:-1],
        whole[: (footer + len(whole)) // 2],
        whole[:footer] + bytes(len(whole) - footer),
        flipped(whole, 8 * (len(whole) - 3)),
        flipped(whole, 8 * (footer + 20)),
    ):
        disk = FaultyDisk(healthy_folder().files | {name: content})
        run = Run(disk, healthy_folder().ledger(), Random(2))
        run.upkeep()
        run.close()

        assert verify(disk).problems == ()
        assert disk.files()[name] == whole, "the same batches give the same footer"


def test_a_footer_is_not_made_again_if_the_batches_do_not_reach_the_next_segment() -> None:
    name = healthy_folder().sealed[1]
    content, end = healthy_folder().files[name], healthy_folder().footers[name]
    for hurt in (content[: end - 1], content[: end - 600] + bytes(600), content[:BATCHES_BEGIN]):
        assert examine(healthy_folder().files | {name: hurt}).recovery.damage is not None


def test_a_damaged_head_file_costs_nothing() -> None:
    content = healthy_folder().files["head"]
    hurt = [b"", b"\0" * len(content), content[:-1], Random(1).randbytes(len(content))]
    hurt += [flipped(content, bit) for bit in range(8 * len(content))]
    for one in hurt:
        found = recover(FaultyDisk(healthy_folder().files | {"head": one}), repair=True)
        assert (found.damage, found.torn) == (None, None)
        assert (found.head, found.epoch) == (len(healthy_folder().submitted), EPOCH)
        assert not found.epoch_changed
    go_on(FaultyDisk(healthy_folder().without("head")), healthy_folder().ledger())


def damage_of(files: Files) -> Damage:
    """The damage that was found, and nothing was changed."""
    disk = FaultyDisk(files)
    found = recover(disk, repair=True).damage
    assert found is not None
    assert disk.files() == files
    return found


def test_a_missing_segment_is_named() -> None:
    for name in (*healthy_folder().sealed, healthy_folder().unsealed):
        found = examine(healthy_folder().without(name))

        assert found.recovery.damage is not None
        assert found.recovery.damage.segment == name
        assert "missing" in found.recovery.damage.reason
        assert any(name in problem for problem in found.report.problems)


def test_a_missing_last_segment_is_never_silent() -> None:
    """After a segment that waits for its seal, nothing but the published head knows of it."""
    found = recover(FaultyDisk(healthy_folder().without(healthy_folder().active)), repair=True)
    lost_to = len(healthy_folder().submitted)

    assert found.damage is not None or (found.epoch, found.lost_to) == (EPOCH + 1, lost_to)
    sealed_only = healthy_folder().without(healthy_folder().active, healthy_folder().unsealed)
    assert damage_of(sealed_only).segment == healthy_folder().unsealed


def test_damage_elsewhere_does_not_hide_that_the_end_is_lost_too() -> None:
    """A snapshot that ends before the lost end is then not all there was."""
    whole = healthy_folder()
    hurt = whole.with_flip(whole.sealed[0], 8 * 3)
    cut = hurt | {whole.active: whole.files[whole.active][:BATCHES_BEGIN]}

    assert not recover(FaultyDisk(hurt), repair=False).is_cut
    assert recover(FaultyDisk(cut), repair=False).is_cut


def test_a_folder_without_any_segment_is_not_taken_for_a_new_log() -> None:
    for kept in ("head", healthy_folder().deleted):
        assert damage_of({kept: healthy_folder().files[kept]}).segment.endswith(".log")


def test_a_missing_or_broken_footer_of_a_deleted_segment_is_damage() -> None:
    content = healthy_folder().files[healthy_folder().deleted]
    for hurt in (
        {},
        *({healthy_folder().deleted: one} for one in (b"", content[:-1], flipped(content, 500))),
    ):
        found = examine(healthy_folder().without(healthy_folder().deleted) | hurt)

        assert found.recovery.damage is not None


def test_renamed_swapped_and_duplicated_segments_are_noticed() -> None:
    files = healthy_folder().files
    for name in (*healthy_folder().sealed, healthy_folder().unsealed, healthy_folder().active):
        renamed = {segment_name(int(name[:20]) + 1): files[name]}
        assert examine(healthy_folder().without(name) | renamed).recovery.damage is not None
    for name in healthy_folder().sealed:
        for base in (int(name[:20]) + 1, int(name[:20]) + 10**6, 10**15):
            found = examine(files | {segment_name(base): files[name]})
            assert found.recovery.damage is not None
            assert any(segment_name(base) in problem for problem in found.report.problems)
    one, other, *_ = healthy_folder().sealed
    assert damage_of(files | {one: files[other], other: files[one]}).segment == one


def test_a_segment_of_another_log_is_noticed() -> None:
    """The same offsets, the same epoch, everything right but the chain."""
    disk = FaultyDisk()
    run = Run(disk, Ledger(), Random(22))
    name = healthy_folder().sealed[1]
    submitted = healthy_folder().submitted
    while run.log.segments[-1].base <= int(name[:20]):
        begin = len(run.ledger.submitted)
        run.ledger.submitted += submitted[begin : begin + 3]
        run.log.append(submitted[begin : begin + 3])
        run.upkeep()
    impostor = disk.files()[name]
    assert len(impostor) >= healthy_folder().footers[name]
    assert impostor != healthy_folder().files[name], "salts differ"

    assert "chain" in damage_of(healthy_folder().files | {name: impostor}).reason


def test_a_segment_of_a_newer_program_is_left_alone() -> None:
    for name in (healthy_folder().sealed[0], healthy_folder().active):
        header = bytearray(encode_header(Header(EPOCH, int(name[:20]), 0)))
        header[8] = 2
        header[-4:] = crc32c(header[:-4]).to_bytes(4, "little")
        newer = bytes(header) + healthy_folder().files[name][BATCHES_BEGIN:]

        found = examine(healthy_folder().files | {name: newer}).recovery.damage

        assert found is not None
        assert found.segment == name
        assert "version 2" in found.reason


def test_a_batch_of_a_newer_program_is_not_taken_for_a_torn_one() -> None:
    """Cutting it would throw away what somebody was told is safe."""
    name = healthy_folder().active
    log = opened(FaultyDisk(healthy_folder().files))
    end, head = log.segments[-1].bytes, log.head
    entry = encode_entry(healthy_folder().submitted[0], bytes(16))
    batch = bytearray(encode_batch([entry], first=head, epoch=EPOCH, durable=head, time_ms=0))
    batch[10] = 2
    batch[4:8] = crc32c(batch[8:]).to_bytes(4, "little")

    newer = healthy_folder().files[name][:end] + bytes(batch)
    assert "version 2" in damage_of(healthy_folder().files | {name: newer}).reason


def test_foreign_files_are_listed_and_left_alone() -> None:
    strangers = {
        "notes.txt": b"mine",
        "segment.log": healthy_folder().files[healthy_folder().sealed[0]],
        "00000000000000000000.log.bak": b"a backup",
        "123.log": b"",
        "lost+found.tmp": b"",
    }
    disk = FaultyDisk(healthy_folder().files | strangers)

    found = recover(disk, repair=True)
    go_on(disk, healthy_folder().ledger())

    assert found.damage is None
    assert set(found.foreign) == set(strangers)
    assert {name: disk.files()[name] for name in strangers} == strangers
