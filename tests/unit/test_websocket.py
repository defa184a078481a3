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


def feed(
    assembler: Assembler, opcode: int, payload: bytes = b"", fin: bool = True, rsv: bool = False
) -> object:
    return assembler.feed(opcode, fin, rsv, payload)


def outcome(frames: list[tuple[int, bool, bool, bytes]]) -> Event | Violation | None:
    """What the last frame led to, or the first violation."""
    assembler, event = Assembler(LIMIT), None
    try:
        for opcode, fin, rsv, payload in frames:
            event = assembler.feed(opcode, fin, rsv, payload)
    except Violation as violation:
        return violation
    return event


def violation_of(*frames: tuple[int, bytes, bool]) -> Violation:
    """Feed frames, of which the last one must be refused."""
    assembler = Assembler(LIMIT)
    *good, (opcode, payload, fin) = frames
    for frame in good:
        assembler.feed(frame[0], frame[2], False, frame[1])
    with pytest.raises(Violation) as caught:
        assembler.feed(opcode, fin, False, payload)
    return caught.value


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
def test_text_header_uses_the_shortest_length(length: int, header: bytes) -> None:
    assert text_header(length) == header


def test_control_frames_are_final_and_unmasked() -> None:
    assert ping_frame(b"?") == b"\x89\x01?"
    assert pong_frame(b"!") == b"\x8a\x01!"
    assert close_frame(CloseCode.NORMAL, "bye") == b"\x88\x05\x03\xe8bye"


def test_close_without_a_code_is_empty() -> None:
    assert close_frame(None) == b"\x88\x00"


def test_close_reason_is_cut_between_characters() -> None:
    frame = close_frame(1000, "a" * (REASON_BYTES_MAX - 1) + "é")

    assert frame[1] == 2 + REASON_BYTES_MAX - 1
    assert frame[4:] == b"a" * (REASON_BYTES_MAX - 1)


@given(st.text())
def test_close_reason_always_fits_and_stays_text(reason: str) -> None:
    frame = close_frame(1000, reason)

    assert frame[1] == len(frame) - 2 <= 125
    assert reason.startswith(frame[4:].decode())


def test_whole_text_and_binary_are_messages() -> None:
    assembler = Assembler(LIMIT)

    assert feed(assembler, Opcode.TEXT, b"text") == CompleteMessage(b"text")
    assert feed(assembler, Opcode.BINARY, "bïnary".encode()) == CompleteMessage("bïnary".encode())
    assert not assembler.is_pending


def test_fragments_become_one_message() -> None:
    assembler = Assembler(LIMIT)

    assert feed(assembler, Opcode.TEXT, b"one ", fin=False) is None
    assert assembler.is_pending
    assert feed(assembler, Opcode.CONTINUATION, b"two ", fin=False) is None
    assert feed(assembler, Opcode.CONTINUATION, b"three") == CompleteMessage(b"one two three")
    assert not assembler.is_pending


def test_control_frames_may_come_between_fragments() -> None:
    assembler = Assembler(LIMIT)
    feed(assembler, Opcode.TEXT, b"one ", fin=False)

    assert feed(assembler, Opcode.PING, b"?") == Ping(b"?")
    assert feed(assembler, Opcode.PONG) == Pong(b"")
    assert feed(assembler, Opcode.CLOSE) == Closed(None, "")
    assert feed(assembler, Opcode.CONTINUATION, b"two") == CompleteMessage(b"one two")


@given(st.text(max_size=60), st.data())
def test_text_survives_any_fragmentation(text: str, data: st.DataObject) -> None:
    payload = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(payload)), min_size=1, max_size=8)))
    edges = [0, *cuts, len(payload)]
    parts = [payload[start:end] for start, end in pairwise(edges)]
    assembler = Assembler(LIMIT)

    events = [
        assembler.feed(
            Opcode.CONTINUATION if index else Opcode.TEXT, index == len(parts) - 1, False, part
        )
        for index, part in enumerate(parts)
    ]

    assert events == [None] * (len(parts) - 1) + [CompleteMessage(payload)]


@given(st.binary(max_size=12))
def test_fragmented_bytes_pass_exactly_when_they_are_text(payload: bytes) -> None:
    begin, end = (Opcode.TEXT, False, False, b""), (Opcode.CONTINUATION, True, False, b"")
    middle = [(Opcode.CONTINUATION, False, False, bytes((byte,))) for byte in payload]

    result = outcome([begin, *middle, end])

    if is_text(payload):
        assert result == CompleteMessage(payload)
    else:
        assert isinstance(result, Violation)
        assert result.code is CloseCode.INVALID_TEXT


@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.booleans(), st.booleans(), st.binary(max_size=130)),
        max_size=12,
    )
)
def test_whatever_arrives_is_an_event_or_a_violation(
    frames: list[tuple[int, bool, bool, bytes]],
) -> None:
    match outcome(frames):
        case Violation(code=code, reason=reason):
            assert code in (CloseCode.PROTOCOL_ERROR, CloseCode.INVALID_TEXT, CloseCode.TOO_BIG)
            assert len(close_frame(code, reason)) > 4
        case CompleteMessage(data=data):
            assert is_text(data)
        case event:
            assert event is None or isinstance(event, Ping | Pong | Closed)


