from __future__ import annotations

from hashlib import sha256
from itertools import islice
from random import Random

import pytest
from msgspec.structs import replace

from signalhub.log.errors import LogDamaged
from signalhub.log.footer import (
    GENESIS,
    SUMMARY_BYTES,
    Footer,
    decode_summary,
    encode_summary,
    read_footer,
    read_summary,
)
from signalhub.log.log import Log
from signalhub.log.positions import BLOCK_BYTES, read_positions
from signalhub.log.record import Unreadable, entry_digest, entry_positions
from signalhub.log.seal import seal
from signalhub.log.segment import BATCHES_BEGIN, SegmentInfo, scan_batches
from signalhub.testing import FaultyDisk
from signalhub.wire.entry import Entry
from tests.support.memory.log import (
    do_upkeep,
    entry,
    erase,
    fill_segments,
    flip_bit,
    open_log,
    sealed_log,
)

SEGMENT_BYTES = 4_000


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def log(disk: FaultyDisk) -> Log:
    """A log of two segments that are not sealed."""
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    fill_segments(log, 2)
    return log


def footer_of(disk: FaultyDisk, info: SegmentInfo) -> Footer:
    return read_footer(disk.open(info.name))


def footer_over(*entries: Entry) -> tuple[Log, Footer]:
    """The footer of a segment with these entries."""
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=SEGMENT_BYTES)
    log.append(entries)
    log.append([entry(1, "other", body=bytes(SEGMENT_BYTES))])
    do_upkeep(log)
    return log, footer_of(disk, log.segments[0])


def digests(disk: FaultyDisk, info: SegmentInfo) -> list[bytes]:
    return [
        entry_digest(located.data, at)
        for located in scan_batches(disk.open(info.name), BATCHES_BEGIN, info.bytes)
        for at in entry_positions(located.data, located.batch, located.at)
    ]


def test_the_chain_runs_over_the_digests_of_all_entries_of_sealed_segments() -> None:
    disk, log = sealed_log(4)
    chain = GENESIS

    assert [info.is_sealed for info in log.segments] == [True, True, True, False]
    assert not log.has_upkeep
    for info in log.segments[:-1]:
        summary = footer_of(disk, info).summary
        assert summary.previous_chain == chain
        chain = sha256(chain + b"".join(digests(disk, info))).digest()
        assert summary.chain == info.chain == chain


def test_an_erased_entry_leaves_the_chain_as_it_was() -> None:
    disk, log = sealed_log(4)
    info = log.segments[1]
    before = digests(disk, info)

    erase(disk, info, info.base + 2)

    after = footer_of(disk, info).summary
    assert after.chain == info.chain
    assert after.bytes < info.bytes
    assert digests(disk, replace(info, bytes=after.bytes)) == before


def test_a_footer_tells_the_extent_and_the_times_of_its_segment() -> None:
    log, footer = footer_over(*(entry(seq, at_ms=at) for seq, at in ((1, 500), (2, 300), (3, 400))))
    summary = footer.summary

    assert (summary.base, summary.end) == (0, 3)
    assert (summary.min_ms, summary.max_ms) == (300, 500)
    assert (summary.epoch, summary.bytes) == (log.epoch, log.segments[0].bytes)


def test_a_stream_with_a_gap_has_several_runs() -> None:
    _, footer = footer_over(*(entry(seq) for seq in (1, 2, 7, 8, 0)))

    runs = footer.runs("orders", 1)
    assert [(run.first_seq, run.end_seq) for run in runs] == [(1, 3), (7, 9)]


def test_a_footer_finds_every_entry_of_every_stream(disk: FaultyDisk) -> None:
    rng = Random(3)
    log = open_log(disk, segment_bytes=3 * BLOCK_BYTES)
    counts: dict[tuple[str, int], int] = {}
    while len(log.segments) < 2:
        stream = f"größe-{rng.randrange(300)}", rng.randrange(2)
        counts[stream] = counts.get(stream, 0) + 1
        size = rng.randrange(300)
        log.append([entry(counts[stream], stream[0], stream_epoch=stream[1], body=bytes(size))])
    found = read_positions(disk, log.segments[0])
    do_upkeep(log)

    footer = footer_of(disk, log.segments[0])

    assert footer.summary.runs == len(counts) > 100
    assert footer.summary.marks >= 3
    for stream in counts:
        expected = [(run.first_seq, list(run.positions)) for run in found.runs(*stream)]
        assert [(run.first_seq, list(run.positions)) for run in footer.runs(*stream)] == expected
    for offset in range(log.segments[0].end):
        assert footer.span_of_offset(offset) == found.span_of_offset(offset)
    for position in range(BATCHES_BEGIN, log.segments[0].bytes, 97):
        assert footer.span_of_position(position) == found.span_of_position(position)
    assert footer.runs("nobody", 1) == []


def test_sealing_comes_in_many_slices(disk: FaultyDisk) -> None:
    log = open_log(disk, segment_bytes=500_000)
    log.append([entry(seq, body=b"") for seq in range(1, 4_001)])
    log.append([entry(1, "other", body=bytes(500_000))])

    assert do_upkeep(log) > 4_000 / 200


def test_upkeep_ends_although_the_log_rolls_all_the_time(log: Log) -> None:
    fill_segments(log, 3)

    for _ in islice(log.upkeep(), 1_000):
        fill_segments(log, len(log.segments) + 1)

    assert [info.is_sealed for info in log.segments[:4]] == [True, True, False, False]
    do_upkeep(log)
    assert all(info.is_sealed for info in log.segments[:-1])


def test_the_prepared_rest_of_a_segment_is_cut_off_when_it_is_sealed(
    disk: FaultyDisk, log: Log
) -> None:
    info = log.segments[0]
    disk.open(info.name).write(bytes(10_000), info.bytes)

    do_upkeep(log)

    assert len(disk.files()[info.name]) < info.bytes + 1_000
    assert read_summary(disk.open(info.name)).chain == log.segments[0].chain


def test_a_damaged_segment_is_not_sealed(disk: FaultyDisk, log: Log) -> None:
    info = log.segments[0]
    flip_bit(disk, info.name, 300)
    before = disk.files()[info.name]

    do_upkeep(log)

    assert log.state == "damaged"
    assert disk.files()[info.name] == before
    with pytest.raises(LogDamaged, match=info.name):
        log.append([entry(99)])


def test_a_segment_is_not_sealed_against_the_chain_of_the_next_one() -> None:
    disk, log = sealed_log(3)

    with pytest.raises(LogDamaged, match="do not match the chain"):
        list(seal(disk, replace(log.segments[0], is_sealed=False), GENESIS, bytes(32)))


def test_every_flipped_bit_of_a_summary_is_noticed() -> None:
    disk, log = sealed_log(2)
    data = encode_summary(footer_of(disk, log.segments[0]).summary)
    assert len(data) == SUMMARY_BYTES

    for bit in range(8 * len(data)):
        with pytest.raises(Unreadable):
            decode_summary((int.from_bytes(data) ^ 1 << bit).to_bytes(len(data)))
