"""A new connection: HTTP, and WebSockets until they are open.

A `Door` answers HTTP, and upgrades to a WebSocket if the request, its origin and the gatekeeper
allow it; picows then parses the frames. If the path requires a hello, the Door stays between socket
and picows until the hub has accepted the hello, to limit bytes and time until then. `Door.opened`
removes it.

Requests are answered one at a time, in order. While an answer is pending, one more buffer is read
from the client; then reading pauses until all requests read so far are answered.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
import re
import sys
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from signalhub import native
from signalhub.server.port.hosts import is_same_origin
from signalhub.server.port.http import (
    CONTINUE,
    FAILED,
    LATE,
    MISDIRECTED,
    NOT_FOUND,
    HttpRequest,
    Later,
    RequestReader,
    Response,
    Route,
    Upgrade,
    text,
)
from signalhub.server.port.native import new_reader
from signalhub.server.sockets import picows
from signalhub.server.sockets.connection import Connection
from signalhub.server.sockets.native import NativeConnection, switching
from signalhub.server.sockets.sources import Source
from signalhub.wire.authority import is_loopback
from signalhub.wire.errors import unworded
from signalhub.wire.frames import CloseCode

if native.IS_ON or TYPE_CHECKING:
    from signalhub_native import upgrade as read_upgrade

if TYPE_CHECKING:
    from signalhub.server.port.listener import Listener

WEBSOCKET_VERSION = "13"

UPGRADE_REQUIRED = text(
    426, "This path is for WebSockets only: request an upgrade.", {"Upgrade": "websocket"}
)
ORIGIN_REFUSED = text(403, "This origin is not allowed.")
_OTHER_VERSION = text(
    426,
    f"The hub supports only WebSocket version {WEBSOCKET_VERSION}.",
    {"Upgrade": "websocket", "Sec-WebSocket-Version": WEBSOCKET_VERSION},
)
_NOT_GET = text(400, "A WebSocket handshake is a GET request in HTTP/1.1 without a body.")
NO_CONNECTION = text(400, "The Connection header must contain Upgrade.")
_BAD_KEY = text(400, "Sec-WebSocket-Key must be 16 bytes in base64.")

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^/?#@:\[\]\s]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def wants_websocket(request: HttpRequest) -> bool:
    """Does the client ask for a WebSocket, even if the rest of the request is invalid?"""
    return request.has_token("upgrade", "websocket")


def handshake_refusal(request: HttpRequest) -> Response | None:
    """Return the error for an invalid upgrade request; `None` if it is valid."""
    headers = request.headers
    if (
        request.method != "GET"
        or request.version != "1.1"
        or request.body
        or "transfer-encoding" in headers
    ):
        return _NOT_GET
    if not request.has_token("connection", "upgrade"):
        return NO_CONNECTION
    if headers.get("sec-websocket-version") != WEBSOCKET_VERSION:
        return _OTHER_VERSION
    if not _is_key(headers.get("sec-websocket-key", "")):
        return _BAD_KEY
    return None


def _is_key(key: str) -> bool:
    try:
        return len(key) == 24 and len(binascii.a2b_base64(key, strict_mode=True)) == 16
    except ValueError:
        return False


def origin_allowed(origin: str | None, origins: tuple[str, ...]) -> bool:
    """May a page of this origin connect? Clients that send no origin are not browsers and may.

    With a list, only its members may, compared by scheme, host and port. Without one, only pages
    from loopback addresses may.
    """
    if origin is None:
        return True
    given = _parts(origin)
    if given is None:
        return False
    if origins:
        return any(given == _parts(listed) for listed in origins)
    scheme, host, _ = given
    return scheme in _DEFAULT_PORTS and is_loopback(host.strip("[]"))


def _parts(origin: str) -> tuple[str, str, int | None] | None:
    match = _ORIGIN.fullmatch(origin.lower())
    if match is None:
        return None
    scheme, host, port = match.groups()
    return scheme, host, int(port) if port else _DEFAULT_PORTS.get(scheme)


log = logging.getLogger("signalhub.server")


class Door(asyncio.BufferedProtocol):
    """One connection until it is a session, has been answered, or times out.

    HTTP is read into a buffer that all Doors share, WebSocket frames directly into the buffer of
    picows. A `BufferedProtocol`, because uvloop still calls `data_received` of a plain protocol
    after `set_protocol`.
    """

    __slots__ = (
        "_bytes_left",
        "_has_answered",
        "_is_choked",
        "_is_half_closed",
        "_is_leaving",
        "_is_new",
        "_is_open",
        "_is_paused",
        "_later",
        "_listener",
        "_pending",
        "_queue",
        "_reader",
        "_take",
        "_transport",
        "_unsent_bytes",
        "_websocket",
        "origin",
        "source",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        # The source it is counted for until it is closed or handed over.
        self.origin: Source
        self._transport: asyncio.Transport
        self._reader: RequestReader | None = new_reader()
        self._take = listener.routes.taker
        self._queue: deque[HttpRequest] | None = None
        # The request that is being answered, if any.
        self._pending: tuple[HttpRequest, Route] | None = None
        self._later: Later | None = None
        self._websocket: Any = None
        # The network address of the client, without its port.
        self.source = ""
        self._bytes_left = listener.settings.hello_bytes_max
        self._unsent_bytes = sys.maxsize
        self._has_answered = False
        self._is_choked = False
        self._is_half_closed = False
        self._is_leaving = False
        # Nothing was read yet, and the native part may know what it is: most clients begin with an
        # upgrade request, in one piece.
        self._is_new = native.IS_ON
        self._is_open = False
        self._is_paused = False

    @property
    def is_websocket(self) -> bool:
        """Has it been upgraded to a WebSocket?"""
        return self._websocket is not None

    def opened(self) -> None:
        """The hub accepted the hello: hand the socket over to picows."""
        self._is_open = True
        self._listener.forget(self)
        if not self._is_leaving and not self._transport.is_closing():
            self._transport.set_protocol(self._websocket)

    def close(self, code: CloseCode, reason: str) -> None:
        """Close a WebSocket that was not opened, or an HTTP connection."""
        if self._is_leaving:
            return
        if self._websocket is not None:
            self._websocket.transport.send_close(code, reason)
            self._leave()
        elif self._pending is not None:
            self._is_leaving = True
        else:
            self._leave()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        assert self._reader is not None
        self.source = self._reader.peer = _end(transport, "peername")
        self._reader.local = _end(transport, "sockname")
        self.origin = self._listener.arrived(self)
        self._listener.make_room(self)

    @property
    def is_idle(self) -> bool:
        """Is no request being answered?"""
        return self._pending is None

    def turn_away(self) -> None:
        """Abort: there are too many connections."""
        self._listener.forget(self)
        self._transport.abort()

    @property
    def buffered_bytes(self) -> int:
        """What its client has not read of the answer."""
        return self._transport.get_write_buffer_size()

    debt_bytes = buffered_bytes

    def give_up(self) -> None:
        """Abort: too many clients do not read their answers, and this is the oldest of them."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.forget(self)
        self._listener.unfinished.hold(self, 0)
        self._listener.relieved(self)
        self._is_leaving = True
        if self._later is not None:
            self._later.abandon()
        if self._websocket is not None:
            self._websocket.connection_lost(exc)
            return
        self.origin.door_closed()
        if self._reader is not None:
            self._reader.stop()

    def eof_received(self) -> bool:
        """Keep the connection while answers are pending: the client has only closed its side."""
        self._is_half_closed = True
        if self._later is not None:
            self._later.abandon()
        return self._pending is not None or bool(self._queue)

    def pause_writing(self) -> None:
        if self._websocket is not None:
            self._websocket.pause_writing()
        else:
            self._is_choked = True
            self._transport.pause_reading()
            self._listener.choked(self)

    def resume_writing(self) -> None:
        if self._websocket is not None:
            self._websocket.resume_writing()
        else:
            self._is_choked = False
            self._listener.relieved(self)
            self._read_on()
            self._serve()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._websocket is None or self._is_leaving:
            return self._listener.read_buffer
        return picows.sparing(self._websocket.get_buffer(sizehint))

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_leaving:
            return
        if self._websocket is not None:
            self._bytes_left -= nbytes
            if self._bytes_left < 0:
                self._check_bytes()
            else:
                self._websocket.buffer_updated(nbytes)
        elif (reader := self._reader) is not None:
            data = bytes(self._listener.read_buffer[:nbytes])
            if self._is_new:
                self._is_new = False
                if self._upgrade_plainly(data):
                    return
            take = self._take
            if (
                take is not None
                and self._pending is None
                and reader.is_between
                and not (self._queue or self._is_choked or self._listener.unfinished.bytes)
                and take(self, data)
            ):
                return
            requests = reader.feed(data)
            unfinished = self._listener.unfinished
            # Most of the time nobody holds any.
            if unfinished.bytes or reader.body_bytes:
                unfinished.hold(self, reader.body_bytes)
            if (
                len(requests) == 1
                and self._pending is None
                and not (self._queue or self._is_choked)
            ):
                self._answer(requests[0])
                if self._pending is None:
                    self._serve()
                return
            if requests:
                if self._queue is None:
                    self._queue = deque()
                self._queue.extend(requests)
            if self._pending is None:
                self._serve()
            elif not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()

    def late(self) -> None:
        """Handle the deadline of the connection."""
        if self._pending is not None or self._is_draining():
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
        """Has the client read some of a long answer since the last check?"""
        before, self._unsent_bytes = self._unsent_bytes, self._transport.get_write_buffer_size()
        return 0 < self._unsent_bytes < before

    def _read_on(self) -> None:
        if not (self._is_choked or self._is_paused or self._is_half_closed):
            self._transport.resume_reading()

    def _serve(self) -> None:
        """Answer complete requests in order, one at a time, as long as the client reads."""
        queue = self._queue
        while queue and not (self._pending or self._is_choked or self._is_leaving):
            self._answer(queue.popleft())
        reader = self._reader
        if queue or reader is None or self._pending or self._is_choked or self._is_leaving:
            return
        if self._is_paused:
            self._is_paused = False
            self._read_on()
        if reader.failure is not None:
            self._listener.refusals["bad_request"] += 1
            self._say_last(reader.failure)
        elif self._is_half_closed:
            self._leave()
        elif reader.wants_continue:
            reader.wants_continue = False
            self._transport.write(CONTINUE)

    def _serve_on(self) -> None:
        if not self._transport.is_closing():
            self._serve()

    def _answer(self, request: HttpRequest) -> None:
        found = self._listener.routes.find(request.path)
        is_for_any_host = found is not None and found[0].is_for_any_host
        if not is_for_any_host and not self._listener.hosts.serves(request):
            self._listener.refusals["host"] += 1
            self._send(request, MISDIRECTED)
            return
        if found is None:
            self._send(request, NOT_FOUND)
            return
        route, parts = found
        if route.handler is None:
            self._open(request, route, parts)
            return
        answer: Response | Later | Awaitable[Response]
        try:
            if route.methods and request.method not in route.methods:
                answer = self._listener.routes.refuse_method(route, request)
            else:
                answer = route.handler(request, *parts)
        except Exception as error:
            answer = _failed(route, error)
        if isinstance(answer, Response):
            self._send(request, answer, route)
            return
        self._pending = (request, route)
        if not isinstance(answer, Later):
            self._listener.spawn(self._wait(route, answer))
        elif (response := answer.wait(self.deliver)) is not None:
            self._pending = None
            self._send(request, response, route)
        else:
            self._later = answer

    async def _wait(self, route: Route, answer: Awaitable[Response]) -> None:
        try:
            response = await answer
        except Exception as error:
            response = _failed(route, error)
        self.deliver(response)

    def is_for(self, host: str) -> bool:
        """Is the host known to be served?"""
        return self._listener.hosts.knows(host)

    def expect_answer(self, request: HttpRequest, route: Route) -> None:
        """A request that was taken is answered later, as one like this to the route."""
        self._pending = (request, route)

    def fail(self, error: Exception) -> None:
        """Say that the pending request could not be handled."""
        assert self._pending is not None
        self.deliver(_failed(self._pending[1], error))

    def deliver_whole(self, answer: bytes) -> bool:
        """Send the answer to a pending request; `False` if its connection is not to be kept."""
        if self._is_leaving:
            return False
        self._pending = None
        transport = self._transport
        if transport.is_closing():
            return True
        self._has_answered = True
        self._unsent_bytes = sys.maxsize
        transport.write(answer)
        self._listener.expect(self)
        self._serve_soon()
        return True

    def deliver(self, response: Response) -> None:
        """Send the pending answer, unless the client has disconnected."""
        assert self._pending is not None
        (request, route), self._pending = self._pending, None
        self._later = None
        if self._transport.is_closing():
            return
        self._send(request, response, route, self._is_leaving)
        self._serve_soon()

    def _serve_soon(self) -> None:
        """Go on with what has come while an answer was pending."""
        reader = self._reader
        if reader is not None and (
            self._queue
            or self._is_paused
            or self._is_half_closed
            or reader.failure
            or reader.wants_continue
        ):
            # Not re-entrantly: the caller may be in the middle of handling other events.
            self._listener.soon(self._serve_on)

    def _send(
        self,
        request: HttpRequest,
        response: Response,
        route: Route | None = None,
        is_last: bool = False,
    ) -> None:
        keep_alive = request.keep_alive and not is_last
        head_only = request.method == "HEAD"
        try:
            answer = response.to_bytes(keep_alive, head_only)
        except ValueError as error:
            assert route is not None, "the hub's own refusals are well-formed"
            answer = _failed(route, error).to_bytes(keep_alive, head_only)
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
        """Shut down writing, and read until the client closes, so that it gets the last answer.

        If a socket is closed with unread input, the kernel resets the connection, and the client
        may lose that answer.
        """
        self._is_leaving = True
        if self._reader is not None:
            self._reader.stop()
            self._reader = self._queue = None
            self._listener.unfinished.hold(self, 0)
        self._listener.expect(self)
        if self._is_paused:
            self._is_paused = False
            self._read_on()
        if self._is_half_closed:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write_eof()

    def _open(self, request: HttpRequest, route: Route, parts: tuple[str, ...]) -> None:
        if not wants_websocket(request):
            page = self._listener.routes.landing(request)
            self._send(request, page or _rephrased(route, UPGRADE_REQUIRED), route)
            return
        reader = self._reader
        assert reader is not None
        rest = reader.rest
        refusal = NO_CONNECTION if rest is None else handshake_refusal(request)
        self._open_asked(request, route, parts, refusal, rest)

    def _upgrade_plainly(self, data: bytes) -> bool:
        """Handle an upgrade request that needs no second look; `False` if `data` is none."""
        asked = read_upgrade(data)
        if asked is None:
            return False
        path, query, headers, answer = asked
        found = self._listener.routes.find(path)
        reader = self._reader
        assert reader is not None
        if found is None or found[0].handler is not None:
            return False
        request = HttpRequest(
            *("GET", path, query, headers, b"", "1.1", False),
            authority=headers["host"],
            peer=reader.peer,
            local=reader.local,
        )
        if not self._listener.hosts.serves(request):
            return False
        reader.stop()
        self._open_asked(request, *found, None, b"", answer)
        return True

    def _open_asked(
        self,
        request: HttpRequest,
        route: Route,
        parts: tuple[str, ...],
        refusal: Response | None,
        rest: bytes | None,
        begun: bytes | None = None,
    ) -> None:
        """Open a WebSocket unless the request is invalid or the gatekeeper refuses it.

        `begun` is the beginning of the answer, if it is composed already.
        """
        self.source = self._listener.proxies.client_of(request)
        self.origin = self._listener.came_from(self, self.source)
        try:
            answer = self._admit(request, route, parts, refusal)
        except Exception as error:
            facts = {"route": route.pattern}
            log.error("the gatekeeper failed", exc_info=unworded(error), extra=facts)
            answer = _rephrased(route, FAILED)
        if isinstance(answer, Response):
            self._send(request, answer, route, is_last=True)
        else:
            self._upgrade(request, answer, rest, begun)

    def _admit(
        self,
        request: HttpRequest,
        route: Route,
        parts: tuple[str, ...],
        refusal: Response | None,
    ) -> Upgrade | Response:
        listener = self._listener
        if refusal is not None:
            listener.refusals["bad_request"] += 1
        elif not self._is_origin_allowed(request):
            listener.refusals["origin"] += 1
            refusal = ORIGIN_REFUSED
        else:
            refusal = listener.find_place(self) or listener.gatekeeper.admit(self.origin.name)
        if refusal is not None:
            return _rephrased(route, refusal)
        assert route.opener is not None
        return route.opener(request, self, *parts)

    def _is_origin_allowed(self, request: HttpRequest) -> bool:
        """The hub's own pages may always connect; other ones by the settings."""
        listener, origin = self._listener, request.headers.get("origin")
        return origin_allowed(origin, listener.settings.origins) or (
            origin is not None and is_same_origin(origin, request, listener.proxies)
        )

    def _upgrade(
        self, request: HttpRequest, terms: Upgrade, rest: bytes | None, begun: bytes | None
    ) -> None:
        self._reader = self._queue = None
        key = request.headers["sec-websocket-key"]
        if isinstance(terms.listener, NativeConnection):
            terms.listener.shake_hands(self._transport, begun or switching(key), terms.protocol)
            self._websocket = terms.listener
        else:
            self._websocket = picows.shake_hands(
                self._transport,
                terms.listener,
                key,
                terms.frame_bytes_max or self._listener.settings.frame_bytes_max,
                terms.protocol,
            )
        if isinstance(terms.listener, Connection):
            self.origin.joined()
            terms.listener.origin = self.origin
        else:
            self.origin.door_closed()
        if not terms.needs_hello:
            self.opened()
        if rest:
            self._bytes_left -= len(rest)
            picows.pour(self._websocket, rest)
            self._check_bytes()
        if self._is_half_closed:
            # The client closed its side while the request was queued; that is not reported again.
            self._transport.close()

    def _check_bytes(self) -> None:
        if self._bytes_left < 0 and not self._is_open:
            self._listener.refusals["too_big"] += 1
            self.close(CloseCode.TOO_BIG, "too many bytes before hub:connect")


def _end(transport: asyncio.BaseTransport, name: str) -> str:
    """Return the network address of one end of a connection."""
    found = transport.get_extra_info(name)
    return str(found[0]) if found else ""


def _failed(route: Route, error: Exception) -> Response:
    log.error("a route failed", exc_info=unworded(error), extra={"route": route.pattern})
    return route.failed


def _rephrased(route: Route, refusal: Response) -> Response:
    return refusal if route.rephrase is None else route.rephrase(refusal)
