from __future__ import annotations

import threading
from random import Random

import pytest
from crc32c import crc32c

from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.log.positions import BLOCK_BYTES, Positions
from signalhub.log.reader import Reader
from signalhub.log.record import batch_length
from signalhub.log.segment import BATCHES_BEGIN
from signalhub.log.verify import verify
from signalhub.testing import FaultyDisk
from signalhub.wire.entry import Entry
from tests.support.memory.log import (
    as_entry,
    do_upkeep,
    entry,
    fill,
    flip_bit,
    open_log,
    sealed_log,
    seqs,
)

ENDLESS = 2**30
STREAMS = ("orders", "mail/alice", "größe")


class Busy:
    """Several sealed segments of several blocks, some unsealed, one active; read in every way."""

    def __init__(self) -> None:
        disk, rng = FaultyDisk(), Random(5)
        log = open_log(disk, segment_bytes=2 * BLOCK_BYTES)
        counts = dict.fromkeys(STREAMS, 0)
        self.entries: list[Entry] = []
        while len(self.entries) < 3_000:
            batch: list[Entry] = []
            for _ in range(rng.randint(1, 5)):
                stream = rng.choice(STREAMS)
                counts[stream] += 1
                at_ms = 1_000 * (len(self.entries) + len(batch))
                body = rng.randbytes(rng.randrange(400))
                batch.append(entry(counts[stream], stream, at_ms=at_ms, body=body))
                if rng.random() < 0.2:
                    batch.append(entry(0, stream, at_ms=at_ms))
            log.append(batch)
            self.entries += batch
            if len(self.entries) < 2_100:
                do_upkeep(log)
        states = [info.is_sealed for info in log.segments]
        assert states.count(True) > 1
        assert states.count(False) > 2
        reopened = open_log(FaultyDisk(disk.files()), segment_bytes=2 * BLOCK_BYTES)
        self.readers = [Reader(log), Reader.of_folder(disk), Reader(reopened)]

    def stream(self, name: str) -> list[Entry]:
        return [one for one in self.entries if one.stream == name and one.seq]


@pytest.fixture(scope="module")
def busy() -> Busy:
    return Busy()


