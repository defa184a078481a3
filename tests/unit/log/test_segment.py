"""Segments, and the records in them."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.log import record
from signalhub.log.disk import File
from signalhub.log.record import (
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    UnknownVersion,
    Unreadable,
    encode_batch,
    encode_entry,
    entry_digest,
    entry_positions,
    read_batch,
    read_entries,
    read_entry_heads,
)
from signalhub.log.segment import (
    BATCHES_BEGIN,
    Header,
    base_of,
    create_segment,
    encode_header,
    prepare_segment,
    read_header,
    scan_batches,
    segment_name,
    used_bytes,
)
from signalhub.testing import FaultyDisk
from signalhub.testing.disk import PowerCut
from signalhub.wire.entry import Entry, Kind
from tests.support.memory.log import as_entry, entry

SALT = bytes(range(16))

entries = st.builds(
    Entry,
    kind=st.sampled_from(list(Kind)).map(int),
    stream=st.text(max_size=40),
    stream_epoch=st.integers(0, 2**32 - 1),
    seq=st.integers(0, 2**64 - 1),
    at_ms=st.integers(0, 2**64 - 1),
    body=st.binary(max_size=200),
)


def batch_of(*some: Entry, first: int = 7) -> bytes:
    encoded = [encode_entry(one, SALT) for one in some]
    return encode_batch(encoded, first=first, epoch=3, durable=5, time_ms=99)


@given(st.lists(entries, min_size=1, max_size=5), st.binary(max_size=50))
def test_a_batch_reads_back_as_written_at_any_position(some: list[Entry], before: bytes) -> None:
    data = before + batch_of(*some) + b"after"

    batch = read_batch(data, len(before))
    found = list(read_entries(data, batch, len(before)))

    assert (batch.first, batch.end, batch.epoch) == (7, 7 + len(some), 3)
    assert (batch.durable, batch.time_ms, batch.count) == (5, 99, len(some))
    assert [as_entry(one) for one in found] == some
    assert [one.offset for one in found] == list(range(7, 7 + len(some)))


def test_every_flipped_bit_and_every_cut_of_a_batch_is_noticed() -> None:
    data = batch_of(entry(1), entry(2, body=b""))
    flips = [(int.from_bytes(data) ^ 1 << bit).to_bytes(len(data)) for bit in range(8 * len(data))]

    for changed in (*flips, *(data[:size] for size in range(len(data)))):
        with pytest.raises(Unreadable):
            read_batch(changed)


def test_an_absurd_length_is_not_believed() -> None:
    with pytest.raises(Unreadable, match="invalid batch length 4294967295"):
        read_batch(b"\xff\xff\xff\xff" + batch_of(entry(1))[4:])


def test_a_batch_of_another_version_is_not_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(record, "VERSION", 2)
        data = batch_of(entry(1))

    with pytest.raises(UnknownVersion, match="version 2"):
        read_batch(data)


def test_entries_must_fill_their_batch_exactly() -> None:
    whole = encode_entry(entry(1), SALT)

    for rest in (b"more", whole[:20]):
        data = encode_batch([whole, rest], first=0, epoch=1, durable=0, time_ms=0)
        with pytest.raises(Unreadable, match="do not fill"):
            list(entry_positions(data, read_batch(data)))


def test_heads_say_where_an_entry_is_and_whose_it_is() -> None:
    data = batch_of(entry(4, "größe", stream_epoch=9), entry(0, "b"))

    second = HEADER_BYTES + ENTRY_HEADER_BYTES + len("größe".encode()) + 100
    assert list(read_entry_heads(data, read_batch(data))) == [
        (HEADER_BYTES, 0, "größe", 9, 4, entry(4).at_ms),
        (second, 0, "b", 1, 0, entry(0).at_ms),
    ]


def test_the_digest_covers_the_salt_and_everything_else_of_an_entry() -> None:
    one, other = encode_entry(entry(1), SALT), encode_entry(entry(1), bytes(16))

    assert entry_digest(one, 0) == sha256(one).digest()
    assert entry_digest(one, 0) != entry_digest(other, 0)


HEADER = Header(epoch=4, base=12, created_ms=99)
NAME = "00000000000000000012.log"


def batch(first: int, size: int = 50) -> bytes:
    encoded = encode_entry(entry(first, body=bytes(size)), bytes(16))
    return encode_batch([encoded], first=first, epoch=4, durable=0, time_ms=0)


def file_with(content: bytes) -> File:
    return FaultyDisk({"a": content}).open("a")


def test_the_name_of_a_segment_is_its_base() -> None:
    assert (segment_name(12), base_of(NAME)) == (NAME, 12)
    assert base_of("12.log") is base_of("00000000000000000012.footer") is None


def test_a_header_reads_back_unless_it_is_truncated() -> None:
    assert read_header(file_with(encode_header(HEADER))) == HEADER
    for size in (0, 1, BATCHES_BEGIN - 1):
        with pytest.raises(Unreadable, match="truncated"):
            read_header(file_with(encode_header(HEADER)[:size]))


def test_a_segment_has_its_name_only_after_its_header_is_on_disk() -> None:
    for operation in range(1, 8):
        disk = FaultyDisk()
        disk.crash_at(operation)
        is_created = False
        try:
            create_segment(disk, HEADER).close()
            is_created = True
        except PowerCut:
            pass
        for seed in range(20):
            after = disk.crash(seed)
            if is_created or NAME in after.names():
                assert read_header(after.open(NAME)) == HEADER
    assert is_created


def test_a_full_disk_leaves_neither_a_segment_nor_a_prepared_one() -> None:
    for capacity, make in (
        (10, lambda disk: create_segment(disk, HEADER)),
        (2**18, lambda disk: list(prepare_segment(disk, 2**20))),
    ):
        disk = FaultyDisk(capacity_bytes=capacity)
        with pytest.raises(OSError, match="space"):
            make(disk)
        assert disk.names() == []


def test_a_prepared_segment_is_made_in_steps_and_keeps_its_size() -> None:
    disk = FaultyDisk()
    slices = prepare_segment(disk, 3 * 2**18)
    assert [next(slices) for _ in range(3)] == [None] * 3
    with pytest.raises(StopIteration) as end:
        next(slices)

    create_segment(disk, HEADER, prepared=end.value.value).close()

    assert disk.names() == [NAME]
    assert disk.crash(1).open(NAME).size() == 3 * 2**18


def test_a_preparation_that_is_abandoned_leaves_no_open_file() -> None:
    disk = FaultyDisk()
    slices = prepare_segment(disk, 2**20)
    next(slices)

    slices.close()

    assert disk.open_files == 0


def test_a_scan_finds_batches_of_all_sizes_in_place() -> None:
    batches = [batch(0, 10), batch(1, 3 * 2**20), batch(2, 0), *(batch(n, 2**18) for n in (3, 4))]
    content = b"head" + b"".join(batches) + bytes(100)

    found = list(scan_batches(file_with(content), 4, len(content) - 100))

    assert [one.batch.first for one in found] == [0, 1, 2, 3, 4]
    assert [content[one.position : one.end] for one in found] == batches
    assert [one.data[one.at : one.at + one.batch.length] for one in found] == batches


def test_a_scan_stops_at_the_first_bad_batch() -> None:
    content = batch(0) + batch(1)[:-1] + b"?" + batch(2)
    scan = scan_batches(file_with(content), 0, len(content))

    assert next(scan).batch.first == 0
    with pytest.raises(Unreadable, match="checksum"):
        next(scan)


@pytest.mark.parametrize(
    ("content", "used"),
    [
        (b"", 0),
        (bytes(3 * 2**20), 0),
        (b"a" + bytes(100), 1),
        (bytes(2**21) + b"a" + bytes(2**21), 2**21 + 1),
        (b"abc", 3),
    ],
    ids=["empty", "zeros", "beginning", "middle", "all"],
)
def test_prepared_space_does_not_count_as_used(content: bytes, used: int) -> None:
    data = b"before" + content

    assert used_bytes(file_with(data), 6, len(data)) == used
