"""The pipeline as a child of the hub. A few lines of Python stand in for it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from signalhub.counters import LakeTally
from signalhub.pipeline.run.progress import told
from signalhub.server.app import App
from signalhub.server.pipeline_process import Beside, pipeline_command
from signalhub.settings.model import PipelineSettings, Settings
from signalhub.wire.errors import SettingsError
from tests.pipeline.scene import LogScene
from tests.support.socket.stage import eventually

WRITE_DOWN = """
import os, signal, sys, time
def write_down():
    with open("starts", "a") as starts:
        starts.write(f"{os.getpid()} {os.getpgid(0)}\\n")
"""
GOOD = f"""{WRITE_DOWN}
signal.signal(signal.SIGTERM, lambda *_: (open("ended", "w").close(), sys.exit(0)))
print("a line of its own", file=sys.stderr, flush=True)
print("and one on its output", flush=True)
write_down()
while True: signal.pause()
"""
# It has a child, as Spark does, and neither of them ends.
STUBBORN = f"""{WRITE_DOWN}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
write_down()
while True: signal.pause()
"""
# A hub whose pipeline watches it, and has a child as Spark does.
HUB = """
import asyncio, sys
from signalhub.counters import LakeTally
from signalhub.server.pipeline_process import Beside
async def serve():
    Beside([sys.executable, "-c", sys.argv[1]], LakeTally()).start()
    await asyncio.sleep(60)
asyncio.run(serve())
"""
WATCHING = f"""{WRITE_DOWN}
from signalhub.cli.lake.pipeline import _end_with
hub = os.getppid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): _end_with(hub)
write_down()
while True: signal.pause()
"""
SHORT_LIVED = f"{WRITE_DOWN}\nwrite_down()\nraise SystemExit(3)\n"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


class Children:
    """Children in a folder, where each writes its process and process group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, script: str, tally: LakeTally | None = None, stop_s: float = 10.0) -> Beside:
        command = (sys.executable, "-c", script)
        return Beside(command, tally or LakeTally(), pause_s=0.01, stop_s=stop_s)

    @property
    def starts(self) -> list[list[int]]:
        path = self.folder / "starts"
        text = path.read_text() if path.exists() else ""
        return [[int(word) for word in line.split()] for line in text.splitlines()]

    async def started(self, count: int) -> list[list[int]]:
        await eventually(lambda: len(self.starts) >= count)
        return self.starts


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    monkeypatch.chdir(tmp_path)
    found = Children(tmp_path)
    yield found
    for pid, _ in found.starts:
        # A test that fails leaves nobody behind.
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


