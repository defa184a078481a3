"""Servers under test as processes: started, killed, started again, and never left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.machine import Cores, data_folder
from bench.servers import Running, Server, ServerFailed, running

_CORE = min(os.sched_getaffinity(0))
CORES = Cores(server=_CORE, generator=_CORE)


def server(program: str) -> Server:
    def command(folder: Path) -> list[str]:
        return [sys.executable, "-c", program, str(folder)]

    return Server(name="toy", command=command, ready=r"port=(\d+)")


# It counts its lives in its folder, and says them as its port.
LIVES = """
import pathlib, signal, sys
lives = pathlib.Path(sys.argv[1], "lives")
count = int(lives.read_text()) + 1 if lives.exists() else 1
lives.write_text(str(count))
print(f"port={count}", flush=True)
signal.pause()
"""


def is_alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def test_a_killed_server_starts_again_on_its_data() -> None:
    with running(server(LIVES), CORES) as target:
        (first,) = target.pids
        assert target.port == 1

        target.kill()
        took_s = target.start()

        (second,) = target.pids
        assert (target.port, took_s > 0) == (2, True)
        assert not is_alive(first)
    assert not is_alive(second)


def test_the_folder_of_a_run_goes_with_it() -> None:
    with running(server(LIVES), CORES) as target:
        folder = target.folder
        assert folder.parent == data_folder()
        assert (folder / "lives").exists()

    assert not folder.exists()


def test_a_server_that_ends_before_it_listens_is_an_error_with_what_it_said(
    tmp_path: Path,
) -> None:
    target = Running(server("print('no licence')"), tmp_path, CORES)

    with pytest.raises(ServerFailed, match="no licence"):
        target.start()


def test_a_server_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    nothing = Server(name="toy", command=lambda folder: ["/no/such/program"], ready="port")

    with pytest.raises(ServerFailed, match="toy cannot be started"):
        Running(nothing, tmp_path, CORES).start()