@pytest.mark.parametrize("opcode", list(Opcode))
def test_reserved_bits_are_refused(opcode: Opcode) -> None:
    with pytest.raises(Violation, match="reserved bits") as caught:
        feed(Assembler(LIMIT), opcode, rsv=True)

    assert caught.value.code is CloseCode.PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [3, 7, 11, 15])
def test_unknown_opcodes_are_refused(opcode: int) -> None:
    assert violation_of((opcode, b"", True)).code is CloseCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "frames",
    [
        [(Opcode.CONTINUATION, b"", True)],
        [(Opcode.TEXT, b"", False), (Opcode.TEXT, b"", True)],
        [(Opcode.TEXT, b"", False), (Opcode.BINARY, b"", False)],
        [
            (Opcode.TEXT, b"", False),
            (Opcode.CONTINUATION, b"", True),
            (Opcode.CONTINUATION, b"", True),
        ],
        [(Opcode.PING, b"", False)],
        [(Opcode.PONG, b"x" * 126, True)],
    ],
)
def test_frames_out_of_place_are_refused(frames: list[tuple[int, bytes, bool]]) -> None:
    assert violation_of(*frames).code is CloseCode.PROTOCOL_ERROR


def test_bad_text_fails_before_the_message_ends() -> None:
    for bad in (b"\xff", b"\xed\xa0", b"\xf4\x90", b"\xc0"):
        violation = violation_of(
            (Opcode.TEXT, b"good so far ", False), (Opcode.CONTINUATION, bad, False)
        )
        assert violation.code is CloseCode.INVALID_TEXT


def test_message_ending_inside_a_character_is_not_text() -> None:
    violation = violation_of((Opcode.TEXT, b"\xe2\x82", False), (Opcode.CONTINUATION, b"", True))

    assert violation.code is CloseCode.INVALID_TEXT


def test_binary_must_be_text_too() -> None:
    assert violation_of((Opcode.BINARY, b"\xfe", True)).code is CloseCode.INVALID_TEXT


def test_message_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    half = b"x" * (LIMIT // 2)
    assembler = Assembler(LIMIT)

    assert feed(assembler, Opcode.TEXT, half + half) == CompleteMessage(half + half)
    assert violation_of((Opcode.TEXT, half + half + b"x", True)).code is CloseCode.TOO_BIG
    fragments = [(Opcode.TEXT, half, False), (Opcode.CONTINUATION, half, False)]
    assert violation_of(*fragments, (Opcode.CONTINUATION, b"x", False)).code is CloseCode.TOO_BIG


def test_number_of_fragments_is_bounded_even_when_they_are_empty() -> None:
    assembler = Assembler(LIMIT)
    feed(assembler, Opcode.TEXT, fin=False)
    for _ in range(FRAGMENTS_MAX - 1):
        feed(assembler, Opcode.CONTINUATION, fin=False)

    with pytest.raises(Violation, match="fragments") as caught:
        feed(assembler, Opcode.CONTINUATION, fin=False)

    assert caught.value.code is CloseCode.TOO_BIG


def test_each_message_has_its_own_allowance_of_fragments() -> None:
    assembler = Assembler(LIMIT)
    for _ in range(2):
        feed(assembler, Opcode.TEXT, fin=False)
        for _ in range(FRAGMENTS_MAX - 2):
            feed(assembler, Opcode.CONTINUATION, fin=False)

        assert feed(assembler, Opcode.CONTINUATION, b"end") == CompleteMessage(b"end")


def test_close_tells_code_and_reason() -> None:
    assert feed(Assembler(LIMIT), Opcode.CLOSE, b"\x0f\xa0later") == Closed(4000, "later")


@pytest.mark.parametrize("payload", [b"\x03", b"\x00\x00", b"\x03\xed", b"\x0b\xb7"])
def test_close_with_a_bad_code_is_refused(payload: bytes) -> None:
    assert violation_of((Opcode.CLOSE, payload, True)).code is CloseCode.PROTOCOL_ERROR


def test_close_reason_must_be_text() -> None:
    violation = violation_of((Opcode.CLOSE, b"\x03\xe8\xff", True))

    assert violation.code is CloseCode.INVALID_TEXT


def test_close_codes_that_may_travel_are_the_registered_and_the_private_ones() -> None:
    allowed = {code for code in range(65_536) if is_close_code(code)}

    assert allowed == {*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)}


def test_every_code_we_send_may_travel() -> None:
    assert all(is_close_code(code) for code in CloseCode)


@given(st.binary(max_size=20))
def test_is_text_agrees_with_the_codec(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        assert not is_text(payload)
    else:
        assert is_text(payload)
