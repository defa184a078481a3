"""A running server with connected actors, and the meter of its resource use."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from bench.load import Generator, Lane, Opened
from bench.machine import cpu_s, rss_bytes
from bench.protocols import Dialect, Script
from bench.servers import Running
from bench.stores import StoreDialect

PAIR_BUFFER_BYTES = 2**20  # Room for a whole window, so that the kernel never blocks a pair.
SLOW_DIVISOR_MESSAGES = 20
SLOW_DIVISOR_CONNECTIONS = 5


@dataclass(slots=True)
class Site:
    """The generator connected to a running server."""

    generator: Generator
    target: Running
    share: float = 1.0
    _next_id: int = field(default_factory=lambda: time.time_ns() // 1_000 % 10**11)

    @property
    def dialect(self) -> Dialect:
        dialect = self.target.server.dialect
        assert dialect is not None, f"{self.target.server.name} passes no messages on"
        return dialect

    @property
    def store(self) -> StoreDialect:
        store = self.target.server.store
        assert store is not None, f"{self.target.server.name} keeps no messages"
        return store

    def ids(self, count: int) -> range:
        """Return message ids that were never used before."""
        first = self._next_id
        self._next_id += count
        return range(first, self._next_id)

    def messages(self, count: int, at_least: int = 1) -> int:
        """Return the number of messages: fewer for a slow server, but at least `at_least`."""
        if self.target.server.is_slow:
            count = max(min(count, at_least), count // SLOW_DIVISOR_MESSAGES)
        return max(1, int(count * self.share))

    def connections(self, count: int) -> int:
        """Return the number of connections: fewer for a slow server."""
        divisor = SLOW_DIVISOR_CONNECTIONS if self.target.server.is_slow else 1
        return max(1, int(count // divisor * self.share))

    def open(
        self, scripts: Sequence[Script], *, buffer_bytes: int = 0
    ) -> AbstractContextManager[Opened]:
        """Open connections while the block runs."""
        return self.generator.connections(self.target.port, scripts, buffer_bytes=buffer_bytes)

    @contextmanager
    def pairs(self, count: int) -> Iterator[Pairs]:
        """Open pairs of registered actors."""
        dialect, port = self.dialect, self.target.port
        names = [f"{role}{index:05d}" for role in "sr" for index in range(count)]
        scripts = [dialect.registered(port, name) for name in names]
        opened = self.generator.connections(port, scripts, buffer_bytes=PAIR_BUFFER_BYTES)
        with opened as connected:
            yield Pairs(self, names, connected.sockets)

    @contextmanager
    def topic(self, subscribers: int) -> Iterator[Topic]:
        """Open a topic with its subscribers and one publisher."""
        dialect, port = self.dialect, self.target.port
        audience = [dialect.subscribed(port, f"f{index:05d}") for index in range(subscribers)]
        publisher = [dialect.registered(port, Topic.publisher)]
        with self.open(audience) as subscribed, self.open(publisher) as connected:
            yield Topic(self, connected.sockets[0], subscribed.sockets)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Senders in the first half, their receivers in the second."""

    site: Site
    names: list[str]
    sockets: list[int]

    def lanes(self, messages: int, window: int) -> list[Lane]:
        """Return one lane per pair, refilled after half a window, as batching clients do."""
        count = len(self.names) // 2
        dialect = self.site.dialect
        return [
            Lane(
                sender=self.sockets[index],
                receivers=self.sockets[count + index : count + index + 1],
                frames=dialect.sends(
                    self.names[index], self.names[count + index], self.site.ids(messages)
                ),
                messages=messages,
                window=window,
                refill_at=window // 2,
            )
            for index in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Topic:
    """A publisher and its audience."""

    publisher = "publisher"

    site: Site
    sender: int
    audience: list[int]

    def lane(self, publications: int, window: int, *, is_background: bool = False) -> Lane:
        """Return a lane whose next publication is sent when all copies of one have arrived."""
        frames = self.site.dialect.publishes(self.publisher, self.site.ids(publications))
        return Lane(
            sender=self.sender,
            receivers=self.audience,
            frames=frames,
            messages=publications,
            window=window,
            refill_at=window - 1,
            is_background=is_background,
        )


class Meter:
    """Measures what the server uses from creation to reading."""

    def __init__(self, target: Running) -> None:
        self._pids = target.pids
        self._rss_bytes = rss_bytes(self._pids)
        self._cpu_s = cpu_s(self._pids)

    def cpu_s(self) -> float:
        return cpu_s(self._pids) - self._cpu_s

    def grown_bytes(self) -> int:
        return rss_bytes(self._pids) - self._rss_bytes
