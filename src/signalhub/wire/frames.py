"""WebSocket messages: the rules of RFC 6455 beyond parsing single frames.

Parsed and unmasked frames go in; messages, pings and closes come out. Nothing here does I/O, so the
hub and the Python client share it. Three rules hold whatever a peer sends:

* a message is valid UTF-8 and no longer than the limit, checked fragment by fragment;
* memory is bounded by that limit, not by how many pieces the message came in;
* every broken rule is a `Violation` with its close code.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from enum import IntEnum

import msgspec

CONTROL_BYTES_MAX = 125
REASON_BYTES_MAX = CONTROL_BYTES_MAX - 2
FRAGMENTS_MAX = 65_536


class Opcode(IntEnum):
    """The six frame types of RFC 6455."""

    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


class CloseCode(IntEnum):
    """The close codes this project sends."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    INVALID_TEXT = 1007
    POLICY_VIOLATION = 1008
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    RESTARTING = 1012
    TRY_AGAIN_LATER = 1013


class Violation(Exception):
    """The peer broke the protocol: close with this code and reason, then disconnect."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


class CompleteMessage(msgspec.Struct, frozen=True, gc=False):
    """One complete message, text or binary; `data` is valid UTF-8."""

    data: bytes


class Ping(msgspec.Struct, frozen=True, gc=False):
    """The peer expects a pong with the same payload."""

    payload: bytes


class Pong(msgspec.Struct, frozen=True, gc=False):
    """The peer answered a ping, or sent an unsolicited pong."""

    payload: bytes


class Closed(msgspec.Struct, frozen=True, gc=False):
    """The peer closed; `code` is `None` when it gave none."""

    code: int | None
    reason: str


Event = CompleteMessage | Ping | Pong | Closed

# Plain integers: comparing with enum members would cost look-ups on every frame.
_CONTINUATION, _TEXT, _BINARY = 0x0, 0x1, 0x2
_CLOSE, _PING, _PONG = 0x8, 0x9, 0xA
_FIN = 0x80


def _header(opcode: int, length: int) -> bytes:
    first = _FIN | opcode
    if length < 126:
        return bytes((first, length))
    if length < 65_536:
        return bytes((first, 126)) + length.to_bytes(2, "big")
    return bytes((first, 127)) + length.to_bytes(8, "big")


class _TextHeaders(dict[int, bytes]):
    """Headers by length; only those of short frames are kept."""

    def __missing__(self, length: int) -> bytes:
        return _header(_TEXT, length)


_SHORT = 4096
# The unmasked header of a final text frame of a given length. Every frame passes here, so it is a
# look-up in C.
text_header: Callable[[int], bytes] = _TextHeaders(
    {length: _header(_TEXT, length) for length in range(_SHORT)}
).__getitem__


def text_frames(frames: bytes) -> Iterator[bytes]:
    """The payloads of unmasked final text frames, as `text_header` begins them."""
    at = 0
    while at < len(frames):
        short = frames[at + 1]
        at += 2
        if short >= 126:
            digits = 2 if short == 126 else 8
            short = int.from_bytes(frames[at : at + digits], "big")
            at += digits
        yield frames[at : at + short]
        at += short


def ping_frame(payload: bytes = b"") -> bytes:
    """An unmasked ping."""
    return _control_frame(_PING, payload)


def pong_frame(payload: bytes = b"") -> bytes:
    """An unmasked pong."""
    return _control_frame(_PONG, payload)


def close_frame(code: int | None, reason: str = "") -> bytes:
    """An unmasked close; a reason too long for one is cut between characters."""
    if code is None:
        return _control_frame(_CLOSE, b"")
    text = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
    return _control_frame(_CLOSE, code.to_bytes(2, "big") + text)


def _control_frame(opcode: int, payload: bytes) -> bytes:
    assert len(payload) <= CONTROL_BYTES_MAX, "control frames carry at most 125 bytes"
    return _header(opcode, len(payload)) + payload


def is_text(payload: bytes) -> bool:
    """Is it valid UTF-8?"""
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_close_code(code: int) -> bool:
    """May this code be sent in a close frame? 1004–1006 and 1015 may not."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def _unfinished(text: bytes) -> bytes:
    """The incomplete character at the end of `text`; raises if it cannot become valid."""
    _, used = codecs.utf_8_decode(text, "strict", False)
    rest = text[used:]
    # The codec waits for the third byte of a surrogate, although the second is already invalid.
    if rest[:1] == b"\xed" and rest[1:] >= b"\xa0":
        raise UnicodeDecodeError("utf-8", text, used, used + 2, "surrogates are not characters")
    return rest


