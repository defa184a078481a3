"""Requests from bytes, responses to bytes, routes, and who may become a WebSocket."""

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
    Routes,
)

GET = b"GET /health?a=1 HTTP/1.1\r\nHost: hub\r\n\r\n"
POST = b"POST /rooms HTTP/1.1\r\nHost: hub\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /rooms HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2\r\nlo\r\n0\r\nX-Trailer: late\r\n\r\n"
)
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


def test_request_has_its_parts() -> None:
    (request,), failure = read(head("Host: hub", "X-Name: Zoë", start="PUT /a/b?x=%20 HTTP/1.1"))

    assert failure is None
    assert request.method == "PUT"
    assert (request.path, request.query) == ("/a/b", "x=%20")
    assert request.headers == {"host": "hub", "x-name": "Zoë"}
    assert request.body == b""
    assert request.keep_alive


def test_body_comes_whole_with_a_length_or_in_chunks() -> None:
    for data in (POST, CHUNKED):
        (request,), failure = read(data)

        assert failure is None
        assert request.body == b"hello"


def test_trailers_are_no_headers_of_this_or_the_next_request() -> None:
    requests, failure = read(CHUNKED + GET)

    assert failure is None
    assert [set(request.headers) for request in requests] == [
        {"host", "transfer-encoding"},
        {"host"},
    ]


def test_pipelined_requests_come_in_order() -> None:
    requests, _ = read(GET + POST + CHUNKED + GET)

    assert [request.method for request in requests] == ["GET", "POST", "POST", "GET"]


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


def test_whole_address_as_target_is_a_path() -> None:
    (request,), _ = read(head("Host: hub", start="GET http://hub:80/health?x=1 HTTP/1.1"))

    assert (request.path, request.query) == ("/health", "x=1")


@pytest.mark.parametrize(
    ("start", "header", "keep_alive"),
    [
        ("GET / HTTP/1.1", "X: y", True),
        ("GET / HTTP/1.1", "Connection: close", False),
        ("GET / HTTP/1.0", "X: y", False),
        ("GET / HTTP/1.0", "Connection: keep-alive", True),
    ],
)
def test_keep_alive_is_the_default_of_the_version_or_what_was_asked(
    start: str, header: str, keep_alive: bool
) -> None:
    (request,), _ = read(head("Host: hub", header, start=start))

    assert request.keep_alive is keep_alive


