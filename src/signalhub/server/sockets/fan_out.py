"""Frames of a fan-out, encoded once for all recipients.

The copies of one publish differ only in the recipient's address: a copy is head + address + tail. A
fan-out batch collects the publishes of one tick to one audience. The bytes for a recipient are the
pieces of the batch joined by its address: one C call for any number of messages. Large copies are
not joined, so that recipients that do not read share them.
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
    """Publishes to one audience that have not been written yet.

    It is open while it is the last item in every recipient's queue, so that adding to it preserves
    the order. Queueing anything after it, or writing it, closes it.
    """

    __slots__ = ("_copies", "_pieces", "_size", "blocked", "count", "is_open", "joined")

    def __init__(self) -> None:
        self._copies: list[tuple[bytes, bytes]] = []
        self._pieces: dict[int, list[bytes]] = {}
        self._size = 0
        self.is_open = True
        # Publishes in the batch.
        self.count = 0
        self.joined = 0
        # Blocked recipients, which get each copy through their bounded queue.
        self.blocked: list[Recipient] = []

    def enlist(self, recipients: Iterable[Recipient]) -> list[Connection[Any]]:
        """Queue the batch on all connections that are not blocked; return these."""
        connections: list[Connection[Any]] = []
        for recipient in recipients:
            connection: Connection[Any] = recipient.session.link  # type: ignore[assignment]
            if recipient.session.outbound is not None or connection.is_closing:
                self.blocked.append(recipient)
                continue
            connection.queue.append((self, recipient.address_json))
            connection.has_fans = True
            if connection.fan is not None and connection.fan is not self:
                connection.fan.is_open = False
            connection.fan = self
            connections.append(connection)
        self.joined = len(connections)
        return connections

    def add(self, head: bytes, tail: bytes) -> None:
        """Add a publish."""
        assert self.is_open
        self._copies.append((head, tail))
        self.count += 1
        self._size += len(head) + len(tail)

    def render(self, address_json: bytes, into: list[bytes]) -> None:
        """Append all frames for one recipient."""
        pieces = self.closed(len(address_json))
        if pieces is not None:
            into.append(address_json.join(pieces))
            return
        for head, tail in self._copies:
            header = text_header(len(head) + len(address_json) + len(tail))
            into += (header, head, address_json, tail)

    def closed(self, address_size: int) -> list[bytes] | None:
        """Close it; return the bytes before, between and after addresses of this length.

        `None` if the copies are large: they are not joined, so that recipients share them.
        """
        self.is_open = False
        if self._size >= SHARED_BYTES:
            return None
        pieces = self._pieces.get(address_size)
        if pieces is None:
            pieces = self._pieces[address_size] = self._cut(address_size)
        return pieces

    def _cut(self, address_size: int) -> list[bytes]:
        """Return the bytes between the addresses, for addresses of one length."""
        pieces: list[bytes] = []
        before = b""
        for head, tail in self._copies:
            size = len(head) + address_size + len(tail)
            pieces.append(b"".join((before, text_header(size), head)))
            before = tail
        pieces.append(before)
        return pieces
