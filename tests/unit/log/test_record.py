from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.log import record
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
