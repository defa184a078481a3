"""Where sockets come from: how many are open, in total and per source.

A source is what `wire.authority.source_of` says. A connection counts as a door until its upgrade,
and as a socket after it.
"""

from __future__ import annotations


class Source:
    """The sockets of one source; shared by all of them."""

    __slots__ = ("_sources", "doors", "name", "sockets")

    def __init__(self, sources: Sources, name: str) -> None:
        self._sources = sources
        self.name = name
        self.doors = 0
        self.sockets = 0

    def __len__(self) -> int:
        return self.doors + self.sockets

    def door_opened(self) -> None:
        """A connection was accepted."""
        self.doors += 1
        self._sources.doors += 1

    def door_closed(self) -> None:
        """A connection is closed that was not upgraded."""
        self.doors -= 1
        self._sources.doors -= 1
        self._sources.tidy(self)

    def joined(self) -> None:
        """A connection was upgraded to a WebSocket."""
        self.doors -= 1
        self.sockets += 1
        self._sources.doors -= 1
        self._sources.sockets += 1

    def left(self) -> None:
        """A WebSocket is closed."""
        self.sockets -= 1
        self._sources.sockets -= 1
        self._sources.tidy(self)


class Sources:
    """All sources with open sockets."""

    def __init__(self) -> None:
        self._all: dict[str, Source] = {}
        self.doors = 0
        self.sockets = 0

    def __len__(self) -> int:
        return len(self._all)

    def with_sockets(self) -> list[tuple[str, int]]:
        """Return every source that has WebSockets, and how many."""
        return [(name, one.sockets) for name, one in self._all.items() if one.sockets]

    def get(self, name: str) -> Source:
        """Return the source with this name."""
        source = self._all.get(name)
        if source is None:
            source = self._all[name] = Source(self, name)
        return source

    def tidy(self, source: Source) -> None:
        """Forget a source without sockets."""
        if not len(source):
            self._all.pop(source.name, None)
