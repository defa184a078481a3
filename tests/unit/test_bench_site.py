"""The machine's disk, and the amount of load a server gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import machine
from bench.load import Generator
from bench.machine import Cores
from bench.servers import HUB, JETSTREAM_SYNC, REDIS, Running
from bench.site import Site

CORES = Cores(server=0, generator=0)


class Idle(Generator):
    """A generator that is never asked to do anything."""

    def __init__(self) -> None:
        pass


def test_a_slow_server_gets_fewer_messages_but_enough_for_a_percentile() -> None:
    slow = Site(Idle(), Running(JETSTREAM_SYNC, Path(), CORES))
    fast = Site(Idle(), Running(REDIS, Path(), CORES))

    assert fast.messages(100_000, 2_000) == 100_000
    assert slow.messages(100_000, 2_000) == 5_000
    assert slow.messages(4_000, 2_000) == 2_000
    assert slow.messages(1_000, 2_000) == 1_000


def test_a_share_of_the_load_is_never_nothing() -> None:
    site = Site(Idle(), Running(HUB, Path(), CORES), 0.01)

    assert (site.messages(1_000), site.messages(1)) == (10, 1)
    assert (site.connections(1_000), site.connections(1)) == (10, 1)


def test_a_file_system_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    mounts = f"disk / ext4 rw 0 0\nmemory {inner} tmpfs rw 0 0\n"
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mounts").write_text(mounts)
    monkeypatch.setattr(machine, "_PROC", tmp_path)

    assert machine.file_system(inner / "deep") == "tmpfs"
    assert machine.file_system(tmp_path) == "ext4"


def test_a_sync_takes_time_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert machine.sync_us(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
