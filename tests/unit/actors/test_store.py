"""The file of a host: which ones are opened, how, and which are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from signalhub.actors import Actor, remote
from signalhub.actors.store.store import HostStore
from signalhub.testing.local_actors import LocalActors
from signalhub.wire.errors import SettingsError


class Echo(Actor):
    @remote
    def echo(self, value: Any) -> None:
        self.state.put("seen", value)


def test_a_file_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = apsw.Connection(os.fspath(path))
    other.execute("CREATE TABLE t (x)")
    other.close()

    with pytest.raises(SettingsError, match="a database of another program"):
        HostStore(path)


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    store = HostStore(tmp_path / "a.db")
    with store.transaction():
        store.connection.pragma("user_version", 99)
    store.close()

    with pytest.raises(SettingsError, match="its version is 99"):
        HostStore(tmp_path / "a.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database at all" * 100)

    with pytest.raises(SettingsError, match="cannot be used"):
        HostStore(tmp_path / "a.db")


def test_a_path_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SettingsError, match="cannot be used"):
        HostStore(tmp_path / "file" / "a.db")
    with pytest.raises(SettingsError, match="cannot be used"):
        HostStore(tmp_path)


@pytest.mark.parametrize(("durability", "level"), [("power", 2), ("process", 1)])
def test_durability_decides_whether_a_commit_waits_for_the_disk(
    tmp_path: Path, durability: Any, level: int
) -> None:
    store = HostStore(tmp_path / "a.db", durability=durability)

    assert store.connection.pragma("synchronous") == level
    assert store.connection.pragma("journal_mode") == "wal"
    store.close()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_can_be_looked_at_while_its_host_runs_and_when_it_does_not(
    tmp_path: Path, is_open: bool
) -> None:
    local = LocalActors(Echo, path=tmp_path / "a.db")
    local.call("echo/1", "echo", 7)
    if not is_open:
        local.close()
    store = HostStore.read_only(tmp_path / "a.db")

    assert store.execute("SELECT count(*) FROM state").get == 1
    with pytest.raises(apsw.ReadOnlyError):
        store.execute("DELETE FROM state")
    store.close()


def test_what_is_no_file_of_a_host_cannot_be_looked_at(tmp_path: Path) -> None:
    other = apsw.Connection(os.fspath(tmp_path / "other.db"))
    other.execute("CREATE TABLE t (x)")
    other.close()
    (tmp_path / "text").write_bytes(b"no database at all" * 100)

    for name in ("absent.db", "other.db", "text"):
        with pytest.raises(SettingsError, match="cannot be used"):
            HostStore.read_only(tmp_path / name)
