"""The message layer alone: frames in, messages and violations out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.wire.frames import (
    FRAGMENTS_MAX,
    REASON_BYTES_MAX,
    Assembler,
    CloseCode,
    Closed,
    CompleteMessage,
    Event,
    Opcode,
    Ping,
    Pong,
    Violation,
    close_frame,
    is_close_code,
    is_text,
    ping_frame,
    pong_frame,
    text_header,
)

LIMIT = 1_000
HALF = b"x" * (LIMIT // 2)
CONTINUATION, TEXT, BINARY = Opcode.CONTINUATION, Opcode.TEXT, Opcode.BINARY

# Opcode, payload, and whether it is the last fragment.
Fed = tuple[int, bytes, bool]


def outcomes(frames: list[Fed], *, rsv: bool = False) -> list[Event | Violation | None]:
    """What each frame led to, up to the first violation."""
    assembler = Assembler(LIMIT)
    found: list[Event | Violation | None] = []
    try:
        for opcode, payload, fin in frames:
            found.append(assembler.feed(opcode, fin, rsv, payload))
            assert assembler.is_pending == (found[-1] is None) or opcode >= Opcode.CLOSE
    except Violation as violation:
        found.append(violation)
    return found


def fragments(*parts: bytes) -> list[Fed]:
    last = len(parts) - 1
    return [(CONTINUATION if n else TEXT, part, n == last) for n, part in enumerate(parts)]


@pytest.mark.parametrize(
    ("length", "header"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (4_095, b"\x81\x7e\x0f\xff"),
        (4_096, b"\x81\x7e\x10\x00"),
        (65_535, b"\x81\x7e\xff\xff"),
        (65_536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
        (2**32, b"\x81\x7f\x00\x00\x00\x01\x00\x00\x00\x00"),
    ],
)
def test_a_text_header_uses_the_shortest_length(length: int, header: bytes) -> None:
    assert text_header(length) == header


def test_control_frames_are_final_and_unmasked() -> None:
    assert ping_frame(b"?") == b"\x89\x01?"
    assert pong_frame(b"!") == b"\x8a\x01!"
    assert close_frame(CloseCode.NORMAL, "bye") == b"\x88\x05\x03\xe8bye"
    assert close_frame(None) == b"\x88\x00"
    cut = b"a" * (REASON_BYTES_MAX - 1)
    assert close_frame(1000, cut.decode() + "é")[4:] == cut, "cut between characters"


@given(st.text())
def test_a_close_reason_always_fits_and_stays_text(reason: str) -> None:
    frame = close_frame(1000, reason)

    assert frame[1] == len(frame) - 2 <= 125
    assert reason.startswith(frame[4:].decode())


def test_whole_messages_fragments_and_control_frames_between_them() -> None:
    assert outcomes([(TEXT, b"text", True), (BINARY, "bïnary".encode(), True)]) == [
        CompleteMessage(b"text"),
        CompleteMessage("bïnary".encode()),
    ]
    begin, middle, end = fragments(b"one ", b"two ", b"three")
    between: list[Fed] = [(Opcode.PING, b"?", True), (Opcode.PONG, b"", True)]
    close = (Opcode.CLOSE, b"\x0f\xa0later", True)
    assert outcomes([begin, *between, middle, (Opcode.CLOSE, b"", True), close, end]) == [
        *(None, Ping(b"?"), Pong(b""), None, Closed(None, ""), Closed(4000, "later")),
        CompleteMessage(b"one two three"),
    ]


@given(st.text(max_size=60), st.data())
def test_text_survives_any_fragmentation(text: str, data: st.DataObject) -> None:
    payload = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(payload)), min_size=1, max_size=8)))
    parts = [payload[start:end] for start, end in pairwise([0, *cuts, len(payload)])]

    assert outcomes(fragments(*parts)) == [None] * (len(parts) - 1) + [CompleteMessage(payload)]


@given(st.binary(max_size=20))
def test_bytes_pass_exactly_when_they_are_text(payload: bytes) -> None:
    try:
        payload.decode()
        expected = True
    except UnicodeDecodeError:
        expected = False

    *_, last = outcomes(fragments(b"", *(bytes((byte,)) for byte in payload), b""))

    assert is_text(payload) is expected
    if expected:
        assert last == CompleteMessage(payload)
    else:
        assert isinstance(last, Violation)
        assert last.code is CloseCode.INVALID_TEXT


@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.binary(max_size=130), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_whatever_arrives_is_an_event_or_a_violation(frames: list[Fed], rsv: bool) -> None:
    match outcomes(frames, rsv=rsv)[-1]:
        case Violation(code=code, reason=reason):
            assert code in (CloseCode.PROTOCOL_ERROR, CloseCode.INVALID_TEXT, CloseCode.TOO_BIG)
            assert len(close_frame(code, reason)) > 4
        case CompleteMessage(data=data):
            assert is_text(data)
            assert not rsv
        case event:
            assert event is None or isinstance(event, Ping | Pong | Closed)


def test_each_message_has_its_own_allowance_of_bytes_and_fragments() -> None:
    most = fragments(HALF, HALF, *[b""] * (FRAGMENTS_MAX - 2))

    found = [one for one in outcomes([*most, *most]) if one is not None]

    assert found == [CompleteMessage(HALF + HALF)] * 2


def test_close_codes_that_may_travel_are_the_registered_and_the_private_ones() -> None:
    allowed = {code for code in range(65_536) if is_close_code(code)}

    assert allowed == {*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)}
    assert all(is_close_code(code) for code in CloseCode)
