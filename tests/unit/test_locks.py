"""The data folder belongs to one hub at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from signalhub.locks import FileLock, LockedFolder
from signalhub.wire.errors import SettingsError


def test_a_second_hub_is_refused_until_the_first_has_gone_even_if_it_was_killed(
    tmp_path: Path,
) -> None:
    data = str(tmp_path / "data")
    code = (
        "import os, sys; from signalhub.locks import LockedFolder as L; L(sys.argv[1]); os.abort()"
    )
    subprocess.run([sys.executable, "-c", code, data], check=False)
    first = LockedFolder(data)

    with pytest.raises(SettingsError, match="in use by another hub"):
        LockedFolder(data)
    first.close()

    LockedFolder(data).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="file/data"):
        LockedFolder(str(tmp_path / "file" / "data"))


def test_a_lock_whose_file_was_removed_is_taken_on_the_file_that_others_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused start removes the file of its lock while another start waits for it."""
    data = tmp_path / "data"
    refused = LockedFolder(str(data))
    wait = FileLock._take

    def take(lock: FileLock, wait_s: float) -> None:
        refused.abandon()
        data.mkdir(exist_ok=True)
        wait(lock, wait_s)

    monkeypatch.setattr(FileLock, "_take", take)
    following = LockedFolder(str(data))

    with pytest.raises(SettingsError, match="in use by another hub"):
        LockedFolder(str(data))
    following.close()


def test_an_abandoned_folder_keeps_what_others_have_put_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    folder = LockedFolder(str(data))
    (data / "log").mkdir()
    (data / "actors.db").touch()

    folder.abandon(("log", "state.db*"))

    assert [one.name for one in data.iterdir()] == ["actors.db"]


def test_nothing_is_removed_from_a_disk_that_was_mounted_over_an_abandoned_folder(
    tmp_path: Path,
) -> None:
    data, below = tmp_path / "data", tmp_path / "below"
    folder = LockedFolder(str(data))
    data.rename(below)
    (data / "log").mkdir(parents=True)
    (data / "hub.lock").touch()

    folder.abandon(("log",))

    assert sorted(one.name for one in data.iterdir()) == ["hub.lock", "log"]
    LockedFolder(str(data)).close()


def test_a_folder_that_another_process_has_used_meanwhile_was_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, wait = tmp_path / "data", FileLock._take

    def take(lock: FileLock, wait_s: float) -> None:
        (data / "state.db").touch()
        wait(lock, wait_s)

    monkeypatch.setattr(FileLock, "_take", take)
    LockedFolder(str(data)).abandon(("state.db",))

    assert (data / "state.db").exists()
