"""A small HTTP/1.1 client: keep-alive connections to one hub, limited in number, size and time.

All requests made here are repeatable, so one that was sent on a kept connection the hub had already
closed is repeated at once on a new one. Redirects are not followed: they would send an inbox id to
a host the user did not name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from http import HTTPStatus
from socket import gaierror
from ssl import SSLCertVerificationError, SSLContext, SSLError
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools
import msgspec

from signalhub.client.transport.token import Token, bearer, current_token
from signalhub.wire.errors import OutcomeUnknown, Unavailable

CONNECTIONS_MAX = 8
HEAD_BYTES_MAX = 64 * 2**10
# The largest page of the largest ciphertexts that a hub accepts by default has 87 MB.
BODY_BYTES_MAX = 128 * 2**20
CLOSE_S = 1.0

_SECURE = {"http": False, "ws": False, "https": True, "wss": True}
_SOCKET_PATH = "/ws"
_OWN_HEADERS = "Accept: application/json\r\nUser-Agent: signalhub\r\n"


class Origin(msgspec.Struct, frozen=True):
    """Where a hub is. `prefix` is what a proxy adds before its paths, if anything."""

    is_secure: bool
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def of(cls, url: str) -> Origin:
        """Parse any URL of a hub; the path of its WebSocket is removed."""
        parts = urlsplit(url)
        if parts.scheme not in _SECURE or not parts.hostname:
            raise ValueError("a hub's URL looks like http://127.0.0.1:8787 or wss://hub.example/ws")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the URL must not carry a user name or password")
        if parts.query or parts.fragment:
            raise ValueError("the URL of a hub ends with its path; remove what follows it")
        is_secure = _SECURE[parts.scheme]
        prefix = parts.path.rstrip("/").removesuffix(_SOCKET_PATH)
        if not prefix.isascii() or not prefix.isprintable() or " " in prefix:
            raise ValueError("the path of a hub's URL has unusual characters; encode them")
        return cls(is_secure, parts.hostname, _port_of(parts, is_secure), prefix)

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def http_url(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://{self.netloc}{self.prefix}"

    @property
    def socket_url(self) -> str:
        return f"{'wss' if self.is_secure else 'ws'}://{self.netloc}{self.prefix}"


class HttpAnswer(msgspec.Struct, frozen=True):
    """An HTTP answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpClient:
    """Sends requests to one hub. Invariant: at most `connections_max` connections are open."""

    def __init__(
        self,
        origin: Origin,
        ssl: SSLContext | None = None,
        *,
        token: Token = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.origin = origin
        self._token = token
        self._ssl: SSLContext | bool | None = (ssl or True) if origin.is_secure else None
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(connections_max)
        self._is_closed = False

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = 30.0,
    ) -> HttpAnswer:
        """Send a request and return its answer, whatever its status.

        Raises:
            Unavailable: It was never sent.
            OutcomeUnknown: It was sent, and no answer arrived.
        """
        if self._is_closed:
            raise Unavailable("the hub was closed by this program")
        try:
            credentials = bearer(await current_token(self._token))
        except Exception as error:
            # The token function belongs to the caller and may raise anything.
            raise Unavailable(f"no token: {error}") from error
        payload = self._payload(method, target, {**credentials, **(headers or {})}, body)
        progress = _Progress()
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                return await self._exchange(payload, progress)
        except TimeoutError:
            text = f"no answer from {self.origin.http_url} within {timeout_s:.3g} s"
            raise progress.failure(text) from None
        except _Unreached as unreached:
            raise progress.failure(str(unreached)) from unreached
        except _Broken as broken:
            raise progress.failure(f"{self.origin.http_url}: {broken}") from broken

    async def close(self) -> None:
        """Close all connections. Can be called more than once."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        if idle:
            await asyncio.wait([connection.ended for connection in idle], timeout=CLOSE_S)

    async def _exchange(self, payload: bytes, progress: _Progress) -> HttpAnswer:
        while True:
            kept = self._kept()
            connection = kept or await self._connect()
            progress.is_sent = True
            try:
                answer = await connection.exchange(payload)
            except _Broken:
                connection.abort()
                if kept is None or connection.has_heard:
                    raise
                continue
            except BaseException:
                connection.abort()
                raise
            if connection.is_reusable and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.close()
            return answer

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        origin = self.origin
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(loop), origin.host, origin.port, ssl=self._ssl
            )
        except OSError as error:
            raise _Unreached(no_hub(origin.http_url, error)) from error
        return connection

    def _payload(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}\r\n")
        head = (
            f"{method} {self.origin.prefix}{target} HTTP/1.1\r\n"
            f"Host: {self.origin.netloc}\r\n{_OWN_HEADERS}{''.join(lines)}\r\n"
        )
        assert head.count("\n") == 5 + len(lines), "a header must not contain a line break"
        return head.encode("ascii") + (body or b"")


class _Broken(Exception):
    """The connection ended or was never established."""


class _Unreached(_Broken):
    """The connection could not be opened."""


class _Progress:
    """How far a request got, which decides what its failure means."""

    def __init__(self) -> None:
        self.is_sent = False

    def failure(self, text: str) -> Unavailable | OutcomeUnknown:
        return OutcomeUnknown(text) if self.is_sent else Unavailable(text)


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self.has_heard = False
        self.is_reusable = True
        self._loop = loop
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self._begin()

    def exchange(self, payload: bytes) -> asyncio.Future[HttpAnswer]:
        """Send a request and return its answer."""
        self.has_heard = False
        self._begin()
        self._parser = httptools.HttpResponseParser(self)
        self._answer = self._loop.create_future()
        if self.ended.done():
            self._fail("the connection was closed")
        else:
            self._transport.write(payload)
        return self._answer

    def close(self) -> None:
        self.is_reusable = False
        self._transport.close()

    def abort(self) -> None:
        self.is_reusable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_reusable = False
        # Without a length, the end of the connection is the end of the answer.
        if exc is None and self._is_in_body and not self._is_measured:
            self._finish()
        self._fail(f"the connection was lost: {exc}" if exc else "the hub closed the connection")
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.has_heard = True
        if self._parser is None:
            # No request is pending, so these bytes cannot be the answer to the next one.
            self.abort()
            return
        if not self._is_in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break_off(f"invalid HTTP answer: {error}")
            return
        if not self._is_in_body and self._parser is not None:
            self._check_head(self._head_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            return  # Trailers are not used.
        key, given = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {given}" if key in self._headers else given

    def on_headers_complete(self) -> None:
        self._is_in_body = True
        self._check_head(sum(len(name) + len(value) for name, value in self._headers.items()))
        self._is_measured = not {"content-length", "transfer-encoding"}.isdisjoint(self._headers)

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > BODY_BYTES_MAX:
            self._break_off(f"the answer is longer than {BODY_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._parser.get_status_code() < HTTPStatus.OK:
            self._begin()  # An interim answer; the final one follows.
            return
        self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
        self._finish()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._head_bytes = 0
        self._is_in_body = False
        self._is_measured = False

    def _finish(self) -> None:
        parser, self._parser = self._parser, None
        if parser is not None and self._answer is not None and not self._answer.done():
            status = parser.get_status_code()
            self._answer.set_result(HttpAnswer(status, self._headers, bytes(self._body)))
        self._is_in_body = False

    def _check_head(self, size: int) -> None:
        if size > HEAD_BYTES_MAX:
            self._break_off(f"the head of the answer is longer than {HEAD_BYTES_MAX} bytes")

    def _break_off(self, reason: str) -> None:
        self._fail(reason)
        self.abort()

    def _fail(self, reason: str) -> None:
        self._parser = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_Broken(reason))


def no_hub(url: str, error: Exception) -> str:
    """Return the error for a connection that could not be opened, in plain words."""
    match error:
        case ConnectionRefusedError():
            reason = "connection refused"
        case gaierror():
            reason = "unknown host name"
        case SSLCertVerificationError():
            reason = f"its certificate is not trusted: {error.verify_message}"
        case SSLError(reason=str(alert)) if alert.startswith(("TLSV1_", "SSLV3_ALERT_")):
            alert = alert.removeprefix("TLSV1_").removeprefix("SSLV3_").removeprefix("ALERT_")
            reason = f"it refuses the TLS handshake: {alert.replace('_', ' ').lower()}"
        case SSLError():
            reason = "it does not speak TLS"
        case OSError(errno=int(number)):
            reason = os.strerror(number).lower()
        case OSError():
            # One attempt per address of the name, and each failed differently.
            reason = "no connection can be made"
        case _:
            reason = str(error)
    return f"no hub at {url}: {reason}"


def _port_of(parts: SplitResult, is_secure: bool) -> int:
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port of a hub's URL is a number up to 65535") from None
    return (443 if is_secure else 80) if port is None else port