def test_repeated_headers_are_joined() -> None:
    (request,), _ = read(head("Host: hub", "Accept: a", "accept: b"))

    assert request.headers["accept"] == "a, b"


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        head("Host: hub", "bad header"),
        head("Host: hub", "bad name: x"),
        head("Host: hub", "X: a\0b"),
        head(),
        head("Host: a", "Host: b"),
        head("Host: a", "Origin: http://a", "Origin: http://b"),
        head("Host: a", "Authorization: x", "authorization: y"),
        head("Host: a", "Content-Length: 1", "Content-Length: 2"),
        head("Host: a", "Content-Length: -1"),
        head("Host: a", "Content-Length: one"),
        head("Host: a", "Content-Length: 1", "Transfer-Encoding: chunked"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_malformed_requests_are_refused(data: bytes) -> None:
    requests, failure = read(data)

    assert requests == []
    assert failure == 400


def test_good_requests_in_front_of_a_bad_one_still_count() -> None:
    requests, failure = read(GET + b"nonsense\r\n\r\n")

    assert len(requests) == 1
    assert failure == 400


def test_other_versions_of_http_are_refused() -> None:
    assert read(head("Host: hub", start="GET / HTTP/2.0"))[1] == 505


def test_host_may_be_missing_in_http_1_0_only() -> None:
    assert read(head(start="GET / HTTP/1.0"))[1] is None
    assert read(head(start="GET / HTTP/1.1"))[1] == 400


def test_head_over_the_limit_is_refused() -> None:
    fits = head("Host: hub", "X: " + "x" * (HEAD_BYTES_MAX - 100))
    assert read(fits)[1] is None
    assert read(head("Host: hub", "X: " + "x" * HEAD_BYTES_MAX))[1] == 431
    assert read(head("Host: hub", *[f"X-{n}: 0123456789" for n in range(1_200)]))[1] == 431
    assert read(head("Host: hub", start=f"GET /{'x' * HEAD_BYTES_MAX} HTTP/1.1"))[1] == 431


def test_head_that_never_ends_is_refused_while_it_grows() -> None:
    reader = RequestReader()
    fed = 0
    reader.feed(b"GET / HTTP/1.1\r\nHost: hub\r\nX: ")
    while reader.failure is None:
        assert fed <= 2 * HEAD_BYTES_MAX
        reader.feed(b"x" * 500)
        fed += 500

    assert reader.failure.status == 431


def test_long_body_in_front_does_not_count_as_head() -> None:
    reader = RequestReader()
    long = b"POST / HTTP/1.1\r\nHost: hub\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000

    assert len(reader.feed(long + GET[:10])) == 1
    assert len(reader.feed(GET[10:])) == 1
    assert reader.failure is None


def test_body_over_the_limit_is_refused_by_its_length_or_as_it_grows() -> None:
    announced = head("Host: hub", f"Content-Length: {BODY_BYTES_MAX + 1}", start="POST / HTTP/1.1")
    chunked = head("Host: hub", "Transfer-Encoding: chunked", start="POST / HTTP/1.1")
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"

    assert read(announced)[1] == 413
    assert read(chunked + chunk + chunk)[1] is None
    assert read(chunked + chunk + chunk + b"1\r\nx\r\n")[1] == 413


def test_nothing_is_read_after_a_refusal() -> None:
    reader = RequestReader()
    reader.feed(b"nonsense\r\n\r\n")

    assert reader.feed(GET) == []


def test_expectation_is_known_until_the_body_came() -> None:
    reader = RequestReader()
    reader.feed(
        head("Host: hub", "Expect: 100-continue", "Content-Length: 2", start="PUT / HTTP/1.1")
    )
    assert reader.wants_continue

    (request,) = reader.feed(b"ok")

    assert request.body == b"ok"
    assert not reader.wants_continue


def test_upgrade_ends_reading_and_keeps_the_rest() -> None:
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
        b"nonsense\r\n\r\n",
        head("Host: a", "Host: b"),
        b"GET /" + b"x" * (HEAD_BYTES_MAX + 1),
    ],
)
def test_reader_that_ended_is_freed_without_the_garbage_collector(data: bytes) -> None:
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


def test_reader_is_idle_only_between_requests() -> None:
    reader = RequestReader()
    assert reader.is_idle
    reader.feed(GET[:3])
    assert not reader.is_idle
    reader.feed(GET[3:])
    assert reader.is_idle
    reader.feed(POST[:-1])
    assert not reader.is_idle


def test_response_has_length_type_and_date() -> None:
    data = Response(200, b"{}", "application/json", {"X-Extra": "1"}).to_bytes(keep_alive=True)
    lines = data.split(b"\r\n")

    assert lines[0] == b"HTTP/1.1 200 OK"
    assert lines[-2:] == [b"", b"{}"]
    assert {b"Content-Length: 2", b"Content-Type: application/json", b"X-Extra: 1"} < set(lines)
    assert b"Connection: keep-alive" in lines
    assert any(line.startswith(b"Date: ") and line.endswith(b" GMT") for line in lines)


def test_answer_to_head_keeps_the_length_and_loses_the_body() -> None:
    response = Response(200, b"hello")

    whole, bare = response.to_bytes(True), response.to_bytes(True, head_only=True)

    assert b"Content-Length: 5\r\n" in bare
    assert bare.endswith(b"\r\n\r\n")
    assert whole.endswith(b"\r\n\r\nhello")


def test_no_content_has_no_length() -> None:
    data = Response(204).to_bytes(keep_alive=False)

    assert b"Content-" not in data
    assert b"Connection: close\r\n" in data


