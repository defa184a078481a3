"""Dispatch under pressure: races, bursts, lost wakes, reads that fail, frozen readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from signalhub.core.effects import Fetch
from signalhub.settings.model import DispatchSettings, LogSettings, Settings
from signalhub.wire.entry import StoredEntry
from tests.support.memory import topics as memory
from tests.support.memory.shell import MemoryShell
from tests.support.memory.shell import Peer as MemoryPeer
from tests.support.socket import stage as sockets
from tests.support.socket.stage import SMALL_BUFFER
from tests.support.socket.topics import (
    MODES,
    TOPIC,
    UNLIMITED,
    Consumer,
    create,
    enter,
    leave,
    publish_all,
    reenter,
    seqs,
    shows,
    subscribe,
    subscription,
    until,
    working,
)
from tests.support.stage import RunStage
from tests.support.volume import volume

BURST = volume(2_000, 10_000)
RACES = volume(40, 200)
CHUNK = "x" * 8_000


async def take_in_batches(consumer: Consumer, count: int, batch: int) -> list[int]:
    """Settle `batch` at a time, as a consumer of its full window does."""
    found: list[int] = []
    while len(found) < count:
        taken = seqs(await consumer.take(min(batch, count - len(found))))
        consumer.send("hub:ack", upTo=taken[-1])
        found += taken
    return found


@pytest.mark.also_over_sockets
async def test_rd_9_1_subscription_made_during_publishing_gets_all_from_its_start_on(
    run_stage: RunStage,
) -> None:
    async with run_stage(subscriptions_max=RACES + 10, **UNLIMITED) as stage:
        publisher, peer = await stage.join("@(local/a)"), await stage.join("@(local/b)")
        await create(publisher)
        message = {"topic": TOPIC, "type": "note", "durable": True}

        for turn in range(RACES):
            name = f"sub-{turn}"
            for _ in range(turn % 4):
                publisher.send("hub:publish", message, pattern="ask")
            asked = peer.send("hub:subscribe", subscription(name=name, start="latest"))
            for _ in range(3):
                publisher.send("hub:publish", message, pattern="ask")
            receipts = [await publisher.receive("hub:published") for _ in range(turn % 4 + 3)]
            head = receipts[-1]["payload"]["seq"]

            reply = await peer.reply_to(asked)
            assert reply["type"] == "hub:subscribed", reply
            consumer = Consumer(peer, TOPIC, name, reply["payload"])
            wanted = list(range(consumer.joined["next"], head + 1))
            assert seqs(await consumer.take(len(wanted))) == wanted
            await leave(consumer)
        await peer.nothing_more()


async def test_rd_d6_burst_far_beyond_window_and_caches_loses_nothing(run_stage: RunStage) -> None:
    async with run_stage(log={"sync": "os"}, **UNLIMITED) as stage:
        publisher, consumer = await working(stage, start="latest", window=10)

        # The consumer acknowledges nothing until everything is published.
        await publish_all(publisher, range(BURST))
        await shows(publisher, lag=BURST, inFlight=10)

        assert await take_in_batches(consumer, BURST, 10) == list(range(1, BURST + 1))
        await until(publisher, floor=BURST, lag=0)


WAKING: dict[str, dict[str, Any]] = {
    "both": {},
    "wakes only": {"heartbeat_ms": 0},
    "watchdog only": {"wakes": False, "heartbeat_ms": 20},
}


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("how", WAKING)
async def test_rd_24_wakes_or_watchdog_or_both_deliver_the_same(
    run_stage: RunStage, how: str
) -> None:
    async with run_stage(dispatch=WAKING[how], **UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        consumers = [await enter(stage, mode, name=mode, mode=mode, window=10) for mode in MODES]
        keys = {number: f"k-{number % 7}" for number in range(300)}

        _, *heard = await asyncio.gather(
            publish_all(publisher, range(300), key=keys),
            *(consumer.take_and_ack(300) for consumer in consumers),
        )

        for consumer, copies in zip(consumers, heard, strict=True):
            assert sorted(seqs(copies)) == list(range(1, 301))
            assert {one.attempt for one in copies} == {1}
            for key in set(keys.values()):
                of_key = [one.seq for one in copies if one.key == key]
                assert of_key == sorted(of_key)
            await consumer.shows(floor=300, lag=0)
            await consumer.peer.nothing_more()


async def test_wire_subscription_may_have_a_watchdog_of_its_own(run_stage: RunStage) -> None:
    async with run_stage(dispatch={"wakes": False, "heartbeat_ms": 3_600_000}) as stage:
        _, consumer = await working(stage, 3, heartbeatMs=20)

        assert seqs(await consumer.take(3)) == [1, 2, 3]


async def test_rd_9_5_disconnect_during_a_burst_skips_nothing(run_stage: RunStage) -> None:
    async with run_stage(**UNLIMITED) as stage:
        publisher = await stage.join("@(local/a)")
        await create(publisher)
        publishing = asyncio.create_task(publish_all(publisher, range(600)))
        settled = 0

        for turn in range(20):
            consumer = await reenter(stage, "b", window=40)
            heard = await consumer.take(30)
            assert seqs(heard) == list(range(settled + 1, settled + 31))
            settled = (await consumer.settle("hub:ack", upTo=heard[turn].seq))["floor"]
            consumer.peer.abort()

        await publishing
        consumer = await reenter(stage, "b", window=40)
        rest = await consumer.take_and_ack(600 - settled)
        assert seqs(rest) == list(range(settled + 1, 601))


# Readers that do not read, which takes sockets.


async def test_rd_d7_frozen_consumer_stops_neither_publishers_nor_other_subscriptions() -> None:
    async with sockets.run_stage(**UNLIMITED) as stage:
        publisher, awake = await working(stage)
        frozen = await stage.join("@(local/frozen)", receive_bytes=SMALL_BUFFER)
        asleep = await subscribe(frozen, name="asleep", window=1_000)
        frozen.pause()

        # Four megabytes: far more than the kernel keeps for a reader that does not read.
        _, heard = await asyncio.gather(
            publish_all(publisher, [CHUNK] * 500), awake.take_and_ack(500)
        )
        assert seqs(heard) == list(range(1, 501))
        await shows(publisher, TOPIC, "asleep", lag=500, floor=0)

        frozen.resume()
        assert sorted(seqs(await asleep.take_and_ack(500))) == list(range(1, 501))
        await shows(publisher, TOPIC, "asleep", lag=0)


async def test_rd_d7_frozen_consumer_of_a_shared_subscription_leaves_the_rest_to_others() -> None:
    async with sockets.run_stage(**UNLIMITED) as stage:
        publisher, awake = await working(stage, mode="shared", window=5)
        frozen = await stage.join("@(local/frozen)", receive_bytes=SMALL_BUFFER)
        await subscribe(frozen, mode="shared", window=5)
        frozen.pause()

        await publish_all(publisher, range(100))

        heard = await awake.take_and_ack(95)
        await shows(publisher, inFlight=5, lag=5)
        frozen.abort()
        again = await awake.take_and_ack(5)
        assert sorted(seqs(heard) + seqs(again)) == list(range(1, 101))
        assert {one.attempt for one in again} == {2}


# Wakes that are merged and reads that find nothing, on a clock turned by hand.

WINDOW, HEARTBEAT_MS, STEP_MS = 10, 500, 5


def slow_shell(**dispatch: Any) -> tuple[MemoryShell, MemoryPeer, MemoryPeer]:
    """A hub that keeps nothing in memory, so that everything has to be read; writer and reader."""
    settings = Settings(
        message_rate=0.0,
        log=LogSettings(cache_bytes=1),
        dispatch=DispatchSettings(heartbeat_ms=HEARTBEAT_MS, **dispatch),
    )
    shell = MemoryShell(settings)
    writer, reader = shell.connect("@(a/writer)"), shell.connect("@(a/reader)")
    memory.create(writer)
    memory.subscribe(reader, window=WINDOW)
    return shell, writer, reader


def test_rd_9_2_merged_wakes_need_no_watchdog_at_all() -> None:
    """All publications are committed before the first pass, so there is one wake for all."""
    shell, writer, reader = slow_shell()
    shell.engine.is_prompt = False
    for number in range(1_000):
        writer.request("hub:publish", {"topic": "t", "type": "note", "data": number})
    shell.engine.is_prompt = True
    shell.settle()

    heard: list[int] = []
    while copies := memory.seqs(reader):
        heard += copies
        reader.ask("hub:ack", memory.NAMED | {"upTo": copies[-1]})

    assert heard == list(range(1, 1_001))
    assert memory.subscription_of(shell).stats.heartbeat_polls == 0


def finds_nothing(shell: MemoryShell) -> Callable[[], None]:
    """Reads are answered, but with nothing; how to end it."""
    found = shell.engine._found

    def nothing(fetch: Fetch) -> list[StoredEntry]:
        return []

    def end() -> None:
        shell.engine._found = found  # type: ignore[method-assign]

    shell.engine._found = nothing  # type: ignore[method-assign]
    return end


def fails(shell: MemoryShell) -> Callable[[], None]:
    """Reads end in errors."""
    end = finds_nothing(shell)
    shell.engine._found = lambda fetch: None  # type: ignore[assignment,method-assign,return-value]
    return end


def hangs(shell: MemoryShell) -> Callable[[], None]:
    """Reads are not answered at all."""
    shell.engine.is_readable = False

    def end() -> None:
        shell.engine.is_readable = True

    return end


@pytest.mark.parametrize("wakes", [True, False], ids=["wakes", "watchdog only"])
@pytest.mark.parametrize("fault_ms", [300, 1_500, 3_000])
@pytest.mark.parametrize("fault", [finds_nothing, fails, hangs])
def test_rd_9_3_what_cannot_be_read_at_first_comes_within_one_interval_after_the_fault(
    fault: Callable[[MemoryShell], Callable[[], None]], fault_ms: int, wakes: bool
) -> None:
    shell, writer, reader = slow_shell(wakes=wakes)
    end_fault = fault(shell)
    began = shell.now

    memory.publish(writer)
    shell.advance(fault_ms)
    assert reader.heard() == []
    if fault is finds_nothing and wakes:
        # The log is not asked in circles meanwhile.
        assert 2 <= memory.subscription_of(shell).stats.empty_reads <= 10 + fault_ms // 100
    end_fault()
    while not (heard := reader.heard()) and shell.now - began < fault_ms + 10 * HEARTBEAT_MS:
        shell.advance(STEP_MS)

    assert len(heard) == 1
    assert shell.now - began <= fault_ms + HEARTBEAT_MS


def test_rd_9_3_a_fault_in_the_middle_of_a_backlog_loses_and_repeats_nothing() -> None:
    shell, writer, reader = slow_shell()
    for _ in range(100):
        memory.publish(writer)
    heard: list[int] = []
    end_fault: Callable[[], None] | None = None

    for turn in range(200):
        copies = memory.seqs(reader)
        heard += copies
        if copies:
            if turn % 3 == 1 and end_fault is None:
                end_fault = finds_nothing(shell)
            reader.ask("hub:ack", memory.NAMED | {"upTo": copies[-1]})
        else:
            if end_fault is not None:
                end_fault()
                end_fault = None
            shell.advance(HEARTBEAT_MS)
        if len(heard) >= 100:
            break

    assert heard == list(range(1, 101))
