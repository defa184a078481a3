"""A loss of log entries is shown until somebody acknowledges it, and that is on record."""

from __future__ import annotations

import shutil
from getpass import getuser
from pathlib import Path

import pytest

from signalhub.log.recovery import LogRecovery
from signalhub.operate.backup import back_up
from signalhub.operate.restore import restore
from signalhub.server.losses import Losses
from signalhub.testing import FakeClock, run_hub
from tests.faults.losses import data_of, lost, operations
from tests.faults.lost_end import cut_to
from tests.support.process.command import command
from tests.support.socket.stage import InProcess, eventually, run_stage
from tests.support.socket.topics import create, publish


async def lose(stage: InProcess) -> None:
    """Lose two published messages."""
    peer = await stage.connect()
    await create(peer)
    await publish(peer, 1)
    kept = stage.hub.app._engine.head
    await publish(peer, 2)
    await publish(peer, 3)
    await stage.stop()
    stage.send_everybody_away()
    cut_to(data_of(stage), kept)
    await stage.start()


async def test_a_loss_is_shown_across_restarts_and_backups_until_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with run_stage() as stage:
        await lose(stage)
        folder = data_of(stage)
        (first,) = await lost(stage)
        await stage.stop()
        await stage.start()
        again = await lost(stage)
        back_up(stage.hub.settings, tmp_path / "backup")
        await stage.stop()
        shutil.rmtree(folder)
        restore(stage.hub.settings, tmp_path / "backup")
        await stage.start()
        restored = await lost(stage)

        done = await command("", "log", "acknowledge", "--data", str(folder))
        await eventually(lambda: bool(operations(folder)))
        await eventually(lambda: not stage.hub.app._losses.are_open)

        assert first["last"] > first["first"]
        assert again == restored == [first]
        assert (done.code, "acknowledged the loss of entries" in done.out) == (0, True)
        assert "the running hub records it" in done.out
        assert await lost(stage) == []
        (one,) = operations(folder)
        span = f"entries {first['first']} to {first['last']} of epoch {first['epoch']}"
        assert (one.by, one.verb, one.over) == (
            getuser(),
            "admin",
            f"acknowledged the loss of {span}",
        )
        await stage.stop()
        await stage.start()
        assert await lost(stage) == []
        assert len(operations(folder)) == 1


async def test_a_loss_is_acknowledged_without_a_hub_and_recorded_at_the_next_start() -> None:
    async with run_stage() as stage:
        await lose(stage)
        folder = data_of(stage)
        await stage.stop()
        done = await command("", "log", "acknowledge", "--data", str(folder))
        repeated = await command("", "log", "acknowledge", "--data", str(folder), "--json")
        assert operations(folder) == []
        await stage.start()

        assert (done.code, "when it starts" in done.out) == (0, True)
        assert (repeated.code, repeated.out) == (0, "")
        assert await lost(stage) == []
        await eventually(lambda: bool(operations(folder)))


async def test_without_a_loss_there_is_nothing_to_acknowledge(tmp_path: Path) -> None:
    async with run_hub(data=str(tmp_path)):
        nothing = await command("", "log", "acknowledge", "--data", str(tmp_path))
    elsewhere = await command("", "log", "acknowledge", "--data", str(tmp_path / "log"))

    assert (nothing.code, nothing.out.strip()) == (0, "no loss to acknowledge")
    assert elsewhere.code == 2


async def test_a_start_that_is_interrupted_during_the_repair_does_not_forget_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from signalhub.log import recovery

    async with run_stage() as stage:
        peer = await stage.connect()
        await create(peer)
        kept = stage.hub.app._engine.head
        await publish(peer, 1)
        await stage.stop()
        stage.send_everybody_away()
        cut_to(data_of(stage), kept)

        def interrupted(*_: object) -> LogRecovery:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(recovery, "_repair", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await stage.start()
        await stage.start()

        assert len(await lost(stage)) == 1


def test_a_list_that_cannot_be_read_counts_as_a_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "losses.json").write_text("{")

    losses = Losses(tmp_path, FakeClock())

    assert losses.are_open
    assert "the list of losses cannot be read" in caplog.text
