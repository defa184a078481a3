from __future__ import annotations

import threading
from random import Random

import pytest

from signalhub.log.errors import EntriesGone, LogDamaged, LogFailed
from signalhub.log.log import Log
from signalhub.log.positions import BLOCK_BYTES
from signalhub.log.reader import Reader
from signalhub.testing import FaultyDisk
from signalhub.wire.entry import Entry
from tests.support.memory.log import (
    as_entry,
    do_upkeep,
    entry,
    fill,
    fill_segments,
    flip_bit,
    open_log,
    seqs,
)

ENDLESS = 2**30
STREAMS = ("orders", "mail/alice", "größe")


def a_busy_log(count: int = 3_000) -> tuple[Log, list[Entry]]:
    """Several sealed segments of several blocks, one unsealed, and one active."""
    log = open_log(FaultyDisk(), segment_bytes=2 * BLOCK_BYTES)
    rng = Random(5)
    counts = dict.fromkeys(STREAMS, 0)
    entries: list[Entry] = []
    while len(entries) < count:
        batch: list[Entry] = []
        for _ in range(rng.randint(1, 5)):
            stream = rng.choice(STREAMS)
            counts[stream] += 1
            at_ms = 1_000 * (len(entries) + len(batch))
            body = rng.randbytes(rng.randrange(400))
            batch.append(entry(counts[stream], stream, at_ms=at_ms, body=body))
            if rng.random() < 0.2:
                batch.append(entry(0, stream, at_ms=at_ms))
        log.append(batch)
        entries += batch
        if len(entries) < count * 0.7:
            do_upkeep(log)
    states = [info.is_sealed for info in log.segments]
    assert states.count(True) > 1
    assert states.count(False) > 2
    return log, entries


@pytest.fixture(scope="module")
def busy() -> tuple[Log, list[Entry]]:
    return a_busy_log()


def readers_of(log: Log) -> list[Reader]:
    return [Reader(log), Reader.of_folder(log.disk), Reader(reopened(log))]


def reopened(log: Log) -> Log:
    disk = log.disk
    assert isinstance(disk, FaultyDisk)
    return open_log(FaultyDisk(disk.files()), segment_bytes=2 * BLOCK_BYTES)


def test_a_scan_gives_everything_in_order(busy: tuple[Log, list[Entry]]) -> None:
    log, entries = busy

    for reader in readers_of(log):
        found = list(reader.scan(0))
        assert [as_entry(one) for one in found] == entries
        assert [one.offset for one in found] == list(range(len(entries)))


