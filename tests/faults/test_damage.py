"""Damage that no crash explains: named, never skipped, never deleted, never built upon.

Each test hurts a copy of one healthy folder and compares what can still be read with what was
written: wrong is nothing, missing is only what an error stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from signalhub.entry import Stored
from signalhub.log.disk import SystemDisk
from signalhub.log.errors import LogDamaged
from signalhub.log.footer import TRAILER_BYTES, read_footer
from signalhub.log.log import Log
from signalhub.log.reader import Reader
from signalhub.log.record import encode_batch, encode_entry
from signalhub.log.recovery import Recovery, recover
from signalhub.log.segment import BATCHES_BEGIN, Header, encode_header, segment_name
from signalhub.log.verify import Report, verify
from signalhub.testing import FakeClock, FaultyDisk
from tests.faults.workload import (
    ENDLESS,
    EPOCH,
    STREAMS,
    Ledger,
    Run,
    as_submitted,
    go_on,
    log_settings,
    make_entries,
    survive,
)

FLIPS = 200
PAGES = 200


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

    recovery: Recovery
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
    seen: list[Stored] = []
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
        found: list[Stored] = []
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


def assert_noticed(files: dict[str, bytes], name: str) -> Finding:
    """The full check names the file; so does whoever comes across the damage."""
    found = examine(files)
    assert any(name in problem for problem in found.report.problems)
    assert found.names <= {name}
    return found


def test_the_healthy_folder_is_healthy() -> None:
    found = examine(archive().files)

    assert found.report.problems == ()
    assert found.names == set()
    assert found.recovery.head == len(archive().ledger.submitted)
    survive(FaultyDisk(archive().files), Ledger([*archive().ledger.submitted], removed=10**6))


def test_a_flipped_bit_in_a_sealed_segment_is_noticed_wherever_it_is() -> None:
    rng = Random(5)
    regions = {"header": 0, "batches": 0, "footer": 0, "trailer": 0}
    for number in range(FLIPS):
        name = rng.choice(archive().sealed)
        size, footer = len(archive().files[name]), archive().footers[name]
        spans = {
            "header": (0, BATCHES_BEGIN),
            "batches": (BATCHES_BEGIN, footer),
            "footer": (footer, size - TRAILER_BYTES),
            "trailer": (size - TRAILER_BYTES, size),
        }
        region = list(spans)[number % 4]
        begin, end = spans[region]
        bit = rng.randrange(8 * begin, 8 * end)
        found = assert_noticed(archive().with_flip(name, bit), name)
        regions[region] += 1
        if region == "header":
            assert found.recovery.damage is not None
        if region == "batches":
            assert found.errors, "a scan comes across it"
        if region in ("footer", "trailer"):
            assert found.recovery.damage is None, "the batches prove themselves"
    assert min(regions.values()) == FLIPS // 4


def test_every_bit_of_a_segment_header_counts() -> None:
    name = archive().sealed[1]
    for bit in range(8 * BATCHES_BEGIN):
        found = recover(FaultyDisk(archive().with_flip(name, bit)), repair=True)
        assert found.damage is not None
        assert found.damage.segment == name


def test_every_bit_of_the_last_header_counts() -> None:
    name = archive().active
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
        name = rng.choice(archive().sealed)
        content = bytearray(archive().files[name])
        size = rng.choice((512, 4096))
        begin = rng.randrange(0, len(content), size)
        if not any(content[begin : begin + size]):
            continue
        content[begin : begin + size] = bytes(len(content[begin : begin + size]))
        assert_noticed(archive().files | {name: bytes(content)}, name)
        hurt += 1


def test_a_damaged_segment_stops_readers_before_it_and_not_after() -> None:
    """What lies behind the damage can still be read by whoever asks for it."""
    name = archive().sealed[1]
    log = opened(archive().with_flip(name, 8 * (BATCHES_BEGIN + 100)))
    reader = Reader(log)
    broken, following = log.segments[1], log.segments[2]

    before = [one.offset for one in reader.scan(log.first, broken.base)]
    with pytest.raises(LogDamaged, match=name):
        [*reader.scan(broken.base)]
    after = [one.offset for one in reader.scan(following.base)]

    assert before == [*range(log.first, broken.base)]
    assert after == [*range(following.base, log.head)]


def opened(files: dict[str, bytes]) -> Log:
    disk = FaultyDisk(files)
    return Log(disk, log_settings(), recover(disk, repair=True), clock=FakeClock())


@pytest.mark.parametrize("kind", ["sealed", "unsealed"])
def test_a_bad_batch_before_the_last_segment_is_damage_and_not_a_torn_tail(kind: str) -> None:
    name = archive().unsealed if kind == "unsealed" else archive().sealed[-1]
    files = archive().with_flip(name, 8 * (BATCHES_BEGIN + 60))
    if kind == "sealed":
        # Without a footer to trust, the batches are read when the log is opened.
        files[name] = files[name][: archive().footers[name]]

    found = recover(FaultyDisk(files), repair=True)

    assert found.damage is not None
    assert found.damage.segment == name
    assert found.torn is None
    examine(files)


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
        ledger = Ledger([*archive().ledger.submitted], removed=archive().first)
        run = Run(disk, ledger, Random(2))
        run.upkeep()
        run.close()

        assert verify(disk).problems == ()
        assert disk.files()[name] == whole, "the same batches give the same footer"


def test_a_footer_is_not_made_again_if_the_batches_do_not_reach_the_next_segment() -> None:
    name = archive().sealed[1]
    end = archive().footers[name]
    for content in (
        archive().files[name][: end - 1],
        archive().files[name][: end - 600] + bytes(600),
        archive().files[name][:BATCHES_BEGIN],
    ):
        files = archive().files | {name: content}

        found = recover(FaultyDisk(files), repair=True)

        assert found.damage is not None
        examine(files)


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


def test_a_damaged_head_file_costs_nothing() -> None:
    content = archive().files["head"]
    total = len(archive().ledger.submitted)
    hurt = [b"", b"\0" * len(content), content[:-1], Random(1).randbytes(len(content))]
    hurt += [flipped(content, bit) for bit in range(8 * len(content))]
    for one in hurt:
        disk = FaultyDisk(archive().files | {"head": one})
        found = recover(disk, repair=True)
        assert (found.damage, found.torn) == (None, None)
        assert (found.head, found.epoch, found.epoch_changed) == (total, EPOCH, False)
    without = {k: v for k, v in archive().files.items() if k != "head"}
    go_on(FaultyDisk(without), Ledger([*archive().ledger.submitted], removed=archive().first))


def test_the_same_damage_is_found_on_a_real_disk(tmp_path: Path) -> None:
    name = archive().sealed[1]
    files = archive().with_flip(name, 8 * (BATCHES_BEGIN + 100))
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    disk = SystemDisk(tmp_path)

    report = verify(SystemDisk(tmp_path, read_only=True))
    log = Log(disk, log_settings(), recover(disk, repair=True), clock=FakeClock())
    with pytest.raises(LogDamaged, match=name):
        [*Reader(log).scan(log.first)]
    log.close()

    assert any(name in problem for problem in report.problems)
    assert (tmp_path / name).read_bytes() == files[name]


def test_the_footers_of_the_archive_can_be_read() -> None:
    """The spans that the flips above are drawn from are what they are called."""
    disk = FaultyDisk(archive().files)
    for name, position in archive().footers.items():
        file = disk.open(name, read_only=True)
        assert read_footer(file).summary.bytes == position < file.size() - TRAILER_BYTES
