"""The read buffers of connections, which grow for large frames until these are complete.

Fragments of a large message count with them, until the last one has come. This costs nothing per
message: some connections are looked at several times a second, in turn, and those with a large
buffer every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from signalhub.server.sockets.connection import Connection

# Connections that are looked at at once.
_LOOKED_AT: Final = 500


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