def test_a_scan_gives_everything_in_order_from_anywhere_to_anywhere(busy: Busy) -> None:
    count, rng = len(busy.entries), Random(1)
    parts = [(0, count), (count, count), (0, 0)]
    parts += [(min(two), max(two)) for two in (rng.sample(range(count), 2) for _ in range(30))]
    for reader in busy.readers:
        for begin, end in parts:
            found = list(reader.scan(begin, end))
            assert [as_entry(one) for one in found] == busy.entries[begin:end]
            assert [one.offset for one in found] == list(range(begin, end))
        assert len(list(reader.scan(0))) == count


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_is_read_from_any_position(busy: Busy, stream: str) -> None:
    expected = busy.stream(stream)
    for reader in busy.readers:
        for from_seq in (1, 2, len(expected) // 2, len(expected), len(expected) + 1):
            found = reader.read(stream, 1, from_seq, 20, ENDLESS)
            assert [as_entry(one) for one in found] == expected[from_seq - 1 : from_seq + 19]
            assert all(as_entry(one) == busy.entries[one.offset] for one in found)
        pieces: list[int] = []
        while piece := reader.read(stream, 1, len(pieces) + 1, 7, ENDLESS):
            pieces += seqs(piece)
        assert pieces == [one.seq for one in expected]


def test_other_streams_and_other_epochs_are_empty(busy: Busy) -> None:
    reader = busy.readers[0]

    assert reader.read("orders", 2, 1, 10, ENDLESS) == []
    assert reader.read("nobody", 1, 1, 10, ENDLESS) == []
    assert reader.earliest("nobody", 1) is None
    assert reader.seq_at_time("nobody", 1, 0) is None


def test_a_piece_is_bounded_by_bytes_but_never_empty(busy: Busy) -> None:
    bodies = [len(one.body) for one in busy.stream("orders")[:4]]

    for size, count in ((0, 1), (sum(bodies[:3]), 3), (sum(bodies) - 1, 3)):
        assert len(busy.readers[0].read("orders", 1, 1, 10, size)) == count


def test_a_position_is_found_by_time(busy: Busy) -> None:
    own = busy.stream("orders")
    for reader in busy.readers:
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


def test_readers_see_what_is_appended_after_they_were_made() -> None:
    log = open_log(FaultyDisk(), segment_bytes=5_000)
    reader, other_process = Reader(log), Reader.of_folder(log.disk)
    scan = reader.scan(0)

    for seq in range(1, 150):
        log.append([entry(seq)])
        assert next(scan).seq == seq, "a scan goes on to the present head"
        assert seqs(reader.read("orders", 1, seq, 10, ENDLESS)) == [seq]
        if seq % 10 == 0:
            assert seqs(list(other_process.scan(seq - 1))) == [seq]
            assert seqs(other_process.read("orders", 1, seq, 10, ENDLESS)) == [seq]
            do_upkeep(log)


def test_another_process_reads_to_the_durable_head_or_without_it_to_the_last_good_batch() -> None:
    log = open_log(FaultyDisk(), sync="os")
    fill(log, 3)
    log.sync()
    fill(log, 3, first_seq=4)

    assert len(list(Reader(log).scan(0))) == 6
    other_process = Reader.of_folder(log.disk)
    assert len(list(other_process.scan(0))) == 3
    assert seqs(other_process.read("orders", 1, 1, 10, ENDLESS)) == [1, 2, 3]
    log.disk.remove("head")
    assert len(list(Reader.of_folder(log.disk).scan(0))) == 6


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


def test_a_batch_that_is_just_being_added_is_not_there_yet_and_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(FaultyDisk())
    fill(log, 3)
    reader = Reader(log)
    seen: list[list[int]] = []
    move = Positions.move

    def read_before(positions: Positions, end: int, size: int) -> None:
        seen.append(seqs(reader.read("orders", 1, 4, 10, ENDLESS)))
        move(positions, end, size)

    monkeypatch.setattr(Positions, "move", read_before)
    log.append([entry(4), entry(5)])

    assert seen == [[]]
    assert seqs(reader.read("orders", 1, 4, 10, ENDLESS)) == [4, 5]


def test_entries_that_were_removed_are_reported_as_gone() -> None:
    disk, log = sealed_log(4)
    first = log.segments[2].base
    readers = [Reader(log), Reader.of_folder(disk)]
    list(readers[0].scan(0))

    log.remove(log.segments[:2])

    assert log.first == first
    for reader in readers:
        with pytest.raises(EntriesGone) as gone:
            next(reader.scan(0))
        assert gone.value.first == first
        assert next(reader.scan(first)).offset == first
        assert reader.earliest("orders", 1) == first + 1
        assert reader.read("orders", 1, 1, 1, ENDLESS)[0].seq == first + 1


def test_a_footer_that_cannot_be_used_is_done_without() -> None:
    disk, log = sealed_log(3)
    info = log.segments[0]
    flip_bit(disk, info.name, disk.open(info.name).size() - 40)

    assert len(Reader(log).read("orders", 1, 1, info.end, ENDLESS)) == info.end


def test_a_reader_of_many_segments_reads_all_of_them_and_closed_holds_no_file() -> None:
    disk, log = sealed_log(40)
    before = disk.open_files
    reader = Reader(log)
    for _ in range(2):
        assert len(list(reader.scan(0))) == log.head
        assert len(reader.read("orders", 1, 1, ENDLESS, ENDLESS)) == log.head
    assert disk.open_files > before

    reader.close()

    assert disk.open_files == before


@pytest.mark.parametrize(
    ("at", "byte", "reason"),
    [(12, b"\x02", "do not fill their batch"), (92, b"\xff", "is not text")],
    ids=["count", "stream"],
)
def test_a_batch_that_contradicts_itself_is_damage_although_its_checksum_is_right(
    at: int, byte: bytes, reason: str
) -> None:
    """A reader would wait for its second entry for ever."""
    disk = FaultyDisk()
    fill(open_log(disk), 1)
    (name,) = (one for one in disk.names() if one.endswith(".log"))
    file = disk.open(name)
    file.write(byte, BATCHES_BEGIN + at)
    content = file.read(file.size(), 0)
    end = BATCHES_BEGIN + batch_length(content, BATCHES_BEGIN)
    file.write(crc32c(content[BATCHES_BEGIN + 8 : end]).to_bytes(4, "little"), BATCHES_BEGIN + 4)
    forged = FaultyDisk(disk.files())

    assert any(reason in one for one in verify(forged).problems)
    with pytest.raises(LogDamaged, match=reason):
        list(Reader(open_log(forged)).scan(0))
