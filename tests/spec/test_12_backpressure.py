"""Section 12 and ruling 13: readers that do not keep up, and everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from signalhub.testing import FakeClock
from tests.support.peer import PATIENCE_S, code_of
from tests.support.socket.bystanders import bystanders
from tests.support.socket.peer import Peer
from tests.support.socket.slow_readers import (
    KILOBYTE,
    STEP,
    barrier,
    block,
    depth,
    flood,
    notes,
    stop_reading,
)
from tests.support.socket.stage import Stage, run_stage
from tests.support.stage import addresses, until_gone

SLOW = "@(local/slow)"
SMALL = {"pause_messages": 20, "resume_messages": 10, "messages_max": 100}


async def sender_and_slow(stage: Stage) -> tuple[Peer, Peer]:
    return await stage.join("@(local/sender)"), await stop_reading(stage, SLOW)


async def until(sender: Peer, type: str, act: Callable[[], Awaitable[None]]) -> None:
    """Act again and again until the hub tells the sender something."""
    for _ in range(200):
        await act()
        if type in [reply["type"] for reply in await barrier(sender)]:
            return
    raise AssertionError(f"no {type}")


async def test_12_sender_is_resumed_when_the_target_reads_again_and_nothing_is_lost() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, slow = await sender_and_slow(stage)
        sent = await flood(sender, SLOW)
        pause = await sender.receive("hub:pause")

        # A sender that does not obey is served all the same.
        sender.tell(SLOW, "note", [sent, ""])
        # The hub's own replies wait in order with everything else.
        slow.send("hub:queue_stats")
        slow.tell("@(local/sender)", "looked")
        await sender.receive("looked")
        ask_id = sender.tell(SLOW, "note", [sent + 1, ""], pattern="ask")
        sender.tell(SLOW, "note", [sent + 2, ""])
        await sender.nothing_more()
        slow.resume()
        ack = await sender.reply_to(ask_id)
        resume = await sender.receive("hub:resume")

        for notice in (pause, resume):
            assert (notice["to"], notice["correlationId"]) == ("@(local/sender)", None)
            assert notice["payload"]["target"] == SLOW
        assert pause["payload"]["reason"]
        # The ask was acknowledged when its bytes had left.
        assert ack["payload"]["status"] == "delivered"
        assert await notes(slow, "hub:queue_stats_response") == list(range(sent + 1))
        for number in (sent + 1, sent + 2):
            assert (await slow.receive("note"))["payload"][0] == number
        await sender.nothing_more()


async def test_12_sender_is_resumed_at_the_lower_threshold_and_not_before() -> None:
    outbound = {"pause_messages": 40, "resume_messages": 20, "bytes_max": 100_000_000}
    async with run_stage(message_rate=0, outbound=outbound) as stage:
        sender, slow = await sender_and_slow(stage)
        # A few hundred kilobytes leave the hub one by one.
        large = "x" * 300_000

        async def send_one() -> None:
            sender.tell(SLOW, "note", [0, large])

        async def read_one() -> None:
            slow.resume()
            await slow.receive("note")
            slow.pause()

        await until(sender, "hub:pause", send_one)
        await until(sender, "hub:resume", read_one)

        assert 10 <= await depth(slow, sender) <= 20


async def test_12_each_sender_is_paused_once_and_resumed_once() -> None:
    async with run_stage(message_rate=0, outbound=SMALL) as stage:
        sender, slow = await sender_and_slow(stage)
        await block(sender, SLOW)
        other = await stage.join("@(local/other)")

        for _ in range(5):
            other.tell(SLOW, "note", [0, ""])
            sender.tell(SLOW, "note", [0, ""])

        assert [reply["type"] for reply in await barrier(other)] == ["hub:pause"]
        await sender.nothing_more()
        assert 20 <= await depth(slow, other) <= 20 + STEP + 10
        for peer in (sender, other):
            assert (await peer.receive("hub:resume"))["payload"]["target"] == SLOW
            await peer.nothing_more()


async def test_12_other_receivers_and_subscribers_do_not_notice() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, slow = await sender_and_slow(stage)
        quick = await stage.join("@(local/quick)")
        for peer in (slow, quick):
            peer.send("hub:subscribe", {"topic": "news"})
        await barrier(quick)

        async with bystanders(stage):
            sent = await block(sender, SLOW)
            for number in range(200):
                payload = {"topic": "news", "type": "note", "data": [sent + number, ""]}
                sender.send("hub:publish", payload)
            for number in range(200):
                assert (await quick.receive("note"))["payload"][0] == sent + number
                reply = await sender.receive("hub:published")
                assert reply["payload"]["subscriberCount"] == 2
            ack = await sender.ask_actor("@(local/quick)", "question")
            assert ack["type"] == "hub:delivery_ack"

        sender.tell(SLOW, "last")
        slow.resume()
        assert await notes(slow, "last") == list(range(sent + 200))


async def test_12_messages_beyond_the_bound_are_dropped_in_order_and_asks_are_told() -> None:
    async with run_stage(message_rate=0, outbound=SMALL) as stage:
        sender, slow = await sender_and_slow(stage)
        sent = await block(sender, SLOW)

        for number in range(sent, sent + 500):
            sender.tell(SLOW, "note", [number, ""])
        refused = await sender.ask_actor(SLOW, "question", metadata={"traceId": "t", "x": 1})
        broadcast = await sender.ask("hub:broadcast", {"type": "news", "excludeSelf": True})
        slow.resume()
        await sender.receive("hub:resume")
        sender.tell(SLOW, "last")

        assert code_of(refused) == "queue_full"
        assert refused["payload"]["retryable"] is True
        assert refused["payload"]["details"]["limit"]
        assert refused["metadata"] == {"traceId": "t"}
        assert broadcast["payload"]["failedCount"] == 1
        assert broadcast["payload"]["deliveredCount"] == 0
        heard = await notes(slow, "last")
        assert heard == list(range(len(heard)))
        assert sent <= len(heard) < sent + 500
        # What does not fit is dropped, but it is counted, the copy of the broadcast too.
        dropped = await stage.metric("signal_hub_tells_dropped_total")
        assert dropped == sent + 500 - len(heard) + 1


async def test_12_bytes_beyond_the_bound_are_dropped_too() -> None:
    async with run_stage(message_rate=0, outbound={"bytes_max": 300_000}) as stage:
        sender, slow = await sender_and_slow(stage)

        for number in range(6_000):
            sender.tell(SLOW, "note", [number, KILOBYTE])
        await barrier(sender)
        refused = await sender.ask_actor(SLOW, "question", "x" * 300_000)
        slow.resume()
        async with asyncio.timeout(PATIENCE_S):
            while (await sender.ask_actor(SLOW, "last"))["type"] == "hub:error":
                pass

        assert code_of(refused) == "queue_full"
        heard = await notes(slow, "last")
        assert heard == sorted(set(heard))
        assert 0 < len(heard) < 6_000


async def test_12_reader_that_takes_nothing_is_closed_as_slow_and_nobody_else_notices() -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=0) as stage:
        sender, slow = await sender_and_slow(stage)
        await block(sender, SLOW)
        ask_id = sender.tell(SLOW, "question", pattern="ask")
        await sender.nothing_more()

        async with bystanders(stage):
            clock.advance(10)
            lost = await sender.reply_to(ask_id)

        assert lost["type"] == "hub:unknown_actor"
        assert lost["payload"]["retryable"] is True
        # Nobody may be left waiting for a reader that does not come back.
        assert (await sender.receive("hub:resume"))["payload"]["target"] == SLOW
        assert SLOW not in await addresses(sender)
        slow.resume()
        assert await slow.until_closed() in (1008, None)


async def test_12_reader_that_is_slow_but_steady_is_kept() -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=0) as stage:
        sender, steady = await sender_and_slow(stage)
        stuck = await stop_reading(stage, "@(local/stuck)")
        await block(sender, SLOW)
        await block(sender, "@(local/stuck)")

        clock.advance(6)
        steady.resume()
        assert (await sender.receive("hub:resume"))["payload"]["target"] == SLOW
        steady.pause()
        await block(sender, SLOW)
        clock.advance(6)

        await until_gone(sender, "@(local/stuck)")
        assert SLOW in await addresses(sender)
        stuck.resume()
        steady.resume()


async def test_12_message_that_expires_while_it_waits_vanishes() -> None:
    clock = FakeClock()
    async with run_stage(clock, message_rate=0) as stage:
        sender, slow = await sender_and_slow(stage)
        slow.send("hub:subscribe", {"topic": "news"})
        sent = await block(sender, SLOW)

        sender.tell(SLOW, "note", [sent, ""], ttl=2000)
        payload = {"topic": "news", "type": "note", "data": [sent, ""]}
        sender.send("hub:publish", payload, ttl=2000)
        ask_id = sender.tell(SLOW, "note", [sent, ""], ttl=2000, pattern="ask")
        await barrier(sender)
        clock.advance(3)
        sender.tell(SLOW, "last")
        slow.resume()

        assert code_of(await sender.reply_to(ask_id)) == "message_expired"
        assert await notes(slow, "last") == list(range(sent))
