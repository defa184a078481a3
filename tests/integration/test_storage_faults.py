"""A hub whose log cannot be read for a moment, or whose state file is spoiled, loses nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from signalhub.engine import local
from signalhub.log.reader import Reader
from tests.support.socket.peer import PATIENCE_S, Peer
from tests.support.socket.stage import InProcess, eventually, run_stage
from tests.support.socket.topics import (
    TOPIC,
    create,
    enter,
    expect,
    publish_all,
    refusal,
    stored,
    sub_info,
    subscribe,
)

COUNT = 5


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcess]:
    """A hub that has to read everything from the disk, and is told soon of what failed."""
    monkeypatch.setattr(local, "_RETRY_S", 0.01)
    async with run_stage(log={"cache_bytes": 1}) as stage:
        yield stage


@pytest.fixture
async def peer(stage: InProcess) -> Peer:
    """Somebody who has published to a topic."""
    peer = await stage.join("@(local/a)")
    await create(peer, retention={"ageSeconds": 3_600})
    await publish_all(peer, range(COUNT))
    return peer


def spoil(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def fail(*given: Any) -> NoReturn:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Reader, method, fail)


def read_errors(stage: InProcess) -> int:
    return stage.hub.app.hub.tally.log.read_errors


async def test_retention_gives_nothing_up_that_it_could_not_look_at(
    stage: InProcess, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "seq_at_time")

    stage.hub.app._retain(stage.clock.now_ms())
    await eventually(lambda: read_errors(stage) > 0)
    # What the failed look-up was for is told after the pause.
    await asyncio.sleep(0.05)

    info = await expect(peer, "hub:topic_info", {"topic": TOPIC}, "hub:topic_info_response")
    assert (info["first"], info["head"]) == (1, COUNT)


async def test_a_position_by_time_that_cannot_be_found_is_refused(
    stage: InProcess, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await enter(stage, "b")
    await consumer.take_and_ack(COUNT)
    spoil(monkeypatch, "seq_at_time")
    an_hour_ago = {"time": stage.clock.now_ms() - 3_600_000}

    made = {"topic": TOPIC, "subscription": "new", "from": an_hour_ago}
    sought = {"topic": TOPIC, "subscription": consumer.name, "to": an_hour_ago}

    assert await refusal(peer, "hub:subscribe", made) == "storage_failed"
    assert await refusal(peer, "hub:seek", sought) == "storage_failed"
    assert (await sub_info(peer))["floor"] == COUNT
    info = await expect(peer, "hub:topic_info", {"topic": TOPIC}, "hub:topic_info_response")
    assert info["subscriptions"] == [consumer.name]


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:replay", {"topic": TOPIC, "fromSeq": 1}),
        ("hub:redrive", {"topic": TOPIC, "all": True}),
        ("hub:purge", {"topic": TOPIC, "all": True}),
    ],
)
async def test_messages_that_cannot_be_read_are_not_taken_for_none(
    type: str, payload: dict[str, Any], peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "read")

    assert await refusal(peer, type, payload) == "storage_failed"


async def test_a_consumer_gets_everything_once_the_log_can_be_read_again(
    stage: InProcess, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as fault:
        spoil(fault, "read")
        consumer = await enter(stage, "b")
        await eventually(lambda: read_errors(stage) > 1)

    async with asyncio.timeout(PATIENCE_S):
        heard = await consumer.take_and_ack(COUNT)

    assert [one.payload for one in heard] == list(range(COUNT))
    assert {one.attempt for one in heard} == {1}
    assert (await sub_info(peer))["lost"] == 0


# No MessagePack, nothing, and MessagePack of another shape.
BITS = ("c1ff", "", "80")
COLUMNS = {"stream": "state", "subscription": "state", "remembered": "body"}


def overwrite(stage: InProcess, table: str, bits: str) -> None:
    """Overwrite the contents of a table of the state file."""
    path = Path(stage.hub.settings.data) / "state.db"
    with closing(sqlite3.connect(path)) as database, database:
        changed = database.execute(f"update {table} set {COLUMNS[table]} = x'{bits}'")
        assert changed.rowcount > 0


def remove(stage: InProcess) -> None:
    """Delete the state file and what SQLite keeps beside it."""
    for path in Path(stage.hub.settings.data).glob("state.db*"):
        path.unlink()


@pytest.mark.parametrize(
    "harm",
    [
        *(partial(overwrite, table=table, bits=bits) for table in COLUMNS for bits in BITS),
        remove,
    ],
    ids=[*(f"{table}: {bits or 'empty'}" for table in COLUMNS for bits in BITS), "no file"],
)
async def test_a_snapshot_that_cannot_be_used_is_made_again_from_the_log(
    harm: Callable[[InProcess], None],
) -> None:
    async with run_stage() as stage:
        peer = await stage.join("@(local/a)")
        await create(peer)
        await publish_all(peer, range(5))
        consumer = await subscribe(peer)
        await consumer.take_and_ack(3)
        await stage.hub.stop()
        stage.send_everybody_away()
        harm(stage)

        await stage.hub.start()

        peer = await stage.join("@(local/a)")
        assert await stored(peer) == list(range(5))
        info = await sub_info(peer)
        assert (info["floor"], info["lag"]) == (3, 2)
        assert (await stage.health())["status"] == "ok"