def test_a_scan_begins_and_ends_anywhere(busy: tuple[Log, list[Entry]]) -> None:
    log, entries = busy
    rng = Random(1)

    for reader in readers_of(log):
        for _ in range(30):
            begin, end = sorted(rng.sample(range(len(entries)), 2))
            found = [as_entry(one) for one in reader.scan(begin, end)]
            assert found == entries[begin:end]
        assert list(reader.scan(len(entries))) == []
        assert list(reader.scan(0, 0)) == []


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_is_read_from_any_position(busy: tuple[Log, list[Entry]], stream: str) -> None:
    log, entries = busy
    expected = [one for one in entries if one.stream == stream and one.seq]

    for reader in readers_of(log):
        for from_seq in (1, 2, len(expected) // 2, len(expected), len(expected) + 1):
            found = reader.read(stream, 1, from_seq, 20, ENDLESS)
            assert [as_entry(one) for one in found] == expected[from_seq - 1 : from_seq + 19]
            assert all(as_entry(one) == entries[one.offset] for one in found)


def test_a_whole_stream_is_read_in_pieces(busy: tuple[Log, list[Entry]]) -> None:
    log, entries = busy
    reader = Reader(log)
    found: list[int] = []
    while piece := reader.read("größe", 1, len(found) + 1, 7, ENDLESS):
        found += seqs(piece)

    assert found == [one.seq for one in entries if one.stream == "größe" and one.seq]


def test_other_streams_and_other_epochs_are_empty(busy: tuple[Log, list[Entry]]) -> None:
    reader = Reader(busy[0])

    assert reader.read("orders", 2, 1, 10, ENDLESS) == []
    assert reader.read("nobody", 1, 1, 10, ENDLESS) == []
    assert reader.earliest("nobody", 1) is None
    assert reader.seq_at_time("nobody", 1, 0) is None


def test_a_piece_is_bounded_by_bytes_but_never_empty(busy: tuple[Log, list[Entry]]) -> None:
    reader = Reader(busy[0])
    bodies = [len(one.body) for one in reader.read("orders", 1, 1, 10, ENDLESS)]

    assert len(reader.read("orders", 1, 1, 10, 0)) == 1
    assert len(reader.read("orders", 1, 1, 10, sum(bodies[:3]))) == 3
    assert len(reader.read("orders", 1, 1, 10, sum(bodies[:4]) - 1)) == 3


def test_a_position_is_found_by_time(busy: tuple[Log, list[Entry]]) -> None:
    log, entries = busy
    own = [one for one in entries if one.stream == "orders" and one.seq]

    for reader in readers_of(log):
        for time_ms in (0, own[0].at_ms, own[0].at_ms + 1, own[300].at_ms - 1, own[-1].at_ms):
            expected = next(one.seq for one in own if one.at_ms >= time_ms)
            assert reader.seq_at_time("orders", 1, time_ms) == expected
        assert reader.seq_at_time("orders", 1, own[-1].at_ms + 1) is None


def test_a_clock_that_was_set_back_hides_nothing() -> None:
    log = open_log(FaultyDisk())
    log.append([entry(seq, at_ms=at_ms) for seq, at_ms in enumerate((10, 50, 20, 30, 60), 1)])

    assert Reader(log).seq_at_time("orders", 1, 40) == 2
    assert Reader(log).seq_at_time("orders", 1, 55) == 5


def test_a_stream_with_a_gap_is_read_across_it() -> None:
    log = open_log(FaultyDisk(), segment_bytes=2_000)
    for seq in (1, 2, 5, 6, *range(50, 70)):
        log.append([entry(seq)])
    do_upkeep(log)

    assert seqs(Reader(log).read("orders", 1, 2, 5, ENDLESS)) == [2, 5, 6, 50, 51]


def test_a_reader_sees_what_is_appended_after_it_was_made() -> None:
    log = open_log(FaultyDisk(), segment_bytes=5_000)
    reader, other_process = Reader(log), Reader.of_folder(log.disk)

    for seq in range(1, 150):
        log.append([entry(seq)])
        assert seqs(reader.read("orders", 1, seq, 10, ENDLESS)) == [seq]
        if seq % 10 == 0:
            assert seqs(list(other_process.scan(seq - 1))) == [seq]
            assert seqs(other_process.read("orders", 1, seq, 10, ENDLESS)) == [seq]
            do_upkeep(log)


def test_a_scan_goes_on_to_the_head_there_is_when_it_is_reached() -> None:
    log = open_log(FaultyDisk())
    fill(log, 2)
    scan = Reader(log).scan(0)

    assert next(scan).offset == 0
    fill(log, 3)
    assert [one.offset for one in scan] == [1, 2, 3, 4]


def test_another_process_does_not_read_past_the_durable_head() -> None:
    log = open_log(FaultyDisk(), sync="os")
    fill(log, 3)
    log.sync()
    fill(log, 3, first_seq=4)

    assert len(list(Reader(log).scan(0))) == 6
    other_process = Reader.of_folder(log.disk)
    assert len(list(other_process.scan(0))) == 3
    assert seqs(other_process.read("orders", 1, 1, 10, ENDLESS)) == [1, 2, 3]


def test_the_folder_of_a_stopped_hub_without_a_head_file_is_read_to_its_last_good_batch() -> None:
    disk = FaultyDisk()
    fill(open_log(disk), 3)
    disk.remove("head")

    assert len(list(Reader.of_folder(disk).scan(0))) == 3


def test_readers_of_other_threads_never_disturb_the_writer() -> None:
    log = open_log(FaultyDisk(), segment_bytes=8_000)
    faults: list[BaseException] = []
    is_done = threading.Event()

    def follow() -> None:
        reader = Reader(log)
        offset = seq = 0
        try:
            while not is_done.is_set() or offset < log.head:
                for stored in reader.scan(offset):
                    assert stored.offset == offset
                    offset += 1
                for stored in reader.read("orders", 1, seq + 1, 50, ENDLESS):
                    assert stored.seq == seq + 1
                    seq = stored.seq
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for seq in range(1, 1_500, 3):
        log.append([entry(seq), entry(seq + 1), entry(seq + 2)])
        if seq % 50 == 1:
            do_upkeep(log)
    is_done.set()
    for thread in threads:
        thread.join()

    assert faults == []


def test_entries_that_were_removed_are_reported_as_gone() -> None:
    log = open_log(FaultyDisk(), segment_bytes=2_000)
    fill_segments(log, 4)
    do_upkeep(log)
    reader, other_process = Reader(log), Reader.of_folder(log.disk)
    list(reader.scan(0))
    first = log.segments[2].base

    log.remove(log.segments[:2])

    assert log.first == first
    with pytest.raises(EntriesGone) as gone:
        next(reader.scan(0))
    assert gone.value.first == first
    assert next(reader.scan(first)).offset == first
    assert reader.earliest("orders", 1) == first + 1
    assert reader.read("orders", 1, 1, 1, ENDLESS)[0].seq == first + 1
    with pytest.raises(EntriesGone):
        next(other_process.scan(0))
    assert other_process.earliest("orders", 1) == first + 1


def damaged_log() -> tuple[Log, int]:
    """A log with a flipped bit in the body of the entry at an offset."""
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 4)
    do_upkeep(log)
    info = log.segments[1]
    content = disk.files()[info.name]
    files = disk.files() | {info.name: content[:1_000] + b"?" + content[1_001:]}
    batch_bytes = (info.bytes - 40) // (info.end - info.base)
    return open_log(FaultyDisk(files)), info.base + (1_000 - 40) // batch_bytes


