"""The front door on a real port: HTTP beside WebSocket, refusals, deadlines, and letting go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import picows
import pytest

from signalhub.server.port.door import Door
from signalhub.server.port.http import BODY_BYTES_MAX, HEAD_BYTES_MAX, HttpRequest, Response, Routes
from signalhub.server.port.listener import Listener, at_capacity, listen, too_many_connections
from signalhub.settings.model import Settings
from signalhub.wire.frames import CloseCode

HEALTH = b"GET /health HTTP/1.1\r\nHost: hub\r\n\r\n"
UPGRADE_LINES = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
BIG = b"x" * (16 * 2**20)
SOON_S = 0.2
LATER_S = 20.0


class Doorstep(picows.WSListener):
    """A session that opens its door when told `hello` and says everything back."""

    def __init__(self, door: Door) -> None:
        self.door: Door | None = door
        self.transport: picows.WSTransport
        self.is_gone = asyncio.Event()

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        if payload == b"hello" and self.door is not None:
            self.door.opened()
            self.door = None
        transport.send(picows.WSMsgType.TEXT, payload)

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self.is_gone.set()


class Porter:
    """A gatekeeper that remembers whom it let in and refuses when told to."""

    def __init__(self) -> None:
        self.refusal: Response | None = None
        self.sessions: list[Doorstep] = []

    def admit(self) -> Response | None:
        return self.refusal

    def accept(self, door: Door) -> picows.WSListener:
        self.sessions.append(Doorstep(door))
        return self.sessions[-1]


class Desk:
    """Routes for the tests; `/slow` answers when its event is set."""

    def __init__(self) -> None:
        self.slow_may_answer = asyncio.Event()
        self.slow_began = asyncio.Event()
        self.routes = Routes()
        for name in ("health", "echo", "slow", "broken", "broken_later", "bad_header", "big"):
            self.routes.add(f"/{name}", getattr(self, name))

    def health(self, request: HttpRequest) -> Response:
        return Response(200, b"ok")

    def echo(self, request: HttpRequest) -> Response:
        return Response(200, request.query.encode() + request.body)

    async def slow(self, request: HttpRequest) -> Response:
        self.slow_began.set()
        await self.slow_may_answer.wait()
        return Response(200, b"slow")

    def broken(self, request: HttpRequest) -> Response:
        raise RuntimeError("a secret detail")

    async def broken_later(self, request: HttpRequest) -> Response:
        raise RuntimeError("a secret detail")

    def bad_header(self, request: HttpRequest) -> Response:
        return Response(200, headers={"X": "a\nb"})

    def big(self, request: HttpRequest) -> Response:
        return Response(200, BIG)


class Hub:
    """The listener and everything behind it."""

    def __init__(self, listener: Listener, porter: Porter, desk: Desk) -> None:
        self.listener = listener
        self.porter = porter
        self.desk = desk


@asynccontextmanager
async def run(
    hello_s: float = LATER_S, hello_bytes_max: int = 4096, origins: Iterable[str] = ()
) -> AsyncIterator[Hub]:
    porter, desk = Porter(), Desk()
    settings = Settings(
        port=0, hello_s=hello_s, hello_bytes_max=hello_bytes_max, origins=tuple(origins)
    )
    hub = Hub(await listen(settings, desk.routes, porter), porter, desk)
    try:
        yield hub
    finally:
        await hub.listener.close()
    await until_gone(hub)


class Client:
    """A socket with the few reads the tests need."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("Content-Length", 0)) if has_body else 0
        return int(start.split()[1]), headers, await self.reader.readexactly(length)

    async def status(self) -> int:
        return (await self.response())[0]

    async def frame(self) -> tuple[int, bytes]:
        first, length = await self.reader.readexactly(2)
        if length == 126:
            length = int.from_bytes(await self.reader.readexactly(2), "big")
        return first & 0x0F, await self.reader.readexactly(length)

    async def close_code(self) -> tuple[int, str]:
        opcode, payload = await self.frame()
        assert opcode == 8
        return int.from_bytes(payload[:2], "big"), payload[2:].decode()

    async def is_at_end(self) -> bool:
        return await self.reader.read(1) == b""


