"""Sizes, pings, reserved bits and opcodes, masking, lengths and closing: frames one at a time.

The cases follow sections 1–4, 7 and 9 of the Autobahn test suite; its numbers are in the names.
"""

from __future__ import annotations

import pytest

from signalhub.server.port.listener import Listener
from signalhub.wire.frames import Opcode
from tests.support.socket.echo import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from tests.support.socket.raw_peer import Case, check, close, closed, frame, pong, text

HELLO = frame(Opcode.TEXT, b"Hello")
SIZES = (0, 1, 125, 126, 127, 128, 65_535, 65_536)
RESERVED_OPCODES = (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
BROKEN = [closed(1002)]
GOOD_CODES = (*range(1000, 1004), *range(1007, 1015), 3000, 3999, 4000, 4999)
BAD_CODES = (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)

sizes = [
    Case(
        f"1.{section}-{opcode.name.lower()}-of-{size}-bytes",
        frame(opcode, b"*" * size),
        [text(b"*" * size)],
    )
    for section, opcode in ((1, Opcode.TEXT), (2, Opcode.BINARY))
    for size in SIZES
]

pings = [
    Case("2.1-empty-ping", frame(Opcode.PING), [pong()]),
    Case("2.2-ping-with-text", frame(Opcode.PING, b"Hello"), [pong(b"Hello")]),
    Case(
        "2.3-ping-with-bytes",
        frame(Opcode.PING, b"\0\xff\xfe\xfd\xfc\xfb\0\xff"),
        [pong(b"\0\xff\xfe\xfd\xfc\xfb\0\xff")],
    ),
    Case("2.4-ping-of-125-bytes", frame(Opcode.PING, b"\xfe" * 125), [pong(b"\xfe" * 125)]),
    Case("2.5-ping-of-126-bytes", frame(Opcode.PING, b"\xfe" * 126), BROKEN),
    Case("2.5-pong-of-126-bytes", frame(Opcode.PONG, b"\xfe" * 126), BROKEN),
    Case("2.7-unsolicited-empty-pong", frame(Opcode.PONG), []),
    Case("2.8-unsolicited-pong", frame(Opcode.PONG, b"unsolicited"), []),
    Case(
        "2.9-pong-then-ping",
        frame(Opcode.PONG, b"old") + frame(Opcode.PING, b"new"),
        [pong(b"new")],
    ),
    Case(
        "2.10-ten-pings",
        b"".join(frame(Opcode.PING, b"payload-%d" % n) for n in range(10)),
        [pong(b"payload-%d" % n) for n in range(10)],
    ),
]

reserved_bits = [
    Case(f"3-rsv-{rsv}-on-{opcode.name.lower()}", frame(opcode, b"\x03\xe8", rsv=rsv), BROKEN)
    for rsv in range(1, 8)
    for opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.PING, Opcode.PONG, Opcode.CLOSE)
] + [
    Case(
        f"3-rsv-{rsv}-after-a-good-message",
        HELLO + frame(Opcode.TEXT, b"again", rsv=rsv) + frame(Opcode.PING),
        [text(b"Hello"), *BROKEN],
    )
    for rsv in range(1, 8)
]

reserved_opcodes = [
    case
    for opcode in RESERVED_OPCODES
    for case in (
        Case(f"4-opcode-{opcode}-empty", frame(opcode), BROKEN),
        Case(f"4-opcode-{opcode}-with-payload", frame(opcode, b"payload"), BROKEN),
        Case(
            f"4-opcode-{opcode}-after-a-good-message",
            HELLO + frame(opcode, b"payload") + frame(Opcode.PING),
            [text(b"Hello"), *BROKEN],
            heard_in_one_piece=BROKEN,
        ),
    )
]

masks = [
    Case("5.1-unmasked-text", frame(Opcode.TEXT, b"bare", mask=None), BROKEN),
    Case("5.1-unmasked-ping", frame(Opcode.PING, mask=None), BROKEN),
    Case("5.1-unmasked-close", frame(Opcode.CLOSE, b"\x03\xe8", mask=None), BROKEN),
    Case("5.1-zero-mask", frame(Opcode.TEXT, b"plain", mask=b"\0\0\0\0"), [text(b"plain")]),
    Case("5.1-full-mask", frame(Opcode.TEXT, b"plain", mask=b"\xff\xff\xff\xff"), [text(b"plain")]),
]

