"""The servers under test: real processes, fresh for every run, pinned to one core.

Each is ended by its process id when its context ends, whatever happened inside.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import Cores, process_tree
from bench.protocols import Dialect, Nats, SignalHub, SocketIo

START_S_MAX = 20.0
STOP_S_MAX = 5.0
POLL_S = 0.02
ROOT = Path(__file__).parent.parent


class ServerFailed(Exception):
    """A server did not start; the text ends with what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to start one server and how to talk to it.

    `ready` finds the port in what the server prints. A slow server gets fewer messages and
    connections, so that its runs take as long as the others'.
    """

    name: str
    dialect: Dialect
    command: Callable[[Path], list[str]]
    ready: str
    environment: dict[str, str] = field(default_factory=dict)
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts connections."""

    server: Server
    port: int
    pids: list[int]


def _hub_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "signalhub", "serve", "--port", "0", "--data", str(folder)]


def _nats_command(folder: Path) -> list[str]:
    settings = folder / "nats.conf"
    settings.write_text(
        'listen: "127.0.0.1:-1"\n'
        'websocket { host: "127.0.0.1", port: -1, no_tls: true }\n'
        "max_connections: 100000\n"
    )
    return [str(Path(sys.executable).with_name("nats-server")), "-c", str(settings)]


def _socketio_command(folder: Path) -> list[str]:
    app = "bench.peers.socketio_app:app"
    options = ["--host", "127.0.0.1", "--port", "0", "--loop", "uvloop", "--no-access-log"]
    return [sys.executable, "-m", "uvicorn", app, *options]


HUB = Server(
    name="signalhub",
    dialect=SignalHub(),
    command=_hub_command,
    ready=r"listening on ws://127\.0\.0\.1:(\d+)",
    environment={"SIGNALHUB_MESSAGE_RATE": "0", "SIGNALHUB_CONNECTION_RATE": "0"},
)
NATS = Server(
    name="nats-ws",
    dialect=Nats(),
    command=_nats_command,
    ready=r"websocket clients on ws://127\.0\.0\.1:(\d+)",
    environment={"GOMAXPROCS": "1"},
)
SOCKETIO = Server(
    name="socketio",
    dialect=SocketIo(),
    command=_socketio_command,
    ready=r"running on http://127\.0\.0\.1:(\d+)",
    is_slow=True,
)


@contextmanager
def running(server: Server, cores: Cores) -> Iterator[Running]:
    """Start the server in a folder of its own, wait until it listens, end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        output = folder / "output.txt"
        process = _start(server, folder, output, cores)
        try:
            port = _await_port(server, process, output)
            yield Running(server, port, process_tree(process.pid))
        finally:
            _stop(process)


def _start(server: Server, folder: Path, output: Path, cores: Cores) -> subprocess.Popen[bytes]:
    command = server.command(folder)
    # A child inherits the affinity of its parent, so every thread of it is pinned from the start.
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.server})
    try:
        with output.open("wb") as sink:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **server.environment},
                start_new_session=True,
            )
    except OSError as error:
        raise ServerFailed(f"{server.name} cannot be started: {error}") from error
    finally:
        os.sched_setaffinity(0, mine)


def _await_port(server: Server, process: subprocess.Popen[bytes], output: Path) -> int:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(server.ready, output.read_text(errors="replace")):
            return int(found[1])
        time.sleep(POLL_S)
    tail = output.read_text(errors="replace")[-600:]
    raise ServerFailed(f"{server.name} did not start; it printed:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also when a second Ctrl-C cuts the waiting short; without effect on a process that ended.
        process.kill()
        process.wait()
