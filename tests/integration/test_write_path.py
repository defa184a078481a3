"""The write path on real sockets: memory, slow readers, and what the metrics say about them."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

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
PUBLISHES = 200
KEPT_BYTES_MAX = 20_000_000
HOUR_S = 3_600
PATIENCE_S = 20


@asynccontextmanager
async def stage_with(clock: FakeClock | None = None, **settings: Any) -> AsyncIterator[InProcess]:
    async with run_stage(clock, message_rate=0, **settings) as stage:
        yield stage


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


async def test_200_mb_published_to_nobody_are_not_kept() -> None:
    async with stage_with() as stage:
        peer = await stage.join("@(a/publisher)")
        with memory_kept_below(KEPT_BYTES_MAX):
            for _ in range(PUBLISHES):
                assert await publish(peer, "nobody", MEGABYTE) == 0


async def test_200_mb_published_to_as_many_topics_with_a_quick_reader_are_not_kept() -> None:
    async with stage_with() as stage:
        reader, peer = await stage.join("@(a/reader)"), await stage.join("@(a/publisher)")
        await reader.ask("hub:subscribe", {"topic": "#"})
        with memory_kept_below(KEPT_BYTES_MAX):
            for number in range(PUBLISHES):
                assert await publish(peer, f"topic/{number}", MEGABYTE) == 1
                message = await reader.receive("news")
                assert len(message["payload"]) == len(MEGABYTE)


async def test_tells_that_wait_for_a_slow_reader_are_counted_when_it_is_closed() -> None:
    clock = FakeClock()
    async with stage_with(clock) as stage:
        slow = await stage.join("@(a/slow)", receive_bytes=SMALL_BUFFER)
        sender = await stage.join("@(a/sender)")
        slow.pause()
        await block(sender, "@(a/slow)")
        waiting = stage.hub.app.runner.writer.depth()
        assert waiting > 0
        assert await stage.metric("signal_hub_tells_dropped_total") == 0
        clock.advance(11)
        await until_gone(sender, "@(a/slow)")
        assert await stage.metric("signal_hub_tells_dropped_total") == waiting


async def test_messages_sent_counts_what_waited_for_a_slow_reader() -> None:
    async with stage_with() as stage:
        slow = await stage.join("@(a/slow)", receive_bytes=SMALL_BUFFER)
        sender = await stage.join("@(a/sender)")
        slow.pause()
        runner = stage.hub.app.runner
        sessions = [cast(Session, one.session) for one in runner.connections]
        (session,) = (one for one in sessions if one.identity == "@(a/slow)")
        before = session.sent
        sent = await block(sender, "@(a/slow)")
        assert runner.writer.depth() > 0
        slow.resume()
        async with asyncio.timeout(PATIENCE_S):
            for number in range(sent):
                assert (await slow.receive("note"))["payload"][0] == number
        assert session.sent - before == sent


async def test_a_reader_that_stops_and_says_close_is_not_found_and_then_dropped() -> None:
    clock = FakeClock()
    async with stage_with(clock) as stage:
        slow = await stage.join("@(a/slow)", receive_bytes=SMALL_BUFFER)
        sender = await stage.join("@(a/sender)")
        slow.pause()
        await block(sender, "@(a/slow)")
        slow.close()
        await until_gone(sender, "@(a/slow)")
        runner = stage.hub.app.runner
        assert len(runner.connections) == 2
        clock.advance(6)
        await eventually(lambda: len(runner.connections) == 1)
        assert not runner.writer._blocked


async def test_the_wall_clock_may_jump_while_a_reader_is_blocked() -> None:
    for jump_s in (HOUR_S, -HOUR_S):
        clock = FakeClock()
        async with stage_with(
            clock, registry={"lease_s": 3_600 * 2, "lease_max_s": 7_200}
        ) as stage:
            slow = await stage.join("@(a/slow)", receive_bytes=SMALL_BUFFER)
            sender = await stage.join("@(a/sender)")
            slow.pause()
            sent = await block(sender, "@(a/slow)")
            clock.jump(jump_s)
            stage.hub.app.runner.writer.sweep()
            assert "@(a/slow)" in await addresses(sender)
            slow.resume()
            async with asyncio.timeout(PATIENCE_S):
                for number in range(sent):
                    assert (await slow.receive("note"))["payload"][0] == number


async def test_a_broadcast_to_250_reaches_all_before_what_is_told_later() -> None:
    async with stage_with(connection_rate=0) as stage:
        everybody = [await stage.join(f"@(reader/{number})") for number in range(249)]
        sender = await stage.join("@(a/sender)")
        message_id = sender.send("hub:broadcast", {"type": "news", "data": "to all"}, pattern="ask")
        for number in range(249):
            sender.tell(f"@(reader/{number})", "news", "to one")
        reply = await sender.reply_to(message_id)
        assert reply["payload"]["deliveredCount"] == 100
        assert reply["payload"]["queuedCount"] == 150
        for peer in everybody:
            assert (await peer.receive("news"))["payload"] == "to all"
            assert (await peer.receive("news"))["payload"] == "to one"
