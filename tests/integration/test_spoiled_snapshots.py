"""The state file only speeds a start up: whatever is in its snapshot, the log has the last word."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.topics import create, publish_all, stored, sub_info, subscribe

COLUMNS = {"stream": "state", "subscription": "state", "remembered": "body"}


def spoil(stage: InProcess, table: str, bits: str) -> None:
    """Overwrite the contents of a table of the state file."""
    path = Path(stage.hub.settings.data) / "state.db"
    with closing(sqlite3.connect(path)) as database, database:
        changed = database.execute(f"update {table} set {COLUMNS[table]} = x'{bits}'")
        assert changed.rowcount > 0


def remove(stage: InProcess) -> None:
    """Delete the state file and what SQLite keeps beside it."""
    for path in Path(stage.hub.settings.data).glob("state.db*"):
        path.unlink()


@pytest.mark.parametrize("bits", ["c1ff", "", "80"], ids=["no msgpack", "empty", "another shape"])
@pytest.mark.parametrize("table", COLUMNS)
async def test_a_snapshot_that_cannot_be_decoded_is_made_again_from_the_log(
    table: str, bits: str
) -> None:
    async with run_stage() as stage:
        peer = await stage.join("@(local/a)")
        await create(peer)
        await publish_all(peer, range(5))
        consumer = await subscribe(peer)
        await consumer.take_and_ack(3)
        await stage.hub.stop()
        stage.send_everybody_away()
        spoil(stage, table, bits)

        await stage.hub.start()

        peer = await stage.join("@(local/a)")
        assert await stored(peer) == list(range(5))
        info = await sub_info(peer)
        assert (info["floor"], info["lag"]) == (3, 2)
        assert (await stage.health())["status"] == "ok"


async def test_a_state_file_that_is_gone_is_made_again_from_the_log() -> None:
    async with run_stage() as stage:
        peer = await stage.join("@(local/a)")
        await create(peer)
        await publish_all(peer, range(5))
        await stage.hub.stop()
        stage.send_everybody_away()
        remove(stage)

        await stage.hub.start()

        assert await stored(await stage.join("@(local/a)")) == list(range(5))
