"""The front door on a real port: HTTP beside WebSocket, refusals, deadlines, and letting go.

What a door does with requests and answers is in tests/unit/server/test_doors.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import picows
import pytest

from signalhub.server.port.door import Door
from signalhub.server.port.http import BODY_BYTES_MAX, HEAD_BYTES_MAX, HttpRequest, Response, Routes
from signalhub.server.port.listener import Listener, listen, too_many_connections
from signalhub.settings.model import Settings
from signalhub.wire.frames import CloseCode
from tests.support.socket.frames import TEXT, masked_frame

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
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

    def admit(self, source: str) -> Response | None:
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
        for name in ("health", "slow", "broken_later", "big"):
            self.routes.add(f"/{name}", getattr(self, name))

    def health(self, request: HttpRequest) -> Response:
        return Response(200, b"ok")

    async def slow(self, request: HttpRequest) -> Response:
        self.slow_began.set()
        await self.slow_may_answer.wait()
        return Response(200, b"slow")

    async def broken_later(self, request: HttpRequest) -> Response:
        raise RuntimeError("a secret detail")

    def big(self, request: HttpRequest) -> Response:
        return Response(200, BIG)


class Hub(NamedTuple):
    """The listener and everything behind it."""

    listener: Listener
    porter: Porter
    desk: Desk


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

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("Content-Length", 0))
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

    async def upgrade(self, words: bytes = b"") -> None:
        self.send(UPGRADE + words)
        assert await self.status() == 101


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
    return "\r\n".join((start, "Host: localhost", *lines, "", "")).encode()


UPGRADE = request(*UPGRADE_LINES)


def frame(payload: bytes) -> bytes:
    return masked_frame(TEXT, payload)


async def until_gone(hub: Hub) -> None:
    """Until the hub has noticed that everybody left."""
    for _ in range(2_000):
        if not hub.listener.doors and all(door.is_gone.is_set() for door in hub.porter.sessions):
            return
        await asyncio.sleep(0.005)
    pytest.fail("some connections are still there")


async def test_a_listed_origin_may_connect_and_loopback_then_may_not() -> None:
    async with run(origins=["https://app.example.org"]) as hub:
        # A page of the hub itself, which is called localhost here, may as well.
        cases = {"https://app.example.org:443": 101, "http://localhost": 101}
        for origin, status in (cases | {"http://localhost:5173": 403}).items():
            async with connect(hub) as client:
                client.send(request(f"Origin: {origin}", *UPGRADE_LINES))
                assert await client.status() == status
        hub.porter.refusal = too_many_connections(1, 1)
        async with connect(hub) as client:
            client.send(request("Origin: http://example.org", *UPGRADE_LINES))
            assert await client.status() == 403, "the gatekeeper is asked last"
        assert hub.listener.refusals == {"origin": 2}


@pytest.mark.parametrize(
    ("refusal", "status", "expected"),
    [
        (
            too_many_connections(retry_after_s=2, limit=100),
            429,
            {"Retry-After": "2", "X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0"},
        ),
    ],
    ids=["too many"],
)
async def test_who_is_refused_is_told_when_to_return(
    refusal: Response, status: int, expected: dict[str, str]
) -> None:
    async with run() as hub, connect(hub) as client:
        hub.porter.refusal = refusal
        client.send(UPGRADE)
        found, headers, _ = await client.response()

        assert found == status
        assert expected.items() <= headers.items()
        assert headers["Connection"] == "close"
        assert await client.is_at_end()
    assert hub.porter.sessions == []


async def test_a_failing_gatekeeper_is_a_500_and_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run() as hub, connect(hub) as client:
        hub.porter.accept = None  # type: ignore[method-assign, assignment]
        client.send(UPGRADE)

        assert await client.status() == 500
        assert await client.is_at_end()
    assert "the gatekeeper failed" in caplog.text


async def test_requests_share_a_connection_are_answered_in_order_and_may_end_in_an_upgrade() -> (
    None
):
    async with run() as hub, connect(hub) as client:
        client.send(request(target="/slow") + HEALTH + UPGRADE + frame(b"hello"))
        await hub.desk.slow_began.wait()
        hub.desk.slow_may_answer.set()

        assert [(await client.response())[2] for _ in range(2)] == [b"slow", b"ok"]
        assert await client.status() == 101
        assert await client.frame() == (1, b"hello")


@pytest.mark.parametrize("way", ["HTTP/1.0", "Connection: close", "half close"])
async def test_who_asks_for_it_is_disconnected_after_the_answer(way: str) -> None:
    async with run() as hub, connect(hub) as client:
        lines = (way,) if ":" in way else ()
        version = "1.0" if way == "HTTP/1.0" else "1.1"
        client.send(request(*lines, target="/slow", version=version))
        if way == "half close":
            client.writer.write_eof()
        await hub.desk.slow_began.wait()
        hub.desk.slow_may_answer.set()

        status, headers, body = await client.response()
        assert (status, body) == (200, b"slow")
        assert headers["Connection"] == "close" or way == "half close"
        assert await client.is_at_end()


async def test_a_refusal_arrives_though_the_client_is_still_sending() -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request("Transfer-Encoding: chunked", target="/health", method="POST"))
        for _ in range(8):
            client.send(b"100000\r\n" + bytes(0x100000) + b"\r\n")
        await client.writer.drain()

        assert await client.status() == 413
        assert await client.is_at_end()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /" + b"x" * (HEAD_BYTES_MAX + 1), 431),
        (request(f"Content-Length: {BODY_BYTES_MAX + 1}", "Expect: 100-continue"), 413),
    ],
    ids=["nonsense", "long head", "long body"],
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


async def test_a_route_that_fails_later_is_a_500_without_details_and_the_connection_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run() as hub, connect(hub) as client:
        client.send(request(target="/broken_later") + HEALTH)
        status, _, body = await client.response()

        assert status == 500
        assert b"secret" not in body
        assert await client.status() == 200
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].exc_info


async def test_a_client_that_leaves_during_a_slow_answer_harms_nobody() -> None:
    async with run() as hub:
        async with connect(hub) as client:
            client.send(request(target="/slow"))
            await hub.desk.slow_began.wait()
            client.writer.transport.abort()
        hub.desk.slow_may_answer.set()
        async with connect(hub) as client:
            client.send(HEALTH)
            assert await client.status() == 200


async def test_a_client_that_does_not_read_is_not_served_ahead() -> None:
    async with run(hello_s=SOON_S) as hub:
        async with connect(hub) as client:
            client.send(request(target="/big") + request(target="/slow"))
            # The reader takes no more than its own limit while nobody reads from it.
            await until_gone(hub)

        assert not hub.desk.slow_began.is_set()


async def everything(client: Client) -> bytes:
    """All that arrives before the end or a reset."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := await client.reader.read(2**20):
            found += data
    return bytes(found)


