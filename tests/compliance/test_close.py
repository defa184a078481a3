"""Closing: what a close frame may hold, what it is answered with, and that nothing follows it.

The cases follow section 7 of the Autobahn test suite; its numbers are in the names.
"""

from __future__ import annotations

import pytest

from signalhub.server.port.listener import Listener
from signalhub.wire.frames import Opcode
from tests.support.socket.raw_peer import Case, check, close, closed, frame, pong, text

BROKEN = [closed(1002)]
GOOD_CODES = (*range(1000, 1004), *range(1007, 1015), 3000, 3999, 4000, 4999)
BAD_CODES = (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)

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

CASES = handshakes + good_codes + bad_codes


@pytest.mark.parametrize("in_one_piece", [True, False], ids=["whole", "chopped"])
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_closing_follows_rfc_6455(hub: Listener, case: Case, in_one_piece: bool) -> None:
    await check(case, hub.port, in_one_piece)