def test_header_with_a_line_break_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="line break"):
        Response(200, headers={"Location": "/\r\nSet-Cookie: a=b"}).to_bytes(keep_alive=True)


def test_routes_compare_paths_exactly() -> None:
    routes = Routes()

    def health(request: HttpRequest) -> Response:
        return Response(200)

    routes.add("/health", health)
    found = routes.find("/health")

    assert found is not None
    assert found[0].handler is health
    assert routes.find("/health/") is None
    assert routes.find("/HEALTH") is None


def upgrade(method: str = "GET", version: str = "1.1", **changed: str | None) -> HttpRequest:
    headers = dict(UPGRADE_HEADERS)
    for name, value in changed.items():
        key = name.replace("_", "-")
        if value is None:
            del headers[key]
        else:
            headers[key] = value
    return HttpRequest(method, "/ws", "", headers, version=version)


def test_proper_upgrade_is_not_refused() -> None:
    for request in (
        upgrade(),
        upgrade(connection="keep-alive, Upgrade"),
        upgrade(upgrade="WebSocket"),
        upgrade(sec_websocket_protocol="chat", sec_websocket_extensions="permessage-deflate"),
    ):
        assert door.wants_websocket(request)
        assert door.handshake_refusal(request) is None


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (upgrade("POST"), 400),
        (upgrade(version="1.0"), 400),
        (upgrade(connection=None), 400),
        (upgrade(connection="close"), 400),
        (upgrade(connection="upgraded"), 400),
        (upgrade(transfer_encoding="chunked"), 400),
        (upgrade(sec_websocket_key=None), 400),
        (upgrade(sec_websocket_key=""), 400),
        (upgrade(sec_websocket_key="c2hvcnQ="), 400),
        (upgrade(sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ=!"), 400),
        (upgrade(sec_websocket_key="dGhlIHNhbXBsZSBub25jZQé="), 400),
        (upgrade(sec_websocket_key="dGhlIHNhbXBsZSBub25jZSE="), 400),
        (upgrade(sec_websocket_version=None), 426),
        (upgrade(sec_websocket_version="8"), 426),
        (upgrade(sec_websocket_version="13, 8"), 426),
    ],
)
def test_improper_upgrade_is_refused(request_: HttpRequest, status: int) -> None:
    refusal = door.handshake_refusal(request_)

    assert refusal is not None
    assert refusal.status == status
    assert (status == 426) == (refusal.headers.get("Sec-WebSocket-Version") == "13")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://localhost", True),
        ("http://localhost:3000", True),
        ("HTTPS://LOCALHOST:8443", True),
        ("http://127.0.0.1:5173", True),
        ("http://127.8.9.10", True),
        ("http://[::1]:8080", True),
        ("null", False),
        ("", False),
        ("http://example.org", False),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1.example.org", False),
        ("http://128.0.0.1", False),
        ("http://[::2]", False),
        ("http://localhost/path", False),
        ("http://user@localhost", False),
        ("http://example.org#http://localhost", False),
        ("http://localhost:port", False),
        ("file://", False),
        ("file://localhost", False),
        ("localhost", False),
        ("http://localhost http://example.org", False),
    ],
)
def test_without_a_list_only_loopback_origins_may_connect(
    origin: str | None, allowed: bool
) -> None:
    assert door.origin_allowed(origin, ()) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("https://app.example.org", True),
        ("https://app.example.org:443", True),
        ("HTTPS://App.Example.ORG", True),
        ("http://app.example.org:8080", True),
        ("https://app.example.org:8443", False),
        ("http://app.example.org", False),
        ("https://example.org", False),
        ("https://app.example.org.evil.test", False),
        ("https://app.example.org/", False),
        ("http://localhost", False),
        ("null", False),
    ],
)
def test_with_a_list_only_its_members_may_connect(origin: str | None, allowed: bool) -> None:
    listed = ("https://app.example.org", "http://app.example.org:8080", "null", "nonsense")

    assert door.origin_allowed(origin, listed) is allowed
