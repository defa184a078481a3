"""Shapes of load on rooms and inboxes: messages by request and by socket, and pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import rooms
from bench.figures import Measurement
from bench.load import Lane
from bench.measuring import (
    RUN_S_MAX,
    SETTLE_S,
    Shape,
    answer_latency,
    cost,
    finish,
    warm,
)
from bench.servers import HUB, PLAIN_HUB, STARLETTE, STARLETTE_GROUP, Server
from bench.site import PAIR_BUFFER_BYTES, Meter, Site

RELAYS = (HUB, PLAIN_HUB, STARLETTE, STARLETTE_GROUP)
SLOW_MESSAGES_MIN = 10_000  # This few take a second even if each has a separate commit.
SLOW_FETCHES_MIN = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomPost:
    """Messages to many rooms by HTTP, one request at a time on every connection."""

    name: str
    group: str = "rooms"
    title: str
    unit: str = "message"
    connections: int
    rooms: int
    size: int
    messages: int
    servers: Sequence[Server] = RELAYS

    def measure(self, site: Site) -> Measurement:
        count = site.messages(self.messages, SLOW_MESSAGES_MIN)
        each = max(1, count // self.connections)
        script = rooms.connected(site.target.port)
        with site.open([script] * self.connections) as opened:
            finish(site, self._lanes(site, opened.sockets, warm(each, 1)))
            time.sleep(SETTLE_S)
            lanes = self._lanes(site, opened.sockets, each)
            return accepted(site, lanes)

    def _lanes(self, site: Site, sockets: Sequence[int], each: int) -> list[Lane]:
        names = [rooms.room_name(index) for index in range(self.rooms)]
        port = site.target.port
        return [
            asking(
                socket,
                rooms.posts(port, turned(names, index, len(sockets)), site.ids(each), self.size),
                each,
                rooms.ACCEPTED,
            )
            for index, socket in enumerate(sockets)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomSend:
    """Messages by WebSocket: every member of every room sends and receives everything."""

    name: str
    group: str = "rooms"
    title: str
    unit: str = "message"
    rooms: int
    members: int
    window: int
    size: int
    messages: int
    servers: Sequence[Server] = RELAYS

    def measure(self, site: Site) -> Measurement:
        count = site.messages(self.messages, SLOW_MESSAGES_MIN)
        each = max(self.window, count // (self.rooms * self.members))
        port = site.target.port
        scripts = [
            rooms.joined(port, rooms.room_name(room), f"member-{member}")
            for room in range(self.rooms)
            for member in range(self.members)
        ]
        with site.open(scripts, buffer_bytes=PAIR_BUFFER_BYTES) as opened:
            finish(site, self._heard(site, opened.sockets, warm(each, self.window)))
            time.sleep(SETTLE_S)
            lanes = [self._lane(site, socket, each) for socket in opened.sockets]
            return accepted(site, lanes)

    def _heard(self, site: Site, sockets: Sequence[int], each: int) -> list[Lane]:
        """Only one member of each room sends, so that every copy to the others can be counted."""
        return [
            self._lane(site, sockets[first], each, sockets[first + 1 : first + self.members])
            for first in range(0, len(sockets), self.members)
        ]

    def _lane(self, site: Site, socket: int, each: int, others: Sequence[int] = ()) -> Lane:
        return asking(
            socket,
            rooms.sends(site.ids(each), self.size),
            each,
            rooms.ACKED,
            window=self.window,
            receivers=others,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFetch:
    """The newest page of many inboxes, read repeatedly."""

    name: str
    group: str = "inbox"
    title: str
    unit: str = "page"
    connections: int
    inboxes: int
    stored: int
    limit: int
    size: int
    fetches: int
    servers: Sequence[Server] = RELAYS[:3]

    def measure(self, site: Site) -> Measurement:
        count = site.messages(self.fetches, SLOW_FETCHES_MIN)
        each = max(1, count // self.connections)
        names = [rooms.room_name(index) for index in range(self.inboxes)]
        fill(site, names, self.stored, self.size, connections=self.connections)
        script = rooms.connected(site.target.port)
        with site.open([script] * self.connections, buffer_bytes=PAIR_BUFFER_BYTES) as opened:
            finish(site, self._lanes(site, opened.sockets, names, warm(each, self.inboxes)))
            time.sleep(SETTLE_S)
            return accepted(site, self._lanes(site, opened.sockets, names, each))

    def _lanes(
        self, site: Site, sockets: Sequence[int], names: Sequence[str], each: int
    ) -> list[Lane]:
        port, from_seq = site.target.port, self.stored - self.limit + 1
        inboxes = [rooms.inbox_of(name) for name in names]
        return [
            asking(
                socket,
                rooms.fetches(
                    port, turned(inboxes, index, len(sockets)), each, from_seq, self.limit
                ),
                each,
                rooms.fetched(from_seq, self.limit),
            )
            for index, socket in enumerate(sockets)
        ]


def asking(
    socket: int,
    frames: bytes,
    messages: int,
    answer: bytes,
    *,
    window: int = 1,
    receivers: Sequence[int] = (),
) -> Lane:
    """Return a lane on which an answer releases the next message; window 0 uses a schedule."""
    return Lane(
        sender=socket,
        receivers=receivers,
        frames=frames,
        messages=messages,
        window=window,
        refill_at=max(0, window - 1),
        answer=answer,
    )


def turned(names: Sequence[str], index: int, count: int) -> list[str]:
    """Return the names rotated, so that connections do not all start with the same one."""
    first = index * len(names) // count
    return [*names[first:], *names[:first]]


def fill(site: Site, names: Sequence[str], each: int, size: int, *, connections: int = 64) -> None:
    """Post this many messages to every room; connections share the rooms."""
    port = site.target.port
    with site.open([rooms.connected(port)] * connections) as opened:
        lanes = []
        for index, socket in enumerate(opened.sockets):
            if mine := names[index::connections]:
                count = each * len(mine)
                requests = rooms.posts(port, mine, site.ids(count), size)
                lanes.append(asking(socket, requests, count, rooms.ACCEPTED))
        finish(site, lanes)


def accepted(site: Site, lanes: Sequence[Lane]) -> Measurement:
    """Drive lanes with answers; return the cost and the time of an answer."""
    meter = Meter(site.target)
    drive = site.generator.drive(lanes, seconds_max=RUN_S_MAX)
    figures = cost(meter, drive, drive.answers) | answer_latency(drive.lanes)
    return Measurement(figures, is_complete=drive.answers == sum(one.messages for one in lanes))


SHAPES: tuple[Shape, ...] = (
    RoomPost(
        name="rooms-http-256",
        title="room messages by HTTP, 64 connections × 1 in flight, 256 bytes",
        connections=64,
        rooms=256,
        size=256,
        messages=60_000,
    ),
    RoomPost(
        name="rooms-http-1k",
        title="room messages by HTTP, 64 connections × 1 in flight, 1 KiB",
        connections=64,
        rooms=256,
        size=1_024,
        messages=40_000,
    ),
    *(
        RoomSend(
            name=f"rooms-ws-{label}-w{window}",
            title=f"room messages by WebSocket, 32 rooms of 2, {window} in flight each, {words}",
            rooms=32,
            members=2,
            window=window,
            size=size,
            messages=60_000,
        )
        for label, words, size in (("256", "256 bytes", 256), ("1k", "1 KiB", 1_024))
        for window in (1, 16)
    ),
    InboxFetch(
        name="inbox-fetch",
        title="pages of 100 messages of 1 KiB from 32 inboxes, 16 connections × 1 in flight",
        connections=16,
        inboxes=32,
        stored=128,
        limit=100,
        size=1_024,
        fetches=20_000,
    ),
)
