"""WebSocket frames as bytes, written for the tests alone so that no bug can hide on both sides."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

CONTINUATION, TEXT, BINARY = 0x0, 0x1, 0x2
CLOSE, PING, PONG = 0x8, 0x9, 0xA

MASK = b"\x5a\x17\xc3\x88"


class Frame(NamedTuple):
    """One frame as the hub sent it."""

    opcode: int
    payload: bytes


def masked_frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    mask: bytes | None = MASK,
    length: bytes | None = None,
) -> bytes:
    """One frame as a client sends it; `length` replaces the honest length field."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    size = _length(len(payload)) if length is None else length
    if mask is None:
        return bytes((first,)) + size + payload
    return bytes((first, size[0] | 0x80)) + size[1:] + mask + _masked(payload, mask)


def fragments(payload: bytes, *cuts: int, opcode: int = TEXT) -> list[bytes]:
    """One message in as many frames as the cuts make."""
    edges = [0, *cuts, len(payload)]
    parts = [payload[start:end] for start, end in pairwise(edges)]
    last = len(parts) - 1
    return [
        masked_frame(CONTINUATION if index else opcode, part, fin=index == last)
        for index, part in enumerate(parts)
    ]


def close_payload(code: int, reason: str = "") -> bytes:
    """What a close frame carries."""
    return code.to_bytes(2, "big") + reason.encode()


def _length(count: int) -> bytes:
    if count < 126:
        return bytes((count,))
    if count < 65_536:
        return b"\x7e" + count.to_bytes(2, "big")
    return b"\x7f" + count.to_bytes(8, "big")


def _masked(payload: bytes, mask: bytes) -> bytes:
    # One exclusive-or of two long integers: megabytes take milliseconds.
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


class FrameReader:
    """Cuts the hub's bytes into frames and insists on what a server owes its client."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        return not self._buffer

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes."""
        self._buffer += data
        found: list[Frame] = []
        at = 0
        while (payload := self._payload_at(at)) is not None:
            start, end = payload
            found.append(Frame(self._buffer[at] & 0x0F, bytes(self._buffer[start:end])))
            at = end
        del self._buffer[:at]
        return found

    def _payload_at(self, at: int) -> tuple[int, int] | None:
        """Where the payload of the frame at `at` begins and ends, if all of it is here."""
        buffer = self._buffer
        if len(buffer) < at + 2:
            return None
        assert buffer[at] & 0x70 == 0, "the hub set reserved bits"
        assert buffer[at] & 0x80, "the hub fragmented a message"
        assert buffer[at + 1] < 0x80, "the hub masked a frame"
        length, start = buffer[at + 1], at + 2
        if length >= 126:
            start += 2 if length == 126 else 8
            if len(buffer) < start:
                return None
            length = int.from_bytes(buffer[at + 2 : start], "big")
        return (start, start + length) if len(buffer) >= start + length else None


def unmask(frame: bytes) -> tuple[int, bytes, bytes]:
    """Opcode, payload and what follows, read as RFC 6455 says."""
    assert frame[0] & 0xF0 == 0x80, "a final frame without reserved bits"
    assert frame[1] & 0x80, "a masked frame"
    size, at = frame[1] & 0x7F, 2
    if size == 126:
        size, at = int.from_bytes(frame[2:4], "big"), 4
    elif size == 127:
        size, at = int.from_bytes(frame[2:10], "big"), 10
    key, end = frame[at : at + 4], at + 4 + size
    payload = bytes(byte ^ key[i % 4] for i, byte in enumerate(frame[at + 4 : end]))
    return frame[0] & 0x0F, payload, frame[end:]
