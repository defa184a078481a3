"""Frames of a fan-out, encoded once for all recipients.

The copies of one publish differ only in the recipient's address: a copy is head + address + tail. A
fan-out batch collects publishes to one audience. The bytes for a recipient are the pieces of the
batch joined by its address: one C call for any number of messages. Large copies are not joined, so
that recipients that do not read share them.

A large audience takes several ticks to write. Publishes that come meanwhile join the batch: who is
not written yet gets them in the same write, and who is written already is queued again. On a busy
topic that never ends, so a batch forgets what everybody has been sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from signalhub.core.sessions.registry import Recipient
from signalhub.server.sockets.ledger import SHARED_BYTES
from signalhub.wire.frames import text_header

if TYPE_CHECKING:
    from signalhub.server.sockets.connection import Connection


class Cut(NamedTuple):
    """Frames without the address that they have in common."""

    pieces: list[bytes]
    """What stands before, between and after it."""
    size: int
    """All bytes, the addresses included."""


class FanBatch:
    """Publishes to one audience that have not been written to all of it.

    It is open while it is the last item in the queue of every recipient that waits, so that adding
    to it preserves the order. Queueing anything after it closes it, and so does writing the last
    of them.
    """

    __slots__ = (
        "_begun",
        "_copies",
        "_cuts",
        "_size",
        "_waiting",
        "_written",
        "blocked",
        "count",
        "is_large",
        "is_open",
    )

    def __init__(self) -> None:
        # The newest of them: those that somebody waits for.
        self._copies: list[tuple[bytes, bytes]] = []
        # By the length of the address and the first of the copies.
        self._cuts: dict[tuple[int, int], Cut] = {}
        self._size = 0
        # The number of publishes.
        self.count = 0
        # Are the copies not joined, so that recipients share them?
        self.is_large = False
        self.is_open = True
        # How many queues it is in, and how many of them from which publish on, in their order.
        self._waiting = 0
        self._begun: dict[int, int] = {}
        # Who has been written since the last publish.
        self._written: list[Recipient] = []
        # Blocked recipients, which get each copy through their bounded queue.
        self.blocked: list[Recipient] = []

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
        self.count += 1
        self._size += len(head) + len(tail)
        self.is_large = self._size >= SHARED_BYTES
        self._cuts.clear()

    def enlist(self, recipients: Iterable[Recipient]) -> list[Connection[Any]]:
        """Queue the last publish on all connections that are not blocked; return these."""
        connections: list[Connection[Any]] = []
        begin = self.count - 1
        for recipient in recipients:
            session = recipient.session
            connection: Connection[Any] = session.link  # type: ignore[assignment]
            if session.outbound is not None or connection.is_closing:
                self.blocked.append(recipient)
                continue
            connection.queue.append((self, recipient, begin))
            connection.has_fans = True
            fan = connection.fan
            if fan is not self:
                if fan is not None:
                    fan.is_open = False
                connection.fan = self
            connections.append(connection)
        if connections:
            self._waiting += len(connections)
            self._begun[begin] = len(connections)
        return connections

    def enlist_again(self) -> list[Connection[Any]]:
        """Queue the last publish for those who wait for no earlier one, unless they are blocked."""
        others = self._written + self.blocked
        self._written, self.blocked = [], []
        return self.enlist(others)

    def cut(self, recipient: Recipient, begin: int) -> Cut:
        """The frames for a recipient that is written now; `begin` is the first publish it gets.

        Not if they are large.
        """
        size = len(recipient.address_json)
        cut = self._cuts.get((size, begin))
        if cut is None:
            cut = self._cuts[size, begin] = self._cut(size, begin)
        self._leave(recipient, begin)
        return cut

    def render(self, recipient: Recipient, begin: int, into: list[bytes]) -> None:
        """Append these frames."""
        address_json = recipient.address_json
        if not self.is_large:
            into.append(address_json.join(self.cut(recipient, begin).pieces))
            return
        for head, tail in self._since(begin):
            header = text_header(len(head) + len(address_json) + len(tail))
            into += (header, head, address_json, tail)
        self._leave(recipient, begin)

    def _leave(self, recipient: Recipient, begin: int) -> None:
        self._written.append(recipient)
        self._waiting -= 1
        left = self._begun[begin] - 1
        if left:
            self._begun[begin] = left
            return
        del self._begun[begin]
        if not self._waiting:
            self.is_open = False
        else:
            self._forget_sent()

    def _forget_sent(self) -> None:
        """Drop what everybody has been sent, to make room for more."""
        sent = next(iter(self._begun)) - self.count + len(self._copies)
        for head, tail in self._copies[:sent]:
            self._size -= len(head) + len(tail)
        del self._copies[:sent]

    def _since(self, begin: int) -> list[tuple[bytes, bytes]]:
        """The copies from a publish on."""
        return self._copies[begin - self.count :]

    def _cut(self, address_size: int, begin: int) -> Cut:
        pieces: list[bytes] = []
        copies = self._since(begin)
        before = b""
        for head, tail in copies:
            size = len(head) + address_size + len(tail)
            pieces.append(b"".join((before, text_header(size), head)))
            before = tail
        pieces.append(before)
        return Cut(pieces, sum(map(len, pieces)) + address_size * len(copies))
