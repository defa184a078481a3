"""The state file only speeds a start up: whatever is in its snapshot, the log has the last word."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.topics import create, publish_all, stored, sub_info, subscribe

# No MessagePack, nothing, and MessagePack of another shape.
BITS = ("c1ff", "", "80")
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


@pytest.mark.parametrize(
    "harm",
    [
        *(partial(spoil, table=table, bits=bits) for table in COLUMNS for bits in BITS),
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
