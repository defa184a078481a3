"""Messages of rooms as the JSON that clients read, made once for pages and live frames.

Ids and ciphertext hold no character that JSON escapes; that was checked when they came in.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from signalhub.core.rooms.requests import Send

# How exactly times are kept and told, by the setting `rooms.timestamps`.
GRID_MS: Final = {"exact": 1, "coarse": 5_000, "none": 3_600_000}


def members(seq: int, message_id: str, ciphertext: bytes) -> bytes:
    """What pages and frames say alike."""
    return b'"seq":%d,"messageId":"%b","ciphertext":"%b"' % (seq, message_id.encode(), ciphertext)


def page_item(alike: bytes, created_ms: int | None, *, is_exact: bool) -> bytes:
    """A message in a page."""
    if created_ms is None:
        return b"{%b}" % alike
    return b'{%b,"createdAt":"%b"}' % (alike, rfc3339(created_ms, is_exact))


def live_frame(alike: bytes, request: Send) -> bytes:
    """A message as the sockets of its room get it."""
    if request.pseudonym:
        return b'{"action":"message",%b,"type":"%b","pseudonymId":"%b"}' % (
            alike,
            request.type.encode(),
            request.pseudonym.encode(),
        )
    return b'{"action":"message",%b,"type":"%b"}' % (alike, request.type.encode())


@lru_cache(64)
def rfc3339(time_ms: int, is_exact: bool) -> bytes:
    """A time in UTC, to the millisecond or the second. Most messages share their time."""
    at = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return (f"{at}.{time_ms % 1000:03d}Z" if is_exact else f"{at}Z").encode()
