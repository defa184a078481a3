"""Frames one at a time, messages in fragments, and closing.

The cases follow sections 1–5, 7, 9 and 10 of the Autobahn test suite; its numbers are in the names.
"""

from __future__ import annotations

import pytest

from signalhub.server.port.listener import Listener
from signalhub.wire.frames import FRAGMENTS_MAX, Opcode
from tests.support.socket.echo import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from tests.support.socket.raw_peer import Case, check, close, closed, fragments, frame, pong, text

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


BEGIN = frame(Opcode.TEXT, b"one ", fin=False)
MIDDLE = frame(Opcode.CONTINUATION, b"two ", fin=False)
END = frame(Opcode.CONTINUATION, b"three")
ALL = text(b"one two three")
PING = frame(Opcode.PING, b"?")
LONG = bytes(97 + n % 26 for n in range(65_536))


def split(message: bytes, size: int) -> list[bytes]:
    return [message[at : at + size] for at in range(0, len(message), size)]


together = [
    Case("5.3-two-fragments", fragments(b"fragment1", b"fragment2"), [text(b"fragment1fragment2")]),
    Case("5.4-three-fragments", BEGIN + MIDDLE + END, [ALL]),
    Case("5.5-a-fragment-per-byte", fragments(*split(b"one two three", 1)), [ALL]),
    Case(
        "5.5-binary-in-fragments",
        fragments(b"bin", b"ary", opcode=Opcode.BINARY),
        [text(b"binary")],
    ),
    Case("5.5-two-messages", (BEGIN + MIDDLE + END) * 2, [ALL, ALL]),
    Case("5.5-empty-fragments", fragments(b"", b"", b""), [text(b"")]),
    Case("5.5-empty-around-full", fragments(b"", b"middle", b""), [text(b"middle")]),
    Case(
        "5.5-whole-after-fragmented",
        BEGIN + END + frame(Opcode.TEXT, b"next"),
        [text(b"one three"), text(b"next")],
    ),
]

between = [
    Case("5.6-ping-between", BEGIN + PING + END, [pong(b"?"), text(b"one three")]),
    Case("5.7-pong-between", BEGIN + frame(Opcode.PONG) + END, [text(b"one three")]),
    Case(
        "5.19-pings-everywhere",
        PING + BEGIN + PING + MIDDLE + PING + END + PING,
        [pong(b"?"), pong(b"?"), pong(b"?"), ALL, pong(b"?")],
    ),
    Case("5.20-close-between", BEGIN + close(1001) + END, [closed(1001)]),
    Case("5.20-broken-ping-between", BEGIN + frame(Opcode.PING, rsv=4) + END, BROKEN),
]

out_of_place = [
    Case("5.1-fragmented-ping", frame(Opcode.PING, fin=False), BROKEN),
    Case("5.2-fragmented-pong", frame(Opcode.PONG, b"x", fin=False), BROKEN),
    Case("5.2-fragmented-close", frame(Opcode.CLOSE, b"\x03\xe8", fin=False), BROKEN),
    Case("5.9-lone-final-continuation", END, BROKEN),
    Case("5.10-lone-continuation", MIDDLE, BROKEN),
    Case("5.11-empty-lone-continuation", frame(Opcode.CONTINUATION), BROKEN),
    Case(
        "5.12-continuation-after-a-whole-message",
        frame(Opcode.TEXT, b"whole") + END,
        [text(b"whole"), *BROKEN],
    ),
    Case("5.15-continuation-after-the-last", BEGIN + END + END, [text(b"one three"), *BROKEN]),
    Case("5.16-continuation-before-the-first", MIDDLE + BEGIN + END, BROKEN),
    Case("5.18-text-inside-text", BEGIN + frame(Opcode.TEXT, b"new"), BROKEN),
    Case("5.18-fragmented-text-inside-text", BEGIN + BEGIN + END, BROKEN),
    Case("5.18-binary-inside-text", BEGIN + frame(Opcode.BINARY, b"new"), BROKEN),
    Case(
        "5.18-text-inside-binary",
        frame(Opcode.BINARY, b"a", fin=False) + frame(Opcode.TEXT, b"b"),
        BROKEN,
    ),
    *(
        Case(
            f"5.18-rsv-{rsv}-on-a-continuation",
            BEGIN + frame(Opcode.CONTINUATION, b"!", rsv=rsv),
            BROKEN,
        )
        for rsv in range(1, 8)
    ),
]

lengthy = [
    Case("10.1-65536-bytes-in-1300s", fragments(*split(LONG, 1300)), [text(LONG)]),
    Case("9.3-65536-bytes-in-64s", fragments(*split(LONG, 64)), [text(LONG)]),
    Case(
        "9.3-the-limit-in-two-halves",
        fragments(b"*" * (MESSAGE_BYTES_MAX // 2), b"*" * (MESSAGE_BYTES_MAX // 2)),
        [text(b"*" * MESSAGE_BYTES_MAX)],
    ),
    Case(
        "9.3-one-byte-over-the-limit",
        fragments(b"*" * (MESSAGE_BYTES_MAX // 2), b"*" * (MESSAGE_BYTES_MAX // 2), b"*"),
        [closed(1009)],
    ),
    Case(
        "9.3-as-many-fragments-as-allowed",
        fragments(*[b""] * FRAGMENTS_MAX),
        [text(b"")],
    ),
    Case(
        "9.3-a-flood-of-empty-fragments",
        fragments(*[b""] * (FRAGMENTS_MAX + 2)),
        [closed(1009)],
    ),
]

FRAGMENTED = together + between + out_of_place + lengthy


@pytest.mark.parametrize("in_one_piece", [True, False], ids=["whole", "chopped"])
@pytest.mark.parametrize("case", FRAGMENTED, ids=str)
async def test_fragments_are_joined_or_refused_as_rfc_6455_asks(
    hub: Listener, case: Case, in_one_piece: bool
) -> None:
    await check(case, hub.port, in_one_piece)
