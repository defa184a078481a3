"""The read buffers of picows, which grow for large frames until these are complete.

Fragments of a large message count with them, until the last one has come.

picows does not say how large a buffer is, only how much of it is free. It doubles a buffer that is
nine tenths full, so the size is known within a factor of four, and exactly if an `Intake` counts
what is in it. This costs nothing per message: some connections are looked at several times a
second, in turn, and those with a large buffer every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from picows.picows import WSProtocol  # type: ignore[attr-defined]

from signalhub.server.sockets.meter import Intake

if TYPE_CHECKING:
    from signalhub.server.sockets.connection import Connection

# A buffer with less free space is not worth looking at.
_FREE_BYTES_MIN: Final = 2**17
# Connections that are looked at at once.
_LOOKED_AT: Final = 500


def size_of(protocol: Any, frame_bytes_max: int) -> int:
    """Return about how large the buffer of a parser is, 0 if it is small."""
    unread = None
    parser = protocol
    if isinstance(protocol, Intake):
        parser, unread = protocol.parser, protocol.unread_bytes
    if type(parser) is not WSProtocol:
        return 0
    free = len(parser.get_buffer(-1))
    if free < _FREE_BYTES_MIN:
        return 0
    size = 2 ** ((4 * free).bit_length() - 1) if unread is None else free + unread
    return min(size, 2 * frame_bytes_max)


class ReadBuffers:
    """The connections, and which of them have large buffers."""

    def __init__(self) -> None:
        self.large: dict[Connection[Any], int] = {}
        # About how much memory these take.
        self.bytes = 0
        self._open: dict[Connection[Any], None] = {}
        self._next: list[Connection[Any]] = []

    def opened(self, connection: Connection[Any]) -> None:
        """A connection has got a buffer, or another one."""
        self._open[connection] = None

    def closed(self, connection: Connection[Any]) -> None:
        """The buffer of a connection is gone."""
        self._open.pop(connection, None)
        self.bytes -= self.large.pop(connection, 0)

    def look(self) -> None:
        """Look at some connections, and at those with large buffers."""
        if not self._next:
            self._next = list(self._open)
        some = self._next[-_LOOKED_AT:]
        del self._next[-_LOOKED_AT:]
        for connection in {**self.large, **dict.fromkeys(some)}:
            size = connection.read_bytes if connection in self._open else 0
            if size:
                self.large[connection] = size
            else:
                self.large.pop(connection, None)
        self.bytes = sum(self.large.values())
