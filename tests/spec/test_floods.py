"""Crowds: silent sockets, connection storms and senders that ignore every limit."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator

import pytest

from tests.support.process.machine import descriptors, resident_bytes
from tests.support.socket.bystanders import bystanders
from tests.support.socket.peer import PATIENCE_S, Closed, Peer, Rejected, upgrade_request
from tests.support.socket.slow_readers import barrier
from tests.support.socket.stage import (
    SMALL_BUFFER,
    Spawned,
    Stage,
    eventually,
    run_stage,
    spawn_stage,
)
from tests.support.volume import volume

SILENT = volume(2_000, 5_000)
CONNECTED = volume(500, 1_000)
SPARE_FILES = 500 + CONNECTED
AT_ONCE = 250
HELLO_S = volume(4, 6)
# Measured: 2.5 KB for a silent socket, 7 KB for a WebSocket; three times that is a buffer too many.
BYTES_EACH_MAX = 21_000


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as the machine allows, for the test and the hub it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = SILENT + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"the machine allows {hard} open files, this needs {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def open_many(stage: Spawned, count: int, is_upgraded: bool = True) -> list[Peer]:
    """Sockets that are silent after the upgrade, or in the middle of it."""
    peers: list[Peer] = []
    for start in range(0, count, AT_ONCE):
        batch = min(AT_ONCE, count - start)
        opened = await asyncio.gather(*(stage.call() for _ in range(batch)))
        if is_upgraded:
            await asyncio.gather(*(peer.upgrade() for peer in opened))
        else:
            for index, peer in enumerate(opened):
                peer.write(upgrade_request()[: index % 120])
        peers += opened
    return peers


async def last_words(peer: Peer) -> int | None:
    """What a silent socket is told in the end: a status or a close code."""
    if peer.is_upgraded:
        return await peer.until_closed()
    try:
        return (await peer.response()).status
    except Closed:
        return None


async def test_silent_sockets_cost_little_and_are_let_go_unless_they_are_connected(
    many_files: None,
) -> None:
    # In a process of its own, so that its memory is its own too.
    async with spawn_stage(connection_rate=0, hello_s=HELLO_S) as stage:
        files_before = descriptors(stage.hub.pid)
        memory_before = resident_bytes(stage.hub.pid)

        async with bystanders(stage) as pair:
            connected = await open_many(stage, CONNECTED)
            await asyncio.gather(*(peer.connect() for peer in connected))
            silent = await open_many(stage, SILENT // 2, is_upgraded=False)
            upgraded = await open_many(stage, SILENT // 2)
            await pair.go_on()
            each = (resident_bytes(stage.hub.pid) - memory_before) / (SILENT + CONNECTED)
            assert each < BYTES_EACH_MAX
            words = await asyncio.gather(*(last_words(peer) for peer in silent + upgraded))

        assert set(words[: SILENT // 2]) == {408}
        assert set(words[SILENT // 2 :]) == {1008}
        await eventually(lambda: descriptors(stage.hub.pid) < files_before + CONNECTED + 20)
        assert (await stage.health())["status"] == "ok"
        for peer in connected[::50]:
            await peer.nothing_more()


async def test_storm_of_connections_is_throttled_and_sessions_do_not_notice() -> None:
    async with run_stage(connection_rate=20, connection_burst=20) as stage, bystanders(stage):
        answers = await asyncio.gather(*(knock(stage) for _ in range(300)))

        assert set(answers) == {101, 429}
        # What the bucket holds, and what it regains while the storm lasts.
        assert answers.count(101) < 150


async def knock(stage: Stage) -> int:
    peer = await stage.call()
    try:
        await peer.upgrade()
    except Rejected as rejected:
        return rejected.response.status
    return 101


async def test_sender_without_manners_is_limited_and_nobody_else_is() -> None:
    async with run_stage(message_rate=100, message_burst=100) as stage:
        await stage.join("@(local/target)")
        rude = await stage.connect()

        for _ in range(5_000):
            rude.tell("@(local/target)", "note", 1)
        polite = await stage.connect()
        assert (await polite.ask_actor("@(local/target)", "note"))["type"] == "hub:delivery_ack"

        codes = [reply["payload"]["code"] for reply in await barrier(rude)]
        assert set(codes) == {"rate_limited"}
        assert len(codes) > 4_000


async def test_sender_that_reads_no_answers_cannot_fill_the_hubs_memory() -> None:
    outbound = {"bytes_max": 1_000_000, "stalled_s": 60}
    async with spawn_stage(message_rate=0, outbound=outbound) as stage:
        memory_before = resident_bytes(stage.hub.pid)
        async with bystanders(stage):
            deaf = await stage.connect(receive_bytes=SMALL_BUFFER)
            deaf.pause()
            async with asyncio.timeout(PATIENCE_S):
                while not await stage.metric("signal_hub_slow_connections_closed_total"):
                    for _ in range(200):
                        deaf.send("hub:nonsense")

        assert resident_bytes(stage.hub.pid) - memory_before < 30_000_000
