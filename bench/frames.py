"""WebSocket frames of a client, encoded and masked before the measurement starts.

The frames of one lane have the same length, so message k starts at k times that length.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

TEXT = 1
BINARY = 2
MASK = b"\x5a\x13\xc7\x8e"
_KEY = base64.b64encode(b"signal-hub-bench").decode()


def masked(payload: bytes, opcode: int = TEXT) -> bytes:
    """Return one final frame with a masked payload."""
    return masked_run([payload], opcode)


def masked_run(payloads: Sequence[bytes], opcode: int = TEXT) -> bytes:
    """Return the frames of payloads of equal length, concatenated, masked in one operation."""
    size = len(payloads[0])
    assert all(len(payload) == size for payload in payloads), "payloads of one run differ in length"
    head = _head(size, opcode)
    frames = b"".join([head + payload for payload in payloads])
    key = bytes(len(head)) + (MASK * (size // len(MASK) + 1))[:size]
    return _xor(frames, key * len(payloads))


def upgrade(path: str, port: int, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the HTTP request that opens a WebSocket."""
    further = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {_KEY}\r\nSec-WebSocket-Version: 13\r\n"
        f"{further}\r\n"
    ).encode()


def _head(size: int, opcode: int) -> bytes:
    first = bytes([0x80 | opcode])
    if size < 126:
        return first + bytes([0x80 | size]) + MASK
    if size < 2**16:
        return first + b"\xfe" + size.to_bytes(2, "big") + MASK
    return first + b"\xff" + size.to_bytes(8, "big") + MASK


def _xor(left: bytes, right: bytes) -> bytes:
    mixed = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return mixed.to_bytes(len(left), "little")
