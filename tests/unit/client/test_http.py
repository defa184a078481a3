"""The client's HTTP against a server that says what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from errno import ENETUNREACH
from pathlib import Path
from socket import gaierror
from ssl import SSLError

import pytest

import signalhub
from signalhub.client.transport import http
from signalhub.client.transport.http import HttpAnswer, HttpClient, Origin, no_hub
from signalhub.wire.errors import OutcomeUnknown, Unavailable
from tests.support.socket.certificates import certificates
from tests.support.socket.scripted_rooms import ScriptedRooms

PATH = "/v1/inbox/messages"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedRooms]:
    async with ScriptedRooms() as scripted:
        yield scripted


@pytest.fixture
async def client(server: ScriptedRooms) -> AsyncIterator[HttpClient]:
    client = HttpClient(Origin.of(server.url))
    yield client
    await client.close()


def asking(client: HttpClient, timeout_s: float = 10.0) -> asyncio.Task[HttpAnswer]:
    return asyncio.create_task(client.request("GET", PATH, timeout_s=timeout_s))


async def said(
    server: ScriptedRooms, client: HttpClient, answer: bytes, connection: int = 1
) -> HttpAnswer:
    """The answer to one request, which comes over this connection."""
    task = asking(client)
    exchange = await server.request()
    assert exchange.connection == connection
    exchange.say(answer)
    return await task


def ok(body: bytes, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), headers, body)


@pytest.mark.parametrize(
    ("url", "http_url", "socket_url"),
    [
        ("http://127.0.0.1:8787", "http://127.0.0.1:8787", "ws://127.0.0.1:8787"),
        ("ws://127.0.0.1:8787/ws", "http://127.0.0.1:8787", "ws://127.0.0.1:8787"),
        ("wss://hub.example/ws", "https://hub.example:443", "wss://hub.example:443"),
        ("https://hub.example/", "https://hub.example:443", "wss://hub.example:443"),
        ("wss://hub.example/a/ws", "https://hub.example:443/a", "wss://hub.example:443/a"),
        ("http://[::1]", "http://[::1]:80", "ws://[::1]:80"),
    ],
)
def test_any_url_of_a_hub_will_do(url: str, http_url: str, socket_url: str) -> None:
    origin = Origin.of(url)

    assert (origin.http_url, origin.socket_url) == (http_url, socket_url)


@pytest.mark.parametrize(
    "url",
    [
        *("hub.example", "ftp://hub.example", "http://", "http://user:word@hub.example"),
        *("http://hub.example/?token=1", "http://hub.example/#x"),
        *("http://hub.example:99999", "http://hub.example/a b"),
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        Origin.of(url)


async def test_requests_share_connections_that_are_kept(
    server: ScriptedRooms, client: HttpClient
) -> None:
    for body in (b"1", b"2"):
        answer = await said(server, client, ok(body, b"X-A: 7\r\nX-A: 8\r\n"))
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["x-a"] == "7, 8"
    await said(server, client, ok(b"3", b"Connection: close\r\n"))
    await said(server, client, ok(b"4"), connection=2)

    task = asking(client)
    (await server.request()).hang_up()
    again = await server.request()
    again.say(ok(b"5"))
    assert (await task).body == b"5"
    assert again.connection == 3, "a kept connection that was closed meanwhile is replaced"
    again.say(ok(b"a surprise"))
    await again.wait_gone()
    assert (await said(server, client, ok(b"6"), connection=4)).body == b"6"


async def test_requests_at_once_have_connections_of_their_own_up_to_a_bound(
    server: ScriptedRooms,
) -> None:
    client = HttpClient(Origin.of(server.url), connections_max=2)
    tasks = [asking(client) for _ in range(3)]
    exchanges = [await server.request() for _ in range(2)]
    assert server.has_no_request()

    for exchange in exchanges:
        exchange.answer(200, 1)
    (await server.request()).answer(200, 1)

    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 3
    assert server.connections == 2
    await client.close()


@pytest.mark.parametrize("half", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"])
async def test_an_answer_that_is_cut_off_leaves_a_doubt(
    server: ScriptedRooms, client: HttpClient, half: bytes
) -> None:
    task = asking(client)
    exchange = await server.request()
    exchange.say(half)
    await asyncio.sleep(0)
    exchange.hang_up()

    with pytest.raises(OutcomeUnknown):
        await task
    assert server.connections == 1


async def test_nobody_there_is_unavailable_and_names_the_url() -> None:
    async with ScriptedRooms() as server:
        url = server.url
    client = HttpClient(Origin.of(url))

    with pytest.raises(Unavailable, match=f"no hub at {url}: connection refused"):
        await client.request("GET", PATH)
    await client.close()


def alert(reason: str) -> SSLError:
    error = SSLError(1, f"[SSL: {reason}] …")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (gaierror(-2, "Name or service not known"), "unknown host name"),
        (OSError(ENETUNREACH, "x"), "network is unreachable"),
        (OSError("Multiple exceptions: [Errno 111] …, [Errno 101] …"), "no connection can be made"),
        (SSLError(1, "[SSL: WRONG_VERSION_NUMBER] …"), "it does not speak TLS"),
        (
            alert("TLSV1_UNRECOGNIZED_NAME"),
            "it refuses the TLS handshake: unrecognized name",
        ),
        (
            alert("SSLV3_ALERT_HANDSHAKE_FAILURE"),
            "it refuses the TLS handshake: handshake failure",
        ),
        (ValueError("said by the library"), "said by the library"),
    ],
)
def test_why_nobody_is_there_is_said_in_words(error: Exception, reason: str) -> None:
    assert no_hub("http://h:1", error) == f"no hub at http://h:1: {reason}"


async def test_no_time_is_unavailable_and_no_answer_in_time_leaves_a_doubt(
    server: ScriptedRooms, client: HttpClient
) -> None:
    await said(server, client, ok(b"1"))

    with pytest.raises(OutcomeUnknown, match=r"within 0\.05 s"):
        await asking(client, timeout_s=0.05)
    with pytest.raises(Unavailable, match="within 0 s"):
        await asking(client, timeout_s=0)


async def test_a_closed_client_asks_nobody(server: ScriptedRooms, client: HttpClient) -> None:
    await client.close()

    with pytest.raises(Unavailable, match="closed"):
        await client.request("GET", PATH)
    assert server.connections == 0


async def test_answers_come_in_several_forms(server: ScriptedRooms, client: HttpClient) -> None:
    chunks = b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"
    forms = {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks: b"abcd",
        b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"ok"): b"ok",
        b"HTTP/1.1 204 No Content\r\n\r\n": b"",
    }
    for answer, body in forms.items():
        assert (await said(server, client, answer)).body == body

    task = asking(client)
    exchange = await server.request()
    exchange.say(b"HTTP/1.1 200 OK\r\n\r\nall until the end")
    exchange.finish()
    assert (await task).body == b"all until the end"


@pytest.mark.parametrize(
    "answer",
    [
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2_000,
        ok(b"y" * 2_000),
    ],
)
async def test_answers_beyond_all_bounds_are_broken_off(
    server: ScriptedRooms, client: HttpClient, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEAD_BYTES_MAX", 1_000)
    monkeypatch.setattr(http, "BODY_BYTES_MAX", 1_000)

    with pytest.raises(OutcomeUnknown):
        await said(server, client, answer)


async def test_a_cancelled_request_does_not_leave_its_answer_to_the_next(
    server: ScriptedRooms, client: HttpClient
) -> None:
    task = asking(client)
    exchange = await server.request()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    exchange.answer(200, "too late")

    assert (await said(server, client, ok(b"in time"), connection=2)).body == b"in time"


async def test_a_secured_hub_is_reached_with_certificates_of_ones_own(tmp_path: Path) -> None:
    served, trusting = certificates(tmp_path)
    async with ScriptedRooms(served) as server:
        async with signalhub.hub(server.url) as stranger:
            with pytest.raises(Unavailable, match="certificate"):
                await stranger.inbox("x").fetch(attempts=1)
            with pytest.raises(Unavailable, match="certificate"):
                await stranger.room("general")

        async with signalhub.hub(server.url, ssl=trusting) as hub:
            fetching = asyncio.ensure_future(hub.inbox("x").fetch())
            (await server.request()).page(1)
            joining = asyncio.ensure_future(hub.room("general").__aenter__())
            await server.accept()

            assert len(await fetching) == 1
            assert (await joining).is_joined
