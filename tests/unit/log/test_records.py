"""Entries are encoded to the same bytes natively and in Python, and found at the same places."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub import native
from signalhub.clock import Ids
from signalhub.log.record import SALT_BYTES, PlainRecords, Records, encode_entries
from signalhub.wire.entry import (
    Entry,
    EntryRun,
    Kind,
    MessageBody,
    decode_body,
    encode_body,
)
from tests.support.memory.shell import envelope
from tests.support.socket.frames import TEXT, masked_frame

if native.IS_ON:
    from signalhub_native import Bodies, Publishes, Reader
else:
    pytest.skip("needs the native part", allow_module_level=True)

SENDER = "@(local/a)"
BASE = 4_096

single = st.builds(
    Entry,
    kind=st.sampled_from(list(Kind)),
    stream=st.sampled_from(["a", "b", "", "größe", "x" * 300]),
    stream_epoch=st.sampled_from([0, 1, 2**32 - 1]),
    seq=st.sampled_from([0, 1, 2, 3, 4, 2**64 - 1]),
    at_ms=st.sampled_from([0, 5, 4, 2**64 - 1]),
    body=st.binary(max_size=40),
)
run = st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 5), st.integers(1, 4))
batch = st.lists(st.one_of(single, run), min_size=1, max_size=30)


def publishes(count: int, **payload: Any) -> Publishes:
    """A run as the reader finds it."""
    data = {"topic": "kept", "type": "news", "data": [1], **payload}
    texts = [
        envelope("hub:publish", data, id=f"m{number}", sender=SENDER) for number in range(count)
    ]
    frames = b"".join(masked_frame(TEXT, text) for text in texts)
    (found,), *_ = Reader(100_000, 100_000).read(frames, 1_000, 1)
    assert isinstance(found, Publishes)
    assert found.count == count
    return found


def bodies(count: int) -> Bodies:
    return Publishes.bodies([publishes(count)], Ids().many(count), [0])


def as_entry(one: Entry | tuple[str, int, int]) -> Entry | EntryRun:
    if isinstance(one, Entry):
        return one
    stream, seq, count = one
    return EntryRun(Kind.PUBLISHED, stream, 1, seq, 6, bodies(count), count)


def shown(records: Records) -> tuple[object, ...]:
    groups = [(*head, array("I", positions)) for *head, positions in records.groups(BASE)]
    return records.count, records.data, groups


@given(batch)
def test_both_ways_give_the_same(some: list[Entry | tuple[str, int, int]]) -> None:
    entries = [as_entry(one) for one in some]
    count = sum(one.count for one in entries)
    salts = bytes(number % 256 for number in range(SALT_BYTES * count))

    ours = encode_entries(entries, salts)

    assert not isinstance(ours, PlainRecords)
    assert shown(ours) == shown(PlainRecords(entries, salts))


@pytest.mark.parametrize(
    "entry",
    [
        Entry(1, "x" * 70_000, 1, 1, 1, b""),
        Entry(1, "x", 2**32, 1, 1, b""),
        Entry(1, "\ud800", 1, 1, 1, b""),
        Entry(1, "x", 1, -1, 1, b""),
    ],
)
def test_what_cannot_be_encoded_is_an_error_both_ways(entry: Entry) -> None:
    salts = bytes(SALT_BYTES)
    for encode in (encode_entries, PlainRecords):
        with pytest.raises(Exception, match=r".") as failed:
            encode([entry], salts)
        assert isinstance(failed.value, Exception)


def test_salts_must_be_enough() -> None:
    with pytest.raises(ValueError, match="salts"):
        encode_entries([Entry(1, "x", 1, 1, 1, b"")], b"")


@pytest.mark.parametrize("size", [0, 1, 31, 32, 127, 128, 255, 256, 60_000])
def test_bodies_are_those_of_messages(size: int) -> None:
    found = publishes(2, data="x" * size, key="k" * min(size, 256))
    both = Publishes.bodies([found], Ids("0" * 20).many(2), [0])
    ids = Ids("0" * 20)

    for at in range(2):
        body = both.body(at)
        message = decode_body(MessageBody, body)

        assert body == encode_body(message)
        data = b'"%b"' % (b"x" * size)
        key = "k" * min(size, 256)
        assert message == MessageBody(f"m{at}", ids.next(), SENDER, "news", data, key=key)
    assert len(both) == sum(both.sizes())
    with pytest.raises(IndexError):
        both.body(2)
