"""HTTP/1.1 for the hub's port: requests, responses and routes. No I/O.

httptools parses; this module enforces the limits: 16 KiB for the head, 2 MiB for the body, and no
repetition of headers that may occur only once. A violation is answered with an error, and the
connection is closed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Concatenate
from urllib.parse import unquote

import httptools
import msgspec

from signalhub import native
from signalhub.wire.errors import RoomCode

if TYPE_CHECKING:
    from picows import WSListener

    from signalhub.server.port.door import Door

HEAD_BYTES_MAX = 16 * 2**10
BODY_BYTES_MAX = 2 * 2**20
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# Two different values of one of these would let a proxy and the hub see different requests.
_SINGLE = frozenset(
    (
        "authorization",
        "content-length",
        "content-type",
        "host",
        "origin",
        "sec-websocket-key",
        "sec-websocket-version",
    )
)
_BODILESS = frozenset((204, 304))

# Common header names by their bytes: a look-up is cheaper than decoding.
_NAMES = {
    spelling.encode(): name.lower()
    for name in (
        *("Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Connection"),
        *("Content-Length", "Content-Type", "Host", "If-Match", "If-None-Match", "Origin"),
        *("Referer", "Transfer-Encoding", "User-Agent", "X-Inbox-ID", "X-Pseudonym-ID"),
        "X-Room-ID",
    )
    for spelling in (name, name.title(), name.lower())
}
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")}


class HttpRequest(msgspec.Struct, frozen=True):
    """One complete request. `path` and `query` are as sent, header names are lower case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""
    version: str = "1.1"
    keep_alive: bool = True
    authority: str | None = None  # For whom it is: of an absolute URL, or of the `Host` header.
    peer: str = ""  # The network addresses of both ends of the connection.
    local: str = ""

    def has_token(self, header: str, token: str) -> bool:
        """Is `token`, in lower case, in the header's comma-separated list?"""
        value = self.headers.get(header, "").lower()
        return value == token or token in [part.strip() for part in value.split(",")]


class ListedValues(msgspec.Struct, frozen=True):
    """JSON values, which are separated by commas, and what follows them."""

    values: list[bytes]
    end: bytes


