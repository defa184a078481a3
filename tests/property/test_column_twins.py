"""Columns made by the native part are those made in Python, whatever entries hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from signalhub import native
from signalhub.log.errors import LogDamaged
from signalhub.log.record import encode_batch, encode_entry, erased_entry
from signalhub.pipeline.source import columns
from signalhub.pipeline.source.plan import Slice
from signalhub.wire.entry import BroadcastBody, Entry, Kind, MessageBody, RoomMessageBody

pytestmark = pytest.mark.skipif(not native.IS_ON, reason="needs the native part")

FIRST = 40
texts = st.text(max_size=40)
numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, 253_402_300_798_999, 253_402_300_799_000, 2**53 + 1]),
    st.floats(),
)
messages = st.builds(
    MessageBody,
    id=texts,
    copy_id=st.binary(max_size=20),
    sender=texts,
    type=texts,
    data=st.binary(max_size=70_000),
    metadata=st.binary(max_size=300),
    ttl=st.one_of(st.none(), numbers),
    expires_at=st.one_of(st.none(), st.floats()),
    key=st.one_of(st.none(), texts),
    headers=st.one_of(st.none(), st.dictionaries(texts, texts, max_size=20)),
)
said = st.builds(
    RoomMessageBody,
    texts,
    st.binary(max_size=300),
    st.one_of(st.none(), st.integers(0, 2**42)),
    st.integers(-1, 2**63),
)
told = st.builds(BroadcastBody, texts, texts, st.binary(max_size=300))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts, st.binary(max_size=40)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=20), st.dictionaries(texts, inner, max_size=4)
    ),
    max_leaves=30,
)
encode = msgspec.msgpack.encode
plain_kinds = [kind for kind in Kind if kind not in columns._HEADS]
# Kinds and bodies that belong together.
ordinary = st.one_of(
    st.tuples(st.sampled_from([Kind.MAIL, Kind.PUBLISHED]), messages.map(encode)),
    st.tuples(st.just(Kind.ROOM_MESSAGE), said.map(encode)),
    st.tuples(st.just(Kind.BROADCAST), told.map(encode)),
    st.tuples(st.sampled_from(plain_kinds), anything.map(encode)),
)
unusual = st.tuples(
    st.one_of(st.sampled_from(sorted(columns._HEADS)), st.integers(0, 255)),
    st.one_of(
        st.lists(anything, max_size=18).map(encode),
        # Like a body, with other members.
        st.tuples(texts, st.lists(anything, min_size=2, max_size=8)).map(
            lambda given: encode([given[0], *given[1]])
        ),
        st.binary(max_size=60),
        st.one_of(messages, said, told).map(encode),
    ),
)


def damaged(body: bytes, at: int, change: int) -> bytes:
    """A body with another byte somewhere."""
    if not body:
        return body
    changed = bytearray(body)
    changed[at % len(body)] ^= change
    return bytes(changed)


spoiled = st.builds(
    lambda given, at, change: (given[0], damaged(given[1], at, change)),
    ordinary,
    st.integers(0, 2**16),
    st.integers(1, 255),
)


def entries(given: st.SearchStrategy[tuple[int, bytes]]) -> st.SearchStrategy[bytes]:
    """Encoded entries of these kinds and bodies, some of them erased."""
    plain = st.builds(
        lambda pair, stream, epoch, seq, at_ms: encode_entry(
            Entry(pair[0], stream, epoch, seq, at_ms, pair[1]), bytes(16)
        ),
        given,
        texts,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
    )
    return st.one_of(plain, plain, plain, plain.map(lambda entry: erased_entry(entry, 0)))


def slice_of(data: bytes, count: int) -> Slice:
    return Slice(
        segment="s.log", epoch=1, begin=64, end=64 + len(data), from_offset=FIRST, to_offset=count
    )


def found(data: bytes, count: int, *, is_native: bool) -> tuple[Any, ...]:
    """Rows of a batch, or the fault of the segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "IS_ON", is_native)
        one = slice_of(data, count)
        try:
            starts, first = columns._entry_starts(data, one)
        except LogDamaged as error:
            return (str(error),)
        batch = columns._columns(data, starts, one, 3, first)
        batch.validate(full=True)
        return starts.tolist(), first, batch


# What is unusual comes nearly alone: one body that is left to Python takes the others along.
@given(
    st.one_of(
        st.lists(entries(ordinary), max_size=20),
        st.lists(entries(unusual), max_size=2),
        st.lists(entries(spoiled), max_size=2),
    )
)
@example([])
def test_every_body_makes_the_same_row(encoded: list[bytes]) -> None:
    data = encode_batch(encoded, first=FIRST, epoch=1, durable=0, time_ms=0)

    assert found(data, len(encoded), is_native=True) == found(data, len(encoded), is_native=False)


@given(st.lists(st.one_of(said, told, messages), min_size=1, max_size=9))
def test_ordinary_messages_are_not_left_to_python(bodies: list[Any]) -> None:
    kind_of: dict[type[Any], Kind] = {MessageBody: Kind.MAIL, RoomMessageBody: Kind.ROOM_MESSAGE}
    encoded = [
        encode_entry(
            Entry(
                kind_of.get(type(body), Kind.BROADCAST), "s", 1, 1, 1, msgspec.msgpack.encode(body)
            ),
            bytes(16),
        )
        for body in bodies
    ]
    data = encode_batch(encoded, first=FIRST, epoch=1, durable=0, time_ms=0)
    starts, _ = columns._entry_starts(data, slice_of(data, len(encoded)))

    assert columns._native_columns(data, starts) is not None


@given(
    st.lists(entries(ordinary), min_size=1, max_size=6),
    st.integers(0, 2**16),
    st.integers(1, 255),
    st.integers(-1, 1),
)
def test_entries_that_do_not_fill_their_batch_are_the_same_damage(
    encoded: list[bytes], which: int, change: int, more: int
) -> None:
    victim = which % len(encoded)
    encoded[victim] = damaged(encoded[victim][:4], which >> 4, change) + encoded[victim][4:]
    count = len(encoded) + more
    data = encode_batch(encoded, first=FIRST, epoch=1, durable=0, time_ms=0, count=count)
    results = []
    for is_native in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "IS_ON", is_native)
            try:
                starts, _ = columns._entry_starts(data, slice_of(data, count))
                results.append(str(starts.tolist()))
            except LogDamaged as error:
                results.append(str(error))

    assert results[0] == results[1]
