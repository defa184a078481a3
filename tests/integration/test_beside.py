"""The pipeline as a child of the hub. A few lines of Python stand in for it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from signalhub.counters import LakeTally
from signalhub.server.app import App
from signalhub.server.pipeline_process import Beside, pipeline_command
from signalhub.settings.model import PipelineSettings, Settings
from tests.support.lake.small_lake import SmallLake
from tests.support.socket.stage import eventually

# It writes down who it is, and ends as it should.
GOOD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open("ended", "w").close(), sys.exit(0)))
print("a line of its own", file=sys.stderr, flush=True)
print("and one on its output", flush=True)
with open("lives", "a") as lives:
    lives.write(f"{os.getpid()} {os.getpgid(0)} {os.getpriority(os.PRIO_PROCESS, 0)}\\n")
while True:
    time.sleep(0.05)
"""
# It has a child, as Spark does, and neither of them ends.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
with open("lives", "a") as lives:
    lives.write(f"{os.getpid()} {os.getpgid(0)} 0\\n")
while True:
    time.sleep(0.05)
"""
SHORT_LIVED = """
import os
with open("lives", "a") as lives:
    lives.write(f"{os.getpid()} {os.getpgid(0)} 0\\n")
raise SystemExit(3)
"""


def lives(folder: Path) -> list[list[int]]:
    """Process, process group and priority of every life there was."""
    path = folder / "lives"
    text = path.read_text() if path.exists() else ""
    return [[int(word) for word in line.split()] for line in text.splitlines()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


Make = Callable[..., Beside]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)

    def make(script: str, tally: LakeTally | None = None, stop_s: float = 10.0) -> Beside:
        command = (sys.executable, "-c", script)
        return Beside(command, tally or LakeTally(), pause_s=0.01, stop_s=stop_s)

    yield make
    for pid, _, _ in lives(tmp_path):
        # A test that fails leaves nobody behind.
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def weight_of_session(pid: int) -> int | None:
    """What Linux calls the niceness of an autogroup, where there are any."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except OSError:
        return None


async def test_it_runs_in_a_group_of_its_own_and_gives_way_to_the_hub(
    beside: Make, tmp_path: Path
) -> None:
    child = beside(GOOD)
    child.start()
    await eventually(lambda: len(lives(tmp_path)) == 1)

    ((pid, group, _),) = lives(tmp_path)
    assert pid == group == child.pid
    assert group != os.getpgid(0)
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 15)
    assert os.getpriority(os.PRIO_PROCESS, pid) == nice
    assert weight_of_session(pid) in (nice, None), "sessions are weighed against each other"

    await child.stop()
    assert (tmp_path / "ended").exists()
    assert child.pid is None
    assert not is_alive(pid)