async def test_a_slow_reader_gets_a_long_answer_after_the_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(request("Connection: close", target="/big"))
        await asyncio.sleep(2 * SOON_S)

        assert (await everything(client)).endswith(BIG)


@pytest.mark.parametrize("sent", [b"", UPGRADE[:-4]], ids=["silent", "half a request"])
async def test_a_request_that_does_not_come_in_time_is_told_and_closed(sent: bytes) -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(sent)

        status, headers, _ = await client.response()
        assert (status, headers["Connection"]) == (408, "close")
        assert await client.is_at_end()
        assert hub.listener.refusals == {"late": 1}


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


async def test_an_idle_keep_alive_connection_is_closed_without_a_word() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        client.send(HEALTH)
        assert await client.status() == 200

        assert await client.is_at_end()
        assert hub.listener.refusals == {}


async def test_a_websocket_without_hello_is_closed_at_the_deadline_and_then_cut_off() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client:
        await client.upgrade(frame(b"not the word"))
        assert await client.frame() == (1, b"not the word")

        code, reason = await client.close_code()
        assert code == CloseCode.POLICY_VIOLATION
        assert reason == "no hub:connect within 0.2 s"
        assert hub.listener.refusals == {"late": 1}
        await hub.porter.sessions[0].is_gone.wait()
        await until_gone(hub)