@asynccontextmanager
async def connect(hub: Hub, host: str = "127.0.0.1") -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(host, hub.listener.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request(*lines: str, target: str = "/ws", method: str = "GET", version: str = "1.1") -> bytes:
    start = f"{method} {target} HTTP/{version}"
    return "\r\n".join((start, "Host: hub", *lines, "", "")).encode()


UPGRADE = request(*UPGRADE_LINES)


def frame(payload: bytes) -> bytes:
    """A masked text frame whose mask happens to be zero."""
    assert len(payload) < 65_536
    length = len(payload)
    size = bytes((0x80 | length,)) if length < 126 else b"\xfe" + length.to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + payload


async def until_gone(hub: Hub) -> None:
    """Until the hub has noticed that everybody left."""
    for _ in range(2_000):
        if not hub.listener.doors and all(door.is_gone.is_set() for door in hub.porter.sessions):
            return
        await asyncio.sleep(0.005)
    pytest.fail("some connections are still there")


@pytest.mark.parametrize(
    ("method", "target", "lines", "status"),
    [
        ("GET", "/health", (), 200),
        ("POST", "/health?x=1", (), 200),
        ("GET", "/health", UPGRADE_LINES, 200),
        ("GET", "/health/", (), 404),
        ("GET", "/ws/", UPGRADE_LINES, 404),
        ("GET", "/nothing", (), 404),
        ("GET", "/nothing", UPGRADE_LINES, 404),
        ("OPTIONS", "*", (), 404),
        ("GET", "/ws", (), 426),
        ("GET", "/", (), 426),
        ("POST", "/ws", (), 426),
        ("GET", "/ws", ("Upgrade: h2c", "Connection: Upgrade"), 426),
        ("GET", "/ws", UPGRADE_LINES, 101),
        ("GET", "/", UPGRADE_LINES, 101),
        ("GET", "/ws?token=1&x", UPGRADE_LINES, 101),
        ("GET", "http://hub/ws", UPGRADE_LINES, 101),
        ("GET", "/ws", ("Origin: http://localhost:3000", *UPGRADE_LINES), 101),
        ("GET", "/ws", ("Sec-WebSocket-Protocol: chat", *UPGRADE_LINES), 101),
        ("GET", "/ws", ("Origin: https://example.org", *UPGRADE_LINES), 403),
        ("GET", "/ws", ("Origin: null", *UPGRADE_LINES), 403),
        ("POST", "/ws", UPGRADE_LINES, 400),
        ("GET", "/ws", UPGRADE_LINES[:1] + UPGRADE_LINES[2:], 400),
        ("GET", "/ws", UPGRADE_LINES[:3], 400),
        ("GET", "/ws", (*UPGRADE_LINES[:2], UPGRADE_LINES[3], "Sec-WebSocket-Version: 12"), 426),
    ],
)
async def test_each_request_gets_the_answer_of_its_kind(
    method: str, target: str, lines: tuple[str, ...], status: int
) -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request(*lines, method=method, target=target))

        assert await client.status() == status


async def test_upgrade_required_says_to_what() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request())
        _, headers, body = await client.response()

    assert headers["Upgrade"] == "websocket"
    assert headers["Connection"] == "Upgrade, keep-alive"
    assert body


async def test_handshake_selects_no_protocol_and_no_extension() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(
            request(
                "Sec-WebSocket-Protocol: chat, superchat",
                "Sec-WebSocket-Extensions: permessage-deflate",
                *UPGRADE_LINES,
            )
        )
        status, headers, _ = await client.response()

    assert status == 101
    assert headers == {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
    }


async def test_listed_origin_may_connect_and_loopback_then_may_not() -> None:
    async with run(origins=["https://app.example.org"]) as hub:
        for origin, status in (("https://app.example.org:443", 101), ("http://localhost", 403)):
            async with connect(hub) as client:
                client.send(request(f"Origin: {origin}", *UPGRADE_LINES))
                assert await client.status() == status


async def test_too_many_connections_are_told_when_to_return() -> None:
    async with run() as hub, connect(hub) as client:
        hub.porter.refusal = too_many_connections(retry_after_s=2, limit=100, remaining=0)
        client.send(UPGRADE)
        status, headers, _ = await client.response()

        assert status == 429
        assert headers["Retry-After"] == "2"
        assert headers["X-RateLimit-Limit"] == "100"
        assert headers["X-RateLimit-Remaining"] == "0"
        assert headers["Connection"] == "close"
        assert await client.is_at_end()
    assert hub.porter.sessions == []


