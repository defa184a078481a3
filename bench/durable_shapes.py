"""Shapes of load with stored messages: published, asked, consumed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.figures import Measurement
from bench.load import Drive, Lane
from bench.measuring import (
    RUN_S_MAX,
    SETTLE_S,
    Shape,
    answer_latency,
    cost,
    finish,
    latency,
    percentiles_us,
    warm,
)
from bench.protocols import Script
from bench.servers import (
    HUB,
    JETSTREAM,
    JETSTREAM_SYNC,
    JETSTREAM_SYNC_BATCH,
    PLAIN_HUB,
    REDIS,
    Server,
)
from bench.site import Meter, Site
from bench.store_site import Consumer, Publisher, consumers, prepare, publishers
from bench.stores import HubStore

WINDOW = 256  # Delivered and not yet acknowledged.
SLOW_MESSAGES_MIN = 2_000  # Fewer are too few for a 99th percentile.
FROZEN_WINDOW = 10_000
FROZEN_BUFFER_BYTES = 4_096
FREEZE_S = 1.0  # Until a consumer that does not read has been sent all it can take.

STORES = (HUB, PLAIN_HUB, REDIS, JETSTREAM_SYNC, JETSTREAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurablePublish:
    """Publications to one topic, each answered when it is stored."""

    name: str
    group: str = "durable"
    title: str
    unit: str = "message"
    connections: int
    window: int
    messages: int
    servers: Sequence[Server] = STORES

    def measure(self, site: Site) -> Measurement:
        count = site.messages(self.messages, SLOW_MESSAGES_MIN)
        each = max(self.window, count // self.connections)
        prepare(site, 1)
        with publishers(site, self.connections) as senders:
            _drive(site, self._lanes(senders, warm(each, self.window)))
            time.sleep(SETTLE_S)
            lanes = self._lanes(senders, each)
            meter = Meter(site.target)
            drive = _drive(site, lanes)
            kept = drive.answers * site.store.batch
            figures = cost(meter, drive, kept) | answer_latency(drive.lanes)
        return Measurement(figures, is_complete=drive.answers == sum(one.messages for one in lanes))

    def _lanes(self, senders: Sequence[Publisher], each: int) -> list[Lane]:
        return [sender.lane(each, self.window) for sender in senders]


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableAsk:
    """Asks to connected actors, or to mailboxes whose owners are away."""

    name: str
    group: str = "ask"
    title: str
    unit: str = "ask"
    pairs: int
    window: int
    messages: int
    is_away: bool
    servers: Sequence[Server] = (HUB, PLAIN_HUB)

    def measure(self, site: Site) -> Measurement:
        each = max(self.window, site.messages(self.messages) // self.pairs)
        with self._targets(site) as targets, publishers(site, self.pairs) as senders:
            _drive(site, self._lanes(site, senders, targets, warm(each, self.window)))
            time.sleep(SETTLE_S)
            lanes = self._lanes(site, senders, targets, each)
            meter = Meter(site.target)
            drive = _drive(site, lanes)
            figures = cost(meter, drive, drive.answers) | answer_latency(drive.lanes)
        return Measurement(figures, is_complete=drive.answers == each * self.pairs)

    @contextmanager
    def _targets(self, site: Site) -> Iterator[list[list[int]]]:
        """Return where the copies of each pair arrive: one socket, or none."""
        scripts = [self._script(site, name) for name in self._names()]
        with site.open(scripts) as opened:
            if not self.is_away:
                yield [[socket] for socket in opened.sockets]
                return
        time.sleep(SETTLE_S)
        yield [[] for _ in range(self.pairs)]

    def _script(self, site: Site, name: str) -> Script:
        port = site.target.port
        return (
            HubStore().mailbox(port, name) if self.is_away else site.dialect.registered(port, name)
        )

    def _names(self) -> list[str]:
        return [f"t{index:05d}" for index in range(self.pairs)]

    def _lanes(
        self, site: Site, senders: Sequence[Publisher], targets: list[list[int]], each: int
    ) -> list[Lane]:
        return [
            Lane(
                sender=sender.socket,
                receivers=sockets,
                frames=HubStore().asks(sender.name, name, site.ids(each)),
                messages=each,
                window=self.window,
                refill_at=self.window - 1,
                answer=HubStore.delivered,
            )
            for sender, name, sockets in zip(senders, self._names(), targets, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consume:
    """Stored messages, read by one consumer that acknowledges each."""

    name: str
    group: str = "consume"
    title: str
    unit: str = "message"
    messages: int
    servers: Sequence[Server] = (HUB, PLAIN_HUB, JETSTREAM)

    def measure(self, site: Site) -> Measurement:
        count = site.messages(self.messages)
        prepare(site, 1)
        with consumers(site, 1, WINDOW) as (consumer,):
            with publishers(site, 1) as (publisher,):
                publisher.fill(count)
            time.sleep(SETTLE_S)
            lane = Lane(
                sender=consumer.socket,
                receivers=[consumer.socket],
                frames=b"",
                messages=count,
                window=count,
                acks=consumer.acks(count),
            )
            meter = Meter(site.target)
            consumer.start()
            drive = _drive(site, [lane])
            figures = cost(meter, drive, drive.deliveries)
        return Measurement(figures, is_complete=drive.deliveries == count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Scheduled publications through subscriptions with acks, at half of the server's capacity.

    The capacity is measured first, with one message in flight per topic.
    """

    name: str
    group: str = "wake"
    title: str
    unit: str = "message"
    topics: int
    messages: int
    seconds: float
    servers: Sequence[Server] = (HUB, PLAIN_HUB, JETSTREAM_SYNC, JETSTREAM)

    def measure(self, site: Site) -> Measurement:
        probe = max(1, site.messages(self.messages, SLOW_MESSAGES_MIN) // self.topics)
        prepare(site, self.topics)
        with (
            consumers(site, self.topics, WINDOW) as takers,
            publishers(site, self.topics, topics=self.topics) as senders,
        ):
            for taker in takers:
                taker.start()
            time.sleep(SETTLE_S)
            full = finish(site, _woken(senders, takers, probe, window=1))
            rate_s = full.answers / full.seconds / 2
            each = max(1, int(rate_s * self.seconds * site.share) // self.topics)
            lanes = _woken(senders, takers, each, window=0)
            meter = Meter(site.target)
            drive = _drive(site, lanes, rate_s)
            figures = cost(meter, drive, drive.deliveries) | latency(drive.lanes)
        acked = answer_latency(drive.lanes)
        figures["ack_p50_us"], figures["ack_p99_us"] = acked["p50_us"], acked["p99_us"]
        figures["lag_us"] = drive.lag_s * 1e6
        return Measurement(figures, is_complete=drive.deliveries == each * self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Scheduled publications to a topic with one consumer that reads, alternately with a second
    one that does not read, for which the hub has more than the kernel accepts."""

    name: str
    group: str = "frozen"
    title: str
    unit: str = "message"
    messages: int
    backlog: int
    rate_s: float
    turns: int
    servers: Sequence[Server] = (HUB,)

    def measure(self, site: Site) -> Measurement:
        count = site.messages(self.messages)
        prepare(site, 1)
        calm_s: list[float] = []
        frozen_s: list[float] = []
        lag_s = 0.0
        with consumers(site, 1, WINDOW) as takers, publishers(site, 1) as senders:
            takers[0].start()
            finish(site, _woken(senders, takers, self.backlog, window=WINDOW))
            for turn in range(self.turns):
                calm_s += self._turn(site, senders, takers, count).lanes[0].answered_s
                with consumers(
                    site, 1, FROZEN_WINDOW, role=f"z{turn}", buffer_bytes=FROZEN_BUFFER_BYTES
                ) as frozen:
                    frozen[0].start()
                    time.sleep(FREEZE_S)
                    drive = self._turn(site, senders, takers, count)
                    frozen_s += drive.lanes[0].answered_s
                    lag_s = max(lag_s, drive.lag_s)
        p50_us, p99_us = percentiles_us(frozen_s)
        calm_p50_us, calm_p99_us = percentiles_us(calm_s)
        return Measurement(
            {
                "p50_us": p50_us,
                "p99_us": p99_us,
                "calm_p50_us": calm_p50_us,
                "calm_p99_us": calm_p99_us,
                "shift": p99_us / calm_p99_us,
                "lag_us": lag_s * 1e6,
            }
        )

    def _turn(
        self, site: Site, senders: list[Publisher], takers: list[Consumer], count: int
    ) -> Drive:
        return finish(site, _woken(senders, takers, count, window=0), self.rate_s)


def _woken(
    senders: Sequence[Publisher], takers: Sequence[Consumer], each: int, *, window: int
) -> list[Lane]:
    """Return one lane per topic, from its publisher to its consumer."""
    return [
        sender.lane(each, window, receivers=[taker.socket], acks=taker.acks(each))
        for sender, taker in zip(senders, takers, strict=True)
    ]


def _drive(site: Site, lanes: Sequence[Lane], rate_s: float = 0.0) -> Drive:
    return site.generator.drive(lanes, seconds_max=RUN_S_MAX, rate_s=rate_s)


SHAPES: tuple[Shape, ...] = (
    DurablePublish(
        name="durable-1x1",
        title="durable publish and ack, 1 connection × 1 in flight",
        connections=1,
        window=1,
        messages=4_000,
    ),
    DurablePublish(
        name="durable-1x64",
        title="durable publish and ack, 1 connection × 64 in flight",
        connections=1,
        window=64,
        messages=100_000,
        servers=(*STORES, JETSTREAM_SYNC_BATCH),
    ),
    DurablePublish(
        name="durable-1x1024",
        title="durable publish and ack, 1 connection × 1 024 in flight",
        connections=1,
        window=1_024,
        messages=200_000,
    ),
    DurablePublish(
        name="durable-64x1",
        title="durable publish and ack, 64 connections × 1 in flight",
        connections=64,
        window=1,
        messages=100_000,
    ),
    DurablePublish(
        name="durable-64x16",
        title="durable publish and ack, 64 connections × 16 in flight",
        connections=64,
        window=16,
        messages=200_000,
    ),
    DurableAsk(
        name="ask-online",
        title="ask, 64 pairs × 1 in flight, everybody there",
        pairs=64,
        window=1,
        messages=60_000,
        is_away=False,
    ),
    DurableAsk(
        name="ask-away",
        title="ask, 64 pairs × 1 in flight, to durable actors that are away",
        pairs=64,
        window=1,
        messages=60_000,
        is_away=True,
    ),
    Consume(
        name="consume",
        title="stored messages to one consumer, window 256, every one acknowledged",
        messages=100_000,
    ),
    Wake(
        name="wake",
        title="publication to delivery through 16 subscriptions with acks, at half load",
        topics=16,
        messages=10_000,
        seconds=3.0,
    ),
    Frozen(
        name="frozen",
        title="publish and ack at 2 000 messages per second beside a consumer that does not read",
        messages=2_000,
        backlog=FROZEN_WINDOW,
        rate_s=2_000.0,
        turns=3,
    ),
)
