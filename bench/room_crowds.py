"""Shapes with many rooms at once: all idle, or all in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import rooms
from bench.figures import Figure, Measurement
from bench.load import Drive, Lane
from bench.measuring import SETTLE_S, Shape, answer_latency, cost, finish, latency
from bench.room_shapes import RELAYS, asking, fill
from bench.servers import HUB, Server
from bench.site import Meter, Site

SNAPSHOT_S = 11.0  # The hub writes its state to disk within ten seconds of the last change.
MESSAGE_BYTES = 256
P99_MS_MAX = 20.0
SEARCH_S = 2.0
TRIES = 2  # Per rate: one disturbance of the machine is not the server's limit.
_GROWTH = 1.5
_GROWTHS_MAX = 8
_HALVINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomsIdle:
    """An idle hub with many rooms and sockets, compared with an empty one."""

    name: str
    group: str = "rooms-idle"
    title: str
    unit: str = "room"
    rooms: int
    messages: int
    sockets: int
    seconds: float
    servers: Sequence[Server] = (HUB,)

    def measure(self, site: Site) -> Measurement:
        time.sleep(SNAPSHOT_S)
        empty = self._share(site)
        names = [rooms.room_name(index) for index in range(site.messages(self.rooms))]
        guests = names[: site.connections(self.sockets)]
        scripts = [rooms.joined(site.target.port, name, "guest") for name in guests]
        with site.open(scripts):
            fill(site, names, self.messages, MESSAGE_BYTES)
            time.sleep(SNAPSHOT_S)
            share = self._share(site)
        return Measurement({"server_share": share, "empty_share": empty})

    def _share(self, site: Site) -> float:
        meter = Meter(site.target)
        began = time.monotonic()
        time.sleep(self.seconds)
        return meter.cpu_s() / (time.monotonic() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomsLive:
    """Rooms with one socket that sends on a schedule and one that listens.

    After the requested rate, search the highest one at which both 99th percentiles hold.
    """

    name: str
    group: str = "rooms-live"
    title: str
    unit: str = "message"
    rooms: int
    rate_s: float
    seconds: float
    servers: Sequence[Server] = RELAYS

    def measure(self, site: Site) -> Measurement:
        names = [rooms.room_name(index) for index in range(self.rooms)]
        scripts = [
            rooms.joined(site.target.port, name, role)
            for role in ("sender", "listener")
            for name in names
        ]
        with site.open(scripts) as opened:
            pairs = list(
                zip(opened.sockets[: self.rooms], opened.sockets[self.rooms :], strict=True)
            )
            finish(site, _lanes(site, pairs, 2, window=1))
            time.sleep(SETTLE_S)
            meter = Meter(site.target)
            drive = self._drive(site, pairs, self.rate_s, self.seconds)
            figures = cost(meter, drive, drive.answers) | latencies(drive)

            def holds(rate_s: float) -> bool:
                return any(self._is_held(site, pairs, rate_s) for _ in range(TRIES))

            figures["held_rate_s"] = highest(holds, self.rate_s)
        return Measurement(figures)

    def _is_held(self, site: Site, pairs: Sequence[tuple[int, int]], rate_s: float) -> bool:
        time.sleep(SETTLE_S)
        told = latencies(self._drive(site, pairs, rate_s, SEARCH_S))
        return max(told["p99_us"], told["ack_p99_us"]) <= P99_MS_MAX * 1e3

    def _drive(
        self, site: Site, pairs: Sequence[tuple[int, int]], rate_s: float, seconds: float
    ) -> Drive:
        each = max(1, round(rate_s * seconds * site.share / self.rooms))
        return finish(site, _lanes(site, pairs, each, window=0), rate_s)


def _lanes(site: Site, pairs: Sequence[tuple[int, int]], each: int, *, window: int) -> list[Lane]:
    return [
        asking(
            sender,
            rooms.sends(site.ids(each), MESSAGE_BYTES),
            each,
            rooms.ACKED,
            window=window,
            receivers=[listener],
        )
        for sender, listener in pairs
    ]


def latencies(drive: Drive) -> dict[Figure, float]:
    """Return latency to the listener and to the sender's ack, and the generator's lag."""
    acked = answer_latency(drive.lanes)
    return latency(drive.lanes) | {
        "ack_p50_us": acked["p50_us"],
        "ack_p99_us": acked["p99_us"],
        "lag_us": drive.lag_s * 1e6,
    }


def highest(holds: Callable[[float], bool], start: float) -> float:
    """Return about the highest rate that holds: steps up or down from `start`, then bisection.

    0 if none does. A rate that holds is assumed to hold at every lower rate.
    """
    low, high = 0.0, 0.0
    rate = start
    for _ in range(_GROWTHS_MAX):
        if holds(rate):
            low = rate
            if high:
                break
            rate *= _GROWTH
        else:
            high = rate
            if low:
                break
            rate /= _GROWTH
    if not low or not high:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


SHAPES: tuple[Shape, ...] = (
    RoomsIdle(
        name="rooms-idle",
        title="10 000 rooms with 3 messages each and 1 000 sockets, nothing sent, for 10 s",
        rooms=10_000,
        messages=3,
        sockets=1_000,
        seconds=10.0,
    ),
    RoomsLive(
        name="rooms-live",
        title="1 000 rooms, a sender and a listener in each, 2 000 messages per second in all",
        rooms=1_000,
        rate_s=2_000.0,
        seconds=5.0,
    ),
)
