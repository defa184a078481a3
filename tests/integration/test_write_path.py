"""The write path on real sockets: memory, slow readers, and what the metrics say about them.

Every rule of it is in tests/unit/server/test_writer.py.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from signalhub.core.sessions.session import Session
from signalhub.testing import FakeClock
from tests.support.socket.peer import Peer
from tests.support.socket.slow_readers import block
from tests.support.socket.stage import (
    SMALL_BUFFER,
    InProcess,
    addresses,
    eventually,
    run_stage,
    until_gone,
)

MEGABYTE = "x" * 1_000_000
PUBLISHES = 50
KEPT_BYTES_MAX = 20_000_000
HOUR_S = 3_600
PATIENCE_S = 20


@contextmanager
def memory_kept_below(limit_bytes: int) -> Iterator[None]:
    """What is allocated inside the block and not freed stays below a limit."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < limit_bytes, f"{after - before} bytes were kept"


async def publish(peer: Peer, topic: str, data: object) -> int:
    """Publish; how many heard it."""
    payload = {"topic": topic, "type": "news", "data": data}
    reply = await peer.ask("hub:publish", payload)
    assert reply["type"] == "hub:published", reply
    count: int = reply["payload"]["subscriberCount"]
    return count


async def blocked(stage: InProcess) -> tuple[Peer, Peer, int]:
    """A reader that has stopped reading, who sent to it, and how many tells."""
    slow = await stage.join("@(a/slow)", receive_bytes=SMALL_BUFFER)
    sender = await stage.join("@(a/sender)")
    slow.pause()
    return slow, sender, await block(sender, "@(a/slow)")


async def test_what_is_published_to_nobody_or_to_a_quick_reader_is_not_kept() -> None:
    async with run_stage(message_rate=0) as stage:
        reader, peer = await stage.join("@(a/reader)"), await stage.join("@(a/publisher)")
        await reader.ask("hub:subscribe", {"topic": "topic/#"})
        with memory_kept_below(KEPT_BYTES_MAX):
            for number in range(PUBLISHES):
                assert await publish(peer, "nobody", MEGABYTE) == 0
                assert await publish(peer, f"topic/{number}", MEGABYTE) == 1
                message = await reader.receive("news")
                assert len(message["payload"]) == len(MEGABYTE)


async def test_tells_that_wait_for_a_slow_reader_are_counted_when_it_is_closed() -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=0) as stage:
        _, sender, _ = await blocked(stage)
        waiting = stage.hub.app.runner.writer.depth()
        assert waiting > 0
        assert await stage.metric("signal_hub_tells_dropped_total") == 0
        clock.advance(11)
        await until_gone(sender, "@(a/slow)")
        assert await stage.metric("signal_hub_tells_dropped_total") == waiting


async def test_a_reader_that_reads_on_gets_all_that_waited_though_the_wall_clock_jumped() -> None:
    for jump_s in (HOUR_S, -HOUR_S):
        clock = FakeClock()
        leases = {"lease_s": 2 * HOUR_S, "lease_max_s": 2 * HOUR_S}
        async with run_stage(clock, message_rate=0, registry=leases) as stage:
            slow, sender, sent = await blocked(stage)
            runner = stage.hub.app.runner
            sessions = [cast(Session, one.session) for one in runner.connections]
            (session,) = (one for one in sessions if one.identity == "@(a/slow)")
            clock.jump(jump_s)
            runner.writer.sweep()
            assert "@(a/slow)" in await addresses(sender)
            before = session.sent + runner.writer.depth()
            slow.resume()
            async with asyncio.timeout(PATIENCE_S):
                for number in range(sent):
                    assert (await slow.receive("note"))["payload"][0] == number
            assert session.sent == before


async def test_a_reader_that_stops_and_says_close_is_not_found_and_then_dropped() -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=0) as stage:
        slow, sender, _ = await blocked(stage)
        slow.close()
        await until_gone(sender, "@(a/slow)")
        runner = stage.hub.app.runner
        assert len(runner.connections) == 2
        clock.advance(6)
        await eventually(lambda: len(runner.connections) == 1)
        assert not runner.writer._blocked