async def test_it_has_a_group_of_its_own_gets_its_share_of_the_cores_and_prints_on_standard_error(
    children: Children, capfd: pytest.CaptureFixture[str]
) -> None:
    child = children.make(GOOD)
    child.start()
    ((pid, group),) = await children.started(1)

    assert pid == group == child.pid
    assert group != os.getpgid(0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
    await child.stop()
    assert (children.folder / "ended").exists()
    assert child.pid is None
    assert not is_alive(pid)
    assert capfd.readouterr() == ("", "a line of its own\nand one on its output\n")


async def test_one_that_is_killed_is_started_again_and_counted(
    children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    tally = LakeTally()
    child = children.make(GOOD, tally)
    child.start()
    for number in (1, 2):
        os.kill((await children.started(number))[-1][0], signal.SIGKILL)
    await children.started(3)
    await child.stop()

    assert tally.restarts == 2
    assert [one.getMessage() for one in caplog.records].count("the pipeline ended") == 2


async def test_one_that_ends_at_once_is_started_less_and_less_often_until_it_is_stopped(
    children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    child = children.make(SHORT_LIVED)
    child.start()
    await children.started(4)
    await child.stop()
    await child.stop()
    count = len(children.starts)

    told = [vars(one) for one in caplog.records if one.getMessage() == "the pipeline ended"]
    assert {one["reason"] for one in told} == {"exit code 3"}
    assert [one["again_in_s"] for one in told][:3] == [0.01, 0.02, 0.04]
    await asyncio.sleep(0.1)
    assert len(children.starts) == count


async def test_one_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    tally = LakeTally()
    child = Beside([str(tmp_path / "nothing")], tally, pause_s=0.01)
    child.start()
    await eventually(lambda: tally.restarts >= 2)
    await child.stop()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_whatever_a_child_has_started_goes_with_it(
    children: Children, is_killed: bool
) -> None:
    child = children.make(STUBBORN, stop_s=0.2)
    child.start()
    first = await children.started(2)
    if is_killed:
        leader = first[0][1]
        os.kill(leader, signal.SIGKILL)
        await eventually(lambda: not any(is_alive(pid) for pid, _ in first))
        await children.started(4)

    await child.stop()

    await eventually(lambda: not any(is_alive(pid) for pid, _ in children.starts))


async def test_a_pipeline_and_what_it_has_started_die_with_a_hub_that_is_killed(
    children: Children,
) -> None:
    hub = await asyncio.create_subprocess_exec(sys.executable, "-c", HUB, WATCHING)
    started = await children.started(2)
    hub.kill()
    await hub.wait()

    async with asyncio.timeout(3):
        await eventually(lambda: not any(is_alive(pid) for pid, _ in started))


# What Spark starts instead of Java: a launcher that prints a command, and then this command.
JAVA = """#!/bin/sh
printf '\\0\\n/bin/sh\\0-c\\0echo $$ > %s; exec sleep 600\\0' "$SPARK_PID"
"""


# So that there is something for Spark to do.
ALWAYS = {"SIGNALHUB_PIPELINE_SPARK": "always"}


class Starting:
    """A command whose Java never gets ready."""

    def __init__(self, folder: Path, *words: str) -> None:
        LogScene(folder / "data")
        self._pid = folder / "pid"
        java, jars = folder / "java" / "bin" / "java", folder / "jars"
        java.parent.mkdir(parents=True)
        java.write_text(JAVA)
        java.chmod(0o755)
        (jars / "jars").mkdir(parents=True)
        (jars / "jars" / "delta.jar").touch()
        (jars / ".complete").touch()
        places = {"JAVA_HOME": str(folder / "java"), "SIGNALHUB_JARS": str(jars)}
        self.data = folder / "data"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "signalhub", *words, "--data", str(self.data)],
            env={**os.environ, **places, "SPARK_PID": str(self._pid), **ALWAYS},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def java(self) -> int:
        return int(self._pid.read_text()) if self._pid.exists() else 0

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal; the exit code, and what was printed."""
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=20)
        return self.process.returncode, out + errors


async def test_whoever_is_stopped_while_spark_starts_leaves_no_java_and_no_traceback(
    tmp_path: Path,
) -> None:
    stopped = "signalhub: stopped before everything was landed; repeat the command to continue\n"
    expected = {
        ("up", signal.SIGINT): (0, ""),
        ("once", signal.SIGTERM): (143, stopped),
        ("once", signal.SIGINT): (130, stopped),
    }
    all = {
        case: Starting(tmp_path / "-".join(map(str, case)), "pipeline", case[0])
        for case in expected
    }
    await eventually(lambda: all_started(all.values()))
    assert {told(one.data)[0] for one in all.values()} == {"starting"}

    assert {case: one.end(case[1]) for case, one in all.items()} == expected
    assert not any(is_alive(one.java) for one in all.values())
    assert {told(one.data)[0] for one in all.values()} == {"stopped"}


def all_started(commands: Iterable[Starting]) -> bool:
    return all(one.java for one in commands)


def test_it_is_told_whose_data_and_beside_whom() -> None:
    command = pipeline_command(Path("data"), "hub.toml")

    assert command[:5] == [sys.executable, "-m", "signalhub", "pipeline", "up"]
    options = ["--data", "data", "--config", "hub.toml", "--beside", str(os.getpid())]
    assert command[5:] == options


class TestHub:
    @pytest.fixture
    def settings(self, children: Children) -> Settings:
        return Settings(port=0, data="data", drain_s=1.0, pipeline=PipelineSettings(run="beside"))

    @pytest.fixture
    def no_java(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME", raising=False)

    async def test_it_is_started_behind_the_open_door_and_stopped_with_the_hub(
        self, settings: Settings, children: Children
    ) -> None:
        app = App(settings, pipeline=(sys.executable, "-c", GOOD))
        await app.start()
        assert app.port
        ((pid, _),) = await children.started(1)

        await app.stop()

        assert (children.folder / "ended").exists()
        assert not is_alive(pid)

    async def test_without_java_the_hub_does_not_start_as_if_it_had_a_pipeline(
        self, settings: Settings, no_java: None
    ) -> None:
        with pytest.raises(SettingsError, match=r"Java not found: install .* --no-pipeline"):
            await App(settings).start()

        # It has let go of the folder.
        app = App(msgspec.structs.replace(settings, pipeline=PipelineSettings(run="elsewhere")))
        await app.start()
        await app.stop()

    async def test_without_java_the_command_says_so_in_one_line(self, tmp_path: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "signalhub", "serve", "--port", "0", "--data", "data"),
            "--pipeline",
            cwd=tmp_path,
            env={"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await asyncio.wait_for(process.communicate(), 60)

        lines = [line for line in said.decode().splitlines() if not line.startswith("{")]
        (line,) = lines
        assert line.startswith("signalhub: the pipeline cannot run: Java not found")
        assert process.returncode == 2
