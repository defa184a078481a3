"""What the hub stores can be read only by its owner, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import signalhub
from signalhub.actors.store.store import HostStore
from signalhub.cli.app import run
from signalhub.pipeline.run.lock import lock_pipeline
from signalhub.pipeline.run.status import replace_json
from signalhub.testing import run_hub
from tests.support.process.command import SECRET, started


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    found = [folder, *folder.rglob("*")]
    return [f"{one.name} {one.stat().st_mode:o}" for one in found if one.stat().st_mode & 0o077]


async def a_used_hub(data: Path) -> None:
    async with run_hub(data=str(data)) as hub:
        async with signalhub.connect(hub.url, "@(demo/alice)") as alice:
            await alice.publish("news", "hello", durable=True)
        await hub.stop()
        (segment,) = (data / "log").glob("*.log")
        with segment.open("ab") as file:
            file.write(b"torn")
        await hub.start()


async def test_every_file_of_a_data_folder_is_private_without_a_umask(
    no_umask: None, tmp_path: Path
) -> None:
    data = tmp_path / "deep" / "data"

    await a_used_hub(data)
    HostStore(data / "actors.db").close()
    replace_json(data / "pipeline" / "status.json", {})
    lock_pipeline(data).close()

    names = {one.name for one in data.rglob("*")}
    assert {"state.db", "hub.lock", "inbox.key", "actors.db", "status.json"} <= names
    assert any(name.endswith(".torn") for name in names)
    assert open_to_others(data) == []


async def test_a_folder_of_an_earlier_version_is_closed_to_others_at_the_start(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    await a_used_hub(data)
    mine = data / "notes.txt"
    mine.touch()
    (data / "lake" / "entries").mkdir(parents=True)
    (data / "lake" / "entries" / "part.parquet").touch()
    for one in (data, *data.rglob("*")):
        one.chmod(0o755 if one.is_dir() else 0o644)

    async with run_hub(data=str(data)):
        assert open_to_others(data) == ["notes.txt 100644"]


def test_a_minted_token_is_written_for_its_owner_only(
    no_umask: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = tmp_path / "hub.toml", tmp_path / "alice.token"
    config.write_text(f'[auth]\nsecret = "{SECRET}"\n')
    out.touch(0o644)

    assert run(["token", "mint", "demo/alice", "--out", str(out), "--config", str(config)]) == 0

    assert out.read_text().count(".") == 2
    assert out.stat().st_mode & 0o777 == 0o600
    assert out.read_text().strip() not in capsys.readouterr().out


async def test_a_start_warns_of_a_secret_that_others_can_read(tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(f'port = 0\n[auth]\nenabled = true\nsecret = "{SECRET}"\n')
    config.chmod(0o644)
    serve = ("serve", "--data", str(tmp_path / "data"), "--config", str(config))

    async with started("", *serve) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        await process.stdout.readline()
        process.terminate()
        said = (await process.stderr.read()).decode()

    assert f"chmod 600 {config}" in said
    assert ("runs as root" in said) == (os.geteuid() == 0)
    assert SECRET not in said