async def test_full_hub_tells_how_full_it_is() -> None:
    async with run() as hub, connect(hub) as client:
        hub.porter.refusal = at_capacity(0.9512)
        client.send(UPGRADE)
        status, headers, _ = await client.response()

    assert status == 503
    assert headers["Retry-After"] == "60"
    assert headers["X-Capacity-Utilization"] == "0.951"


async def test_gatekeeper_is_not_asked_about_requests_that_fail_anyway() -> None:
    async with run() as hub, connect(hub) as client:
        hub.porter.refusal = at_capacity(1.0)
        client.send(request("Origin: http://example.org", *UPGRADE_LINES))

        assert await client.status() == 403
        assert hub.listener.refusals == {"origin": 1}


async def test_failing_gatekeeper_is_a_500_and_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run() as hub, connect(hub) as client:
        hub.porter.accept = None  # type: ignore[method-assign, assignment]
        client.send(UPGRADE)

        assert await client.status() == 500
        assert await client.is_at_end()
    assert "the gatekeeper failed" in caplog.text


async def test_requests_share_a_connection_and_are_answered_in_order() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request(target="/slow") + request(target="/echo?second") + HEALTH)
        await hub.desk.slow_began.wait()
        hub.desk.slow_may_answer.set()

        bodies = [(await client.response())[2] for _ in range(3)]
        client.send(HEALTH)
        bodies.append((await client.response())[2])

    assert bodies == [b"slow", b"second", b"ok", b"ok"]


async def test_upgrade_may_follow_other_requests() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request(target="/slow") + UPGRADE + frame(b"hello"))
        await hub.desk.slow_began.wait()
        hub.desk.slow_may_answer.set()

        assert await client.status() == 200
        assert await client.status() == 101
        assert await client.frame() == (1, b"hello")


async def test_head_is_answered_without_a_body() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request(target="/health", method="HEAD") + HEALTH)
        status, headers, _ = await client.response(has_body=False)

        assert (status, headers["Content-Length"]) == (200, "2")
        assert (await client.response())[2] == b"ok"


async def test_old_clients_and_those_that_ask_are_disconnected_after_the_answer() -> None:
    async with run() as hub:
        for data in (
            request(target="/health", version="1.0"),
            request("Connection: close", target="/health"),
        ):
            async with connect(hub) as client:
                client.send(data)
                status, headers, _ = await client.response()

                assert status == 200
                assert headers["Connection"] == "close"
                assert await client.is_at_end()


async def test_client_that_half_closes_still_gets_every_answer() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request(target="/slow") + HEALTH)
        client.writer.write_eof()
        await hub.desk.slow_began.wait()
        hub.desk.slow_may_answer.set()

        assert (await client.response())[2] == b"slow"
        assert (await client.response())[2] == b"ok"
        assert await client.is_at_end()


async def test_body_is_asked_for_when_the_client_waits() -> None:
    async with run() as hub, connect(hub) as client:
        lines = ("Content-Length: 4", "Expect: 100-continue")
        client.send(request(*lines, target="/echo", method="POST"))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"body")

        assert (await client.response())[2] == b"body"


async def test_body_too_long_is_refused_before_it_is_sent() -> None:
    async with run() as hub, connect(hub) as client:
        lines = (f"Content-Length: {BODY_BYTES_MAX + 1}", "Expect: 100-continue")
        client.send(request(*lines, target="/echo", method="POST"))

        assert await client.status() == 413
        assert await client.is_at_end()


async def test_refusal_arrives_though_the_client_is_still_sending() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request("Transfer-Encoding: chunked", target="/echo", method="POST"))
        for _ in range(8):
            client.send(b"100000\r\n" + bytes(0x100000) + b"\r\n")
        await client.writer.drain()

        assert await client.status() == 413
        assert await client.is_at_end()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (request("X: " + "x" * HEAD_BYTES_MAX, target="/health"), 431),
        (b"GET /" + b"x" * (HEAD_BYTES_MAX + 1), 431),
    ],
)
async def test_bad_requests_are_refused_and_disconnected(data: bytes, status: int) -> None:
    async with run() as hub:
        async with connect(hub) as client:
            client.send(HEALTH + data)

            assert await client.status() == 200
            assert await client.status() == status
            assert await client.is_at_end()
        await until_gone(hub)

    assert hub.listener.refusals == {"bad_request": 1}


