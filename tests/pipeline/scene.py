"""Logs with known content for tests of the pipeline, written by the real log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from signalhub.clock import Clock, SystemClock
from signalhub.log.disk import SystemDisk
from signalhub.log.erasure import SegmentErasure
from signalhub.log.folder import look
from signalhub.log.log import Log
from signalhub.log.recovery import recover
from signalhub.settings.model import LogSettings as LogSettings
from signalhub.wire.entry import (
    Body,
    Entry,
    Kind,
    MessageBody,
    RoomMessageBody,
    SettledBody,
    Settlement,
    SubscriptionDefinitionBody,
    encode_body,
)
from tests.support.memory.log import drive

NOON_MS = 1_700_049_600_000  # 2023-11-15 12:00 UTC.


class LogScene:
    """A data folder whose log is written batch by batch."""

    def __init__(
        self, data: Path, *, segment_bytes: int = 2**20, clock: Clock | None = None
    ) -> None:
        self.data = data
        self.disk = SystemDisk(data / "log")
        self._clock = clock or SystemClock()
        self._settings = LogSettings(sync="os", segment_bytes=segment_bytes)
        self._seqs: dict[tuple[str, int], int] = {}
        self._log = self._open()

    @property
    def head(self) -> int:
        return self._log.head

    def _open(self) -> Log:
        return Log(self.disk, self._settings, recover(self.disk, repair=True), clock=self._clock)

    def append(self, entries: Sequence[Entry]) -> int:
        """One batch; the offset of its first entry."""
        first = self._log.append(entries)
        self._log.sync()
        return first

    def publish(self, count: int, topic: str = "orders", *, batch: int = 100) -> None:
        """Publish small messages to a topic."""
        entries = [self.published(topic, {"n": n}) for n in range(count)]
        for begin in range(0, count, batch):
            self.append(entries[begin : begin + batch])

    def published(
        self,
        topic: str,
        data: object,
        *,
        at_ms: int = NOON_MS,
        id: str = "",
        key: str | None = None,
        sender: str = "@(demo/alice)",
    ) -> Entry:
        """A message on a durable topic, at its next position."""
        seq = self._next(topic, 1)
        message = MessageBody(
            id=id or f"{topic}-{seq}",
            copy_id=b"0123456789abcdef",
            sender=sender,
            type="order:new",
            data=json.dumps(data).encode(),
            key=key,
            headers={"source": "test"},
        )
        return Entry(Kind.PUBLISHED, topic, 1, seq, at_ms, encode_body(message))

    def said(
        self, inbox: str, text: str = "q83v", *, at_ms: int = NOON_MS, expires_ms: int = 2**42
    ) -> Entry:
        """A message of a room; `inbox` is the name of its stream, `inbox.1.<hash>`."""
        seq = self._next(inbox, 1)
        body = RoomMessageBody(f"m-{seq}", text.encode(), at_ms, expires_ms)
        return Entry(Kind.ROOM_MESSAGE, inbox, 1, seq, at_ms, encode_body(body))

    def mailed(
        self,
        address: str,
        data: object,
        *,
        at_ms: int = NOON_MS,
        is_durable: bool = True,
        ttl: float | None = None,
    ) -> Entry:
        """An ask; one to an actor without a mailbox has no position."""
        seq = self._next(address, 1) if is_durable else 0
        expires_at = None if ttl is None else at_ms + ttl
        body = MessageBody(
            id=f"{address}-{self.head}",
            copy_id=b"0123456789abcdef",
            sender="@(demo/alice)",
            type="ping",
            data=json.dumps(data).encode(),
            ttl=ttl,
            expires_at=expires_at,
        )
        return Entry(Kind.MAIL, address, int(is_durable), seq, at_ms, encode_body(body))

    def about(self, kind: Kind, stream: str, body: Body, *, at_ms: int = NOON_MS) -> Entry:
        """An entry about a stream that is none of its messages."""
        return Entry(kind, stream, 1 if stream else 0, 0, at_ms, encode_body(body))

    def subscribed(self, name: str, topic: str = "orders", *, start: int = 0) -> Entry:
        """A subscription was made."""
        body = SubscriptionDefinitionBody(
            name, "exclusive", 10, False, 1000, 3, 10, 100, None, False, start=start
        )
        return self.about(Kind.SUBSCRIPTION_CREATED, topic, body)

    def settled(
        self, stream: str, name: str, generation: int, *ends: Settlement, at_ms: int = NOON_MS
    ) -> Entry:
        """What became of messages; of a mailbox if no subscription is named."""
        body = SettledBody(name, generation, list(ends))
        return self.about(Kind.SETTLED, stream, body, at_ms=at_ms)

    def reopen(self) -> None:
        """Go on after `close`, as a hub does."""
        self._log = self._open()

    def seal(self) -> None:
        """Finish what upkeep has to do: sealing full segments, preparing the next."""
        for _ in self._log.upkeep():
            pass

    def close(self) -> None:
        self._log.close()

    def erase(self, first: int, last: int) -> None:
        """Erase the content of entries."""
        drive(self._log.erase([SegmentErasure(((first, last),))]))

    def retire(self, count: int) -> None:
        """Delete the oldest segments, as retention does."""
        self._log.remove(self._log.segments[:count])

    def end_of(self, segment: str) -> int:
        """Where the batches of a segment end."""
        return next(one.bytes for one in look(self.disk).segments if one.name == segment)

    def lose_the_end(self) -> None:
        """The last batch is gone although it had been shown, so a new epoch begins."""
        self.close()
        info = look(self.disk).segments[-1]
        file = self.disk.open(info.name)
        file.write(bytes(32), info.bytes - 32)
        file.close()
        self._log = self._open()

    def skip_to(self, inbox: str, floor: int) -> None:
        """The next message of an inbox is above a floor."""
        self._seqs[inbox, 1] = floor

    def _next(self, stream: str, epoch: int) -> int:
        seq = self._seqs[stream, epoch] = self._seqs.get((stream, epoch), 0) + 1
        return seq


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
