"""Requests from bytes, responses to bytes, and who may become a WebSocket."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.server.port import door
from signalhub.server.port.http import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    HttpRequest,
    RequestReader,
    Response,
)

GET = b"GET /health?a=1 HTTP/1.1\r\nHost: hub\r\n\r\n"
POST = b"POST /rooms HTTP/1.1\r\nHost: hub\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /rooms HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2\r\nlo\r\n0\r\nX-Trailer: late\r\n\r\n"
)
NONSENSE = b"nonsense\r\n\r\n"
UPGRADE_HEADERS = {
    "host": "hub",
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def read(data: bytes) -> tuple[list[HttpRequest], int | None]:
    """The requests in `data` and the status of the refusal that ended it, if any."""
    reader = RequestReader()
    requests = reader.feed(data)
    return requests, reader.failure.status if reader.failure else None


def head(*lines: str, start: str = "GET / HTTP/1.1") -> bytes:
    return "\r\n".join((start, *lines, "", "")).encode("latin-1")


def test_a_request_has_its_parts() -> None:
    lines = ("Host: hub", "X-Name: Zoë", "Accept: a", "accept: b")
    (request,), failure = read(head(*lines, start="PUT /a/b?x=%20 HTTP/1.1"))

    assert failure is None
    assert (request.method, request.path, request.query) == ("PUT", "/a/b", "x=%20")
    assert request.headers == {"host": "hub", "x-name": "Zoë", "accept": "a, b"}
    assert (request.body, request.keep_alive) == (b"", True)
    (whole,), _ = read(head("Host: hub", start="GET http://hub:80/health?x=1 HTTP/1.1"))
    assert (whole.path, whole.query) == ("/health", "x=1")


def test_pipelined_requests_come_in_order_with_bodies_and_without_trailers() -> None:
    requests, failure = read(GET + POST + CHUNKED + GET)

    assert failure is None
    assert [(one.method, one.body) for one in requests] == [
        *(("GET", b""), ("POST", b"hello"), ("POST", b"hello"), ("GET", b"")),
    ]
    assert [set(one.headers) for one in requests[2:]] == [{"host", "transfer-encoding"}, {"host"}]


@given(st.lists(st.integers(1, 40), max_size=20))
def test_reading_does_not_depend_on_how_bytes_are_cut(sizes: list[int]) -> None:
    data = GET + POST + CHUNKED + GET
    reader, at = RequestReader(), 0
    requests: list[HttpRequest] = []
    for size in [*sizes, len(data)]:
        requests += reader.feed(data[at : at + size])
        at += size

    assert reader.failure is None
    assert requests == read(data)[0]


@pytest.mark.parametrize(
    ("version", "header", "keep_alive"),
    [
        ("1.1", "X: y", True),
        ("1.1", "Connection: close", False),
        ("1.0", "X: y", False),
        ("1.0", "Connection: keep-alive", True),
    ],
)
def test_keep_alive_is_the_default_of_the_version_or_what_was_asked(
    version: str, header: str, keep_alive: bool
) -> None:
    (request,), _ = read(head("Host: hub", header, start=f"GET / HTTP/{version}"))

    assert request.keep_alive is keep_alive


LONG = "x" * HEAD_BYTES_MAX
POST_LINE = "POST / HTTP/1.1"
CHUNK = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
CHUNKED_HEAD = head("Host: hub", "Transfer-Encoding: chunked", start=POST_LINE)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (head("Host: hub", "bad header"), 400),
        (head("Host: hub", "bad name: x"), 400),
        (head("Host: hub", "X: a\0b"), 400),
        (head(), 400),
        (head("Host: a", "Host: b"), 400),
        (head("Host: a", "Origin: http://a", "Origin: http://b"), 400),
        (head("Host: a", "Authorization: x", "authorization: y"), 400),
        (head("Host: a", "Content-Length: 1", "Content-Length: 2"), 400),
        (head("Host: a", "Content-Length: -1"), 400),
        (head("Host: a", "Content-Length: one"), 400),
        (head("Host: a", "Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (head("Host: hub", start="GET / HTTP/2.0"), 505),
        (head(start="GET / HTTP/1.0"), None),
        (head("Host: hub", "X: " + LONG[100:]), None),
        (head("Host: hub", "X: " + LONG), 431),
        (head("Host: hub", *[f"X-{n}: 0123456789" for n in range(1_200)]), 431),
        (head("Host: hub", start=f"GET /{LONG} HTTP/1.1"), 431),
        (head("Host: hub", f"Content-Length: {BODY_BYTES_MAX + 1}", start=POST_LINE), 413),
        (CHUNKED_HEAD + CHUNK + CHUNK, None),
        (CHUNKED_HEAD + CHUNK + CHUNK + b"1\r\nx\r\n", 413),
    ],
    ids=lambda value: str(value)[:50],
)
def test_malformed_and_oversized_requests_are_refused(data: bytes, status: int | None) -> None:
    before, failure = read(GET + data)

    assert len(before) == 1 or status is None, "good requests in front of it still count"
    assert failure == status


def test_a_head_that_never_ends_is_refused_while_it_grows() -> None:
    reader = RequestReader()
    fed = 0
    reader.feed(b"GET / HTTP/1.1\r\nHost: hub\r\nX: ")
    while reader.failure is None:
        assert fed <= 2 * HEAD_BYTES_MAX
        reader.feed(b"x" * 500)
        fed += 500

    assert reader.failure.status == 431
    assert reader.feed(GET) == [], "nothing is read after a refusal"


def test_a_long_body_in_front_does_not_count_as_head() -> None:
    reader = RequestReader()
    long = head("Host: hub", "Content-Length: 50000", start=POST_LINE) + b"x" * 50_000

    assert len(reader.feed(long + GET[:10])) == 1
    assert len(reader.feed(GET[10:])) == 1
    assert reader.failure is None


def test_an_expectation_is_known_until_the_body_came() -> None:
    reader = RequestReader()
    reader.feed(head("Host: hub", "Expect: 100-continue", "Content-Length: 2", start=POST_LINE))
    assert reader.wants_continue

    (request,) = reader.feed(b"ok")

    assert request.body == b"ok"
    assert not reader.wants_continue


def test_an_upgrade_ends_reading_and_keeps_the_rest() -> None:
    reader = RequestReader()
    data = head("Host: hub", "Connection: keep-alive, Upgrade", "Upgrade: websocket")

    (request,) = reader.feed(data + b"\x81\x80rest")

    assert reader.rest == b"\x81\x80rest"
    assert not request.keep_alive
    assert reader.feed(GET) == []


@pytest.mark.parametrize(
    "data",
    [
        head("Host: hub", "Connection: Upgrade", "Upgrade: websocket"),
        NONSENSE,
        head("Host: a", "Host: b"),
        b"GET /" + b"x" * (HEAD_BYTES_MAX + 1),
    ],
    ids=["upgrade", "nonsense", "two hosts", "long head"],
)
def test_a_reader_that_ended_is_freed_without_the_garbage_collector(data: bytes) -> None:
    gc.collect()
    gc.disable()
    # What is found is kept to be looked at: other threads of the process leave garbage, too.
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        RequestReader().feed(data)
        gc.collect()
        assert not [one for one in gc.garbage if isinstance(one, RequestReader)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_reader_is_idle_only_between_requests() -> None:
    reader = RequestReader()
    idle = [reader.is_idle]
    for piece in (GET[:3], GET[3:], POST[:-1]):
        reader.feed(piece)
        idle.append(reader.is_idle)

    assert idle == [True, False, True, False]


def test_a_response_has_length_type_and_date() -> None:
    response = Response(200, b"{}", "application/json", {"X-Extra": "1"})
    lines = response.to_bytes(keep_alive=True).split(b"\r\n")

    assert lines[0] == b"HTTP/1.1 200 OK"
    assert lines[-2:] == [b"", b"{}"]
    assert {b"Content-Length: 2", b"Content-Type: application/json", b"X-Extra: 1"} < set(lines)
    assert b"Connection: keep-alive" in lines
    assert any(line.startswith(b"Date: ") and line.endswith(b" GMT") for line in lines)
    assert response.to_bytes(True, head_only=True).split(b"\r\n") == [*lines[:-1], b""]
    empty = Response(204).to_bytes(keep_alive=False)
    assert b"Content-" not in empty
    assert b"Connection: close\r\n" in empty


def test_a_header_with_a_line_break_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="line break"):
        Response(200, headers={"Location": "/\r\nSet-Cookie: a=b"}).to_bytes(keep_alive=True)


def upgrade(method: str = "GET", version: str = "1.1", **changed: str | None) -> HttpRequest:
    changes = {name.replace("_", "-"): value for name, value in changed.items()}
    headers = {
        name: value for name, value in (UPGRADE_HEADERS | changes).items() if value is not None
    }
    return HttpRequest(method, "/ws", "", headers, version=version)


KEYS = ("", "c2hvcnQ=", *(f"dGhlIHNhbXBsZSBub25jZ{end}" for end in ("Q=!", "Qé=", "SE=")))


@pytest.mark.parametrize(
    ("status", "requests"),
    [
        (
            None,
            [upgrade(), upgrade(connection="keep-alive, Upgrade"), upgrade(upgrade="WebSocket")],
        ),
        (None, [upgrade(sec_websocket_protocol="chat", sec_websocket_extensions="deflate")]),
        (400, [upgrade("POST"), upgrade(version="1.0"), upgrade(transfer_encoding="chunked")]),
        (400, [upgrade(connection=value) for value in (None, "close", "upgraded")]),
        (400, [upgrade(sec_websocket_key=key) for key in (None, *KEYS)]),
        (426, [upgrade(sec_websocket_version=version) for version in (None, "8", "13, 8")]),
    ],
    ids=["usual", "with offers", "request", "connection", "key", "version"],
)
def test_only_a_proper_upgrade_is_accepted(status: int | None, requests: list[HttpRequest]) -> None:
    for request in requests:
        refusal = door.handshake_refusal(request)

        assert door.wants_websocket(request)
        assert (refusal.status if refusal else None) == status
        if refusal:
            assert (status == 426) == (refusal.headers.get("Sec-WebSocket-Version") == "13")


LISTED = ("https://app.example.org", "http://app.example.org:8080", "null", "nonsense")


@pytest.mark.parametrize(
    ("listed", "allowed", "refused"),
    [
        pytest.param(
            (),
            [
                *(None, "http://localhost", "http://localhost:3000", "HTTPS://LOCALHOST:8443"),
                *("http://127.0.0.1:5173", "http://127.8.9.10", "http://[::1]:8080"),
            ],
            [
                *("null", "", "http://example.org", "http://localhost.example.org"),
                *("http://127.0.0.1.example.org", "http://128.0.0.1", "http://[::2]"),
                *("http://localhost/path", "http://user@localhost", "http://localhost:port"),
                *("http://example.org#http://localhost", "file://", "file://localhost"),
                *("localhost", "http://localhost http://example.org"),
            ],
            id="loopback without a list",
        ),
        pytest.param(
            LISTED,
            [
                *(None, "https://app.example.org", "https://app.example.org:443"),
                *("HTTPS://App.Example.ORG", "http://app.example.org:8080"),
            ],
            [
                *("https://app.example.org:8443", "http://app.example.org", "https://example.org"),
                *("https://app.example.org.evil.test", "https://app.example.org/"),
                *("http://localhost", "null"),
            ],
            id="members of a list",
        ),
    ],
)
def test_only_some_origins_may_connect(
    listed: tuple[str, ...], allowed: list[str | None], refused: list[str]
) -> None:
    assert [one for one in allowed if not door.origin_allowed(one, listed)] == []
    assert [one for one in refused if door.origin_allowed(one, listed)] == []
