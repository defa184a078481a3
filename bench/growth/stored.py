"""Topics with any number of messages, written by the log itself instead of through a hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lake.logs import BATCH_ENTRIES
from bench.protocols import MARKER
from bench.stores import topic_name
from signalhub.clock import SystemClock
from signalhub.log.disk import SystemDisk
from signalhub.log.log import Log
from signalhub.log.recovery import recover
from signalhub.settings import model
from signalhub.wire.entry import Entry, Kind, MessageBody, StreamDefinitionBody, encode_body

# Older than ids are remembered, so that a start does not read them.
AGE_MS = 3_600_000
_DIGITS = 12
_ID = b"0" * _DIGITS


class Topic:
    """A durable topic whose messages differ only in their ids."""

    def __init__(self, index: int, data_bytes: int) -> None:
        self.index = index
        self.head = 0
        self._name = topic_name(index)
        self._at_ms = SystemClock().now_ms() - AGE_MS
        head, tail = b'{"mark":"%b","text":"' % MARKER, b'"}'
        text = head + b"x" * max(0, data_bytes - len(head + tail)) + tail
        message = MessageBody(
            id=_ID.decode(),
            copy_id=bytes(16),
            sender="@(bench/filler)",
            type="bench:event",
            data=text,
        )
        self._before, self._after = encode_body(message).split(_ID)

    def created(self) -> Entry:
        return self._entry(Kind.STREAM_CREATED, 0, encode_body(StreamDefinitionBody(is_topic=True)))

    def messages(self, count: int) -> Iterator[Entry]:
        for seq in range(self.head + 1, self.head + count + 1):
            body = b"%b%0*d%b" % (self._before, _DIGITS, seq, self._after)
            yield self._entry(Kind.PUBLISHED, seq, body)
        self.head += count

    def _entry(self, kind: Kind, seq: int, body: bytes) -> Entry:
        return Entry(kind, self._name, self.index + 1, seq, self._at_ms, body)


@contextmanager
def open_log(data: Path) -> Iterator[Log]:
    """Open the log of a hub that is not running; it is synced on request only."""
    disk = SystemDisk(data / "log")
    settings = model.LogSettings(sync="os")
    log = Log(disk, settings, recover(disk, repair=True), clock=SystemClock())
    try:
        yield log
    finally:
        log.close()


def create(log: Log, topics: list[Topic]) -> None:
    log.append([topic.created() for topic in topics])


def fill(log: Log, topic: Topic, count: int) -> None:
    """Append this many messages, in batches, and seal what is full, as the hub does."""
    left = count
    while left:
        batch = list(topic.messages(min(left, BATCH_ENTRIES)))
        log.append(batch)
        left -= len(batch)
        for _ in log.upkeep():
            pass
    log.sync()
