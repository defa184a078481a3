"""The front door: one TCP port where HTTP requests and WebSockets arrive.

Every connection begins as a `Door`. It answers HTTP itself and lets a WebSocket in once the
request, its origin and the gatekeeper agree; picows parses the frames from then on. The Door stays
between socket and picows until the hub accepted the client's hello, because two rules hold for
strangers: few bytes, and not for long. `Door.opened` takes it out of the way.

One timer watches all Doors. They wait in the order of their deadlines, since everybody gets the
same time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Coroutine
from itertools import takewhile
from socket import (
    IPPROTO_TCP,
    SO_KEEPALIVE,
    SOL_SOCKET,
    TCP_KEEPCNT,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
)
from typing import Any, Protocol, cast

import picows

from signalhub.server import frames, handshake
from signalhub.server.http import (
    CONTINUE,
    FAILED,
    LATE,
    NOT_FOUND,
    Reader,
    Request,
    Response,
    Routes,
    text,
)
from signalhub.settings import Settings
from signalhub.websocket import CloseCode

log = logging.getLogger("signalhub.server")

WEBSOCKET_PATHS = frozenset(("/ws", "/"))
BACKLOG = 4096
# Also bounds how many pipelined requests can wait behind a slow one.
READ_BYTES = 16 * 2**10


class Gatekeeper(Protocol):
    """Who decides, and who serves the WebSockets that were let in."""

    def admit(self) -> Response | None:
        """`None` lets one more WebSocket in; a response turns it away."""

    def accept(self, door: Door) -> picows.WSListener:
        """The listener of a new WebSocket; it calls `door.opened` after a good hello."""


def too_many_connections(retry_after_s: int, limit: int, remaining: int) -> Response:
    """The refusal when connections arrive faster than allowed."""
    return text(
        429,
        "Too many new connections. Try again later.",
        {
            "Retry-After": str(retry_after_s),
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(remaining),
        },
    )


def at_capacity(utilization: float) -> Response:
    """The refusal when the registry has no room for more actors."""
    return text(
        503,
        "The hub is full. Try again later.",
        {"Retry-After": "60", "X-Capacity-Utilization": f"{utilization:.3f}"},
    )


class Door(asyncio.BufferedProtocol):
    """One connection until it is a session, has been answered, or ran out of time.

    Reads go into a buffer that all Doors share while the connection speaks HTTP, and straight into
    picows' own afterwards. uvloop keeps a plain protocol's `data_received` alive after
    `set_protocol`; a buffered one is really gone.
    """

    __slots__ = (
        "_bytes_left",
        "_has_answered",
        "_is_busy",
        "_is_choked",
        "_is_leaving",
        "_is_open",
        "_listener",
        "_queue",
        "_reader",
        "_transport",
        "_unsent_bytes",
        "_websocket",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._reader: Reader | None = Reader()
        self._queue: deque[Request] | None = None
        self._websocket: Any = None
        self._bytes_left = listener.settings.hello_bytes_max
        self._unsent_bytes = sys.maxsize
        self._has_answered = False
        self._is_busy = False
        self._is_choked = False
        self._is_leaving = False
        self._is_open = False

    @property
    def is_websocket(self) -> bool:
        """Has it left HTTP behind?"""
        return self._websocket is not None

    def opened(self) -> None:
        """The hub accepted the hello: from here on the socket is picows' alone."""
        self._is_open = True
        self._listener.forget(self)
        if not self._is_leaving and not self._transport.is_closing():
            self._transport.set_protocol(self._websocket)

    def close(self, code: CloseCode, reason: str) -> None:
        """End a WebSocket that was not opened, or a connection that still speaks HTTP."""
        if self._is_leaving:
            return
        if self._websocket is not None:
            self._websocket.transport.send_close(code, reason)
            self._leave()
        elif self._is_busy:
            self._is_leaving = True
        else:
            self._leave()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._listener.expect(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.forget(self)
        self._is_leaving = True
        if self._websocket is not None:
            self._websocket.connection_lost(exc)
        elif self._reader is not None:
            self._reader.stop()

    def pause_writing(self) -> None:
        if self._websocket is not None:
            self._websocket.pause_writing()
        else:
            self._is_choked = True
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._websocket is not None:
            self._websocket.resume_writing()
        else:
            self._is_choked = False
            self._transport.resume_reading()
            self._serve()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._websocket is None or self._is_leaving:
            return self._listener.read_buffer
        buffer: memoryview = self._websocket.get_buffer(sizehint)
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_leaving:
            return
        if self._websocket is not None:
            self._bytes_left -= nbytes
            if self._bytes_left < 0:
                self._check_bytes()
            else:
                self._websocket.buffer_updated(nbytes)
        elif self._reader is not None:
            requests = self._reader.feed(bytes(self._listener.read_buffer[:nbytes]))
            if requests:
                self._queue = self._queue or deque()
                self._queue.extend(requests)
            self._serve()

    def late(self) -> None:
        """The deadline passed."""
        if self._is_busy or self._is_draining():
            self._listener.expect(self)
        elif self._is_leaving or self._is_choked:
            self._transport.abort()
        elif self._websocket is not None:
            self._listener.refusals["late"] += 1
            seconds = self._listener.settings.hello_s
            self.close(CloseCode.POLICY_VIOLATION, f"no hub:connect within {seconds:g} s")
        elif self._has_answered and self._reader is not None and self._reader.is_idle:
            self._leave()
        else:
            self._listener.refusals["late"] += 1
            self._say_last(LATE)

    def _is_draining(self) -> bool:
        """Is the client still taking a long answer, however slowly?"""
        before, self._unsent_bytes = self._unsent_bytes, self._transport.get_write_buffer_size()
        return 0 < self._unsent_bytes < before

    def _serve(self) -> None:
        """Answer complete requests in order, one at a time, as long as the client reads."""
        queue, reader = self._queue, self._reader
        while queue and not (self._is_busy or self._is_choked or self._is_leaving):
            self._answer(queue.popleft())
        if reader is None or self._is_busy or self._is_choked or self._is_leaving or queue:
            return
        if reader.failure is not None:
            self._listener.refusals["bad_request"] += 1
            self._say_last(reader.failure)
        elif reader.wants_continue:
            reader.wants_continue = False
            self._transport.write(CONTINUE)

    def _answer(self, request: Request) -> None:
        if request.path in WEBSOCKET_PATHS:
            if handshake.wants_websocket(request):
                self._upgrade(request)
            else:
                self._send(request, handshake.UPGRADE_REQUIRED)
            return
        handler = self._listener.routes.find(request.path)
        if handler is None:
            self._send(request, NOT_FOUND)
            return
        try:
            answer = handler(request)
        except Exception:
            log.exception("a route failed", extra={"path": request.path})
            answer = FAILED
        if isinstance(answer, Response):
            self._send(request, answer)
        else:
            self._is_busy = True
            self._transport.pause_reading()
            self._listener.spawn(self._wait(request, answer))

    async def _wait(self, request: Request, answer: Awaitable[Response]) -> None:
        try:
            response = await answer
        except Exception:
            log.exception("a route failed", extra={"path": request.path})
            response = FAILED
        self._is_busy = False
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._send(request, response, is_last=self._is_leaving)
        self._serve()

    def _send(self, request: Request, response: Response, is_last: bool = False) -> None:
        keep_alive = request.keep_alive and not is_last
        head_only = request.method == "HEAD"
        try:
            answer = response.to_bytes(keep_alive, head_only)
        except ValueError:
            log.exception("a route failed", extra={"path": request.path})
            answer = FAILED.to_bytes(keep_alive, head_only)
        self._has_answered = True
        self._transport.write(answer)
        self._unsent_bytes = sys.maxsize
        if keep_alive:
            self._listener.expect(self)
        else:
            self._leave()

    def _say_last(self, response: Response) -> None:
        self._transport.write(response.to_bytes(keep_alive=False))
        self._leave()

    def _leave(self) -> None:
        """Close so that the client reads our last words: say no more, but listen until it stops.

        Closing with unread input makes the kernel reset the connection, and the client may then
        lose what it was told.
        """
        self._is_leaving = True
        if self._reader is not None:
            self._reader.stop()
            self._reader = self._queue = None
        self._listener.expect(self)
        if not self._transport.is_closing():
            self._transport.write_eof()

    def _upgrade(self, request: Request) -> None:
        reader = self._reader
        assert reader is not None
        rest = reader.rest
        try:
            session = self._admit(request, rest is not None)
        except Exception:
            log.exception("the gatekeeper failed")
            session = FAILED
        if isinstance(session, Response):
            self._send(request, session, is_last=True)
            return
        settings = self._listener.settings
        self._reader = self._queue = None
        self._websocket = frames.shake_hands(
            self._transport, session, request.headers["sec-websocket-key"], settings.frame_bytes_max
        )
        if rest:
            self._bytes_left -= len(rest)
            frames.pour(self._websocket, rest)
            self._check_bytes()

    def _admit(self, request: Request, is_upgrade: bool) -> picows.WSListener | Response:
        listener = self._listener
        refusal = handshake.refusal(request) if is_upgrade else handshake.NO_CONNECTION
        if refusal is not None:
            listener.refusals["bad_request"] += 1
            return refusal
        if not handshake.origin_allowed(request.headers.get("origin"), listener.settings.origins):
            listener.refusals["origin"] += 1
            return handshake.ORIGIN_REFUSED
        return listener.gatekeeper.admit() or listener.gatekeeper.accept(self)

    def _check_bytes(self) -> None:
        if self._bytes_left < 0 and not self._is_open:
            self._listener.refusals["too_big"] += 1
            self.close(CloseCode.TOO_BIG, "too many bytes before hub:connect")


class Listener:
    """The open port and everybody waiting at it."""

    def __init__(self, settings: Settings, routes: Routes, gatekeeper: Gatekeeper) -> None:
        self.settings = settings
        self.routes = routes
        self.gatekeeper = gatekeeper
        self.addresses: list[tuple[str, int]] = []
        self.refusals: Counter[str] = Counter()
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        # Insertion order is deadline order, since every deadline is the same time away.
        self.waiting: dict[Door, float] = {}
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

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
        for socket in server.sockets:
            _keep_alive(socket)
        self._servers.append(server)
        self.addresses += [socket.getsockname()[:2] for socket in server.sockets]

    async def close(self) -> None:
        """Stop accepting. Sessions and Doors live on until somebody closes them."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        # uvloop closes the listening sockets on the next turn of the loop.
        await asyncio.sleep(0)

    def expect(self, door: Door) -> None:
        """Give the door, from now, the time everybody gets."""
        self.waiting.pop(door, None)
        self.waiting[door] = deadline = self._loop.time() + self.settings.hello_s
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._sweep)

    def forget(self, door: Door) -> None:
        """The door needs no watching any more."""
        self.waiting.pop(door, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a handler's coroutine and keep it alive."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sweep(self) -> None:
        now = self._loop.time()
        for door in self._late_doors(now):
            try:
                door.late()
            except Exception:
                # Nobody else watches the doors, so one failure must not end the watch.
                log.exception("a late connection could not be closed")
        self._timer = None
        if self.waiting:
            # Not a wake-up for each of them: deadlines are kept with a precision of five per cent.
            soonest = now + self.settings.hello_s / 20
            first = next(iter(self.waiting.values()))
            self._timer = self._loop.call_at(max(first, soonest), self._sweep)

    def _late_doors(self, now: float) -> list[Door]:
        late = list(takewhile(lambda door: self.waiting[door] <= now, self.waiting))
        for door in late:
            del self.waiting[door]
        return late


# A peer that vanished without a word is noticed within two minutes.
_KEEP_ALIVE = (
    (SOL_SOCKET, SO_KEEPALIVE, 1),
    (IPPROTO_TCP, TCP_KEEPIDLE, 60),
    (IPPROTO_TCP, TCP_KEEPINTVL, 15),
    (IPPROTO_TCP, TCP_KEEPCNT, 4),
)


def _keep_alive(socket: Any) -> None:
    """Set on the listening socket, the options are inherited by every accepted one."""
    for level, option, value in _KEEP_ALIVE:
        socket.setsockopt(level, option, value)


async def listen(settings: Settings, routes: Routes, gatekeeper: Gatekeeper) -> Listener:
    """Open the port. Loopback means both families, because `localhost` may resolve to either."""
    listener = Listener(settings, routes, gatekeeper)
    if settings.host not in ("127.0.0.1", "localhost"):
        await listener.bind(settings.host, settings.port)
        return listener
    await listener.bind("127.0.0.1", settings.port)
    try:
        await listener.bind("::1", listener.port)
    except OSError as error:
        log.info("no IPv6 loopback", extra={"error": str(error)})
    return listener
