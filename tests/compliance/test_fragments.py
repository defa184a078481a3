"""Messages in pieces, and what may and may not come between them.

The cases follow sections 5, 9.3 and 10 of the Autobahn test suite; its numbers are in the names.
"""

from __future__ import annotations

import pytest

from signalhub.server.port.listener import Listener
from signalhub.wire.frames import FRAGMENTS_MAX, Opcode
from tests.support.socket.echo import MESSAGE_BYTES_MAX
from tests.support.socket.raw_peer import Case, check, close, closed, fragments, frame, pong, text

BROKEN = [closed(1002)]
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

sizes = [
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

CASES = together + between + out_of_place + sizes


@pytest.mark.parametrize("in_one_piece", [True, False], ids=["whole", "chopped"])
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_fragments_are_joined_or_refused_as_rfc_6455_asks(
    hub: Listener, case: Case, in_one_piece: bool
) -> None:
    await check(case, hub.port, in_one_piece)
