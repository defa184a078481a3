"""Frames of a fan-out, encoded once for all recipients.

The copies of one publish differ only in the recipient's address: a copy is head + address + tail. A
fan-out batch collects publishes to one audience. The bytes for a recipient are the pieces of the
batch joined by its address: one C call for any number of messages. Large copies are not joined, so
that recipients that do not read share them.

A large audience takes several ticks to write. Publishes that come meanwhile join the batch: who is
not written yet gets them in the same write, and who is written already is queued again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from signalhub.core.sessions.registry import Recipient
from signalhub.server.sockets.ledger import SHARED_BYTES
from signalhub.wire.frames import text_header

if TYPE_CHECKING:
    from signalhub.server.sockets.connection import Connection


class FanBatch:
    """Publishes to one audience that have not been written to all of it.

    It is open while it is the last item in the queue of every recipient that waits, so that adding
    to it preserves the order. Queueing anything after it closes it, and so does writing the last
    of them.
    """

    __slots__ = ("_copies", "_pieces", "_size", "_waiting", "_written", "blocked", "is_open")

    def __init__(self) -> None:
        self._copies: list[tuple[bytes, bytes]] = []
        # What stands between the addresses, by their size and the first of the copies.
        self._pieces: dict[tuple[int, int], list[bytes]] = {}
        self._size = 0
        self.is_open = True
        # How many queues it is in, and who has been written since the last publish.
        self._waiting = 0
        self._written: list[Recipient] = []
        # Blocked recipients, which get each copy through their bounded queue.
        self.blocked: list[Recipient] = []

    @property
    def count(self) -> int:
        """The number of publishes."""
        return len(self._copies)

    @property
    def joined(self) -> int:
        """The number of recipients that are not blocked."""
        return self._waiting + len(self._written)

    def takes(self, head: bytes, tail: bytes) -> bool:
        """Can this publish be added?"""
        # Beyond that it would not be joined any more.
        return self.is_open and self._size + len(head) + len(tail) < SHARED_BYTES

    def add(self, head: bytes, tail: bytes) -> None:
        """Add a publish."""
        assert self.is_open
        self._copies.append((head, tail))
        self._size += len(head) + len(tail)
        self._pieces.clear()

    def enlist(self, recipients: Iterable[Recipient]) -> list[Connection[Any]]:
        """Queue the last publish on all connections that are not blocked; return these."""
        connections: list[Connection[Any]] = []
        begin = len(self._copies) - 1
        for recipient in recipients:
            connection: Connection[Any] = recipient.session.link  # type: ignore[assignment]
            if recipient.session.outbound is not None or connection.is_closing:
                self.blocked.append(recipient)
                continue
            connection.queue.append((self, recipient, begin))
            connection.has_fans = True
            if connection.fan is not None and connection.fan is not self:
                connection.fan.is_open = False
            connection.fan = self
            connections.append(connection)
        self._waiting += len(connections)
        return connections

    def enlist_written(self) -> list[Connection[Any]]:
        """Queue the last publish for those who got the earlier ones already."""
        written, self._written = self._written, []
        return self.enlist(written)

    @property
    def is_large(self) -> bool:
        """Are the copies not joined, so that recipients share them?"""
        return self._size >= SHARED_BYTES

    def rendered(self, recipient: Recipient, begin: int) -> bytes:
        """The frames for one recipient who has them from `begin` on, unless they are large."""
        self._leave(recipient)
        size = len(recipient.address_json)
        pieces = self._pieces.get((size, begin))
        if pieces is None:
            pieces = self._pieces[size, begin] = self._cut(size, begin)
        return recipient.address_json.join(pieces)

    def render(self, recipient: Recipient, begin: int, into: list[bytes]) -> None:
        """Append these frames."""
        if not self.is_large:
            into.append(self.rendered(recipient, begin))
            return
        self._leave(recipient)
        address_json = recipient.address_json
        for head, tail in self._copies[begin:]:
            header = text_header(len(head) + len(address_json) + len(tail))
            into += (header, head, address_json, tail)

    def _leave(self, recipient: Recipient) -> None:
        self._waiting -= 1
        self._written.append(recipient)
        if not self._waiting:
            self.is_open = False

    def _cut(self, address_size: int, begin: int) -> list[bytes]:
        """Return the bytes between the addresses, for addresses of one length."""
        pieces: list[bytes] = []
        before = b""
        for head, tail in self._copies[begin:]:
            size = len(head) + address_size + len(tail)
            pieces.append(b"".join((before, text_header(size), head)))
            before = tail
        pieces.append(before)
        return pieces
