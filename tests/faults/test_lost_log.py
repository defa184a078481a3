"""A log that is gone, or was replaced by an older copy, is not mistaken for a new or whole one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from signalhub.log.disk import SystemDisk
from signalhub.log.head import HEAD_NAME
from signalhub.log.verify import verify
from signalhub.pipeline.run.status import PipelineStatus, write_status
from signalhub.state import losses
from signalhub.wire.errors import SettingsError
from tests.faults.losses import data_of, lost, operations
from tests.faults.lost_end import cut_to
from tests.support.process.command import command
from tests.support.socket.stage import InProcess, eventually, run_stage
from tests.support.socket.topics import TOPIC, create, expect, publish

Gone = Callable[[Path], object]


def delete(log: Path) -> None:
    shutil.rmtree(log)


def unmount(log: Path) -> None:
    """What is left of a disk that is not mounted is its empty folder."""
    shutil.rmtree(log)
    log.mkdir()


async def fill(stage: InProcess, count: int = 3) -> None:
    peer = await stage.connect()
    await create(peer)
    for number in range(count):
        await publish(peer, number)


async def topic_info(stage: InProcess) -> dict[str, Any]:
    question = "hub:topic_info", {"topic": TOPIC}, "hub:topic_info_response"
    return await expect(await stage.connect(), *question)


async def stop(stage: InProcess) -> Path:
    await stage.stop()
    stage.send_everybody_away()
    return data_of(stage)


@pytest.mark.parametrize("lose", [delete, unmount])
async def test_a_hub_whose_log_is_gone_does_not_start_until_that_is_acknowledged(
    lose: Gone,
) -> None:
    async with run_stage() as stage:
        await fill(stage)
        folder = await stop(stage)
        lose(folder / "log")
        before = sorted(one.name for one in folder.rglob("*"))

        with pytest.raises(SettingsError, match=r"the log is gone: .* mount its disk"):
            await stage.start()
        assert sorted(one.name for one in folder.rglob("*")) == before
        done = await command("", "log", "acknowledge", "--data", str(folder))
        await stage.start()

        assert (done.code, "acknowledged the loss of the whole log" in done.out) == (0, True)
        await eventually(lambda: bool(operations(folder)))
        assert [one.over for one in operations(folder)] == [
            done.out.splitlines()[0].partition(", found")[0]
        ]
        assert await lost(stage) == []
        await stop(stage)
        await stage.start()
        assert len(operations(folder)) == 1


async def test_a_log_that_is_mounted_again_is_found_as_it_was(tmp_path: Path) -> None:
    async with run_stage() as stage:
        await fill(stage)
        folder = await stop(stage)
        (folder / "log").rename(tmp_path / "away")
        with pytest.raises(SettingsError):
            await stage.start()
        (tmp_path / "away").rename(folder / "log")
        await stage.start()

        assert (await topic_info(stage))["head"] == 3
        assert await lost(stage) == []


async def test_a_log_that_is_mounted_again_after_it_was_given_up_is_no_loss(
    tmp_path: Path,
) -> None:
    async with run_stage() as stage:
        await fill(stage)
        folder = await stop(stage)
        (folder / "log").rename(tmp_path / "away")
        await command("", "log", "acknowledge", "--data", str(folder))
        (tmp_path / "away").rename(folder / "log")
        await stage.start()
        await publish(await stage.connect(), 4)
        await stop(stage)

        assert operations(folder) == []
        assert losses.read(folder) == []


async def test_what_a_new_log_accepted_is_listed_as_lost_when_the_former_one_is_mounted_over_it(
    tmp_path: Path,
) -> None:
    async with run_stage() as stage:
        await fill(stage, 5)
        folder = await stop(stage)
        (folder / "log").rename(tmp_path / "away")
        await command("", "log", "acknowledge", "--data", str(folder))
        await stage.start()
        await fill(stage, 1)
        epoch = stage.hub.app._engine.epoch
        await stop(stage)
        shutil.rmtree(folder / "log")
        (tmp_path / "away").rename(folder / "log")
        done = await command("", "log", "verify", "--data", str(folder))
        await stage.start()

        assert f"epoch {epoch} is lost" in done.err
        assert done.code == 1
        (one,) = await lost(stage)
        assert one["epoch"] == epoch
        assert (await topic_info(stage))["head"] == 5
        assert stage.hub.app._engine.epoch == epoch + 1


@pytest.mark.parametrize("lose", [delete, unmount])
async def test_no_command_takes_a_log_that_is_gone_for_an_empty_one(
    lose: Gone, tmp_path: Path
) -> None:
    async with run_stage() as stage:
        await fill(stage)
        folder = await stop(stage)
        lose(folder / "log")

        for words in (
            *(("log", verb) for verb in ("ls", "info", "verify", "view")),
            ("backup", str(tmp_path / "backup")),
        ):
            done = await command("", *words, "--data", str(folder))
            assert (done.code, "the log is gone" in done.err) == (1, True), words
        assert not (tmp_path / "backup").exists()
        await command("", "log", "acknowledge", "--data", str(folder))
        await stage.start()


async def test_the_pipeline_remembers_a_log_that_is_gone_with_the_state() -> None:
    async with run_stage() as stage:
        await fill(stage)
        folder = await stop(stage)
        delete(folder / "log")
        for one in folder.glob("state.db*"):
            one.unlink()
        write_status(folder, PipelineStatus(pid=1, epoch=7, position=12))

        with pytest.raises(SettingsError, match="entries up to 11 of epoch 7"):
            await stage.start()
        await command("", "log", "acknowledge", "--data", str(folder))
        await stage.start()


async def test_an_older_copy_of_the_log_is_a_loss_and_begins_a_new_epoch(tmp_path: Path) -> None:
    async with run_stage() as stage:
        await fill(stage, 1)
        folder = await stop(stage)
        shutil.copytree(folder / "log", tmp_path / "older")
        await stage.start()
        before = await topic_info(stage)
        peer = await stage.connect()
        for number in range(3):
            await publish(peer, number)
        head = stage.hub.app._engine.head
        await stop(stage)
        shutil.rmtree(folder / "log")
        shutil.copytree(tmp_path / "older", folder / "log")
        done = await command("", "log", "verify", "--data", str(folder))
        await stage.start()

        assert (done.code, f"{head - 1} existed and are lost" in done.err) == (1, True)
        (one,) = await lost(stage)
        assert one["last"] == head - 1
        after = await topic_info(stage)
        assert (after["head"], after["epoch"] != before["epoch"]) == (1, True)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"x" * 32)])
async def test_a_hub_that_cannot_check_the_end_of_its_log_says_so_and_mends_it(
    spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    async with run_stage() as stage:
        await fill(stage)
        folder = await stop(stage)
        spoil(folder / "log" / HEAD_NAME)
        await stage.start()

        assert "the end of the log cannot be checked" in caplog.text
        assert verify(SystemDisk(folder / "log", read_only=True)).problems == ()


async def test_a_lost_end_is_noticed_although_the_file_that_guards_it_is_lost_too() -> None:
    async with run_stage() as stage:
        await fill(stage)
        folder = await stop(stage)
        head = verify(SystemDisk(folder / "log", read_only=True)).head
        (folder / "log" / HEAD_NAME).unlink()
        cut_to(folder, head - 1)
        await stage.start()

        (one,) = await lost(stage)
        assert (one["first"], one["last"]) == (head - 1, head - 1)