async def test_everything_it_says_goes_to_standard_error(
    beside: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child = beside(GOOD)
    child.start()
    await eventually(lambda: len(lives(tmp_path)) == 1)
    await child.stop()

    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == "a line of its own\nand one on its output\n"


async def test_one_that_is_killed_is_started_again_and_counted(
    beside: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tally = LakeTally()
    child = beside(GOOD, tally)
    child.start()
    for number in (1, 2):
        await eventually(lambda: len(lives(tmp_path)) == number)  # noqa: B023
        os.kill(lives(tmp_path)[-1][0], signal.SIGKILL)
    await eventually(lambda: len(lives(tmp_path)) == 3)
    await child.stop()

    assert tally.restarts == 2
    assert [one.getMessage() for one in caplog.records].count("the pipeline ended") == 2
    caplog.clear()


async def test_one_that_ends_at_once_is_started_ever_more_rarely(
    beside: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child = beside(SHORT_LIVED)
    child.start()
    await eventually(lambda: len(lives(tmp_path)) >= 4)
    await child.stop()

    told = [vars(one) for one in caplog.records if one.getMessage() == "the pipeline ended"]
    assert {one["reason"] for one in told} == {"exit code 3"}
    pauses = [one["again_in_s"] for one in told]
    assert pauses[:3] == [0.01, 0.02, 0.04]
    caplog.clear()


async def test_one_that_cannot_be_started_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tally = LakeTally()
    child = Beside([str(tmp_path / "nothing")], tally, pause_s=0.01)
    child.start()
    await eventually(lambda: tally.restarts >= 2)
    await child.stop()

    caplog.clear()


async def test_one_that_does_not_end_is_killed_with_all_it_started(
    beside: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child = beside(STUBBORN, stop_s=0.2)
    child.start()
    await eventually(lambda: len(lives(tmp_path)) == 2)

    await child.stop()

    await eventually(lambda: not any(is_alive(pid) for pid, _, _ in lives(tmp_path)))
    caplog.clear()


async def test_what_a_child_leaves_behind_goes_with_it(
    beside: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child = beside(STUBBORN)
    child.start()
    await eventually(lambda: len(lives(tmp_path)) == 2)
    leader = lives(tmp_path)[0][1]
    (other,) = (pid for pid, _, _ in lives(tmp_path) if pid != leader)

    os.kill(leader, signal.SIGKILL)

    await eventually(lambda: not is_alive(other))
    await eventually(lambda: len(lives(tmp_path)) >= 3)
    os.kill(lives(tmp_path)[-1][1], signal.SIGKILL)
    await child.stop()
    caplog.clear()


async def test_a_stopped_one_is_not_started_again(
    beside: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child = beside(SHORT_LIVED)
    child.start()
    await eventually(lambda: len(lives(tmp_path)) >= 1)
    await child.stop()
    await child.stop()
    count = len(lives(tmp_path))
    await asyncio.sleep(0.1)

    assert len(lives(tmp_path)) == count
    caplog.clear()


def test_it_is_told_whose_data_and_beside_whom() -> None:
    command = pipeline_command(Path("data"), "hub.toml")

    assert command[:5] == [sys.executable, "-m", "signalhub", "pipeline", "up"]
    assert command[5:] == [
        *("--data", "data"),
        *("--config", "hub.toml"),
        *("--beside", str(os.getpid())),
    ]


class TestHub:
    @pytest.fixture
    def settings(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
        monkeypatch.chdir(tmp_path)
        return Settings(port=0, data="data", drain_s=1.0, pipeline=PipelineSettings(run="beside"))

    @pytest.fixture
    def no_java(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME", raising=False)

    async def test_it_is_started_behind_the_open_door_and_stopped_with_the_hub(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        app = App(settings, pipeline=(sys.executable, "-c", GOOD))
        await app.start()
        assert app.port
        await eventually(lambda: len(lives(tmp_path)) == 1)

        await app.stop()

        assert (tmp_path / "ended").exists()
        assert not is_alive(lives(tmp_path)[0][0])

    async def test_without_java_the_hub_starts_and_says_what_to_do(
        self, settings: Settings, no_java: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = App(settings)
        await app.start()

        assert app._lakeside is None
        assert app.hub.rooms.messages.archived is None
        assert app._degradations() == []
        await app.stop()
        (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
        assert warning.startswith("the pipeline is off: Java not found: ")
        assert "install" in warning

    async def test_without_java_a_lake_that_is_there_is_still_read(
        self, settings: Settings, no_java: None, tmp_path: Path
    ) -> None:
        SmallLake(tmp_path / "data" / "lake").append("entries", [], last=0)
        app = App(settings)
        await app.start()

        assert app._lakeside is not None
        assert app.hub.rooms.messages.archived == 0
        await app.stop()

    async def test_without_java_the_command_line_starts_all_the_same(self, tmp_path: Path) -> None:
        command = ("-m", "signalhub", "serve", "--port", "0", "--data", "data", "--pipeline")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=tmp_path,
            env={"PATH": ""},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        process.terminate()
        _, said = await process.communicate()

        assert b"listening" in line
        assert said.count(b"the pipeline is off") == 1
        assert process.returncode == 0