async def test_an_opened_websocket_and_a_slow_route_outlive_the_deadline() -> None:
    async with run(hello_s=SOON_S) as hub, connect(hub) as client, connect(hub) as slow:
        slow.send(request(target="/slow"))
        await hub.desk.slow_began.wait()
        await client.upgrade(frame(b"hello"))
        assert await client.frame() == (1, b"hello")
        await asyncio.sleep(2 * SOON_S)
        client.send(frame(b"still here"))
        hub.desk.slow_may_answer.set()

        assert await client.frame() == (1, b"still here")
        assert (await slow.response())[2] == b"slow"


@pytest.mark.parametrize("is_bytewise", [False, True], ids=["one packet", "byte by byte"])
async def test_the_hello_may_share_a_packet_with_the_upgrade_and_with_what_follows(
    is_bytewise: bool,
) -> None:
    words = [b"hello", *(b"%d" % number * 50 for number in range(2 if is_bytewise else 100))]
    data = UPGRADE + b"".join(map(frame, words))
    async with run(hello_bytes_max=4096) as hub, connect(hub) as client:
        for at in range(0, len(data), 1 if is_bytewise else len(data)):
            client.send(data[at : at + 1] if is_bytewise else data)
            await asyncio.sleep(0)
        assert await client.status() == 101

        assert [(await client.frame())[1] for _ in words] == words


async def test_only_bytes_before_hello_are_counted() -> None:
    async with run(hello_bytes_max=4096) as hub, connect(hub) as opened, connect(hub) as client:
        await opened.upgrade(frame(b"hello"))
        await opened.frame()
        opened.send(frame(b"x" * 60_000))
        assert await opened.frame() == (1, b"x" * 60_000)
        await client.upgrade()
        client.send(frame(b"x" * 60_000))

        code, reason = await client.close_code()
        assert code == CloseCode.TOO_BIG
        assert "before hub:connect" in reason
        assert await client.is_at_end()
        assert hub.listener.refusals == {"too_big": 1}


async def test_an_opened_door_is_garbage_and_a_session_learns_that_its_client_left() -> None:
    async with run() as hub:
        async with connect(hub) as client:
            await client.upgrade()
            held = [hub.porter.sessions[0].door]
            assert len(gc.get_referrers(held[0])) > 1
            client.send(frame(b"hello"))
            await client.frame()
            assert hub.listener.doors == []

            gc.collect()
            assert gc.get_referrers(held[0]) == [held]
        async with connect(hub) as client:
            await client.upgrade()
        for session in hub.porter.sessions:
            await session.is_gone.wait()


async def test_a_failing_session_is_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with run() as hub, connect(hub) as client:
        await client.upgrade()
        hub.porter.sessions[0].door = "no door"  # type: ignore[assignment]
        client.send(frame(b"hello"))

        assert (await client.close_code())[0] == CloseCode.INTERNAL_ERROR
    assert "AttributeError" in caplog.text


async def test_a_closed_listener_accepts_nobody_keeps_its_sessions_and_closes_its_doors() -> None:
    async with run() as hub, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(hub)) for _ in range(4)]
        opened, stranger, idle, busy = clients
        await opened.upgrade(frame(b"hello"))
        await opened.frame()
        await stranger.upgrade()
        busy.send(request(target="/slow"))
        await hub.desk.slow_began.wait()

        await hub.listener.close()
        for door in hub.listener.doors:
            door.close(CloseCode.GOING_AWAY, "server_shutdown")
        hub.desk.slow_may_answer.set()

        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", hub.listener.port)
        assert await stranger.close_code() == (1001, "server_shutdown")
        assert await idle.is_at_end()
        _, headers, body = await busy.response()
        assert (headers["Connection"], body) == ("close", b"slow")
        opened.send(frame(b"still here"))
        assert await opened.frame() == (1, b"still here")


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