@pytest.mark.parametrize("path", ["/broken", "/broken_later", "/bad_header"])
async def test_failing_route_is_a_500_without_details_and_the_connection_lives(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request(target=path) + HEALTH)
        status, _, body = await client.response()

        assert status == 500
        assert b"secret" not in body
        assert await client.status() == 200
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].exc_info


async def test_client_that_leaves_during_a_slow_answer_harms_nobody() -> None:
    async with run() as hub:
        async with connect(hub) as client:
            client.send(request(target="/slow"))
            await hub.desk.slow_began.wait()
            client.writer.transport.abort()
        hub.desk.slow_may_answer.set()
        async with connect(hub) as client:
            client.send(HEALTH)
            assert await client.status() == 200
        await until_gone(hub)


async def test_client_that_does_not_read_is_not_served_ahead() -> None:
    async with run(hello_s=SOON_S) as hub:
        async with connect(hub) as client:
            client.send(request(target="/big") + request(target="/slow"))
            # The reader takes no more than its own limit while nobody reads from it.
            await until_gone(hub)

        assert not hub.desk.slow_began.is_set()


async def test_slow_reader_gets_a_long_answer_after_the_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(request("Connection: close", target="/big"))
        received = 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        while data := await client.reader.read(2**18):
            received += len(data)
            if loop.time() - began < 3 * SOON_S:
                await asyncio.sleep(SOON_S / 20)

    assert received > len(BIG)


async def test_silent_connection_is_told_and_closed_at_the_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        assert await client.status() == 408
        assert await client.is_at_end()
        assert hub.listener.refusals == {"late": 1}


async def test_half_a_request_is_told_and_closed_at_the_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(UPGRADE[:-4])

        status, headers, _ = await client.response()
        assert status == 408
        assert headers["Connection"] == "close"
        assert await client.is_at_end()


async def test_dripping_bytes_does_not_move_the_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        answer = asyncio.ensure_future(client.status())
        with contextlib.suppress(ConnectionError):
            for byte in UPGRADE[:-4]:
                client.send(bytes((byte,)))
                await asyncio.wait([answer], timeout=SOON_S / 20)
                if answer.done():
                    break

        assert await answer == 408


async def test_idle_keep_alive_connection_is_closed_without_a_word() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(HEALTH)
        assert await client.status() == 200

        assert await client.is_at_end()
        assert hub.listener.refusals == {}


async def test_slow_route_has_no_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(request(target="/slow"))
        await asyncio.sleep(3 * SOON_S)
        hub.desk.slow_may_answer.set()

        assert (await client.response())[2] == b"slow"


async def test_websocket_without_hello_is_closed_at_the_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(UPGRADE + frame(b"not the word"))
        assert await client.status() == 101
        assert await client.frame() == (1, b"not the word")

        code, reason = await client.close_code()
        assert code == CloseCode.POLICY_VIOLATION
        assert reason == "no hub:connect within 0.2 s"
        assert await client.is_at_end()
        assert hub.listener.refusals == {"late": 1}


async def test_client_that_ignores_the_close_is_cut_off() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(UPGRADE)
        assert await client.status() == 101
        await client.close_code()

        await hub.porter.sessions[0].is_gone.wait()
        await until_gone(hub)


async def test_opened_websocket_outlives_the_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(UPGRADE + frame(b"hello"))
        assert await client.status() == 101
        assert await client.frame() == (1, b"hello")
        assert hub.listener.doors == []
        await asyncio.sleep(3 * SOON_S)
        client.send(frame(b"still here"))

        assert await client.frame() == (1, b"still here")


async def test_hello_may_share_a_packet_with_the_upgrade_and_with_what_follows() -> None:
    words = [b"hello", *(b"%d" % number * 50 for number in range(100))]
    async with run(hello_bytes_max=4096) as hub, connect(hub) as client:
        client.send(UPGRADE + b"".join(map(frame, words)))
        assert await client.status() == 101

        assert [(await client.frame())[1] for _ in words] == words


