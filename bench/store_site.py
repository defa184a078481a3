"""Publishers and consumers connected to a server that stores messages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.load import Lane
from bench.site import PAIR_BUFFER_BYTES, Site
from bench.stores import ConsumedDialect, HubStore, JetStream

FILL_S_MAX = 120.0
FILL_WINDOW = 1_024
FILL_AT_ONCE = 50_000  # Frames are built in memory, so a large store is filled in pieces.


@dataclass(frozen=True, slots=True)
class Publisher:
    """A connection that publishes to one topic."""

    site: Site
    name: str
    socket: int
    topic: int

    def lane(
        self, messages: int, window: int, *, receivers: Sequence[int] = (), acks: bytes = b""
    ) -> Lane:
        """Return a lane on which every answer releases the next message, or the next batch."""
        store = self.site.store
        units = max(1, messages // store.batch)
        in_flight = max(1, window // store.batch) if window else 0
        return Lane(
            sender=self.socket,
            receivers=receivers,
            frames=store.publishes(self.name, self.topic, self.site.ids(units * store.batch)),
            messages=units,
            window=in_flight,
            refill_at=max(0, in_flight - 1),
            answer=store.published,
            acks=acks,
        )

    def fill(self, messages: int) -> None:
        """Store this many messages without measuring."""
        for start in range(0, messages, FILL_AT_ONCE):
            lane = self.lane(min(FILL_AT_ONCE, messages - start), FILL_WINDOW)
            self.site.generator.drive([lane], seconds_max=FILL_S_MAX)


@dataclass(slots=True)
class Consumer:
    """A connection that consumes one topic and acknowledges everything."""

    site: Site
    name: str
    socket: int
    topic: int
    _next_seq: int = field(default=1)

    def start(self) -> None:
        """Start the delivery of messages."""
        os.write(self.socket, consumed(self.site).starts(self.name, self.topic))

    def acks(self, messages: int) -> bytes:
        """Return the acknowledgements for the next messages of the topic."""
        first = self._next_seq
        self._next_seq += messages
        return consumed(self.site).acks(self.name, self.topic, range(first, self._next_seq))


def consumed(site: Site) -> ConsumedDialect:
    store = site.store
    assert isinstance(store, HubStore | JetStream), f"{site.target.server.name} has no consumers"
    return store


def prepare(site: Site, topics: int) -> None:
    """Create empty topics."""
    with site.open([site.store.prepared(site.target.port, topics)]):
        pass


@contextmanager
def publishers(site: Site, count: int, *, topics: int = 1) -> Iterator[list[Publisher]]:
    """Open this many publishers, spread over the topics."""
    names = [f"p{index:05d}" for index in range(count)]
    scripts = [site.store.publisher(site.target.port, name) for name in names]
    with site.open(scripts, buffer_bytes=PAIR_BUFFER_BYTES) as opened:
        yield [
            Publisher(site, name, fd, index % topics)
            for index, (name, fd) in enumerate(zip(names, opened.sockets, strict=True))
        ]


@contextmanager
def consumers(
    site: Site, count: int, window: int, *, role: str = "c", buffer_bytes: int = PAIR_BUFFER_BYTES
) -> Iterator[list[Consumer]]:
    """Open one consumer per topic, each with a new subscription that has not started yet."""
    dialect, port = consumed(site), site.target.port
    names = [f"{role}{index:05d}" for index in range(count)]
    scripts = [dialect.consumer(port, name, topic, window) for topic, name in enumerate(names)]
    with site.open(scripts, buffer_bytes=buffer_bytes) as opened:
        yield [
            Consumer(site, name, fd, topic)
            for topic, (name, fd) in enumerate(zip(names, opened.sockets, strict=True))
        ]
