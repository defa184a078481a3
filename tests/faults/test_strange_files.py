"""Files that are missing, renamed, doubled, foreign or from the future: named, never deleted."""

from __future__ import annotations

from random import Random

from crc32c import crc32c

from signalhub.log.record import encode_batch, encode_entry
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN, Header, encode_header, segment_name
from signalhub.log.survey import Damage
from signalhub.testing import FaultyDisk
from tests.faults.archive import Files, archive, examine, flipped
from tests.support.memory.log_workload import EPOCH, Ledger, Run, go_on, opened


def damage_of(files: Files) -> Damage:
    """The damage that was found, and nothing was changed."""
    disk = FaultyDisk(files)
    found = recover(disk, repair=True).damage
    assert found is not None
    assert disk.files() == files
    return found


def test_a_missing_segment_is_named() -> None:
    for name in (*archive().sealed, archive().unsealed):
        found = examine(archive().without(name))

        assert found.recovery.damage is not None
        assert found.recovery.damage.segment == name
        assert "missing" in found.recovery.damage.reason
        assert any(name in problem for problem in found.report.problems)


def test_a_missing_last_segment_is_never_silent() -> None:
    """After a segment that waits for its seal, nothing but the published head knows of it."""
    found = recover(FaultyDisk(archive().without(archive().active)), repair=True)
    lost_to = len(archive().submitted)

    assert found.damage is not None or (found.epoch, found.lost_to) == (EPOCH + 1, lost_to)
    sealed_only = archive().without(archive().active, archive().unsealed)
    assert damage_of(sealed_only).segment == archive().unsealed


def test_a_folder_without_any_segment_is_not_taken_for_a_new_log() -> None:
    for kept in ("head", archive().deleted):
        assert damage_of({kept: archive().files[kept]}).segment.endswith(".log")


def test_a_missing_or_broken_footer_of_a_deleted_segment_is_damage() -> None:
    content = archive().files[archive().deleted]
    for hurt in (
        {},
        *({archive().deleted: one} for one in (b"", content[:-1], flipped(content, 500))),
    ):
        found = examine(archive().without(archive().deleted) | hurt)

        assert found.recovery.damage is not None


def test_renamed_swapped_and_duplicated_segments_are_noticed() -> None:
    files = archive().files
    for name in (*archive().sealed, archive().unsealed, archive().active):
        renamed = {segment_name(int(name[:20]) + 1): files[name]}
        assert examine(archive().without(name) | renamed).recovery.damage is not None
    for name in archive().sealed:
        for base in (int(name[:20]) + 1, int(name[:20]) + 10**6, 10**15):
            found = examine(files | {segment_name(base): files[name]})
            assert found.recovery.damage is not None
            assert any(segment_name(base) in problem for problem in found.report.problems)
    one, other, *_ = archive().sealed
    assert damage_of(files | {one: files[other], other: files[one]}).segment == one


def test_a_segment_of_another_log_is_noticed() -> None:
    """The same offsets, the same epoch, everything right but the chain."""
    disk = FaultyDisk()
    run = Run(disk, Ledger(), Random(22))
    name = archive().sealed[1]
    submitted = archive().submitted
    while run.log.segments[-1].base <= int(name[:20]):
        begin = len(run.ledger.submitted)
        run.ledger.submitted += submitted[begin : begin + 3]
        run.log.append(submitted[begin : begin + 3])
        run.upkeep()
    impostor = disk.files()[name]
    assert len(impostor) >= archive().footers[name]
    assert impostor != archive().files[name], "salts differ"

    assert "chain" in damage_of(archive().files | {name: impostor}).reason


def test_a_segment_of_a_newer_program_is_left_alone() -> None:
    for name in (archive().sealed[0], archive().active):
        header = bytearray(encode_header(Header(EPOCH, int(name[:20]), 0)))
        header[8] = 2
        header[-4:] = crc32c(header[:-4]).to_bytes(4, "little")
        newer = bytes(header) + archive().files[name][BATCHES_BEGIN:]

        found = examine(archive().files | {name: newer}).recovery.damage

        assert found is not None
        assert found.segment == name
        assert "version 2" in found.reason


def test_a_batch_of_a_newer_program_is_not_taken_for_a_torn_one() -> None:
    """Cutting it would throw away what somebody was told is safe."""
    name = archive().active
    log = opened(FaultyDisk(archive().files))
    end, head = log.segments[-1].bytes, log.head
    entry = encode_entry(archive().submitted[0], bytes(16))
    batch = bytearray(encode_batch([entry], first=head, epoch=EPOCH, durable=head, time_ms=0))
    batch[10] = 2
    batch[4:8] = crc32c(batch[8:]).to_bytes(4, "little")

    newer = archive().files[name][:end] + bytes(batch)
    assert "version 2" in damage_of(archive().files | {name: newer}).reason


def test_foreign_files_are_listed_and_left_alone() -> None:
    strangers = {
        "notes.txt": b"mine",
        "segment.log": archive().files[archive().sealed[0]],
        "00000000000000000000.log.bak": b"a backup",
        "123.log": b"",
        "lost+found.tmp": b"",
    }
    disk = FaultyDisk(archive().files | strangers)

    found = recover(disk, repair=True)
    go_on(disk, archive().ledger())

    assert found.damage is None
    assert set(found.foreign) == set(strangers)
    assert {name: disk.files()[name] for name in strangers} == strangers