async def test_hello_may_come_byte_by_byte() -> None:
    async with run() as hub, connect(hub) as client:
        for byte in UPGRADE + frame(b"hello") + frame(b"and more"):
            client.send(bytes((byte,)))
            await asyncio.sleep(0)

        assert await client.status() == 101
        assert await client.frame() == (1, b"hello")
        assert await client.frame() == (1, b"and more")


async def test_too_many_bytes_before_hello_close_the_websocket() -> None:
    async with run(hello_bytes_max=4096) as hub, connect(hub) as client:
        client.send(UPGRADE)
        assert await client.status() == 101
        client.send(frame(b"x" * 60_000))

        code, reason = await client.close_code()
        assert code == CloseCode.TOO_BIG
        assert "before hub:connect" in reason
        assert await client.is_at_end()
        assert hub.listener.refusals == {"too_big": 1}


async def test_bytes_after_hello_are_not_counted() -> None:
    async with run(hello_bytes_max=4096) as hub, connect(hub) as client:
        client.send(UPGRADE + frame(b"hello"))
        assert await client.status() == 101
        await client.frame()
        client.send(frame(b"x" * 60_000))

        assert await client.frame() == (1, b"x" * 60_000)


async def test_opened_door_is_garbage() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(UPGRADE)
        assert await client.status() == 101
        held = [hub.porter.sessions[0].door]
        assert len(gc.get_referrers(held[0])) > 1
        client.send(frame(b"hello"))
        await client.frame()

        gc.collect()
        assert gc.get_referrers(held[0]) == [held]


async def test_session_learns_that_the_client_left() -> None:
    async with run() as hub:
        for words in (b"", frame(b"hello")):
            async with connect(hub) as client:
                client.send(UPGRADE + words)
                assert await client.status() == 101
            await hub.porter.sessions[-1].is_gone.wait()
        assert hub.listener.doors == []


async def test_peer_mistakes_are_closed_by_picows_and_are_not_our_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run() as hub, connect(hub) as client:
        client.send(UPGRADE + frame(b"hello"))
        assert await client.status() == 101
        await client.frame()
        client.send(b"\x81\x05naked")

        assert (await client.close_code())[0] == CloseCode.PROTOCOL_ERROR
        assert await client.is_at_end()
        await hub.porter.sessions[0].is_gone.wait()
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_failing_session_is_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with run() as hub, connect(hub) as client:
        client.send(UPGRADE)
        assert await client.status() == 101
        hub.porter.sessions[0].door = "no door"  # type: ignore[assignment]
        client.send(frame(b"hello"))

        assert (await client.close_code())[0] == CloseCode.INTERNAL_ERROR
    assert "AttributeError" in caplog.text


async def test_doors_can_be_closed_for_shutdown() -> None:
    async with run() as hub, connect(hub) as stranger, connect(hub) as idle, connect(hub) as busy:
        stranger.send(UPGRADE)
        assert await stranger.status() == 101
        busy.send(request(target="/slow"))
        await hub.desk.slow_began.wait()

        await hub.listener.close()
        for door in hub.listener.doors:
            door.close(CloseCode.GOING_AWAY, "server_shutdown")
        hub.desk.slow_may_answer.set()

        assert await stranger.close_code() == (1001, "server_shutdown")
        assert await idle.is_at_end()
        _, headers, body = await busy.response()
        assert (headers["Connection"], body) == ("close", b"slow")


async def test_closed_listener_accepts_nobody_and_keeps_its_sessions() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(UPGRADE + frame(b"hello"))
        assert await client.status() == 101
        await client.frame()
        await hub.listener.close()

        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", hub.listener.port)
        client.send(frame(b"still here"))
        assert await client.frame() == (1, b"still here")


async def test_loopback_means_both_families_on_one_port() -> None:
    async with run() as hub:
        addresses = hub.listener.addresses
        assert addresses[0][0] == "127.0.0.1"
        for host, port in addresses:
            assert port == hub.listener.port
            async with connect(hub, host) as client:
                client.send(HEALTH)
                assert await client.status() == 200
    if _has_ipv6_loopback():
        assert [host for host, _ in addresses] == ["127.0.0.1", "::1"]


def _has_ipv6_loopback() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


async def test_accepted_sockets_notice_a_peer_that_vanished() -> None:
    async with run() as hub:
        options = [
            server.sockets[0].getsockopt(level, option)
            for server in hub.listener._servers
            for level, option in (
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            )
        ]

    assert options
    assert all(options)
