"""SIGTERM: everybody is told, what is queued still arrives, and the process ends well."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.socket.peer import Peer
from tests.support.socket.slow_readers import block, notes, stop_reading
from tests.support.socket.stage import InProcess, Spawned, Stage, run_stage, spawn_stage

SLOW = "@(local/slow)"


async def exit_code(stage: Spawned) -> int:
    """Wait for the process to end by itself."""
    async with asyncio.timeout(15):
        return await stage.hub.process.wait()


async def blocked(stage: Stage) -> tuple[Peer, Peer, int]:
    """A sender, a reader that does not keep up, and how many notes it was sent."""
    sender, slow = await stage.join("@(local/sender)"), await stop_reading(stage, SLOW)
    return sender, slow, await block(sender, SLOW)


@asynccontextmanager
async def with_blocked(drain_s: float = 8) -> AsyncIterator[tuple[InProcess, Peer, Peer, int]]:
    async with run_stage(message_rate=0, drain_s=drain_s) as stage:
        yield stage, *await blocked(stage)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_drain_tells_everybody_closes_with_1001_and_exits_with_0(
    number: signal.Signals,
) -> None:
    async with spawn_stage() as stage:
        peers = [await stage.join(f"@(local/{index})") for index in range(10)]
        silent = await stage.dial()

        stage.hub.process.send_signal(number)

        for peer in peers:
            notice = await peer.receive("hub:disconnect")
            assert notice["payload"]["reason"] == "server_shutdown"
            assert (notice["to"], notice["correlationId"]) == (peer.sender, None)
            assert await peer.until_closed() == 1001
        assert await silent.until_closed() == 1001
        assert await exit_code(stage) == 0
        assert "Traceback" not in stage.hub.log()


async def test_drain_delivers_what_was_sent_before_it() -> None:
    async with spawn_stage(message_rate=0) as stage:
        sender, target = await stage.connect(), await stage.join("@(local/b)")
        for number in range(500):
            sender.tell("@(local/b)", "note", [number, ""])
        await sender.nothing_more()

        stage.hub.process.send_signal(signal.SIGTERM)

        assert await notes(target, "hub:disconnect") == list(range(500))
        assert await target.until_closed() == 1001
        assert await exit_code(stage) == 0


async def test_drain_does_not_wait_for_ever_for_a_reader_that_is_gone() -> None:
    async with spawn_stage(message_rate=0, drain_s=1.0) as stage:
        sender, slow, _ = await blocked(stage)

        stage.hub.process.send_signal(signal.SIGTERM)

        assert await sender.until_closed() == 1001
        assert await exit_code(stage) == 0
        slow.resume()


async def test_drain_flushes_the_queue_of_a_reader_that_comes_back() -> None:
    async with with_blocked() as (stage, sender, slow, sent):
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.hub.stop())
            await sender.receive("hub:disconnect")
            slow.resume()
            heard = await notes(slow, "hub:disconnect")

        assert heard == list(range(sent))
        assert await slow.until_closed() == 1001


async def test_drain_acknowledges_asks_that_were_delivered_on_the_way_out() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, target = await stage.connect(), await stage.join("@(local/b)")
        ids = [sender.tell("@(local/b)", "note", [n, ""], pattern="ask") for n in range(50)]
        await target.receive("note")

        await stage.hub.stop()

        heard = {}
        while (message := await sender.receive())["type"] != "hub:disconnect":
            heard[message["correlationId"]] = message["type"]
        delivered = 1 + len(await notes(target, "hub:disconnect"))
        acknowledged = [one for one in ids if heard.get(one) == "hub:delivery_ack"]
        assert len(acknowledged) == delivered


async def test_drain_refuses_new_connections_at_once() -> None:
    async with run_stage(message_rate=0, drain_s=5) as stage:
        stubborn = await stage.connect()
        stubborn.answers_close = False
        stopping = asyncio.create_task(stage.hub.stop())
        await stubborn.receive("hub:disconnect")

        with pytest.raises(ConnectionRefusedError):
            await stage.call()

        stubborn.hang_up()
        await stopping


@pytest.mark.parametrize("how", ["evicted", "goodbye"])
async def test_blocked_session_that_is_closed_still_gets_its_queue_and_the_notice(how: str) -> None:
    async with with_blocked() as (stage, sender, slow, sent):
        if how == "evicted":
            await stage.join(SLOW)
        else:
            slow.tell("@(local/sender)", "leaving")
            slow.send("hub:disconnect", pattern="ask")
            await sender.receive("leaving")
        slow.resume()

        assert await notes(slow, "hub:disconnect") == list(range(sent))
        assert await slow.until_closed() == 1000
