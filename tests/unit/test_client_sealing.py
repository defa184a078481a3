"""Sealed messages open with the right key, room and id, and with nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.client.sealing import OVERHEAD_BYTES, Sealing, Unsealable, new_key

KEY = bytes(range(32))
FIRST = "01bb617365bfdcaf57c3607786104048fce2b63821bc20bac2f2369e1a4fa9329268"


@given(st.binary(max_size=2_000))
def test_what_was_sealed_can_be_opened(plaintext: bytes) -> None:
    sealing = Sealing(KEY, "general")
    sealed = sealing.seal("m1", plaintext)

    assert sealing.open("m1", sealed) == plaintext
    assert len(sealed) == len(plaintext) + OVERHEAD_BYTES


def test_the_same_words_are_never_sealed_alike() -> None:
    sealing = Sealing(KEY, "general")

    assert len({sealing.seal("m1", b"yes") for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("key", "room", "message_id"),
    [
        (bytes(32), "general", "m1"),
        (KEY, "general2", "m1"),
        (KEY, "general", "m2"),
        (KEY, "genera", "lm1"),
    ],
)
def test_another_key_room_or_id_opens_nothing(key: bytes, room: str, message_id: str) -> None:
    sealed = Sealing(KEY, "general").seal("m1", b"secret")

    with pytest.raises(Unsealable):
        Sealing(key, room).open(message_id, sealed)


@given(st.data())
def test_a_changed_bit_is_noticed(data: st.DataObject) -> None:
    sealing = Sealing(KEY, "general")
    sealed = bytearray(sealing.seal("m1", b"a few words"))
    place = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[place // 8] ^= 1 << place % 8

    with pytest.raises(Unsealable):
        sealing.open("m1", bytes(sealed))


@given(st.binary(max_size=60))
def test_what_was_never_sealed_is_no_crash(garbage: bytes) -> None:
    with pytest.raises(Unsealable):
        Sealing(KEY, "general").open("m1", garbage)


def test_earlier_messages_stay_readable() -> None:
    """The format is a promise: this was sealed by the first version."""
    sealed = bytes.fromhex(FIRST)

    assert Sealing(KEY, "acme:general").open("m1", sealed) == b"hello"


def test_keys_are_new_and_long_enough() -> None:
    assert len(new_key()) == 32
    assert new_key() != new_key()
    with pytest.raises(ValueError, match="32 bytes"):
        Sealing(b"short", "general")
