"""Logs to land: any number of entries as the hub writes them, created quickly."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from signalhub.clock import SystemClock
from signalhub.log.disk import SystemDisk
from signalhub.log.log import Log
from signalhub.log.recovery import recover
from signalhub.settings import model
from signalhub.wire.entry import Entry, Kind, MessageBody, RoomMessageBody, encode_body

BATCH_ENTRIES = 500
KEPT_MS = 7 * 86_400_000
_TOPICS = 20
_ORDER = {
    "customer": {"id": 17, "name": "someone"},
    "items": [{"sku": "abc", "n": 1}] * 3,
    "note": "x" * 80,
}


@contextmanager
def open_log(data: Path) -> Iterator[Log]:
    """A log that is synced only on request, so that it is created quickly."""
    disk = SystemDisk(data / "log")
    clock = SystemClock()
    log = Log(disk, model.LogSettings(sync="os"), recover(disk, repair=True), clock=clock)
    try:
        yield log
    finally:
        log.close()


def fill(log: Log, entries: Iterator[Entry], count: int) -> None:
    """Append this many entries, in batches, and publish them."""
    left = count
    while left:
        batch = [next(entries) for _ in range(min(left, BATCH_ENTRIES))]
        log.append(batch)
        left -= len(batch)
    log.sync()
    # As the hub does: full segments are sealed and indexed.
    for _ in log.upkeep():
        pass


def publications() -> Iterator[Entry]:
    """Return messages of several topics in turn, about 330 bytes each in the log."""
    now_ms = SystemClock().now_ms()
    data = json.dumps(_ORDER).encode()
    number = 0
    while True:
        topic, seq = number % _TOPICS, number // _TOPICS + 1
        message = MessageBody(
            id=f"id-{number:012d}",
            copy_id=bytes(16),
            sender="@(demo/alice)",
            type="order:new",
            data=data,
            key=f"k{number % 100}",
            headers={"trace": "none"},
        )
        body = encode_body(message)
        yield Entry(Kind.PUBLISHED, f"topic-{topic}", 1, seq, now_ms + number // 100, body)
        number += 1


def inbox_name(index: int) -> str:
    """Return the stream of an inbox: version of the key, and a hash of 22 characters."""
    digest = hashlib.sha256(index.to_bytes(8, "big")).digest()[:16]
    return f"inbox.1.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def room_messages(inboxes: int, size: int) -> Iterator[Entry]:
    """Return messages of `size` characters for the inboxes in turn."""
    now_ms = SystemClock().now_ms()
    names = [inbox_name(index) for index in range(inboxes)]
    number = 0
    while True:
        # A repeated hash looks random to a compressor that works on pages.
        text = hashlib.sha512(number.to_bytes(8, "big")).hexdigest()
        message = RoomMessageBody(
            message_id=f"m{number:012d}",
            ciphertext=(text * (size // len(text) + 1))[:size].encode(),
            created_ms=now_ms,
            expires_ms=now_ms + KEPT_MS,
        )
        seq = number // inboxes + 1
        body = encode_body(message)
        yield Entry(Kind.ROOM_MESSAGE, names[number % inboxes], 1, seq, now_ms, body)
        number += 1
