"""Requests that are no requests: for the parser alone, and for a door with the room API behind it.

Invariant: the parser gives the same requests and the same end however the bytes are cut. A door
answers each request at most once and in valid HTTP, no handler fails, and nothing is left of a
connection when it has gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
import msgspec

from signalhub.server.port.door import Door
from signalhub.server.port.http import (
    BODY_BYTES_MAX,
    CONTINUE,
    HEAD_BYTES_MAX,
    HttpRequest,
    RequestReader,
    Response,
    Routes,
    text,
)
from signalhub.server.port.listener import READ_BYTES, Gatekeeper, Listener
from signalhub.server.rooms.api import Api
from signalhub.settings.model import RoomsSettings
from signalhub.testing import FakeClock
from signalhub.wire.room_ids import Names
from tests.fuzz.mutations import Damage
from tests.support.memory.doors import Wire
from tests.support.memory.rooms import WIDE
from tests.support.memory.write_path import HandLoop, Stage, Timer

INBOX: Final = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"
TARGETS: Final = [
    *("/", "/ws", "/health", "/api/v1/message", "/v1/inbox/append", "/v1/room/metadata"),
    *("/v1/inbox/messages", "/v1/inbox/messages?fromSeq=1&limit=10", "/v1/room/proposals"),
    *("/v1/room/proposals/p-1", "/v1/room/proposals/%41%ff", "/openapi.json", "*", "//", "/%00"),
    *("http://localhost/health", "http://[::1]:80/health?a=b", "http://evil/health", "/health?%zz"),
    *("/v1/inbox/messages?fromSeq=-1", "/v1/inbox/messages?fromSeq=1e9&limit=9" + "9" * 50),
]
METHODS: Final = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "CONNECT", "QUERY")
HEADERS: Final = [
    *("Connection: close", "Connection: keep-alive", "Connection: Upgrade", "Upgrade: websocket"),
    *("Upgrade: h2c", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 8", "Expect: x"),
    *("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Key: x", "Host: evil"),
    *("Sec-WebSocket-Protocol: signalhub.v1, token.a.b.c", "Origin: http://localhost:3000"),
    *("Origin: null", "Origin: https://evil.example", "Expect: 100-continue", "X-Room-ID: general"),
    *(f"X-Inbox-ID: {INBOX}", "X-Inbox-ID: a", "X-Pseudonym-ID: me", "X-Room-ID: \xff\x80"),
    *("If-Match: *", 'If-Match: "1"', "If-None-Match: *", "Authorization: Bearer a.b.c"),
    *("Content-Type: application/json", "Content-Type: text/plain", "Transfer-Encoding: chunked"),
    *("Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity", "Content-Length: 0"),
    *("Content-Length: 5", "Content-Length: -1", "Content-Length: 1" + "0" * 30, "Trailer: X"),
    *(f"Content-Length: {BODY_BYTES_MAX + 1}", "X-Forwarded-For: 1.2.3.4", "Folded: a\r\n b", ":"),
    *(
        "X" * 300 + ": y",
        "A: " + "b" * HEAD_BYTES_MAX,
        "Host: [::1]",
        "Host: localhost:99999",
        "é: é",
    ),
]
BODIES: Final[list[Any]] = [
    {"roomId": "general", "ciphertext": "QUJD"},
    {
        "roomId": "general",
        "tenantId": "acme",
        "messageId": "m-1",
        "ciphertext": "QUJD",
        "type": "message",
        "pseudonymId": "me",
    },
    {"messageId": "m1", "ciphertext": "QUJD"},
    {"roomId": "general", "type": "proposal", "proposalId": "p-1", "ciphertext": "QUJD"},
]
ODD: Final[list[Any]] = [
    *(None, True, 0, -1, 1.5, 1e308, 2**64, "", "x", "\0", "é", "a" * 300, "QUJ", "QUJD=", "????"),
    *([], {}, [[]], {"a": 1}, "general", "acme:general", "proposal", "commit", "welcome", "_", "-"),
]
_TEXT: Final = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
    ),
    *(
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/0.9",
        b"HTTP/2.0",
        b"GET / HTTP/1.1\r\n",
        b"\xff",
        b"%",
        b"?",
    ),
    *(b"Host: a\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"ffffffff\r\n"),
]


class Asker(Damage):
    """One to three requests in a row, in pieces."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, odd_text=_TEXT)

    def next(self) -> list[bytes]:
        data = b"".join(self._request() for _ in range(1 + self.below(3)))
        return self.pieces(self.damaged(data))

    def _request(self) -> bytes:
        method = self.pick(METHODS[: 3 if self.is_likely(0.8) else None])
        version = "1.1" if self.is_likely(0.95) else self.pick(("1.0", "0.9", "1.2", "2.0"))
        lines = [f"{method} {self.pick(TARGETS)} HTTP/{version}"]
        if self.is_likely(0.95):
            lines.append("Host: localhost")
        lines += [self.pick(HEADERS) for _ in range(self.below(5))]
        body = self._body() if method in ("POST", "PUT") else b""
        if body and self.is_likely(0.9):
            if self.is_likely(0.7):
                lines.append(f"Content-Length: {len(body)}")
            else:
                lines.append("Transfer-Encoding: chunked")
                body = self._chunks(body)
            lines.append("Content-Type: application/json")
            if self.is_likely(0.7):
                lines += [f"X-Inbox-ID: {INBOX}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def _body(self) -> bytes:
        value = self.pick(BODIES)
        for _ in range(self.below(3)):
            value = self.altered(value, ODD)
        if self.is_likely(0.01):
            depth = self.below(3_000)
            return b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        return self.damaged(msgspec.json.encode(value), 0.1)

    def _chunks(self, body: bytes) -> bytes:
        pieces = self.pieces(body)
        return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


def _reads(piece: bytes) -> list[bytes]:
    """As a door reads it."""
    return [piece[at : at + READ_BYTES] for at in range(0, len(piece), READ_BYTES)]


def _read(pieces: list[bytes]) -> tuple[list[HttpRequest], Response | None, bytes | None]:
    reader = RequestReader()
    requests: list[HttpRequest] = []
    reads = [read for piece in pieces for read in _reads(piece)]
    for number, read in enumerate(reads):
        requests += reader.feed(read)
        assert len(reader._body) <= BODY_BYTES_MAX
        # The header that was too much is counted, too.
        assert reader._head_bytes <= HEAD_BYTES_MAX + READ_BYTES + HEAD_BYTES_MAX
        assert reader._unparsed_bytes <= 2 * HEAD_BYTES_MAX
        if reader.rest is not None:
            return requests, None, reader.rest + b"".join(reads[number + 1 :])
    reader.stop()
    return requests, reader.failure, None


def read_requests(pieces: list[bytes]) -> None:
    """Cut or whole: the same requests, and the same end."""
    requests, failure, rest = _read(pieces)
    whole, its_failure, its_rest = _read([b"".join(pieces)])
    assert requests == whole
    assert rest == its_rest
    # A head that is not finished is measured read by read.
    if not any(one is not None and one.status == 431 for one in (failure, its_failure)):
        # Of two faults in one request, any may be reported.
        assert (failure is None) is (its_failure is None)


class Refusing:
    """A gatekeeper without a hub."""

    def admit(self, source: str) -> Response | None:
        return text(503, "Not here.")


class DoorLoop:
    """What a listener uses of its loop; whatever comes soon is done by the loop of the hub."""

    def __init__(self, loop: HandLoop, clock: FakeClock) -> None:
        self.call_soon = loop.call_soon
        self.time = clock.mono_s

    def call_at(self, when_s: float, callback: Callable[..., object], *args: Any) -> Timer:
        return Timer(when_s, callback, args)


class Answers:
    """Counts whole answers, and their status."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())


def _say_ok(request: HttpRequest) -> Response:
    return Response(200, b"ok")


class DoorTarget:
    """A hub with rooms behind a door; a new one now and then, because its log is kept in memory."""

    CASES: Final = 500

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self._left = 0

    def fire(self, pieces: list[bytes]) -> bytes:
        """Return everything that the door has sent."""
        if self._left == 0:
            self._open()
        self._left -= 1
        wire = Wire()
        door = Door(self._listener)
        door.connection_made(cast(asyncio.Transport, wire))
        for piece in pieces:
            if wire.is_reading and not wire.is_over:
                for read in _reads(piece):
                    door.get_buffer(-1)[: len(read)] = read
                    door.buffer_updated(len(read))
            self._stage.loop.run_dry()
        self._check(wire.sent, pieces)
        wire.abort()
        door.connection_lost(None)
        assert not self._listener.waiting
        assert not self._listener.choking()
        assert not len(self._listener.sources)
        return wire.sent

    def _open(self) -> None:
        self._left = self.CASES
        stage = Stage(rooms=RoomsSettings(**WIDE))
        stage.hub.rooms.use(Names(b"a key"))
        routes = Routes()
        Api(stage.hub, stage.runner, stage.clock).add_to(routes)
        routes.add("/health", _say_ok, is_for_any_host=True)
        listener = Listener(stage.hub.settings, routes, cast(Gatekeeper, Refusing()))
        listener._loop = cast(asyncio.AbstractEventLoop, DoorLoop(stage.loop, stage.clock))
        self._stage, self._listener = stage, listener

    def _check(self, sent: bytes, pieces: list[bytes]) -> None:
        """Answers are as many as there were requests, and one for what is none."""
        requests, failure, _ = _read([b"".join(pieces)])
        answers = Answers()
        heads = {number for number, one in enumerate(requests) if one.method == "HEAD"}
        if heads:
            # Their answers have a length and no body, which only the one who asked can know.
            return
        answers.feed(sent.replace(CONTINUE, b""))
        assert len(answers.statuses) <= len(requests) + (failure is not None)
        self.statuses.update(answers.statuses)
        assert 500 not in answers.statuses, "a handler failed"
