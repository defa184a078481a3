"""Sealing and opening, whatever the content; `tests/vectors/client/sealing.json` has the format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.client.sealing import OVERHEAD_BYTES, Sealing, Unsealable, new_key

KEY = bytes(range(32))
GENERAL = Sealing(KEY, "general")


@given(st.binary(max_size=2_000))
def test_what_was_sealed_can_be_opened_and_is_never_the_same(plaintext: bytes) -> None:
    sealed = GENERAL.seal("m1", plaintext)

    assert GENERAL.open("m1", sealed) == plaintext
    assert len(sealed) == len(plaintext) + OVERHEAD_BYTES
    assert GENERAL.seal("m1", plaintext) != sealed


@given(place=st.integers(0, (OVERHEAD_BYTES + 11) * 8 - 1), garbage=st.binary(max_size=60))
def test_a_changed_bit_is_noticed_and_garbage_is_not_opened(place: int, garbage: bytes) -> None:
    sealed = bytearray(GENERAL.seal("m1", b"a few words"))
    sealed[place // 8] ^= 1 << place % 8

    for unsealable in (bytes(sealed), garbage):
        with pytest.raises(Unsealable):
            GENERAL.open("m1", unsealable)


def test_keys_are_new_and_long_enough() -> None:
    assert len(new_key()) == 32
    assert new_key() != new_key()
    with pytest.raises(ValueError, match="32 bytes"):
        Sealing(b"short", "general")
