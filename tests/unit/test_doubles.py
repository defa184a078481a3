"""The doubles that tests are built on must themselves be trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from signalhub.settings.model import RegistrySettings
from signalhub.testing import ChaosProxy, FakeClock, run_hub
from signalhub.testing.process import variables_of


def test_a_fake_clock_moves_only_when_told_to() -> None:
    clock = FakeClock(now_ms=1_000, mono_s=5.0)
    assert (clock.now_ms(), clock.mono_s()) == (1_000, 5.0)

    clock.advance(1.5)
    assert (clock.now_ms(), clock.mono_s()) == (2_500, 6.5)
    clock.jump(-1)
    assert (clock.now_ms(), clock.mono_s()) == (1_500, 6.5), "a jump is no passing of time"
    for _ in range(1_000):
        clock.advance(0.0005)
    assert abs(clock.now_ms() - 2_000) <= 1, "tiny steps add up"
    with pytest.raises(AssertionError, match="jump"):
        clock.advance(-1)


def test_settings_become_the_variables_the_hub_reads() -> None:
    settings = {
        "message_rate": 0,
        "log_level": "debug",
        "registry": {"limit": 10},
        "auth": {"enabled": True, "keys": {"k": {"secret": "s"}}},
    }

    assert variables_of(settings) == {
        "SIGNALHUB_MESSAGE_RATE": "0",
        "SIGNALHUB_LOG_LEVEL": "debug",
        "SIGNALHUB_REGISTRY_LIMIT": "10",
        "SIGNALHUB_AUTH_ENABLED": "true",
        "SIGNALHUB_AUTH_KEYS": '{"k": {"secret": "s"}}',
    }


async def test_a_running_hub_takes_settings_and_returns_on_its_port_after_a_stop() -> None:
    async with run_hub(message_rate=5, registry=RegistrySettings(limit=8)) as hub:
        assert (hub.settings.message_rate, hub.settings.registry.limit) == (5, 8)
    async with run_hub(registry={"limit": 7}) as hub:
        assert hub.settings.registry.limit == 7
        port = hub.port
        await _get_health(port)
        await hub.stop()
        with pytest.raises(ConnectionRefusedError):
            await _get_health(port)
        await hub.start()
        assert hub.port == port
        await _get_health(port)

    with pytest.raises(msgspec.ValidationError, match="massage_rate"):
        async with run_hub(massage_rate=5):
            pass


async def _get_health(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"200"
    writer.close()
    await writer.wait_closed()


class Echo:
    """A TCP server that returns what it gets, and counts the reads it took."""

    reads = 0
    port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(1024):
                self.reads += 1
                writer.write(chunk)
        writer.close()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Echo, ChaosProxy, Streams]]:
    served = Echo()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    async with server, ChaosProxy(served.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            yield served, proxy, (reader, writer)
        finally:
            writer.transport.abort()


async def _says(streams: Streams, text: bytes) -> None:
    reader, writer = streams
    writer.write(text)
    assert await reader.readexactly(len(text)) == text


async def test_the_proxy_forwards_and_counts_until_it_cuts() -> None:
    async with proxied() as (_, proxy, streams):
        await _says(streams, b"hello")
        assert (proxy.bytes_up, proxy.bytes_down) == (5, 5)
        assert (proxy.accepted, proxy.connections) == (1, 1)

        proxy.cut()

        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await streams[0].readexactly(1)
        again = await asyncio.open_connection("127.0.0.1", proxy.port)
        await _says(again, b"again")
        again[1].transport.abort()


@pytest.mark.parametrize(("direction", "reaches_upstream"), [("up", False), ("down", True)])
async def test_a_stall_holds_one_direction_and_loses_nothing(
    direction: str, reaches_upstream: bool
) -> None:
    async with proxied() as (served, proxy, (reader, writer)):
        await _says((reader, writer), b"hello")
        proxy.stall(direction)  # type: ignore[arg-type]

        writer.write(b"held")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.readexactly(4)
        assert (served.reads == 2) is reaches_upstream
        proxy.resume()

        assert await reader.readexactly(4) == b"held"


async def test_a_slow_proxy_forwards_in_pieces_and_late() -> None:
    async with proxied() as (served, proxy, streams):
        proxy.dribble(1, "up")
        await _says(streams, b"x" * 50)
        assert served.reads > 10

        proxy.delay(0.05, "down")
        started = asyncio.get_running_loop().time()
        await _says(streams, b"slow")
        # The loop rounds to milliseconds.
        assert asyncio.get_running_loop().time() - started >= 0.045


async def test_a_refusing_proxy_keeps_its_connections_and_listens_again_on_its_port() -> None:
    async with proxied() as (_, proxy, streams):
        await _says(streams, b"before")
        port = proxy.port

        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await _says(streams, b"still")
        await proxy.accept()

        assert proxy.port == port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await _says((reader, writer), b"after")
        writer.transport.abort()


async def test_the_end_of_either_side_is_the_end_of_the_other() -> None:
    async with proxied() as (served, proxy, (reader, writer)):
        await _says((reader, writer), b"hello")
        port = served.port
        writer.write_eof()
        assert await reader.read() == b""
        assert proxy.bytes_down == 5
    async with ChaosProxy(port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.transport.abort()
