"""A subscription that meets damage: what lies before it arrives, and everybody is told the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from signalhub.engine import local
from signalhub.log.disk import SystemDisk
from signalhub.log.errors import LogDamaged
from signalhub.log.reader import Reader
from signalhub.log.segment import BATCHES_BEGIN, LocatedBatch, base_of, scan_batches
from signalhub.wire.entry import Kind, StoredEntry
from tests.support.peer import Envelope
from tests.support.process.command import command
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.topics import NAME, OF_WORK, TOPIC, create, publish

COUNT = 60
HERE = "@(local/here)"
SETTINGS: dict[str, Any] = {
    "message_rate": 0,
    "connection_rate": 0,
    "log": {"segment_bytes": 2**16, "cache_bytes": 1},
}


@pytest.fixture(autouse=True)
def told_soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(local, "_RETRY_S", 0.01)


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "log").glob("*.log"))


def spoil(path: Path, batch: int) -> int:
    """Flip a bit in one batch of a segment; return where the batch begins."""
    disk = SystemDisk(path.parent)
    file = disk.open(path.name)
    batches = scan_batches(file, BATCHES_BEGIN, file.size())
    position = next(islice(batches, batch, None)).position
    (old,) = file.read(1, position + 100)
    file.write(bytes([old ^ 1]), position + 100)
    file.close()
    return position


def readable(entries: Iterator[StoredEntry]) -> Iterator[StoredEntry]:
    """All entries before the damage."""
    with suppress(LogDamaged):
        yield from entries


def batches_before(stage: InProcess, segment: str, position: int) -> Iterator[LocatedBatch]:
    """The batches of a segment before a position."""
    file = SystemDisk(Path(stage.hub.settings.data) / "log", read_only=True).open(segment)
    yield from scan_batches(file, BATCHES_BEGIN, position)
    file.close()


@asynccontextmanager
async def filled(
    prepare: Callable[[InProcess], Any], fill: Callable[[Peer, int], Any]
) -> AsyncIterator[tuple[InProcess, str, int]]:
    """A hub whose second segment is damaged in its fifth batch; its snapshot is newer."""
    async with run_stage(**SETTINGS) as stage:
        await prepare(stage)
        peer = await stage.connect()
        for number in range(COUNT):
            await fill(peer, number)
        for _ in range(2):
            await stage.stop()
            stage.send_everybody_away()
            await stage.start()
        await stage.stop()
        second = segments(Path(stage.hub.settings.data))[1]
        position = spoil(second, 4)
        await stage.start()
        yield stage, second.name, position


async def with_topic(stage: InProcess) -> None:
    peer = await stage.connect()
    await create(peer)
    assert (await peer.ask("hub:subscribe", OF_WORK))["type"] == "hub:subscribed"
    await peer.ask("hub:disconnect")


async def to_topic(peer: Peer, number: int) -> None:
    await publish(peer, f"{number} {'x' * 4_000}")


async def until_error(peer: Peer) -> tuple[list[int], Envelope]:
    """The positions that arrive, and the error after them."""
    found: list[int] = []
    while (message := await peer.receive())["type"] != "hub:error":
        if "delivery" in message["metadata"]:
            found.append(message["metadata"]["delivery"]["seq"])
    return found, message


async def test_what_lies_before_the_damage_arrives_and_the_consumer_is_told_where_it_waits() -> (
    None
):
    async with filled(with_topic, to_topic) as (stage, segment, position):
        consumer = await stage.connect()
        assert (await consumer.ask("hub:subscribe", OF_WORK))["type"] == "hub:subscribed"
        arrived, error = await until_error(consumer)

        told = error["payload"]
        stuck = arrived[-1] + 1
        assert arrived == list(range(1, stuck))
        assert stuck < COUNT
        assert error["correlationId"] is None
        assert (told["code"], told["retryable"]) == ("storage_failed", False)
        where = {"seq": stuck, "segment": segment, "position": position, **OF_WORK}
        assert told["details"].items() >= where.items()
        assert segment in told["message"]
        await consumer.nothing_more()


async def test_messages_of_the_damaged_segment_before_the_damage_arrive() -> None:
    async with filled(with_topic, to_topic) as (stage, segment, position):
        reader = Reader.of_folder(SystemDisk(Path(stage.hub.settings.data) / "log", read_only=True))
        intact = [one.seq for one in readable(reader.scan(0)) if one.kind == Kind.PUBLISHED]
        base = base_of(segment)
        in_segment = [one for one in readable(reader.scan(base or 0)) if one.seq]
        consumer = await stage.connect()
        await consumer.ask("hub:subscribe", OF_WORK)
        arrived, _ = await until_error(consumer)
        before = sum(1 for _ in batches_before(stage, segment, position))

        assert before == 4
        assert len(in_segment) >= 3
        assert arrived == intact


async def test_operators_see_which_subscription_waits_and_where() -> None:
    async with filled(with_topic, to_topic) as (stage, segment, position):
        consumer = await stage.connect()
        await consumer.ask("hub:subscribe", OF_WORK)
        arrived, _ = await until_error(consumer)
        info = (await consumer.ask("hub:sub_info", OF_WORK))["payload"]
        health = await stage.health()
        measured = await stage.metric("signal_hub_subscription_held_up")
        url = f"ws://127.0.0.1:{stage.port}/ws"
        shown = await command(url, "sub", "info", TOPIC, NAME, "--json")
        (listed,) = (await command(url, "sub", "ls", "--json")).rows()
        await consumer.ask("hub:disconnect")
        later = (await (await stage.connect()).ask("hub:sub_info", OF_WORK))["payload"]

        (row,) = shown.rows()
        where = {"seq": arrived[-1] + 1, "segment": segment, "position": position}
        assert info["heldUp"].items() >= where.items()
        assert info["heldUp"]["code"] == "storage_failed"
        assert info["lag"] == COUNT
        assert info["lagSeconds"] > 0, "the oldest unsettled message lies before the damage"
        (held,) = health["details"]["heldUp"]
        assert held.items() >= {"stream": TOPIC, "subscription": NAME, **where}.items()
        assert "storage_damaged" in health["degradations"]
        assert measured == 1
        assert (row["state"], listed["state"]) == ("held up", "held up")
        assert row["held_up"]["seq"] == arrived[-1] + 1
        assert later["heldUp"] == info["heldUp"]


async def test_an_age_that_cannot_be_read_is_unknown_and_not_zero() -> None:
    async with filled(with_topic, to_topic) as (stage, _, _):
        consumer = await stage.connect()
        await consumer.ask("hub:subscribe", OF_WORK | {"autoAck": True})
        arrived, _ = await until_error(consumer)
        info = (await consumer.ask("hub:sub_info", OF_WORK))["payload"]

        assert info["lag"] == COUNT - len(arrived)
        assert info["lagSeconds"] is None


REGISTERED = {"actorAddress": HERE, "capabilities": [], "durable": True}


async def with_mailbox(stage: InProcess) -> None:
    peer = await stage.connect()
    assert (await peer.ask("hub:register", REGISTERED))["type"] == "hub:registered"
    await peer.ask("hub:disconnect")


async def to_mailbox(peer: Peer, number: int) -> None:
    await peer.ask("hub:send", {"to": HERE, "type": "note", "data": f"{number} {'x' * 4_000}"})


async def test_the_owner_of_a_mailbox_is_told_too() -> None:
    async with filled(with_mailbox, to_mailbox) as (stage, segment, _):
        owner = await stage.connect()
        await owner.ask("hub:register", REGISTERED)
        arrived, error = await until_error(owner)

        assert arrived == list(range(arrived[0], arrived[-1] + 1))
        assert error["payload"]["code"] == "storage_failed"
        assert error["payload"]["details"]["segment"] == segment
        assert error["payload"]["details"]["seq"] == arrived[-1] + 1
