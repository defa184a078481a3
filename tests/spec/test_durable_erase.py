"""`hub:erase` on a real hub: the bytes leave the disk, the log can still be proven."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.verify import verify
from tests.support.peer import Peer
from tests.support.socket import stage as sockets
from tests.support.socket.stage import InProcess, Spawned, eventually, spawn_stage
from tests.support.socket.tokens import AUTH, session_of
from tests.support.socket.topics import TOPIC, create, enter, expect, publish, refusal, seqs
from tests.support.stage import RunStage, Stage
from tests.support.volume import thinned

ADA = "@(people/ada-lovelace)"
SECRET = "the analytical engine weaves"
NOBODY = "erased." + "0123456789abcdef" * 2


async def erase(peer: Peer, **payload: Any) -> dict[str, Any]:
    return await expect(peer, "hub:erase", payload, "hub:erased")


def holds(data: Path, text: str) -> list[str]:
    """The files that hold some bytes."""
    needle = text.encode()
    files = [one for one in data.rglob("*") if one.is_file()]
    return [one.name for one in files if needle in one.read_bytes()]


async def ada_writes(stage: InProcess | Spawned, count: int = 3) -> Peer:
    """Some messages of hers and some of another's, and one that waits in her mailbox."""
    ada = await stage.connect()
    ada.sender = ADA
    assert (await ada.register(ADA, durable=True))["type"] == "hub:registered"
    bob = await stage.join("@(people/bob)")
    await create(bob)
    for number in range(count):
        await publish(ada, f"{SECRET} {number}")
        await publish(bob, f"plain {number}")
    ada.hang_up()
    reply = await bob.ask_actor(ADA, "note", f"{SECRET}, she said")
    while reply["payload"]["status"] != "queued":
        reply = await bob.ask_actor(ADA, "note", f"{SECRET}, she said")
    return bob


async def test_no_file_of_the_hub_holds_it_afterwards_and_the_log_is_still_proven(
    socket_stage: InProcess,
) -> None:
    stage, data = socket_stage, Path(socket_stage.hub.settings.data)
    bob = await ada_writes(stage)
    assert holds(data, SECRET)

    answer = await erase(bob, actor=ADA, pseudonym=NOBODY)

    assert answer["mailbox"]
    assert answer["segments"] == 1
    assert holds(data, SECRET) == []
    assert [name for name in holds(data, ADA) if not name.startswith("state.db")] == []
    await eventually(lambda: not holds(data, ADA))
    # The mailbox has the name that was asked for.
    assert holds(data / "log", NOBODY)
    consumer = await enter(stage, "one", name="one")
    assert seqs(await consumer.take_and_ack(3)) == [2, 4, 6]
    await consumer.quiet()
    await stage.stop()
    report = verify(SystemDisk(data / "log", read_only=True))
    assert report.is_sound, report.problems
    assert report.erased == answer["entries"] > 4
    await stage.start()
    again = await enter(stage, "two", name="two")
    await publish(again.peer, "next")
    assert seqs(await again.take(4)) == [2, 4, 6, 7]


@pytest.mark.parametrize("name", ["orders", "@(people/bob)", "erased.", f"{NOBODY}0"])
async def test_the_mailbox_cannot_take_the_name_of_anything_else(stage: Stage, name: str) -> None:
    bob = await stage.join("@(people/bob)")

    assert await refusal(bob, "hub:erase", {"actor": ADA, "pseudonym": name}) == "internal_error"


async def test_traffic_goes_on_while_segments_are_written_anew() -> None:
    async with sockets.run_stage(log={"segment_bytes": 2**20}, message_rate=0) as stage:
        bob = await ada_writes(stage, 50)
        padding = "x" * 20_000
        for _ in range(120):
            await publish(bob, padding)
        answering = asyncio.create_task(erase(await stage.join("@(people/carl)"), actor=ADA))
        published = 0
        while not answering.done():
            await publish(bob, "meanwhile")
            published += 1

        answer = await answering
        consumer = await enter(stage, "one")
        found = await consumer.take_and_ack(50 + 120 + published)

        assert answer["segments"] >= 1
        assert not any(SECRET in str(one.payload) for one in found)


async def test_with_authentication_it_is_a_permission(run_stage: RunStage) -> None:
    async with run_stage(auth=AUTH) as stage:
        stranger = await session_of(stage, "stranger", send=["*"], create=["*"])
        keeper = await session_of(stage, "keeper", admin=["erase"])
        other = await session_of(stage, "other", admin=["republish"])

        assert await refusal(stranger, "hub:erase", {"actor": ADA}) == "unauthorized"
        assert await refusal(other, "hub:erase", {"actor": ADA}) == "unauthorized"
        assert (await erase(keeper, actor=ADA))["entries"] == 0


@pytest.mark.parametrize("delay_s", thinned([0.0, 0.01, 0.002, 0.005, 0.02, 0.05], 2))
async def test_a_kill_at_any_moment_leaves_a_log_that_can_be_proven(delay_s: float) -> None:
    async with spawn_stage(message_rate=0) as stage:
        bob = await ada_writes(stage, 20)
        bob.send("hub:erase", {"actor": ADA}, pattern="ask")
        await asyncio.sleep(delay_s)
        await stage.hub.kill()
        log = SystemDisk(stage.hub.data / "log", read_only=True)
        assert verify(log).is_sound

        await stage.hub.start()
        bob = await stage.join("@(people/bob)")
        await erase(bob, actor=ADA)
        consumer = await enter(stage, "one")

        assert seqs(await consumer.take(20)) == [*range(2, 41, 2)]
        assert holds(stage.hub.data / "log", SECRET) == []
        assert holds(stage.hub.data / "log", ADA) == []
        info = await expect(bob, "hub:topic_info", {"topic": TOPIC}, "hub:topic_info_response")
        assert info["head"] == 40
        await stage.hub.kill()
        assert verify(log).is_sound
