"""The HTTP/1.1 side of the hub's port: requests in, responses out, routes between.

Parsing is httptools'. What this file adds are the bounds and the refusals: a head has 16 KiB, a
body 2 MiB, headers that must be single are single, and anything else ends with a 4xx and the end of
the connection. Nothing here touches a socket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus

import httptools
import msgspec

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
_BODILESS = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class Request(msgspec.Struct, frozen=True):
    """One complete request. `path` and `query` are as sent, header names are lower case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""
    version: str = "1.1"
    keep_alive: bool = True

    def has_token(self, header: str, token: str) -> bool:
        """Is `token`, in lower case, in the header's comma-separated list?"""
        value = self.headers.get(header, "").lower()
        return value == token or token in [part.strip() for part in value.split(",")]


class Response(msgspec.Struct, frozen=True):
    """What a handler answers; length, date and connection headers are added on the way out."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = {}

    def to_bytes(self, keep_alive: bool, head_only: bool = False) -> bytes:
        """The response as it travels; `head_only` leaves out the body but not its length."""
        connection = "keep-alive" if keep_alive else "close"
        if "Upgrade" in self.headers:
            connection = f"Upgrade, {connection}"
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Date: {formatdate(usegmt=True)}",
            f"Connection: {connection}",
        ]
        has_body = self.status not in _BODILESS
        if has_body:
            lines.append(f"Content-Type: {self.content_type}")
            lines.append(f"Content-Length: {len(self.body)}")
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header must not contain a line break")
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return head if head_only or not has_body else head + self.body


Handler = Callable[[Request], Response | Awaitable[Response]]


class Routes:
    """Which handler answers which path; the handler decides about methods."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, path: str, handler: Handler) -> None:
        """Let `handler` answer `path`, compared exactly."""
        assert path.startswith("/"), "a path begins with a slash"
        assert path not in self._handlers, f"two handlers for {path}"
        self._handlers[path] = handler

    def find(self, path: str) -> Handler | None:
        """The handler for `path`, if there is one."""
        return self._handlers.get(path)


def text(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """A short answer in plain text."""
    return Response(status, f"{sentence}\n".encode(), headers=headers or {})


NOT_FOUND = text(404, "There is nothing at this path.")
FAILED = text(500, "The hub failed to answer. It has written down why.")
LATE = text(408, "The request did not arrive in time.")
_BAD = text(400, "This is not a request the hub understands.")
_NO_HOST = text(400, "The request needs a Host header.")
_REPEATED = text(400, "A header that must be single was repeated.")
_HEAD_TOO_BIG = text(431, f"The request head is longer than {HEAD_BYTES_MAX} bytes.")
_BODY_TOO_BIG = text(413, f"The request body is longer than {BODY_BYTES_MAX} bytes.")
_VERSION = text(505, "The hub speaks HTTP/1.0 and HTTP/1.1.")


class Reader:
    """Collects the requests of one connection from its bytes.

    Reading ends for good in one of two ways: `failure` is what to answer after everything complete
    was answered, or `rest` holds the bytes behind an upgrade request, which is the last one.
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
        "failure",
        "rest",
        "wants_continue",
    )

    def __init__(self) -> None:
        self.failure: Response | None = None
        self.rest: bytes | None = None
        self.wants_continue = False
        self._complete: list[Request] = []
        self._unparsed_bytes = 0
        self._begin()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)

    @property
    def is_idle(self) -> bool:
        """Has nothing of a next request arrived?"""
        return self._is_in_head and not self._url and not self._unparsed_bytes

    def feed(self, data: bytes) -> list[Request]:
        """The requests that `data` completes, in order."""
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
        # The parser keeps an unfinished header to itself; these bytes stand for it.
        self._unparsed_bytes = (
            0 if complete or not self._is_in_head else self._unparsed_bytes + len(data)
        )
        if self._unparsed_bytes > HEAD_BYTES_MAX:
            self.failure = _HEAD_TOO_BIG
            self.stop()
        return complete

    def stop(self) -> None:
        """Read no more. The parser and its callbacks would keep each other alive."""
        self._parser = None

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._grow_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow_head(len(name) + len(value) + 4)
        if not self._is_in_head:
            return  # Trailers come too late to mean anything.
        key, given = name.decode("latin-1").lower(), value.decode("latin-1")
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
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(_VERSION)
        if "host" not in headers and version == "1.1":
            self._refuse(_NO_HOST)
        if int(headers.get("content-length", 0)) > BODY_BYTES_MAX:
            self._refuse(_BODY_TOO_BIG)
        if "expect" in headers:
            self.wants_continue = headers["expect"].lower() == "100-continue" and version == "1.1"

    def on_body(self, body: bytes) -> None:
        if len(self._body) + len(body) > BODY_BYTES_MAX:
            self._refuse(_BODY_TOO_BIG)
        self._body += body

    def on_message_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        path, _, query = self._target().partition("?")
        request = Request(
            parser.get_method().decode("latin-1"),
            path,
            query,
            self._headers,
            bytes(self._body),
            parser.get_http_version(),
            parser.should_keep_alive() and not parser.should_upgrade(),
        )
        self._complete.append(request)
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._head_bytes = 0
        self._is_in_head = True
        self.wants_continue = False

    def _target(self) -> str:
        """Path and query; proxies send whole addresses."""
        if self._url.startswith(b"/"):
            return self._url.decode("latin-1")
        try:
            url = httptools.parse_url(self._url)
        except httptools.HttpParserError:
            return self._url.decode("latin-1")
        return ((url.path or b"/") + b"?" + (url.query or b"")).decode("latin-1")

    def _grow_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(_HEAD_TOO_BIG)

    def _refuse(self, response: Response) -> None:
        """Stop the parser from inside one of its callbacks."""
        self.failure = response
        raise httptools.HttpParserError(response.status)