lengths = [
    Case("5.2-125-in-16-bits", frame(Opcode.TEXT, b"*" * 125, length=b"\x7e\0\x7d"), BROKEN),
    Case("5.2-0-in-16-bits", frame(Opcode.TEXT, length=b"\x7e\0\0"), BROKEN),
    Case(
        "5.2-65535-in-64-bits",
        frame(Opcode.TEXT, b"*", length=b"\x7f" + (65_535).to_bytes(8, "big")),
        BROKEN,
    ),
    Case("5.2-negative-length", frame(Opcode.TEXT, b"*", length=b"\x7f\x80" + bytes(7)), BROKEN),
    Case("5.2-ping-in-16-bits", frame(Opcode.PING, b"*" * 5, length=b"\x7e\0\x05"), BROKEN),
    Case(
        "5.2-close-in-64-bits",
        frame(Opcode.CLOSE, b"\x03\xe8", length=b"\x7f" + bytes(7) + b"\x02"),
        BROKEN,
    ),
]

limits = [
    Case(
        "9.1-message-of-the-limit",
        frame(Opcode.TEXT, b"*" * MESSAGE_BYTES_MAX),
        [text(b"*" * MESSAGE_BYTES_MAX)],
    ),
    Case(
        "9.1-message-over-the-limit",
        frame(Opcode.TEXT, b"*" * (MESSAGE_BYTES_MAX + 1)),
        [closed(1009)],
    ),
    Case(
        "9.2-frame-over-the-limit",
        frame(Opcode.TEXT, b"*", length=b"\x7f" + (FRAME_BYTES_MAX + 1).to_bytes(8, "big")),
        [closed(1009)],
    ),
    Case(
        "9.2-frame-of-a-petabyte",
        frame(Opcode.BINARY, b"*", length=b"\x7f" + (2**50).to_bytes(8, "big")),
        [closed(1009)],
    ),
]

many = [
    Case(
        "9.7-a-hundred-messages",
        b"".join(frame(Opcode.TEXT, b"message %d" % n) for n in range(100)),
        [text(b"message %d" % n) for n in range(100)],
    ),
    Case(
        "9.7-messages-and-pings-keep-their-order",
        b"".join(frame(Opcode.TEXT, b"%d" % n) + frame(Opcode.PING, b"%d" % n) for n in range(20)),
        [heard for n in range(20) for heard in (text(b"%d" % n), pong(b"%d" % n))],
    ),
    Case(
        "9.7-the-last-words-before-a-close",
        HELLO + HELLO + close(1000),
        [text(b"Hello"), text(b"Hello"), closed(1000)],
    ),
]

handshakes = [
    Case(
        "7.1-close-after-a-message",
        frame(Opcode.TEXT, b"bye") + close(),
        [text(b"bye"), closed(1000)],
    ),
    Case("7.1-close-twice", close() + close(), [closed(1000)], heard_in_one_piece=BROKEN),
    Case("7.1-ping-after-close", close() + frame(Opcode.PING), [closed(1000)]),
    Case("7.1-message-after-close", close() + frame(Opcode.TEXT, b"late"), [closed(1000)]),
    Case("7.1-ping-before-close", frame(Opcode.PING) + close(), [pong(), closed(1000)]),
    Case(
        "7.1-close-inside-a-fragmented-message",
        frame(Opcode.TEXT, b"half", fin=False) + close() + frame(Opcode.CONTINUATION, b"half"),
        [closed(1000)],
    ),
    Case("7.3-empty-close", close(None), [closed(1000)]),
    Case("7.3-half-a-code", frame(Opcode.CLOSE, b"\x03"), BROKEN),
    Case("7.3-code-only", close(1000), [closed(1000)]),
    Case("7.3-code-and-reason", close(1000, b"Goodbye"), [closed(1000)]),
    Case("7.3-longest-reason", close(1000, b"*" * 123), [closed(1000)]),
    Case("7.3-reason-too-long", close(1000, b"*" * 124), BROKEN),
    Case("7.5-reason-is-no-text", close(1000, b"\xce\xba\xed\xa0\x80"), [closed(1007)]),
    Case("7.5-reason-ends-in-a-character", close(1000, b"\xe2\x82"), [closed(1007)]),
    Case("7.5-reason-in-greek", close(1000, "αντίο".encode()), [closed(1000)]),
]
good_codes = [Case(f"7.7-code-{code}", close(code), [closed(code)]) for code in GOOD_CODES]
bad_codes = [
    Case(f"7.9-code-{code}{name}", close(code, reason), BROKEN)
    for code in BAD_CODES
    for name, reason in (("", b""), ("-with-reason", b"because"))
]

CASES = sizes + pings + reserved_bits + reserved_opcodes + masks + lengths + limits + many
CASES += handshakes + good_codes + bad_codes


@pytest.mark.parametrize("in_one_piece", [True, False], ids=["whole", "chopped"])
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_frames_are_answered_as_rfc_6455_asks(
    hub: Listener, case: Case, in_one_piece: bool
) -> None:
    await check(case, hub.port, in_one_piece)