class Assembler:
    """Turns frames into messages and refuses what RFC 6455 forbids.

    While `is_pending` is false, a final text frame without reserved bits is a whole message: as a
    shortcut, a caller may check its size and `is_text` and skip `feed`. After a `Violation` or a
    `Closed` the caller feeds nothing more.
    """

    __slots__ = ("_buffer", "_bytes_max", "_fragments", "_rest", "is_pending")

    def __init__(self, message_bytes_max: int) -> None:
        self._bytes_max = message_bytes_max
        self.is_pending = False
        self._fragments = 0
        self._buffer = bytearray()
        self._rest = b""

    @property
    def held_bytes(self) -> int:
        """How much of an incomplete message is kept."""
        return len(self._buffer)

    def feed(self, opcode: int, fin: bool, rsv: bool, payload: bytes) -> Event | None:
        """The next frame; `None` while a message is incomplete."""
        if rsv:
            raise _broken("reserved bits are set, but no extension was negotiated")
        if opcode >= _CLOSE:
            return _control(opcode, fin, payload)
        if opcode == _CONTINUATION:
            if not self.is_pending:
                raise _broken("a continuation without a message to continue")
            return self._append(payload, fin)
        if opcode > _BINARY:
            raise _broken(f"unknown opcode {opcode:#x}")
        if self.is_pending:
            raise _broken("a new message inside a fragmented one")
        if fin:
            if len(payload) > self._bytes_max:
                raise self._too_big()
            if not is_text(payload):
                raise _not_text()
            return CompleteMessage(payload)
        self.is_pending = True
        return self._append(payload, fin)

    def _append(self, payload: bytes, fin: bool) -> CompleteMessage | None:
        buffer = self._buffer
        self._fragments += 1
        if len(buffer) + len(payload) > self._bytes_max:
            raise self._too_big()
        if self._fragments > FRAGMENTS_MAX:
            raise Violation(CloseCode.TOO_BIG, f"more than {FRAGMENTS_MAX} fragments")
        try:
            self._rest = _unfinished(self._rest + payload)
        except UnicodeDecodeError:
            raise _not_text() from None
        buffer += payload
        if not fin:
            return None
        if self._rest:
            raise _not_text()
        self.is_pending = False
        self._fragments = 0
        self._buffer = bytearray()
        return CompleteMessage(bytes(buffer))

    def _too_big(self) -> Violation:
        return Violation(CloseCode.TOO_BIG, f"a message is longer than {self._bytes_max} bytes")


def _control(opcode: int, fin: bool, payload: bytes) -> Event:
    if not fin:
        raise _broken("a fragmented control frame")
    if len(payload) > CONTROL_BYTES_MAX:
        raise _broken(f"a control frame longer than {CONTROL_BYTES_MAX} bytes")
    if opcode == _PING:
        return Ping(payload)
    if opcode == _PONG:
        return Pong(payload)
    if opcode == _CLOSE:
        return _closed(payload)
    raise _broken(f"unknown opcode {opcode:#x}")


def _closed(payload: bytes) -> Closed:
    if not payload:
        return Closed(None, "")
    if len(payload) == 1:
        raise _broken("a close frame with an incomplete code")
    code = int.from_bytes(payload[:2], "big")
    if not is_close_code(code):
        raise _broken(f"close code {code} must not be sent")
    try:
        return Closed(code, payload[2:].decode())
    except UnicodeDecodeError:
        raise Violation(CloseCode.INVALID_TEXT, "the close reason is not UTF-8") from None


def _broken(reason: str) -> Violation:
    return Violation(CloseCode.PROTOCOL_ERROR, reason)


def _not_text() -> Violation:
    return Violation(CloseCode.INVALID_TEXT, "a message is not UTF-8")
