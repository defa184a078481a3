"""Files that are missing, renamed, doubled, foreign or from the future: named, never deleted."""

from __future__ import annotations

from random import Random

from crc32c import crc32c

from signalhub.log.record import encode_batch, encode_entry
from signalhub.log.recovery import recover
from signalhub.log.segment import BATCHES_BEGIN, Header, encode_header, segment_name
from signalhub.testing import FaultyDisk
from tests.faults.archive import archive, examine, flipped, opened
from tests.support.memory.log_workload import EPOCH, Ledger, Run, go_on


def test_a_missing_segment_is_named() -> None:
    for name in (*archive().sealed, archive().unsealed):
        files = {k: v for k, v in archive().files.items() if k != name}

        found = examine(files)

        assert found.recovery.damage is not None
        assert found.recovery.damage.segment == name
        assert "missing" in found.recovery.damage.reason
        assert any(name in problem for problem in found.report.problems)


def test_a_missing_last_segment_is_never_silent() -> None:
    """After a segment that waits for its seal, nothing but the published head knows of it."""
    files = {k: v for k, v in archive().files.items() if k != archive().active}
    total = len(archive().ledger.submitted)

    found = recover(FaultyDisk(files), repair=True)

    assert found.damage is not None or (found.epoch, found.lost_to) == (EPOCH + 1, total)


def test_a_missing_last_segment_after_a_sealed_one_is_named() -> None:
    files = {
        k: v for k, v in archive().files.items() if k not in (archive().active, archive().unsealed)
    }

    found = recover(FaultyDisk(files), repair=True)

    assert found.damage is not None
    assert found.damage.segment == archive().unsealed


def test_a_folder_without_any_segment_is_not_taken_for_a_new_log() -> None:
    for kept in ("head", archive().deleted):
        files = {kept: archive().files[kept]}

        found = recover(FaultyDisk(files), repair=True)

        assert found.damage is not None
        assert found.damage.segment.endswith(".log")


def test_a_missing_or_broken_footer_of_a_deleted_segment_is_damage() -> None:
    content = archive().files[archive().deleted]
    for hurt in (None, b"", content[:-1], flipped(content, 500)):
        files = {k: v for k, v in archive().files.items() if k != archive().deleted}
        if hurt is not None:
            files[archive().deleted] = hurt

        found = examine(files)

        assert found.recovery.damage is not None


def test_a_renamed_segment_is_found_out() -> None:
    for name in (*archive().sealed, archive().unsealed, archive().active):
        files = {k: v for k, v in archive().files.items() if k != name}
        files[segment_name(int(name[:20]) + 1)] = archive().files[name]

        found = examine(files)

        assert found.recovery.damage is not None


def test_a_duplicated_segment_is_found_out() -> None:
    for name in archive().sealed:
        base = int(name[:20])
        for other in (base + 1, base + 10**6, 10**15):
            twin = segment_name(other)

            found = examine(archive().files | {twin: archive().files[name]})

            assert found.recovery.damage is not None
            assert any(twin in problem for problem in found.report.problems)


def test_swapped_segments_are_found_out() -> None:
    one, other, *_ = archive().sealed
    files = archive().files | {one: archive().files[other], other: archive().files[one]}

    found = examine(files)

    assert found.recovery.damage is not None
    assert found.recovery.damage.segment == one


def test_a_segment_of_another_log_is_found_out() -> None:
    """The same offsets, the same epoch, everything right but the chain."""
    disk = FaultyDisk()
    run = Run(disk, Ledger(), Random(22))
    name = archive().sealed[1]
    base, size = int(name[:20]), archive().footers[name]
    submitted = archive().ledger.submitted
    while run.log.segments[-1].base <= base:
        count = min(3, len(submitted) - len(run.ledger.submitted))
        begin = len(run.ledger.submitted)
        run.ledger.submitted += submitted[begin : begin + count]
        run.log.append(submitted[begin : begin + count])
        run.upkeep()
    impostor = disk.files()[name]
    assert len(impostor) >= size
    assert impostor != archive().files[name], "salts differ"

    found = recover(FaultyDisk(archive().files | {name: impostor}), repair=True)

    assert found.damage is not None
    assert "chain" in found.damage.reason


def test_a_segment_of_a_newer_program_is_left_alone() -> None:
    for name in (archive().sealed[0], archive().active):
        content = archive().files[name]
        header = bytearray(encode_header(Header(EPOCH, int(name[:20]), 0)))
        header[8] = 2
        newer = with_fresh_checksum(bytes(header)) + content[BATCHES_BEGIN:]

        found = examine(archive().files | {name: newer})

        assert found.recovery.damage is not None
        assert found.recovery.damage.segment == name
        assert "version 2" in found.recovery.damage.reason


def with_fresh_checksum(header: bytes) -> bytes:
    return header[:-4] + crc32c(header[:-4]).to_bytes(4, "little")


def test_a_batch_of_a_newer_program_is_not_taken_for_a_torn_one() -> None:
    """Cutting it would throw away what somebody was told is safe."""
    name = archive().active
    log = opened(archive().files)
    end, head = log.segments[-1].bytes, log.head
    entry = encode_entry(archive().ledger.submitted[0], bytes(16))
    batch = bytearray(encode_batch([entry], first=head, epoch=EPOCH, durable=head, time_ms=0))
    batch[10] = 2
    batch[4:8] = crc32c(batch[8:]).to_bytes(4, "little")
    files = archive().files | {name: archive().files[name][:end] + bytes(batch)}
    disk = FaultyDisk(files)

    found = recover(disk, repair=True)

    assert found.damage is not None
    assert "version 2" in found.damage.reason
    assert disk.files() == files


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
    ledger = Ledger([*archive().ledger.submitted], removed=archive().first)
    go_on(disk, ledger)

    assert found.damage is None
    assert set(found.foreign) == set(strangers)
    assert {name: disk.files()[name] for name in strangers} == strangers
