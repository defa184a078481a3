"""The TCP port for HTTP and WebSockets, with a `Door` for each new connection.

One timer serves all Doors: all have the same timeout, so they are ordered by deadline.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import islice, takewhile
from socket import (
    AF_INET6,
    AI_PASSIVE,
    IPPROTO_IPV6,
    IPPROTO_TCP,
    IPV6_V6ONLY,
    SO_KEEPALIVE,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_KEEPCNT,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
    socket,
)
from typing import Any, Final, Protocol

import picows

from signalhub.core.limits.usage import SocketUsage
from signalhub.pacing import Period
from signalhub.server.port import descriptors
from signalhub.server.port.bodies import Unfinished
from signalhub.server.port.door import Door
from signalhub.server.port.hosts import Hosts, Proxies
from signalhub.server.port.http import HttpRequest, Response, Routes, Upgrade, text
from signalhub.server.sockets.sources import Source, Sources
from signalhub.settings.model import Settings
from signalhub.wire.authority import is_loopback, source_of

log = logging.getLogger("signalhub.server")

WEBSOCKET_PATHS = ("/ws", "/")
PROTOCOL = "signalhub.v1"
# What HTTP calls a token; longer names are not repeated.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
# Connections that wait; uvloop accepts one per turn, so they delay nobody else.
BACKLOG = 4096
# Pipelined requests that wait behind a slow one take at most twice this.
READ_BYTES = 16 * 2**10
# Limit of connections with an unread answer, of a few megabytes each; bounds the memory.
CHOKED_MAX = 128
# How many of the longest waiting connections are compared to find the one to close.
_LOOK_AT = 64
_TELL_MS = 10_000
# Why sockets are refused: all places are taken, those of the source are, or it waited longest.
FULL, CROWDED, IDLE = "full", "source", "idle"


class Gatekeeper(Protocol):
    """Decides about WebSockets on all paths, and serves those of actors."""

    def admit(self, source: str) -> Response | None:
        """Return `None` to admit a WebSocket, or the response that refuses it."""

    def accept(self, door: Door) -> picows.WSListener | Response:
        """Return the listener of an actor's WebSocket, or the response that refuses it.

        The listener calls `door.opened` after a valid hello.
        """


def too_many_connections(retry_after_s: int, limit: int) -> Response:
    """Return the refusal above the connection rate."""
    return text(
        429,
        "Too many new connections. Try again later.",
        {
            "Retry-After": str(retry_after_s),
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": "0",
        },
    )


def no_place(limit: int, setting: str) -> Response:
    """Return the refusal of a socket that exceeds a limit."""
    words = f"The hub has no room for more sockets: the limit is {limit} ({setting})."
    return text(503, words, {"Retry-After": "5"})


class Listener:
    """The open port and all its Doors."""

    def __init__(self, settings: Settings, routes: Routes, gatekeeper: Gatekeeper) -> None:
        self.settings = settings
        self.routes = routes
        self.gatekeeper = gatekeeper
        self.hosts = Hosts(settings)
        self.proxies = Proxies(settings)
        self.addresses: list[tuple[str, int]] = []
        self.refusals: Counter[str] = Counter()
        # Open connections, how many there may be, and how many had to go or could not come.
        self.sources = Sources()
        self.places = descriptors.places(settings.limits, descriptors.limit())
        self.turned_away = Counter({FULL: 0, CROWDED: 0, IDLE: 0})
        self._told = Period(_TELL_MS)
        self._turned_away_before = 0
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        # In the order of deadlines, because all have the same timeout.
        self.waiting: dict[Door, float] = {}
        self.unfinished = Unfinished(self._give_up)
        # Doors with unread answers, oldest first.
        self._choked: dict[Door, None] = {}
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        for path in WEBSOCKET_PATHS:
            routes.add_socket(path, self._accept)

    def _accept(self, request: HttpRequest, door: Door) -> Upgrade | Response:
        answer = self.gatekeeper.accept(door)
        return answer if isinstance(answer, Response) else Upgrade(answer, _protocol(request))

    @property
    def port(self) -> int:
        """The port of the first address."""
        return self.addresses[0][1]

    @property
    def doors(self) -> list[Door]:
        """Connections that are not sessions: HTTP, or WebSockets before their hello."""
        return list(self.waiting)

    async def bind(self, host: str, port: int) -> None:
        """Accept connections on one more address."""
        server = await self._loop.create_server(lambda: Door(self), host, port, backlog=BACKLOG)
        for bound in server.sockets:
            _keep_alive(bound)
        self._servers.append(server)
        self.addresses += [bound.getsockname()[:2] for bound in server.sockets]

    async def close(self) -> None:
        """Stop accepting. Sessions and Doors stay open."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        # uvloop closes the listening sockets in the next tick.
        await asyncio.sleep(0)

    @property
    def is_nearly_full(self) -> bool:
        """Will sockets be refused soon?"""
        return self.sources.sockets > self.settings.limits.warn_above * self.places.sockets

    def usage(self) -> SocketUsage:
        """Return how many sockets are open, and where they come from."""
        places, found = self.places, self.sources
        return SocketUsage(found.sockets, places.sockets, places.per_source, found.with_sockets())

    def expect(self, door: Door) -> None:
        """Start the timeout of the door again."""
        self.waiting.pop(door, None)
        self.waiting[door] = deadline = self._loop.time() + self.settings.hello_s
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._sweep)

    def forget(self, door: Door) -> None:
        """Cancel the timeout of the door."""
        self.waiting.pop(door, None)

    def arrived(self, door: Door) -> Source:
        """Count a new connection, and close one if there are too many."""
        source = self.sources.get(source_of(door.source))
        source.door_opened()
        self.expect(door)
        return source

    def came_from(self, door: Door, address: str) -> Source:
        """Count the connection where its client is, which is known from its request."""
        source = self.sources.get(source_of(address))
        if source is not door.origin:
            source.door_opened()
            door.origin.door_closed()
        return source

    def make_room(self, door: Door) -> None:
        """Close the connection that has waited longest if there are more than places.

        If all others are being served, it is the new one that is closed.
        """
        source, places = door.origin, self.places
        if source.doors > places.per_source and not self._is_exempt(door):
            self._turn_away(self._longest_waiting(source) or door, IDLE)
        elif self.sources.doors + self.sources.sockets > places.total:
            longest = self._longest_waiting()
            self._turn_away(longest or door, IDLE if longest else FULL)

    def find_place(self, door: Door) -> Response | None:
        """Return `None` if there is a place for one more WebSocket, or else the refusal.

        A socket before its hello has to make room for one that comes later.
        """
        source, places = door.origin, self.places
        if source.sockets >= places.per_source and not self._is_exempt(door):
            longest = self._longest_waiting(source, is_websocket=True)
            reason = CROWDED
            refusal = no_place(places.per_source, "limits.sockets_per_source, for one address")
        elif self.sources.sockets >= places.sockets:
            longest = self._longest_waiting(is_websocket=True)
            reason = FULL
            refusal = no_place(places.sockets, "limits.sockets_max, or that of open files")
        else:
            return None
        if longest is not None:
            self._turn_away(longest, IDLE)
            return None
        self._count_turned_away(reason, source)
        return refusal

    def _is_exempt(self, door: Door) -> bool:
        """A proxy stands for many clients, each of which counts once its request has come."""
        if self.proxies.is_trusted(door.source):
            return True
        return self.places.is_loopback_exempt and is_loopback(door.source)

    def _longest_waiting(
        self, source: Source | None = None, is_websocket: bool = False
    ) -> Door | None:
        """Return an idle connection: of those that waited longest, one of the largest source."""
        idle = (
            door
            for door in self.waiting
            if door.is_idle
            and (source is None or door.origin is source)
            and (door.is_websocket or not is_websocket)
        )
        return max(islice(idle, _LOOK_AT), key=lambda door: len(door.origin), default=None)

    def _turn_away(self, door: Door, reason: str) -> None:
        self._count_turned_away(reason, door.origin)
        door.turn_away()

    def _count_turned_away(self, reason: str, source: Source) -> None:
        self.turned_away[reason] += 1
        if self._told.is_due(int(self._loop.time() * 1000)):
            total = self.turned_away.total()
            facts = {
                "reason": reason,
                "source": source.name,
                "count": total - self._turned_away_before,
                "sockets": self.sources.sockets,
                "waiting": self.sources.doors,
            }
            self._turned_away_before = total
            log.warning("connections are turned away", extra=facts)

    def _give_up(self, door: Door) -> None:
        """Its client sends its request slowly, and too many do."""
        self.refusals["slow"] += 1
        door.turn_away()

    def choked(self, door: Door) -> None:
        """The client does not read its answer; above `CHOKED_MAX`, abort the oldest such door."""
        self._choked[door] = None
        if len(self._choked) > CHOKED_MAX:
            oldest = next(iter(self._choked))
            del self._choked[oldest]
            self.refusals["slow"] += 1
            oldest.give_up()

    def choking(self) -> list[Door]:
        """Return the doors whose clients do not read their answers."""
        return list(self._choked)

    def relieved(self, door: Door) -> None:
        """The client reads again, or has disconnected."""
        self._choked.pop(door, None)

    def soon(self, work: Callable[[], None]) -> None:
        """Call `work` in the next tick."""
        self._loop.call_soon(work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a handler's coroutine as a task."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sweep(self) -> None:
        now = self._loop.time()
        for door in self._late_doors(now):
            try:
                door.late()
            except Exception:
                # The other deadlines must still be handled.
                log.exception("a late connection could not be closed")
        self._timer = None
        if self.waiting:
            # Wake up at most every twentieth of the timeout, instead of once per door.
            soonest = now + self.settings.hello_s / 20
            first = next(iter(self.waiting.values()))
            self._timer = self._loop.call_at(max(first, soonest), self._sweep)

    def _late_doors(self, now: float) -> list[Door]:
        late = list(takewhile(lambda door: self.waiting[door] <= now, self.waiting))
        for door in late:
            del self.waiting[door]
        return late


def _protocol(request: HttpRequest) -> str | None:
    """Return the sub-protocol to select: ours, or the first one offered.

    The hub speaks only one, but browsers fail if none of theirs is selected. One that carries a
    token is never repeated.
    """
    offered = request.headers.get("sec-websocket-protocol")
    if offered is None:
        return None
    names = [one.strip() for one in offered.split(",")]
    if PROTOCOL in names:
        return PROTOCOL
    usable = (one for one in names if _TOKEN.fullmatch(one) and not one.startswith("token."))
    return next(usable, None)


# A vanished peer is detected within two minutes.
_KEEP_ALIVE = (
    (SOL_SOCKET, SO_KEEPALIVE, 1),
    (IPPROTO_TCP, TCP_KEEPIDLE, 60),
    (IPPROTO_TCP, TCP_KEEPINTVL, 15),
    (IPPROTO_TCP, TCP_KEEPCNT, 4),
)


def _keep_alive(socket: Any) -> None:
    """Set the options on the listening socket; accepted sockets inherit them."""
    for level, option, value in _KEEP_ALIVE:
        socket.setsockopt(level, option, value)


_LOOPBACK: Final = "127.0.0.1"


async def check_port(settings: Settings) -> None:
    """Raise `OSError` if the port cannot be opened now; nothing stays open."""
    host = _LOOPBACK if settings.host == "localhost" else settings.host
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, settings.port, type=SOCK_STREAM, flags=AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        try:
            probe = socket(family, kind, protocol)
        except OSError:
            # A machine without IPv6 listens on the other addresses.
            continue
        with probe:
            probe.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            if family == AF_INET6:
                probe.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
            probe.bind(address)


async def listen(settings: Settings, routes: Routes, gatekeeper: Gatekeeper) -> Listener:
    """Open the port. Loopback means IPv4 and IPv6, as `localhost` may resolve to either."""
    listener = Listener(settings, routes, gatekeeper)
    if settings.host not in (_LOOPBACK, "localhost"):
        await listener.bind(settings.host, settings.port)
        return listener
    await listener.bind(_LOOPBACK, settings.port)
    try:
        await listener.bind("::1", listener.port)
    except OSError as error:
        log.info("no IPv6 loopback", extra={"error": str(error)})
    return listener
