"""What the client makes of frames from the hub."""

from __future__ import annotations

import math

import pytest

from signalhub.client.protocol.incoming import decode


def test_numbers_no_decoder_likes_do_not_cost_the_message() -> None:
    frame = b'{"type":"x","payload":{"a":1e999,"b":' + b"9" * 5_000 + b',"c":7}}'

    incoming = decode(frame)

    assert incoming is not None
    assert incoming.payload == {"a": math.inf, "b": math.inf, "c": 7}


@pytest.mark.parametrize("frame", [b"nonsense", b"[]", b'{"type":1}', b"\xff", b"[" * 100_000])
def test_what_is_no_message_is_none(frame: bytes) -> None:
    assert decode(frame) is None