def test_damage_is_reported_and_never_skipped() -> None:
    log, bad = damaged_log()
    reader = Reader(log)

    with pytest.raises(LogDamaged, match=log.segments[1].name):
        list(reader.scan(0))
    with pytest.raises(LogDamaged):
        reader.read("orders", 1, bad + 1, 1, ENDLESS)
    assert reader.read("orders", 1, 1, 1, ENDLESS)[0].seq == 1
    before = reader.read("orders", 1, 1, 100, ENDLESS)
    assert seqs(before) == list(range(1, len(before) + 1))
    assert len(before) <= bad


def test_a_missing_segment_hides_only_itself() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 5)
    do_upkeep(log)
    before, missing, after, *_ = log.segments[1:]
    disk.remove(missing.name)
    log = open_log(disk)
    reader = Reader(log)

    assert len(list(reader.scan(0, before.end))) == before.end
    with pytest.raises(LogDamaged, match=missing.name):
        list(reader.scan(before.base))
    assert len(list(reader.scan(after.base))) == log.head - after.base
    assert seqs(reader.read("orders", 1, 1, ENDLESS, ENDLESS))[-1] == before.end
    with pytest.raises(LogDamaged, match=missing.name):
        reader.read("orders", 1, before.end + 1, 1, ENDLESS)
    assert seqs(reader.read("orders", 1, after.base + 1, 1, ENDLESS)) == [after.base + 1]


def test_a_footer_that_cannot_be_used_is_done_without() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 3)
    do_upkeep(log)
    info = log.segments[0]
    flip_bit(disk, info.name, disk.open(info.name).size() - 40)

    assert len(Reader(log).read("orders", 1, 1, info.end, ENDLESS)) == info.end


def test_a_disk_that_cannot_be_read_is_reported() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    fill(log, 3)
    disk.fail("read")

    with pytest.raises(LogFailed):
        list(Reader(log).scan(0))


def test_a_closed_reader_holds_no_file() -> None:
    disk = FaultyDisk()
    log = open_log(disk, segment_bytes=2_000)
    fill_segments(log, 4)
    do_upkeep(log)
    before = disk.open_files
    reader = Reader(log)
    list(reader.scan(0))
    reader.read("orders", 1, 1, ENDLESS, ENDLESS)
    assert disk.open_files > before

    reader.close()

    assert disk.open_files == before
