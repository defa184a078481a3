"""Shapes of load with forwarded messages, and the list of all shapes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import durable_shapes, lasting_shapes, room_crowds, room_shapes
from bench.figures import Measurement
from bench.load import Drive, Lane
from bench.measuring import RUN_S_MAX, SETTLE_S, Shape, cost, latency, warm
from bench.protocols import Script
from bench.servers import HUB, NATS, PLAIN_HUB, SOCKETIO, Server
from bench.site import Meter, Site

WARM_CONNECTIONS = 50

ALL = (HUB, PLAIN_HUB, NATS, SOCKETIO)
FAST = (HUB, PLAIN_HUB, NATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointToPoint:
    """Pairs of actors, one sending to the other: a window per pair, or a schedule for all."""

    name: str
    group: str
    title: str
    unit: str = "message"
    pairs: int
    messages: int
    window: int = 0
    rate_s: float = 0.0
    servers: Sequence[Server] = ALL

    def measure(self, site: Site) -> Measurement:
        each = max(self.window, site.messages(self.messages) // self.pairs)
        with site.pairs(self.pairs) as pairs:
            self._drive(site, pairs.lanes(warm(each, self.window), self.window))
            time.sleep(SETTLE_S)
            lanes = pairs.lanes(each, self.window)
            meter = Meter(site.target)
            drive = self._drive(site, lanes)
            figures = cost(meter, drive, drive.deliveries) | latency(drive.lanes)
        if self.rate_s:
            figures["lag_us"] = drive.lag_s * 1e6
        return Measurement(figures, is_complete=drive.deliveries == each * self.pairs)

    def _drive(self, site: Site, lanes: Sequence[Lane]) -> Drive:
        return site.generator.drive(lanes, seconds_max=RUN_S_MAX, rate_s=self.rate_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """One publisher, many subscribers; latency is the time to the last copy."""

    name: str
    group: str = "fanout"
    title: str
    unit: str = "delivery"
    subscribers: int
    publications: int
    window: int = 1
    servers: Sequence[Server] = ALL

    def measure(self, site: Site) -> Measurement:
        count = max(self.window, site.messages(self.publications))
        with site.topic(self.subscribers) as topic:
            first = topic.lane(warm(count, self.window), self.window)
            site.generator.drive([first], seconds_max=RUN_S_MAX)
            time.sleep(SETTLE_S)
            lane = topic.lane(count, self.window)
            meter = Meter(site.target)
            drive = site.generator.drive([lane], seconds_max=RUN_S_MAX)
            figures = cost(meter, drive, drive.deliveries) | latency(drive.lanes)
        return Measurement(figures, is_complete=drive.deliveries == count * self.subscribers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Many connections, opened as fast as the server accepts them, then left idle."""

    name: str
    group: str = "accept"
    title: str
    unit: str = "connection"
    connections: int
    is_registered: bool
    servers: Sequence[Server] = ALL

    def measure(self, site: Site) -> Measurement:
        count = site.connections(self.connections)
        first, scripts = self._scripts(site, "w", WARM_CONNECTIONS), self._scripts(site, "c", count)
        with site.open(first):
            time.sleep(SETTLE_S)
            meter = Meter(site.target)
            with site.open(scripts) as opened:
                figures = cost(meter, opened, count)
                time.sleep(SETTLE_S)
                figures["connection_bytes"] = meter.grown_bytes() / count
        return Measurement(figures)

    def _scripts(self, site: Site, role: str, count: int) -> list[Script]:
        dialect, port = site.dialect, site.target.port
        if not self.is_registered:
            return [dialect.upgraded(port)] * count
        return [dialect.registered(port, f"{role}{index:05d}") for index in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """Scheduled pairs beside a topic with continuous publications."""

    name: str
    group: str = "undisturbed"
    title: str
    unit: str = "copy"
    subscribers: int
    pairs: int
    messages: int
    rate_s: float
    publications_max: int = 1_000
    servers: Sequence[Server] = FAST

    def measure(self, site: Site) -> Measurement:
        each = self.messages // self.pairs
        with site.topic(self.subscribers) as topic, site.pairs(self.pairs) as pairs:
            first = topic.lane(2, 1)
            site.generator.drive([first], seconds_max=RUN_S_MAX)
            calm = self._drive(site, pairs.lanes(each, 0))
            lanes = pairs.lanes(each, 0)
            storm = topic.lane(self.publications_max, 1, is_background=True)
            meter = Meter(site.target)
            drive = self._drive(site, [*lanes, storm])
            *told, _ = drive.lanes
            figures = cost(meter, drive, drive.deliveries) | latency(told)
        quiet = latency(calm.lanes)
        figures["calm_p50_us"], figures["calm_p99_us"] = quiet["p50_us"], quiet["p99_us"]
        figures["lag_us"] = drive.lag_s * 1e6
        arrived = sum(lane.deliveries for lane in told)
        return Measurement(figures, is_complete=arrived == each * self.pairs)

    def _drive(self, site: Site, lanes: Sequence[Lane]) -> Drive:
        return site.generator.drive(lanes, seconds_max=RUN_S_MAX, rate_s=self.rate_s)


SHAPES: tuple[Shape, ...] = (
    PointToPoint(
        name="p2p-spread",
        group="p2p",
        title="point to point, 256 pairs × 4 in flight",
        pairs=256,
        window=4,
        messages=300_000,
    ),
    PointToPoint(
        name="p2p-pipelined",
        group="p2p",
        title="point to point, 8 pairs × 256 in flight",
        pairs=8,
        window=256,
        messages=600_000,
    ),
    FanOut(
        name="fanout-1000-w1",
        title="fan-out to 1 000, 1 publication in flight",
        subscribers=1_000,
        publications=200,
    ),
    FanOut(
        name="fanout-1000-w4",
        title="fan-out to 1 000, 4 publications in flight",
        subscribers=1_000,
        publications=300,
        window=4,
    ),
    FanOut(
        name="fanout-1000-w16",
        title="fan-out to 1 000, 16 publications in flight",
        subscribers=1_000,
        publications=800,
        window=16,
    ),
    FanOut(
        name="fanout-10000",
        title="fan-out to 10 000, 1 publication in flight",
        subscribers=10_000,
        publications=20,
        servers=FAST,
    ),
    Accept(
        name="accept",
        title="10 000 connections, upgrade only",
        connections=10_000,
        is_registered=False,
    ),
    Accept(
        name="accept-registered",
        title="10 000 connections, upgraded and registered, then idle",
        connections=10_000,
        is_registered=True,
    ),
    PointToPoint(
        name="latency-10000",
        group="latency",
        title="open loop, 64 pairs, 10 000 messages per second",
        pairs=64,
        messages=30_000,
        rate_s=10_000.0,
        servers=FAST,
    ),
    Undisturbed(
        name="undisturbed",
        title="1 000 messages per second between 16 pairs during fan-outs to 10 000",
        subscribers=10_000,
        pairs=16,
        messages=3_000,
        rate_s=1_000.0,
    ),
    *durable_shapes.SHAPES,
    *lasting_shapes.SHAPES,
    *room_shapes.SHAPES,
    *room_crowds.SHAPES,
)