class Response(msgspec.Struct, frozen=True):
    """The answer of a handler; `to_bytes` adds the length, date and connection headers."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = {}
    listed: ListedValues | None = None  # The rest of a long body.

    @property
    def content(self) -> bytes:
        """The whole body."""
        if self.listed is None:
            return self.body
        return b"%b%b%b" % (self.body, b",".join(self.listed.values), self.listed.end)

    def to_bytes(self, keep_alive: bool, head_only: bool = False) -> bytes:
        """Encode the response; `head_only` omits the body but not its length."""
        headers = self.headers
        connection = "keep-alive" if keep_alive else "close"
        if headers and "Upgrade" in headers:
            connection = f"Upgrade, {connection}"
        date, lines = _date_line(int(time.time())), _lines(headers) if headers else b""
        if self.status in _BODILESS:
            return b"".join((_head(self.status, None, connection), date, lines, b"\r\n\r\n"))
        head, body, listed = (
            _head(self.status, self.content_type, connection),
            self.body,
            self.listed,
        )
        if head_only:
            return b"".join((head, b"%d" % len(self.content), date, lines, b"\r\n\r\n"))
        if listed is not None:
            rest = b"".join((date, lines, b"\r\n\r\n", body))
            return with_listed(head, rest, len(body), listed.values, listed.end)
        return b"".join((head, b"%d" % len(body), date, lines, b"\r\n\r\n", body))


def head_of_kept(status: int, content_type: str) -> tuple[bytes, bytes]:
    """Return what stands before and behind the length in an answer without other headers.

    Its connection is kept.
    """
    return _head(status, content_type, "keep-alive"), _date_and_end(int(time.time()))


def listed_in_python(
    head: bytes, rest: bytes, begun: int, values: list[bytes], end: bytes
) -> bytes:
    """Return an answer whose body goes on with `values`, and with `end`.

    `head` ends before the length of the body, `rest` with its first `begun` bytes. This is the
    only copy of a long body.
    """
    pieces = [b","] * (2 * len(values))
    pieces[::2] = values
    pieces[-1:] = [end]
    return b"".join((head, b"%d" % (begun + sum(map(len, pieces))), rest, *pieces))


with_listed: Callable[[bytes, bytes, int, list[bytes], bytes], bytes] = listed_in_python
if native.IS_ON:
    import signalhub_native

    with_listed = signalhub_native.listed


@lru_cache(maxsize=256)
def _head(status: int, content_type: str | None, connection: str) -> bytes:
    """Return the start of a response, up to the length of its body if it has one."""
    lines = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: {connection}"
    if content_type is not None:
        lines += f"{_line('Content-Type', content_type)}\r\nContent-Length: "
    return lines.encode("latin-1")


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return _line("Date", formatdate(second, usegmt=True)).encode()


@lru_cache(maxsize=1)
def _date_and_end(second: int) -> bytes:
    return _date_line(second) + b"\r\n\r\n"


def _lines(headers: dict[str, str]) -> bytes:
    return "".join([_line(name, value) for name, value in headers.items()]).encode("latin-1")


def _line(name: str, value: str) -> str:
    line = f"{name}: {value}"
    if "\r" in line or "\n" in line:
        raise ValueError("a header must not contain a line break")
    return f"\r\n{line}"


class Later:
    """A deferred answer: a handler returns it, and `respond` is called once."""

    __slots__ = ("_deliver", "_response")

    def __init__(self) -> None:
        self._deliver: Callable[[Response], None] | None = None
        self._response: Response | None = None

    def respond(self, response: Response) -> None:
        """Set the answer; allowed before the handler has returned."""
        assert self._response is None, "a request is answered once"
        self._response = response
        if self._deliver is not None:
            self._deliver(response)

    def abandon(self) -> None:
        """Its client has disconnected, or sends nothing more: what only waits for it may end."""

    def wait(self, deliver: Callable[[Response], None]) -> Response | None:
        """Return the answer if it is set; otherwise pass it to `deliver` later."""
        if self._response is None:
            self._deliver = deliver
        return self._response


class Upgrade(msgspec.Struct, frozen=True):
    """An accepted WebSocket: its listener, protocol and limits."""

    listener: WSListener
    protocol: str | None = None
    frame_bytes_max: int | None = None
    needs_hello: bool = True


# Takes what a connection has read, if that is one request that it knows and will answer later.
Taker = Callable[["Door", bytes], bool]
Handler = Callable[Concatenate[HttpRequest, ...], Response | Later | Awaitable[Response]]
Opener = Callable[Concatenate[HttpRequest, "Door", ...], Response | Upgrade]


class Route(msgspec.Struct, frozen=True):
    """The handler of a path. The log shows `pattern`, since paths may contain identifiers."""

    pattern: str
    handler: Handler | None = None
    opener: Opener | None = None
    methods: tuple[str, ...] = ()
    is_for_any_host: bool = False
    rephrase: Callable[[Response], Response] | None = None

    @property
    def failed(self) -> Response:
        """The answer if the handler raises, in the format of its other answers."""
        return _FAILED_JSON if self.methods else FAILED


class Routes:
    """Handlers by path."""

    def __init__(self) -> None:
        self._options: Callable[[HttpRequest], Response] | None = None
        self._landing: Callable[[HttpRequest], Response] | None = None
        # Takes requests as they were read, before they are parsed.
        self.taker: Taker | None = None
        self._exact: dict[str, tuple[Route, tuple[str, ...]]] = {}
        # By number of segments, so that few patterns have to be compared.
        self._patterns: dict[int, list[tuple[list[str], Route]]] = {}

    def add(
        self, path: str, handler: Handler, *methods: str, is_for_any_host: bool = False
    ) -> None:
        """Register the handler of a path.

        A segment `{}` matches any non-empty segment, which is passed to the handler,
        percent-decoded, after the request. Without methods, the handler gets all of them.
        """
        if "GET" in methods and "HEAD" not in methods:
            methods = (*methods, "HEAD")
        self._add(Route(path, handler, methods=methods, is_for_any_host=is_for_any_host))

    def add_socket(
        self,
        path: str,
        opener: Opener,
        rephrase: Callable[[Response], Response] | None = None,
    ) -> None:
        """Accept WebSockets at `path`; `opener` decides, after the handshake was validated.

        `rephrase` converts other refusals into the opener's format.
        """
        self._add(Route(path, opener=opener, rephrase=rephrase))

    def add_taker(self, taker: Taker) -> None:
        """Offer what is read to `taker` first."""
        assert self.taker is None, "one taker is enough"
        self.taker = taker

    def add_landing(self, handler: Callable[[HttpRequest], Response]) -> None:
        """Register the answer to browsers that open `/`, where only WebSockets are served."""
        self._landing = handler

    def landing(self, request: HttpRequest) -> Response | None:
        """Return the answer to a browser that opens `/`; `None` if it is something else."""
        if self._landing is None or request.path != "/" or request.method not in ("GET", "HEAD"):
            return None
        accepted = request.headers.get("accept", "").lower()
        return self._landing(request) if "text/html" in accepted else None

    def add_options(self, handler: Callable[[HttpRequest], Response]) -> None:
        """Register the handler of OPTIONS for routes that do not list it."""
        self._options = handler

    def find(self, path: str) -> tuple[Route, tuple[str, ...]] | None:
        """Return the route of a path, and the segments that match `{}`."""
        found = self._exact.get(path)
        if found is not None:
            return found
        segments = path.split("/")
        for pattern, route in self._patterns.get(len(segments), ()):
            pairs = list(zip(pattern, segments, strict=True))
            if all(given if wanted == "{}" else given == wanted for wanted, given in pairs):
                return route, tuple(unquote(given) for wanted, given in pairs if wanted == "{}")
        return None

    @property
    def paths(self) -> set[str]:
        """All paths, with `{}` for segments that match anything."""
        patterns = (route.pattern for some in self._patterns.values() for _, route in some)
        return {*self._exact, *patterns}

    def refuse_method(self, route: Route, request: HttpRequest) -> Response:
        """Answer a method that the route does not list."""
        if self._options is None:
            allowed = route.methods
        elif request.method == "OPTIONS":
            return self._options(request)
        else:
            allowed = (*route.methods, "OPTIONS")
        sentence = f"This path does not support {request.method}."
        return _json_error(
            405, RoomCode.METHOD_NOT_ALLOWED, sentence, {"Allow": ", ".join(allowed)}
        )

    def _add(self, route: Route) -> None:
        path = route.pattern
        assert path.startswith("/"), "a path begins with a slash"
        segments = path.split("/")
        if "{}" not in segments:
            assert path not in self._exact, f"two handlers for {path}"
            self._exact[path] = (route, ())
            return
        rivals = self._patterns.setdefault(len(segments), [])
        assert all(path != other.pattern for _, other in rivals), f"two handlers for {path}"
        rivals.append((segments, route))


def _json_error(
    status: int, code: RoomCode, sentence: str, headers: dict[str, str] | None = None
) -> Response:
    body = msgspec.json.encode({"error": sentence, "errorCode": code.value})
    return Response(status, body, "application/json", headers or {})


def text(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """Return a short answer in plain text."""
    return Response(status, f"{sentence}\n".encode(), headers=headers or {})


def _authority(host: bytes, port: int | None) -> str:
    """Return them as in a `Host` header; the parser drops the brackets of an IPv6 address."""
    name = host.decode("latin-1")
    if ":" in name:
        name = f"[{name}]"
    return name if port is None else f"{name}:{port}"


NOT_FOUND = text(404, "There is nothing at this path.")
_FAULT = "Internal error; see the hub's log."
FAILED = text(500, _FAULT)
_FAILED_JSON = _json_error(500, RoomCode.INTERNAL_ERROR, _FAULT)
MISDIRECTED = text(
    421, "This name is not served: add it to the setting `hosts`, or use the hub's address."
)
LATE = text(408, "The request did not arrive in time.")
_BAD = text(400, "Invalid HTTP request.")
_NO_HOST = text(400, "The request needs a Host header.")
_REPEATED = text(400, "A header that may occur only once was repeated.")
_HEAD_TOO_BIG = text(431, f"The request head is longer than {HEAD_BYTES_MAX} bytes.")
_BODY_TOO_BIG = text(413, f"The request body is longer than {BODY_BYTES_MAX} bytes.")
_VERSION = text(505, "The hub supports HTTP/1.0 and HTTP/1.1.")


class RequestReader:
    """Parses the requests of one connection.

    Reading ends in one of two ways: `failure` is the answer to send after those to all complete
    requests, or `rest` holds the bytes after an upgrade request, which is the last one.
    """

    __slots__ = (
        "_body",
        "_complete",
        "_head_bytes",
        "_headers",
        "_is_in_head",
        "_parser",
        "_unparsed_bytes",
        "_url",
        "_version",
        "failure",
        "local",
        "peer",
        "rest",
        "wants_continue",
    )
    _body: bytes | bytearray

    def __init__(self) -> None:
        self.failure: Response | None = None
        self.rest: bytes | None = None
        self.wants_continue = False
        # The network addresses of both ends.
        self.peer = ""
        self.local = ""
        self._complete: list[HttpRequest] = []
        self._unparsed_bytes = 0
        self._begin()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)

    @property
    def is_idle(self) -> bool:
        """Has no part of the next request arrived?"""
        return self._is_in_head and not self._url and not self._unparsed_bytes

    @property
    def is_between(self) -> bool:
        """May a whole request that comes next go by the parser?"""
        return False

    @property
    def body_bytes(self) -> int:
        """How much of an unfinished body is kept."""
        return len(self._body)

    def feed(self, data: bytes) -> list[HttpRequest]:
        """Return the requests that `data` completes, in order."""
        complete = self._complete = []
        if self._parser is None:
            return complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
            self.stop()
            return complete
        except httptools.HttpParserError:
            self.failure = self.failure or _BAD
            self.stop()
            return complete
        # The parser does not report an unfinished header, so its bytes are counted here.
        self._unparsed_bytes = (
            0 if complete or not self._is_in_head else self._unparsed_bytes + len(data)
        )
        if self._unparsed_bytes > HEAD_BYTES_MAX:
            self.failure = _HEAD_TOO_BIG
            self.stop()
        return complete

    def stop(self) -> None:
        """Stop reading, and break the reference cycle with the parser."""
        self._parser = None

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._grow_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(_HEAD_TOO_BIG)
        if not self._is_in_head:
            return  # Ignore trailers.
        key = _NAMES.get(name) or name.decode("latin-1").lower()
        given = value.decode("latin-1")
        headers = self._headers
        if key in headers:
            if key in _SINGLE:
                self._refuse(_REPEATED)
            given = f"{headers[key]}, {given}"
        headers[key] = given

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._is_in_head = False
        headers = self._headers
        self._version = version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(_VERSION)
        if "host" not in headers and version == "1.1":
            self._refuse(_NO_HOST)
        if "content-length" in headers and int(headers["content-length"]) > BODY_BYTES_MAX:
            self._refuse(_BODY_TOO_BIG)
        if "expect" in headers:
            self.wants_continue = headers["expect"].lower() == "100-continue" and version == "1.1"

    def on_body(self, body: bytes) -> None:
        if len(self._body) + len(body) > BODY_BYTES_MAX:
            self._refuse(_BODY_TOO_BIG)
        if not self._body:
            self._body = body
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += body

    def on_message_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        method = parser.get_method()
        target, authority = self._target()
        path, _, query = target.partition("?")
        request = HttpRequest(
            _METHODS.get(method) or method.decode("latin-1"),
            path,
            query,
            self._headers,
            bytes(self._body),
            self._version,
            parser.should_keep_alive() and not parser.should_upgrade(),
            self._headers.get("host") if authority is None else authority,
            self.peer,
            self.local,
        )
        self._complete.append(request)
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = b""
        self._head_bytes = 0
        self._is_in_head = True
        self.wants_continue = False

    def _target(self) -> tuple[str, str | None]:
        """Return path and query, and the host of an absolute URL, which proxies send.

        The `Host` header beside an absolute URL does not count (RFC 9112, 3.2.2).
        """
        if self._url.startswith(b"/"):
            return self._url.decode("latin-1"), None
        try:
            url = httptools.parse_url(self._url)
        except httptools.HttpParserError:
            return self._url.decode("latin-1"), None
        target = (url.path or b"/") + b"?" + (url.query or b"")
        authority = None if url.host is None else _authority(url.host, url.port)
        return target.decode("latin-1"), authority

    def _grow_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(_HEAD_TOO_BIG)

    def _refuse(self, response: Response) -> None:
        """Stop the parser, from inside one of its callbacks."""
        self.failure = response
        raise httptools.HttpParserError(response.status)
