"""UTF-8, in the one encoding RFC 3629 allows for each character.

The cases follow section 6 of the Autobahn test suite, which follows Markus Kuhn's stress test. Each
sequence travels as one text frame, as one binary frame, and as a text fragment per byte.
"""

from __future__ import annotations

import pytest

from signalhub.server.port.listener import Listener
from signalhub.wire.frames import Opcode
from tests.support.socket.raw_peer import Case, check, closed, fragments, frame, text

NOT_TEXT = [closed(1007)]

VALID = {
    "6.2-greek-and-german": "Hello-µ@ßöäüàá-UTF-8!!".encode(),
    "6.5-kosme": "κόσμε".encode(),
    "6.6-first-of-1-byte": b"\x00",
    "6.6-first-of-2-bytes": b"\xc2\x80",
    "6.6-first-of-3-bytes": b"\xe0\xa0\x80",
    "6.6-first-of-4-bytes": b"\xf0\x90\x80\x80",
    "6.7-last-of-1-byte": b"\x7f",
    "6.7-last-of-2-bytes": b"\xdf\xbf",
    "6.7-last-of-3-bytes": b"\xef\xbf\xbf",
    "6.7-last-of-4-bytes": b"\xf4\x8f\xbf\xbf",
    "6.9-before-the-surrogates": b"\xed\x9f\xbf",
    "6.9-after-the-surrogates": b"\xee\x80\x80",
    "6.9-replacement-character": b"\xef\xbf\xbd",
    "6.22-noncharacter-fffe": b"\xef\xbf\xbe",
    "6.22-noncharacter-1fffe": b"\xf0\x9f\xbf\xbe",
    "6.22-noncharacter-10ffff": b"\xf4\x8f\xbf\xbf",
    "6.23-byte-order-mark": b"\xef\xbb\xbf",
    "6.23-emoji-joined": "👩‍🚀 and 🏳️‍🌈".encode(),
}

INVALID = {
    "6.3-bad-byte-in-the-middle": "κόσμε".encode() + b"\xed\xa0\x80" + b"edited",
    "6.8-first-of-5-bytes": b"\xf8\x88\x80\x80\x80",
    "6.8-first-of-6-bytes": b"\xfc\x84\x80\x80\x80\x80",
    "6.10-last-of-5-bytes": b"\xfb\xbf\xbf\xbf\xbf",
    "6.10-last-of-6-bytes": b"\xfd\xbf\xbf\xbf\xbf\xbf",
    "6.11-beyond-the-last-character": b"\xf4\x90\x80\x80",
    "6.11-lead-byte-f5": b"\xf5\x80\x80\x80",
    "6.12-first-continuation-alone": b"\x80",
    "6.12-last-continuation-alone": b"\xbf",
    "6.12-seven-continuations": b"\x80\xbf\x80\xbf\x80\xbf\x80",
    "6.12-every-continuation": bytes(range(0x80, 0xC0)),
    "6.13-lonely-start-of-2": b"\xc3 \xc4 \xdf ",
    "6.13-lonely-start-of-3": b"\xe1 \xe2 \xef ",
    "6.13-lonely-start-of-4": b"\xf1 \xf4 ",
    "6.14-2-bytes-without-the-last": b"\xdf",
    "6.14-3-bytes-without-the-last": b"\xe0\xa0",
    "6.14-4-bytes-without-the-last": b"\xf0\x90\x80",
    "6.14-3-bytes-without-the-last-then-more": b"\xe2\x82x",
    "6.15-all-incomplete-in-a-row": b"\xc3\xe1\x80\xf1\x80\x80",
    "6.16-impossible-fe": b"\xfe",
    "6.16-impossible-ff": b"\xff",
    "6.16-impossible-fe-fe-ff-ff": b"\xfe\xfe\xff\xff",
    "6.17-overlong-slash-in-2": b"\xc0\xaf",
    "6.17-overlong-slash-in-3": b"\xe0\x80\xaf",
    "6.17-overlong-slash-in-4": b"\xf0\x80\x80\xaf",
    "6.17-overlong-slash-in-5": b"\xf8\x80\x80\x80\xaf",
    "6.17-overlong-slash-in-6": b"\xfc\x80\x80\x80\x80\xaf",
    "6.18-longest-overlong-in-2": b"\xc1\xbf",
    "6.18-longest-overlong-in-3": b"\xe0\x9f\xbf",
    "6.18-longest-overlong-in-4": b"\xf0\x8f\xbf\xbf",
    "6.19-overlong-null-in-2": b"\xc0\x80",
    "6.19-overlong-null-in-3": b"\xe0\x80\x80",
    "6.19-overlong-null-in-4": b"\xf0\x80\x80\x80",
    "6.20-surrogate-d800": b"\xed\xa0\x80",
    "6.20-surrogate-db7f": b"\xed\xad\xbf",
    "6.20-surrogate-db80": b"\xed\xae\x80",
    "6.20-surrogate-dbff": b"\xed\xaf\xbf",
    "6.20-surrogate-dc00": b"\xed\xb0\x80",
    "6.20-surrogate-dfff": b"\xed\xbf\xbf",
    "6.21-surrogate-pair-low": b"\xed\xa0\x80\xed\xb0\x80",
    "6.21-surrogate-pair-high": b"\xed\xaf\xbf\xed\xbf\xbf",
}


def ways(name: str, payload: bytes) -> list[tuple[str, bytes]]:
    return [
        (f"{name}-as-text", frame(Opcode.TEXT, payload)),
        (f"{name}-as-binary", frame(Opcode.BINARY, payload)),
        (f"{name}-per-byte", fragments(*[bytes((byte,)) for byte in payload])),
    ]


valid = [
    Case(name, sent, [text(payload)])
    for title, payload in VALID.items()
    for name, sent in ways(title, payload)
]
invalid = [
    Case(name, sent, NOT_TEXT)
    for title, payload in INVALID.items()
    for name, sent in ways(title, payload)
]

# A fragment that can never become text ends the connection; the rest need not be waited for.
fail_fast = [
    Case(
        f"6.4-{name}",
        fragments("κόσμε".encode(), bad, b"never read")[: -len(frame(Opcode.TEXT, b"never read"))],
        NOT_TEXT,
    )
    for name, bad in {
        "surrogate-begun": b"\xed\xa0",
        "beyond-unicode-begun": b"\xf4\x90",
        "overlong-begun": b"\xe0\x80",
        "continuation-alone": b"\x80",
    }.items()
] + [
    Case(
        "6.4-character-across-fragments", fragments(b"\xf0\x9f", b"\x9a\x80"), [text("🚀".encode())]
    ),
    Case("6.4-character-left-open", fragments(b"\xf0\x9f", b"\x9a"), NOT_TEXT),
    Case(
        "6.4-open-character-does-not-leak-into-the-next-message",
        fragments(b"\xce", b"\xba") + fragments(b"\xce", b"\xba"),
        [text("κ".encode())] * 2,
    ),
    Case(
        "6.1-good-message-before-a-bad-one",
        frame(Opcode.TEXT, b"good") + frame(Opcode.TEXT, b"\xff"),
        [text(b"good"), *NOT_TEXT],
    ),
]

CASES = valid + invalid + fail_fast


@pytest.mark.parametrize("in_one_piece", [True, False], ids=["whole", "chopped"])
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_only_utf_8_is_text(hub: Listener, case: Case, in_one_piece: bool) -> None:
    await check(case, hub.port, in_one_piece)
